//! Names of services, for cache keys, metrics and messages.
//!
//! A name comes from the option `name`, from the kind of the service or from an address. Names and
//! kinds have no colon, an address always has one. A configured name may equal a kind, such as
//! `boost`; [`names`] refuses it if another service has the name of that kind.

use std::collections::HashMap;
use std::sync::Arc;

use millrace_http_cache::Space;
use sha2::{Digest, Sha256};

use super::error::ConfigError;
use super::raw::{RawService, ServiceKind};
use super::value;
use super::{Cidr, Config, ListenAddress, Listener, Service, ServiceRole, TargetRules};

/// The name of a service and the space of its cache keys.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceName {
    text: Arc<str>,
    source: NameSource,
    kind: ServiceKind,
    space: Space,
}

/// The source of a service's name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NameSource {
    /// The option `name`.
    Given,
    /// The kind, if no other service of the process is of this kind.
    Kind,
    /// The first listen address, if another service of the process is of the same kind.
    Address,
}

impl ServiceName {
    /// Returns the name, for labels and messages.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Returns the space of the service's cache keys. No other service of the process has the same,
    /// so that no service returns a response that another one stored.
    pub fn space(&self) -> &Space {
        &self.space
    }

    /// Returns the kind of the service.
    pub(super) fn kind(&self) -> ServiceKind {
        self.kind
    }

    /// Returns the value of the option `name`; `None` if it is not set.
    pub(super) fn given(&self) -> Option<&str> {
        (self.source == NameSource::Given).then_some(&*self.text)
    }

    /// Returns the name of a forward proxy with these target rules, which are part of its key
    /// space. The rules for addresses are checked at connect time, and a cache hit does not
    /// connect. So a response that was stored under other rules must not be found.
    pub(super) fn with_rules(self, rules: &TargetRules) -> Self {
        Self { space: Space::named(&format!("{};{}", self.text, fingerprint(rules))), ..self }
    }
}

/// Returns the names of all services, in their order. `listeners` has the listeners of each.
///
/// # Errors
/// Returns an error if two services have the same name.
pub(super) fn names(
    services: &[RawService],
    listeners: &[Vec<Listener>],
) -> Result<Vec<ServiceName>, ConfigError> {
    let mut names: Vec<ServiceName> = Vec::with_capacity(services.len());
    let mut seen: HashMap<Arc<str>, usize> = HashMap::new();
    for (service, raw) in services.iter().enumerate() {
        let is_of_kind = |other: &&RawService| other.kind == raw.kind;
        let (text, source) = match raw.table.one("name", value::parse_service_name)? {
            Some(name) => (name, NameSource::Given),
            None if services.iter().filter(is_of_kind).count() == 1 => {
                (raw.kind.name().to_owned(), NameSource::Kind)
            }
            None => (address_name(&listeners[service], service), NameSource::Address),
        };
        let text: Arc<str> = text.into();
        // Addresses are distinct: `build` refuses an address that two services use.
        if source != NameSource::Address
            && let Some(other) = seen.insert(text.clone(), service)
        {
            // One of the services has the name by its option; the other may have it by its kind.
            let named = if source == NameSource::Given { raw } else { &services[other] };
            let problem = format!("another service has the name {text}");
            let allowed = "a name that no other service of the process has";
            return Err(ConfigError::rule(named.table.location_of("name"), problem, allowed));
        }
        let space = Space::named(&text);
        names.push(ServiceName { text, source, kind: raw.kind, space });
    }
    Ok(names)
}

/// Returns the first address. No other service has it, and it does not change when services are
/// added or removed. If the kernel chooses the port, several services may have the same address, so
/// the index of the service is appended.
fn address_name(listeners: &[Listener], service: usize) -> String {
    match listeners.first().map(|listener| &listener.address) {
        Some(ListenAddress::Tcp(address)) if address.port() == 0 => format!("{address}#{service}"),
        address => address.map(ToString::to_string).unwrap_or_default(),
    }
}

/// Returns a digest of the rules about addresses and ports. Rules about names apply before the
/// cache lookup, so they are not part of it. Each run has to compute the same digest, because keys
/// on disks contain it.
fn fingerprint(rules: &TargetRules) -> String {
    let TargetRules { private, allowed, denied, ports, denied_ports, .. } = rules;
    let blocks = |blocks: &[Cidr]| {
        let each = blocks.iter().map(|block| format!("{}/{}", block.network, block.prefix));
        each.collect::<Vec<_>>().join(",")
    };
    let (allowed, denied) = (blocks(allowed), blocks(denied));
    let text = format!("{private} {allowed} {denied} {ports:?} {denied_ports:?}");
    Sha256::digest(text)[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns notes for the operator about services whose cache keys depend on their listen address.
pub(super) fn notes(config: &Config) -> impl Iterator<Item = String> {
    let services = config.services.iter().enumerate().filter(|(_, service)| {
        config.cache.is_some() && has_cache(service) && service.name.source == NameSource::Address
    });
    services.filter_map(|(index, _)| {
        let listener = config.listeners.iter().find(|listener| listener.service == index)?;
        Some(format!(
            "note: the service at {} has no name, so its cache keys contain this address: a change of \
             listen makes its stored responses unreachable (set name to keep them)",
            listener.address
        ))
    })
}

/// Returns whether the cache stores any responses of the service.
fn has_cache(service: &Service) -> bool {
    match &service.role {
        ServiceRole::Boost(routes) => routes.iter().any(|route| route.cache.is_some()),
        ServiceRole::Forward(_) => service.cache.is_some(),
    }
}

/// Returns the names of services of `before` whose stored responses no service of `after` can
/// reach.
pub fn lost_names<'a>(before: &'a Config, after: &Config) -> Vec<&'a str> {
    let is_found =
        |name: &ServiceName| after.services.iter().any(|service| service.name.space == name.space);
    let names = before.services.iter().map(|service| &service.name);
    let names = names.filter(|_| before.cache.is_some());
    names.filter(|name| !is_found(name)).map(ServiceName::as_str).collect()
}

#[cfg(test)]
mod tests {
    use crate::{Config, ConfigError, from_arguments, from_toml, notes, to_toml};

    use super::*;

    fn names_of(config: &Config) -> Vec<&str> {
        config.services.iter().map(|service| service.name.as_str()).collect()
    }

    /// Returns a file with these services, each as (kind, lines).
    fn file(services: &[(&str, &str)]) -> Result<Config, ConfigError> {
        let mut text = String::new();
        for (index, (kind, lines)) in services.iter().enumerate() {
            let port = 9000 + index;
            text += &format!("[[{kind}]]\nlisten = '127.0.0.1:{port}'\n{lines}\n");
            match *kind {
                "boost" => text += "[[boost.route]]\norigins = 'http://a'\n",
                "serve" => text += "folder = '/srv'\n",
                _ => {}
            }
        }
        from_toml(&text)
    }

    #[test]
    fn a_single_service_of_a_kind_has_the_name_of_the_kind() {
        let all = file(&[("serve", ""), ("forward", ""), ("boost", "")]).unwrap();
        assert_eq!(names_of(&all), ["forward", "boost", "serve"]);
        assert_eq!(from_toml(&to_toml(&all)).unwrap(), all);
        let boost = |listen: &str| {
            from_arguments(["boost", "--origin", "http://a", "--listen", listen]).unwrap()
        };
        let (one, other) = (boost("127.0.0.1:81"), boost("[::1]:82"));
        assert_eq!(one.services[0].name, other.services[0].name);
        assert_eq!(one.services[0].name.space, Space::named("boost"));
        assert_eq!(notes(&one), Vec::<String>::new());
        assert_eq!(lost_names(&one, &other), Vec::<&str>::new());
    }

    #[test]
    fn unnamed_services_of_the_same_kind_have_the_names_of_their_addresses() {
        let config = file(&[("boost", "name = 'shop'"), ("boost", ""), ("forward", "")]).unwrap();
        assert_eq!(names_of(&config), ["forward", "shop", "127.0.0.1:9001"]);
        let noted = notes(&config);
        assert!(noted.len() == 1 && noted[0].contains("127.0.0.1:9001 has no name"), "{noted:?}");
        let again = from_toml(&to_toml(&config)).unwrap();
        assert_eq!(again, config);
        let renamed = file(&[("boost", "name = 'store'"), ("boost", ""), ("forward", "")]);
        assert_eq!(lost_names(&config, &renamed.unwrap()), ["shop"]);
        let uncached =
            "cache-memory = 0\n".to_owned() + &to_toml(&config).replace("cache-memory", "#");
        assert_eq!(
            notes(&from_toml(&uncached).unwrap()),
            Vec::<String>::new(),
            "without a cache there are no cache keys"
        );
    }

    #[test]
    fn notes_are_for_services_with_a_cache_and_have_the_configured_address() {
        let uncached = [("forward", "cache = false"), ("forward", "cache = false")];
        assert_eq!(notes(&file(&uncached).unwrap()), Vec::<String>::new());
        let routes = [("boost", "cache = false"), ("boost", "cache = false")];
        assert_eq!(notes(&file(&routes).unwrap()), Vec::<String>::new());
        let text = "[[forward]]\nlisten = '127.0.0.1:0'\n[[forward]]\ncache = false\n";
        let noted = notes(&from_toml(text).unwrap());
        assert!(noted.len() == 1 && noted[0].contains("at 127.0.0.1:0 has no name"), "{noted:?}");
    }

    #[test]
    fn two_services_of_the_same_name_are_refused() {
        for services in [
            &[("boost", "name = 'a'"), ("boost", "name = 'a'")][..],
            &[("forward", "name = 'a'"), ("boost", "name = 'a'")],
            // One service has the name of its kind.
            &[("forward", "name = 'boost'"), ("boost", "")],
            &[("forward", ""), ("boost", "name = 'forward'")],
        ] {
            let message = file(services).unwrap_err().to_string();
            assert!(message.contains(": name: another service has the name "), "{message}");
        }
        // With several services of a kind, none has the name of the kind.
        let named = [("boost", "name = 'boost'"), ("boost", "")];
        assert_eq!(names_of(&file(&named).unwrap()), ["boost", "127.0.0.1:9001"]);
    }

    #[test]
    fn a_name_is_short_and_plain() {
        let of = |name: &str| file(&[("boost", &format!("name = '{name}'"))]);
        let long = "a".repeat(64);
        for name in ["a", "shop-1.example_2", &long] {
            assert_eq!(names_of(&of(name).unwrap()), [name]);
        }
        for name in ["", "a b", "127.0.0.1:80", "a\\n", "ä", "a;b", "a#1", &"a".repeat(65)] {
            let message = of(name).unwrap_err().to_string();
            assert!(
                message.contains("1 to 64 of the characters A-Z, a-z, 0-9, -, _ and ."),
                "{message}"
            );
        }
    }

    #[test]
    fn target_rules_are_part_of_the_space_and_not_of_the_name() {
        let one = file(&[("forward", "")]).unwrap();
        let other = file(&[("forward", "deny-port = 81")]).unwrap();
        assert_eq!((names_of(&one), names_of(&other)), (vec!["forward"], vec!["forward"]));
        assert_ne!(one.services[0].name.space, other.services[0].name.space);
        assert_eq!(lost_names(&one, &other), ["forward"]);
    }
}

//! Filters the targets that clients request of a forward proxy by host name, and tunnels by the
//! name in their ClientHello (SNI). The lists are compiled once per snapshot; a request costs one
//! hash lookup per label, however long the lists are.

use std::collections::HashSet;
use std::net::IpAddr;

use millrace_http1::{Authority, Host};

use crate::exchange::Reason;
use millrace_config::TargetRules;

/// The longest host name, in bytes (RFC 1035 section 2.3.4). A longer one is in no list.
const NAME_BYTES_MAX: usize = 253;

/// The rules of a forward proxy that apply to the requested target, before its name is looked up.
/// [`may_reach`](super::may_reach) checks each address of the target later.
#[derive(Debug)]
pub(crate) struct TargetFilter {
    /// Whether there is any rule.
    has_rules: bool,
    denied_ports: HashSet<u16>,
    denied_domains: DomainSet,
    /// The domains that are allowed; `None` if all are.
    allowed_domains: Option<DomainSet>,
    /// Whether a tunnel has to begin with a ClientHello that asks for the requested name.
    sni_must_match: bool,
}

impl TargetFilter {
    pub(crate) fn new(rules: &TargetRules) -> Self {
        let allowed = &rules.allowed_domains;
        Self {
            has_rules: !(rules.denied_ports.is_empty()
                && rules.denied_domains.is_empty()
                && allowed.is_empty()),
            denied_ports: rules.denied_ports.iter().copied().collect(),
            denied_domains: DomainSet::new(&rules.denied_domains),
            allowed_domains: (!allowed.is_empty()).then(|| DomainSet::new(allowed)),
            sni_must_match: rules.sni_must_match,
        }
    }

    /// Returns whether a tunnel may be closed because of its ClientHello.
    pub(crate) fn checks_server_names(&self) -> bool {
        self.sni_must_match || self.allowed_domains.is_some() || !self.denied_domains.is_empty()
    }

    /// Checks the name that the ClientHello of a tunnel to `host` asks for (SNI): in lower case,
    /// without a dot at the end. `None` if the tunnel began without a ClientHello or without SNI;
    /// then the check of the requested host has decided, unless the names have to match.
    ///
    /// # Errors
    /// The reason to close the tunnel.
    pub(crate) fn check_server_name(
        &self,
        host: Host<'_>,
        server_name: Option<&str>,
    ) -> Result<(), Reason> {
        let Some(server_name) = server_name else {
            return if self.sni_must_match { Err(Reason::SniMissing) } else { Ok(()) };
        };
        self.check_name(server_name.as_bytes()).map_err(|reason| match reason {
            Reason::DomainDenied => Reason::SniDenied,
            _ => Reason::SniNotAllowed,
        })?;
        let is_requested = matches!(host, Host::Name(name)
            if without_dot(name).eq_ignore_ascii_case(server_name.as_bytes()));
        if self.sni_must_match && !is_requested { Err(Reason::SniMismatch) } else { Ok(()) }
    }

    /// Returns whether names have to be looked up as absolute names. With the resolver's search
    /// list, a relative name could become a denied name.
    pub(crate) fn needs_absolute_names(&self) -> bool {
        !self.denied_domains.is_empty()
    }

    /// Checks a requested target; its port is 80 if it has none. `rules` are the rules from which
    /// this filter was created.
    ///
    /// # Errors
    /// The kind of rule that denies the target.
    pub(crate) fn check(&self, rules: &TargetRules, authority: &Authority) -> Result<(), Reason> {
        if !self.has_rules {
            return Ok(());
        }
        if self.denied_ports.contains(&authority.port.unwrap_or(80)) {
            return Err(Reason::PortDenied);
        }
        let address: IpAddr = match authority.host {
            Host::Name(name) => return self.check_name(name),
            Host::V4(address) => address.into(),
            Host::V6(address) => address.into(),
        };
        let is_allowed = || rules.allowed.iter().any(|block| block.contains(address));
        if self.allowed_domains.is_none() || is_allowed() {
            Ok(())
        } else {
            Err(Reason::DomainNotAllowed)
        }
    }

    fn check_name(&self, name: &[u8]) -> Result<(), Reason> {
        let name = without_dot(name);
        let mut lower = [0; NAME_BYTES_MAX];
        // A longer name is in no list, and no name server has an address for it.
        let name = lower.get_mut(..name.len()).map(|lower| {
            lower.copy_from_slice(name);
            lower.make_ascii_lowercase();
            &*lower
        });
        let is_in = |names: &DomainSet| name.is_some_and(|name| names.contains(name));
        if is_in(&self.denied_domains) {
            return Err(Reason::DomainDenied);
        }
        match &self.allowed_domains {
            Some(allowed) if !is_in(allowed) => Err(Reason::DomainNotAllowed),
            _ => Ok(()),
        }
    }
}

/// Returns a name without the dot at its end.
fn without_dot(name: &[u8]) -> &[u8] {
    name.strip_suffix(b".").unwrap_or(name)
}

/// A set of domain names.
#[derive(Debug)]
struct DomainSet {
    exact: HashSet<Box<[u8]>>,
    /// The domains `d` of entries `*.d`, which match all names below `d`.
    wildcards: HashSet<Box<[u8]>>,
}

impl DomainSet {
    fn new(list: &[String]) -> Self {
        let (parents, exact): (Vec<_>, Vec<_>) =
            list.iter().partition(|name| name.starts_with("*."));
        Self {
            exact: exact.into_iter().map(|name| name.as_bytes().into()).collect(),
            wildcards: parents.into_iter().map(|name| name.as_bytes()[2..].into()).collect(),
        }
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.wildcards.is_empty()
    }

    /// Returns whether a name matches. It has to be in lower case and without a dot at its end.
    fn contains(&self, name: &[u8]) -> bool {
        if self.exact.contains(name) {
            return true;
        }
        let dots = name.iter().enumerate().filter(|(_, byte)| **byte == b'.');
        !self.wildcards.is_empty()
            && dots.into_iter().any(|(at, _)| self.wildcards.contains(&name[at + 1..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use millrace_config::Cidr;

    fn check(rules: &TargetRules, target: &str) -> Result<(), Reason> {
        let (host, port) = target.rsplit_once(':').unwrap();
        let port = port.parse().ok();
        let host = match host.trim_matches(['[', ']']).parse() {
            Ok(IpAddr::V4(address)) => Host::V4(address),
            Ok(IpAddr::V6(address)) => Host::V6(address),
            Err(_) => Host::Name(host.as_bytes()),
        };
        TargetFilter::new(rules).check(rules, &Authority { host, port })
    }

    fn names(list: &[&str]) -> Vec<String> {
        list.iter().map(|&name| name.to_owned()).collect()
    }

    #[test]
    fn without_rules_every_target_is_allowed() {
        let rules = TargetRules::default();
        for target in ["example.org:80", "10.0.0.1:1", "[::1]:", "x:"] {
            assert_eq!(check(&rules, target), Ok(()));
        }
    }

    #[test]
    fn names_match_in_any_case_and_wildcards_match_names_below() {
        let rules = TargetRules {
            denied_domains: names(&["bad.test", "*.ads.test"]),
            ..TargetRules::default()
        };
        assert!(TargetFilter::new(&rules).needs_absolute_names());
        assert!(!TargetFilter::new(&TargetRules::default()).needs_absolute_names());
        let long = format!("{}ads.test:80", "a.".repeat(200));
        for (target, denied) in [
            ("bad.test:80", true),
            ("BAD.Test.:443", true),
            ("x.bad.test:80", false),
            ("notbad.test:80", false),
            ("ads.test:80", false),
            ("x.ads.test:80", true),
            ("a.b.C.ADS.test.:80", true),
            ("xads.test:80", false),
            ("10.0.0.1:80", false),
            (&long, false),
        ] {
            let wanted = if denied { Err(Reason::DomainDenied) } else { Ok(()) };
            assert_eq!(check(&rules, target), wanted, "{target}");
        }
    }

    #[test]
    fn with_allowed_domains_addresses_need_a_rule_of_their_own() {
        let rules = TargetRules {
            allowed_domains: names(&["*.good.test", "good.test"]),
            denied_domains: names(&["not.good.test"]),
            allowed: vec![Cidr { network: IpAddr::from([10, 0, 0, 0]), prefix: 8 }],
            ..TargetRules::default()
        };
        for (target, wanted) in [
            ("good.test:80", Ok(())),
            ("a.good.test:80", Ok(())),
            ("not.good.test:80", Err(Reason::DomainDenied)),
            ("other.test:80", Err(Reason::DomainNotAllowed)),
            ("10.1.2.3:80", Ok(())),
            ("[::ffff:10.1.2.3]:80", Ok(())),
            ("11.1.2.3:80", Err(Reason::DomainNotAllowed)),
            ("[::1]:80", Err(Reason::DomainNotAllowed)),
        ] {
            assert_eq!(check(&rules, target), wanted, "{target}");
        }
    }

    #[test]
    fn the_name_in_a_client_hello_is_checked_like_a_requested_one() {
        let check = |rules: &TargetRules, host: &str, name: Option<&str>| {
            let host = match host.parse() {
                Ok(address) => Host::V4(address),
                Err(_) => Host::Name(host.as_bytes()),
            };
            TargetFilter::new(rules).check_server_name(host, name)
        };
        let none = TargetRules::default();
        assert!(!TargetFilter::new(&none).checks_server_names());
        assert_eq!(check(&none, "a.test", Some("b.test")), Ok(()));
        let denied =
            TargetRules { denied_domains: names(&["*.bad.test"]), ..TargetRules::default() };
        let allowed =
            TargetRules { allowed_domains: names(&["good.test"]), ..TargetRules::default() };
        let matched = TargetRules { sni_must_match: true, ..denied.clone() };
        for (rules, host, name, wanted) in [
            (&denied, "a.test", Some("x.bad.test"), Err(Reason::SniDenied)),
            (&denied, "a.test", Some("bad.test"), Ok(())),
            (&denied, "10.0.0.1", None, Ok(())),
            (&allowed, "good.test", Some("good.test"), Ok(())),
            (&allowed, "good.test", None, Ok(())),
            (&allowed, "good.test", Some("a.test"), Err(Reason::SniNotAllowed)),
            (&allowed, "10.0.0.1", Some("a.test"), Err(Reason::SniNotAllowed)),
            (&matched, "A.Test.", Some("a.test"), Ok(())),
            (&matched, "a.test", Some("b.a.test"), Err(Reason::SniMismatch)),
            (&matched, "x.bad.test", Some("x.bad.test"), Err(Reason::SniDenied)),
            (&matched, "10.0.0.1", Some("a.test"), Err(Reason::SniMismatch)),
            (&matched, "a.test", None, Err(Reason::SniMissing)),
        ] {
            assert!(TargetFilter::new(rules).checks_server_names());
            assert_eq!(check(rules, host, name), wanted, "{host} {name:?}");
        }
    }

    #[test]
    fn a_denied_port_is_denied_for_every_target() {
        let rules = TargetRules {
            denied_ports: vec![80, 8080],
            allowed: vec![Cidr { network: IpAddr::from([10, 0, 0, 0]), prefix: 8 }],
            ..TargetRules::default()
        };
        for target in ["a.test:", "a.test:8080", "10.0.0.1:8080"] {
            assert_eq!(check(&rules, target), Err(Reason::PortDenied), "{target}");
        }
        assert_eq!(check(&rules, "a.test:81"), Ok(()));
    }
}

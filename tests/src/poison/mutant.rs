//! One mutant: the requests of the victims and of one attacker.

use std::fmt;
use std::net::Ipv4Addr;

use super::fields::Line;
use super::model::Model;

/// The technique of a mutant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// A path that the proxy and the origin read as different pages.
    Path,
    /// Fields from which origins build links, with some trusted peers.
    Trusted,
    /// Fields from which origins build links, without trusted peers.
    Unkeyed,
    /// Fields from which origins build links, through a forward proxy.
    Forwarded,
    /// Fields that the page varies by, with values close to those of another client.
    Vary,
    /// Another spelling of Host.
    Host,
    /// HEAD, and what it changes in a stored response to GET.
    Head,
    /// Invalidation of a group of another service.
    Groups,
    /// Errors that one request causes, with a lifetime.
    Errors,
    /// Fields for one client alone.
    Cookies,
    /// Responses that are private to clients with a cookie or with credentials.
    Private,
    /// Origins that respond before they have the request body, and never read it.
    Early,
}

/// All classes.
pub const CLASSES: [Class; 12] = [
    Class::Path,
    Class::Trusted,
    Class::Unkeyed,
    Class::Forwarded,
    Class::Vary,
    Class::Host,
    Class::Head,
    Class::Groups,
    Class::Errors,
    Class::Cookies,
    Class::Private,
    Class::Early,
];

/// A listener of the program under test.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Service {
    /// A reverse proxy with a route for each path, and lifetimes that the operator sets.
    Paths,
    /// As [`Service::Paths`], with `path-forward = "normalised"`.
    Normalised,
    /// As [`Service::Paths`]; it trusts 127.1.0.0/16.
    TrustingPaths,
    /// A reverse proxy that trusts no peer.
    Plain,
    /// A reverse proxy that trusts no peer and forwards a few fields (`pass-fields`).
    Passing,
    /// A reverse proxy that trusts 127.1.0.0/16.
    Trusting,
    /// A second reverse proxy before the same origin.
    Second,
    /// A reverse proxy before an origin that never reads a request body.
    Early,
    /// As [`Service::Early`]; it trusts 127.1.0.0/16.
    TrustingEarly,
    /// A forward proxy.
    Forward,
}

impl Service {
    /// Returns whether the service trusts 127.1.0.0/16.
    pub(super) fn is_trusting(self) -> bool {
        matches!(self, Self::Trusting | Self::TrustingPaths | Self::TrustingEarly)
    }

    /// Returns whether the origin of the service never reads a request body.
    pub(super) fn is_early(self) -> bool {
        matches!(self, Self::Early | Self::TrustingEarly)
    }

    /// Returns whether the service has a route for each path.
    pub(super) fn has_paths(self) -> bool {
        matches!(self, Self::Paths | Self::Normalised | Self::TrustingPaths)
    }
}

pub(super) const SERVICES: [Service; 10] = [
    Service::Paths,
    Service::Normalised,
    Service::TrustingPaths,
    Service::Plain,
    Service::Passing,
    Service::Trusting,
    Service::Second,
    Service::Early,
    Service::TrustingEarly,
    Service::Forward,
];

/// The length of a field that exceeds the limit of origins.
pub(super) const LONG: usize = 5_000;

/// A request with its placeholders.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    /// The host as the client writes it. Clients of forward proxies name the origin.
    pub(super) host: String,
    /// The target has a scheme and a host, as always for a forward proxy.
    pub(super) is_absolute: bool,
    pub(super) fields: Vec<Line>,
    pub(super) body: String,
    /// The body is one chunk.
    pub(super) is_chunked: bool,
    /// The request is HTTP/1.0.
    pub(super) is_old: bool,
    /// The number of body bytes that are sent at once. The others follow after the response.
    pub(super) early: Option<usize>,
}

impl Request {
    pub(super) fn get(path: &str) -> Self {
        Self {
            method: "GET".to_owned(),
            path: path.to_owned(),
            host: "{T}.test".to_owned(),
            ..Self::default()
        }
    }

    pub(super) fn with(mut self, name: &str, value: &str) -> Self {
        self.fields.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Returns the header and the body.
    pub(super) fn bytes(&self, service: Service, token: &str, origin: &str) -> (Vec<u8>, Vec<u8>) {
        let host = if service == Service::Forward { "{O}" } else { &self.host };
        let target = match (service, self.is_absolute) {
            (Service::Forward, _) => format!("http://{{O}}/{{T}}{}", self.path),
            (_, true) => format!("http://{host}{}", self.path),
            (_, false) => self.path.clone(),
        };
        let version = if self.is_old { "HTTP/1.0" } else { "HTTP/1.1" };
        let mut header = format!("{} {target} {version}\r\nHost: {host}\r\n", self.method);
        for (name, value) in &self.fields {
            header.push_str(&format!("{name}: {value}\r\n"));
        }
        let fill = |text: &str| text.replace("{T}", token).replace("{O}", origin).into_bytes();
        let mut body = fill(&self.body);
        if self.is_chunked {
            header.push_str("Transfer-Encoding: chunked\r\n");
            let size = format!("{:x}\r\n", body.len());
            body = [size.as_bytes(), &body, b"\r\n0\r\n\r\n"].concat();
        } else if !body.is_empty() {
            header.push_str(&format!("Content-Length: {}\r\n", body.len()));
        }
        (fill(&(header + "\r\n")), body)
    }
}

/// A request of a victim.
#[derive(Clone, Debug)]
pub(super) struct Probe {
    pub(super) service: Service,
    pub(super) from: Ipv4Addr,
    pub(super) request: Request,
}

/// The bytes of an attacker on one connection.
#[derive(Clone, Debug)]
pub(super) struct Attack {
    pub(super) service: Service,
    pub(super) from: Ipv4Addr,
    pub(super) requests: Vec<Request>,
}

/// One mutant.
#[derive(Clone, Debug)]
pub struct Mutant {
    /// The technique of the mutant.
    pub class: Class,
    pub(super) model: Model,
    /// The victims' requests before the attack.
    pub(super) before: Vec<Probe>,
    pub(super) attack: Attack,
    /// Whether the victims send their later requests before the responses to the attack have
    /// arrived.
    pub(super) overlaps: bool,
    /// The victims' requests after the attack.
    pub(super) after: Vec<Probe>,
}

impl Mutant {
    /// Returns whether a difference would prove a fault of the proxy. Otherwise the origin may have
    /// caused it.
    pub(super) fn is_fair(&self) -> bool {
        let mut requests = self.attack.requests.iter();
        // An origin that counts sends a different page each time, unless the page was stored
        // before.
        if self.model.counts && self.before.is_empty() {
            return false;
        }
        match self.class {
            // Without a cookie or credentials the page is shared, and replaces the stored one.
            Class::Private => requests.all(|request| {
                let identifies = |(name, _): &Line| is_credential(name);
                let hides = |(name, value): &Line| name == "Connection" && is_credential(value);
                request.fields.iter().any(identifies) && !request.fields.iter().any(hides)
            }),
            // If the whole body arrives before the response, this origin takes it for its next
            // request, and no proxy can prevent that.
            Class::Early => {
                requests.all(|request| request.early.is_none_or(|early| early < request.body.len()))
            }
            _ => true,
        }
    }
}

fn is_credential(name: &str) -> bool {
    ["cookie", "authorization"].iter().any(|it| name.eq_ignore_ascii_case(it))
}

impl fmt::Display for Mutant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, before, attack, after, .. } = self;
        writeln!(f, "  origin: {model:?}")?;
        let line = |request: &Request, service| {
            let (header, body) = request.bytes(service, "{T}", "{O}");
            let early = request.early.map_or(String::new(), |early| format!(" early={early}"));
            let text = format!("{:?}{early}", String::from_utf8_lossy(&[header, body].concat()));
            text.replace(&"a".repeat(LONG), "{LONG}")
        };
        for Probe { service, from, request } in before {
            writeln!(f, "  before, {from} to {service:?}: {}", line(request, *service))?;
        }
        for request in &attack.requests {
            let Attack { service, from, .. } = attack;
            let note = if self.overlaps { " at the same time" } else { "" };
            writeln!(f, "  attack{note}, {from} to {service:?}: {}", line(request, *service))?;
        }
        for Probe { service, from, request } in after {
            writeln!(f, "  after, {from} to {service:?}: {}", line(request, *service))?;
        }
        Ok(())
    }
}

//! The settings of the server's side: certificates by name, versions, and how a session begins.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{
    ClientHello as RustlsHello, NoServerSessionStorage, ResolvesServerCert,
    UnbufferedServerConnection,
};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion, version};

use crate::certificate::Certificate;
use crate::clock::Clock;
use crate::error::{TlsError, TlsErrorKind};
use crate::hello::{ClientHello, normal_name};
use crate::provider::Provider;
use crate::session::Session;
use crate::ticket::{TicketKeys, Ticketer};

/// Tickets for a client of TLS 1.3, which uses each only once. A browser opens connections in
/// pairs.
const TICKETS_PER_HANDSHAKE: usize = 2;

/// The versions of TLS that are spoken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Versions {
    /// TLS 1.2 and 1.3.
    #[default]
    From12,
    /// TLS 1.3 only.
    Only13,
    /// TLS 1.2 only.
    Only12,
}

impl Versions {
    fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Self::From12 => &BOTH,
            Self::Only13 => &BOTH[..1],
            Self::Only12 => &BOTH[1..],
        }
    }
}

/// The certificate of a client that names no name of a certificate, or none at all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum UnknownName {
    /// It gets the first certificate.
    #[default]
    First,
    /// It gets a fatal alert.
    Refuse,
}

/// The options of [`ServerSettings`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The certificates, at least one. If several are valid for a name, the client's algorithms
    /// decide; the first one fits first.
    pub certificates: Vec<Certificate>,
    /// The versions.
    pub versions: Versions,
    /// The treatment of unknown names.
    pub unknown_name: UnknownName,
    /// The application protocols (ALPN), in the order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The settings with which the connections of a service are accepted. Clones share them.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    config: Arc<ServerConfig>,
    certificates: Arc<CertificateTable>,
    ticketer: Arc<Ticketer>,
}

impl ServerSettings {
    /// Creates the settings.
    ///
    /// # Errors
    /// If the provider has no suite for the versions.
    pub fn new(
        options: ServerOptions,
        provider: &Provider,
        clock: &Clock,
    ) -> Result<Self, TlsError> {
        let certificates =
            Arc::new(CertificateTable::new(&options.certificates, options.unknown_name));
        let builder =
            ServerConfig::builder_with_details(provider.crypto().clone(), Arc::new(clock.clone()));
        let mut config = builder
            .with_protocol_versions(options.versions.supported())?
            .with_no_client_auth()
            .with_cert_resolver(certificates.clone());
        config.ignore_client_order = true;
        config.alpn_protocols = options.alpn;
        let ticketer = Arc::new(Ticketer::new(provider, clock));
        // The state of sessions is in tickets only. The default would share it among threads.
        config.session_storage = Arc::new(NoServerSessionStorage {});
        config.ticketer = ticketer.clone();
        config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        Ok(Self { config: Arc::new(config), certificates, ticketer })
    }

    /// Replaces the keys that seal and open session tickets. Until the first call, and with empty
    /// keys, no session is resumed. A ticket opens only with settings of the same `service`.
    pub fn set_ticket_keys(&self, keys: &TicketKeys, service: &str) {
        self.ticketer.set_keys(keys, service);
    }

    /// Begins a session for a connection whose client has sent this ClientHello. The bytes of the
    /// ClientHello are passed to [`Session::open`] afterwards.
    ///
    /// # Errors
    /// If there is no certificate for the name and unknown names are refused.
    pub fn accept(&self, hello: &ClientHello) -> Result<Session, TlsError> {
        if self.certificates.find(hello.server_name.as_deref()).is_none() {
            let name = hello.server_name.as_deref().unwrap_or("(none)");
            let detail = format!("no certificate is valid for the name {name}");
            return Err(TlsError::new(TlsErrorKind::UnknownName, detail));
        }
        Ok(Session::server(UnbufferedServerConnection::new(self.config.clone())?))
    }
}

/// Certificates by name.
#[derive(Debug)]
struct CertificateTable {
    /// In the order of the options. Wildcards are stored as `*.NAME`.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// The certificates for clients that name no known name; empty if they are refused.
    default: Vec<Arc<CertifiedKey>>,
}

impl CertificateTable {
    fn new(certificates: &[Certificate], unknown_name: UnknownName) -> Self {
        let mut by_name = HashMap::<String, Vec<Arc<CertifiedKey>>>::new();
        for certificate in certificates {
            for name in certificate.names() {
                by_name.entry(name.clone()).or_default().push(certificate.key.clone());
            }
        }
        let first = certificates.first().filter(|_| unknown_name == UnknownName::First);
        // A second certificate for the names of the first one may have another algorithm.
        let names = first.map_or(&[][..], Certificate::names);
        let mut default: Vec<_> = first.map(|first| first.key.clone()).into_iter().collect();
        default.extend(names.iter().flat_map(|name| by_name[name].iter().cloned()));
        Self { by_name, default }
    }

    /// Returns the certificates for a name in lower case: an exact match before a wildcard.
    fn find(&self, name: Option<&str>) -> Option<&[Arc<CertifiedKey>]> {
        let by_name = name.and_then(|name| {
            let wildcard = || {
                let (_, parent) = name.split_once('.')?;
                self.by_name.get(&format!("*.{parent}"))
            };
            self.by_name.get(name).or_else(wildcard)
        });
        let found = by_name.map_or(&self.default[..], Vec::as_slice);
        (!found.is_empty()).then_some(found)
    }
}

impl ResolvesServerCert for CertificateTable {
    fn resolve(&self, hello: RustlsHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(normal_name);
        let found = self.find(name.as_deref())?;
        let schemes = hello.signature_schemes();
        let fitting = found.iter().find(|it| it.key.choose_scheme(schemes).is_some());
        fitting.or_else(|| found.first()).cloned()
    }
}

#[cfg(test)]
mod tests {
    use rustls::ClientConfig;
    use rustls::client::Resumption;

    use super::*;
    use crate::test_support::{Authority, NamelessStore, clock, handshake, provider};
    use crate::{ClientOptions, ClientSettings, TICKET_KEYS_MAX, TICKET_LIFETIME};

    /// A client and the settings of a service, whose sessions it resumes.
    struct Fixture {
        authority: Authority,
        client: ClientSettings,
        clock: Clock,
        keys: TicketKeys,
        versions: Versions,
    }

    impl Fixture {
        fn new(versions: Versions) -> Self {
            let (authority, clock) = (Authority::new("root"), clock());
            let options = ClientOptions { roots: Some(authority.roots()), alpn: Vec::new() };
            let client = ClientSettings::new(options, &provider(), &clock).unwrap();
            let mut keys = TicketKeys::default();
            keys.rotate(&provider()).unwrap();
            Self { authority, client, clock, keys, versions }
        }

        fn server(&self, names: &[&str]) -> ServerSettings {
            let options = ServerOptions {
                certificates: vec![self.authority.issue(names)],
                versions: self.versions,
                unknown_name: UnknownName::First,
                alpn: Vec::new(),
            };
            let settings = ServerSettings::new(options, &provider(), &self.clock).unwrap();
            settings.set_ticket_keys(&self.keys, "web");
            settings
        }

        /// Performs a handshake. Returns whether both sides resumed a session.
        fn is_resumed(&self, name: &str, server: &ServerSettings) -> bool {
            let (client, server) = handshake(&self.client, name, server).unwrap();
            assert_eq!(client.handshake(), server.handshake());
            server.handshake().unwrap().is_resumed
        }
    }

    const BOTH: [Versions; 2] = [Versions::Only12, Versions::Only13];

    #[test]
    fn sessions_resume_at_each_worker_of_the_service() {
        for versions in BOTH {
            let mut fixture = Fixture::new(versions);
            let server = fixture.server(&["a.example"]);
            assert!(!fixture.is_resumed("a.example", &server));
            assert!(fixture.is_resumed("a.example", &server));
            // Another worker has settings of its own, and a successor has the keys as bytes.
            fixture.keys = TicketKeys::from_bytes(&fixture.keys.to_bytes()).unwrap();
            assert!(fixture.is_resumed("a.example", &fixture.server(&["a.example"])));
            let other_service = fixture.server(&["a.example"]);
            other_service.set_ticket_keys(&fixture.keys, "admin");
            assert!(!fixture.is_resumed("a.example", &other_service));
        }
    }

    #[test]
    fn sessions_resume_while_their_key_is_in_use() {
        for versions in BOTH {
            let mut fixture = Fixture::new(versions);
            let server = fixture.server(&["a.example"]);
            assert!(!fixture.is_resumed("a.example", &server));
            fixture.keys.rotate(&provider()).unwrap();
            server.set_ticket_keys(&fixture.keys, "web");
            assert!(fixture.is_resumed("a.example", &server), "one rotation");
            for _ in 0..TICKET_KEYS_MAX {
                fixture.keys.rotate(&provider()).unwrap();
            }
            server.set_ticket_keys(&fixture.keys, "web");
            assert!(!fixture.is_resumed("a.example", &server), "the key is gone");
            server.set_ticket_keys(&TicketKeys::default(), "web");
            for _ in 0..3 {
                assert!(!fixture.is_resumed("a.example", &server), "no keys");
            }
        }
    }

    #[test]
    fn sessions_resume_only_in_the_lifetime_of_their_ticket() {
        for versions in BOTH {
            let fixture = Fixture::new(versions);
            let server = fixture.server(&["a.example"]);
            assert!(!fixture.is_resumed("a.example", &server));
            let begin = fixture.clock.time_of_day();
            // The client drops the ticket itself if its clock advances too.
            let late = Clock::default();
            let fixture = Fixture { clock: late.clone(), ..fixture };
            let server = fixture.server(&["a.example"]);
            late.set(begin + TICKET_LIFETIME);
            assert!(!fixture.is_resumed("a.example", &server));
        }
    }

    #[test]
    fn a_ticket_is_valid_only_for_the_name_that_it_was_issued_for() {
        for versions in BOTH {
            let mut fixture = Fixture::new(versions);
            let mut config = ClientConfig::clone(&fixture.client.config);
            config.resumption = Resumption::store(Arc::new(NamelessStore::new()));
            fixture.client.config = Arc::new(config);
            let server = fixture.server(&["a.example", "b.example"]);
            assert!(!fixture.is_resumed("a.example", &server));
            assert!(fixture.is_resumed("a.example", &server));
            assert!(!fixture.is_resumed("b.example", &server));
        }
    }
}

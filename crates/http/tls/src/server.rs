//! The settings of the server's side: certificates by name, versions, and how a session begins.

use std::sync::Arc;

use rustls::server::{NoServerSessionStorage, UnbufferedServerConnection, WebPkiClientVerifier};
use rustls::{ServerConfig, SupportedProtocolVersion, version};

use crate::certificate::Certificate;
use crate::certificate_table::{CertificateTable, UnknownName};
use crate::client_certificate::{ClientCertificateMode, ClientCertificates};
use crate::clock::Clock;
use crate::error::{TlsError, TlsErrorKind};
use crate::hello::{ClientHello, normal_name};
use crate::provider::Provider;
use crate::session::{Requested, Session};
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

/// The options of [`ServerSettings`].
#[derive(Clone, Default, Debug)]
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
    /// The request for certificates of clients; `None` requests none.
    pub client_certificates: Option<ClientCertificates>,
}

/// The settings that the name of a server selects. Two names with equal settings can share a
/// connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NameSettings {
    /// The index of the first certificate for the name in the options; `None` if the name is
    /// refused.
    pub certificate: Option<usize>,
    /// How a certificate is requested from the client; `None` if it is not.
    pub client_certificates: Option<ClientCertificateMode>,
}

/// The settings with which the connections of a service are accepted. Clones share them.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    /// For clients whose certificates are not requested.
    config: Arc<ServerConfig>,
    certificates: Arc<CertificateTable>,
    ticketer: Arc<Ticketer>,
    /// The request, and the configuration for clients whose certificates are requested.
    requesting: Option<(ClientCertificates, Arc<ServerConfig>)>,
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
        let ticketer = Arc::new(Ticketer::new(provider, clock));
        let build = |verifier| -> Result<ServerConfig, TlsError> {
            let (crypto, clock) = (provider.crypto().clone(), Arc::new(clock.clone()));
            let mut config = ServerConfig::builder_with_details(crypto, clock)
                .with_protocol_versions(options.versions.supported())?
                .with_client_cert_verifier(verifier)
                .with_cert_resolver(certificates.clone());
            config.ignore_client_order = true;
            config.alpn_protocols = options.alpn.clone();
            // The state of sessions is in tickets only. The default would share it among threads.
            config.session_storage = Arc::new(NoServerSessionStorage {});
            config.send_tls13_tickets = 0;
            Ok(config)
        };
        let mut config = build(WebPkiClientVerifier::no_client_auth())?;
        config.ticketer = ticketer.clone();
        config.send_tls13_tickets = TICKETS_PER_HANDSHAKE;
        let requesting = match options.client_certificates {
            // Without tickets: a resumed session would skip the check for revocation.
            Some(it) => Some((it.clone(), Arc::new(build(it.verifier)?))),
            None => None,
        };
        Ok(Self { config: Arc::new(config), certificates, ticketer, requesting })
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
        let settings = self.name_settings(hello.server_name.as_deref());
        if settings.certificate.is_none() {
            let name = hello.server_name.as_deref().unwrap_or("(none)");
            let detail = format!("no certificate is valid for the name {name}");
            return Err(TlsError::new(TlsErrorKind::UnknownName, detail));
        }
        let (config, requested) = match (&self.requesting, settings.client_certificates) {
            (Some((requested, config)), Some(mode)) => {
                (config, Some(Requested { mode, verifier: requested.verifier.clone() }))
            }
            _ => (&self.config, None),
        };
        let connection = UnbufferedServerConnection::new(config.clone())?;
        let may_sign_by_rsa = self.certificates.may_sign_by_rsa(hello.server_name.as_deref());
        Ok(Session::server(connection, requested, may_sign_by_rsa))
    }

    /// Returns what the name of a server selects: the name in a ClientHello, which may have none,
    /// or the host of a request, without its port.
    pub fn name_settings(&self, name: Option<&str>) -> NameSettings {
        let name = name.map(normal_name);
        let name = name.as_deref();
        let mode = self.requesting.as_ref().and_then(|(requested, _)| requested.mode_of(name));
        NameSettings { certificate: self.certificates.first(name), client_certificates: mode }
    }

    /// Returns whether [`ServerSettings::is_misdirected`] is false for every host.
    pub fn serves_every_host(&self, session: &Session) -> bool {
        self.requesting.is_none()
            && session.client_certificates().is_none()
            && self.certificates.has_one_for_all()
    }

    /// Returns whether a request for `host`, without its port, does not belong on the connection of
    /// `session`, whose client named `server_name` in its ClientHello. It gets a 421 (RFC 9110
    /// section 15.5.20), and the client repeats it on a connection of its own.
    ///
    /// The host, or its absence, must not select another request for client certificates than the
    /// handshake used. After a name in the ClientHello, a host must not select another certificate
    /// either. Older settings than these may have begun the session.
    pub fn is_misdirected(
        &self,
        session: &Session,
        server_name: Option<&str>,
        host: Option<&str>,
    ) -> bool {
        let is_same_name = server_name.zip(host).is_some_and(|(a, b)| a.eq_ignore_ascii_case(b));
        let requested = session.client_certificates();
        if is_same_name && self.requesting.is_none() && requested.is_none() {
            return false;
        }
        let of_host = self.name_settings(host);
        let is_other_certificate = server_name.filter(|_| host.is_some() && !is_same_name);
        let is_other_certificate = is_other_certificate
            .is_some_and(|name| self.name_settings(Some(name)).certificate != of_host.certificate);
        is_other_certificate || of_host.client_certificates != requested
    }
}

#[cfg(test)]
mod tests {
    use rustls::ClientConfig;
    use rustls::client::Resumption;

    use super::*;
    use crate::test_support::{Authority, NamelessStore, clock, handshake, provider};
    use crate::{ClientSettings, TICKET_KEYS_MAX, TICKET_LIFETIME};

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
            let client = authority.client(None, &clock);
            let mut keys = TicketKeys::default();
            keys.rotate(&provider()).unwrap();
            Self { authority, client, clock, keys, versions }
        }

        fn server(&self, names: &[&str]) -> ServerSettings {
            let options = ServerOptions {
                certificates: vec![self.authority.issue(names)],
                versions: self.versions,
                ..ServerOptions::default()
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

    #[test]
    fn an_rsa_signature_is_announced_until_it_is_made() {
        let (authority, clock) = (Authority::new("root"), clock());
        let [rsa, ecdsa] = [authority.issue_rsa("a.example"), authority.issue(&["a.example"])];
        for (is_rsa, certificate) in [(true, rsa), (false, ecdsa)] {
            let options =
                ServerOptions { certificates: vec![certificate], ..ServerOptions::default() };
            let server = ServerSettings::new(options, &provider(), &clock).unwrap();
            let hello = ClientHello::default();
            assert_eq!(server.accept(&hello).unwrap().signs_by_rsa(), is_rsa);
            let client = authority.client(None, &clock);
            let (_, session) = handshake(&client, "a.example", &server).unwrap();
            assert!(!session.signs_by_rsa());
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

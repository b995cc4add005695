//! The settings of the client's side: which servers are trusted, and how a session begins.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls::client::danger::ServerCertVerifier;
use rustls::client::{Resumption, UnbufferedClientConnection};
use rustls::pki_types;
use rustls::sign::SingleCertAndKey;

use crate::certificate::Certificate;
use crate::clock::Clock;
use crate::error::TlsError;
use crate::provider::Provider;
use crate::roots::Roots;
use crate::server_verifier::{AcceptAny, ServerVerifier};
use crate::session::Session;

/// The name or address for which the certificate of a server has to be valid.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ServerName(pki_types::ServerName<'static>);

impl ServerName {
    /// Parses a DNS name or an IP address without brackets. `None` if the text is neither.
    pub fn parse(text: &str) -> Option<Self> {
        pki_types::ServerName::try_from(text.to_owned()).ok().map(Self)
    }
}

/// The options of [`ClientSettings`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// The authorities that are trusted; `None` accepts every certificate.
    pub roots: Option<Roots>,
    /// The certificate that servers get if they request one.
    pub certificate: Option<Certificate>,
    /// The application protocols (ALPN), in the order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The settings with which connections to servers are secured. Clones share them and the sessions
/// that can be resumed.
#[derive(Clone, Debug)]
pub struct ClientSettings {
    pub(crate) config: Arc<ClientConfig>,
}

impl ClientSettings {
    /// Creates the settings.
    ///
    /// # Errors
    /// If the roots are empty.
    pub fn new(
        options: ClientOptions,
        provider: &Provider,
        clock: &Clock,
    ) -> Result<Self, TlsError> {
        let crypto = provider.crypto().clone();
        let verifier: Arc<dyn ServerCertVerifier> = match options.roots {
            Some(roots) => Arc::new(ServerVerifier::new(roots, crypto.clone())?),
            None => Arc::new(AcceptAny(crypto.signature_verification_algorithms)),
        };
        let builder = ClientConfig::builder_with_details(crypto, Arc::new(clock.clone()));
        let builder = builder
            .with_safe_default_protocol_versions()?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match options.certificate {
            Some(certificate) => {
                builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certificate.key)))
            }
            None => builder.with_no_client_auth(),
        };
        config.alpn_protocols = options.alpn;
        config.resumption = Resumption::in_memory_sessions(SESSIONS_MAX);
        Ok(Self { config: Arc::new(config) })
    }

    /// Begins a session. [`Session::flush`] gives the ClientHello.
    ///
    /// # Errors
    /// If the provider has no randomness.
    pub fn connect(&self, name: ServerName) -> Result<Session, TlsError> {
        Ok(Session::client(UnbufferedClientConnection::new(self.config.clone(), name.0)?))
    }
}

/// The most sessions that are kept for resumption.
const SESSIONS_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::test_support::{Authority, Failure, clock, handshake, provider};
    use crate::{
        ClientCertificateMode, ClientCertificates, ServerOptions, ServerSettings, TicketKeys,
        TlsErrorKind, Versions,
    };

    fn server(certificate: Certificate, versions: Versions) -> ServerSettings {
        let certificates = vec![certificate];
        let options = ServerOptions { certificates, versions, ..ServerOptions::default() };
        let settings = ServerSettings::new(options, &provider(), &clock()).unwrap();
        let mut keys = TicketKeys::default();
        keys.rotate(&provider()).unwrap();
        settings.set_ticket_keys(&keys, "origin");
        settings
    }

    fn failure(result: Result<impl Sized, Failure>) -> (TlsErrorKind, String) {
        match result {
            Err(Failure::AtClient(error)) => (error.kind, error.detail),
            Err(Failure::AtServer(error)) => panic!("the server failed: {error}"),
            Ok(_) => panic!("the handshake succeeded"),
        }
    }

    #[test]
    fn each_fault_of_a_certificate_has_a_kind_and_a_clear_detail() {
        let authority = Authority::new("root");
        for versions in [Versions::Only12, Versions::Only13] {
            let server = server(authority.issue(&["a.example", "*.b.example"]), versions);
            let (clock, late, early) = (clock(), Clock::default(), Clock::default());
            late.set(Duration::from_secs(80_000_000_000));
            let fault = |authority: &Authority, clock: &Clock, name: &str| {
                failure(handshake(&authority.client(None, clock), name, &server))
            };
            let unknown = fault(&Authority::new("other"), &clock, "a.example");
            let expected = "no trusted authority has issued the certificate, or the peer did not \
                            send the intermediate certificates";
            assert_eq!(unknown, (TlsErrorKind::UnknownIssuer, expected.to_owned()));
            let expected = "the certificate is not valid for c.example but for a.example, \
                            *.b.example";
            let wrong_name = fault(&authority, &clock, "c.example");
            assert_eq!(wrong_name, (TlsErrorKind::WrongName, expected.to_owned()));
            let (kind, detail) = fault(&authority, &late, "a.example");
            assert_eq!(kind, TlsErrorKind::CertificateTime);
            assert!(detail.starts_with("the certificate expired "), "{detail}");
            let (kind, detail) = fault(&authority, &early, "a.example");
            assert_eq!(kind, TlsErrorKind::CertificateTime);
            assert!(detail.starts_with("the certificate is not valid before "), "{detail}");
            // The second name, and a client that verifies nothing.
            handshake(&authority.client(None, &clock), "x.b.example", &server).unwrap();
            let options = ClientOptions { roots: None, certificate: None, alpn: Vec::new() };
            let any = ClientSettings::new(options, &provider(), &late).unwrap();
            handshake(&any, "c.example", &server).unwrap();
        }
    }

    #[test]
    fn a_listed_certificate_of_a_server_is_trusted_for_its_names_while_it_is_valid() {
        let self_signed = |name: &str| {
            let mut params = rcgen::CertificateParams::new([name.to_owned()]).unwrap();
            // As `openssl req -x509` does.
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let key = rcgen::KeyPair::generate().unwrap();
            (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
        };
        let (pem, key) = self_signed("a.example");
        let certificate = Certificate::from_pem(pem.as_bytes(), key.as_bytes(), &provider());
        let server = server(certificate.unwrap(), Versions::default());
        let attempt = |listed: &str, name: &str, clock: &Clock| {
            let roots = Some(Roots::from_pem(listed.as_bytes()).unwrap());
            let options = ClientOptions { roots, certificate: None, alpn: Vec::new() };
            let client = ClientSettings::new(options, &provider(), clock).unwrap();
            handshake(&client, name, &server).map(|_| ())
        };
        attempt(&pem, "a.example", &clock()).unwrap();
        let kind = |result| failure(result).0;
        assert_eq!(kind(attempt(&pem, "b.example", &clock())), TlsErrorKind::WrongName);
        let late = Clock::default();
        late.set(Duration::from_secs(80_000_000_000));
        assert_eq!(kind(attempt(&pem, "a.example", &late)), TlsErrorKind::CertificateTime);
        assert_eq!(
            kind(attempt(&pem, "a.example", &Clock::default())),
            TlsErrorKind::CertificateTime
        );
        let (other, _) = self_signed("a.example");
        failure(attempt(&other, "a.example", &clock()));
    }

    #[test]
    fn a_certificate_is_presented_to_servers_that_request_one() {
        let (site, clients) = (Authority::new("site"), Authority::new("clients"));
        for versions in [Versions::Only12, Versions::Only13] {
            let mode = ClientCertificateMode::Required;
            let requested =
                ClientCertificates::new(mode, clients.roots(), Vec::new(), &[], &provider());
            let options = ServerOptions {
                certificates: vec![site.issue(&["a.example"])],
                versions,
                client_certificates: Some(requested.unwrap()),
                ..ServerOptions::default()
            };
            let server = ServerSettings::new(options, &provider(), &clock()).unwrap();
            let certificate = clients.issue(&["proxy"]);
            let presented = certificate.key.cert[0].to_vec();
            let client = site.client(Some(certificate), &clock());
            let (_, session) = handshake(&client, "a.example", &server).unwrap();
            assert_eq!(session.peer_certificates().collect::<Vec<_>>(), [&presented[..]]);
        }
    }

    #[test]
    fn sessions_resume_for_each_server_and_settings() {
        let authority = Authority::new("root");
        for versions in [Versions::Only12, Versions::Only13] {
            let server = server(authority.issue(&["a.example", "b.example"]), versions);
            let client = authority.client(None, &clock());
            let is_resumed = |client: &ClientSettings, name| {
                let (client, _) = handshake(client, name, &server).unwrap();
                assert!(client.peer_certificates().count() > 0);
                client.handshake().unwrap().is_resumed
            };
            assert!(!is_resumed(&client, "a.example"));
            assert!(is_resumed(&client.clone(), "a.example"), "clones share sessions");
            assert!(!is_resumed(&client, "b.example"));
            assert!(is_resumed(&client, "b.example"));
            assert!(is_resumed(&client, "a.example"));
            assert!(!is_resumed(&authority.client(None, &clock()), "a.example"));
        }
    }
}

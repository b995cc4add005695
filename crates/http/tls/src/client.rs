//! The settings of the client's side: which servers are trusted, and how a session begins.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, UnbufferedClientConnection, WebPkiServerVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{self, CertificateDer, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, SignatureScheme};

use crate::certificate::Certificate;
use crate::clock::Clock;
use crate::error::TlsError;
use crate::provider::Provider;
use crate::roots::Roots;
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
            Some(roots) => {
                WebPkiServerVerifier::builder_with_provider(roots.store().clone(), crypto.clone())
                    .build()
                    .map_err(|error| rustls::Error::General(error.to_string()))?
            }
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

/// Accepts every certificate, but checks that the server has its key.
#[derive(Debug)]
struct AcceptAny(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &pki_types::ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, certificate, signature, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, certificate, signature, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

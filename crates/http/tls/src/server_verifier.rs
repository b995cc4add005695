//! How a client verifies the certificates of servers.

use std::sync::Arc;
use std::time::Duration;

use rustls::CertificateError::{ExpiredContext, NotValidYetContext};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_name};
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::certificate::Validity;
use crate::error::TlsError;
use crate::roots::Roots;

/// Verifies that a trusted authority has issued the certificate of a server, or that the operator
/// listed this very certificate.
///
/// `openssl req -x509` marks a certificate that it signs with its own key as one of an authority.
/// Such a certificate is not valid for a server under a root, not even under itself.
#[derive(Debug)]
pub(crate) struct ServerVerifier {
    by_authority: Arc<WebPkiServerVerifier>,
    roots: Roots,
}

impl ServerVerifier {
    /// Creates a verifier.
    ///
    /// # Errors
    /// If the roots are empty.
    pub(crate) fn new(roots: Roots, crypto: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let verifier = WebPkiServerVerifier::builder_with_provider(roots.store().clone(), crypto);
        let by_authority =
            verifier.build().map_err(|error| rustls::Error::General(error.to_string()))?;
        Ok(Self { by_authority, roots })
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        chain: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if !self.roots.lists(certificate) {
            let verifier = &self.by_authority;
            return verifier.verify_server_cert(certificate, chain, name, ocsp_response, now);
        }
        verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
        verify_time(certificate, now)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.by_authority.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.by_authority.supported_verify_schemes()
    }
}

/// Checks that a certificate is valid at a time.
fn verify_time(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let validity = Validity::parse(certificate).ok_or(rustls::CertificateError::BadEncoding)?;
    let at = |time: Duration| UnixTime::since_unix_epoch(time);
    let (not_before, not_after) = (at(validity.not_before), at(validity.not_after));
    if now < not_before {
        return Err(NotValidYetContext { time: now, not_before }.into());
    }
    if now > not_after {
        return Err(ExpiredContext { time: now, not_after }.into());
    }
    Ok(())
}

/// Accepts every certificate, but checks that the server has its key.
#[derive(Debug)]
pub(crate) struct AcceptAny(pub(crate) WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AcceptAny {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
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

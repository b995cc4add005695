//! Which cryptography both programs use, and their certificates.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, SupportedKxGroup, aws_lc_rs, ring, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, DigitallySignedStruct, Error, SignatureScheme};

/// The key exchange groups by name.
pub const GROUPS: [(&str, &dyn SupportedKxGroup); 3] = [
    ("x25519", aws_lc_rs::kx_group::X25519),
    ("p256", aws_lc_rs::kx_group::SECP256R1),
    ("x25519mlkem768", aws_lc_rs::kx_group::X25519MLKEM768),
];

/// Returns the provider: these groups and signatures by aws-lc-rs, and as only cipher suite
/// TLS_AES_128_GCM_SHA256, so that every server uses the same.
pub fn provider(groups: Vec<&'static dyn SupportedKxGroup>) -> Arc<CryptoProvider> {
    // aws-lc-rs uses VAES only with AVX-512. ring has a kernel with AVX2 and VAES.
    let suite = if has_avx512() {
        aws_lc_rs::cipher_suite::TLS13_AES_128_GCM_SHA256
    } else {
        ring::cipher_suite::TLS13_AES_128_GCM_SHA256
    };
    Arc::new(CryptoProvider {
        cipher_suites: vec![suite],
        kx_groups: groups,
        ..aws_lc_rs::default_provider()
    })
}

#[cfg(target_arch = "x86_64")]
fn has_avx512() -> bool {
    std::is_x86_feature_detected!("avx512bw") && std::is_x86_feature_detected!("vaes")
}

/// Other processors have one implementation of AES that both libraries use.
#[cfg(not(target_arch = "x86_64"))]
fn has_avx512() -> bool {
    true
}

/// Returns the certificates of a PEM file.
///
/// # Errors
///
/// The file cannot be read or has none.
pub fn certificates(path: &Path) -> io::Result<Vec<CertificateDer<'static>>> {
    let found: Result<Vec<_>, _> =
        CertificateDer::pem_file_iter(path).map_err(|error| named(path, &error))?.collect();
    found.map_err(|error| named(path, &error)).and_then(|chain| match chain.len() {
        0 => Err(named(path, &"no certificate")),
        _ => Ok(chain),
    })
}

/// Returns the private key of a PEM file.
///
/// # Errors
///
/// The file cannot be read or has none.
pub fn private_key(path: &Path) -> io::Result<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| named(path, &error))
}

fn named(path: &Path, error: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(format!("{}: {error}", path.display()))
}

/// A verifier that expects one certificate, and verifies the signature of the handshake.
#[derive(Debug)]
pub struct Pinned {
    pub certificate: CertificateDer<'static>,
    pub provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if *end_entity == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    /// TLS 1.2 is not offered.
    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _certificate: &CertificateDer<'_>,
        _signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(CertificateError::BadSignature.into())
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

//! The cryptography of all sessions: cipher suites, key exchange and signatures.
//!
//! Key exchange and signatures are those of aws-lc-rs. Records are sealed by the implementation
//! that is faster on this processor.

use std::fmt;
use std::sync::Arc;

use rustls::SupportedCipherSuite;
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

/// An implementation of the ciphers that seal and open records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Aead {
    /// aws-lc-rs.
    AwsLc,
    /// ring.
    Ring,
}

impl Aead {
    /// Returns the implementation that is faster on this processor. With AVX-512, aws-lc-rs seals
    /// faster. Without it only ring uses the vector instructions for AES (VAES): 16 KB take 2.9
    /// instead of 4.9 µs there.
    pub fn fastest() -> Self {
        #[cfg(target_arch = "x86_64")]
        if !is_x86_feature_detected!("avx512f") {
            return Self::Ring;
        }
        Self::AwsLc
    }
}

impl fmt::Display for Aead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AwsLc => "aws-lc-rs",
            Self::Ring => "ring",
        })
    }
}

/// The cryptography of all sessions. Clones are cheap.
#[derive(Clone, Debug)]
pub struct Provider(Arc<CryptoProvider>);

impl Provider {
    /// Creates the provider that seals records by `aead`.
    ///
    /// AES-128-GCM with SHA-256 comes first: SHA-384 takes a third of a handshake on processors
    /// without instructions for it. X25519MLKEM768 comes first among the groups, because recorded
    /// traffic must stay secret once there are quantum computers.
    pub fn new(aead: Aead) -> Self {
        let cipher_suites = match aead {
            Aead::AwsLc => cipher_suites!(aws_lc_rs),
            Aead::Ring => cipher_suites!(ring),
        };
        use aws_lc_rs::kx_group::{SECP256R1, X25519, X25519MLKEM768};
        Self::of(CryptoProvider {
            cipher_suites,
            kx_groups: vec![X25519MLKEM768, X25519, SECP256R1],
            ..aws_lc_rs::default_provider()
        })
    }

    pub(crate) fn of(crypto: CryptoProvider) -> Self {
        Self(Arc::new(crypto))
    }

    pub(crate) fn crypto(&self) -> &Arc<CryptoProvider> {
        &self.0
    }
}

/// The suites of a provider of rustls, in the order of preference.
macro_rules! cipher_suites {
    ($provider:ident) => {{
        let suites: Vec<SupportedCipherSuite> = vec![
            $provider::cipher_suite::TLS13_AES_128_GCM_SHA256,
            $provider::cipher_suite::TLS13_AES_256_GCM_SHA384,
            $provider::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
            $provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
            $provider::cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
            $provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
            $provider::cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
            $provider::cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
            $provider::cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        ];
        suites
    }};
}
use cipher_suites;

//! Certificate chains with their private keys.

use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;

use crate::hello::normal_name;
use crate::provider::Provider;

/// A certificate chain with its private key, checked to fit.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    /// The DNS names for which it is valid, in lower case; `*.NAME` is a wildcard.
    names: Vec<String>,
    not_before: Duration,
    not_after: Duration,
    is_rsa: bool,
}

impl PartialEq for Certificate {
    /// Compares the chains. The key fits the chain, so it is the same if they are.
    fn eq(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert
    }
}

impl Eq for Certificate {}

/// Why a chain or its key cannot be used. The message completes a sentence that names the file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CertificateError {
    /// The fault is in the file of the chain.
    Chain(String),
    /// The fault is in the file of the key.
    Key(String),
}

impl fmt::Display for CertificateError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Chain(problem) | Self::Key(problem)) = self;
        f.write_str(problem)
    }
}

impl Error for CertificateError {}

impl Certificate {
    /// Parses a chain, with the certificate of the server first, and its key. Both are PEM.
    ///
    /// # Errors
    /// If one of them is not PEM, has a wrong or a weak key, or if they do not fit together. The
    /// times of validity are not checked: see [`Certificate::check_time`].
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        provider: &Provider,
    ) -> Result<Self, CertificateError> {
        let chain = parse_chain(chain)?;
        let key = parse_key(key)?;
        let facts = Facts::of(&chain[0]).map_err(CertificateError::Chain)?;
        check_order(&chain).map_err(CertificateError::Chain)?;
        let certified = CertifiedKey::from_der(chain, key, provider.crypto());
        let certified = certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => {
                CertificateError::Key("does not fit the certificate".into())
            }
            error => CertificateError::Key(format!("cannot be used: {error}")),
        })?;
        let Facts { names, not_before, not_after, is_rsa } = facts;
        Ok(Self { key: Arc::new(certified), names, not_before, not_after, is_rsa })
    }

    /// Returns the DNS names for which the certificate is valid, in lower case; `*.NAME` is a
    /// wildcard.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns when the certificate becomes valid, as a duration since 1970.
    pub fn not_before(&self) -> Duration {
        self.not_before
    }

    /// Returns when the certificate expires, as a duration since 1970.
    pub fn not_after(&self) -> Duration {
        self.not_after
    }

    /// Returns whether the key is an RSA key. A signature with it takes about 25 times as long as
    /// one with an ECDSA key, 0.7 ms.
    pub fn is_rsa(&self) -> bool {
        self.is_rsa
    }

    /// Checks the times of validity.
    ///
    /// # Errors
    /// If the certificate is not valid yet, or no longer.
    pub fn check_time(&self, time_of_day: Duration) -> Result<(), CertificateError> {
        let days = |from: Duration, to: Duration| to.saturating_sub(from).as_secs() / 86_400;
        if time_of_day < self.not_before {
            let days = days(time_of_day, self.not_before);
            return Err(CertificateError::Chain(format!(
                "is not valid before {days} days from now"
            )));
        }
        if time_of_day >= self.not_after {
            let days = days(self.not_after, time_of_day);
            return Err(CertificateError::Chain(format!("expired {days} days ago")));
        }
        Ok(())
    }
}

fn parse_chain(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let chain: Result<Vec<_>, pem::Error> = CertificateDer::pem_slice_iter(pem).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(CertificateError::Chain(no_pem(pem, "certificate"))),
        Err(error) => Err(CertificateError::Chain(format!("is not PEM: {error}"))),
    }
}

fn parse_key(pem: &[u8]) -> Result<PrivateKeyDer<'static>, CertificateError> {
    if contains(pem, b"BEGIN ENCRYPTED PRIVATE KEY") || contains(pem, b"Proc-Type: 4,ENCRYPTED") {
        let problem = "is encrypted; decrypt it with: openssl pkey -in FILE -out FILE.plain";
        return Err(CertificateError::Key(problem.into()));
    }
    match PrivateKeyDer::from_pem_slice(pem) {
        Ok(key) => Ok(key),
        Err(pem::Error::NoItemsFound) => Err(CertificateError::Key(no_pem(pem, "private key"))),
        Err(error) => Err(CertificateError::Key(format!("is not PEM: {error}"))),
    }
}

/// Returns the problem of a file in which no `item` was found, with the command that converts it.
pub(crate) fn no_pem(bytes: &[u8], item: &str) -> String {
    const SEQUENCE: u8 = 0x30;
    if contains(bytes, b"-----BEGIN ") {
        return format!("contains no {item}");
    }
    if bytes.first() != Some(&SEQUENCE) {
        return format!("is not PEM: it has no {item}");
    }
    // The content of PKCS#12 begins with the version 3, that of a certificate with a sequence.
    if contains(&bytes[..bytes.len().min(12)], &[0x02, 0x01, 0x03]) {
        return "is PKCS#12; convert it with: openssl pkcs12 -in FILE -nodes -out FILE.pem".into();
    }
    let command = if item == "certificate" { "x509" } else { "pkey" };
    format!("is DER; convert it with: openssl {command} -inform DER -in FILE -out FILE.pem")
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}

/// The contents of a certificate.
struct Facts {
    names: Vec<String>,
    not_before: Duration,
    not_after: Duration,
    is_rsa: bool,
}

impl Facts {
    fn of(der: &CertificateDer<'_>) -> Result<Self, String> {
        let (_, certificate) = X509Certificate::from_der(der)
            .map_err(|error| format!("is not an X.509 certificate: {error}"))?;
        let is_rsa = match certificate.public_key().parsed() {
            Ok(PublicKey::RSA(key)) if key.key_size() < RSA_BITS_MIN => {
                let bits = key.key_size();
                return Err(format!("has a weak RSA key of {bits} bits (at least {RSA_BITS_MIN})"));
            }
            Ok(PublicKey::RSA(_)) => true,
            Ok(_) => false,
            Err(error) => return Err(format!("has an unreadable public key: {error}")),
        };
        let alternatives = certificate
            .subject_alternative_name()
            .map_err(|error| format!("has unreadable names: {error}"))?;
        let names = alternatives.into_iter().flat_map(|found| &found.value.general_names);
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(normal_name(name)),
            _ => None,
        });
        let validity = certificate.validity();
        let since_1970 = |time: i64| Duration::from_secs(u64::try_from(time).unwrap_or(0));
        Ok(Self {
            names: names.collect(),
            not_before: since_1970(validity.not_before.timestamp()),
            not_after: since_1970(validity.not_after.timestamp()),
            is_rsa,
        })
    }
}

/// Checks that each certificate of the chain is issued by the next one. A missing intermediate at
/// the end looks like a root that clients know.
fn check_order(chain: &[CertificateDer<'_>]) -> Result<(), String> {
    let parsed: Result<Vec<_>, _> =
        chain.iter().map(|der| X509Certificate::from_der(der).map(|(_, it)| it)).collect();
    let parsed = parsed.map_err(|error| format!("has an invalid certificate: {error}"))?;
    for (index, pair) in parsed.windows(2).enumerate() {
        if pair[0].issuer() != pair[1].subject() {
            return Err(format!(
                "has a gap: certificate {} is issued by \"{}\", but certificate {} is \"{}\"",
                index + 1,
                pair[0].issuer(),
                index + 2,
                pair[1].subject(),
            ));
        }
    }
    Ok(())
}

/// The smallest RSA key that browsers accept, in bits.
const RSA_BITS_MIN: usize = 2048;

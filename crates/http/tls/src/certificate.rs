//! Certificate chains with their private keys.

use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use rustls::{Error, InconsistentKeys};
use x509_parser::asn1_rs::Any;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::prelude::{FromDer, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::X509Version;

use crate::error::{CertificateError, days_text};
use crate::hello::normal_name;
use crate::pem;
use crate::provider::Provider;
use crate::roots::Roots;

/// A certificate chain with its private key, checked to fit.
#[derive(Clone, Debug)]
pub struct Certificate {
    pub(crate) key: Arc<CertifiedKey>,
    /// The facts about the certificate of the server, the first one.
    facts: Facts,
    /// The times of validity of its issuer, if the chain includes it.
    issuer_validity: Option<Validity>,
    /// The issuer of the last certificate; `None` if that is its own issuer.
    missing_issuer: Option<Issuer>,
}

impl PartialEq for Certificate {
    /// Compares the chains. The key fits the chain, so it is the same if they are.
    fn eq(&self, other: &Self) -> bool {
        self.key.cert == other.key.cert
    }
}

impl Eq for Certificate {}

impl Certificate {
    /// Parses a chain, with the certificate of the server first, and its key. Both are PEM.
    ///
    /// # Errors
    /// As [`Certificate::without_match`], and if the key does not fit. The times of validity are
    /// not checked: see [`Certificate::check_time`].
    pub fn from_pem(
        chain: &[u8],
        key: &[u8],
        provider: &Provider,
    ) -> Result<Self, CertificateError> {
        let certificate = Self::without_match(chain, key, provider)?;
        match certificate.key.keys_match() {
            Ok(()) | Err(Error::InconsistentKeys(InconsistentKeys::Unknown)) => Ok(certificate),
            Err(Error::InconsistentKeys(_)) => Err(CertificateError::Mismatch),
            Err(error) => Err(CertificateError::Key(format!("cannot be used: {error}"))),
        }
    }

    /// Parses a chain and its key like [`Certificate::from_pem`], without checking that they fit:
    /// rustls refuses to check the certificate of an ACME challenge because of its critical
    /// extension.
    ///
    /// # Errors
    /// If one of them is not PEM or has a wrong or a weak key, or if the chain is in a wrong order.
    pub fn without_match(
        chain: &[u8],
        key: &[u8],
        provider: &Provider,
    ) -> Result<Self, CertificateError> {
        let chain = pem::certificates(chain).map_err(CertificateError::Chain)?;
        let key = pem::private_key(key).map_err(CertificateError::Key)?;
        let parsed = parse(&chain).map_err(CertificateError::Chain)?;
        check_version(&parsed[0]).map_err(CertificateError::Chain)?;
        let facts = Facts::of(&parsed[0]).map_err(CertificateError::Chain)?;
        check_keys(&parsed).and_then(|()| check_order(&parsed)).map_err(CertificateError::Chain)?;
        let issuer_validity = parsed.get(1).map(Validity::of);
        let missing_issuer = parsed.last().and_then(Issuer::of_last);
        let key = provider.crypto().key_provider.load_private_key(key);
        let key = key.map_err(|error| match error {
            // No other key has this error: the PEM file was parsed before.
            Error::General(_) => CertificateError::Key(UNSUPPORTED_KEY.into()),
            error => CertificateError::Key(format!("cannot be used: {error}")),
        })?;
        let key = Arc::new(CertifiedKey::new(chain, key));
        Ok(Self { key, facts, issuer_validity, missing_issuer })
    }

    /// Returns the DNS names for which the certificate is valid, in lower case; `*.NAME` is a
    /// wildcard.
    pub fn names(&self) -> &[String] {
        &self.facts.names
    }

    /// Returns when the certificate becomes valid, as a duration since 1970.
    pub fn not_before(&self) -> Duration {
        self.facts.validity.not_before
    }

    /// Returns when the certificate expires, as a duration since 1970.
    pub fn not_after(&self) -> Duration {
        self.facts.validity.not_after
    }

    /// Returns the key identifier of the authority and the serial number as they are encoded in
    /// the certificate, by which an authority finds it (RFC 9773 section 4.1). `None` without a
    /// key identifier.
    pub fn renewal_identifier(&self) -> Option<(&[u8], &[u8])> {
        let identifier = self.facts.authority_key.as_deref()?;
        Some((identifier, &self.facts.serial))
    }

    /// Returns whether the certificate is for a DNS name or an IP address. Clients reject any
    /// other.
    pub fn has_host(&self) -> bool {
        self.facts.has_host
    }

    /// Returns whether the key is an RSA key. A signature with it takes about 25 times as long as
    /// one with an ECDSA key, 0.7 ms.
    pub fn is_rsa(&self) -> bool {
        self.facts.is_rsa
    }

    /// Returns the name of the issuer at which the chain ends, if the chain does not include it and
    /// it is none of `roots`. Clients reject such a certificate, unless they know the issuer.
    /// Without [`Certificate::has_issuer`], the file usually lacks the intermediate certificates.
    pub fn missing_issuer(&self, roots: &Roots) -> Option<&str> {
        let issuer = self.missing_issuer.as_ref()?;
        (!roots.has_subject(&issuer.subject)).then_some(&issuer.name)
    }

    /// Returns whether the chain includes the issuer of the certificate.
    pub fn has_issuer(&self) -> bool {
        self.issuer_validity.is_some()
    }

    /// Checks the times of validity of the certificate and of its issuer.
    ///
    /// # Errors
    /// If one is not valid yet, or no longer.
    pub fn check_time(&self, time_of_day: Duration) -> Result<(), CertificateError> {
        let check = |validity: Validity, whose: &str| {
            let problem = validity.problem(time_of_day);
            problem.map_or(Ok(()), |it| Err(CertificateError::Chain(format!("{whose}{it}"))))
        };
        check(self.facts.validity, "")?;
        self.issuer_validity.map_or(Ok(()), |it| check(it, "contains an issuer that "))
    }
}

/// The times between which a certificate is valid, as durations since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    pub(crate) not_before: Duration,
    pub(crate) not_after: Duration,
}

impl Validity {
    /// Returns the times of a certificate; `None` if it cannot be read.
    pub(crate) fn parse(certificate: &CertificateDer<'_>) -> Option<Self> {
        X509Certificate::from_der(certificate).ok().map(|(_, certificate)| Self::of(&certificate))
    }

    fn of(certificate: &X509Certificate<'_>) -> Self {
        let since_1970 = |time: i64| Duration::from_secs(u64::try_from(time).unwrap_or(0));
        let validity = certificate.validity();
        Self {
            not_before: since_1970(validity.not_before.timestamp()),
            not_after: since_1970(validity.not_after.timestamp()),
        }
    }

    /// Returns the reason why a certificate is not valid at a time, if it is not.
    fn problem(self, time_of_day: Duration) -> Option<String> {
        if time_of_day < self.not_before {
            let days = days_text(self.not_before - time_of_day);
            return Some(format!("is not valid before {days} from now"));
        }
        if time_of_day >= self.not_after {
            return Some(format!("expired {} ago", days_text(time_of_day - self.not_after)));
        }
        None
    }
}

/// The issuer of a certificate.
#[derive(Clone, Debug)]
struct Issuer {
    /// The name for messages.
    name: String,
    /// The name as it is encoded, without the header of its sequence.
    subject: Vec<u8>,
}

impl Issuer {
    /// Returns the issuer of the last certificate of a chain; `None` if that is its own issuer.
    fn of_last(certificate: &X509Certificate<'_>) -> Option<Self> {
        let issuer = certificate.issuer();
        if issuer == certificate.subject() {
            return None;
        }
        let (_, sequence) = Any::from_der(issuer.as_raw()).ok()?;
        Some(Self { name: issuer.to_string(), subject: sequence.data.to_vec() })
    }
}

/// The facts about the certificate of a server.
#[derive(Clone, Debug)]
struct Facts {
    /// The DNS names for which it is valid, in lower case; `*.NAME` is a wildcard.
    names: Vec<String>,
    /// Whether it is valid for a DNS name or an IP address.
    has_host: bool,
    validity: Validity,
    is_rsa: bool,
    /// The key identifier of the authority, if the certificate has one.
    authority_key: Option<Vec<u8>>,
    serial: Vec<u8>,
}

impl Facts {
    fn of(certificate: &X509Certificate<'_>) -> Result<Self, String> {
        let is_rsa = match certificate.public_key().parsed() {
            Ok(PublicKey::RSA(_)) => true,
            Ok(_) => false,
            Err(error) => return Err(format!("has an unreadable public key: {error}")),
        };
        let alternatives = certificate
            .subject_alternative_name()
            .map_err(|error| format!("has unreadable names: {error}"))?;
        let names = alternatives.iter().flat_map(|found| &found.value.general_names);
        let has_host = names
            .clone()
            .any(|name| matches!(name, GeneralName::DNSName(_) | GeneralName::IPAddress(_)));
        let names = names.filter_map(|name| match name {
            GeneralName::DNSName(name) => Some(normal_name(name)),
            _ => None,
        });
        let authority_key = certificate.iter_extensions().find_map(|extension| {
            match extension.parsed_extension() {
                ParsedExtension::AuthorityKeyIdentifier(found) => found.key_identifier.as_ref(),
                _ => None,
            }
        });
        Ok(Self {
            names: names.collect(),
            has_host,
            validity: Validity::of(certificate),
            is_rsa,
            authority_key: authority_key.map(|key| key.0.to_vec()),
            serial: certificate.tbs_certificate.raw_serial().to_vec(),
        })
    }
}

fn parse<'a>(chain: &'a [CertificateDer<'_>]) -> Result<Vec<X509Certificate<'a>>, String> {
    let parse = |(index, der): (usize, &'a CertificateDer<'_>)| {
        let parsed = X509Certificate::from_der(der).map(|(_, it)| it);
        parsed.map_err(|error| format!("has an invalid certificate {}: {error}", index + 1))
    };
    chain.iter().enumerate().map(parse).collect()
}

/// Checks that a certificate can have names. Only those of version 3 can.
fn check_version(certificate: &X509Certificate<'_>) -> Result<(), String> {
    match certificate.version() {
        X509Version::V3 => Ok(()),
        version => Err(format!(
            "has X.509 version {} (expected: version 3, as by openssl x509 -req -extfile FILE with \
             subjectAltName=DNS:NAME in that file)",
            version.0.saturating_add(1)
        )),
    }
}

/// Checks that the chain has no RSA key that clients reject.
fn check_keys(chain: &[X509Certificate<'_>]) -> Result<(), String> {
    for (index, certificate) in chain.iter().enumerate() {
        if let Ok(PublicKey::RSA(key)) = certificate.public_key().parsed()
            && key.key_size() < RSA_BITS_MIN
        {
            return Err(format!(
                "has a weak RSA key of {} bits in certificate {} (expected: {RSA_BITS_MIN} or more)",
                key.key_size(),
                index + 1,
            ));
        }
    }
    Ok(())
}

/// Checks that each certificate of the chain is issued by the next one.
fn check_order(chain: &[X509Certificate<'_>]) -> Result<(), String> {
    for (index, pair) in chain.windows(2).enumerate() {
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

const UNSUPPORTED_KEY: &str = "has a key of an unsupported kind (supported: ECDSA by P-256, P-384 or \
                               P-521, RSA, Ed25519)";

/// The smallest RSA key that browsers accept, in bits.
const RSA_BITS_MIN: usize = 2048;

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;
    use crate::test_support::{Authority, provider};

    fn problem(chain: &[u8], key: &[u8]) -> (&'static str, String) {
        match Certificate::from_pem(chain, key, &provider()).unwrap_err() {
            CertificateError::Chain(problem) => ("chain", problem),
            CertificateError::Key(problem) => ("key", problem),
            error @ CertificateError::Mismatch => ("key", error.to_string()),
        }
    }

    /// Returns a chain and its key as PEM.
    fn pair() -> (String, String) {
        let params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        Authority::new("root").issue_pem(params)
    }

    #[test]
    fn each_bad_key_file_is_one_clear_error() {
        let (chain, key) = pair();
        let der = KeyPair::from_pem(&key).unwrap().serialize_der();
        let encrypted = key.replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE");
        let old_encrypted =
            "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-256-CBC,00";
        let cut = key.replace("-----END PRIVATE KEY-----", "");
        let decrypt = "is encrypted; decrypt it with: openssl pkey -in FILE -out FILE.plain";
        let convert = "is DER; convert it with: openssl pkey -inform DER -in FILE -out FILE.pem";
        let cases: [(&[u8], &str); 8] = [
            (chain.as_bytes(), "contains no private key"),
            (b"", "is not PEM: it has no private key"),
            (&pair().1.into_bytes(), "is not the key of the certificate"),
            (encrypted.as_bytes(), decrypt),
            (old_encrypted.as_bytes(), decrypt),
            (cut.as_bytes(), "is not complete PEM: -----END PRIVATE KEY----- is missing"),
            (&der, convert),
            (&PKCS12, PKCS12_PROBLEM),
        ];
        for (file, expected) in cases {
            assert_eq!(problem(chain.as_bytes(), file), ("key", expected.to_owned()));
        }
    }

    #[test]
    fn each_bad_chain_file_is_one_clear_error() {
        let (chain, key) = pair();
        let key = key.as_bytes();
        let cut = chain.replace("-----END CERTIFICATE-----", "");
        let bad_base64 = chain.replacen("MII", "M*I", 1);
        let der = pem::certificates(chain.as_bytes()).unwrap().remove(0);
        let pkcs7 = "-----BEGIN PKCS7-----\nMAA=\n-----END PKCS7-----\n";
        let convert_der =
            "is DER; convert it with: openssl x509 -inform DER -in FILE -out FILE.pem";
        let convert_pkcs7 =
            "is PKCS#7; convert it with: openssl pkcs7 -print_certs -in FILE -out FILE.pem";
        let weak = "has a weak RSA key of 1024 bits in certificate 1 (expected: 2048 or more)";
        let version = "has X.509 version 1 (expected: version 3, as by openssl x509 -req -extfile FILE \
                       with subjectAltName=DNS:NAME in that file)";
        let cases: [(&[u8], &str); 9] = [
            (key, "contains no certificate"),
            (b"text", "is not PEM: it has no certificate"),
            (cut.as_bytes(), "is not complete PEM: -----END CERTIFICATE----- is missing"),
            (bad_base64.as_bytes(), "is not PEM: it has invalid Base64"),
            (&der, convert_der),
            (&PKCS12, PKCS12_PROBLEM),
            (pkcs7.as_bytes(), convert_pkcs7),
            (WEAK.as_bytes(), weak),
            (VERSION_1.as_bytes(), version),
        ];
        for (file, expected) in cases {
            assert_eq!(problem(file, key), ("chain", expected.to_owned()));
        }
        let empty = "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n";
        let (place, problem) = problem(empty.as_bytes(), key);
        assert!(place == "chain" && problem.starts_with("has an invalid certificate 1: "));
    }

    #[test]
    fn a_chain_has_a_place_for_each_issuer() {
        let root = Authority::new("root");
        let intermediate = root.intermediate("intermediate");
        let params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        let (leaf, key) = intermediate.issue_pem(params);
        let load = |parts: &[&str]| {
            Certificate::from_pem(parts.concat().as_bytes(), key.as_bytes(), &provider())
        };
        let (issuer, top) = (intermediate.0.pem(), root.0.pem());
        let roots = root.roots();
        let alone = load(&[&leaf]).unwrap();
        assert_eq!(alone.missing_issuer(&roots), Some("CN=intermediate"));
        assert_eq!(alone.missing_issuer(&intermediate.roots()), None);
        assert_eq!(load(&[&leaf, &issuer]).unwrap().missing_issuer(&roots), None);
        let other = Authority::new("other").roots();
        assert_eq!(load(&[&leaf, &issuer]).unwrap().missing_issuer(&other), Some("CN=root"));
        assert_eq!(load(&[&leaf, &issuer, &top]).unwrap().missing_issuer(&other), None);
        let error = load(&[&leaf, &top, &issuer]).unwrap_err();
        let expected = "has a gap: certificate 1 is issued by \"CN=intermediate\", but certificate \
                        2 is \"CN=root\"";
        assert_eq!(error, CertificateError::Chain(expected.into()));
    }

    #[test]
    fn the_certificate_and_its_issuer_are_valid_at_a_time() {
        let root = Authority::new("root");
        let (from, to) = (date_time_ymd(2026, 2, 1), date_time_ymd(2026, 5, 1));
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        (params.not_before, params.not_after) = (from, to);
        let (leaf, key) = root.issue_pem(params.clone());
        let load = |chain: &str, key: &str| {
            Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider()).unwrap()
        };
        let certificate = load(&leaf, &key);
        let since_1970 = |time: i64| Duration::from_secs(time.try_into().unwrap());
        let (from, to) = (since_1970(from.unix_timestamp()), since_1970(to.unix_timestamp()));
        assert_eq!((certificate.not_before(), certificate.not_after()), (from, to));
        let day = Duration::from_secs(86_400);
        let problem = |certificate: &Certificate, time| match certificate.check_time(time) {
            Err(CertificateError::Chain(problem)) => problem,
            other => format!("{other:?}"),
        };
        assert_eq!(certificate.check_time(from), Ok(()));
        assert_eq!(certificate.check_time(to - day), Ok(()));
        assert_eq!(problem(&certificate, from - 3 * day), "is not valid before 3 days from now");
        assert_eq!(problem(&certificate, to + 5 * day), "expired 5 days ago");
        assert_eq!(problem(&certificate, to + day), "expired 1 day ago");

        let old = root.intermediate_until("old", 2026);
        let (leaf, key) = old.issue_pem(params);
        let certificate = load(&format!("{leaf}{}", old.0.pem()), &key);
        let time = since_1970(date_time_ymd(2026, 3, 3).unix_timestamp());
        assert_eq!(problem(&certificate, time), "contains an issuer that expired 2 days ago");
    }

    /// The beginning of a PKCS#12 file: a sequence with the version 3.
    const PKCS12: [u8; 12] = [0x30, 0x82, 9, 0x10, 2, 1, 3, 0x30, 0x82, 8, 0xd6, 6];
    const PKCS12_PROBLEM: &str =
        "is PKCS#12; convert it with: openssl pkcs12 -in FILE -nodes -out FILE.pem";

    /// A certificate with an RSA key of 1024 bits, made by openssl req. No library for tests makes
    /// such keys.
    const WEAK: &str = "\
-----BEGIN CERTIFICATE-----
MIICJTCCAY6gAwIBAgIUbqirLd0vzEEWo5bcq73lKRQ4o14wDQYJKoZIhvcNAQEL
BQAwFzEVMBMGA1UEAwwMd2Vhay5leGFtcGxlMCAXDTI2MTEyNjEyNTYzNVoYDzIx
MjYxMTAyMTI1NjM1WjAXMRUwEwYDVQQDDAx3ZWFrLmV4YW1wbGUwgZ8wDQYJKoZI
hvcNAQEBBQADgY0AMIGJAoGBANhKv52wqO3/iIF3Xs/zMX8rsr4Kq/aCuL3spHkJ
vDKuj5nIj5atstbmRC+AcfxxiaVvduz5dHhd2e5aF5LeKkicWAGEErtjgTcDMJuy
m5Eyw0nitW2YHPiE9eKLMKaWMvMe/zGDLtc/ydYbiONH3PlmR6M5rmeQg/MPbc5W
hpTNAgMBAAGjbDBqMB0GA1UdDgQWBBQucFm+IYzB49QmDd/gO2z0MOQNATAfBgNV
HSMEGDAWgBQucFm+IYzB49QmDd/gO2z0MOQNATAPBgNVHRMBAf8EBTADAQH/MBcG
A1UdEQQQMA6CDHdlYWsuZXhhbXBsZTANBgkqhkiG9w0BAQsFAAOBgQDAptgZPMaa
OEj+JDaX8aovg8jnbbO9oeDheqqVW/jHle7MjJJx0sdA6/toyTHPcq0jVHJK8nKT
tTn7/KLmqXWJJR9bZHrLmKkOVwr9z8ZVzMB7/Tx4qzqMjh7njE6dbSL3tyazQZ1Z
DbNwH9F5byqTn3uD9dkzsd0N6j45/t/kXg==
-----END CERTIFICATE-----
";

    /// A certificate of version 1, made by openssl x509 -req without extensions.
    const VERSION_1: &str = "\
-----BEGIN CERTIFICATE-----
MIIBKDCBzwIUHicDLKnAQaNyYHaQVrjia2yD7qMwCgYIKoZIzj0EAwIwFjEUMBIG
A1UEAwwLb2xkLmV4YW1wbGUwIBcNMjYxMTI3MDA1MTIzWhgPMjEyNjExMDMwMDUx
MjNaMBYxFDASBgNVBAMMC29sZC5leGFtcGxlMFkwEwYHKoZIzj0CAQYIKoZIzj0D
AQcDQgAE2stbcrghorQRJb2yJKnU9vpyFwibyS77pPAfdscqdQ9HjyBomK7PyT9/
pBGq9Z1RWhwETz4a4kC/ihVR8pqcJDAKBggqhkjOPQQDAgNIADBFAiBhP7Q3RlHK
LwemZnu0OTUtfyb0NrGTeoAaOfgS7N77QQIhAJN6r5OlmJzxSLj5xoxUqVe2j0/f
idRhCR4fQ80ybZTr
-----END CERTIFICATE-----
";
}

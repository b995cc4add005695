//! Authorities that are trusted to issue certificates.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::error::CertificateError;
use crate::pem;

/// The certificates of authorities that are trusted. Clones share them.
#[derive(Clone, Debug)]
pub struct Roots {
    store: Arc<RootCertStore>,
    /// The certificates that an operator has listed. One of a server is trusted too.
    listed: Arc<[CertificateDer<'static>]>,
}

impl Roots {
    /// Parses the certificates of a PEM file: those of authorities, or of servers that use the same
    /// ones.
    ///
    /// # Errors
    /// If the file has no certificate, or one that cannot be used.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let mut roots = RootCertStore::empty();
        let listed = pem::certificates(pem).map_err(CertificateError::Chain)?;
        for certificate in &listed {
            let added = roots.add(certificate.clone());
            added.map_err(|error| {
                CertificateError::Chain(format!("has an invalid root: {error}"))
            })?;
        }
        Ok(Self { store: Arc::new(roots), listed: listed.into() })
    }

    /// Creates roots from certificates in DER, such as those of the system. Unusable ones are left
    /// out.
    pub fn from_der(certificates: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.into_iter().map(CertificateDer::from));
        Self { store: Arc::new(roots), listed: Arc::new([]) }
    }

    /// Returns the certificates of all of these.
    pub fn union(all: impl IntoIterator<Item = Self>) -> Self {
        let (mut roots, mut listed) = (RootCertStore::empty(), Vec::new());
        for one in all {
            roots.extend(one.store.roots.iter().cloned());
            listed.extend_from_slice(&one.listed);
        }
        Self { store: Arc::new(roots), listed: listed.into() }
    }

    pub(crate) fn store(&self) -> &Arc<RootCertStore> {
        &self.store
    }

    /// Returns whether an operator has listed this certificate.
    pub(crate) fn lists(&self, certificate: &CertificateDer<'_>) -> bool {
        self.listed.contains(certificate)
    }

    /// Returns whether a root has this subject, encoded without the header of its sequence.
    pub(crate) fn has_subject(&self, subject: &[u8]) -> bool {
        self.store.roots.iter().any(|root| root.subject.as_ref() == subject)
    }

    /// Returns the number of certificates.
    pub fn len(&self) -> usize {
        self.store.len()
    }

    /// Returns whether no authority is trusted.
    pub fn is_empty(&self) -> bool {
        self.store.is_empty()
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        // A renewed certificate of a server may have the same name and key as the listed one.
        self.store.roots == other.store.roots && self.listed == other.listed
    }
}

impl Eq for Roots {}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};

    use super::*;

    #[test]
    fn a_renewed_certificate_with_the_same_key_is_another_root() {
        let key = KeyPair::generate().unwrap();
        let roots = |year| {
            let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
            params.not_after = date_time_ymd(year, 1, 1);
            Roots::from_pem(params.self_signed(&key).unwrap().pem().as_bytes()).unwrap()
        };
        let (old, renewed) = (roots(2030), roots(2031));
        assert_eq!(old.store.roots, renewed.store.roots);
        assert_ne!(old, renewed);
        assert_eq!(old, old.clone());
    }
}

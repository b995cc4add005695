//! Authorities that are trusted to issue certificates.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::error::CertificateError;
use crate::pem;

/// The certificates of authorities that are trusted. Clones share them.
#[derive(Clone, Debug)]
pub struct Roots(Arc<RootCertStore>);

impl Roots {
    /// Parses the certificates of a PEM file.
    ///
    /// # Errors
    /// If the file has no certificate, or one that cannot be used.
    pub fn from_pem(pem: &[u8]) -> Result<Self, CertificateError> {
        let mut roots = RootCertStore::empty();
        for certificate in pem::certificates(pem).map_err(CertificateError::Chain)? {
            let added = roots.add(certificate);
            added.map_err(|error| {
                CertificateError::Chain(format!("has an invalid root: {error}"))
            })?;
        }
        Ok(Self(Arc::new(roots)))
    }

    /// Creates roots from certificates in DER, such as those of the system. Unusable ones are left
    /// out.
    pub fn from_der(certificates: impl IntoIterator<Item = Vec<u8>>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add_parsable_certificates(certificates.into_iter().map(CertificateDer::from));
        Self(Arc::new(roots))
    }

    pub(crate) fn store(&self) -> &Arc<RootCertStore> {
        &self.0
    }

    /// Returns whether a root has this subject, encoded without the header of its sequence.
    pub(crate) fn has_subject(&self, subject: &[u8]) -> bool {
        self.0.roots.iter().any(|root| root.subject.as_ref() == subject)
    }

    /// Returns the number of certificates.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no authority is trusted.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl PartialEq for Roots {
    fn eq(&self, other: &Self) -> bool {
        self.0.roots == other.0.roots
    }
}

impl Eq for Roots {}

//! Authorities that are trusted to issue certificates.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

use crate::certificate::CertificateError;

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
        for certificate in CertificateDer::pem_slice_iter(pem) {
            let added = certificate.map_err(|error| format!("is not PEM: {error}"));
            let added = added.and_then(|certificate| {
                roots.add(certificate).map_err(|error| format!("has an invalid root: {error}"))
            });
            added.map_err(CertificateError::Chain)?;
        }
        if roots.is_empty() {
            return Err(CertificateError::Chain("contains no certificate".into()));
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

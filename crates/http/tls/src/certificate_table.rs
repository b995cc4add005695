//! The certificates of a service by name.

use std::sync::Arc;

use rustls::SignatureAlgorithm;
use rustls::server::{ClientHello as RustlsHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::certificate::Certificate;
use crate::hello::normal_name;
use crate::name_map::NameMap;

/// The certificate of a client that names no name of a certificate, or none at all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum UnknownName {
    /// It gets the first certificate.
    #[default]
    First,
    /// It gets a fatal alert.
    Refuse,
}

/// The certificates of a service by name.
#[derive(Debug)]
pub(crate) struct CertificateTable {
    certificates: Vec<Arc<CertifiedKey>>,
    /// Indices of `certificates`, in their order.
    by_name: NameMap<Vec<usize>>,
    /// The indices for clients that name no known name; empty if they are refused.
    default: Vec<usize>,
}

impl CertificateTable {
    pub(crate) fn new(certificates: &[Certificate], unknown_name: UnknownName) -> Self {
        let mut by_name = NameMap::<Vec<usize>>::default();
        for (index, certificate) in certificates.iter().enumerate() {
            for name in certificate.names() {
                by_name.entry(name).push(index);
            }
        }
        let mut default = Vec::new();
        if let Some(first) = certificates.first().filter(|_| unknown_name == UnknownName::First) {
            default.push(0);
            // A second certificate for the names of the first one may have another algorithm.
            for name in first.names() {
                default.extend_from_slice(by_name.entry(name));
            }
        }
        let certificates = certificates.iter().map(|certificate| certificate.key.clone());
        Self { certificates: certificates.collect(), by_name, default }
    }

    /// Returns the indices of the certificates for a name in lower case; empty if the client is
    /// refused.
    fn find(&self, name: Option<&str>) -> &[usize] {
        name.and_then(|name| self.by_name.find(name)).unwrap_or(&self.default)
    }

    /// Returns the index of the first certificate for a name in lower case; `None` if the client is
    /// refused.
    pub(crate) fn first(&self, name: Option<&str>) -> Option<usize> {
        self.find(name).first().copied()
    }

    /// Returns whether one of the certificates for a name has an RSA key. The client's algorithms
    /// decide which one signs.
    pub(crate) fn may_sign_by_rsa(&self, name: Option<&str>) -> bool {
        let is_rsa =
            |index: &usize| self.certificates[*index].key.algorithm() == SignatureAlgorithm::RSA;
        self.find(name).iter().any(is_rsa)
    }

    /// Returns whether every name selects the same certificate.
    pub(crate) fn has_one_for_all(&self) -> bool {
        self.certificates.len() == 1 && !self.default.is_empty()
    }
}

impl ResolvesServerCert for CertificateTable {
    fn resolve(&self, hello: RustlsHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(normal_name);
        let mut found = self.find(name.as_deref()).iter().map(|index| &self.certificates[*index]);
        let first = found.clone().next();
        let schemes = hello.signature_schemes();
        found.find(|it| it.key.choose_scheme(schemes).is_some()).or(first).cloned()
    }
}

//! The settings of the server's side: certificates by name, versions, and how a session begins.

use std::collections::HashMap;
use std::sync::Arc;

use rustls::server::{ClientHello as RustlsHello, ResolvesServerCert, UnbufferedServerConnection};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedProtocolVersion, version};

use crate::certificate::Certificate;
use crate::clock::Clock;
use crate::error::{TlsError, TlsErrorKind};
use crate::hello::{ClientHello, normal_name};
use crate::provider::Provider;
use crate::session::Session;

/// The versions of TLS that are spoken.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Versions {
    /// TLS 1.2 and 1.3.
    #[default]
    From12,
    /// TLS 1.3 only.
    Only13,
    /// TLS 1.2 only.
    Only12,
}

impl Versions {
    fn supported(self) -> &'static [&'static SupportedProtocolVersion] {
        static BOTH: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];
        match self {
            Self::From12 => &BOTH,
            Self::Only13 => &BOTH[..1],
            Self::Only12 => &BOTH[1..],
        }
    }
}

/// The certificate of a client that names no name of a certificate, or none at all.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum UnknownName {
    /// It gets the first certificate.
    #[default]
    First,
    /// It gets a fatal alert.
    Refuse,
}

/// The options of [`ServerSettings`].
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// The certificates, at least one. If several are valid for a name, the client's algorithms
    /// decide; the first one fits first.
    pub certificates: Vec<Certificate>,
    /// The versions.
    pub versions: Versions,
    /// The treatment of unknown names.
    pub unknown_name: UnknownName,
    /// The application protocols (ALPN), in the order of preference.
    pub alpn: Vec<Vec<u8>>,
}

/// The settings with which the connections of a service are accepted. Clones share them.
#[derive(Clone, Debug)]
pub struct ServerSettings {
    config: Arc<ServerConfig>,
    certificates: Arc<CertificateTable>,
}

impl ServerSettings {
    /// Creates the settings.
    ///
    /// # Errors
    /// If the provider has no suite for the versions.
    pub fn new(
        options: ServerOptions,
        provider: &Provider,
        clock: &Clock,
    ) -> Result<Self, TlsError> {
        let certificates =
            Arc::new(CertificateTable::new(&options.certificates, options.unknown_name));
        let builder =
            ServerConfig::builder_with_details(provider.crypto().clone(), Arc::new(clock.clone()));
        let mut config = builder
            .with_protocol_versions(options.versions.supported())?
            .with_no_client_auth()
            .with_cert_resolver(certificates.clone());
        config.ignore_client_order = true;
        config.alpn_protocols = options.alpn;
        Ok(Self { config: Arc::new(config), certificates })
    }

    /// Begins a session for a connection whose client has sent this ClientHello. The bytes of the
    /// ClientHello are passed to [`Session::open`] afterwards.
    ///
    /// # Errors
    /// If there is no certificate for the name and unknown names are refused.
    pub fn accept(&self, hello: &ClientHello) -> Result<Session, TlsError> {
        if self.certificates.find(hello.server_name.as_deref()).is_none() {
            let name = hello.server_name.as_deref().unwrap_or("(none)");
            let detail = format!("no certificate is valid for the name {name}");
            return Err(TlsError::new(TlsErrorKind::UnknownName, detail));
        }
        Ok(Session::server(UnbufferedServerConnection::new(self.config.clone())?))
    }
}

/// Certificates by name.
#[derive(Debug)]
struct CertificateTable {
    /// In the order of the options. Wildcards are stored as `*.NAME`.
    by_name: HashMap<String, Vec<Arc<CertifiedKey>>>,
    /// The certificates for clients that name no known name; empty if they are refused.
    default: Vec<Arc<CertifiedKey>>,
}

impl CertificateTable {
    fn new(certificates: &[Certificate], unknown_name: UnknownName) -> Self {
        let mut by_name = HashMap::<String, Vec<Arc<CertifiedKey>>>::new();
        for certificate in certificates {
            for name in certificate.names() {
                by_name.entry(name.clone()).or_default().push(certificate.key.clone());
            }
        }
        let first = certificates.first().filter(|_| unknown_name == UnknownName::First);
        // A second certificate for the names of the first one may have another algorithm.
        let names = first.map_or(&[][..], Certificate::names);
        let mut default: Vec<_> = first.map(|first| first.key.clone()).into_iter().collect();
        default.extend(names.iter().flat_map(|name| by_name[name].iter().cloned()));
        Self { by_name, default }
    }

    /// Returns the certificates for a name in lower case: an exact match before a wildcard.
    fn find(&self, name: Option<&str>) -> Option<&[Arc<CertifiedKey>]> {
        let by_name = name.and_then(|name| {
            let wildcard = || {
                let (_, parent) = name.split_once('.')?;
                self.by_name.get(&format!("*.{parent}"))
            };
            self.by_name.get(name).or_else(wildcard)
        });
        let found = by_name.map_or(&self.default[..], Vec::as_slice);
        (!found.is_empty()).then_some(found)
    }
}

impl ResolvesServerCert for CertificateTable {
    fn resolve(&self, hello: RustlsHello<'_>) -> Option<Arc<CertifiedKey>> {
        let name = hello.server_name().map(normal_name);
        let found = self.find(name.as_deref())?;
        let schemes = hello.signature_schemes();
        let fitting = found.iter().find(|it| it.key.choose_scheme(schemes).is_some());
        fitting.or_else(|| found.first()).cloned()
    }
}

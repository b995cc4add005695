//! Certificates and handshakes for the tests of this crate.

use std::time::Duration;

use rustls::NamedGroup;
use rustls::client::{
    ClientSessionMemoryCache, ClientSessionStore, Tls12ClientSessionValue, Tls13ClientSessionValue,
};
use rustls::pki_types;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, PKCS_RSA_SHA256,
    RsaKeySize,
};

use crate::{
    Aead, Certificate, ClientOptions, ClientSettings, Clock, Peek, Provider, Roots, ServerName,
    ServerSettings, Session, TlsError, peek,
};

pub(crate) fn provider() -> Provider {
    Provider::new(Aead::fastest())
}

/// Returns a clock whose time lies within the validity of the certificates, which is 1975 to 4096.
pub(crate) fn clock() -> Clock {
    let clock = Clock::default();
    clock.set(Duration::from_secs(1_800_000_000));
    clock
}

/// An authority that issues certificates.
pub(crate) struct Authority(pub(crate) CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(crate) fn new(name: &str) -> Self {
        let params = Self::params(name);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    /// Creates an authority whose certificate this one issues.
    pub(crate) fn intermediate(&self, name: &str) -> Self {
        self.issue_authority(Self::params(name))
    }

    /// Like [`Authority::intermediate`], with a certificate that expires on March 1 of a year.
    pub(crate) fn intermediate_until(&self, name: &str, year: i32) -> Self {
        let mut params = Self::params(name);
        params.not_after = rcgen::date_time_ymd(year, 3, 1);
        self.issue_authority(params)
    }

    fn issue_authority(&self, params: CertificateParams) -> Self {
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::signed_by(params, key, &self.0).unwrap())
    }

    fn params(name: &str) -> CertificateParams {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, name);
        params.key_usages =
            vec![rcgen::KeyUsagePurpose::KeyCertSign, rcgen::KeyUsagePurpose::CrlSign];
        params
    }

    /// Issues a certificate for DNS names. Returns the certificate and its key as PEM.
    pub(crate) fn issue_pem(&self, params: CertificateParams) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    pub(crate) fn issue(&self, names: &[&str]) -> Certificate {
        let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
        let (chain, key) = self.issue_pem(CertificateParams::new(names).unwrap());
        Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider()).unwrap()
    }

    /// Issues a certificate with an RSA key.
    pub(crate) fn issue_rsa(&self, name: &str) -> Certificate {
        let key = KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let chain = params.signed_by(&key, &self.0).unwrap().pem();
        Certificate::from_pem(chain.as_bytes(), key.serialize_pem().as_bytes(), &provider())
            .unwrap()
    }

    /// Returns the settings of a client that trusts this authority.
    pub(crate) fn client(&self, certificate: Option<Certificate>, clock: &Clock) -> ClientSettings {
        let options = ClientOptions { roots: Some(self.roots()), certificate, alpn: Vec::new() };
        ClientSettings::new(options, &provider(), clock).unwrap()
    }

    pub(crate) fn roots(&self) -> Roots {
        Roots::from_pem(self.0.pem().as_bytes()).unwrap()
    }
}

/// The side of a connection on which a handshake failed first.
#[derive(PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    AtClient(TlsError),
    AtServer(TlsError),
}

/// Performs a handshake, with the tickets after it. Returns the sessions of client and server.
pub(crate) fn handshake(
    client: &ClientSettings,
    name: &str,
    server: &ServerSettings,
) -> Result<(Session, Session), Failure> {
    let name = ServerName::parse(name).unwrap();
    let mut client = client.connect(name).map_err(Failure::AtClient)?;
    let mut to_server = Vec::new();
    client.flush(&mut to_server).map_err(Failure::AtClient)?;
    let Peek::Hello(hello) = peek(&to_server) else { panic!("a ClientHello") };
    let mut server = server.accept(&hello).map_err(Failure::AtServer)?;
    let (mut to_client, mut plaintext) = (Vec::new(), vec![0; 128 * 1024]);
    while !to_server.is_empty() {
        let mut bytes = std::mem::take(&mut to_server);
        server.open(&mut bytes, &mut plaintext, &mut to_client).map_err(Failure::AtServer)?;
        let mut bytes = std::mem::take(&mut to_client);
        client.open(&mut bytes, &mut plaintext, &mut to_server).map_err(Failure::AtClient)?;
    }
    assert!(!client.is_handshaking() && !server.is_handshaking());
    Ok((client, server))
}

/// A store of sessions that offers the sessions of each server to every server.
#[derive(Debug)]
pub(crate) struct NamelessStore {
    sessions: ClientSessionMemoryCache,
    name: pki_types::ServerName<'static>,
}

impl NamelessStore {
    pub(crate) fn new() -> Self {
        let name = pki_types::ServerName::try_from("any.example").unwrap();
        Self { sessions: ClientSessionMemoryCache::new(8), name }
    }

    fn name(&self) -> pki_types::ServerName<'static> {
        self.name.clone()
    }
}

impl ClientSessionStore for NamelessStore {
    fn set_kx_hint(&self, _: pki_types::ServerName<'static>, group: NamedGroup) {
        self.sessions.set_kx_hint(self.name(), group);
    }

    fn kx_hint(&self, _: &pki_types::ServerName<'_>) -> Option<NamedGroup> {
        self.sessions.kx_hint(&self.name)
    }

    fn set_tls12_session(&self, _: pki_types::ServerName<'static>, it: Tls12ClientSessionValue) {
        self.sessions.set_tls12_session(self.name(), it);
    }

    fn tls12_session(&self, _: &pki_types::ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.sessions.tls12_session(&self.name)
    }

    fn remove_tls12_session(&self, _: &pki_types::ServerName<'static>) {
        self.sessions.remove_tls12_session(&self.name());
    }

    fn insert_tls13_ticket(&self, _: pki_types::ServerName<'static>, it: Tls13ClientSessionValue) {
        self.sessions.insert_tls13_ticket(self.name(), it);
    }

    fn take_tls13_ticket(
        &self,
        _: &pki_types::ServerName<'static>,
    ) -> Option<Tls13ClientSessionValue> {
        self.sessions.take_tls13_ticket(&self.name())
    }
}

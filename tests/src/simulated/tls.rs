//! The certificates and the settings of TLS in a simulated world.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use millrace_config::{Config, OriginTlsContent};
use millrace_engine::Address;
use millrace_proxy::SharedState;
use millrace_sim::{ActorSocket, World};
use millrace_tls::{Certificate, Clock, Provider, Roots, TicketKeys};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, Connection, DigitallySignedStruct, RootCertStore, ServerConfig,
    ServerConnection, SignatureScheme, SupportedProtocolVersion, version,
};

use super::tickets::ForeignService;
use super::tls_stream::{TlsFault, TlsPlan, TlsStream};
use super::transport::Transport;

/// The name of the proxy and of the origins in their certificate.
const NAME: &str = "proxy.test";
/// The host of the requests in random scenarios, which the certificate has too.
const HOST: &str = "a.test";
/// A name that the certificate does not have.
const UNKNOWN_NAME: &str = "unknown.test";
/// The command-line options that secure a listener. The files are never opened.
pub(super) const OPTIONS: [&str; 4] = ["--certificate", "/sim/chain", "--key", "/sim/key"];
/// The command-line options of origins with `https://`. The file is never opened.
pub(super) const ORIGIN_OPTIONS: [&str; 4] = ["--origin-ca", "/sim/ca", "--origin-name", NAME];

/// The TLS versions, by [`TlsPlan::old`].
const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS13, &version::TLS12];

/// TLS of a simulated world. Everything in it repeats for a seed.
pub(super) struct TlsSettings {
    /// The cryptography of the proxy and of the actors.
    pub(super) provider: Provider,
    clock: Clock,
    certificates: Arc<[Certificate]>,
    roots: Roots,
    /// Settings of clients, by [`TlsPlan::old`]. Clients of one version share their tickets.
    clients: [Arc<ClientConfig>; 2],
    /// Settings of origins, by [`TlsPlan::old`].
    origins: [Arc<ServerConfig>; 2],
    /// The same with a certificate for another name.
    misnamed: [Arc<ServerConfig>; 2],
    /// The proxy accepts unknown names.
    accepts_unknown: bool,
    ticket_keys: RefCell<TicketKeys>,
    /// The name of the service.
    service: RefCell<String>,
    /// The running process, which gets rotated keys.
    process: RefCell<Option<Arc<SharedState>>>,
}

impl TlsSettings {
    /// Creates the settings of the world of `seed`.
    pub(super) fn new(seed: u64, accepts_unknown: bool) -> Self {
        let (provider, clock) = (Provider::deterministic(seed), Clock::default());
        let (chain, key) = certificate(0);
        let read = Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider);
        let mut keys = TicketKeys::default();
        keys.rotate(&provider).expect("the provider has randomness");
        Self {
            certificates: [read.expect("the key fits")].into(),
            roots: Roots::from_pem(chain.as_bytes()).expect("a certificate"),
            clients: VERSIONS.map(|version| client_config(&provider, &clock, version)),
            origins: VERSIONS.map(|version| server_config(&provider, &clock, version, 0)),
            misnamed: VERSIONS.map(|version| server_config(&provider, &clock, version, 1)),
            accepts_unknown,
            ticket_keys: RefCell::new(keys),
            service: RefCell::default(),
            process: RefCell::new(None),
            provider,
            clock,
        }
    }

    /// Sets the content of the files of a configuration, which the program would read.
    pub(super) fn set_content(&self, config: &mut Config) {
        for service in &mut config.services {
            *self.service.borrow_mut() = service.name.as_str().to_owned();
            if let Some(tls) = &mut service.tls {
                tls.certificates = Some(self.certificates.clone());
            }
            for tls in service.routes_mut().iter_mut().filter_map(|it| it.origin_tls.as_mut()) {
                let content =
                    OriginTlsContent { roots: Some(self.roots.clone()), certificate: None };
                Arc::make_mut(tls).content = Some(content);
            }
        }
    }

    /// Gives the ticket keys to a process that begins.
    pub(super) fn attach(&self, process: &Arc<SharedState>) {
        process.ticket_keys.replace(self.ticket_keys.borrow().clone());
        *self.process.borrow_mut() = Some(process.clone());
    }

    /// Does what the supervisor does once a period.
    fn rotate_ticket_keys(&self) {
        let mut keys = self.ticket_keys.borrow_mut();
        keys.rotate(&self.provider).expect("the provider has randomness");
        for process in self.process.borrow().iter() {
            process.ticket_keys.replace(keys.clone());
        }
    }

    /// Begins TLS on the connection of a client.
    pub(super) fn client(&self, world: &World, socket: ActorSocket, plan: TlsPlan) -> Transport {
        self.clock.set(world.time_of_day());
        let random = world.random();
        if random.is_multiple_of(4) {
            self.rotate_ticket_keys();
        }
        let name = match plan.fault {
            Some(TlsFault::UnknownName) => ServerName::try_from(UNKNOWN_NAME),
            // An address is not sent in the ClientHello.
            Some(TlsFault::NoName) => ServerName::try_from("127.0.0.1"),
            _ => ServerName::try_from(NAME),
        };
        let name = name.expect("a DNS name or an address");
        let mut config = self.clients[usize::from(plan.old)].clone();
        if let Some(kind) = plan.ticket {
            config = client_config(&self.provider, &self.clock, VERSIONS[usize::from(plan.old)]);
            let foreign = ForeignService {
                provider: &self.provider,
                clock: &self.clock,
                certificates: &self.certificates,
                keys: &self.ticket_keys.borrow(),
                service: &self.service.borrow(),
            };
            foreign.issue(kind, plan.old, &config, &name);
        }
        let connection = ClientConnection::new(config, name).expect("the settings are complete");
        let unknown = matches!(plan.fault, Some(TlsFault::UnknownName | TlsFault::NoName));
        let fault = plan.fault.filter(|_| !(unknown && self.accepts_unknown));
        let (connection, plan) = (Connection::Client(connection), TlsPlan { fault, ..plan });
        let stream = TlsStream::new(connection, self.clock.clone(), plan, random);
        Transport::secured(world, socket, stream)
    }

    /// Begins TLS on a connection that an origin has accepted.
    pub(super) fn origin(&self, world: &World, socket: ActorSocket, plan: TlsPlan) -> Transport {
        self.clock.set(world.time_of_day());
        let is_misnamed = plan.fault == Some(TlsFault::UnknownName);
        let configs = if is_misnamed { &self.misnamed } else { &self.origins };
        let connection = ServerConnection::new(configs[usize::from(plan.old)].clone());
        let connection = Connection::Server(connection.expect("the settings are complete"));
        let stream = TlsStream::new(connection, self.clock.clone(), plan, world.random());
        Transport::secured(world, socket, stream)
    }
}

/// Where clients reach the proxy.
pub(super) struct ProxyAddress {
    pub(super) address: Address,
    /// TLS; `None` if the address is a plain one.
    pub(super) tls: Option<Rc<TlsSettings>>,
}

impl ProxyAddress {
    /// Returns the connection over `socket`, which connects to the address. `plan` has no effect at
    /// a plain one.
    pub(super) fn transport(&self, world: &World, socket: ActorSocket, plan: TlsPlan) -> Transport {
        match &self.tls {
            None => Transport::plain(socket),
            Some(tls) => tls.client(world, socket, plan),
        }
    }
}

fn client_config(
    provider: &Provider,
    clock: &Clock,
    version: &'static SupportedProtocolVersion,
) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(certificate_der(0)).expect("a certificate");
    let verifier = AnyName(
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider.rustls())
            .build()
            .expect("there is a root"),
    );
    let builder = ClientConfig::builder_with_details(provider.rustls(), Arc::new(clock.clone()));
    let builder = builder.with_protocol_versions(&[version]).expect("there are suites");
    let builder = builder.dangerous().with_custom_certificate_verifier(Arc::new(verifier));
    Arc::new(builder.with_no_client_auth())
}

fn server_config(
    provider: &Provider,
    clock: &Clock,
    version: &'static SupportedProtocolVersion,
    number: usize,
) -> Arc<ServerConfig> {
    let builder = ServerConfig::builder_with_details(provider.rustls(), Arc::new(clock.clone()));
    let builder = builder.with_protocol_versions(&[version]).expect("there are suites");
    let key = PrivateKeyDer::from_pem_slice(certificate(number).1.as_bytes()).expect("a key");
    let builder = builder.with_no_client_auth();
    let built = builder.with_single_cert(vec![certificate_der(number)], key);
    Arc::new(built.expect("the key fits"))
}

/// Verifies certificates for the name of the proxy, whichever name was requested.
#[derive(Debug)]
struct AnyName(Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let name = ServerName::try_from(NAME).expect("a DNS name");
        self.0.verify_server_cert(certificate, intermediates, &name, ocsp, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, certificate, signature)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, certificate, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}

fn certificate_der(number: usize) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(certificate(number).0.as_bytes()).expect("a certificate")
}

/// Returns a certificate and its key, as PEM: number 0 is for [`NAME`] and [`HOST`], number 1 for
/// [`UNKNOWN_NAME`]. Their signatures repeat (Ed25519).
fn certificate(number: usize) -> &'static (String, String) {
    static MADE: OnceLock<[(String, String); 2]> = OnceLock::new();
    let make = |names: &[&str]| {
        // A key of which each byte is 1, as PKCS#8 (RFC 8410 section 7).
        let mut key = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        key.extend([1; 32]);
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).expect("a key");
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let params = CertificateParams::new(names).expect("DNS names");
        (params.self_signed(&key).expect("the key can sign").pem(), key.serialize_pem())
    };
    &MADE.get_or_init(|| [make(&[NAME, HOST]), make(&[UNKNOWN_NAME])])[number]
}

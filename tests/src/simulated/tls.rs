//! The certificate and the settings of TLS in a simulated world.

use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use millrace_config::Config;
use millrace_engine::Address;
use millrace_sim::{ActorSocket, World};
use millrace_tls::{Certificate, Clock, Provider};
use rcgen::{CertificateParams, KeyPair, PKCS_ED25519};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, Connection, RootCertStore, version};

use super::tls_stream::{TlsFault, TlsPlan, TlsStream};
use super::transport::Transport;

/// The name of the proxy in its certificate.
const NAME: &str = "proxy.test";
/// A name that no certificate has.
const UNKNOWN_NAME: &str = "unknown.test";
/// The command-line options that secure a listener. The files are never opened.
pub(super) const OPTIONS: [&str; 4] = ["--certificate", "/sim/chain", "--key", "/sim/key"];

/// TLS of a simulated world. Everything in it repeats for a seed.
pub(super) struct TlsSettings {
    /// The cryptography of the proxy and of the actors.
    pub(super) provider: Provider,
    certificates: Arc<[Certificate]>,
    clock: Clock,
    /// Settings of clients, for TLS 1.3 and for TLS 1.2.
    clients: [Arc<ClientConfig>; 2],
}

impl TlsSettings {
    /// Creates the settings of the world of `seed`.
    pub(super) fn new(seed: u64) -> Self {
        let (provider, clock) = (Provider::deterministic(seed), Clock::default());
        let (chain, key) = certificate();
        let certificate = Certificate::from_pem(chain.as_bytes(), key.as_bytes(), &provider);
        let mut roots = RootCertStore::empty();
        let root = CertificateDer::from_pem_slice(chain.as_bytes()).expect("a certificate");
        roots.add(root).expect("a certificate");
        let roots = Arc::new(roots);
        let clients = [&version::TLS13, &version::TLS12].map(|version| {
            let builder =
                ClientConfig::builder_with_details(provider.rustls(), Arc::new(clock.clone()));
            let builder = builder.with_protocol_versions(&[version]).expect("there are suites");
            Arc::new(builder.with_root_certificates(roots.clone()).with_no_client_auth())
        });
        let certificates = [certificate.expect("the key fits")].into();
        Self { provider, certificates, clock, clients }
    }

    /// Sets the certificates of a configuration, which the program would read from files.
    pub(super) fn set_certificates(&self, config: &mut Config) {
        for tls in config.services.iter_mut().filter_map(|service| service.tls.as_mut()) {
            tls.certificates = Some(self.certificates.clone());
        }
    }

    /// Begins TLS on the connection of a client.
    pub(super) fn client(&self, world: &World, socket: ActorSocket, plan: TlsPlan) -> Transport {
        self.clock.set(world.time_of_day());
        let name = if plan.fault == Some(TlsFault::UnknownName) { UNKNOWN_NAME } else { NAME };
        let name = ServerName::try_from(name).expect("a DNS name");
        let config = self.clients[usize::from(plan.old)].clone();
        let connection = ClientConnection::new(config, name).expect("the settings are complete");
        let connection = Connection::Client(connection);
        let stream = TlsStream::new(connection, self.clock.clone(), plan, world.random());
        Transport::secured(socket, stream)
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

/// Returns the certificate of the proxy and its key, as PEM. Its signatures repeat (Ed25519).
fn certificate() -> &'static (String, String) {
    static MADE: OnceLock<(String, String)> = OnceLock::new();
    MADE.get_or_init(|| {
        // A key of which each byte is 1, as PKCS#8 (RFC 8410 section 7).
        let mut key = vec![0x30, 0x2e, 2, 1, 0, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 4, 0x22, 4, 0x20];
        key.extend([1; 32]);
        let key = PrivatePkcs8KeyDer::from(key);
        let key = KeyPair::from_pkcs8_der_and_sign_algo(&key, &PKCS_ED25519).expect("a key");
        let params = CertificateParams::new([NAME.to_owned()]).expect("a DNS name");
        (params.self_signed(&key).expect("the key can sign").pem(), key.serialize_pem())
    })
}

//! Session tickets that the proxy must not accept.

use std::sync::Arc;

use millrace_tls::{
    Certificate, Clock, Peek, Provider, ServerOptions, ServerSettings, TicketKeys, Versions, peek,
};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection};

/// The origin of a ticket that the proxy must not accept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForeignTicket {
    /// Another service with the same keys.
    OtherService,
    /// The service itself, with keys that were dropped since.
    DroppedKey,
    /// A key that has the name of the current one, but another secret.
    Forged,
}

/// A service that issues tickets for the name of the proxy.
pub(super) struct ForeignService<'a> {
    pub(super) provider: &'a Provider,
    pub(super) clock: &'a Clock,
    pub(super) certificates: &'a [Certificate],
    /// The current keys of the proxy.
    pub(super) keys: &'a TicketKeys,
    /// The name of the service that the proxy runs.
    pub(super) service: &'a str,
}

/// The bytes of the secret of the newest key in [`TicketKeys::to_bytes`] begin here.
const SECRET_AT: usize = 16;

impl ForeignService<'_> {
    /// Completes a handshake with a client of `config`, which keeps the tickets and sends one when
    /// it connects to `name` next.
    pub(super) fn issue(
        &self,
        kind: ForeignTicket,
        old: bool,
        config: &Arc<ClientConfig>,
        name: &ServerName<'static>,
    ) {
        let settings = self.settings(kind, old);
        let client = ClientConnection::new(config.clone(), name.clone());
        let mut client = client.expect("the settings are complete");
        let mut to_server = Vec::new();
        client.write_tls(&mut to_server).expect("a vector takes bytes");
        let Peek::Hello(hello) = peek(&to_server) else { panic!("the ClientHello is complete") };
        let mut server = settings.accept(&hello).expect("every name is accepted");
        while !to_server.is_empty() {
            let (mut plaintext, mut to_client) = (vec![0; 64 * 1024], Vec::new());
            server.open(&mut to_server, &mut plaintext, &mut to_client).expect("no fault");
            let mut rest = &to_client[..];
            while !rest.is_empty() {
                client.read_tls(&mut rest).expect("a slice has bytes");
                client.process_new_packets().expect("no fault");
            }
            to_server.clear();
            while client.wants_write() {
                client.write_tls(&mut to_server).expect("a vector takes bytes");
            }
        }
    }

    fn settings(&self, kind: ForeignTicket, old: bool) -> ServerSettings {
        let options = ServerOptions {
            certificates: self.certificates.to_vec(),
            versions: if old { Versions::Only12 } else { Versions::Only13 },
            ..ServerOptions::default()
        };
        let settings = ServerSettings::new(options, self.provider, self.clock);
        let settings = settings.expect("the provider has suites");
        let (keys, service) = match kind {
            ForeignTicket::OtherService => (self.keys.clone(), "other"),
            ForeignTicket::DroppedKey => {
                let mut keys = TicketKeys::default();
                keys.rotate(self.provider).expect("the provider has randomness");
                (keys, self.service)
            }
            ForeignTicket::Forged => {
                let mut bytes = self.keys.to_bytes();
                bytes[SECRET_AT] ^= 1;
                (TicketKeys::from_bytes(&bytes).expect("the form is unchanged"), self.service)
            }
        };
        settings.set_ticket_keys(&keys, service);
        settings
    }
}

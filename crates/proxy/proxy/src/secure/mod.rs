//! TLS of a worker: cryptography, clock, shared buffers, and how many handshakes it computes in a
//! turn.

pub(crate) mod challenges;
pub(crate) mod client_certificate;
pub(crate) mod failure;
pub(crate) mod layer;
pub(crate) mod tickets;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use millrace_config::OriginTls;
use millrace_engine::Key;
use millrace_tls::{ClientOptions, ClientSettings, Clock, Provider};

use crate::secure::layer::SecureBuffers;

/// TLS of a worker.
#[derive(Debug, Default)]
pub(crate) struct SecureContext {
    /// The time of day for certificates and tickets; set before a handshake is continued.
    pub(crate) clock: Clock,
    pub(crate) buffers: Rc<RefCell<SecureBuffers>>,
    /// The version of the ticket keys that the settings have.
    pub(crate) ticket_version: u64,
    /// Client connections whose handshake is in progress.
    pub(crate) in_progress: usize,
    /// Steps of handshakes computed in this turn; `computed <= COMPUTED_PER_TURN`.
    computed: usize,
    /// Connections whose next flight has arrived and that wait for a later turn, in order. Those
    /// that closed in the meantime are skipped.
    waiting: VecDeque<Key>,
}

/// The most steps of handshakes that a worker computes in a turn: begins, or flights of a client.
/// At 0.1 ms each, a flood of them delays other connections by less than 2 ms.
const COMPUTED_PER_TURN: usize = 16;

impl SecureContext {
    /// Begins a turn.
    pub(crate) fn begin_turn(&mut self) {
        self.computed = 0;
    }

    /// Returns whether a handshake waits for a later turn.
    pub(crate) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Takes the right to compute a step of a handshake in this turn. Without it, the connection
    /// waits in order.
    pub(crate) fn try_compute(&mut self, key: Key) -> bool {
        let is_next = match self.waiting.front() {
            None => true,
            Some(front) => *front == key,
        };
        if !is_next || self.computed >= COMPUTED_PER_TURN {
            if !is_next || self.waiting.is_empty() {
                self.waiting.push_back(key);
            }
            return false;
        }
        self.waiting.pop_front();
        self.computed += 1;
        true
    }

    /// Returns the connection whose handshake is computed next in this turn.
    pub(crate) fn next_waiting(&mut self) -> Option<Key> {
        self.waiting.front().copied().filter(|_| self.computed < COMPUTED_PER_TURN)
    }

    /// Removes the connection that waits for longest, because it has closed.
    pub(crate) fn skip_waiting(&mut self) {
        self.waiting.pop_front();
    }
}

/// Creates the settings of connections to origins. The certificates must have been read.
pub fn client_settings(tls: &OriginTls, provider: &Provider, clock: &Clock) -> ClientSettings {
    let content = tls.content.as_ref().expect("read before workers get the settings");
    let options = ClientOptions {
        roots: content.roots.clone(),
        certificate: content.certificate.clone(),
        alpn: vec![b"http/1.1".to_vec()],
    };
    let settings = ClientSettings::new(options, provider, clock);
    settings.expect("authorities were found when their file was read")
}

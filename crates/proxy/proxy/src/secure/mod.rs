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

use crate::exchange::stage::Event;
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
    /// The cost of the steps of handshakes computed in this turn, in units of 0.1 ms.
    computed: usize,
    /// Connections whose next flight has arrived and that wait for a later turn, in order. Some may
    /// have closed in the meantime.
    waiting: VecDeque<Key>,
}

/// A worker computes steps of handshakes (flights of clients) in a turn until their cost reaches
/// this. So a flood of them delays other connections by about 2 ms.
const COST_PER_TURN: usize = 14;
/// The cost of a step: a key exchange, and a signature with a short key.
const COST: usize = 1;
/// The cost of a step with an RSA signature.
const RSA_COST: usize = 7;

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
    /// waits in order, and gets [`Event::CapacityFreed`] when its turn has come. Meanwhile it
    /// receives nothing, so it waits only once.
    pub(crate) fn try_compute(&mut self, key: Key, event: Event, signs_by_rsa: bool) -> bool {
        let is_next = event == Event::CapacityFreed || self.waiting.is_empty();
        if !is_next || self.computed >= COST_PER_TURN {
            self.waiting.push_back(key);
            return false;
        }
        self.computed += if signs_by_rsa { RSA_COST } else { COST };
        true
    }

    /// Takes the connection whose handshake is computed next in this turn.
    pub(crate) fn take_waiting(&mut self) -> Option<Key> {
        if self.computed >= COST_PER_TURN {
            return None;
        }
        self.waiting.pop_front()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many handshakes are computed in a turn.
    fn computed(context: &mut SecureContext, signs_by_rsa: bool) -> usize {
        context.begin_turn();
        let mut count = 0;
        while let Some(key) = context.take_waiting() {
            assert!(context.try_compute(key, Event::CapacityFreed, signs_by_rsa));
            count += 1;
        }
        count
    }

    #[test]
    fn a_turn_computes_few_handshakes_in_order_and_fewer_with_rsa() {
        let mut context = SecureContext::default();
        let keys = (0..60).map(|slot| Key { slot, generation: 1 });
        let at_once = keys.filter(|key| context.try_compute(*key, Event::ClientReadable, false));
        assert_eq!(at_once.last().map(|key| key.slot), Some(13));
        assert_eq!(context.waiting.len(), 46);
        assert_eq!(computed(&mut context, false), 14);
        assert_eq!(context.waiting.front().map(|key| key.slot), Some(28));
        assert_eq!(computed(&mut context, true), 2);
        assert_eq!(context.waiting.len(), 30);
        let late = Key { slot: 99, generation: 1 };
        context.begin_turn();
        assert!(!context.try_compute(late, Event::ClientReadable, false), "others wait longer");
        assert_eq!(context.waiting.back(), Some(&late));
    }
}

//! The messages that the supervisor and other workers send to a worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_config::Config;
use millrace_engine::Token;

use crate::counters::Counters;

/// A message to a worker; `D` is its engine's detached descriptor.
#[derive(Debug)]
pub enum WorkerMessage<D> {
    /// Accept no more, finish what is under way, end.
    Drain,
    /// As [`WorkerMessage::Drain`], but a successor accepts from the same listeners. What is queued behind
    /// them is left to it at once, and idle clients are not closed while their next request may be
    /// on its way.
    HandOff,
    /// Another process with the same listeners is gone: poll them again, since the kernel may have
    /// reported a connection to that process only.
    RepollListeners,
    /// Count this message, to show that the worker turns.
    Heartbeat,
    /// The time for draining is over: end what is left.
    Stop,
    /// Switch to this configuration.
    Configure {
        /// The snapshot; nothing happens unless its number is above that of the one in force.
        config: Arc<Config>,
        /// The sockets of listeners that are new in it: the listener's number, and the socket.
        sockets: Vec<(u16, D)>,
    },
    /// Wake an exchange or a fill that waits for something in the cache.
    Wake(Token),
    /// A client connection that another worker accepted.
    Connection {
        /// The socket.
        socket: D,
        /// The address it came from; `None`: a Unix socket.
        peer: Option<SocketAddr>,
        /// The listener's number.
        listener: u16,
        /// The number of the sender's snapshot, which knows the listener. A receiver with an older
        /// one reads its configuration first.
        snapshot: u64,
        /// Counts it at the receiver until this message is read.
        counted: HandoverGuard,
    },
}

/// A connection on its way to another worker, counted there until this is dropped.
#[derive(Debug)]
pub struct HandoverGuard(Arc<Counters>);

impl HandoverGuard {
    /// Counts a connection on its way to the worker with these counters.
    pub fn new(receiver: &Arc<Counters>) -> Self {
        receiver.handed_over.fetch_add(1, Ordering::Relaxed);
        Self(receiver.clone())
    }
}

impl Drop for HandoverGuard {
    fn drop(&mut self) {
        self.0.handed_over.fetch_sub(1, Ordering::Relaxed);
    }
}

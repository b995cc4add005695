//! Messages from the supervisor and from other workers to a worker.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_config::Config;
use millrace_engine::Token;

use crate::counters::Counters;

/// A message to a worker. `D` is the detached descriptor of its engine.
#[derive(Debug)]
pub enum WorkerMessage<D> {
    /// Stop accepting, finish the exchanges in progress, then end.
    Drain,
    /// Like [`WorkerMessage::Drain`], but a successor accepts from the same listeners. The worker
    /// leaves the connections queued in the kernel to the successor at once. It keeps idle clients
    /// open as long as their next request may be on its way.
    HandOff,
    /// Another process that shared the listeners has gone. Poll them again: the kernel may have
    /// reported a connection to that process only.
    RepollListeners,
    /// Count this message, to show that the worker's loop runs.
    Heartbeat,
    /// The time for draining is over: end everything that is left.
    Stop,
    /// Switch to this configuration.
    Configure {
        /// The new configuration. Ignored unless its number is higher than that of the one in
        /// force.
        config: Arc<Config>,
        /// The sockets of the listeners that are new in this configuration, each with the
        /// listener's number.
        sockets: Vec<(u16, D)>,
    },
    /// Wake an exchange or a fill that waits for the cache.
    Wake(Token),
    /// A client connection that another worker accepted.
    Connection {
        /// The socket.
        socket: D,
        /// The address of the peer. `None` for a Unix socket.
        peer: Option<SocketAddr>,
        /// The number of the listener that accepted the connection.
        listener: u16,
        /// The number of the sender's configuration. A receiver with an older configuration may not
        /// know the listener, and waits for the newer configuration first.
        snapshot: u64,
        /// Counts the connection at the receiver until the message is read.
        counted: HandoverGuard,
    },
}

/// Counts a connection on its way to another worker, in that worker's counters, until it is
/// dropped.
#[derive(Debug)]
pub struct HandoverGuard(Arc<Counters>);

impl HandoverGuard {
    /// Counts a connection on its way to the worker that has these counters.
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

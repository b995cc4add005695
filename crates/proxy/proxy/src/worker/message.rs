//! What workers, and the supervisor, tell a worker through its mailboxes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_config::Config;
use millrace_engine::Token;

use crate::counters::Counters;

/// A message to a worker; `D` is its engine's detached descriptor.
#[derive(Debug)]
pub enum Letter<D> {
    /// Accept no more, finish what is under way, end.
    Drain,
    /// As [`Letter::Drain`], but somebody else goes on at the same listeners: what is queued behind
    /// them is left to that one, at once, and idle clients are not closed while their next request
    /// may be on its way.
    Cede,
    /// Somebody who had the same listeners is gone: look whether a connection is left there that
    /// only that one was told of.
    Rearm,
    /// Count this letter, to show that the worker turns.
    Beat,
    /// The time for draining is over: break off what is left.
    Stop,
    /// Go on under this configuration.
    Configure {
        /// The snapshot; nothing happens unless its number is above that of the one in force.
        config: Arc<Config>,
        /// The sockets of listeners that are new in it: the listener's number, and the socket.
        sockets: Vec<(u16, D)>,
    },
    /// What an exchange or a fill waits for in the cache has come.
    Wake(Token),
    /// A client connection that another worker accepted.
    Connection {
        /// The socket.
        socket: D,
        /// The address it came from; `None`: a Unix socket.
        peer: Option<SocketAddr>,
        /// The listener's number.
        listener: u16,
        /// The number of the sender's snapshot, which knows the listener. A receiver that is behind
        /// hears of it first.
        snapshot: u64,
        /// Counts it at the receiver until this letter is read.
        counted: HandedOver,
    },
}

/// A connection on its way to another worker, counted there until this is dropped.
#[derive(Debug)]
pub struct HandedOver(Arc<Counters>);

impl HandedOver {
    /// Counts a connection on its way to the worker with these counters.
    pub fn new(receiver: &Arc<Counters>) -> Self {
        receiver.handed_over.fetch_add(1, Ordering::Relaxed);
        Self(receiver.clone())
    }
}

impl Drop for HandedOver {
    fn drop(&mut self) {
        self.0.handed_over.fetch_sub(1, Ordering::Relaxed);
    }
}

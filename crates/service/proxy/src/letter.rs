//! What workers, and the supervisor, tell a worker through its mailboxes.

use std::net::SocketAddr;

/// A message to a worker; `D` is its engine's detached descriptor.
#[derive(Debug)]
pub enum Letter<D> {
    /// Accept no more, finish what is under way, end.
    Drain,
    /// The time for draining is over: break off what is left.
    Stop,
    /// A client connection that another worker accepted.
    Connection {
        /// The socket.
        socket: D,
        /// The address it came from; `None`: a Unix socket.
        peer: Option<SocketAddr>,
        /// Index of the listener in the configuration.
        listener: u16,
    },
}

//! The operations on sockets that the resolver requests, and their results. This crate has no
//! sockets.

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_engine::{Instant, Token};

use super::error::NameError;

/// An operation on the socket of one query, which its token identifies. A query has one socket at a
/// time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketOperation {
    /// Open a UDP socket connected to this name server.
    OpenUdp(SocketAddr),
    /// Open a TCP connection to this name server.
    OpenTcp(SocketAddr),
    /// Send all of these bytes: one datagram, or bytes of a stream.
    Send(Box<[u8]>),
    /// Receive a datagram or bytes of a stream, at most this many bytes. There is one receive
    /// operation at a time.
    Receive(usize),
    /// Close the socket if it is open. No later event of it may be reported.
    Close,
}

/// The result of a [`SocketOperation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketEvent<'a> {
    /// The socket is open.
    Opened,
    /// The kernel accepted all bytes of the last send.
    Sent,
    /// A datagram, or all bytes received from a stream since it was opened.
    Received(&'a [u8]),
    /// The peer closed the stream.
    Ended,
    /// The socket could not be opened, or failed.
    Failed(NameError),
}

/// The environment of a query during one call.
pub(super) struct LookupContext<'a> {
    pub(super) now: Instant,
    /// Returns a new, unpredictable number in each call.
    pub(super) random: &'a mut dyn FnMut() -> u64,
    /// Operations that the caller has not executed.
    pub(super) operations: &'a mut VecDeque<(Token, SocketOperation)>,
}

impl LookupContext<'_> {
    pub(super) fn queue(&mut self, token: Token, operation: SocketOperation) {
        self.operations.push_back((token, operation));
    }
}

//! What this crate wants of whoever has sockets, and what it is told of them. It has none itself.

use std::collections::VecDeque;
use std::net::SocketAddr;

use millrace_engine::{Instant, Token};

use super::error::NameError;

/// What is to be done for the socket of one question, which its token names. A question has one
/// socket at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SocketOperation {
    /// Open a socket that is connected to this name server over UDP.
    OpenUdp(SocketAddr),
    /// Open a connection to this name server.
    OpenTcp(SocketAddr),
    /// Send all of it: a datagram, or the bytes of a stream.
    Send(Box<[u8]>),
    /// Receive a datagram or some bytes, at most so many. One receive is asked for at a time.
    Receive(usize),
    /// Close the socket, if it is open. Nothing of it is to be told from then on.
    Close,
}

/// What became of an [`Order`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SocketEvent<'a> {
    /// The socket is open.
    Opened,
    /// The bytes of the last send are the kernel's.
    Sent,
    /// A datagram; or all that a stream has brought since it was opened.
    Received(&'a [u8]),
    /// The stream has ended.
    Ended,
    /// The socket cannot be opened, or broke.
    Failed(NameError),
}

/// What a question works with for the time of one call.
pub(super) struct LookupContext<'a> {
    pub(super) now: Instant,
    /// Gives a new number at each call, which nobody can foretell.
    pub(super) random: &'a mut dyn FnMut() -> u64,
    /// Orders that nobody has carried out yet.
    pub(super) operations: &'a mut VecDeque<(Token, SocketOperation)>,
}

impl LookupContext<'_> {
    pub(super) fn queue(&mut self, token: Token, order: SocketOperation) {
        self.operations.push_back((token, order));
    }
}

//! Completions that nobody waits for any more.

use millrace_engine::Token;

/// A completion of a descriptor that was closed since.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Stale {
    pub(crate) token: Token,
    /// What the kernel had done when the descriptor was closed.
    pub(crate) did: Did,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Did {
    Received(Vec<u8>),
    ReceivedError,
    Sent,
    NotConnected,
}

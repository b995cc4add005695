//! Completions of descriptors that were closed.

use millrace_engine::Token;

use crate::descriptor::{Operation, Then, Work};

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

impl Stale {
    /// The completion of an operation whose descriptor is closed, if there may be one; `arrived`
    /// are the first bytes that its descriptor had not read.
    pub(crate) fn of(operation: &Operation, arrived: Vec<u8>) -> Option<Self> {
        let did = match operation.work {
            Work::Receive { max } if arrived.len() <= max => Did::Received(arrived),
            Work::Receive { .. } => Did::ReceivedError,
            Work::Send { then: Then::Nothing, .. } => Did::Sent,
            Work::Connect => Did::NotConnected,
            _ => return None,
        };
        Some(Self { token: operation.token, did })
    }
}

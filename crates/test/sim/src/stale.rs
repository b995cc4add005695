//! Completions of descriptors that were closed.

use millrace_engine::Token;

use crate::descriptor::{AfterSend, Operation, OperationKind};

/// A completion of a descriptor that has been closed.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StaleCompletion {
    pub(crate) token: Token,
    /// The result with which the operation completes although the descriptor is closed.
    pub(crate) outcome: StaleOutcome,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum StaleOutcome {
    Received(Vec<u8>),
    ReceivedError,
    Sent,
    NotConnected,
}

impl StaleCompletion {
    /// Returns the completion of an operation whose descriptor is closed, if it may have one.
    /// `arrived` are the first bytes that the descriptor had not read.
    pub(crate) fn from_operation(operation: &Operation, arrived: Vec<u8>) -> Option<Self> {
        let outcome = match operation.kind {
            OperationKind::Receive { max } if arrived.len() <= max => {
                StaleOutcome::Received(arrived)
            }
            OperationKind::Receive { .. } => StaleOutcome::ReceivedError,
            OperationKind::Send { then: AfterSend::Nothing, .. } => StaleOutcome::Sent,
            OperationKind::Connect => StaleOutcome::NotConnected,
            _ => return None,
        };
        Some(Self { token: operation.token, outcome })
    }
}

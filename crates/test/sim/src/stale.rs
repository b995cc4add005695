//! Completions of descriptors that were closed.

use millrace_engine::Token;

use crate::descriptor::{AfterSend, Operation, OperationKind};

/// A completion of a descriptor that was closed since.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct StaleCompletion {
    pub(crate) token: Token,
    /// What the kernel had done when the descriptor was closed.
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
    /// The completion of an operation whose descriptor is closed, if there may be one; `arrived`
    /// are the first bytes that its descriptor had not read.
    pub(crate) fn from_operation(operation: &Operation, arrived: Vec<u8>) -> Option<Self> {
        let did = match operation.kind {
            OperationKind::Receive { max } if arrived.len() <= max => {
                StaleOutcome::Received(arrived)
            }
            OperationKind::Receive { .. } => StaleOutcome::ReceivedError,
            OperationKind::Send { then: AfterSend::Nothing, .. } => StaleOutcome::Sent,
            OperationKind::Connect => StaleOutcome::NotConnected,
            _ => return None,
        };
        Some(Self { token: operation.token, outcome: did })
    }
}

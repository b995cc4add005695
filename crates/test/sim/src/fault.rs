//! Faults planted into an engine, to check that the tests detect them (docs/design/testing.md).
//! Each breaks one guarantee on which workers rely: of the engine, of pipes, of tokens, of
//! wake-ups, or of connections that are handed over. The worker itself is the code of the product.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millrace_engine::Token;

/// A fault that [`World::plant_fault`](crate::World::plant_fault) gives to the engines of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineFault {
    /// Wake-ups do not reach the workers, as if mailboxes did not wake their receivers.
    WakeLost,
    /// When another object takes the slot of a closed one, a receive of the closed one completes
    /// with the token of the new object, as if tables ignored generations.
    StaleToken,
    /// If a splice leaves exactly one byte in a pipe, this byte is lost and reported as sent.
    PipeByteLost,
    /// Bytes that a splice left in a pipe, or that were in it when it was closed, come out of the
    /// pipe that is filled next.
    DirtyPipe,
    /// A connection that a full mailbox returns to its worker is lost.
    HandOverLost,
    /// The descriptor of a failed attempt to connect to an origin cannot be closed.
    FailedConnectLeaks,
    /// The descriptor of an attempt to connect to an origin cannot be closed before the attempt
    /// ends.
    AbandonedConnectLeaks,
}

impl EngineFault {
    /// All faults.
    pub const ALL: [Self; 7] = [
        Self::WakeLost,
        Self::StaleToken,
        Self::PipeByteLost,
        Self::DirtyPipe,
        Self::HandOverLost,
        Self::FailedConnectLeaks,
        Self::AbandonedConnectLeaks,
    ];
}

/// The fault of one engine, if it has one, and its state.
#[derive(Debug, Default)]
pub(crate) struct PlantedFault {
    pub(crate) fault: Option<EngineFault>,
    /// The tokens of closed descriptors that had a receive outstanding, by kind and slot.
    pub(crate) closed: BTreeMap<(u8, u32), Token>,
    /// Tokens of objects that took the slot of a closed descriptor with a receive outstanding. That
    /// receive completes with this token.
    pub(crate) stale: VecDeque<Token>,
    /// The splices from pipes, by token: the pipe's reading end, and the number of bytes requested.
    pub(crate) splices: BTreeMap<Token, (u32, usize)>,
    /// Bytes that were left in a pipe. They come out of the pipe that is filled next.
    pub(crate) dirt: Vec<u8>,
    /// Connections that were detached here. They are lost if they return.
    pub(crate) detached: BTreeSet<u32>,
    /// Attempts to connect to origins that have not ended, by token.
    pub(crate) connects: BTreeMap<Token, u32>,
    /// Descriptors of failed attempts.
    pub(crate) failed: BTreeSet<u32>,
}

impl PlantedFault {
    pub(crate) fn new(fault: Option<EngineFault>) -> Self {
        Self { fault, ..Self::default() }
    }

    pub(crate) fn has(&self, fault: EngineFault) -> bool {
        self.fault == Some(fault)
    }

    /// Records that an operation begins for the object of `token`. If the object took the slot of a
    /// closed one, queues the stale receive.
    pub(crate) fn begin(&mut self, token: Token) {
        if let Some(closed) = self.closed.remove(&slot_of(token))
            && closed != token
        {
            self.stale.push_back(token);
        }
    }

    /// Records that up to `max` bytes begin to move from the pipe whose reading end is `from`.
    pub(crate) fn begin_splice(&mut self, from: u32, max: usize, token: Token) {
        if self.has(EngineFault::PipeByteLost) || self.has(EngineFault::DirtyPipe) {
            self.splices.insert(token, (from, max));
        }
    }

    /// Returns whether the fault keeps the descriptor open when the worker closes it. Forgets a
    /// failed attempt.
    pub(crate) fn skip_close(&mut self, number: u32) -> bool {
        match self.fault {
            Some(EngineFault::FailedConnectLeaks) => self.failed.remove(&number),
            Some(EngineFault::AbandonedConnectLeaks) => {
                self.connects.values().any(|connecting| *connecting == number)
            }
            _ => false,
        }
    }
}

/// Returns the kind and the slot of a token.
pub(crate) fn slot_of(token: Token) -> (u8, u32) {
    (token.kind() as u8, token.slot())
}

//! The bugs that an engine can have on purpose, to see whether a test notices them
//! (docs/design/faults.md). Each breaks one promise: of the engine, of the pipes, or of what workers
//! build on tokens, wake-ups and handed-over connections. The worker above is the product's own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use millrace_engine::Token;

/// A bug that [`World::plant`](crate::World::plant) gives to the engines of a world.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EngineFault {
    /// Wake-ups reach no worker, as if mailboxes forgot to wake their receivers.
    WakeLost,
    /// The receive of a closed descriptor ends once another object has the slot, and with the token
    /// of that object, as if tables ignored generations.
    StaleToken,
    /// If one byte is left in a pipe, it is lost and reported as sent.
    PipeByteLost,
    /// The bytes that a splice left in a pipe, or that were in it when it was closed, come out of the
    /// pipe that is filled next.
    DirtyPipe,
    /// A connection that a full mailbox gives back to its worker is lost.
    HandOverLost,
    /// The descriptor of a failed attempt to connect to an origin cannot be closed.
    FailedConnectLeaks,
    /// The descriptor of an attempt to connect to an origin cannot be closed before the attempt
    /// ends.
    AbandonedConnectLeaks,
}

impl EngineFault {
    /// All of them.
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

/// The fault of one engine, if it has one, and what it takes to play it.
#[derive(Debug, Default)]
pub(crate) struct PlantedFault {
    pub(crate) fault: Option<EngineFault>,
    /// The objects, by kind and slot, whose descriptors were closed with a receive outstanding.
    pub(crate) closed: BTreeMap<(u8, u32), Token>,
    /// The objects that have their slots now, for which those receives end.
    pub(crate) stale: VecDeque<Token>,
    /// The splices out of pipes, by token: the pipe's reading end, and the bytes asked for.
    pub(crate) splices: BTreeMap<Token, (u32, usize)>,
    /// What was left in a pipe since a pipe was last filled.
    pub(crate) dirt: Vec<u8>,
    /// Connections that were detached here, and are lost if they come back.
    pub(crate) detached: BTreeSet<u32>,
    /// The attempts to connect to origins that have not ended, by token.
    pub(crate) connects: BTreeMap<Token, u32>,
    /// The descriptors of attempts that failed.
    pub(crate) failed: BTreeSet<u32>,
}

impl PlantedFault {
    pub(crate) fn new(fault: Option<EngineFault>) -> Self {
        Self { fault, ..Self::default() }
    }

    pub(crate) fn has(&self, fault: EngineFault) -> bool {
        self.fault == Some(fault)
    }

    /// Something begins for the object that `token` names.
    pub(crate) fn begin(&mut self, token: Token) {
        if let Some(closed) = self.closed.remove(&slot_of(token))
            && closed != token
        {
            self.stale.push_back(token);
        }
    }

    /// Up to `max` bytes of the pipe whose reading end is `from` begin to move to a socket.
    pub(crate) fn begin_splice(&mut self, from: u32, max: usize, token: Token) {
        if self.has(EngineFault::PipeByteLost) || self.has(EngineFault::DirtyPipe) {
            self.splices.insert(token, (from, max));
        }
    }

    /// Whether closing the descriptor has no effect.
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

/// The table and the index in it.
pub(crate) fn slot_of(token: Token) -> (u8, u32) {
    (token.kind() as u8, token.slot())
}

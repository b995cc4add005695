//! The table of a worker's connections to programs. `program_events.rs` opens them and receives on
//! them.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;

use iolite::ProgramConnection;
use millrace_engine::{Fd, Key, Table, TimerId};

/// The connections of a worker to programs.
#[derive(Debug)]
pub(crate) struct ProgramTable {
    pub(super) connections: Table<ProgramConn>,
    /// Connections with requests of this turn.
    sent: Vec<Key>,
}

/// A connection to a program.
#[derive(Debug)]
pub(crate) struct ProgramConn {
    pub(super) channel: ProgramConnection,
    pub(super) path: Arc<Path>,
    /// The engine's descriptor of the socket.
    pub(super) fd: Fd,
    /// Whether a poll of `fd` is outstanding.
    pub(super) is_polled: bool,
    /// Whether the program has responded to a request.
    pub(super) has_responded: bool,
    /// The exchanges that wait for room for their requests; possibly some that have ended.
    pub(super) waiting: VecDeque<Key>,
    /// When responses are received again, which would exceed the memory of the program.
    pub(super) retry: Option<TimerId>,
}

impl ProgramTable {
    pub(super) fn get_mut(&mut self, slot: Key) -> Option<&mut ProgramConn> {
        self.connections.get_mut(slot)
    }

    /// Notes that a request was sent to a program, or waits for it.
    pub(super) fn note_sent(&mut self, slot: Key) {
        if self.sent.last() != Some(&slot) {
            self.sent.push(slot);
        }
    }

    /// Returns a connection that [`settle`](super::program_events::settle) has to look at before
    /// the worker waits.
    #[inline]
    pub(crate) fn next_unsettled(&mut self) -> Option<Key> {
        self.sent.pop()
    }
}

impl ProgramConn {
    /// Lets an exchange wait for room, before the others if it has waited already.
    pub(super) fn enqueue(&mut self, exchange: Key, has_waited: bool) {
        match has_waited {
            true => self.waiting.push_front(exchange),
            false => self.waiting.push_back(exchange),
        }
    }

    /// Lets an exchange leave the queue if it is the first.
    pub(super) fn take_turn(&mut self, exchange: Key) -> bool {
        let is_first = self.waiting.front() == Some(&exchange);
        if is_first {
            self.waiting.pop_front();
        }
        is_first
    }
}

impl Default for ProgramTable {
    fn default() -> Self {
        Self { connections: Table::new(PROGRAMS_MAX), sent: Vec::new() }
    }
}

/// The most programs of a configuration and the one before it.
const PROGRAMS_MAX: u32 = 1024;

//! Counters of a client, which no call waits for.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::service::message::Refusal;

/// Where the bytes came from that a [`FileClient`](crate::service::FileClient) has returned.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct ClientStats {
    /// Calls whose bytes were all here already.
    pub kept: u64,
    /// Responses of the daemon with memory.
    pub received: u64,
    /// Responses of the daemon without memory.
    pub refused: u64,
    /// Calls whose bytes were copied by the kernel.
    pub copied: u64,
    /// Calls whose bytes went from one process to the other through a channel.
    pub passed: u64,
    /// The last refusal.
    pub last_refusal: Option<Refusal>,
}

/// The counters of a client.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// By [`Count`].
    counts: [AtomicU64; 5],
    last_refusal: Mutex<Option<Refusal>>,
}

/// The fields of [`ClientStats`] that are counted.
#[derive(Clone, Copy, Debug)]
pub(super) enum Count {
    Kept,
    Received,
    Refused,
    Copied,
    Passed,
}

impl Counters {
    pub(super) fn count(&self, count: Count) {
        self.counts[count as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_refusal(&self, refusal: Refusal) {
        self.count(Count::Refused);
        *self.last_refusal.lock().expect("no holder of this lock panics") = Some(refusal);
    }

    pub(super) fn stats(&self) -> ClientStats {
        let count = |count: Count| self.counts[count as usize].load(Ordering::Relaxed);
        ClientStats {
            kept: count(Count::Kept),
            received: count(Count::Received),
            refused: count(Count::Refused),
            copied: count(Count::Copied),
            passed: count(Count::Passed),
            last_refusal: *self.last_refusal.lock().expect("no holder of this lock panics"),
        }
    }
}

//! The memory that the processes of each user hold.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::memory::Memory;

/// The memory that was passed to processes of each user, as far as a client may hold it. The kernel
/// does not show which process holds memory, so each user that has got it is charged.
#[derive(Debug)]
pub(crate) struct MemoryOfUsers {
    bytes_max: u64,
    /// By user id.
    holdings: HashMap<u32, Holdings>,
}

#[derive(Debug, Default)]
struct Holdings {
    /// By their ids.
    memories: HashMap<u64, (Weak<Memory>, u64)>,
    bytes: u64,
    examined_at: Option<Instant>,
}

/// Examining all memory of a user takes some microseconds each.
const EXAMINE_AFTER: Duration = Duration::from_millis(100);

impl MemoryOfUsers {
    /// Creates the table; each user may hold `bytes_max` bytes.
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, holdings: HashMap::new() }
    }

    /// Charges memory to a user, unless it was already. Returns whether the user may have it.
    pub(crate) fn charge(&mut self, user: u32, memory: &Arc<Memory>) -> bool {
        let holdings = self.holdings.entry(user).or_default();
        if holdings.memories.contains_key(&memory.id()) {
            return true;
        }
        let fits = |held: &Holdings| held.bytes + memory.bytes() <= self.bytes_max;
        if !fits(holdings) {
            holdings.examine();
        }
        if fits(holdings) {
            holdings.bytes += memory.bytes();
            holdings.memories.insert(memory.id(), (Arc::downgrade(memory), memory.bytes()));
            return true;
        }
        false
    }
}

impl Holdings {
    /// Removes the memory that no client holds.
    fn examine(&mut self) {
        if self.examined_at.is_some_and(|at| at.elapsed() < EXAMINE_AFTER) {
            return;
        }
        self.memories.retain(|_, (memory, bytes)| {
            let is_held = memory.upgrade().is_some_and(|memory| memory.is_held());
            if !is_held {
                self.bytes -= *bytes;
            }
            is_held
        });
        self.examined_at = Some(Instant::now());
    }
}

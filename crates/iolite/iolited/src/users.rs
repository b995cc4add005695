//! The memory that the processes of each user hold.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use crate::budget::Reserved;
use crate::memory::Memory;

/// The memory that was passed to processes of each user, as far as a client may hold it. The kernel
/// does not show which process holds memory, so each user that has got it is charged.
#[derive(Debug, Default)]
pub(crate) struct MemoryOfUsers {
    /// By user id.
    users: HashMap<u32, Holdings>,
}

#[derive(Debug, Default)]
struct Holdings {
    /// By the ids of memory.
    memories: HashMap<u64, Holding>,
    /// The bytes of the holdings that are charged.
    bytes: u64,
    examined_at: Option<Instant>,
}

/// Memory that a user has got and that the kernel has not freed.
#[derive(Debug)]
struct Holding {
    memory: Weak<Memory>,
    /// It ends when the kernel has freed the memory.
    reserved: Weak<Reserved>,
    bytes: u64,
    is_charged: bool,
}

/// Examining all memory of a user takes some microseconds each.
const EXAMINE_AFTER: Duration = Duration::from_millis(100);

impl MemoryOfUsers {
    /// Charges memory of the daemon to a user, unless it was already. Returns whether the user may
    /// have it, which is the case up to `bytes_max` bytes.
    pub(crate) fn charge(&mut self, user: u32, memory: &Arc<Memory>, bytes_max: u64) -> bool {
        let holdings = self.users.entry(user).or_default();
        let id = memory.id();
        if !memory.is_of_daemon() || holdings.memories.get(&id).is_some_and(|of| of.is_charged) {
            return true;
        }
        let bytes = memory.reserved().bytes();
        let fits = |held: &Holdings| held.bytes + bytes <= bytes_max;
        if !fits(holdings) {
            holdings.examine();
        }
        if !fits(holdings) {
            return false;
        }
        holdings.bytes += bytes;
        let (memory, reserved) = (Arc::downgrade(memory), Arc::downgrade(memory.reserved()));
        let holding = Holding { memory, reserved, bytes, is_charged: true };
        holdings.memories.insert(id, holding);
        true
    }
}

impl Holdings {
    /// Stops charging the memory that no client holds. Memory that the daemon has dropped is held
    /// until the kernel has freed it.
    fn examine(&mut self) {
        if self.examined_at.is_some_and(|at| at.elapsed() < EXAMINE_AFTER) {
            return;
        }
        self.memories.retain(|_, holding| holding.reserved.strong_count() > 0);
        for holding in self.memories.values_mut() {
            holding.is_charged = holding.memory.upgrade().is_none_or(|memory| memory.is_held());
        }
        let charged = self.memories.values().filter(|holding| holding.is_charged);
        self.bytes = charged.map(|holding| holding.bytes).sum();
        self.examined_at = Some(Instant::now());
    }
}

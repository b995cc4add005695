//! The replacement of iolited, as long as no client holds a piece.

// The daemon is no library.
#[path = "../../../../iolite/iolited/src/replacement.rs"]
#[allow(dead_code, reason = "no piece is held here")]
mod replacement;

use std::collections::HashMap;

use self::replacement::{LastUse, Uses};
use super::peers::{ComparedPolicy, LRU, PolicyRole, S3_FIFO, SIEVE, SizedCache};

/// The policies that are compared for iolited's cache of pieces: its own first, then that of the
/// paper if no piece is referenced.
pub const PIECE_POLICIES: &[ComparedPolicy] = &[
    ComparedPolicy {
        name: "iolited",
        role: PolicyRole::Judged,
        make: |capacity, _| Box::new(IolitedPolicy::new(capacity)),
    },
    LRU,
    SIEVE,
    S3_FIFO,
];

/// The policy of iolited.
#[derive(Debug)]
struct IolitedPolicy {
    uses: Uses<u32>,
    /// The last use and the bytes of each object.
    entries: HashMap<u32, (LastUse, u64)>,
    used: u64,
    capacity: u64,
}

impl IolitedPolicy {
    fn new(capacity: u64) -> Self {
        Self { uses: Uses::default(), entries: HashMap::new(), used: 0, capacity }
    }
}

impl SizedCache for IolitedPolicy {
    fn get(&mut self, object: u32) -> bool {
        let Some((last, _)) = self.entries.get_mut(&object) else { return false };
        *last = self.uses.repeat(object, *last);
        true
    }

    fn insert(&mut self, object: u32, size: u64) {
        while self.used + size > self.capacity {
            let order = self.uses.order(self.capacity);
            let evicted = order.into_iter().find_map(|kind| self.uses.oldest(kind));
            let evicted = evicted.expect("an object of no more than the capacity");
            let (last, bytes) = self.entries.remove(&evicted).expect("each use has its entry");
            self.uses.remove(last);
            self.used -= bytes;
        }
        self.entries.insert(object, (self.uses.add(object, size), size));
        self.used += size;
    }
}

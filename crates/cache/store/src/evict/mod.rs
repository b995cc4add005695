//! The eviction policy: S3-FIFO, extended by object sizes and by a learned share for new entries.
//!
//! An [`Eviction`] decides for one shard of the cache which objects are worth storing and which one
//! to evict. It has no objects, clock or lock: the index names entries by its own handles, passes
//! the time, and frees the handles that [`Eviction::evict`] returns.
//!
//! ```text
//!            evicted or refused shortly before              hit meanwhile
//!          ┌──────────────────────────────────┐          ┌───────────────┐
//!          │                                  v          v               │
//!   admit ─┼──> probation ─── hit ─────────> main ──── next victim ──────┤
//!          │        │                                                    │
//!          v        v no hit                                             v no hit
//!        ghost <────┴────────────────────────────────────────────────────┘
//! ```
//!
//! A hit increments a counter of the entry, up to three, and moves nothing. Age and size decide
//! which entry is evicted next (`queue`). An evicted object leaves a fingerprint (`ghost`) that
//! recognises it when it is requested again. docs/design/cache.md has the reasons, and the miss
//! ratios beside those of other policies.
//!
//! ```
//! use millrace_store::evict::{Eviction, NEVER};
//!
//! let (capacity, now) = (100_000, 0);
//! let mut eviction = Eviction::new(capacity);
//! for handle in 0..50 {
//!     let (key, size) = (u64::from(handle) << 32, 3_000);
//!     if eviction.admit(key, size) {
//!         eviction.insert(handle, key, size, NEVER);
//!         while eviction.bytes() > capacity {
//!             let evicted = eviction.evict(now).expect("entries can be evicted");
//!             assert_ne!(evicted, handle);
//!         }
//!     }
//! }
//! ```

mod entry;
mod ghost;
mod queue;
mod shards;
mod shared_state;

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use entry::{EvictionEntry, QueueKind};
use ghost::{EvictedFrom, Ghost, GhostSlot};
use queue::{EvictionQueue, NONE, Weights};
use shared_state::SharedState;

pub use shards::SHARDS_MAX;

/// The number of shards that may be skipped before one has to evict an entry: see
/// [`Eviction::evict_if_ripe`].
pub const SHARDS_SKIPPED_MAX: usize = 1;

/// The expiry of an entry that never expires.
pub const NEVER: u32 = u32::MAX;

/// The eviction policy of one shard: see the module. Protected by the shard's lock; a hit needs
/// only a shared borrow.
#[derive(Debug)]
pub struct Eviction {
    /// Indexed by handle.
    entries: Vec<EvictionEntry>,
    probation: EvictionQueue,
    main: EvictionQueue,
    probation_weights: Weights,
    main_weights: Weights,
    ghost: Ghost,
    /// The state that all shards share.
    shared: Arc<SharedState>,
    /// Whether there are other shards.
    has_others: bool,
    /// Entries inserted so far. It wraps.
    inserts: u32,
    /// Bytes that all shards may hold together.
    capacity: u64,
    stats: EvictionStats,
}

/// The entries of an [`Eviction`], and its decisions since it was created.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EvictionStats {
    /// Entries held.
    pub entries: u64,
    /// Objects refused because they were large and not requested shortly before, or larger than the
    /// capacity.
    pub refused: u64,
    /// Entries that were inserted into the main queue, because they were evicted or refused shortly
    /// before.
    pub promoted: u64,
    /// Entries evicted, including expired ones.
    pub evicted: u64,
    /// Entries evicted because they had expired.
    pub expired: u64,
}

/// The maximum of an entry's hit counter. Two bits suffice to distinguish an object that is
/// requested now and then from one that is requested all the time.
const HITS_MAX: u8 = 3;
/// The maximum number of hit entries that one eviction moves to main instead of evicting them. The
/// next entry is evicted regardless of its hits. This bounds the work under the shard's lock.
const MOVES_MAX: u32 = 64;
/// An object larger than the capacity divided by this is stored only at its second request.
const LARGE_DIVISOR: u64 = 32;
/// The weights are adjusted to the mean size each time after this number of inserts; more often
/// before the first time.
const WEIGHTS_UPDATE_INSERTS: u32 = 64;
/// Bytes of capacity per fingerprint of 16 bytes. The table has 0.4 to 0.8 % of the capacity,
/// because its size is a power of two.
const BYTES_PER_GHOST: u64 = 4096;

impl Eviction {
    /// Creates the policy of a cache of `capacity` bytes with a single shard: see
    /// [`Eviction::shards`].
    pub fn new(capacity: u64) -> Self {
        Self::with_shared(capacity, 1, Arc::new(SharedState::new()))
    }

    /// Creates one of `shards` shards (at least 1) that hold `capacity` bytes together.
    fn with_shared(capacity: u64, shards: u32, shared: Arc<SharedState>) -> Self {
        let main_weights = Weights::new(1);
        Self {
            entries: Vec::new(),
            probation: EvictionQueue::new(),
            main: EvictionQueue::new(),
            probation_weights: main_weights.root(),
            main_weights,
            ghost: Ghost::new(capacity / BYTES_PER_GHOST / u64::from(shards.max(1))),
            shared,
            has_others: shards > 1,
            inserts: 0,
            capacity,
            stats: EvictionStats::default(),
        }
    }

    /// Returns the bytes of all entries.
    pub fn bytes(&self) -> u64 {
        self.probation.bytes() + self.main.bytes()
    }

    /// Returns the statistics.
    pub fn stats(&self) -> EvictionStats {
        self.stats
    }

    /// Returns whether an object of `size` bytes is worth storing. A refused object leaves a
    /// fingerprint, so that it may be admitted at its next request. `key` is the index's keyed hash
    /// of the object's key; all of its 64 bits are random.
    pub fn admit(&mut self, key: u64, size: u64) -> bool {
        if size <= self.capacity / LARGE_DIVISOR {
            return true;
        }
        let is_promoted = self.ghost.get(key).is_some_and(|slot| self.belongs_in_main(slot, size));
        if is_promoted && size <= self.capacity {
            return true;
        }
        self.shared.advance();
        self.ghost.put(key, self.shared.tick(), 0, EvictedFrom::Elsewhere);
        self.stats.refused += 1;
        false
    }

    /// Inserts an object under `handle`, which must not be in use. Handles should be small, because
    /// there is memory for each number up to the largest. From `expires` on, the object is useless:
    /// a time in seconds like the `now` of [`Eviction::evict`], or [`NEVER`]. Nothing is evicted
    /// here: the caller compares [`Eviction::bytes`] with its limit.
    pub fn insert(&mut self, handle: u32, key: u64, size: u64, expires: u32) {
        self.shared.advance();
        self.inserts = self.inserts.wrapping_add(1);
        if self.inserts.is_multiple_of(WEIGHTS_UPDATE_INSERTS) || self.inserts.is_power_of_two() {
            self.update_weights();
        }
        let slot = self.ghost.get(key);
        if let Some(slot) = slot {
            match slot.evicted_from {
                EvictedFrom::Probation => self.shared.learn_from_probation(slot.mileage),
                EvictedFrom::Main => self.shared.learn_from_main(slot.mileage),
                EvictedFrom::Elsewhere => {}
            }
            self.ghost.forget(key);
        }
        let is_promoted = slot.is_some_and(|slot| self.belongs_in_main(slot, size));
        self.stats.promoted += u64::from(is_promoted);
        self.stats.entries += 1;

        let index = handle as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, EvictionEntry::default);
        }
        assert!(self.entries[index].queue == QueueKind::None, "handle {handle} is in use");
        self.entries[index] = EvictionEntry { size, key, expires, ..EvictionEntry::default() };
        self.enqueue(handle, if is_promoted { QueueKind::Main } else { QueueKind::Probation }, 0);
    }

    /// Records that the object was requested and found.
    pub fn hit(&self, handle: u32) {
        let hits = &self.entries[handle as usize].hits;
        let count = hits.load(Ordering::Relaxed);
        if count < HITS_MAX {
            hits.store(count + 1, Ordering::Relaxed);
        }
    }

    /// Removes an object for a reason of the caller: it was purged, replaced or is broken.
    pub fn remove(&mut self, handle: u32) {
        self.dequeue(handle);
        self.stats.entries -= 1;
    }

    /// Changes the size of an object whose body grew or whose header changed. The object becomes
    /// the newest of its queue.
    pub fn resize(&mut self, handle: u32, size: u64) {
        let hits = self.entries[handle as usize].hits.load(Ordering::Relaxed);
        let kind = self.dequeue(handle);
        self.entries[handle as usize].size = size;
        self.enqueue(handle, kind, hits);
    }

    /// Evicts one entry and returns its handle, which is free again. Returns `None` if there are no
    /// entries. In the queue that has to lose an entry, an entry that expired by `now` is evicted
    /// first if it is the oldest of its size class.
    pub fn evict(&mut self, now: u32) -> Option<u32> {
        self.evict_if(now, false)
    }

    /// Like [`Eviction::evict`], but if there are other shards, also returns `None` if the chosen
    /// entry is younger than the age at which all shards have evicted lately.
    pub fn evict_if_ripe(&mut self, now: u32) -> Option<u32> {
        self.evict_if(now, self.has_others)
    }

    fn evict_if(&mut self, now: u32, has_to_be_ripe: bool) -> Option<u32> {
        let mut moves = 0;
        loop {
            let tick = self.shared.tick();
            let from_probation = self.main.is_empty()
                || (self.shared.is_probation_oversized() && !self.probation.is_empty());
            let (queue, weights) = if from_probation {
                (&self.probation, &self.probation_weights)
            } else {
                (&self.main, &self.main_weights)
            };
            let queue::Victim { handle, score } =
                queue.victim(&self.entries, weights, tick, now)?;
            let entry = &mut self.entries[handle as usize];
            let hits = *entry.hits.get_mut();
            let expired = entry.expires <= now;
            if hits > 0 && !expired && moves < MOVES_MAX {
                moves += 1;
                self.dequeue(handle);
                // It enters main without hits, and each hit keeps it there for one round.
                self.enqueue(handle, QueueKind::Main, if from_probation { 0 } else { hits - 1 });
                continue;
            }
            let totals = if from_probation { &self.shared.probation } else { &self.shared.main };
            let is_ripe = expired || totals.horizon().is_none_or(|horizon| score >= horizon);
            if has_to_be_ripe && !is_ripe {
                return None;
            }
            self.evict_entry(handle, score, hits, expired);
            return Some(handle);
        }
    }

    /// Evicts the entry, and records its fingerprint.
    fn evict_entry(&mut self, handle: u32, score: u64, hits: u8, expired: bool) {
        let kind = self.dequeue(handle);
        let EvictionEntry { size, key, stamp, .. } = self.entries[handle as usize];
        self.stats.entries -= 1;
        self.stats.evicted += 1;
        if expired {
            // It was evicted because it expired, not because of its age. If it was hit, it will be
            // requested again.
            self.stats.expired += 1;
            if hits > 0 {
                self.ghost.put(key, self.shared.tick(), 0, EvictedFrom::Elsewhere);
            }
            return;
        }
        let (totals, evicted_from) = match kind {
            QueueKind::Main => (&self.shared.main, EvictedFrom::Main),
            _ => (&self.shared.probation, EvictedFrom::Probation),
        };
        self.ghost.put(key, stamp, totals.record_eviction(score, size), evicted_from);
    }

    /// Returns whether an object with this fingerprint is requested often enough for main. Main
    /// keeps an entry that is hit within the horizon. Half of the horizon is required here, because
    /// one short interval says little about the next one.
    fn belongs_in_main(&self, slot: GhostSlot, size: u64) -> bool {
        let age = self.shared.tick().wrapping_sub(slot.stamp);
        let horizon = self.shared.main.horizon();
        horizon.is_none_or(|horizon| self.main_weights.score(age, size) <= horizon / 2)
    }

    /// Adjusts the weights to the mean size of all entries: above it, a weight hardly grows.
    fn update_weights(&mut self) {
        self.main_weights = Weights::new(self.shared.mean_entry_bytes().max(1));
        self.probation_weights = self.main_weights.root();
    }

    /// Appends an entry that is in no queue, with `hits`.
    fn enqueue(&mut self, handle: u32, kind: QueueKind, hits: u8) {
        let entry = &mut self.entries[handle as usize];
        entry.stamp = self.shared.tick();
        entry.queue = kind;
        *entry.hits.get_mut() = hits;
        let (shared, size) = (&self.shared, entry.size);
        let (queue, totals) = match kind {
            QueueKind::Probation => (&mut self.probation, &shared.probation),
            QueueKind::Main => (&mut self.main, &shared.main),
            QueueKind::None => unreachable!("an entry is added to a queue"),
        };
        shared.add_entry(totals, size);
        queue.push(&mut self.entries, handle);
    }

    /// Removes an entry from its queue, and returns that queue.
    fn dequeue(&mut self, handle: u32) -> QueueKind {
        let kind = std::mem::replace(&mut self.entries[handle as usize].queue, QueueKind::None);
        let (shared, size) = (&self.shared, self.entries[handle as usize].size);
        let (queue, totals) = match kind {
            QueueKind::Probation => (&mut self.probation, &shared.probation),
            QueueKind::Main => (&mut self.main, &shared.main),
            QueueKind::None => panic!("handle {handle} is not in use"),
        };
        shared.remove_entry(totals, size);
        queue.unlink(&mut self.entries, handle);
        kind
    }
}

impl Default for EvictionEntry {
    /// An entry that is not in use.
    fn default() -> Self {
        Self {
            size: 0,
            key: 0,
            expires: NEVER,
            stamp: 0,
            previous: NONE,
            next: NONE,
            hits: AtomicU8::new(0),
            queue: QueueKind::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    /// Hits the object more often than its counter can count.
    fn hit_often(eviction: &Eviction, handle: u32) {
        for _ in 0..2 * HITS_MAX {
            eviction.hit(handle);
        }
    }

    /// Returns a key for each object; the keys are spread over the buckets.
    fn key(object: u64) -> u64 {
        object.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Inserts an object, and evicts what does not fit.
    fn store(eviction: &mut Eviction, object: u32, size: u64) -> Vec<u32> {
        eviction.insert(object, key(u64::from(object)), size, NEVER);
        let mut evicted = Vec::new();
        while eviction.bytes() > eviction.capacity {
            evicted.push(eviction.evict(0).expect("there are entries"));
        }
        evicted
    }

    #[test]
    fn hit_entries_outlive_others() {
        let mut eviction = Eviction::new(10_000);
        for object in 0..10 {
            assert_eq!(store(&mut eviction, object, 1_000), []);
        }
        eviction.hit(0);
        eviction.hit(4);
        let mut evicted = Vec::new();
        for object in 10..18 {
            evicted.extend(store(&mut eviction, object, 1_000));
        }
        assert_eq!(evicted, [1, 2, 3, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_scan_does_not_evict_the_hot_set() {
        let mut eviction = Eviction::new(100_000);
        for object in 0..60 {
            store(&mut eviction, object, 1_000);
        }
        for object in 0..60 {
            hit_often(&eviction, object);
        }
        for object in 60..20_000 {
            let evicted = store(&mut eviction, object, 1_000);
            assert!(evicted.iter().all(|&evicted| evicted >= 60), "{evicted:?} at {object}");
        }
    }

    #[test]
    fn entries_without_requests_are_evicted() {
        let mut eviction = Eviction::new(100_000);
        for object in 0..80 {
            store(&mut eviction, object, 1_000);
            hit_often(&eviction, object);
        }
        // Each of the others is hit for a while only.
        let mut left = 80;
        for object in 80..2_000 {
            let evicted = store(&mut eviction, object, 1_000);
            hit_often(&eviction, object);
            left -= evicted.iter().filter(|&&evicted| evicted < 80).count();
        }
        assert_eq!(left, 0);
    }

    #[test]
    fn a_larger_entry_is_evicted_before_a_slightly_older_one() {
        let mut eviction = Eviction::new(1 << 20);
        for object in 0..10 {
            store(&mut eviction, object, if object == 1 { 30_000 } else { 1_000 });
        }
        assert_eq!(eviction.evict(0), Some(1));
        assert_eq!(eviction.evict(0), Some(0));
    }

    #[test]
    fn a_large_object_is_stored_at_its_second_request() {
        let capacity = 1 << 20;
        let mut eviction = Eviction::new(capacity);
        assert!(eviction.admit(key(1), capacity / LARGE_DIVISOR));
        assert!(!eviction.admit(key(1), capacity / LARGE_DIVISOR + 1));
        assert!(eviction.admit(key(1), capacity / LARGE_DIVISOR + 1));
        assert!(!eviction.admit(key(2), capacity + 1));
        assert!(!eviction.admit(key(2), capacity + 1), "it never fits");
        assert_eq!(eviction.stats().refused, 3);
    }

    #[test]
    fn an_object_that_returns_soon_enters_main() {
        let mut eviction = Eviction::new(10_000);
        for object in 0..11 {
            store(&mut eviction, object, 1_000);
        }
        assert_eq!(
            eviction.stats(),
            EvictionStats { entries: 10, evicted: 1, ..EvictionStats::default() }
        );
        store(&mut eviction, 0, 1_000);
        assert_eq!(eviction.stats().promoted, 1);
        // It is in main, which new entries do not affect.
        for object in 11..100 {
            assert!(!store(&mut eviction, object, 1_000).contains(&0), "at {object}");
        }
    }

    #[test]
    fn expired_entries_are_evicted_first() {
        let mut eviction = Eviction::new(100_000);
        for handle in 0..10 {
            let expires = [61, NEVER, NEVER, 60].get(handle as usize).copied().unwrap_or(NEVER);
            // Each has its own size class, so that each is at the end of a list.
            eviction.insert(handle, key(u64::from(handle)), 16 << handle, expires);
        }
        hit_often(&eviction, 3);
        assert_ne!(eviction.evict(59), Some(3));
        assert_eq!(eviction.evict(60), Some(3));
        assert_eq!(eviction.evict(61), Some(0));
        assert_eq!(eviction.stats().expired, 2);
    }

    #[test]
    fn one_eviction_has_a_bound() {
        let mut eviction = Eviction::new(1 << 30);
        for handle in 0..10_000 {
            eviction.insert(handle, key(u64::from(handle)), 1_000, NEVER);
            hit_often(&eviction, handle);
        }
        assert!(eviction.evict(0).is_some());
        assert!(eviction.main.bytes() <= u64::from(MOVES_MAX) * 1_000);
    }

    #[test]
    #[should_panic(expected = "handle 1 is in use")]
    fn a_handle_is_used_once() {
        let mut eviction = Eviction::new(1_000);
        eviction.insert(1, 1, 10, NEVER);
        eviction.insert(1, 2, 10, NEVER);
    }

    #[test]
    fn nothing_to_evict() {
        assert_eq!(Eviction::new(0).evict(0), None);
    }

    /// After any sequence of calls, the entries are those that were inserted and not removed.
    #[test]
    fn any_sequence_of_calls_keeps_the_counts_right() {
        for seed in 1..=20u64 {
            let mut random = seed;
            let mut draw = |bound: u64| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                random % bound
            };
            let mut eviction = Eviction::new(1 << 20);
            let mut held: HashMap<u32, u64> = HashMap::new();
            for turn in 0..5_000u32 {
                let handle = draw(200) as u32;
                let size = 1 << draw(16);
                match (held.contains_key(&handle), draw(8)) {
                    (true, 0) => {
                        eviction.remove(handle);
                        held.remove(&handle);
                    }
                    (true, 1) => {
                        eviction.resize(handle, size);
                        held.insert(handle, size);
                    }
                    (true, _) => eviction.hit(handle),
                    (false, _) if eviction.admit(key(size), size) => {
                        eviction.insert(handle, key(size), size, turn + draw(5_000) as u32);
                        held.insert(handle, size);
                    }
                    (false, _) => {}
                }
                while eviction.bytes() > 1 << 18 {
                    let evicted = eviction.evict(turn).expect("there are entries");
                    assert!(held.remove(&evicted).is_some(), "seed {seed}, turn {turn}: {evicted}");
                }
                assert_eq!(eviction.bytes(), held.values().sum::<u64>(), "seed {seed}");
                assert_eq!(eviction.stats().entries, held.len() as u64, "seed {seed}");
            }
            while let Some(evicted) = eviction.evict(u32::MAX) {
                assert!(held.remove(&evicted).is_some(), "seed {seed}: {evicted}");
            }
            assert!(held.is_empty() && eviction.bytes() == 0, "seed {seed}");
        }
    }
}

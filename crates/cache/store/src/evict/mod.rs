//! Which objects stay: S3-FIFO that knows sizes and learns the share of newcomers.
//!
//! An [`Eviction`] says for one shard of the cache what is worth storing and what has to go. It
//! never sees an object, a clock or a lock: the index names entries by handles of its own, says
//! what time it is, and frees what [`Eviction::evict`] names.
//!
//! ```text
//!             asked for again, not long ago                 hit meanwhile
//!          ┌──────────────────────────────────┐          ┌───────────────┐
//!          │                                  v          v               │
//!   admit ─┼──> probation ── was hit ──────> main ── its turn to go ─────┤
//!          │        │                                                    │
//!          v        v not hit                                            v not hit
//!        ghost <────┴────────────────────────────────────────────────────┘
//! ```
//!
//! A hit adds to a counter of the entry, up to three, and moves nothing. Whose turn it is depends
//! on age and size ([`queue`]). What goes leaves its fingerprint ([`ghost`]), so that it is known
//! when it comes back. docs/design/eviction.md has the reasons, and the miss ratios beside others'.
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
//!             let gone = eviction.evict(now).expect("what is there can go");
//!             assert_ne!(gone, handle);
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

/// So many shards may pass their turn before one has to let something go: see
/// [`Eviction::evict_ripe`].
pub const SHARDS_SKIPPED_MAX: usize = 1;

/// The expiry of an entry that never expires.
pub const NEVER: u32 = u32::MAX;

/// The policy of one shard: see the module. Not for several threads at once; the shard's lock is
/// around it, and a hit needs no more than a shared borrow.
#[derive(Debug)]
pub struct Eviction {
    /// By handle.
    entries: Vec<EvictionEntry>,
    probation: EvictionQueue,
    main: EvictionQueue,
    probation_weights: Weights,
    main_weights: Weights,
    ghost: Ghost,
    /// What all shards know.
    shared: Arc<SharedState>,
    /// Whether there are other shards.
    has_others: bool,
    /// What was taken in so far. It wraps.
    inserts: u32,
    /// Bytes that all shards may hold together.
    capacity: u64,
    stats: EvictionStats,
}

/// What an [`Eviction`] did since it was made, and what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct EvictionStats {
    /// Entries held.
    pub entries: u64,
    /// Objects refused because nobody had asked for them twice and they were large.
    pub refused: u64,
    /// Entries that came back soon enough to go into the main queue at once.
    pub promoted: u64,
    /// Entries let go, expired ones among them.
    pub evicted: u64,
    /// Entries let go because they had expired.
    pub expired: u64,
}

/// Two bits tell an object that is asked for now and then from one that is always asked for.
const HITS_MAX: u8 = 3;
/// So many entries that were hit may stay in one eviction; the next goes whatever its hits. This
/// bounds what is done under the shard's lock.
const MOVES_MAX: u32 = 64;
/// Above this part of the capacity an object is stored only when it is asked for again.
const LARGE_DIVISOR: u64 = 32;
/// After so many inserts the weights follow the mean size.
const WEIGHTS_UPDATE_INSERTS: u32 = 64;
/// Bytes of the capacity for each object that is remembered: 16 bytes each, 0.4 % in all.
const BYTES_PER_GHOST: u64 = 4096;

impl Eviction {
    /// For a cache of `capacity` bytes that has no other shards: see [`Eviction::shards`].
    pub fn new(capacity: u64) -> Self {
        Self::with_shared(capacity, 1, Arc::new(SharedState::new()))
    }

    /// One of `shards` shards (at least 1) that hold `capacity` bytes together.
    fn with_shared(capacity: u64, shards: u32, shared: Arc<SharedState>) -> Self {
        let main_weights = Weights::new(1);
        Self {
            entries: Vec::new(),
            probation: EvictionQueue::new(),
            main: EvictionQueue::new(),
            probation_weights: main_weights.root(),
            main_weights,
            ghost: Ghost::new(capacity / BYTES_PER_GHOST / u64::from(shards.max(1))),
            shared: shared,
            has_others: shards > 1,
            inserts: 0,
            capacity,
            stats: EvictionStats::default(),
        }
    }

    /// Bytes of all entries held here.
    pub fn bytes(&self) -> u64 {
        self.probation.bytes() + self.main.bytes()
    }

    /// What was done and what is held.
    pub fn stats(&self) -> EvictionStats {
        self.stats
    }

    /// Whether an object of `size` bytes is worth storing. One that is not is remembered, so that
    /// it may be when it is asked for again. `key` is the index's keyed hash of the object's key,
    /// all 64 bits of it random.
    pub fn admit(&mut self, key: u64, size: u64) -> bool {
        if size <= self.capacity / LARGE_DIVISOR {
            return true;
        }
        let known = self.ghost.get(key).is_some_and(|slot| self.belongs_in_main(slot, size));
        if known && size <= self.capacity {
            return true;
        }
        self.shared.advance();
        self.ghost.put(key, self.shared.tick(), 0, EvictedFrom::Elsewhere);
        self.stats.refused += 1;
        false
    }

    /// Takes in an object under `handle`, which must not be in use: a small number of the caller's,
    /// since there is memory for each number up to the largest. `expires` is in the seconds of
    /// [`Eviction::evict`]: when nothing can be made of the object any more, or [`NEVER`]. Nothing
    /// is let go here; the caller compares [`Eviction::bytes`] with what there is room for.
    pub fn insert(&mut self, handle: u32, key: u64, size: u64, expires: u32) {
        self.shared.advance();
        self.inserts = self.inserts.wrapping_add(1);
        if self.inserts.is_multiple_of(WEIGHTS_UPDATE_INSERTS) || self.inserts.is_power_of_two() {
            self.update_weights();
        }
        let slot = self.ghost.get(key);
        if let Some(slot) = slot {
            match slot.origin {
                EvictedFrom::Probation => self.shared.learn_from_probation(slot.mileage),
                EvictedFrom::Main => self.shared.learn_from_main(slot.mileage),
                EvictedFrom::Elsewhere => {}
            }
            self.ghost.forget(key);
        }
        let known = slot.is_some_and(|slot| self.belongs_in_main(slot, size));
        self.stats.promoted += u64::from(known);
        self.stats.entries += 1;

        let index = handle as usize;
        if index >= self.entries.len() {
            self.entries.resize_with(index + 1, EvictionEntry::default);
        }
        assert!(self.entries[index].queue == QueueKind::None, "handle {handle} is in use");
        self.entries[index] = EvictionEntry { size, key, expires, ..EvictionEntry::default() };
        self.enqueue(handle, if known { QueueKind::Main } else { QueueKind::Probation }, 0);
    }

    /// The object was asked for and served.
    pub fn hit(&self, handle: u32) {
        let hits = &self.entries[handle as usize].hits;
        let count = hits.load(Ordering::Relaxed);
        if count < HITS_MAX {
            hits.store(count + 1, Ordering::Relaxed);
        }
    }

    /// The object is gone for a reason of the caller's: purged, replaced, broken.
    pub fn remove(&mut self, handle: u32) {
        self.dequeue(handle);
        self.stats.entries -= 1;
    }

    /// The object has another size now: its body grew, or its head changed.
    pub fn resize(&mut self, handle: u32, size: u64) {
        let hits = self.entries[handle as usize].hits.load(Ordering::Relaxed);
        let kind = self.dequeue(handle);
        self.entries[handle as usize].size = size;
        self.enqueue(handle, kind, hits);
    }

    /// Lets one entry go and names it: the caller's handle is free again. One that expired by `now`
    /// goes first as soon as it is at the end of its list. `None` if there is nothing.
    pub fn evict(&mut self, now: u32) -> Option<u32> {
        self.evict_if(now, false)
    }

    /// The same, but `None` as well if there are other shards, and the entry whose turn it is here has
    /// not the age at which entries of all shards go.
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
                // It enters main with nothing, and stays there for one hit a round.
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

    /// Removes the entry and remembers it.
    fn evict_entry(&mut self, handle: u32, score: u64, hits: u8, expired: bool) {
        let kind = self.dequeue(handle);
        let EvictionEntry { size, key, stamp, .. } = self.entries[handle as usize];
        self.stats.entries -= 1;
        self.stats.evicted += 1;
        if expired {
            // Its time was over, not its turn. What was hit will be asked for again.
            self.stats.expired += 1;
            if hits > 0 {
                self.ghost.put(key, self.shared.tick(), 0, EvictedFrom::Elsewhere);
            }
            return;
        }
        let (totals, origin) = match kind {
            QueueKind::Main => (&self.shared.main, EvictedFrom::Main),
            _ => (&self.shared.probation, EvictedFrom::Probation),
        };
        self.ghost.put(key, stamp, totals.record_eviction(score, size), origin);
    }

    /// Whether an object that was asked for at the time of `slot` is asked for often enough for
    /// main. An entry stays there if it is hit within the horizon; asked for is half of that, since
    /// one short interval says little of the next one.
    fn belongs_in_main(&self, slot: GhostSlot, size: u64) -> bool {
        let age = self.shared.tick().wrapping_sub(slot.stamp);
        let horizon = self.shared.main.horizon();
        horizon.is_none_or(|horizon| self.main_weights.score(age, size) <= horizon / 2)
    }

    /// Makes the weights fit: the size from which on larger objects are hardly worse than smaller
    /// ones is the mean of what is held.
    fn update_weights(&mut self) {
        self.main_weights = Weights::new(self.shared.mean_entry_bytes().max(1));
        self.probation_weights = self.main_weights.root();
    }

    /// Appends an entry that is nowhere to a queue, from now on with `hits`.
    fn enqueue(&mut self, handle: u32, kind: QueueKind, hits: u8) {
        let entry = &mut self.entries[handle as usize];
        entry.stamp = self.shared.tick();
        entry.queue = kind;
        *entry.hits.get_mut() = hits;
        let (shared, size) = (&self.shared, entry.size);
        let (queue, totals) = match kind {
            QueueKind::Probation => (&mut self.probation, &shared.probation),
            QueueKind::Main => (&mut self.main, &shared.main),
            QueueKind::None => unreachable!("an entry is put somewhere"),
        };
        shared.add_entry(totals, size);
        queue.push(&mut self.entries, handle);
    }

    /// Takes an entry out of its queue, and says which that was.
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
    /// Nobody's.
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

    /// As many hits as a counter takes in.
    fn hit_often(eviction: &Eviction, handle: u32) {
        for _ in 0..2 * HITS_MAX {
            eviction.hit(handle);
        }
    }

    /// A key for each object, spread over the buckets.
    fn key(object: u64) -> u64 {
        object.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// Inserts, and lets go what does not fit.
    fn store(eviction: &mut Eviction, object: u32, size: u64) -> Vec<u32> {
        eviction.insert(object, key(u64::from(object)), size, NEVER);
        let mut gone = Vec::new();
        while eviction.bytes() > eviction.capacity {
            gone.push(eviction.evict(0).expect("something is there"));
        }
        gone
    }

    #[test]
    fn what_was_hit_outlives_what_was_not() {
        let mut eviction = Eviction::new(10_000);
        for object in 0..10 {
            assert_eq!(store(&mut eviction, object, 1_000), []);
        }
        eviction.hit(0);
        eviction.hit(4);
        let mut gone = Vec::new();
        for object in 10..18 {
            gone.extend(store(&mut eviction, object, 1_000));
        }
        assert_eq!(gone, [1, 2, 3, 5, 6, 7, 8, 9]);
    }

    #[test]
    fn a_scan_leaves_the_hot_set() {
        let mut eviction = Eviction::new(100_000);
        for object in 0..60 {
            store(&mut eviction, object, 1_000);
        }
        for object in 0..60 {
            hit_often(&eviction, object);
        }
        for object in 60..20_000 {
            let gone = store(&mut eviction, object, 1_000);
            assert!(gone.iter().all(|&gone| gone >= 60), "{gone:?} at {object}");
        }
    }

    #[test]
    fn what_nobody_asks_for_any_more_goes() {
        let mut eviction = Eviction::new(100_000);
        for object in 0..80 {
            store(&mut eviction, object, 1_000);
            hit_often(&eviction, object);
        }
        // Others are hit, each for a while only.
        let mut left = 80;
        for object in 80..2_000 {
            let gone = store(&mut eviction, object, 1_000);
            hit_often(&eviction, object);
            left -= gone.iter().filter(|&&gone| gone < 80).count();
        }
        assert_eq!(left, 0);
    }

    #[test]
    fn the_larger_goes_before_the_somewhat_older() {
        let mut eviction = Eviction::new(1 << 20);
        for object in 0..10 {
            store(&mut eviction, object, if object == 1 { 30_000 } else { 1_000 });
        }
        assert_eq!(eviction.evict(0), Some(1));
        assert_eq!(eviction.evict(0), Some(0));
    }

    #[test]
    fn a_large_object_is_stored_when_it_is_asked_for_again() {
        let capacity = 1 << 20;
        let mut eviction = Eviction::new(capacity);
        assert!(eviction.admit(key(1), capacity / LARGE_DIVISOR));
        assert!(!eviction.admit(key(1), capacity / LARGE_DIVISOR + 1));
        assert!(eviction.admit(key(1), capacity / LARGE_DIVISOR + 1));
        assert!(!eviction.admit(key(2), capacity + 1));
        assert!(!eviction.admit(key(2), capacity + 1), "there is never room for it");
        assert_eq!(eviction.stats().refused, 3);
    }

    #[test]
    fn what_comes_back_soon_is_known() {
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
        // It is in main, where newcomers do not reach it.
        for object in 11..100 {
            assert!(!store(&mut eviction, object, 1_000).contains(&0), "at {object}");
        }
    }

    #[test]
    fn what_expired_goes_first() {
        let mut eviction = Eviction::new(100_000);
        for handle in 0..10 {
            let expires = [61, NEVER, NEVER, 60].get(handle as usize).copied().unwrap_or(NEVER);
            // Each in a class of its own, so that each is the end of a list.
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

    /// Whatever is done in whatever order, what is held is what was put in and did not leave.
    #[test]
    fn any_order_of_calls_keeps_the_books() {
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
                    let gone = eviction.evict(turn).expect("something is there");
                    assert!(held.remove(&gone).is_some(), "seed {seed}, turn {turn}: {gone}");
                }
                assert_eq!(eviction.bytes(), held.values().sum::<u64>(), "seed {seed}");
                assert_eq!(eviction.stats().entries, held.len() as u64, "seed {seed}");
            }
            while let Some(gone) = eviction.evict(u32::MAX) {
                assert!(held.remove(&gone).is_some(), "seed {seed}: {gone}");
            }
            assert!(held.is_empty() && eviction.bytes() == 0, "seed {seed}");
        }
    }
}

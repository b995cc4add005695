//! The state that the shards of a cache share: the clock, the bytes in each queue, and what was
//! learned. It lets a shard decide like the whole cache, of which its entries are a sample.
//!
//! It is written at inserts and evictions, never at a hit. All accesses are relaxed: they are
//! ordered with no other memory. Sums are exact. A learned value may lose a step if two shards
//! change it at the same time.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The state that the shards of a cache share; see the module.
#[derive(Default, Debug)]
pub(super) struct SharedState {
    /// Objects offered so far: the unit of age. It wraps.
    tick: AtomicU32,
    /// The share of the bytes that probation may have: `SHARE_MIN <= share <= SHARE_MAX`.
    share: AtomicU32,
    entries: AtomicU64,
    pub(super) probation: QueueTotals,
    pub(super) main: QueueTotals,
}

/// One of the two queues, over all shards.
#[derive(Default, Debug)]
pub(super) struct QueueTotals {
    /// Bytes of its entries.
    bytes: AtomicU64,
    /// One more than the weighted age at which entries were evicted lately; 0 before the first
    /// eviction.
    horizon: AtomicU64,
    /// Bytes evicted so far.
    mileage: AtomicU64,
}

/// The value of `share` that means all bytes.
const SHARE_WHOLE: u32 = 1 << 16;
/// The initial share of probation.
const SHARE_INITIAL: u32 = SHARE_WHOLE / 10;
/// The lower bound of the share of probation.
const SHARE_MIN: u32 = SHARE_WHOLE / 20;
/// The upper bound of the share of probation.
const SHARE_MAX: u32 = SHARE_WHOLE / 5 * 4;
/// An object returns early if its queue has evicted few bytes since it evicted the object: at most
/// the bytes of all entries divided by this. An early return shows that the queue should be larger.
const NEAR_DIVISOR: u64 = 20;
/// An early return from probation adds the bytes of this number of entries of mean size to the
/// share of probation, at most [`STEP_MAX`].
const STEP: u32 = 16;
/// The maximum that one return from probation adds to the share.
const STEP_MAX: u32 = SHARE_WHOLE / 100;
/// The number of returns from probation that one return from main outweighs.
const MAIN_VOTES: u32 = 4;
/// Fingerprints have the mileage in KB, so that 32 bits hold 4 TB before they wrap.
const MILE_SHIFT: u32 = 10;

impl SharedState {
    pub(super) fn new() -> Self {
        Self { share: AtomicU32::new(SHARE_INITIAL), ..Self::default() }
    }

    pub(super) fn tick(&self) -> u32 {
        self.tick.load(Relaxed)
    }

    /// Advances the clock: an object was offered.
    pub(super) fn advance(&self) {
        self.tick.fetch_add(1, Relaxed);
    }

    /// Returns the mean size of all entries.
    pub(super) fn mean_entry_bytes(&self) -> u64 {
        self.bytes() / self.entries.load(Relaxed).max(1)
    }

    pub(super) fn is_probation_oversized(&self) -> bool {
        u128::from(self.probation.bytes.load(Relaxed)) * u128::from(SHARE_WHOLE)
            > u128::from(self.bytes()) * u128::from(self.share.load(Relaxed))
    }

    /// Counts an entry of `size` bytes that was added to a queue.
    pub(super) fn add_entry(&self, totals: &QueueTotals, size: u64) {
        totals.bytes.fetch_add(size, Relaxed);
        self.entries.fetch_add(1, Relaxed);
    }

    /// Counts an entry of `size` bytes that was removed from a queue.
    pub(super) fn remove_entry(&self, totals: &QueueTotals, size: u64) {
        totals.bytes.fetch_sub(size, Relaxed);
        self.entries.fetch_sub(1, Relaxed);
    }

    /// Learns from the return of an object that probation evicted: see [`SharedState::learn`].
    pub(super) fn learn_from_probation(&self, mileage: u32) {
        self.learn(&self.probation, mileage, |share, step| (share + step).min(SHARE_MAX));
    }

    /// Learns from the return of an object that main evicted: see [`SharedState::learn`].
    pub(super) fn learn_from_main(&self, mileage: u32) {
        self.learn(&self.main, mileage, |share, step| {
            share.saturating_sub(step * MAIN_VOTES).max(SHARE_MIN)
        });
    }

    /// Applies `change` to the share of probation if the object was evicted shortly before: a
    /// slightly larger queue would have kept it.
    fn learn(&self, totals: &QueueTotals, mileage: u32, change: impl FnOnce(u32, u32) -> u32) {
        // Before main evicts its first entry, only objects from probation can return, so the share
        // could only grow.
        if self.main.horizon().is_none()
            || totals.bytes_evicted_since(mileage) > self.bytes() / NEAR_DIVISOR
        {
            return;
        }
        let entries = self.entries.load(Relaxed).max(1);
        let step =
            (u64::from(SHARE_WHOLE) * u64::from(STEP) / entries).min(u64::from(STEP_MAX)) as u32;
        self.share.store(change(self.share.load(Relaxed), step), Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.probation.bytes.load(Relaxed) + self.main.bytes.load(Relaxed)
    }
}

impl QueueTotals {
    /// Returns the weighted age at which entries were evicted lately; `None` before the first
    /// eviction.
    pub(super) fn horizon(&self) -> Option<u64> {
        self.horizon.load(Relaxed).checked_sub(1)
    }

    /// Records the eviction of an entry of this weighted age and size. Returns the mileage
    /// afterwards.
    pub(super) fn record_eviction(&self, score: u64, size: u64) -> u32 {
        // An average over about sixteen evictions.
        let horizon = self.horizon().map_or(score, |horizon| horizon - horizon / 16 + score / 16);
        self.horizon.store(horizon.saturating_add(1), Relaxed);
        (self.mileage.fetch_add(size, Relaxed).wrapping_add(size) >> MILE_SHIFT) as u32
    }

    /// Returns the bytes that were evicted since `mileage`.
    fn bytes_evicted_since(&self, mileage: u32) -> u64 {
        let now = (self.mileage.load(Relaxed) >> MILE_SHIFT) as u32;
        u64::from(now.wrapping_sub(mileage)) << MILE_SHIFT
    }
}

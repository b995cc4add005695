//! What the shards of a cache know together: its clock, how much is in which queue, and what was
//! learned. So a shard decides as if it were the whole cache, of which its entries are a sample.
//!
//! Written at inserts and evictions, never at a hit. Nothing here is in an order with anything else:
//! sums are exact, what is learned may lose a step when two shards take one at once.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// See the module.
#[derive(Default, Debug)]
pub(super) struct SharedState {
    /// What was offered so far: the unit of age. It wraps.
    tick: AtomicU32,
    /// What part of the bytes probation may have: `SHARE_MIN <= share <= SHARE_MAX`.
    share: AtomicU32,
    entries: AtomicU64,
    pub(super) probation: QueueTotals,
    pub(super) main: QueueTotals,
}

/// One of the two queues, of all shards.
#[derive(Default, Debug)]
pub(super) struct QueueTotals {
    /// Of all entries.
    bytes: AtomicU64,
    /// One more than the weighted age at which entries had to leave of late; 0 before one had to.
    horizon: AtomicU64,
    /// Bytes that had to leave.
    mileage: AtomicU64,
}

/// The unit of `share`.
const SHARE_WHOLE: u32 = 1 << 16;
/// The share of probation at first, and its bounds.
const SHARE_INITIAL: u32 = SHARE_WHOLE / 10;
const SHARE_MIN: u32 = SHARE_WHOLE / 20;
const SHARE_MAX: u32 = SHARE_WHOLE / 5 * 4;
/// What comes back within this part of the cache's bytes after it left a queue speaks for a larger
/// share of that queue.
const NEAR_DIVISOR: u64 = 20;
/// How many entries' part of the share such a return moves, and no more than this at once.
const STEP: u32 = 16;
const STEP_MAX: u32 = SHARE_WHOLE / 100;
/// Returns from probation that one return from main outweighs.
const MAIN_VOTES: u32 = 4;
/// Mileage is told in KB, so that 32 bits hold 4 TB before they wrap.
const MILE_SHIFT: u32 = 10;

impl SharedState {
    pub(super) fn new() -> Self {
        Self { share: AtomicU32::new(SHARE_INITIAL), ..Self::default() }
    }

    pub(super) fn tick(&self) -> u32 {
        self.tick.load(Relaxed)
    }

    /// Something was offered.
    pub(super) fn advance(&self) {
        self.tick.fetch_add(1, Relaxed);
    }

    /// The mean size of what is held.
    pub(super) fn mean_entry_bytes(&self) -> u64 {
        self.bytes() / self.entries.load(Relaxed).max(1)
    }

    pub(super) fn is_probation_oversized(&self) -> bool {
        u128::from(self.probation.bytes.load(Relaxed)) * u128::from(SHARE_WHOLE)
            > u128::from(self.bytes()) * u128::from(self.share.load(Relaxed))
    }

    /// An entry of `size` bytes was put on a side.
    pub(super) fn add_entry(&self, totals: &QueueTotals, size: u64) {
        totals.bytes.fetch_add(size, Relaxed);
        self.entries.fetch_add(1, Relaxed);
    }

    /// It was taken away.
    pub(super) fn remove_entry(&self, totals: &QueueTotals, size: u64) {
        totals.bytes.fetch_sub(size, Relaxed);
        self.entries.fetch_sub(1, Relaxed);
    }

    /// An object that left probation came back: see [`Together::learn`].
    pub(super) fn learn_from_probation(&self, mileage: u32) {
        self.learn(&self.probation, mileage, |share, step| (share + step).min(SHARE_MAX));
    }

    /// One that left main did.
    pub(super) fn learn_from_main(&self, mileage: u32) {
        self.learn(&self.main, mileage, |share, step| {
            share.saturating_sub(step * MAIN_VOTES).max(SHARE_MIN)
        });
    }

    /// If it passed the end of its queue shortly before, a somewhat larger share of that queue would
    /// have kept it.
    fn learn(&self, totals: &QueueTotals, mileage: u32, moved: impl FnOnce(u32, u32) -> u32) {
        // While main lets nothing go, its own returns cannot speak for it.
        if self.main.horizon().is_none()
            || totals.bytes_evicted_since(mileage) > self.bytes() / NEAR_DIVISOR
        {
            return;
        }
        let entries = self.entries.load(Relaxed).max(1);
        let step =
            (u64::from(SHARE_WHOLE) * u64::from(STEP) / entries).min(u64::from(STEP_MAX)) as u32;
        self.share.store(moved(self.share.load(Relaxed), step), Relaxed);
    }

    fn bytes(&self) -> u64 {
        self.probation.bytes.load(Relaxed) + self.main.bytes.load(Relaxed)
    }
}

impl QueueTotals {
    /// The weighted age at which entries had to leave of late; `None` before one had to.
    pub(super) fn horizon(&self) -> Option<u64> {
        self.horizon.load(Relaxed).checked_sub(1)
    }

    /// An entry of this weighted age and size had to leave. Gives the mileage at which it did.
    pub(super) fn record_eviction(&self, score: u64, size: u64) -> u32 {
        // The mean of the last sixteen or so.
        let horizon = self.horizon().map_or(score, |horizon| horizon - horizon / 16 + score / 16);
        self.horizon.store(horizon.saturating_add(1), Relaxed);
        (self.mileage.fetch_add(size, Relaxed).wrapping_add(size) >> MILE_SHIFT) as u32
    }

    /// Bytes that had to leave since it was at `mileage`.
    fn bytes_evicted_since(&self, mileage: u32) -> u64 {
        let now = (self.mileage.load(Relaxed) >> MILE_SHIFT) as u32;
        u64::from(now.wrapping_sub(mileage)) << MILE_SHIFT
    }
}

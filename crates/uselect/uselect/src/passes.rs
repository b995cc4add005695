//! `Passes`: how long waits may be answered without a look at what is not tracked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{PASSES_MAX, PASSES_TIME_MAX};

/// The paper's numPass and MaxPass, with a bound of time beside.
pub(crate) struct Passes {
    count: AtomicU32,
    /// When that was 0, in microseconds behind `begin`.
    looked_us: AtomicU64,
    begin: Instant,
    count_max: AtomicU32,
    time_max_us: AtomicU64,
}

impl Passes {
    pub(crate) fn new() -> Self {
        let passes = Self {
            count: AtomicU32::new(0),
            looked_us: AtomicU64::new(0),
            begin: Instant::now(),
            count_max: AtomicU32::new(0),
            time_max_us: AtomicU64::new(0),
        };
        passes.set(PASSES_MAX, PASSES_TIME_MAX);
        passes
    }

    /// Others with the same bounds.
    pub(crate) fn like(&self) -> Self {
        let passes = Self::new();
        let time = Duration::from_micros(self.time_max_us.load(Ordering::Relaxed));
        passes.set(self.count_max.load(Ordering::Relaxed), time);
        passes
    }

    pub(crate) fn set(&self, count: u32, time: Duration) {
        self.count_max.store(count, Ordering::Relaxed);
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.time_max_us.store(time_us, Ordering::Relaxed);
    }

    /// Whether a wait may be answered from memory alone. Time is of no matter to who has nothing
    /// that memory does not know.
    #[inline]
    pub(crate) fn may_pass(&self, has_others: bool) -> bool {
        let count = self.count.fetch_add(1, Ordering::Relaxed);
        if count >= self.count_max.load(Ordering::Relaxed) {
            return false;
        }
        let unseen = || self.now_us().saturating_sub(self.looked_us.load(Ordering::Relaxed));
        !has_others || unseen() < self.time_max_us.load(Ordering::Relaxed)
    }

    /// All is looked at now.
    pub(crate) fn end(&self) {
        self.count.store(0, Ordering::Relaxed);
        self.looked_us.store(self.now_us(), Ordering::Relaxed);
    }

    fn now_us(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }
}

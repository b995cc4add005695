//! `Passes`: how long waits may be answered without a look at what is not tracked.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{KERNEL_CHECK_TIME_MAX, KERNEL_CHECK_WAITS_MAX};

/// The paper's numPass and MaxPass, with a bound of time beside.
pub(crate) struct KernelCheckInterval {
    waits: AtomicU32,
    /// When that was 0, in microseconds behind `begin`.
    checked_us: AtomicU64,
    start: Instant,
    waits_max: AtomicU32,
    time_max_us: AtomicU64,
}

impl KernelCheckInterval {
    pub(crate) fn new() -> Self {
        let passes = Self {
            waits: AtomicU32::new(0),
            checked_us: AtomicU64::new(0),
            start: Instant::now(),
            waits_max: AtomicU32::new(0),
            time_max_us: AtomicU64::new(0),
        };
        passes.set(KERNEL_CHECK_WAITS_MAX, KERNEL_CHECK_TIME_MAX);
        passes
    }

    /// Others with the same bounds.
    pub(crate) fn with_same_limits(&self) -> Self {
        let passes = Self::new();
        let time = Duration::from_micros(self.time_max_us.load(Ordering::Relaxed));
        passes.set(self.waits_max.load(Ordering::Relaxed), time);
        passes
    }

    pub(crate) fn set(&self, count: u32, time: Duration) {
        self.waits_max.store(count, Ordering::Relaxed);
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.time_max_us.store(time_us, Ordering::Relaxed);
    }

    /// Whether a wait may be answered from memory alone. Time is of no matter to who has nothing
    /// that memory does not know.
    #[inline]
    pub(crate) fn skip_check(&self, has_others: bool) -> bool {
        let count = self.waits.fetch_add(1, Ordering::Relaxed);
        if count >= self.waits_max.load(Ordering::Relaxed) {
            return false;
        }
        let unseen = || self.now_us().saturating_sub(self.checked_us.load(Ordering::Relaxed));
        !has_others || unseen() < self.time_max_us.load(Ordering::Relaxed)
    }

    /// All is looked at now.
    pub(crate) fn record_check(&self) {
        self.waits.store(0, Ordering::Relaxed);
        self.checked_us.store(self.now_us(), Ordering::Relaxed);
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

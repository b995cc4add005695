//! `KernelCheckInterval`: how long memory alone may serve waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::limits::{KERNEL_CHECK_TIME_MAX, KERNEL_CHECK_WAITS_MAX};

/// A limit by number of waits (numPass and MaxPass in the paper) and by time.
pub(crate) struct KernelCheckInterval {
    waits: AtomicU32,
    /// When the kernel was checked last, in microseconds since `start`.
    checked_us: AtomicU64,
    start: Instant,
    waits_max: AtomicU32,
    time_max_us: AtomicU64,
}

impl KernelCheckInterval {
    pub(crate) fn new() -> Self {
        let interval = Self {
            waits: AtomicU32::new(0),
            checked_us: AtomicU64::new(0),
            start: Instant::now(),
            waits_max: AtomicU32::new(0),
            time_max_us: AtomicU64::new(0),
        };
        interval.set(KERNEL_CHECK_WAITS_MAX, KERNEL_CHECK_TIME_MAX);
        interval
    }

    /// Returns a new interval with the same limits.
    pub(crate) fn with_same_limits(&self) -> Self {
        let interval = Self::new();
        let time = Duration::from_micros(self.time_max_us.load(Ordering::Relaxed));
        interval.set(self.waits_max.load(Ordering::Relaxed), time);
        interval
    }

    /// Sets the limits.
    pub(crate) fn set(&self, waits: u32, time: Duration) {
        self.waits_max.store(waits, Ordering::Relaxed);
        let time_us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.time_max_us.store(time_us, Ordering::Relaxed);
    }

    /// Counts a wait, and returns whether memory alone may serve it. The limit of time applies only
    /// if memory does not show the state of some descriptors, such as untracked ones.
    #[inline]
    pub(crate) fn skip_check(&self, has_untracked: bool) -> bool {
        let count = self.waits.fetch_add(1, Ordering::Relaxed);
        if count >= self.waits_max.load(Ordering::Relaxed) {
            return false;
        }
        let since_check = || self.now_us().saturating_sub(self.checked_us.load(Ordering::Relaxed));
        !has_untracked || since_check() < self.time_max_us.load(Ordering::Relaxed)
    }

    /// Records that the kernel is checked now.
    pub(crate) fn record_check(&self) {
        self.waits.store(0, Ordering::Relaxed);
        self.checked_us.store(self.now_us(), Ordering::Relaxed);
    }

    fn now_us(&self) -> u64 {
        self.start.elapsed().as_micros() as u64
    }
}

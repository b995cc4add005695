//! Counters of a process's waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// What the waits of a process did.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Waits: calls of upoll, uselect and [`crate::Watcher::wait`].
    pub waits: u64,
    /// Of these, how many were answered without a system call.
    pub without_syscall: u64,
    /// How many system calls were made that could sleep.
    pub sleeps: u64,
}

#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// [`Stats`] as they come to be.
#[derive(Default)]
pub(crate) struct WaitCounters {
    pub(crate) waits: Counter,
    pub(crate) without_call: Counter,
    sleeps: Counter,
}

impl WaitCounters {
    /// Counts a system call, unless it returns at once.
    pub(crate) fn add_sleep(&self, timeout: Option<Duration>) {
        if timeout != Some(Duration::ZERO) {
            self.sleeps.add();
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            waits: self.waits.get(),
            without_syscall: self.without_call.get(),
            sleeps: self.sleeps.get(),
        }
    }
}

//! Counters of waits.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counters of the waits of a tracker, its clones and their watchers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Calls of upoll, uselect and [`crate::Watcher::wait`].
    pub waits: u64,
    /// Waits that memory served. Such a wait may still make system calls that never sleep: the
    /// check whether the daemon still runs, and in a watcher poll(2) or epoll_ctl(2) for single
    /// descriptors.
    pub without_syscall: u64,
    /// System calls that could sleep.
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

/// The counters behind [`Stats`].
#[derive(Default)]
pub(crate) struct WaitCounters {
    pub(crate) waits: Counter,
    pub(crate) without_syscall: Counter,
    sleeps: Counter,
}

impl WaitCounters {
    /// Counts a system call, unless its timeout is zero.
    pub(crate) fn add_sleep(&self, timeout: Option<Duration>) {
        if timeout != Some(Duration::ZERO) {
            self.sleeps.add();
        }
    }

    pub(crate) fn stats(&self) -> Stats {
        Stats {
            waits: self.waits.get(),
            without_syscall: self.without_syscall.get(),
            sleeps: self.sleeps.get(),
        }
    }
}

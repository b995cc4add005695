//! `SleeperPool`: the sleepers that no thread uses.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::layout::SLEEPERS;
use crate::sleeper::Sleeper;

/// Sleepers by number; null means in use or not created. The pool has no lock, because a signal
/// handler must not wait for the code that it interrupted. A sleeper that is not returned is lost
/// permanently, because the daemon sends each ring once.
pub(crate) struct SleeperPool([AtomicPtr<Sleeper>; SLEEPERS]);

impl SleeperPool {
    pub(crate) fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; SLEEPERS])
    }

    /// Takes the sleeper with the lowest number, so a single thread always gets the same one.
    pub(crate) fn take(&self) -> Option<Box<Sleeper>> {
        self.0.iter().find_map(|slot| {
            if slot.load(Ordering::Relaxed).is_null() {
                return None;
            }
            // Pairs with `put`: the writes of the thread that last used it are visible.
            let taken = slot.swap(ptr::null_mut(), Ordering::Acquire);
            // SAFETY: a pointer that is not null comes from `Box::into_raw` in `put`, and the swap
            // gives it to this thread alone.
            (!taken.is_null()).then(|| unsafe { Box::from_raw(taken) })
        })
    }

    pub(crate) fn put(&self, sleeper: Box<Sleeper>) {
        let slot = &self.0[sleeper.number];
        // Pairs with `take`.
        let found = slot.swap(Box::into_raw(sleeper), Ordering::Release);
        assert!(found.is_null(), "each number has one sleeper");
    }
}

impl Drop for SleeperPool {
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}

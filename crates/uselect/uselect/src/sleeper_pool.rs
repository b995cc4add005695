//! `Idle`: the sleepers that no thread has.

use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use crate::layout::SLEEPERS;
use crate::sleeper::Sleeper;

/// By their numbers; null: some thread has it, or there is none. Without a lock: a signal handler
/// must not wait for what it has interrupted, and what is not taken back is lost for good, as the
/// daemon gives each ring once.
pub(crate) struct SleeperPool([AtomicPtr<Sleeper>; SLEEPERS]);

impl SleeperPool {
    pub(crate) fn new() -> Self {
        Self([const { AtomicPtr::new(ptr::null_mut()) }; SLEEPERS])
    }

    /// That of the lowest number: the one that a single thread has had before.
    pub(crate) fn take(&self) -> Option<Box<Sleeper>> {
        self.0.iter().find_map(|place| {
            if place.load(Ordering::Relaxed).is_null() {
                return None;
            }
            // Pairs with `put`: what its last thread did with it is behind us.
            let taken = place.swap(ptr::null_mut(), Ordering::Acquire);
            // SAFETY: what is not null `put` has made of a box, and nobody else has found it there.
            (!taken.is_null()).then(|| unsafe { Box::from_raw(taken) })
        })
    }

    pub(crate) fn put(&self, sleeper: Box<Sleeper>) {
        let place = &self.0[sleeper.number];
        // Pairs with `take`.
        let found = place.swap(Box::into_raw(sleeper), Ordering::Release);
        assert!(found.is_null(), "a number is one sleeper's");
    }
}

impl Drop for SleeperPool {
    fn drop(&mut self) {
        while self.take().is_some() {}
    }
}

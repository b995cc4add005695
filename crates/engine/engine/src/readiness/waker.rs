//! Ending an engine's wait from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_sys::{EventFd, Result};

use crate::Wake;

/// The waker of a [`ReadinessEngine`](crate::ReadinessEngine). Clones wake the same engine. After
/// the engine has ended they do nothing.
#[derive(Clone, Debug)]
pub struct EventWaker(Arc<WakerState>);

#[derive(Debug)]
struct WakerState {
    eventfd: EventFd,
    /// Whether a wake is pending. The waker that signals sets it, and the engine clears it before
    /// the worker reads its mailboxes. Wakes in between make no system call.
    pending: AtomicBool,
}

impl EventWaker {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Arc::new(WakerState { eventfd: EventFd::new()?, pending: AtomicBool::new(false) })))
    }

    pub(super) fn eventfd(&self) -> &EventFd {
        &self.0.eventfd
    }

    /// Allows the next wake to signal again. Called before the worker reads its mailboxes.
    pub(super) fn clear_pending(&self) {
        // Pairs with the swap in `wake`. A thread that found `pending` set there did not signal, so
        // the worker's next read of the mailboxes has to see that thread's message.
        self.0.pending.swap(false, Ordering::AcqRel);
    }
}

impl Wake for EventWaker {
    fn wake(&self) {
        // Pairs with the swap in `clear_pending`: the later of the two sees everything before the
        // earlier one.
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            self.0.eventfd.signal();
        }
    }
}

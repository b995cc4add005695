//! Ending an engine's wait from another thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_sys::{EventFd, Result};

use crate::Wake;

/// The waker of an engine over [`ReadinessEngine`](crate::ReadinessEngine). Copies wake the same engine; once that
/// is gone they do nothing.
#[derive(Clone, Debug)]
pub struct EventWaker(Arc<WakerState>);

#[derive(Debug)]
struct WakerState {
    eventfd: EventFd,
    /// Whether a wake is on its way: set by the waker that signals, cleared by the engine before
    /// the worker reads its mailboxes. Wakes in between cost no system call.
    pending: AtomicBool,
}

impl EventWaker {
    pub(super) fn new() -> Result<Self> {
        Ok(Self(Arc::new(WakerState { eventfd: EventFd::new()?, pending: AtomicBool::new(false) })))
    }

    pub(super) fn eventfd(&self) -> &EventFd {
        &self.0.eventfd
    }

    /// Says that the worker is about to read: what is written from now on needs a new wake.
    pub(super) fn clear_pending(&self) {
        // Acquires what a waker released by finding `pending` set: if it did not signal because
        // of this wake, its message is seen by the read that follows.
        self.0.pending.swap(false, Ordering::AcqRel);
    }
}

impl Wake for EventWaker {
    fn wake(&self) {
        // Pairs with the swap in `rearm`: whichever comes second sees what came before the other.
        if !self.0.pending.swap(true, Ordering::AcqRel) {
            self.0.eventfd.signal();
        }
    }
}

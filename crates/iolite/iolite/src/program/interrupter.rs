//! Ends a wait of a program, from another thread or from a signal handler.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use millrace_sys::{Errno, EventFd};

/// Interrupts [`ProgramListener::receive`](crate::ProgramListener::receive), for example to end the
/// program. Clones interrupt the same program.
#[derive(Clone, Debug)]
pub struct Interrupter(Arc<State>);

#[derive(Debug)]
struct State {
    /// An interrupt that no call has returned yet. Release in `interrupt`, which pairs with Acquire
    /// in `take`.
    is_pending: AtomicBool,
    /// Ends a wait. Signalled after `is_pending` is set, and cleared before it is read, so that no
    /// wait begins while an interrupt is pending.
    eventfd: EventFd,
}

impl Interrupter {
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub(super) fn new() -> Result<Self, Errno> {
        let (is_pending, eventfd) = (AtomicBool::new(false), EventFd::new()?);
        Ok(Self(Arc::new(State { is_pending, eventfd })))
    }

    /// Lets the current or the next call of
    /// [`ProgramListener::receive`](crate::ProgramListener::receive) return
    /// [`Error::Interrupted`](crate::Error::Interrupted). Several interrupts before that call count
    /// as one. Never waits, and may be called in signal handlers: it writes to an eventfd.
    pub fn interrupt(&self) {
        self.0.is_pending.store(true, Ordering::Release);
        self.0.eventfd.signal();
    }

    /// Returns whether there was an interrupt since the last call.
    pub(super) fn take(&self) -> bool {
        // Reading first leaves the cache line shared while there is none.
        self.0.is_pending.load(Ordering::Acquire)
            && self.0.is_pending.swap(false, Ordering::Acquire)
    }

    /// Returns the descriptor that an interrupt makes readable.
    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.eventfd.as_fd()
    }

    /// Makes the descriptor unreadable. [`Interrupter::take`] has to follow before the next wait.
    pub(super) fn clear(&self) {
        self.0.eventfd.clear();
    }
}

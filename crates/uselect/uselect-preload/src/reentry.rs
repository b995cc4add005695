//! Detects nested waits of one thread: in a signal handler, or by the library itself through the C
//! library. A nested wait is passed to the C library. If it is for an epoll descriptor with a
//! watcher, it fails with EINTR instead.

use std::cell::Cell;

thread_local! {
    // Without a destructor, and initialized when the program is loaded, so that it allocates
    // nothing.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Held during a wait of this thread that the library serves.
pub(crate) struct ReentryGuard(());

impl ReentryGuard {
    /// Returns `None` if this thread is in such a wait already.
    pub(crate) fn enter() -> Option<Self> {
        (!IS_INSIDE.replace(true)).then_some(Self(()))
    }
}

impl Drop for ReentryGuard {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once() {
        let guard = ReentryGuard::enter();
        assert!(guard.is_some() && ReentryGuard::enter().is_none());
        assert!(std::thread::spawn(|| ReentryGuard::enter().is_some()).join().unwrap());
        drop(guard);
        assert!(ReentryGuard::enter().is_some());
    }
}

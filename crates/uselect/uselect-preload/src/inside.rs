//! Whether the calling thread is in a call of ours already: then a signal handler calls, or the
//! library itself by way of the C library, and the call is not for us.

use std::cell::Cell;

thread_local! {
    // Without a destructor, and in a library that is loaded with the program: no allocation.
    static IS_INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Held while a call of ours is under way in this thread.
pub(crate) struct Inside(());

impl Inside {
    /// `None` if one is.
    pub(crate) fn enter() -> Option<Self> {
        (!IS_INSIDE.replace(true)).then_some(Self(()))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        IS_INSIDE.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_is_inside_once() {
        let inside = Inside::enter();
        assert!(inside.is_some() && Inside::enter().is_none());
        assert!(std::thread::spawn(|| Inside::enter().is_some()).join().unwrap());
        drop(inside);
        assert!(Inside::enter().is_some());
    }
}

//! The zero that the engines of one process share.

use crate::Instant;

/// A clock with a zero of its own. Copies of it agree: the main thread makes one and gives it to
/// every engine, so that instants may travel between workers.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// On CLOCK_MONOTONIC; no later than any reading of this clock.
    zero_nanoseconds: u64,
}

impl Clock {
    /// A clock that reads zero now.
    pub fn new() -> Self {
        Self { zero_nanoseconds: millrace_sys::monotonic_nanoseconds() }
    }

    /// The time since this clock's zero. Costs no system call.
    pub fn now(self) -> Instant {
        Instant::from_nanoseconds(millrace_sys::monotonic_nanoseconds() - self.zero_nanoseconds)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

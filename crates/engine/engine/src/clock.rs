//! The clock that the engines of one process share.

use crate::Instant;

/// A monotonic clock that starts at zero. The main thread creates one and gives a copy to every
/// engine. All copies agree, so an instant means the same to every worker.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    /// The value of CLOCK_MONOTONIC when this clock was created. No later value is smaller.
    zero_nanoseconds: u64,
}

impl Clock {
    /// Creates a clock that reads zero now.
    pub fn new() -> Self {
        Self { zero_nanoseconds: millrace_sys::monotonic_nanoseconds() }
    }

    /// Returns the time since this clock's zero. Makes no system call.
    pub fn now(self) -> Instant {
        Instant::from_nanoseconds(millrace_sys::monotonic_nanoseconds() - self.zero_nanoseconds)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

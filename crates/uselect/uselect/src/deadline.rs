//! Deadlines of waits.

use std::time::{Duration, Instant};

/// Returns the deadline of a timeout; `None` without a timeout, or beyond the range of the clock.
pub(crate) fn deadline_of(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// Returns the time until a deadline.
pub(crate) fn remaining(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|at| at.saturating_duration_since(Instant::now()))
}

//! When a wait is over.

use std::time::{Duration, Instant};

/// A timeout beyond what the clock can say is for ever.
pub(crate) fn deadline_of(timeout: Option<Duration>) -> Option<Instant> {
    timeout.and_then(|timeout| Instant::now().checked_add(timeout))
}

/// What is left until then.
pub(crate) fn remaining(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|at| at.saturating_duration_since(Instant::now()))
}

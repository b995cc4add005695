//! Instants of an engine's clock. The clock is monotonic and read once a turn; in the simulator it
//! is virtual.

use std::ops::Add;
use std::time::Duration;

/// A point in time, in nanoseconds since the zero of an engine's clock. The engines of one process
/// share their zero, so instants may be passed between workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// Returns the instant `nanoseconds` after zero.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Returns the nanoseconds since zero.
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Returns the whole milliseconds since zero, rounded down.
    pub const fn milliseconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Returns the time from `earlier` to `self`, or zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the largest instant, 584 years after zero.
    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }
}

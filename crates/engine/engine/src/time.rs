//! The engine's clock: monotonic, read once a turn, virtual in the simulator.

use std::ops::Add;
use std::time::Duration;

/// A point on an engine's monotonic clock, in nanoseconds since that engine's own zero. Two
/// engines of one process share their zero, so that instants may travel between workers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `nanoseconds` after the engine's zero.
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }

    /// Nanoseconds since the engine's zero.
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the engine's zero, rounded down.
    pub const fn milliseconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// The time from `earlier` to `self`; zero when `earlier` is the later one.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates at the end of time, 584 years after zero.
    fn add(self, wait: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX)))
    }
}

//! The time of day that certificates and tickets are checked against.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;

/// A clock that its owner sets. Clones share the time.
#[derive(Clone, Default, Debug)]
pub struct Clock(Arc<AtomicU64>);

impl Clock {
    /// Sets the time of day, as a duration since 1970. Fractions of a second are dropped.
    pub fn set(&self, time_of_day: Duration) {
        // Only the thread that owns the clock reads and writes it, so no other load pairs with it.
        self.0.store(time_of_day.as_secs(), Relaxed);
    }

    /// Returns the time of day, as a duration since 1970.
    pub fn time_of_day(&self) -> Duration {
        Duration::from_secs(self.0.load(Relaxed))
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(self.time_of_day()))
    }
}

//! The times at which the supervisor checks whether certificates, their keys or ticket keys were
//! replaced, so that they are read again without a signal.

use std::time::{Duration, Instant};

use crate::active_config::ActiveConfig;

/// The time at which the files of the certificates are checked again.
pub(super) struct CertificateWatch {
    due: Instant,
}

impl CertificateWatch {
    pub(super) fn new(active: &ActiveConfig) -> Self {
        let interval = Duration::from_millis(active.config().limits.certificate_check_ms);
        Self { due: Instant::now() + interval }
    }

    /// Returns how long the supervisor may sleep before the files have to be checked.
    pub(super) fn time_left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Returns whether it is time to check the files, and sets the next time.
    pub(super) fn take_due(&mut self, active: &ActiveConfig) -> bool {
        let is_due = self.time_left().is_zero();
        if is_due {
            *self = Self::new(active);
        }
        is_due
    }
}

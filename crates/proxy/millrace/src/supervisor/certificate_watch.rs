//! Notices that certificates, their keys or ticket keys were replaced, so that they are read again
//! without a signal.

use std::time::{Duration, Instant};

use crate::active_config::ActiveConfig;
use crate::certificates::FileStamps;

/// The files of the certificates of a process, and when they are looked at again.
pub(super) struct CertificateWatch {
    seen: FileStamps,
    due: Instant,
}

impl CertificateWatch {
    /// Looks at the files of the configuration in force.
    pub(super) fn new(active: &ActiveConfig) -> Self {
        let config = active.config();
        let interval = Duration::from_millis(config.limits.certificate_check_ms);
        Self { seen: FileStamps::of(&config), due: Instant::now() + interval }
    }

    /// Returns how long the supervisor may sleep before the files have to be looked at.
    pub(super) fn time_left(&self) -> Duration {
        self.due.saturating_duration_since(Instant::now())
    }

    /// Looks at the files if it is time to. Returns whether they have changed since the last look.
    /// They may have been reloaded since then: a needless reload is harmless, but a file replaced
    /// during a reload must not be missed.
    pub(super) fn poll_changed(&mut self, active: &ActiveConfig) -> bool {
        if !self.time_left().is_zero() {
            return false;
        }
        let last = std::mem::replace(self, Self::new(active));
        last.seen != self.seen
    }
}

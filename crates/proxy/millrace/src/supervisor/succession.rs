//! The supervisor's state for a successor: the admin addresses and the service manager.

use std::time::Duration;

use crate::admin::AdminListeners;
use crate::systemd::{Systemd, Watchdog};
use crate::takeover::TakeoverChannel;

/// The parts of the supervisor that a takeover or the end of the process changes.
pub(super) struct Succession {
    pub(super) admin_listeners: AdminListeners,
    /// The channel to a successor that has taken over, until no worker listens any more.
    pub(super) successor: Option<TakeoverChannel>,
    /// Whether the process drains as soon as the current takeover, if any, has succeeded or failed.
    pub(super) is_ending: bool,
    pub(super) systemd: Systemd,
    pub(super) watchdog: Option<Watchdog>,
}

impl Succession {
    pub(super) fn new(admin_listeners: AdminListeners, systemd: Systemd) -> Self {
        let watchdog = Watchdog::new(&systemd);
        Self { admin_listeners, successor: None, is_ending: false, systemd, watchdog }
    }

    /// Reports to the service manager that the process ends, and stops the watchdog.
    pub(super) fn end(&mut self) {
        self.systemd.stopping();
        self.watchdog = None;
    }

    /// Returns how long the supervisor may sleep before the watchdog is due.
    pub(super) fn time_left(&self) -> Duration {
        self.watchdog.as_ref().map_or(Duration::MAX, Watchdog::time_left)
    }
}

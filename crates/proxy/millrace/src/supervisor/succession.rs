//! What the supervisor keeps for a successor: the admin addresses, and whom the service manager
//! hears.

use std::time::Duration;

use crate::admin::AdminListeners;
use crate::systemd::{Systemd, Watchdog};
use crate::takeover::TakeoverChannel;

/// What a successor takes over, and what it is told by.
pub(super) struct Succession {
    pub(super) admin_listeners: AdminListeners,
    /// The one that has taken over, until nothing is accepted here any more.
    pub(super) successor: Option<TakeoverChannel>,
    /// The process drains as soon as it is known who serves: it, or one that is taking over.
    pub(super) is_ending: bool,
    pub(super) systemd: Systemd,
    pub(super) watchdog: Option<Watchdog>,
}

impl Succession {
    pub(super) fn new(admin_listeners: AdminListeners, systemd: Systemd) -> Self {
        let watchdog = Watchdog::new(&systemd);
        Self { admin_listeners, successor: None, is_ending: false, systemd, watchdog }
    }

    /// The process drains without a successor: the service manager waits for the end, for no sign
    /// of life.
    pub(super) fn end(&mut self) {
        self.systemd.stopping();
        self.watchdog = None;
    }

    /// The time that the supervisor may sleep for.
    pub(super) fn time_left(&self) -> Duration {
        self.watchdog.as_ref().map_or(Duration::MAX, Watchdog::time_left)
    }
}

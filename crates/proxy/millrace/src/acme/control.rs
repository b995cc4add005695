//! How the process controls the thread that orders certificates.

use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_config::{Acme, Config};

use super::state::checksum;
use super::test_order::TestResult;
use crate::threads::lock;

/// The requests to the thread, and the wake-up.
#[derive(Default)]
pub(super) struct Control {
    state: Mutex<ControlState>,
    /// Notified when `state` changes.
    pub(super) wake: Condvar,
}

#[derive(Default)]
pub(super) struct ControlState {
    /// The thread must end.
    pub(super) is_stopped: bool,
    /// The configuration has changed since the thread looked at it.
    pub(super) has_changed: bool,
    pub(super) has_thread: bool,
    /// The requests for test orders.
    pub(super) tests: Vec<Sender<TestResult>>,
}

impl Control {
    pub(super) fn lock(&self) -> MutexGuard<'_, ControlState> {
        lock(&self.state)
    }

    /// Sleeps. Returns true if the thread must end.
    pub(super) fn sleep(&self, wait: Duration) -> bool {
        let is_early = |state: &mut ControlState| !state.is_stopped;
        let waited = self.wake.wait_timeout_while(self.lock(), wait, is_early);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }

    /// Sleeps until the configuration changes or a test order is requested, and at most `wait`.
    /// Returns true if the thread must end.
    pub(super) fn sleep_until_request(&self, wait: Duration) -> bool {
        let is_early = |state: &mut ControlState| {
            !state.is_stopped && !state.has_changed && state.tests.is_empty()
        };
        let waited = self.wake.wait_timeout_while(self.lock(), wait, is_early);
        waited.unwrap_or_else(PoisonError::into_inner).0.is_stopped
    }
}

/// Returns a checksum of the certificates that a configuration orders.
pub(super) fn orders_checksum(config: &Config) -> String {
    let orders = settings(config).map(|acme| {
        let Acme { mail, names, directory, http, profile, .. } = acme;
        format!("{mail} {names:?} {directory} {http:?} {profile:?}\n")
    });
    format!("{:08x}", checksum(&orders.collect::<String>()))
}

/// Returns the settings of each certificate to order.
pub(super) fn settings(config: &Config) -> impl Iterator<Item = &Acme> {
    config.services.iter().filter_map(|service| service.tls.as_ref()?.acme.as_ref())
}

//! How the process controls the thread that orders certificates.

use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_config::{Acme, Config};

use super::state::checksum;
use super::test_order::TestResult;
use crate::threads::lock;

/// The requests to the thread, and the wake-up.
pub(super) struct Control {
    state: Mutex<ControlState>,
    /// Notified when `state` changes.
    pub(super) wake: Condvar,
}

pub(super) struct ControlState {
    /// The thread must end.
    pub(super) is_stopped: bool,
    /// The configuration whose certificates the thread orders.
    pub(super) config: Arc<Config>,
    /// The configuration has changed since the thread looked at it.
    pub(super) has_changed: bool,
    /// The latest configuration, until its addresses of acme-http are open and it replaces
    /// `config`.
    pub(super) pending: Option<Arc<Config>>,
    pub(super) has_thread: bool,
    /// The requests for test orders.
    pub(super) tests: Vec<Sender<TestResult>>,
}

impl Control {
    pub(super) fn new(config: Arc<Config>) -> Self {
        let state = ControlState {
            is_stopped: false,
            config,
            has_changed: false,
            pending: None,
            has_thread: false,
            tests: Vec::new(),
        };
        Self { state: Mutex::new(state), wake: Condvar::new() }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ControlState> {
        lock(&self.state)
    }

    /// Like [`Control::lock`], after the latest configuration has been applied. Does not wait for
    /// it if the thread must end.
    pub(super) fn lock_latest(&self) -> MutexGuard<'_, ControlState> {
        let is_early = |state: &mut ControlState| state.pending.is_some() && !state.is_stopped;
        let waited = self.wake.wait_while(self.lock(), is_early);
        waited.unwrap_or_else(PoisonError::into_inner)
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

impl ControlState {
    /// Returns whether a configuration is pending, and not another one.
    pub(super) fn is_pending(&self, config: &Arc<Config>) -> bool {
        self.pending.as_ref().is_some_and(|pending| Arc::ptr_eq(pending, config))
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

#[cfg(test)]
mod tests {
    use super::super::job::tests::config;
    use super::*;

    #[test]
    fn the_latest_configuration_is_applied_before_a_test_order() {
        let control = Control::new(Arc::new(config()));
        let latest = Arc::new(config());
        control.lock().pending = Some(Arc::clone(&latest));
        std::thread::scope(|scope| {
            let test = scope.spawn(|| Arc::clone(&control.lock_latest().config));
            {
                let mut state = control.lock();
                assert!(state.is_pending(&latest) && !state.is_pending(&state.config));
                (state.config, state.pending) = (Arc::clone(&latest), None);
            }
            control.wake.notify_all();
            assert!(Arc::ptr_eq(&test.join().unwrap(), &latest));
        });
        let mut state = control.lock();
        (state.pending, state.is_stopped) = (Some(latest), true);
        drop(state);
        assert!(control.lock_latest().is_stopped);
    }
}

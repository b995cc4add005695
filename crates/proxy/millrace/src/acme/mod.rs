//! Certificates by ACME (RFC 8555): a thread of the control plane orders and renews the
//! certificates of the services with the option `acme`. It touches no request; workers only get
//! certificates, also those for challenges.
//!
//! The thread repeats one step for each certificate: lock the state folder, put the stored
//! certificate in force, and order a new one if it is time. So a certificate that another process
//! has ordered, or that was stored just before a kill, is used as well.

mod account;
mod challenge;
mod challenge_listener;
pub(crate) mod check;
mod control;
mod directory;
mod http_listener;
mod issuance;
mod job;
mod order;
mod renewal;
pub(crate) mod report;
pub(crate) mod state;
pub(crate) mod status;
mod test_order;
mod thread;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use millrace_config::Config;
use millrace_proxy::SharedState;

use crate::active_config::ActiveConfig;
use crate::console;
use crate::listeners::{REMOVED_CLOSE_MAX, RETRY_INTERVAL};
use crate::program_error::ProgramError;
use crate::supervisor_requests::SupervisorHandle;
use crate::threads::{lock, spawn};

use challenge::HttpChallenges;
use control::{Control, orders_checksum, settings};
use http_listener::{HttpFailure, HttpThread, log_failure, wanted};
use status::AcmeCounters;
use test_order::{NO_CERTIFICATE, OTHER_ORDERS, TestResult};
use thread::Worker;

pub(crate) use http_listener::{HttpListeners, OpenTime, descriptors_max as http_descriptors_max};

/// The orders of certificates of a process.
pub(crate) struct AcmeOrders {
    control: Arc<Control>,
    active_config: Arc<ActiveConfig>,
    shared: Arc<SharedState>,
    supervisor: SupervisorHandle,
    http: Arc<HttpChallenges>,
    counters: Arc<AcmeCounters>,
    http_state: Mutex<HttpState>,
}

/// The addresses of acme-http.
struct HttpState {
    /// The thread that accepts, since the first address was opened. It runs until this is dropped.
    thread: Option<HttpThread>,
    /// The addresses that could not be opened, which were reported.
    failed: Vec<HttpFailure>,
}

impl AcmeOrders {
    /// Starts to serve the HTTP listeners, and to order the certificates of the configuration
    /// in force and of those that replace it.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start(
        active_config: &Arc<ActiveConfig>,
        shared: &Arc<SharedState>,
        supervisor: SupervisorHandle,
        mut listeners: HttpListeners,
    ) -> Result<Arc<Self>, ProgramError> {
        let http = Arc::<HttpChallenges>::default();
        let failed = std::mem::take(&mut listeners.failed);
        let state = HttpState { thread: listeners.start(&http)?, failed };
        for address in state.addresses() {
            console::log(&format!("acme-http at {address}"));
        }
        let config = active_config.config();
        let orders = Arc::new(Self {
            control: Arc::new(Control::new(Arc::clone(&config))),
            active_config: Arc::clone(active_config),
            shared: Arc::clone(shared),
            supervisor,
            http,
            counters: Arc::default(),
            http_state: Mutex::new(state),
        });
        orders.apply(&config)?;
        let observer = Arc::clone(&orders);
        active_config.on_change(move |config| observer.begin_update(config));
        Ok(orders)
    }

    /// Returns the counters of failures.
    pub(crate) fn counters(&self) -> Arc<AcmeCounters> {
        Arc::clone(&self.counters)
    }

    /// Places a test order for each certificate, between real orders, and waits for the results.
    /// With `orders`, that must be the checksum of the certificates to order.
    ///
    /// # Errors
    /// One line with the failures.
    pub(crate) fn test(&self, orders: Option<&[u8]>) -> TestResult {
        let (sender, result) = channel();
        {
            let mut state = self.control.lock_latest();
            if !state.has_thread {
                return Err(NO_CERTIFICATE.to_owned());
            }
            if state.is_stopped {
                return Err("this process orders no certificates any longer".to_owned());
            }
            let checksum = orders_checksum(&state.config);
            if orders.is_some_and(|orders| orders != checksum.as_bytes()) {
                return Err(OTHER_ORDERS.to_owned());
            }
            state.tests.push(sender);
            self.control.wake.notify_all();
        }
        result.recv().unwrap_or_else(|_| Err("the process ends".to_owned()))
    }

    /// Ends the orders of this process: another process continues them, or this one ends. Does not
    /// wait for the current request.
    pub(crate) fn stop(&self) {
        self.control.lock().is_stopped = true;
        self.control.wake.notify_all();
        drop(lock(&self.http_state).thread.take());
    }

    /// Begins to apply a configuration that was put in force. Another thread does it, because it
    /// may have to wait for the workers, which close removed listeners later.
    fn begin_update(self: &Arc<Self>, config: &Arc<Config>) {
        let former = self.control.lock().pending.replace(Arc::clone(config));
        if former.is_some() {
            // Its thread continues with this one.
            return;
        }
        let (orders, first) = (Arc::clone(self), Arc::clone(config));
        if let Err(error) = spawn("acme-reload", move || orders.update(first)) {
            log_error(&error);
            _ = self.apply(config).inspect_err(log_error);
        }
    }

    /// Applies a pending configuration, and those that replace it meanwhile.
    fn update(&self, mut config: Arc<Config>) {
        loop {
            _ = self.update_http(&config).inspect_err(log_error);
            match self.apply(&config).inspect_err(log_error) {
                Ok(Some(newer)) => config = newer,
                Ok(None) | Err(_) => return,
            }
        }
    }

    /// Makes the thread order the certificates of a configuration, and starts it with the first
    /// one that needs it. If a newer configuration is pending, only returns that.
    fn apply(&self, config: &Arc<Config>) -> Result<Option<Arc<Config>>, ProgramError> {
        let mut state = self.control.lock();
        if let Some(pending) = state.pending.as_ref().filter(|it| !Arc::ptr_eq(it, config)) {
            return Ok(Some(Arc::clone(pending)));
        }
        state.pending = None;
        (state.config, state.has_changed) = (Arc::clone(config), true);
        self.control.wake.notify_all();
        if state.has_thread || state.is_stopped || settings(config).next().is_none() {
            return Ok(None);
        }
        let worker = Worker {
            control: Arc::clone(&self.control),
            active_config: Arc::clone(&self.active_config),
            shared: Arc::clone(&self.shared),
            supervisor: self.supervisor.clone(),
            http: Arc::clone(&self.http),
            counters: Arc::clone(&self.counters),
            folders: HashMap::new(),
        };
        spawn("acme", move || worker.run())?;
        state.has_thread = true;
        Ok(None)
    }

    /// Opens and closes the addresses of acme-http as a configuration wants them. For a while, an
    /// address that is in use is tried again.
    fn update_http(&self, config: &Arc<Config>) -> Result<(), ProgramError> {
        let mut http = lock(&self.http_state);
        let before = http.addresses();
        let result = self.replace_http(&mut http, config);
        let after = http.addresses();
        for address in before.iter().filter(|address| !after.contains(address)) {
            console::log(&format!("acme-http no longer at {address}"));
        }
        for address in after.iter().filter(|address| !before.contains(address)) {
            console::log(&format!("acme-http at {address}"));
        }
        result
    }

    fn replace_http(&self, http: &mut HttpState, config: &Arc<Config>) -> Result<(), ProgramError> {
        if let Some(thread) = &http.thread {
            thread.keep(&wanted(config));
        }
        let deadline = Instant::now() + REMOVED_CLOSE_MAX;
        let is_current = || {
            let state = self.control.lock();
            state.is_pending(config) && !state.is_stopped
        };
        let time = OpenTime::Reload;
        let mut opened = HttpListeners::open_missing(config, &http.addresses(), time, || {
            Instant::now() < deadline && !self.control.sleep(RETRY_INTERVAL) && is_current()
        });
        // The next configuration, if any, decides about the addresses.
        if !is_current() {
            return Ok(());
        }
        let failed = std::mem::take(&mut opened.failed);
        for failure in failed.iter().filter(|failure| !http.failed.contains(failure)) {
            log_failure(*failure, time);
        }
        http.failed = failed;
        match &http.thread {
            Some(thread) => thread.add(opened)?,
            None => http.thread = opened.start(&self.http)?,
        }
        Ok(())
    }
}

impl HttpState {
    /// Returns the addresses from which the thread accepts.
    fn addresses(&self) -> Vec<SocketAddr> {
        self.thread.as_ref().map(HttpThread::addresses).unwrap_or_default()
    }
}

fn log_error(error: &ProgramError) {
    console::log(&error.to_string());
}

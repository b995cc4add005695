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
use http_listener::{HttpThread, wanted};
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
    /// The thread of the HTTP listeners, which runs until this is dropped.
    http_thread: Mutex<Option<HttpThread>>,
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
        listeners: HttpListeners,
    ) -> Result<Arc<Self>, ProgramError> {
        let http = Arc::<HttpChallenges>::default();
        let http_thread = listeners.start(&http)?;
        for address in addresses(http_thread.as_ref()) {
            console::log(&format!("acme-http at {address}"));
        }
        let orders = Arc::new(Self {
            control: Arc::default(),
            active_config: Arc::clone(active_config),
            shared: Arc::clone(shared),
            supervisor,
            http,
            counters: Arc::default(),
            http_thread: Mutex::new(http_thread),
        });
        orders.apply()?;
        let observer = Arc::clone(&orders);
        active_config.on_change(move |_| {
            let (orders, deadline) = (Arc::clone(&observer), Instant::now() + REMOVED_CLOSE_MAX);
            // Another thread can wait for the workers, which close removed listeners later.
            let thread = spawn("acme-reload", move || {
                for result in [orders.update_http(deadline), orders.apply()] {
                    _ = result.inspect_err(|error| console::log(&error.to_string()));
                }
            });
            _ = thread.inspect_err(|error| console::log(&error.to_string()));
        });
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
        let checksum = orders_checksum(&self.active_config.config());
        let (sender, result) = channel();
        {
            let mut state = self.control.lock();
            if !state.has_thread {
                return Err(NO_CERTIFICATE.to_owned());
            }
            if state.is_stopped {
                return Err("this process orders no certificates any longer".to_owned());
            }
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
        drop(lock(&self.http_thread).take());
    }

    /// Applies the configuration in force. Starts the thread with the first one that needs it.
    fn apply(&self) -> Result<(), ProgramError> {
        let config = self.active_config.config();
        let mut state = self.control.lock();
        state.has_changed = true;
        self.control.wake.notify_all();
        if state.has_thread || state.is_stopped || settings(&config).next().is_none() {
            return Ok(());
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
        Ok(())
    }

    /// Opens and closes the addresses of acme-http as the configuration in force wants them. Until
    /// `deadline`, an address that is in use is tried again.
    fn update_http(&self, deadline: Instant) -> Result<(), ProgramError> {
        let mut thread = lock(&self.http_thread);
        let config = self.active_config.config();
        let before = addresses(thread.as_ref());
        let result = self.replace_http(&mut thread, &config, deadline);
        let after = addresses(thread.as_ref());
        for address in before.iter().filter(|address| !after.contains(address)) {
            console::log(&format!("acme-http no longer at {address}"));
        }
        for address in after.iter().filter(|address| !before.contains(address)) {
            console::log(&format!("acme-http at {address}"));
        }
        result
    }

    fn replace_http(
        &self,
        thread: &mut Option<HttpThread>,
        config: &Config,
        deadline: Instant,
    ) -> Result<(), ProgramError> {
        let wanted = wanted(config);
        let open = thread.as_ref().map_or(&[][..], |thread| &thread.open);
        let is_open = open.len() == wanted.len() && wanted.iter().all(|it| open.contains(it));
        if is_open || self.control.lock().is_stopped {
            return Ok(());
        }
        let mut listeners = thread.take().map(HttpThread::end).unwrap_or_default();
        listeners.keep(&wanted);
        // The kept addresses are served during the wait.
        *thread = listeners.start(&self.http)?;
        let kept = addresses(thread.as_ref());
        let opened = HttpListeners::open_missing(config, &kept, OpenTime::Reload, || {
            Instant::now() < deadline && !self.control.sleep(RETRY_INTERVAL)
        });
        let mut listeners = thread.take().map(HttpThread::end).unwrap_or_default();
        listeners.extend(opened);
        *thread = listeners.start(&self.http)?;
        Ok(())
    }
}

/// Returns the addresses from which a thread accepts.
fn addresses(thread: Option<&HttpThread>) -> Vec<SocketAddr> {
    thread.into_iter().flat_map(|thread| &thread.open).map(|(address, _)| *address).collect()
}

//! What the workers of one process share.

use std::fmt::Arguments;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use millrace_store::Cache;

use crate::counters::{Counters, Requests};
use crate::origin::shared_health::SharedHealth;
use crate::overload::per_client::SharedClientCounts;

/// State that all workers of a process share.
#[derive(Debug)]
pub struct SharedState {
    /// The counters of each worker, by its index.
    pub counters: Vec<Arc<Counters>>,
    /// The name of this process in Via; no other process in the network should have it.
    pub pseudonym: Arc<str>,
    /// The system's congestion control, where `auto` differs from it: it is not
    /// [`crate::congestion::NEAR`], and the kernel has that as well.
    pub system_congestion: Option<Arc<str>>,
    /// Reports something once to the operator of the process.
    pub notify_operator: fn(&str),
    /// Receives a line for each move of the driver; `None`: moves are not traced. Builds without
    /// debug assertions never call it.
    pub trace: Option<fn(Arguments<'_>)>,
    /// The health of the origins.
    pub health: SharedHealth,
    /// Requests of the services, counted by status.
    pub requests: Requests,
    /// The stored responses, if any are stored.
    pub cache: Option<Arc<Cache>>,
    pub(crate) all_clients: SharedClientCounts,
    /// The operator was told that accepting pauses.
    pub(crate) pause_reported: AtomicBool,
}

impl SharedState {
    /// For `workers` workers.
    pub fn new(
        workers: usize,
        pseudonym: String,
        system_congestion: Option<Arc<str>>,
        cache: Option<Arc<Cache>>,
        notice: fn(&str),
        trace: Option<fn(Arguments<'_>)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            counters: (0..workers).map(|_| Arc::default()).collect(),
            pseudonym: pseudonym.into(),
            system_congestion,
            notify_operator: notice,
            trace,
            health: SharedHealth::new(workers),
            requests: Requests::default(),
            cache,
            all_clients: SharedClientCounts::default(),
            pause_reported: AtomicBool::new(false),
        })
    }
}

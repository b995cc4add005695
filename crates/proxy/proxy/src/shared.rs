//! The state that the workers of a process share.

use std::fmt::Arguments;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use millrace_files::UploadFolders;
use millrace_store::Cache;
use millrace_tls::{Aead, Provider};

use crate::counters::{Counters, Requests};
use crate::files::{FileThreads, SharedFiles};
use crate::origin::shared_health::SharedHealth;
use crate::overload::per_client::SharedClientCounts;
use crate::secure::challenges::SharedChallenges;
use crate::secure::tickets::SharedTicketKeys;

/// State that all workers of a process share.
#[derive(Debug)]
pub struct SharedState {
    /// The counters of each worker, by its index.
    pub counters: Vec<Arc<Counters>>,
    /// The name of this process in Via. It should be unique in the network.
    pub pseudonym: Arc<str>,
    /// The system's congestion control algorithm, for services whose congestion control is `auto`
    /// (see `congestion.rs`). `None` if it is [`crate::congestion::NEARBY`], or if the kernel does
    /// not have `NEARBY`. In both cases `auto` changes no algorithm.
    pub system_congestion: Option<Arc<str>>,
    /// Reports a message to the operator of the process.
    pub notify_operator: fn(&str),
    /// Receives a line for each step of the driver; `None` if steps are not traced. Only builds
    /// with debug assertions call it.
    pub trace: Option<fn(Arguments<'_>)>,
    /// The health of the origins.
    pub health: SharedHealth,
    /// The requests of each service, counted by status.
    pub requests: Requests,
    /// The cache, if there is one.
    pub cache: Option<Arc<Cache>>,
    /// The cryptography of TLS.
    pub tls_provider: Provider,
    /// The keys of session tickets.
    pub ticket_keys: SharedTicketKeys,
    /// The certificates of challenges of ACME.
    pub challenges: SharedChallenges,
    /// The threads that open and read files.
    pub files: FileThreads,
    /// The client of iolited, which has files in memory. Set at most once, before the first worker
    /// runs.
    pub iolited: OnceLock<Arc<SharedFiles>>,
    /// The folders for bodies of requests that are too long for memory. Set at most once, before
    /// the first worker runs.
    pub uploads: OnceLock<Arc<UploadFolders>>,
    pub(crate) all_clients: SharedClientCounts,
    /// Whether the operator was informed that accepting pauses.
    pub(crate) pause_reported: AtomicBool,
}

impl SharedState {
    /// Creates the state for `workers` workers.
    pub fn new(
        workers: usize,
        pseudonym: String,
        system_congestion: Option<Arc<str>>,
        cache: Option<Arc<Cache>>,
        notify_operator: fn(&str),
        trace: Option<fn(Arguments<'_>)>,
    ) -> Arc<Self> {
        Arc::new(Self {
            counters: (0..workers).map(|_| Arc::default()).collect(),
            pseudonym: pseudonym.into(),
            system_congestion,
            notify_operator,
            trace,
            health: SharedHealth::new(workers),
            requests: Requests::default(),
            cache,
            tls_provider: Provider::new(Aead::fastest()),
            ticket_keys: SharedTicketKeys::default(),
            challenges: SharedChallenges::default(),
            files: FileThreads::default(),
            iolited: OnceLock::new(),
            uploads: OnceLock::new(),
            all_clients: SharedClientCounts::default(),
            pause_reported: AtomicBool::new(false),
        })
    }
}

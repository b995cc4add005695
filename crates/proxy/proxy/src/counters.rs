//! The counters of a worker. Only the worker writes its counters; the metrics page, `demo` and
//! other workers read them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use millrace_tls::TlsErrorKind;

use crate::exchange::Reason;

/// A number that one thread writes and other threads read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Returns a recent value of the number.
    pub fn get(&self) -> u64 {
        // Pairs with the stores below. Relaxed is enough: no other memory depends on the value.
        self.0.load(Ordering::Relaxed)
    }

    /// Adds to the number. There is only one writer, so a load and a store suffice instead of an
    /// atomic addition.
    pub(crate) fn add(&self, more: u64) {
        // Pairs with the load in `get`.
        self.0.store(self.0.load(Ordering::Relaxed) + more, Ordering::Relaxed);
    }

    /// Subtracts from a gauge.
    pub(crate) fn subtract(&self, less: u64) {
        // Pairs with the load in `get`.
        self.0.store(self.0.load(Ordering::Relaxed) - less, Ordering::Relaxed);
    }

    /// Sets a gauge.
    pub(crate) fn set(&self, value: u64) {
        // Pairs with the load in `get`.
        self.0.store(value, Ordering::Relaxed);
    }
}

/// A counter for each reason.
#[derive(Debug)]
pub struct PerReason([Counter; Reason::ALL.len()]);

impl Default for PerReason {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl PerReason {
    /// Returns a recent value of the counter of a reason.
    pub fn get(&self, reason: Reason) -> u64 {
        self.0[reason as usize].get()
    }

    /// Returns the sum over all reasons.
    pub fn sum(&self) -> u64 {
        self.0.iter().map(Counter::get).sum()
    }

    pub(crate) fn add(&self, reason: Reason) {
        self.0[reason as usize].add(1);
    }
}

/// A counter for each kind of failure of TLS.
#[derive(Debug, Default)]
pub struct PerTlsError([Counter; TlsErrorKind::ALL.len()]);

impl PerTlsError {
    /// Returns a recent value of the counter of a kind.
    pub fn get(&self, kind: TlsErrorKind) -> u64 {
        self.0[kind as usize].get()
    }

    pub(crate) fn add(&self, kind: TlsErrorKind) {
        self.0[kind as usize].add(1);
    }
}

/// Counters of the statuses sent to clients: one for each status from 100 to 599, one for all other
/// statuses, and one for requests that got no response.
#[derive(Debug)]
pub struct PerStatus([Counter; STATUSES + 2]);

/// The number of statuses from 100 on that have a counter of their own.
const STATUSES: usize = 500;

impl Default for PerStatus {
    fn default() -> Self {
        Self(std::array::from_fn(|_| Counter::default()))
    }
}

impl PerStatus {
    /// Returns a recent value of each counter, with its label.
    pub fn all(&self) -> impl Iterator<Item = (StatusLabel, u64)> {
        self.0.iter().enumerate().map(|(index, counter)| {
            let label = match index {
                0..STATUSES => StatusLabel::Status(index as u16 + 100),
                STATUSES => StatusLabel::Other,
                _ => StatusLabel::NoResponse,
            };
            (label, counter.get())
        })
    }

    /// Counts a request by the status of its response; 0 if it got none.
    pub(crate) fn add(&self, status: u16) {
        let index = match status {
            100..600 => usize::from(status) - 100,
            0 => STATUSES + 1,
            _ => STATUSES,
        };
        self.0[index].add(1);
    }
}

/// The label of a counter of [`PerStatus`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum StatusLabel {
    /// Responses with this status.
    Status(u16),
    /// Responses with a status above 599.
    Other,
    /// Requests that ended without a response.
    NoResponse,
}

impl fmt::Display for StatusLabel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Status(status) => write!(f, "{status}"),
            Self::Other => f.write_str("other"),
            Self::NoResponse => f.write_str("none"),
        }
    }
}

/// The requests of each service by status, for each worker. The key is the name of the service, so
/// that the counters survive a reload.
#[derive(Debug, Default)]
pub struct Requests(Mutex<BTreeMap<Arc<str>, Arc<[PerStatus]>>>);

impl Requests {
    /// Returns the counters of a service, one entry per worker. Creating them removes the counters
    /// of services that no snapshot uses any more, so that reloads do not accumulate counters.
    pub(crate) fn of(&self, service: &str, workers: usize) -> Arc<[PerStatus]> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(counters) = all.get(service) {
            return counters.clone();
        }
        all.retain(|_, counters| Arc::strong_count(counters) > 1);
        let new: Arc<[PerStatus]> = (0..workers).map(|_| PerStatus::default()).collect();
        all.insert(service.into(), new.clone());
        new
    }

    /// Returns the counters of all services with their names, one entry per worker.
    pub fn all(&self) -> Vec<(Arc<str>, Arc<[PerStatus]>)> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|(name, counters)| (name.clone(), counters.clone())).collect()
    }
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $kind:ident $name:ident;)*) => {
        /// The counters and gauges of one worker.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: Counter,)*
            /// Responses that millrace generated to refuse a request.
            pub responses_generated: PerReason,
            /// Exchanges that were cut short, or ended without a response.
            pub exchanges_aborted: PerReason,
            /// TLS handshakes of clients that failed.
            pub tls_handshakes_failed: PerTlsError,
            /// TLS sessions of clients that failed after their handshake.
            pub tls_sessions_failed: PerTlsError,
            /// Connections that other workers have handed over and that this worker has not
            /// admitted yet. They hold descriptors. This is the only field that other workers
            /// write.
            pub handed_over: AtomicUsize,
        }

        impl Counters {
            /// The name, help text and kind of each counter, and a function that reads it.
            pub const TABLE: &'static [CounterRow] = &[$(CounterRow {
                name: stringify!($name),
                help: concat!($($doc),+),
                kind: CounterKind::$kind,
                read: |counters| counters.$name.get(),
            }),*];
        }
    };
}

/// The description of one counter for the metrics page.
pub struct CounterRow {
    /// The name, without the prefix of the metrics page.
    pub name: &'static str,
    /// The help text: one or two sentences.
    pub help: &'static str,
    /// Whether the number may decrease.
    pub kind: CounterKind,
    /// Reads the number.
    pub read: fn(&Counters) -> u64,
}

/// The kind of a number in the metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CounterKind {
    /// The number only increases.
    Counter,
    /// The number may increase and decrease.
    Gauge,
}

counters! {
    /// Client connections accepted.
    Counter connections_accepted;
    /// Client connections closed before their first request: the client address had reached its
    /// limit, the worker had no room for it, its listener was removed, or its PROXY protocol header
    /// was missing, malformed or from an untrusted peer.
    Counter connections_refused;
    /// Client connections handed to another worker.
    Counter connections_handed_over;
    /// Stalled client connections that were closed to make room.
    Counter connections_shed;
    /// Open client connections.
    Gauge connections;
    /// Times that accepting paused because no connection or file descriptor was free.
    Counter accept_pauses;
    /// Exchanges (request and response) that ended.
    Counter exchanges;
    /// Exchanges in progress.
    Gauge exchanges_open;
    /// Responses cut short because the origin or the client ended the connection.
    Counter responses_aborted;
    /// Tunnels opened by CONNECT or Upgrade.
    Counter tunnels;
    /// Connections opened to origins.
    Counter origin_connections_opened;
    /// Requests sent over an origin connection of an earlier request.
    Counter origin_connections_reused;
    /// Requests sent on an origin connection before the responses to earlier requests.
    Counter origin_requests_pipelined;
    /// Pipelined requests that were sent again on another connection, because the requests before
    /// them took too long, or their connection ended.
    Counter origin_requests_displaced;
    /// Origins to which requests are no longer pipelined, because of a wrong response.
    Counter origin_pipelines_ended;
    /// Open origin connections, including idle ones.
    Gauge origin_connections;
    /// Requests sent again on another connection.
    Counter retries;
    /// Retries that the retry budget did not allow.
    Counter retries_refused;
    /// Times that an origin was ejected, so that it gets no requests for a while.
    Counter origin_ejections;
    /// Requests sent to an ejected origin to test whether it has recovered.
    Counter origin_probes;
    /// Times that an ejected origin was readmitted: it responded to a request, or the configuration
    /// no longer ejects origins.
    Counter origin_readmissions;
    /// TLS handshakes of clients that were completed.
    Counter tls_handshakes;
    /// TLS handshakes of clients that resumed an earlier session.
    Counter tls_handshakes_resumed;
    /// TLS handshakes with origins that were completed.
    Counter origin_tls_handshakes;
    /// TLS handshakes with origins that resumed an earlier session.
    Counter origin_tls_handshakes_resumed;
    /// Requests that wait for a connection to their origin.
    Gauge origin_requests_queued;
    /// Requests refused because the queue of their origin was full, or because they had waited too
    /// long in it.
    Counter origin_queue_refusals;
    /// Requests served from the cache without a request to the origin.
    Counter cache_hits;
    /// Cacheable requests that were sent to the origin because no stored response could be used.
    Counter cache_misses;
    /// Stored responses that the origin confirmed (304).
    Counter cache_validated;
    /// Requests to origins that validate a stale response while clients already get it.
    Counter cache_refreshes;
    /// Requests that waited for the response to another request.
    Counter cache_collapsed;
    /// Responses stored.
    Counter cache_stored;
    /// Bytes of bodies received into the cache.
    Counter cache_filled_bytes;
    /// Bytes of bodies and tunnels from clients to origins.
    Counter uploaded_bytes;
    /// Bytes of bodies and tunnels that clients received, from origins or from the cache.
    Counter downloaded_bytes;
    /// Bytes of bodies and tunnels, in both directions, that went through a pipe inside the kernel.
    Counter spliced_bytes;
    /// Bytes of bodies and tunnels, in both directions, that were sent from memory. Bytes that the
    /// cache sends by reference do not count. An exchange is counted when it ends.
    Counter copied_bytes;
    /// Bytes of bodies to clients that went through a pipe and were duplicated into a second pipe
    /// for the cache. An exchange is counted when it ends.
    Counter teed_bytes;
    /// Operations such as recv and splice that moved bodies and tunnels. An engine may combine
    /// several operations into one system call. An exchange is counted when it ends.
    Counter transfer_syscalls;
    /// Times that bytes were copied because no pipe was free or the kernel refused one.
    Counter pipes_refused;
    /// Open pipes.
    Gauge pipes;
    /// Open listening sockets.
    Gauge listeners;
    /// Replies of the worker to the checks of the service manager's watchdog.
    Counter watchdog_replies;
    /// Bytes that connections buffer in user memory.
    Gauge buffered_bytes;
    /// Times that the worker was restarted after a panic, which resets its connections.
    Counter worker_restarts;
    /// Number of the configuration in force. A reload increments it.
    Gauge config_generation;
    /// Configurations in use: the one in force, and older ones of exchanges in progress.
    Gauge configs_in_use;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_is_counted_under_its_label() {
        let counters = PerStatus::default();
        for status in [0, 100, 200, 200, 599, 600, 999] {
            counters.add(status);
        }
        let counted = counters.all().filter(|(_, count)| *count > 0);
        let counted: Vec<_> = counted.map(|(label, count)| (label.to_string(), count)).collect();
        let expected = [("100", 1), ("200", 2), ("599", 1), ("other", 2), ("none", 1)];
        assert_eq!(counted, expected.map(|(label, count)| (label.to_owned(), count)));
    }

    #[test]
    fn each_reason_has_a_counter_of_its_own() {
        let counters = PerReason::default();
        for (index, reason) in Reason::ALL.iter().enumerate() {
            (0..=index).for_each(|_| counters.add(*reason));
        }
        for (index, reason) in Reason::ALL.iter().enumerate() {
            assert_eq!(counters.get(*reason), index as u64 + 1);
        }
    }

    #[test]
    fn counters_of_a_service_survive_reloads_until_its_name_is_removed() {
        let requests = Requests::default();
        let names = |requests: &Requests| -> Vec<String> {
            requests.all().into_iter().map(|(name, _)| name.to_string()).collect()
        };
        let one = requests.of("one", 2);
        one[1].add(200);
        let again = requests.of("one", 2);
        assert!(Arc::ptr_eq(&one, &again));
        drop((one, again));
        let _other = requests.of("other", 2);
        assert_eq!(names(&requests), ["other"]);
    }
}

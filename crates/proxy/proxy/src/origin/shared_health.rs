//! The health of origins that the workers of a process share, and the results of the health checks.
//! A worker reads one number per pick; it reads more only after a change.
//!
//! The shared health survives reloads. An origin keeps its state while its address stays in the
//! configuration. A health check keeps its result while its request stays the same.

use std::collections::{BTreeMap, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_config::{
    Config, HostHeader, Origin, OriginTls, Route, SendProxy, Service, write_origin,
};
use millrace_engine::Instant;
use millrace_http1::{HeaderWriter, Http1Header, ProxyHeader, Version};

use crate::counters::Counter;
use crate::origin::outage::{Notifier, SharedOutage};
use crate::origin::pipeline_state::SharedPipelineState;
use crate::origin::process_waits::ProcessWaits;
use crate::origin::{Ejection, HealthChange, PendingReport};

pub use crate::origin::outage::{FailureCause, Outage};
pub use crate::origin::pipeline_state::{PipelineFault, PipelineState};

/// The health of all origins of a process.
#[derive(Debug, Default)]
pub struct SharedHealth {
    /// The number of changes that affect picks.
    version: AtomicU64,
    /// The number of workers; 0 in the default value only, which counts as one.
    workers: usize,
    /// Notified of each failure, and of the end of each outage and of pipelining to an origin.
    notifier: Notifier,
    /// [`Outage::generation`] of the origin that was registered last.
    generation: AtomicU64,
    origins: Mutex<HashMap<Origin, Arc<SharedOrigin>>>,
    checks: Mutex<HashMap<HealthCheck, Arc<CheckResult>>>,
}

/// The state of one origin that all workers share.
#[derive(Debug)]
pub(crate) struct SharedOrigin {
    published: Mutex<PublishedHealth>,
    pub(crate) outage: SharedOutage,
    /// Whether requests may be pipelined to the origin.
    pub(crate) pipelining: SharedPipelineState,
    /// The connections that wait for a process of the origin.
    pub(super) process_waits: Arc<ProcessWaits>,
    /// The counters of each worker, by its index.
    counters: Box<[OriginCounters]>,
}

/// The counters of one worker for a configured origin. They are on a cache line of their own,
/// because each worker writes its counters for each request.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct OriginCounters {
    pub(crate) requests: Counter,
    pub(crate) responses_5xx: Counter,
    pub(crate) connect_errors: Counter,
    pub(crate) response_errors: Counter,
    pub(crate) in_flight: Counter,
}

impl SharedOrigin {
    fn new(workers: usize, generation: u64) -> Self {
        let counters = (0..workers.max(1)).map(|_| OriginCounters::default()).collect();
        let outage = SharedOutage::new(generation);
        Self {
            published: Mutex::default(),
            outage,
            pipelining: SharedPipelineState::default(),
            process_waits: Arc::default(),
            counters,
        }
    }

    /// Returns the counters of a worker.
    pub(crate) fn counters(&self, worker: usize) -> &OriginCounters {
        &self.counters[worker]
    }

    pub(crate) fn published(&self) -> PublishedHealth {
        *lock(&self.published)
    }

    fn sum(&self, of: impl Fn(&OriginCounters) -> &Counter) -> u64 {
        self.counters.iter().map(|counters| of(counters).get()).sum()
    }
}

/// The health of an origin, as the workers have published it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PublishedHealth {
    /// Failures in a row at all workers together; 0 while the origin is ejected.
    pub(crate) failures: u32,
    pub(crate) ejection: Option<Ejection>,
}

/// A health check: the request that is sent to an origin, and the responses that it accepts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HealthCheck {
    /// The origin that is checked.
    pub origin: Origin,
    /// The request target, which begins with a slash.
    pub path: String,
    /// The value of Host.
    pub host: String,
    /// The PROXY protocol header that begins the connection, if the origin expects one.
    pub send_proxy: SendProxy,
    /// The lowest and the highest status that the check accepts.
    pub statuses: (u16, u16),
    /// The TLS settings; `None` if the origin is reached without TLS.
    pub tls: Option<Arc<OriginTls>>,
}

impl Hash for HealthCheck {
    /// Leaves the TLS settings out, which have no hash. Few checks differ only by them.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { origin, path, host, send_proxy, statuses, tls: _ } = self;
        (origin, path, host, send_proxy, statuses).hash(state);
    }
}

impl HealthCheck {
    /// Returns the checks of a route: one for each of its origins, in their order, if the route is
    /// configured to have any.
    pub fn of_route(route: &Route) -> impl Iterator<Item = Self> {
        let check = route.check.as_ref();
        check.into_iter().flat_map(|check| Self::of_origins(route, &check.path, check.statuses))
    }

    fn of_origins(route: &Route, path: &str, statuses: (u16, u16)) -> impl Iterator<Item = Self> {
        route.origins.iter().map(move |origin| Self {
            origin: origin.clone(),
            path: path.to_owned(),
            host: host_sent(route, origin),
            send_proxy: route.send_proxy,
            statuses,
            tls: route
                .origin_tls
                .clone()
                .filter(|_| matches!(origin, Origin::Tcp { tls: true, .. })),
        })
    }

    /// Returns a check of each origin to which a configuration pipelines requests. Its path is that
    /// of the health checks, or `/`.
    pub fn of_pipelining(config: &Config) -> Vec<Self> {
        let mut checks: Vec<Self> = Vec::new();
        let routes = config.services.iter().flat_map(Service::routes);
        for route in routes.filter(|route| route.pipeline_depth > 1) {
            let path = route.check.as_ref().map_or("/", |check| &check.path);
            for check in Self::of_origins(route, path, (200, 599)) {
                if checks.iter().all(|other| other.origin != check.origin) {
                    checks.push(check);
                }
            }
        }
        checks
    }

    /// Returns the origin as it is written in the configuration.
    pub fn name(&self) -> String {
        write_origin(&self.origin)
    }

    /// Returns the PROXY header with which the connection of the check begins, before TLS. It marks
    /// the connection as the proxy's own rather than a client's. Empty if the route sends none.
    pub fn proxy_header(&self) -> Vec<u8> {
        let (proxy_header, mut bytes) = (ProxyHeader::default(), Vec::new());
        match self.send_proxy {
            SendProxy::Off => {}
            SendProxy::V1 => proxy_header.write_v1(&mut bytes),
            SendProxy::V2 => proxy_header.write_v2(&mut bytes),
        }
        bytes
    }

    /// Returns a request of the check. The origin closes the connection after it unless
    /// `persists`.
    pub fn request(&self, method: &[u8], persists: bool) -> Vec<u8> {
        let mut request = Vec::new();
        let mut header = Http1Header::new(&mut request);
        header.request(method, self.path.as_bytes(), |host| host.extend(self.host.bytes()));
        header.field(b"User-Agent", b"millrace-check");
        header.persistence(Version::Http11, persists);
        header.end();
        request
    }

    /// Returns the checks of a configuration, each once.
    pub fn of_config(config: &Config) -> Vec<Self> {
        let mut checks: Vec<Self> = Vec::new();
        let routes = config.services.iter().flat_map(Service::routes);
        for check in routes.flat_map(Self::of_route) {
            if !checks.contains(&check) {
                checks.push(check);
            }
        }
        checks
    }
}

/// Returns the value of Host in a check: the host of the origin. If the route sends the Host of the
/// client and has a host that is not a wildcard, the check sends the host of the route instead.
fn host_sent(route: &Route, origin: &Origin) -> String {
    let named = route.host.as_ref().filter(|host| !host.starts_with('*'));
    match (named, route.host_header, origin) {
        (Some(host), HostHeader::Client, _) => bracketed(host),
        (
            _,
            _,
            Origin::Tcp { host, port: 80, tls: false } | Origin::Tcp { host, port: 443, tls: true },
        ) => bracketed(host),
        (_, _, Origin::Tcp { host, port, .. }) => format!("{}:{port}", bracketed(host)),
        (_, _, Origin::Unix(_)) => "localhost".to_owned(),
    }
}

/// Returns the host with brackets around an IPv6 address.
fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// The latest result of a health check.
#[derive(Debug, Default)]
pub(crate) struct CheckResult {
    is_failing: AtomicBool,
}

impl CheckResult {
    pub(crate) fn is_failing(&self) -> bool {
        // Pairs with the swap in `SharedHealth::set_check_result`. Relaxed is enough: workers read
        // this when the version has changed, which happens after the swap.
        self.is_failing.load(Ordering::Relaxed)
    }
}

/// The status of an origin, for reports.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginStatus {
    /// The origin, as it is written in the configuration.
    pub origin: String,
    /// The path of a health check; `None` if the status comes from the requests of clients.
    pub check: Option<String>,
    /// Whether the origin receives requests. An entry with a `check` judges by that check alone, an
    /// entry without one by the requests of clients alone.
    pub up: bool,
    /// Failures in a row.
    pub failures: u32,
    /// Whether requests are pipelined to the origin; `None` for a health check, and if it is not
    /// tested.
    pub is_pipelined: Option<bool>,
    /// The statistics of the requests of clients; `None` for a health check.
    pub stats: Option<OriginStats>,
}

/// Statistics of a configured origin, summed over all workers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OriginStats {
    /// Requests for which the origin was picked. Each retry counts.
    pub requests: u64,
    /// Responses with a status from 500 on.
    pub responses_5xx: u64,
    /// Failures to open a connection.
    pub connect_errors: u64,
    /// Requests to which the origin sent no valid response header.
    pub response_errors: u64,
    /// Requests for which the origin was picked and that have not left it.
    pub in_flight: u64,
}

impl SharedHealth {
    /// Creates the shared health of `workers` workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Records a failed request to an origin.
    pub(crate) fn record_failure(&self, entry: &SharedOrigin, cause: FailureCause, now: Instant) {
        entry.outage.record_failure(cause, now, &self.notifier);
    }

    /// Records the first response of an origin after a failure.
    pub(crate) fn record_response(&self, entry: &SharedOrigin, now: Instant) {
        entry.outage.record_response(now, &self.notifier);
    }

    /// Waits until a request has failed, or an outage or pipelining to an origin has ended, since
    /// the last wait, or until the timeout is over.
    pub fn wait_for_outages(&self, timeout: Duration) {
        self.notifier.wait(timeout);
    }

    /// Returns the configured origins with failed requests, in the order of their names.
    pub fn outages(&self) -> Vec<(String, Outage)> {
        let mut outages: Vec<_> = lock(&self.origins)
            .iter()
            .filter(|(_, entry)| is_in_use(entry))
            .map(|(origin, entry)| (origin, entry.outage.read()))
            .filter(|(_, outage)| outage.failures > 0)
            .map(|(origin, outage)| (write_origin(origin), outage))
            .collect();
        outages.sort_by(|one, other| one.0.cmp(&other.0));
        outages
    }

    /// Permits pipelining to an origin that has passed the test, unless it has ended.
    pub fn permit_pipelining(&self, origin: &Origin) {
        if let Some(entry) = lock(&self.origins).get(origin) {
            entry.pipelining.permit();
        }
    }

    /// Ends pipelining to an origin that has failed the test.
    pub fn refuse_pipelining(&self, origin: &Origin) {
        if let Some(entry) = lock(&self.origins).get(origin) {
            self.end_pipelining(entry, PipelineFault::FailedTest);
        }
    }

    /// Ends pipelining to an origin that did something wrong. Returns false if it had ended before.
    pub(crate) fn end_pipelining(&self, entry: &SharedOrigin, fault: PipelineFault) -> bool {
        let has_ended = entry.pipelining.end(fault);
        if has_ended {
            self.notifier.notify();
        }
        has_ended
    }

    /// Returns whether requests may be pipelined to the configured origins, in the order of their
    /// names.
    pub fn pipelining(&self) -> BTreeMap<String, PipelineState> {
        let origins = lock(&self.origins);
        let in_use = origins.iter().filter(|(_, entry)| is_in_use(entry));
        in_use.map(|(origin, entry)| (write_origin(origin), entry.pipelining.get())).collect()
    }

    /// Returns the number of changes that affect picks.
    pub(crate) fn version(&self) -> u64 {
        // Pairs with the addition in `bump_version`: writes before that are visible after this.
        self.version.load(Ordering::Acquire)
    }

    fn bump_version(&self) {
        // Pairs with the load in `version`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// Returns the shared state of an origin, which is kept while a reference to it exists.
    pub(crate) fn register_origin(&self, origin: &Origin) -> Arc<SharedOrigin> {
        get_or_insert(&self.origins, origin, || {
            // Relaxed: the numbers only have to be distinct.
            let generation = 1 + self.generation.fetch_add(1, Ordering::Relaxed);
            SharedOrigin::new(self.workers, generation)
        })
    }

    /// Returns the result of a check, which is kept while a reference to it exists. It begins as a
    /// success.
    pub(crate) fn register_check(&self, check: &HealthCheck) -> Arc<CheckResult> {
        get_or_insert(&self.checks, check, CheckResult::default)
    }

    /// Stores the result of a check. A check that no snapshot uses is ignored.
    pub fn set_check_result(&self, check: &HealthCheck, up: bool) {
        let Some(entry) = lock(&self.checks).get(check).cloned() else { return };
        // Pairs with the load in `CheckResult::is_failing`.
        if entry.is_failing.swap(!up, Ordering::Relaxed) == up {
            self.bump_version();
        }
    }

    /// Publishes a change that a worker found. Of two ejections the one that ends later is kept.
    pub(crate) fn publish_change(&self, entry: &SharedOrigin, change: HealthChange) {
        let mut published = lock(&entry.published);
        let ejection = match (change, published.ejection) {
            (HealthChange::Ejected(new), Some(old)) if old.until > new.until => Some(old),
            (HealthChange::Ejected(new), _) => Some(new),
            (HealthChange::Readmitted, _) => None,
        };
        *published = PublishedHealth { failures: 0, ejection };
        drop(published);
        self.bump_version();
    }

    /// Adds a worker's report to the published health, and returns the sum. The sum of the failures
    /// of all workers may eject the origin. The version changes on an ejection, on the first
    /// failure in a row, and on the response that ends a row, so that all workers apply these.
    pub(crate) fn publish_report(
        &self,
        entry: &SharedOrigin,
        report: PendingReport,
        now: Instant,
        limits: &Limits,
    ) -> PublishedHealth {
        let mut published = lock(&entry.published);
        if published.ejection.is_some() {
            return *published;
        }
        let had_failed = published.failures > 0;
        let before = if report.responded { 0 } else { published.failures };
        published.failures = before.saturating_add(report.failures);
        let max = limits.eject_failures;
        if max > 0 && u64::from(published.failures) >= max {
            let ejection = Some(Ejection::new(None, now, limits));
            *published = PublishedHealth { failures: 0, ejection };
            self.bump_version();
        } else if had_failed != (published.failures > 0) {
            // All workers have to learn of the first failure: only a worker that knows of a failure
            // reports the response that ends it.
            self.bump_version();
        }
        *published
    }

    /// Returns the status of the configured origins, in the order of their names: one entry for the
    /// requests of clients, and one for each path of a health check.
    pub fn statuses(&self) -> Vec<OriginStatus> {
        let mut statuses: Vec<_> = lock(&self.origins)
            .iter()
            .filter(|(_, entry)| is_in_use(entry))
            .map(|(origin, entry)| {
                let published = entry.published();
                OriginStatus {
                    origin: write_origin(origin),
                    check: None,
                    up: published.ejection.is_none(),
                    failures: published.failures,
                    is_pipelined: match entry.pipelining.get() {
                        PipelineState::Untested => None,
                        state => Some(state == PipelineState::Permitted),
                    },
                    stats: Some(OriginStats {
                        requests: entry.sum(|counters| &counters.requests),
                        responses_5xx: entry.sum(|counters| &counters.responses_5xx),
                        connect_errors: entry.sum(|counters| &counters.connect_errors),
                        response_errors: entry.sum(|counters| &counters.response_errors),
                        in_flight: entry.sum(|counters| &counters.in_flight),
                    }),
                }
            })
            .collect();
        let checks = lock(&self.checks);
        let held = checks.iter().filter(|(_, entry)| is_in_use(entry));
        statuses.extend(held.map(|(check, entry)| OriginStatus {
            origin: write_origin(&check.origin),
            check: Some(check.path.clone()),
            up: !entry.is_failing(),
            failures: 0,
            is_pipelined: None,
            stats: None,
        }));
        statuses
            .sort_by(|one, other| (&one.origin, &one.check).cmp(&(&other.origin, &other.check)));
        // Checks that differ only in Host or in the accepted statuses are merged into one entry.
        statuses.dedup_by(|next, row| {
            let is_same = (&next.origin, &next.check) == (&row.origin, &row.check);
            row.up &= next.up || !is_same;
            is_same
        });
        statuses
    }
}

/// Returns the entry of a key, and creates it if there is none. Creating one removes the entries
/// that no snapshot uses any more, so that reloads do not accumulate entries.
fn get_or_insert<K: Clone + Eq + Hash, M>(
    all: &Mutex<HashMap<K, Arc<M>>>,
    key: &K,
    make: impl FnOnce() -> M,
) -> Arc<M> {
    let mut all = lock(all);
    if let Some(entry) = all.get(key) {
        return entry.clone();
    }
    all.retain(|_, entry| is_in_use(entry));
    all.entry(key.clone()).or_insert_with(|| Arc::new(make())).clone()
}

/// Returns whether a reference to the entry exists outside of its table.
fn is_in_use<M>(entry: &Arc<M>) -> bool {
    Arc::strong_count(entry) > 1
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static LIMITS: LazyLock<Limits> = LazyLock::new(|| Limits {
        eject_failures: 3,
        eject_ms: 10_000,
        eject_ms_max: 30_000,
        ..Limits::default()
    });

    fn origin(port: u16) -> Origin {
        Origin::Tcp { host: "app.example".to_owned(), port, tls: false }
    }

    #[test]
    fn failures_of_all_workers_add_up_until_one_of_them_gets_a_response() {
        let health = SharedHealth::default();
        let entry = health.register_origin(&origin(80));
        let now = Instant::default();
        let publish = |responded, failures| {
            health.publish_report(&entry, PendingReport { responded, failures }, now, &LIMITS)
        };
        assert_eq!(publish(false, 2).failures, 2);
        assert_eq!(publish(true, 1).failures, 1);
        assert_eq!(publish(false, 1).failures, 2);
        assert_eq!(health.version(), 1, "only the first failure in a row");
        assert_eq!((publish(true, 0).failures, health.version()), (0, 2));
        assert_eq!((publish(true, 0).failures, health.version()), (0, 2));
        assert_eq!((publish(false, 2).failures, health.version()), (2, 3));
        assert!(publish(false, 1).ejection.is_some());
        assert_eq!(health.version(), 4);
        health.publish_change(&entry, HealthChange::Readmitted);
        assert_eq!((health.version(), entry.published()), (5, PublishedHealth::default()));
    }

    #[test]
    fn entries_live_while_they_are_referenced() {
        let health = SharedHealth::default();
        let kept = health.register_origin(&origin(1));
        drop(health.register_origin(&origin(2)));
        let again = health.register_origin(&origin(1));
        assert!(Arc::ptr_eq(&kept, &again));
        assert_eq!(kept.outage.read().generation, 1);
        let _third = health.register_origin(&origin(3));
        let names: Vec<_> = health.statuses().into_iter().map(|status| status.origin).collect();
        assert_eq!(names, ["http://app.example:1", "http://app.example:3"]);
        assert_eq!(
            health.register_origin(&origin(2)).outage.read().generation,
            4,
            "another generation"
        );
    }

    #[test]
    fn a_check_begins_as_the_connections_of_its_route_do() {
        let words = |version| ["boost", "--origin=http://a:81", "--check=/up?", version];
        for (version, before) in [
            ("--send-proxy=off", &b""[..]),
            ("--send-proxy=v1", b"PROXY UNKNOWN\r\n"),
            ("--send-proxy=v2", b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"),
        ] {
            let config = millrace_config::from_arguments(words(version)).unwrap();
            let check = &HealthCheck::of_config(&config)[0];
            assert_eq!(check.proxy_header(), before, "{version}");
            let request = check.request(b"GET", false);
            let line = b"GET /up? HTTP/1.1\r\nHost: a:81\r\n";
            assert!(request.starts_with(line) && request.ends_with(b"\r\n\r\n"), "{version}");
        }
    }

    #[test]
    fn an_origin_has_one_status_for_each_path_of_a_check() {
        let health = SharedHealth::default();
        let check = |path: &str, host: &str| HealthCheck {
            origin: origin(80),
            path: path.to_owned(),
            host: host.to_owned(),
            send_proxy: SendProxy::Off,
            statuses: (200, 399),
            tls: None,
        };
        let checks = [check("/a", "one"), check("/a", "two"), check("/b", "one")];
        let _marks = checks.each_ref().map(|check| health.register_check(check));
        health.set_check_result(&checks[1], false);
        let statuses: Vec<_> =
            health.statuses().into_iter().map(|row| (row.check.unwrap(), row.up)).collect();
        assert_eq!(statuses, [("/a".to_owned(), false), ("/b".to_owned(), true)]);
    }

    #[test]
    fn a_check_changes_the_version_only_when_its_result_changes() {
        let health = SharedHealth::default();
        let statuses = (200, 399);
        let (path, host) = ("/".to_owned(), "a".to_owned());
        let send_proxy = SendProxy::Off;
        let tls = None;
        let check = HealthCheck { origin: origin(80), path, host, send_proxy, statuses, tls };
        health.set_check_result(&check, false);
        assert_eq!(health.version(), 0, "no snapshot uses it");
        let entry = health.register_check(&check);
        for (up, version) in [(true, 0), (false, 1), (false, 1), (true, 2)] {
            health.set_check_result(&check, up);
            assert_eq!((entry.is_failing(), health.version()), (!up, version));
        }
        // A failing check that leaves the configuration and comes back begins as a success.
        health.set_check_result(&check, false);
        drop(entry);
        health.set_check_result(&check, true);
        assert!(!health.register_check(&check).is_failing());
    }
}

//! What all workers know of the origins together, and what the health checks found: one board a
//! process. Workers read one number of it per pick; all else moves only when something changes.
//!
//! The board outlives configurations: an origin is known by its address, a check by what it asks.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_config::limits::Limits;
use millrace_config::{Config, HostHeader, Origin, Route, SendProxy, Service, write_origin};
use millrace_engine::Instant;
use millrace_http1::{HeaderWriter, Http1Header, ProxyHeader, Version};

use crate::counters::Counter;
use crate::origin::outage::{Notifier, SharedOutage};
use crate::origin::{Ejection, HealthChange, PendingReport};

pub use crate::origin::outage::{FailureCause, Outage};

/// The board of a process.
#[derive(Debug, Default)]
pub struct SharedHealth {
    /// Counts what changed for those who pick.
    version: AtomicU64,
    /// At least 1, but for a default board.
    workers: usize,
    /// Rings at each failure and at the end of each outage.
    notifier: Notifier,
    /// [`Outage::generation`] of the latest mark of an origin.
    generation: AtomicU64,
    origins: Mutex<HashMap<Origin, Arc<SharedOrigin>>>,
    checks: Mutex<HashMap<HealthCheck, Arc<CheckResult>>>,
}

/// What is known of one origin.
#[derive(Debug)]
pub(crate) struct SharedOrigin {
    published: Mutex<PublishedHealth>,
    pub(crate) outage: SharedOutage,
    /// One a worker.
    counters: Box<[OriginCounters]>,
}

/// What one worker counts of a configured origin. On cache lines of its own: workers write theirs
/// for each request.
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
        Self { published: Mutex::default(), outage: SharedOutage::new(generation), counters }
    }

    /// What a worker counts.
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

/// What the workers told about an origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct PublishedHealth {
    /// In a row, of all workers; 0 while it is ejected.
    pub(crate) failures: u32,
    pub(crate) ejection: Option<Ejection>,
}

/// What a health check asks, and of whom.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct HealthCheck {
    /// Who is asked.
    pub origin: Origin,
    /// The target, from its slash on.
    pub path: String,
    /// What stands in Host.
    pub host: String,
    /// The PROXY protocol header that comes first: the origin expects one on every connection.
    pub send_proxy: SendProxy,
    /// The first and the last status of an origin that is well.
    pub statuses: (u16, u16),
}

impl HealthCheck {
    /// The checks of a route, one for each of its origins in their order; none if it has none.
    pub fn of_route(route: &Route) -> impl Iterator<Item = Self> {
        let asked = route.check.as_ref();
        asked.into_iter().flat_map(|check| {
            route.origins.iter().map(|origin| Self {
                origin: origin.clone(),
                path: check.path.clone(),
                host: host_sent(route, origin),
                send_proxy: route.send_proxy,
                statuses: check.statuses,
            })
        })
    }

    /// What the origin is called.
    pub fn name(&self) -> String {
        write_origin(&self.origin)
    }

    /// All that is sent on the check's connection. A PROXY header says that it is our own, and no
    /// client's.
    pub fn request(&self) -> Vec<u8> {
        let ours = ProxyHeader::default();
        let mut request = Vec::new();
        match self.send_proxy {
            SendProxy::Off => {}
            SendProxy::V1 => ours.write_v1(&mut request),
            SendProxy::V2 => ours.write_v2(&mut request),
        }
        let mut header = Http1Header::new(&mut request);
        header.request(b"GET", self.path.as_bytes(), |host| host.extend(self.host.bytes()));
        header.field(b"User-Agent", b"millrace-check");
        header.persistence(Version::Http11, false);
        header.end();
        request
    }

    /// The checks of a configuration, each once.
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

/// What the origin sees as Host in a check. What clients ask for is known only where the route
/// names one host.
fn host_sent(route: &Route, origin: &Origin) -> String {
    let named = route.host.as_ref().filter(|host| !host.starts_with('*'));
    match (named, route.host_header, origin) {
        (Some(host), HostHeader::Client, _) => bracketed(host),
        (_, _, Origin::Tcp { host, port: 80 }) => bracketed(host),
        (_, _, Origin::Tcp { host, port }) => format!("{}:{port}", bracketed(host)),
        (_, _, Origin::Unix(_)) => "localhost".to_owned(),
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// What a health check found.
#[derive(Debug, Default)]
pub(crate) struct CheckResult {
    is_failing: AtomicBool,
}

impl CheckResult {
    pub(crate) fn is_failing(&self) -> bool {
        // Pairs with the store in `Board::set_check`. The version, which changes after it, is what
        // makes workers look: relaxed is enough.
        self.is_failing.load(Ordering::Relaxed)
    }
}

/// How an origin stands, to be shown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OriginStatus {
    /// As in the configuration.
    pub origin: String,
    /// The path of the checks that this is about; `None`: what the requests of clients showed.
    pub check: Option<String>,
    /// Whether it is asked by the requests of clients, as far as this goes.
    pub up: bool,
    /// Failures in a row.
    pub failures: u32,
    /// What the requests of clients counted; `None` of a check.
    pub stats: Option<OriginStats>,
}

/// What all workers counted of a configured origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OriginStats {
    /// Requests that it was picked for, each try.
    pub requests: u64,
    /// Responses with a status from 500 on.
    pub responses_5xx: u64,
    /// Times that no connection could be opened.
    pub connect_errors: u64,
    /// Requests to which the origin sent no valid response header.
    pub response_errors: u64,
    /// Requests that it was picked for and that have not ended there.
    pub in_flight: u64,
}

impl SharedHealth {
    /// For `workers` workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers, ..Self::default() }
    }

    /// Records that an attempt at an origin failed.
    pub(crate) fn record_failure(&self, mark: &SharedOrigin, cause: FailureCause, now: Instant) {
        mark.outage.record_failure(cause, now, &self.notifier);
    }

    /// Records the first response of an origin after a failure.
    pub(crate) fn record_response(&self, mark: &SharedOrigin, now: Instant) {
        mark.outage.record_response(now, &self.notifier);
    }

    /// Waits until an attempt has failed or an outage has ended since the last wait, for at most
    /// `most`.
    pub fn wait_for_outages(&self, most: Duration) {
        self.notifier.wait(most);
    }

    /// Returns the configured origins with failed attempts, in the order of their names.
    pub fn outages(&self) -> Vec<(String, Outage)> {
        let mut outages: Vec<_> = lock(&self.origins)
            .iter()
            .filter(|(_, mark)| is_in_use(mark))
            .map(|(origin, mark)| (origin, mark.outage.read()))
            .filter(|(_, outage)| outage.failures > 0)
            .map(|(origin, outage)| (write_origin(origin), outage))
            .collect();
        outages.sort_by(|one, other| one.0.cmp(&other.0));
        outages
    }

    /// Rises with each change that matters to a pick.
    pub(crate) fn version(&self) -> u64 {
        // Pairs with the addition in `changed`: what was written before it is seen after this.
        self.version.load(Ordering::Acquire)
    }

    fn bump_version(&self) {
        // Pairs with the load in `version`.
        self.version.fetch_add(1, Ordering::Release);
    }

    /// What is known of an origin, from now on kept as long as somebody holds it.
    pub(crate) fn register_origin(&self, origin: &Origin) -> Arc<SharedOrigin> {
        get_or_insert(&self.origins, origin, || {
            // Needs no order, only to differ: relaxed.
            let generation = 1 + self.generation.fetch_add(1, Ordering::Relaxed);
            SharedOrigin::new(self.workers, generation)
        })
    }

    /// What a check found; well until it finds something else.
    pub(crate) fn register_check(&self, check: &HealthCheck) -> Arc<CheckResult> {
        get_or_insert(&self.checks, check, CheckResult::default)
    }

    /// Says what a check found. One that nobody picks by is of no interest.
    pub fn set_check_result(&self, check: &HealthCheck, up: bool) {
        let Some(mark) = lock(&self.checks).get(check).cloned() else { return };
        // Pairs with the load in `CheckMark::fails`.
        if mark.is_failing.swap(!up, Ordering::Relaxed) == up {
            self.bump_version();
        }
    }

    /// Tells all workers what one of them found out at once.
    pub(crate) fn publish_change(&self, mark: &SharedOrigin, change: HealthChange) {
        let mut told = lock(&mark.published);
        let ejection = match (change, told.ejection) {
            (HealthChange::Ejected(new), Some(old)) if old.until > new.until => Some(old),
            (HealthChange::Ejected(new), _) => Some(new),
            (HealthChange::Readmitted, _) => None,
        };
        *told = PublishedHealth { failures: 0, ejection };
        drop(told);
        self.bump_version();
    }

    /// Adds a worker's failures to those of the others; gives what they are together. They may
    /// suffice to eject. That a row of them has begun, or ended, all workers hear.
    pub(crate) fn publish_report(
        &self,
        mark: &SharedOrigin,
        news: PendingReport,
        now: Instant,
        limits: &Limits,
    ) -> PublishedHealth {
        let mut told = lock(&mark.published);
        if told.ejection.is_some() {
            return *told;
        }
        let had_failed = told.failures > 0;
        let before = if news.responded { 0 } else { told.failures };
        told.failures = before.saturating_add(news.failures);
        let max = limits.eject_failures;
        if max > 0 && u64::from(told.failures) >= max {
            let ejection = Some(Ejection::new(None, now, limits));
            *told = PublishedHealth { failures: 0, ejection };
            self.bump_version();
        } else if had_failed != (told.failures > 0) {
            // A worker says that it was answered only where it knows of failures.
            self.bump_version();
        }
        *told
    }

    /// How the origins stand that some worker picks from, in the order of their names; each once,
    /// and once with each path of a check.
    pub fn statuses(&self) -> Vec<OriginStatus> {
        let mut shown: Vec<_> = lock(&self.origins)
            .iter()
            .filter(|(_, mark)| is_in_use(mark))
            .map(|(origin, mark)| {
                let told = mark.published();
                OriginStatus {
                    origin: write_origin(origin),
                    check: None,
                    up: told.ejection.is_none(),
                    failures: told.failures,
                    stats: Some(OriginStats {
                        requests: mark.sum(|counters| &counters.requests),
                        responses_5xx: mark.sum(|counters| &counters.responses_5xx),
                        connect_errors: mark.sum(|counters| &counters.connect_errors),
                        response_errors: mark.sum(|counters| &counters.response_errors),
                        in_flight: mark.sum(|counters| &counters.in_flight),
                    }),
                }
            })
            .collect();
        let checks = lock(&self.checks);
        let held = checks.iter().filter(|(_, mark)| is_in_use(mark));
        shown.extend(held.map(|(check, mark)| OriginStatus {
            origin: write_origin(&check.origin),
            check: Some(check.path.clone()),
            up: !mark.is_failing(),
            failures: 0,
            stats: None,
        }));
        shown.sort_by(|one, other| (&one.origin, &one.check).cmp(&(&other.origin, &other.check)));
        // Checks that differ in what they expect, or in Host, are one to whoever looks.
        shown.dedup_by(|next, row| {
            let is_same = (&next.origin, &next.check) == (&row.origin, &row.check);
            row.up &= next.up || !is_same;
            is_same
        });
        shown
    }
}

/// The entry of a key. Those that no snapshot holds any more are forgotten on the way, so that
/// reloads do not add up.
fn get_or_insert<K: Clone + Eq + Hash, M>(
    all: &Mutex<HashMap<K, Arc<M>>>,
    key: &K,
    make: impl FnOnce() -> M,
) -> Arc<M> {
    let mut all = lock(all);
    if let Some(mark) = all.get(key) {
        return mark.clone();
    }
    all.retain(|_, mark| is_in_use(mark));
    all.entry(key.clone()).or_insert_with(|| Arc::new(make())).clone()
}

/// Whether anybody has a mark beside the board itself.
fn is_in_use<M>(mark: &Arc<M>) -> bool {
    Arc::strong_count(mark) > 1
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    static RULES: LazyLock<Limits> = LazyLock::new(|| Limits {
        eject_failures: 3,
        eject_ms: 10_000,
        eject_ms_max: 30_000,
        ..Limits::default()
    });

    fn origin(port: u16) -> Origin {
        Origin::Tcp { host: "app.example".to_owned(), port }
    }

    #[test]
    fn failures_of_all_workers_add_up_and_an_answer_at_any_of_them_ends_the_row() {
        let board = SharedHealth::default();
        let mark = board.register_origin(&origin(80));
        let now = Instant::default();
        let tell = |answered, failures| {
            board.publish_report(
                &mark,
                PendingReport { responded: answered, failures },
                now,
                &RULES,
            )
        };
        assert_eq!(tell(false, 2).failures, 2);
        assert_eq!(tell(true, 1).failures, 1);
        assert_eq!(tell(false, 1).failures, 2);
        assert_eq!(board.version(), 1, "of a row only that it began");
        assert_eq!((tell(true, 0).failures, board.version()), (0, 2));
        assert_eq!((tell(true, 0).failures, board.version()), (0, 2));
        assert_eq!((tell(false, 2).failures, board.version()), (2, 3));
        assert!(tell(false, 1).ejection.is_some());
        assert_eq!(board.version(), 4);
        board.publish_change(&mark, HealthChange::Readmitted);
        assert_eq!((board.version(), mark.published()), (5, PublishedHealth::default()));
    }

    #[test]
    fn entries_live_as_long_as_somebody_holds_them() {
        let board = SharedHealth::default();
        let kept = board.register_origin(&origin(1));
        drop(board.register_origin(&origin(2)));
        let again = board.register_origin(&origin(1));
        assert!(Arc::ptr_eq(&kept, &again));
        assert_eq!(kept.outage.read().generation, 1);
        let _third = board.register_origin(&origin(3));
        let names: Vec<_> = board.statuses().into_iter().map(|shown| shown.origin).collect();
        assert_eq!(names, ["http://app.example:1", "http://app.example:3"]);
        assert_eq!(board.register_origin(&origin(2)).outage.read().generation, 4, "it came back");
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
            let request = HealthCheck::of_config(&config)[0].request();
            let request = request.strip_prefix(before).unwrap();
            let line = b"GET /up? HTTP/1.1\r\nHost: a:81\r\n";
            assert!(request.starts_with(line) && request.ends_with(b"\r\n\r\n"), "{version}");
        }
    }

    #[test]
    fn what_is_shown_of_an_origin_is_one_row_for_each_path() {
        let board = SharedHealth::default();
        let check = |path: &str, host: &str| HealthCheck {
            origin: origin(80),
            path: path.to_owned(),
            host: host.to_owned(),
            send_proxy: SendProxy::Off,
            statuses: (200, 399),
        };
        let checks = [check("/a", "one"), check("/a", "two"), check("/b", "one")];
        let _marks = checks.each_ref().map(|check| board.register_check(check));
        board.set_check_result(&checks[1], false);
        let shown: Vec<_> =
            board.statuses().into_iter().map(|row| (row.check.unwrap(), row.up)).collect();
        assert_eq!(shown, [("/a".to_owned(), false), ("/b".to_owned(), true)]);
    }

    #[test]
    fn a_check_counts_only_when_it_finds_something_else() {
        let board = SharedHealth::default();
        let statuses = (200, 399);
        let (path, host) = ("/".to_owned(), "a".to_owned());
        let send_proxy = SendProxy::Off;
        let check = HealthCheck { origin: origin(80), path, host, send_proxy, statuses };
        board.set_check_result(&check, false);
        assert_eq!(board.version(), 0, "nobody picks by it");
        let mark = board.register_check(&check);
        for (up, version) in [(true, 0), (false, 1), (false, 1), (true, 2)] {
            board.set_check_result(&check, up);
            assert_eq!((mark.is_failing(), board.version()), (!up, version));
        }
        // One that left the configuration while it failed, and comes back.
        board.set_check_result(&check, false);
        drop(mark);
        board.set_check_result(&check, true);
        assert!(!board.register_check(&check).is_failing());
    }
}

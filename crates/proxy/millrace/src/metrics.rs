//! The metrics page: the counters of the workers, the cache and the process. A request reads the
//! counters when it arrives; this module stores nothing.
//!
//! One table per collector holds the names, kinds and help texts. The metrics page and
//! `docs/metrics.md` ([`reference_page`]) both come from these tables.

use std::collections::{BTreeMap, HashSet};
use std::fmt::{self, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use millrace_engine::LogSink;
use millrace_proxy::SharedState;
use millrace_proxy::counters::{CounterKind, Counters, PerReason, PerStatus, PerTlsError};
use millrace_proxy::reason::Reason;
use millrace_proxy::shared_health::OriginStatus;
use millrace_store::Cache;
use millrace_tls::TlsErrorKind;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit};

use crate::acme::status::{AcmeCounters, Step};
use crate::cache_metrics::CACHE_METRICS;
use crate::certificates::CertificateExpiry;
use crate::reload_counters::ReloadCounters;

/// A format of the metrics page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum MetricsFormat {
    OpenMetrics,
    /// The text format 0.0.4 of Prometheus.
    PrometheusText,
}

impl MetricsFormat {
    /// Returns the value of Content-Type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::PrometheusText => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// All metrics of the process.
pub(crate) struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Creates the metrics of the state that the workers share, of the access log and of reloads.
    pub(crate) fn new(
        shared: &Arc<SharedState>,
        log: LogSink,
        reloads: Arc<ReloadCounters>,
    ) -> Self {
        let mut registry = Registry::default();
        let started = millrace_sys::time_of_day();
        registry.register_collector(Box::new(ReasonCollector(Arc::clone(shared))));
        registry.register_collector(Box::new(TlsFailureCollector(Arc::clone(shared))));
        registry.register_collector(Box::new(WorkerCollector(Arc::clone(shared))));
        registry.register_collector(Box::new(ProcessCollector { log, reloads, started }));
        registry.register_collector(Box::new(RequestCollector(Arc::clone(shared))));
        registry.register_collector(Box::new(OriginCollector(Arc::clone(shared))));
        if let Some(cache) = &shared.cache {
            registry.register_collector(Box::new(CacheCollector(Arc::clone(cache))));
        }
        Self { registry }
    }

    /// Adds the metrics of certificates: those that `expiries` returns, and the failures of ACME.
    pub(crate) fn add_certificates(
        &mut self,
        expiries: impl Fn() -> Vec<CertificateExpiry> + Send + Sync + 'static,
        acme: Arc<AcmeCounters>,
    ) {
        let expiries = CertificateCollector(Box::new(expiries));
        self.registry.register_collector(Box::new(expiries));
        self.registry.register_collector(Box::new(AcmeCollector(acme)));
    }

    /// Returns the current page.
    pub(crate) fn page(&self, format: MetricsFormat) -> String {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a string takes every write");
        match format {
            MetricsFormat::OpenMetrics => page,
            MetricsFormat::PrometheusText => to_prometheus_text(&page),
        }
    }
}

/// Converts an OpenMetrics page to the text format 0.0.4 of Prometheus. That format has no UNIT and
/// no EOF, and its HELP and TYPE lines name a counter with `_total`.
fn to_prometheus_text(page: &str) -> String {
    let types = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let counters: HashSet<&str> =
        types.filter(|(_, kind)| *kind == "counter").map(|(name, _)| name).collect();
    let mut text = String::with_capacity(page.len());
    for line in page.lines() {
        let comment = ["# HELP ", "# TYPE "].into_iter().find(|start| line.starts_with(start));
        let counter = comment.and_then(|start| {
            let (name, rest) = line[start.len()..].split_once(' ')?;
            counters.contains(name).then_some((start, name, rest))
        });
        let _ = match counter {
            _ if line == "# EOF" || line.starts_with("# UNIT ") => Ok(()),
            Some((start, name, rest)) => writeln!(text, "{start}{name}_total {rest}"),
            None => writeln!(text, "{line}"),
        };
    }
    text
}

/// The description of one metric.
struct Metric {
    /// The name. A counter's samples append `_total`.
    name: &'static str,
    kind: CounterKind,
    labels: &'static [&'static str],
    help: &'static str,
}

const fn counter(
    name: &'static str,
    labels: &'static [&'static str],
    help: &'static str,
) -> Metric {
    Metric { name, kind: CounterKind::Counter, labels, help }
}

const fn gauge(name: &'static str, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind: CounterKind::Gauge, labels, help }
}

impl Metric {
    /// Writes HELP, TYPE and UNIT.
    fn describe<'a>(
        &'a self,
        encoder: &'a mut DescriptorEncoder<'_>,
    ) -> Result<MetricEncoder<'a>, fmt::Error> {
        describe(encoder, self.name, self.kind, self.help)
    }
}

/// Writes HELP, TYPE and UNIT of a metric. The library appends the unit to the name.
fn describe<'a>(
    encoder: &'a mut DescriptorEncoder<'_>,
    name: &'a str,
    kind: CounterKind,
    help: &str,
) -> Result<MetricEncoder<'a>, fmt::Error> {
    static UNITS: [Unit; 2] = [Unit::Bytes, Unit::Seconds];
    let kind = match kind {
        CounterKind::Counter => MetricType::Counter,
        CounterKind::Gauge => MetricType::Gauge,
    };
    for unit in &UNITS {
        let base = name.strip_suffix(unit.as_str()).and_then(|name| name.strip_suffix('_'));
        if let Some(base) = base {
            return encoder.encode_descriptor(base, help, Some(unit), kind);
        }
    }
    encoder.encode_descriptor(name, help, None, kind)
}

/// Writes one sample.
fn encode(value: u64, kind: CounterKind, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        CounterKind::Counter => ConstCounter::new(value).encode(encoder),
        CounterKind::Gauge => {
            ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder)
        }
    }
}

/// The prefix of the names in [`Counters::TABLE`].
const PREFIX: &str = "millrace_";

/// The counters of each worker.
#[derive(Debug)]
struct WorkerCollector(Arc<SharedState>);

impl Collector for WorkerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for row in Counters::TABLE {
            let name = format!("{PREFIX}{}", row.name);
            let mut family = describe(&mut encoder, &name, row.kind, row.help.trim())?;
            for (index, counters) in self.0.counters.iter().enumerate() {
                let labels = [("worker", index.to_string())];
                encode((row.read)(counters), row.kind, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A metric with a sample for each reason, whether it counts generated responses, and its counter.
type ReasonMetric = (Metric, bool, fn(&Counters) -> &PerReason);

const REASON_METRICS: [ReasonMetric; 2] = [
    (
        counter(
            "millrace_responses_generated",
            &["reason"],
            "Responses that millrace generated itself because it refused a request or could not \
             serve it.",
        ),
        true,
        |counters| &counters.responses_generated,
    ),
    (
        counter(
            "millrace_exchanges_aborted",
            &["reason"],
            "Exchanges that were cut short or ended without a response.",
        ),
        false,
        |counters| &counters.exchanges_aborted,
    ),
];

/// The counters of all workers by reason, summed.
#[derive(Debug)]
struct ReasonCollector(Arc<SharedState>);

impl Collector for ReasonCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (metric, has_response, read) in &REASON_METRICS {
            let mut family = metric.describe(&mut encoder)?;
            for &reason in Reason::ALL {
                let workers = self.0.counters.iter();
                let sum: u64 = workers.map(|counters| read(counters).get(reason)).sum();
                // A reason that belongs to the metric has a sample from the start, so that rate()
                // sees its first increase.
                if sum > 0 || (reason.status() != 0) == *has_response {
                    let labels = [("reason", reason.word())];
                    encode(sum, metric.kind, family.encode_family(&labels)?)?;
                }
            }
        }
        Ok(())
    }
}

const FAILED_HANDSHAKES: Metric = counter(
    "millrace_tls_handshakes_failed",
    &["reason"],
    "TLS handshakes of clients that failed.",
);

/// The metrics of failures of TLS by reason, and their counters.
const TLS_FAILURE_METRICS: [TlsFailureMetric; 2] = [
    (FAILED_HANDSHAKES, |counters| &counters.tls_handshakes_failed),
    (FAILED_SESSIONS, |counters| &counters.tls_sessions_failed),
];

type TlsFailureMetric = (Metric, fn(&Counters) -> &PerTlsError);

const FAILED_SESSIONS: Metric = counter(
    "millrace_tls_sessions_failed",
    &["reason"],
    "TLS sessions of clients that failed after their handshake, by a bad record or an alert.",
);

/// Failed TLS handshakes and sessions by reason, summed over the workers.
#[derive(Debug)]
struct TlsFailureCollector(Arc<SharedState>);

impl Collector for TlsFailureCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for (metric, of) in TLS_FAILURE_METRICS {
            let mut family = metric.describe(&mut encoder)?;
            for &kind in TlsErrorKind::ALL {
                let sum: u64 = self.0.counters.iter().map(|counters| of(counters).get(kind)).sum();
                let labels = [("reason", kind.word())];
                encode(sum, metric.kind, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

const CERTIFICATE_EXPIRY: Metric = gauge(
    "millrace_certificate_expiry_seconds",
    &["service", "certificate"],
    "When the certificate expires, in seconds since 1970. The certificate is named by its file.",
);

/// The certificates of the configuration in force.
struct CertificateCollector(Box<dyn Fn() -> Vec<CertificateExpiry> + Send + Sync>);

impl fmt::Debug for CertificateCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CertificateCollector")
    }
}

impl Collector for CertificateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = CERTIFICATE_EXPIRY.describe(&mut encoder)?;
        for CertificateExpiry { service, certificate, seconds } in (self.0)() {
            let labels = [("service", service), ("certificate", certificate)];
            encode(seconds, CERTIFICATE_EXPIRY.kind, family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

const ACME_FAILURES: Metric = counter(
    "millrace_acme_failures",
    &["step"],
    "Failures of orders of certificates by ACME. Each one is logged on standard error.",
);

/// The failures of orders of certificates.
#[derive(Debug)]
struct AcmeCollector(Arc<AcmeCounters>);

impl Collector for AcmeCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = ACME_FAILURES.describe(&mut encoder)?;
        for step in Step::ALL {
            let labels = [("step", step.word())];
            encode(self.0.get(step), ACME_FAILURES.kind, family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

const REQUESTS: Metric = counter(
    "millrace_requests",
    &["service", "code"],
    "Requests that ended, by the status code sent to the client. Code none: no response was sent.",
);

/// Requests by service and status code.
#[derive(Debug)]
struct RequestCollector(Arc<SharedState>);

impl Collector for RequestCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut family = REQUESTS.describe(&mut encoder)?;
        for (service, workers) in self.0.requests.all() {
            let mut sums = BTreeMap::new();
            for (label, count) in workers.iter().flat_map(PerStatus::all) {
                *sums.entry(label).or_insert(0) += count;
            }
            for (label, sum) in sums.into_iter().filter(|(_, sum)| *sum > 0) {
                let labels = [("service", &*service), ("code", &label.to_string())];
                encode(sum, REQUESTS.kind, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// A metric of an origin and its value; `None`: this row has no such value.
type OriginMetric = (Metric, fn(&OriginStatus) -> Option<u64>);

const ORIGIN_METRICS: [OriginMetric; 9] = [
    (
        gauge(
            "millrace_origin_ejected",
            &["origin"],
            "1 while the origin is ejected after failures, otherwise 0.",
        ),
        |row| row.check.is_none().then_some((!row.up).into()),
    ),
    (
        gauge(
            "millrace_origin_failures",
            &["origin"],
            "Consecutive failures of the origin that the workers have reported.",
        ),
        |row| row.check.is_none().then_some(row.failures.into()),
    ),
    (
        gauge(
            "millrace_origin_check_fails",
            &["origin", "check"],
            "1 while the health check of the origin fails, otherwise 0.",
        ),
        |row| row.check.is_some().then_some((!row.up).into()),
    ),
    (
        counter(
            "millrace_origin_requests",
            &["origin"],
            "Requests for which the origin was chosen. Each retry counts.",
        ),
        |row| Some(row.stats?.requests),
    ),
    (
        counter(
            "millrace_origin_responses_5xx",
            &["origin"],
            "Responses of the origin with a status code of 500 or above.",
        ),
        |row| Some(row.stats?.responses_5xx),
    ),
    (
        counter(
            "millrace_origin_connect_errors",
            &["origin"],
            "Failed attempts to open a connection to the origin, including failed name lookups.",
        ),
        |row| Some(row.stats?.connect_errors),
    ),
    (
        counter(
            "millrace_origin_response_errors",
            &["origin"],
            "Requests without a valid response header: the origin closed the connection, took too \
             long, or sent a malformed header.",
        ),
        |row| Some(row.stats?.response_errors),
    ),
    (
        gauge(
            "millrace_origin_requests_in_flight",
            &["origin"],
            "Requests for which the origin was chosen and that have not ended, including those \
             that wait for a connection.",
        ),
        |row| Some(row.stats?.in_flight),
    ),
    (
        gauge(
            "millrace_origin_pipelining",
            &["origin"],
            "1 while requests may be pipelined to the origin; 0 once it has failed the test or \
             sent a wrong response. Absent before the test.",
        ),
        |row| row.is_pipelined.map(u64::from),
    ),
];

/// The maximum number of samples of each origin metric. A client reads the whole page into memory.
const ORIGINS_MAX: usize = 1024;

/// The configured origins.
#[derive(Debug)]
struct OriginCollector(Arc<SharedState>);

impl Collector for OriginCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let statuses = self.0.health.statuses();
        for (metric, read) in &ORIGIN_METRICS {
            let rows = statuses.iter().filter_map(|row| read(row).map(|value| (row, value)));
            let mut rows = rows.take(ORIGINS_MAX).peekable();
            if rows.peek().is_none() {
                continue;
            }
            let mut family = metric.describe(&mut encoder)?;
            for (row, value) in rows {
                let mut labels = vec![("origin", row.origin.as_str())];
                labels.extend(row.check.as_deref().map(|path| ("check", path)));
                encode(value, metric.kind, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The cache.
#[derive(Debug)]
struct CacheCollector(Arc<Cache>);

impl Collector for CacheCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stat = self.0.stats();
        for row in CACHE_METRICS {
            let name = format!("{PREFIX}cache_{}", row.name);
            let family = describe(&mut encoder, &name, row.kind, row.help)?;
            encode((row.read)(&stat), row.kind, family)?;
        }
        Ok(())
    }
}

/// The value of a metric of the process.
enum ProcessValue {
    Count(u64),
    Seconds(f64),
}

use ProcessValue::{Count, Seconds};

/// A metric of the process and its value; `None`: it cannot be read. It then has no sample, because
/// 0 would be taken for a value.
type ProcessMetric = (Metric, fn(&ProcessCollector) -> Option<ProcessValue>);

/// The names `process_*` are those of the Prometheus client libraries.
const PROCESS_METRICS: [ProcessMetric; 9] = [
    (
        counter(
            "millrace_access_log_records_dropped",
            &[],
            "Records that the access log could not take.",
        ),
        |process| Some(Count(process.log.dropped_records())),
    ),
    // Relaxed: the counters of reloads guard no other memory.
    (counter("millrace_reloads", &[], "Reloads that put a configuration in force."), |process| {
        Some(Count(process.reloads.done.load(Relaxed)))
    }),
    (counter("millrace_reloads_refused", &[], "Reloads that were refused."), |process| {
        Some(Count(process.reloads.refused.load(Relaxed)))
    }),
    (
        gauge(
            "millrace_uselect_registered",
            &[],
            "1 while readiness is read from memory (engine uselect with a running uselectd), \
             otherwise 0.",
        ),
        |_| Some(Count(millrace_engine::is_tracked().into())),
    ),
    (gauge("process_resident_memory_bytes", &[], "Resident memory of the process."), |_| {
        millrace_sys::resident_bytes().ok().map(Count)
    }),
    (gauge("process_open_fds", &[], "Open file descriptors of the process."), |_| {
        millrace_sys::descriptor_count().ok().map(|count| Count(count as u64))
    }),
    (gauge("process_max_fds", &[], "File descriptors that the process may open."), |_| {
        Some(Count(millrace_sys::descriptor_limit()))
    }),
    (counter("process_cpu_seconds", &[], "CPU time of the process, user and system."), |_| {
        Some(Seconds(millrace_sys::cpu_time().as_secs_f64()))
    }),
    (
        gauge("process_start_time_seconds", &[], "Start of the process in seconds since 1970."),
        |process| Some(Seconds(process.started.as_secs_f64())),
    ),
];

const BUILD_INFO: Metric =
    gauge("millrace_build_info", &["version"], "Always 1; the label is the version of millrace.");

/// The process, its access log and its reloads.
#[derive(Debug)]
struct ProcessCollector {
    log: LogSink,
    reloads: Arc<ReloadCounters>,
    /// Time since 1970.
    started: Duration,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut build = BUILD_INFO.describe(&mut encoder)?;
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        encode(1, BUILD_INFO.kind, build.encode_family(&labels)?)?;
        for (metric, read) in &PROCESS_METRICS {
            let Some(value) = read(self) else { continue };
            let sample = metric.describe(&mut encoder)?;
            match (value, metric.kind) {
                (Count(count), kind) => encode(count, kind, sample)?,
                (Seconds(value), CounterKind::Counter) => {
                    ConstCounter::new(value).encode(sample)?
                }
                (Seconds(value), CounterKind::Gauge) => ConstGauge::new(value).encode(sample)?,
            }
        }
        Ok(())
    }
}

/// The text of `docs/metrics.md` above its table.
const REFERENCE_HEAD: &str = "# Metrics

`GET /metrics` at an `admin` address returns the metrics in the OpenMetrics text format. A client
whose Accept field names `text/plain` and not `application/openmetrics-text` gets the Prometheus
text format 0.0.4. The names are the same in both.

Counters start at 0 with the process and never decrease. A metric with the label `worker` has one
sample per worker; sum them. Each configured origin has its samples from the start. Each metric has
samples for at most 1,024 origins, the first by name. An origin that leaves the configuration loses
its samples. Targets that clients of a forward proxy choose have no samples.

`millrace_requests_total` has a sample for each service and status code that occurred. `service` is
the `name` of the service, or the default name (docs/cache.md). `millrace_responses_generated_total`
and `millrace_exchanges_aborted_total` use the words of `reason` in the access log. This is the rate
of failed requests:

    sum by (service) (rate(millrace_requests_total{code=~\"5..\"}[1m]))

When a configured origin stops responding, millrace logs the cause on standard error. When the
origin responds again, millrace logs that too. Lines about one origin are at least 5 s apart. An
outage or a recovery that lasts for 5 s is logged within 7 s of its start. If an origin fails often
and briefly, millrace logs the failures together, at intervals that grow from 5 s to 320 s. millrace
logs at most ten of these lines a second; the others follow in the next seconds.

| name | kind | labels | meaning |
| --- | --- | --- | --- |
";

/// Returns the text of `docs/metrics.md`.
pub(crate) fn reference_page() -> String {
    let mut page = REFERENCE_HEAD.to_owned();
    let mut row = |name: &str, kind: CounterKind, labels: &[&str], help: &str| {
        let (total, kind) = match kind {
            CounterKind::Counter => ("_total", "counter"),
            CounterKind::Gauge => ("", "gauge"),
        };
        let labels = labels.join(", ");
        let _ = writeln!(page, "| `{name}{total}` | {kind} | {labels} | {} |", help.trim());
    };
    let reasons = REASON_METRICS.iter().map(|(metric, ..)| metric);
    let tls = [&FAILED_HANDSHAKES, &FAILED_SESSIONS, &CERTIFICATE_EXPIRY, &ACME_FAILURES];
    for metric in [&REQUESTS].into_iter().chain(tls).chain(reasons) {
        row(metric.name, metric.kind, metric.labels, metric.help);
    }
    for metric in Counters::TABLE {
        row(&format!("{PREFIX}{}", metric.name), metric.kind, &["worker"], metric.help);
    }
    let origins = ORIGIN_METRICS.iter().map(|(metric, _)| metric);
    for metric in origins {
        row(metric.name, metric.kind, metric.labels, metric.help);
    }
    for metric in CACHE_METRICS {
        row(&format!("{PREFIX}cache_{}", metric.name), metric.kind, &[], metric.help);
    }
    let process = PROCESS_METRICS.iter().map(|(metric, _)| metric);
    for metric in [&BUILD_INFO].into_iter().chain(process) {
        row(metric.name, metric.kind, metric.labels, metric.help);
    }
    page
}

#[cfg(test)]
mod tests {
    use iolite::Slab;
    use millrace_http_cache::HashKey;
    use millrace_store::Bounds;

    use super::*;

    fn cache() -> Arc<Cache> {
        let bytes = 4 << 20;
        let bounds = Bounds { bytes, object_bytes: bytes, variants: 1, prefaults: true };
        let slab = Slab::on_heap(bytes as usize).unwrap();
        Cache::new(slab, HashKey::new([0; 16]), bounds)
    }

    fn metrics(workers: usize, cache: Option<Arc<Cache>>) -> Metrics {
        let shared = SharedState::new(workers, "test".to_owned(), None, cache, |_| {}, None);
        let mut metrics = Metrics::new(&shared, LogSink::without_file(), Arc::default());
        let (service, certificate) = ("boost".to_owned(), "/a.pem".to_owned());
        let expiry = CertificateExpiry { service, certificate, seconds: 9 };
        metrics.add_certificates(move || vec![expiry.clone()], Arc::default());
        metrics
    }

    #[test]
    fn the_reference_page_is_the_document() {
        let document = include_str!("../../../../docs/metrics.md");
        let hint = "run: millrace reference metrics > docs/metrics.md";
        assert!(reference_page() == document, "docs/metrics.md differs; {hint}");
    }

    #[test]
    fn every_metric_of_a_page_is_in_the_reference() {
        let page = metrics(1, Some(cache())).page(MetricsFormat::PrometheusText);
        let reference = reference_page();
        let types: Vec<_> = page.lines().filter_map(|line| line.strip_prefix("# TYPE ")).collect();
        for line in &types {
            let (name, kind) = line.split_once(' ').unwrap();
            assert!(reference.contains(&format!("\n| `{name}` | {kind} |")), "{line}");
        }
        // Without origins the page has none of their metrics.
        let rows = reference.lines().filter(|line| line.starts_with("| `")).count();
        assert_eq!(rows, types.len() + ORIGIN_METRICS.len());
    }

    #[test]
    fn every_counter_is_on_the_page_for_every_worker() {
        let page = metrics(2, None).page(MetricsFormat::OpenMetrics);
        for row in Counters::TABLE {
            let total = if row.kind == CounterKind::Counter { "_total" } else { "" };
            for worker in 0..2 {
                let line = format!("\nmillrace_{}{total}{{worker=\"{worker}\"}} 0\n", row.name);
                assert!(page.contains(&line), "{line:?} is not in {page}");
            }
        }
        let version = env!("CARGO_PKG_VERSION");
        assert!(page.contains(&format!("\nmillrace_build_info{{version=\"{version}\"}} 1\n")));
        assert!(
            page.contains("\nprocess_max_fds ") && page.contains("\nprocess_cpu_seconds_total ")
        );
        assert!(page.contains("# UNIT millrace_uploaded_bytes bytes\n"));
        assert!(page.ends_with("# EOF\n"));
    }

    #[test]
    fn the_prometheus_text_format_names_counters_in_full() {
        let page = "# HELP a_bytes A.\n# TYPE a_bytes counter\n# UNIT a_bytes bytes\n\
                    a_bytes_total 1\n# HELP b B.\n# TYPE b gauge\nb{c=\"# EOF\"} 2\n# EOF\n";
        let expected = "# HELP a_bytes_total A.\n# TYPE a_bytes_total counter\na_bytes_total 1\n\
                        # HELP b B.\n# TYPE b gauge\nb{c=\"# EOF\"} 2\n";
        assert_eq!(to_prometheus_text(page), expected);
    }
}

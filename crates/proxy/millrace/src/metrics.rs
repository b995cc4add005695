//! The metrics page: the workers' counters and the process's own numbers, in the OpenMetrics text
//! format. Counters are read when they are asked for; nothing is kept here.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use millrace_engine::LogSink;
use millrace_proxy::Shared;
use millrace_proxy::counters::{Counters, PerReason, PerStatus, RowKind};
use millrace_proxy::reason::Reason;
use millrace_proxy::shared_health::Shown;
use millrace_store::Cache;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::Registry;

use crate::cache_metrics;
use crate::reloads::Counts;

/// What the page is, in Content-Type.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// What the page is made of.
pub(crate) struct Metrics {
    registry: Registry,
}

impl Metrics {
    /// Metrics over what the workers share, the access log's and those of reloads.
    pub(crate) fn new(shared: &Arc<Shared>, log: LogSink, reloads: Arc<Counts>) -> Self {
        let mut registry = Registry::with_prefix("millrace");
        registry.register_collector(Box::new(Reasons(Arc::clone(shared))));
        registry.register_collector(Box::new(Workers(Arc::clone(shared))));
        registry.register_collector(Box::new(Process { log, reloads }));
        registry.register_collector(Box::new(Requests(Arc::clone(shared))));
        registry.register_collector(Box::new(Origins(Arc::clone(shared))));
        if let Some(cache) = &shared.cache {
            registry.register_collector(Box::new(Stored(Arc::clone(cache))));
        }
        Self { registry }
    }

    /// The page as it is now.
    pub(crate) fn page(&self) -> String {
        let mut page = String::new();
        text::encode(&mut page, &self.registry).expect("a string takes every write");
        page
    }
}

#[derive(Debug)]
struct Workers(Arc<Shared>);

impl Collector for Workers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        for row in Counters::TABLE {
            let kind = match row.kind {
                RowKind::Counter => MetricType::Counter,
                RowKind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(row.name, row.help.trim(), None, kind)?;
            for (index, counters) in self.0.counters.iter().enumerate() {
                let labels = [("worker", index.to_string())];
                encode((row.read)(counters), kind, family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The counters of all workers by reason, summed.
#[derive(Debug)]
struct Reasons(Arc<Shared>);

impl Collector for Reasons {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let mut write = |name: &str, help: &str, of: fn(&Counters) -> &PerReason, responds| {
            let kind = MetricType::Counter;
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for &reason in Reason::ALL {
                let workers = self.0.counters.iter();
                let sum: u64 = workers.map(|counters| of(counters).get(reason)).sum();
                // Reasons that this metric is meant for are on the page from the start, so that
                // their first increase is visible.
                if sum > 0 || (reason.status() != 0) == responds {
                    let labels = [("reason", reason.word())];
                    ConstCounter::new(sum).encode(family.encode_family(&labels)?)?;
                }
            }
            Ok(())
        };
        let help = "Responses that millrace made itself to refuse a request, or because it could \
                    not be served.";
        write("responses_own", help, |counters| &counters.responses_own, true)?;
        let help = "Exchanges that were cut short or ended without a response.";
        write("exchanges_aborted", help, |counters| &counters.exchanges_aborted, false)
    }
}

/// Requests by service and status.
#[derive(Debug)]
struct Requests(Arc<Shared>);

impl Collector for Requests {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let help = "Requests that ended, by the status that was sent; none: no response was.";
        let kind = MetricType::Counter;
        let mut family = encoder.encode_descriptor("requests", help, None, kind)?;
        for (service, workers) in self.0.requests.all() {
            let mut sums = BTreeMap::new();
            for (label, count) in workers.iter().flat_map(PerStatus::all) {
                *sums.entry(label).or_insert(0) += count;
            }
            for (label, sum) in sums.into_iter().filter(|(_, sum)| *sum > 0) {
                let labels = [("service", &*service), ("code", &label.to_string())];
                ConstCounter::new(sum).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
    }
}

/// The configured origins, up to so many lines of each kind: a page is read as a whole.
#[derive(Debug)]
struct Origins(Arc<Shared>);

const ORIGINS_MAX: usize = 1024;

impl Collector for Origins {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let shown = self.0.board.shown();
        type Value = fn(&Shown) -> Option<u64>;
        let mut write = |kind: MetricType, name: &str, help: &str, of: Value| {
            let rows = shown.iter().filter_map(|row| of(row).map(|value| (row, value)));
            let mut rows = rows.take(ORIGINS_MAX).peekable();
            if rows.peek().is_none() {
                return Ok(());
            }
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (row, value) in rows {
                let mut labels = vec![("origin", row.origin.as_str())];
                labels.extend(row.check.as_deref().map(|path| ("check", path)));
                encode(value, kind, family.encode_family(&labels)?)?;
            }
            Ok(())
        };
        use MetricType::{Counter, Gauge};
        let help = "Whether the origin is ejected for its failures.";
        write(Gauge, "origin_ejected", help, |row| {
            row.check.is_none().then_some((!row.up).into())
        })?;
        let help = "Failures in a row, as far as workers told of them.";
        write(Gauge, "origin_failures", help, |row| {
            row.check.is_none().then_some(row.failures.into())
        })?;
        let help = "Whether the origin's health check fails.";
        write(Gauge, "origin_check_fails", help, |row| {
            row.check.is_some().then_some((!row.up).into())
        })?;
        let help = "Requests that the origin was picked for, each try.";
        write(Counter, "origin_requests", help, |row| Some(row.counts?.requests))?;
        let help = "Responses of the origin with a status from 500 on.";
        write(Counter, "origin_responses_5xx", help, |row| Some(row.counts?.responses_5xx))?;
        let help = "Times that no connection to the origin could be opened, failed lookups of its \
                    name included.";
        write(Counter, "origin_connect_errors", help, |row| Some(row.counts?.connect_errors))?;
        let help = "Requests without a valid response header: the origin closed the connection, \
                    took too long, or sent a malformed header.";
        write(Counter, "origin_response_errors", help, |row| Some(row.counts?.response_errors))?;
        let help = "Requests that the origin was picked for and that have not ended there, those \
                    that wait for a connection included.";
        write(Gauge, "origin_requests_in_flight", help, |row| Some(row.counts?.in_flight))
    }
}

#[derive(Debug)]
struct Stored(Arc<Cache>);

impl Collector for Stored {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let stat = self.0.stat();
        for row in cache_metrics::ROWS {
            let (name, value) = (format!("cache_{}", row.name), (row.read)(&stat));
            let kind = if row.is_counter { MetricType::Counter } else { MetricType::Gauge };
            encode(value, kind, encoder.encode_descriptor(&name, row.help, None, kind)?)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Process {
    log: LogSink,
    reloads: Arc<Counts>,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        use MetricType::{Counter, Gauge};
        let mut write = |kind, name: &str, help: &str, value| {
            encode(value, kind, encoder.encode_descriptor(name, help, None, kind)?)
        };
        let help = "Records that the access log could not take.";
        write(Counter, "access_log_records_dropped", help, self.log.dropped_records())?;
        // Pairs with the additions by who reloads; nothing else is read by what they say.
        let [done, refused] =
            [&self.reloads.done, &self.reloads.refused].map(|it| it.load(Relaxed));
        write(Counter, "reloads", "Configurations that came into force by a reload.", done)?;
        write(Counter, "reloads_refused", "Reloads that were refused.", refused)?;
        // A number that cannot be read is left out: zero would be believed.
        if let Ok(bytes) = millrace_sys::resident_bytes() {
            write(Gauge, "process_resident_bytes", "Physical memory of the process.", bytes)?;
        }
        if let Ok(count) = millrace_sys::descriptor_count() {
            write(Gauge, "process_descriptors", "Descriptors that are open.", count as u64)?;
        }
        let limit = millrace_sys::descriptor_limit();
        write(Gauge, "process_descriptors_max", "Descriptors that may be open.", limit)?;
        let help =
            "Whether readiness is read from memory: engine uselect, and uselectd has not ended.";
        write(Gauge, "uselect_registered", help, millrace_engine::is_tracked().into())
    }
}

/// Writes one value.
fn encode(value: u64, kind: MetricType, encoder: MetricEncoder<'_>) -> Result<(), fmt::Error> {
    match kind {
        MetricType::Counter => ConstCounter::new(value).encode(encoder),
        _ => ConstGauge::new(i64::try_from(value).unwrap_or(i64::MAX)).encode(encoder),
    }
}

#[cfg(test)]
mod tests {
    use iolite::Slab;
    use millrace_http_cache::HashKey;
    use millrace_store::Bounds;

    use super::*;

    fn cache() -> Arc<Cache> {
        let bytes = 4 << 20;
        let bounds = Bounds { bytes, object_bytes: bytes, variants: 1, tends: true };
        let slab = Slab::on_heap(bytes as usize).unwrap();
        Cache::new(slab, HashKey::new([0; 16]), bounds)
    }

    fn metrics(workers: usize, cache: Option<Arc<Cache>>) -> Metrics {
        let shared = Shared::new(workers, "test".to_owned(), None, cache, |_| {}, None);
        Metrics::new(&shared, LogSink::closed(), Arc::default())
    }

    #[test]
    fn the_documents_have_every_metric_as_it_is() {
        let documented = include_str!("../../../../docs/metrics.md");
        let page = metrics(1, Some(cache())).page();
        let of = |what: &str| -> Vec<(String, String)> {
            let lines = page.lines().filter_map(|line| line.strip_prefix(what)?.split_once(' '));
            lines.map(|(name, text)| (name.to_owned(), text.to_owned())).collect()
        };
        // There is no origin, so none of its metrics is on the page.
        let mut count = documented.lines().filter(|line| line.contains("| origin")).count();
        assert_eq!(count, 8);
        for ((name, help), (_, kind)) in of("# HELP ").into_iter().zip(of("# TYPE ")) {
            let total = if kind == "counter" { "_total" } else { "" };
            let row = format!("| `{name}{total}` | {kind} |");
            let line = documented.lines().find(|line| line.starts_with(&row));
            let line = line.unwrap_or_else(|| panic!("docs/metrics.md has no line {row}"));
            assert!(line.ends_with(&format!("| {help} |")), "{line} should say: {help}");
            count += 1;
        }
        let rows = documented.lines().filter(|line| line.starts_with("| `millrace_")).count();
        assert_eq!(rows, count, "a line of docs/metrics.md is of no metric");
    }

    #[test]
    fn every_counter_is_on_the_page_for_every_worker() {
        let page = metrics(2, None).page();
        for row in Counters::TABLE {
            let total = if row.kind == RowKind::Counter { "_total" } else { "" };
            for worker in 0..2 {
                let line = format!("\nmillrace_{}{total}{{worker=\"{worker}\"}} 0\n", row.name);
                assert!(page.contains(&line), "{line:?} is not in {page}");
            }
        }
        assert!(page.contains("\nmillrace_process_descriptors_max "));
        assert!(page.ends_with("# EOF\n"));
    }
}

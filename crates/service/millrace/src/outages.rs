//! Says on standard error when a configured origin stops responding, and when it responds again: a
//! thread that reads what the workers noted on the board. Targets that clients of a forward proxy
//! choose are not on the board, so no client can fill the log; metrics count those failures.
//!
//! One line an origin at most each [`INTERVAL`], which doubles while lines keep coming, and
//! [`LINES_MAX`] lines a round in all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proxy::Shared;
use millrace_proxy::board::Outage;

use crate::failure::Failure;
use crate::say;

/// How often outages are looked at while there are any: failures of one round share a line.
const ROUND: Duration = Duration::from_secs(1);
/// The least time between two lines about one origin, and the most that it doubles to.
const INTERVAL: Duration = Duration::from_secs(5);
const INTERVAL_MAX: Duration = Duration::from_secs(320);
/// How often it is repeated that an origin still fails.
const REMINDER: Duration = Duration::from_secs(300);
/// Lines in one round.
const LINES_MAX: usize = 10;

/// Starts the thread, which the process ends under.
///
/// # Errors
/// When the thread cannot be started.
pub(crate) fn start(shared: &Arc<Shared>) -> Result<(), Failure> {
    let shared = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("outages".to_owned());
    let run = move || {
        let (begun, mut reporter) = (Instant::now(), Reporter::default());
        loop {
            let outages = shared.board.outages();
            for line in reporter.round(&outages, begun.elapsed()) {
                say::error(&line);
            }
            if reporter.has_more() {
                std::thread::sleep(ROUND);
            } else {
                shared.board.await_outages(Duration::MAX);
                // The first failure is seldom the only one.
                std::thread::sleep(ROUND);
            }
        }
    };
    thread.spawn(run).map(drop).map_err(|error| {
        Failure::Machine(format!("cannot start a thread for the origins' outages: {error}"))
    })
}

/// What was said of each origin, by its name.
#[derive(Default)]
struct Reporter(BTreeMap<String, Reported>);

/// What was said of one origin.
#[derive(Clone, Copy)]
struct Reported {
    /// Failures that lines have told of.
    failed: u64,
    /// The outage that was announced and whose end was not: when it began, by the workers' clock,
    /// and the failures before it.
    outage: Option<(millrace_event::Instant, u64)>,
    /// When the latest line was printed, and how long the next one has to wait.
    line: Option<(Duration, Duration)>,
    /// There is something to say that has to wait, or an outage whose end is awaited.
    has_more: bool,
}

impl Reporter {
    /// Whether the next round may have something to say though no worker notes anything.
    fn has_more(&self) -> bool {
        self.0.values().any(|reported| reported.has_more)
    }

    /// The lines of a round, `now` after the first.
    fn round(&mut self, outages: &[(String, Outage)], now: Duration) -> Vec<String> {
        // Origins that left the configuration are forgotten.
        self.0.retain(|name, _| outages.iter().any(|(other, _)| other == name));
        let mut lines = Vec::new();
        for (name, outage) in outages {
            let reported = self.0.entry(name.clone()).or_insert(Reported {
                failed: 0,
                outage: None,
                line: None,
                has_more: false,
            });
            // The configuration admits no control characters in names.
            lines.extend(reported.line(outage, now).map(|line| format!("origin {name}: {line}")));
        }
        let left_out = lines.len().saturating_sub(LINES_MAX);
        lines.truncate(LINES_MAX);
        if left_out > 0 {
            lines.push(format!("{left_out} more origins fail or respond again"));
        }
        lines
    }
}

impl Reported {
    /// What is to be said now.
    fn line(&mut self, outage: &Outage, now: Duration) -> Option<String> {
        let new = outage.failed - self.failed;
        let is_due = self.line.is_none_or(|(last, wait)| now >= last + wait);
        let since_last = self.line.map(|(last, _)| now - last);
        let cause = outage.cause.map(|cause| cause.to_string()).unwrap_or_default();
        let line = match (self.outage, outage.since) {
            (None, _) if new == 0 => None,
            (None | Some(_), _) if !is_due => return self.wait(),
            (None, since) => {
                let end = if since.is_none() { "; it responds again" } else { "" };
                self.outage = since.map(|since| (since, self.failed));
                let within = since_last.map_or(String::new(), in_the_last);
                Some(format!("{cause}; {}{within}{end}", failures(new)))
            }
            (Some((since, before)), None) => {
                self.outage = None;
                let end = outage.responded.unwrap_or(since);
                let (seconds, failed) = (end.since(since).as_secs(), outage.failed - before);
                Some(format!("responding again after {seconds} s; {}", failures(failed)))
            }
            (Some(_), Some(_)) if new > 0 && since_last.is_some_and(|time| time >= REMINDER) => {
                let within = since_last.map_or(String::new(), in_the_last);
                Some(format!("still failing: {cause}; {}{within}", failures(new)))
            }
            (Some(_), Some(_)) => return self.wait(),
        };
        self.has_more = self.outage.is_some();
        if line.is_some() {
            self.failed = outage.failed;
            let wait = match self.line {
                Some((last, wait)) if now - last < 2 * wait => (2 * wait).min(INTERVAL_MAX),
                _ => INTERVAL,
            };
            self.line = Some((now, wait));
        }
        line
    }

    fn wait(&mut self) -> Option<String> {
        self.has_more = true;
        None
    }
}

fn failures(count: u64) -> String {
    match count {
        1 => "1 request failed".to_owned(),
        count => format!("{count} requests failed"),
    }
}

fn in_the_last(time: Duration) -> String {
    format!(" in the last {} s", time.as_secs())
}

#[cfg(test)]
mod tests {
    use millrace_event::Instant;
    use millrace_proxy::board::Cause;
    use millrace_proxy::reason::Reason;

    use super::*;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(seconds: u64) -> Instant {
        Instant::default() + second(seconds)
    }

    /// An origin that fails since a second, or responds since another one.
    fn outage(failed: u64, since: Option<u64>, responded: Option<u64>) -> Outage {
        let cause = Some(Cause::Reason(Reason::ConnectFailed));
        Outage { failed, cause, since: since.map(at), responded: responded.map(at) }
    }

    /// What a reporter says of one origin.
    fn said(reporter: &mut Reporter, outage: Outage, now: u64) -> Vec<String> {
        reporter.round(&[("http://a:80".to_owned(), outage)], second(now))
    }

    #[test]
    fn an_outage_is_announced_once_and_so_is_its_end() {
        let mut reporter = Reporter::default();
        let first = said(&mut reporter, outage(8, Some(10), None), 11);
        assert_eq!(first, ["origin http://a:80: connection refused; 8 requests failed"]);
        for now in 12..52 {
            assert!(said(&mut reporter, outage(8 + now, Some(10), None), now).is_empty());
            assert!(reporter.has_more(), "its end is awaited");
        }
        let last = said(&mut reporter, outage(60, None, Some(52)), 53);
        assert_eq!(last, ["origin http://a:80: responding again after 42 s; 60 requests failed"]);
        assert!(said(&mut reporter, outage(60, None, Some(52)), 54).is_empty());
        assert!(!reporter.has_more());
    }

    #[test]
    fn a_long_outage_is_repeated_seldom() {
        let mut reporter = Reporter::default();
        said(&mut reporter, outage(1, Some(0), None), 1);
        let lines: Vec<_> = (2..1000)
            .flat_map(|now| said(&mut reporter, outage(now, Some(0), None), now))
            .collect();
        let again = "origin http://a:80: still failing: connection refused; 300 requests failed in \
                     the last 300 s";
        assert_eq!(lines, [again; 3]);
    }

    #[test]
    fn an_origin_that_fails_now_and_then_gets_fewer_and_fewer_lines() {
        let mut reporter = Reporter::default();
        let mut lines = Vec::new();
        // Each second one request fails, and the next is answered.
        for now in 1..1000 {
            lines.extend(said(&mut reporter, outage(now, None, Some(now)), now));
        }
        assert!((5..=10).contains(&lines.len()), "{lines:?}");
        let first = "origin http://a:80: connection refused; 1 request failed; it responds again";
        assert_eq!(lines[0], first);
        let second = "origin http://a:80: connection refused; 5 requests failed in the last 5 s; \
                      it responds again";
        assert_eq!(lines[1], second);
    }

    #[test]
    fn an_end_that_comes_soon_waits_for_its_turn() {
        let mut reporter = Reporter::default();
        assert_eq!(said(&mut reporter, outage(1, Some(0), None), 1).len(), 1);
        assert!(said(&mut reporter, outage(1, None, Some(2)), 2).is_empty());
        assert!(reporter.has_more());
        // It fails again meanwhile: that is the same outage.
        assert!(said(&mut reporter, outage(2, Some(3), Some(2)), 4).is_empty());
        let last = said(&mut reporter, outage(2, None, Some(5)), 6);
        assert_eq!(last, ["origin http://a:80: responding again after 5 s; 2 requests failed"]);
    }

    #[test]
    fn the_lines_of_a_round_are_bounded_and_origins_forgotten() {
        let mut reporter = Reporter::default();
        let all: Vec<_> =
            (0..100).map(|port| (format!("http://a:{port}"), outage(1, Some(0), None))).collect();
        let lines = reporter.round(&all, second(1));
        assert_eq!((lines.len(), &*lines[10]), (11, "90 more origins fail or respond again"));
        assert!(reporter.round(&all, second(100)).is_empty());
        reporter.round(&all[..1], second(101));
        assert_eq!(reporter.0.len(), 1);
    }
}

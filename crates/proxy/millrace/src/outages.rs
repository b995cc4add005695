//! Logs when a configured origin stops responding and when it responds again, and the fault that
//! ends pipelining to it.
//!
//! A thread reads the outages that the workers publish in the shared health. It does not contain
//! the targets that clients of a forward proxy choose, so no client can fill the log. Metrics count
//! those failures.
//!
//! Two lines about one origin are at least [`INTERVAL`] apart. If an origin keeps changing its
//! state, the interval doubles with each line. A round prints at most [`LINES_MAX`] lines; the next
//! round continues with the remaining origins.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_proxy::SharedState;
use millrace_proxy::shared_health::{Outage, PipelineFault, PipelineState};

use crate::console;
use crate::program_error::ProgramError;
use crate::threads::spawn;

/// Interval between rounds during outages. The failures of one round share a line.
const ROUND: Duration = Duration::from_secs(1);
/// The minimum time between two lines about one origin. It doubles with each line up to
/// [`INTERVAL_MAX`]. A changed state that has lasted this long is logged without the doubled wait.
const INTERVAL: Duration = Duration::from_secs(5);
/// The maximum of the doubled [`INTERVAL`].
const INTERVAL_MAX: Duration = Duration::from_secs(320);
/// Interval between reminders that an origin still fails.
const REMINDER: Duration = Duration::from_secs(300);
/// Limit of the lines in one round.
const LINES_MAX: usize = 10;

/// Starts the thread, which runs until the process ends.
///
/// # Errors
/// If the thread cannot be started.
pub(crate) fn start(shared: &Arc<SharedState>) -> Result<(), ProgramError> {
    let shared = Arc::clone(shared);
    let run = move || {
        let (start, mut reporter) = (Instant::now(), Reporter::default());
        let mut before = BTreeMap::new();
        loop {
            let outages = shared.health.outages();
            for line in reporter.round(&outages, start.elapsed()) {
                console::log(&line);
            }
            let pipelining = shared.health.pipelining();
            for (origin, fault) in ended(&pipelining, &before) {
                console::log(&format!(
                    "origin {origin}: no request is pipelined any more: {fault}"
                ));
            }
            before = pipelining;
            if !reporter.has_more() {
                shared.health.wait_for_outages(Duration::MAX);
            }
            // More failures usually follow the first one.
            std::thread::sleep(ROUND);
        }
    };
    spawn("outages", run).map(drop)
}

/// Returns the origins to which requests are no longer pipelined, unlike `before`. A failed test is
/// logged by `pipeline_tests.rs`.
fn ended<'a>(
    now: &'a BTreeMap<String, PipelineState>,
    before: &'a BTreeMap<String, PipelineState>,
) -> impl Iterator<Item = (&'a String, PipelineFault)> {
    now.iter().filter_map(|(origin, state)| match state {
        PipelineState::Ended(PipelineFault::FailedTest) => None,
        PipelineState::Ended(fault) if before.get(origin) != Some(state) => Some((origin, *fault)),
        _ => None,
    })
}

/// The state of the log for all origins.
#[derive(Default)]
struct Reporter {
    /// Keyed by the name of the origin.
    reported: BTreeMap<String, Reported>,
    /// The origin of the last line, if the last round could not print all lines: the next round
    /// starts after it.
    resume_after: Option<String>,
}

/// The state of the log for one origin.
#[derive(Clone, Copy, Default)]
struct Reported {
    /// [`Outage::generation`] of the counts below.
    generation: u64,
    /// Failures reported in lines.
    failed: u64,
    /// The outage that was announced and has not ended: its start by the workers' clock, and the
    /// failures before it.
    outage: Option<(millrace_engine::Instant, u64)>,
    /// `Outage::since` in the latest round, and the time of the round in which it got this value.
    state: Option<(Option<millrace_engine::Instant>, Duration)>,
    /// The time of the latest line, and how long the next one must wait.
    line: Option<(Duration, Duration)>,
    /// Whether a line is held back until its time, or the outage has not ended.
    has_more: bool,
}

impl Reporter {
    /// Returns whether the next round may print a line even if no worker publishes anything.
    fn has_more(&self) -> bool {
        self.resume_after.is_some() || self.reported.values().any(|reported| reported.has_more)
    }

    /// Returns the lines of a round at `now`. `outages` is sorted by name.
    fn round(&mut self, outages: &[(String, Outage)], now: Duration) -> Vec<String> {
        // Forget origins that left the configuration.
        self.reported.retain(|name, _| outages.iter().any(|(other, _)| other == name));
        for (name, outage) in outages {
            self.reported.entry(name.clone()).or_default().observe(outage, now);
        }
        let resume_after = self.resume_after.take();
        let start = outages.partition_point(|(name, _)| Some(name) <= resume_after.as_ref());
        let mut lines = Vec::new();
        let mut last: Option<&String> = None;
        for (name, outage) in outages[start..].iter().chain(&outages[..start]) {
            if lines.len() == LINES_MAX {
                self.resume_after = last.cloned();
                break;
            }
            let reported = self.reported.get_mut(name).expect("observed above");
            if let Some(line) = reported.line(outage, now) {
                // The configuration admits no control characters in names.
                lines.push(format!("origin {name}: {line}"));
                last = Some(name);
            }
        }
        lines
    }
}

impl Reported {
    /// Records the state of the origin in this round.
    fn observe(&mut self, outage: &Outage, now: Duration) {
        if self.generation != outage.generation {
            // The origin left the configuration and came back, so its counts started again.
            *self = Self { generation: outage.generation, line: self.line, ..Self::default() };
        }
        if self.state.is_none_or(|(since, _)| since != outage.since) {
            self.state = Some((outage.since, now));
        }
    }

    /// Returns whether the next line may be printed now.
    fn is_due(&self, outage: &Outage, now: Duration) -> bool {
        let Some((last, wait)) = self.line else { return true };
        let is_change = self.outage.is_some() != outage.since.is_some();
        let is_lasting = self.state.is_some_and(|(_, first)| now - first >= INTERVAL);
        let wait = if is_change && is_lasting { INTERVAL } else { wait };
        now >= last + wait
    }

    /// Returns the line to print now.
    fn line(&mut self, outage: &Outage, now: Duration) -> Option<String> {
        let new = outage.failures - self.failed;
        let is_due = self.is_due(outage, now);
        let since_last = self.line.map(|(last, _)| now - last);
        let within = since_last.map(in_the_last).unwrap_or_default();
        let cause = outage.cause.map(|cause| cause.to_string()).unwrap_or_default();
        let line = match (self.outage, outage.since) {
            (None, _) if new == 0 => None,
            _ if !is_due => return self.wait(),
            (None, since) => {
                let end = if since.is_none() { "; it responds again" } else { "" };
                self.outage = since.map(|since| (since, self.failed));
                Some(format!("{cause}; {}{within}{end}", failures(new)))
            }
            (Some((since, before)), None) => {
                self.outage = None;
                let end = outage.responded_at.unwrap_or(since);
                let (seconds, failed) = (end.since(since).as_secs(), outage.failures - before);
                Some(format!("responding again after {seconds} s; {}", failures(failed)))
            }
            (Some(_), Some(_)) if new > 0 && since_last.is_some_and(|time| time >= REMINDER) => {
                Some(format!("still failing: {cause}; {}{within}", failures(new)))
            }
            (Some(_), Some(_)) => return self.wait(),
        };
        self.has_more = self.outage.is_some();
        if line.is_some() {
            self.failed = outage.failures;
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
        1 => "1 attempt failed".to_owned(),
        count => format!("{count} attempts failed"),
    }
}

fn in_the_last(time: Duration) -> String {
    format!(" in the last {} s", time.as_secs())
}

#[cfg(test)]
mod tests {
    use millrace_engine::Instant;
    use millrace_proxy::reason::Reason;
    use millrace_proxy::shared_health::FailureCause;

    use super::*;

    fn second(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    fn at(seconds: u64) -> Instant {
        Instant::default() + second(seconds)
    }

    /// Creates an outage that began or ended at these seconds.
    fn outage(failed: u64, since: Option<u64>, responded: Option<u64>) -> Outage {
        let cause = Some(FailureCause::Reason(Reason::ConnectFailed));
        let (since, responded) = (since.map(at), responded.map(at));
        Outage { generation: 1, failures: failed, cause, since, responded_at: responded }
    }

    /// Returns the lines of a round about one origin.
    fn lines_of(reporter: &mut Reporter, outage: Outage, now: u64) -> Vec<String> {
        reporter.round(&[("http://a:80".to_owned(), outage)], second(now))
    }

    #[test]
    fn an_outage_is_announced_once_and_so_is_its_end() {
        let mut reporter = Reporter::default();
        let first = lines_of(&mut reporter, outage(8, Some(10), None), 11);
        assert_eq!(first, ["origin http://a:80: no connection; 8 attempts failed"]);
        for now in 12..52 {
            assert!(lines_of(&mut reporter, outage(8 + now, Some(10), None), now).is_empty());
            assert!(reporter.has_more(), "the line about the end is pending");
        }
        let last = lines_of(&mut reporter, outage(60, None, Some(52)), 53);
        assert_eq!(last, ["origin http://a:80: responding again after 42 s; 60 attempts failed"]);
        assert!(lines_of(&mut reporter, outage(60, None, Some(52)), 54).is_empty());
        assert!(!reporter.has_more());
    }

    #[test]
    fn a_long_outage_is_repeated_seldom() {
        let mut reporter = Reporter::default();
        lines_of(&mut reporter, outage(1, Some(0), None), 1);
        let lines: Vec<_> = (2..1000)
            .flat_map(|now| lines_of(&mut reporter, outage(now, Some(0), None), now))
            .collect();
        let again = "origin http://a:80: still failing: no connection; 300 attempts failed in \
                     the last 300 s";
        assert_eq!(lines, [again; 3]);
    }

    #[test]
    fn an_origin_that_fails_now_and_then_gets_fewer_and_fewer_lines() {
        let mut reporter = Reporter::default();
        let mut lines = Vec::new();
        // Each second one request fails and the next succeeds.
        for now in 1..1000 {
            lines.extend(lines_of(&mut reporter, outage(now, None, Some(now)), now));
        }
        assert!((5..=10).contains(&lines.len()), "{lines:?}");
        let first = "origin http://a:80: no connection; 1 attempt failed; it responds again";
        assert_eq!(lines[0], first);
        let second = "origin http://a:80: no connection; 5 attempts failed in the last 5 s; \
                      it responds again";
        assert_eq!(lines[1], second);
    }

    #[test]
    fn an_end_that_comes_soon_waits_for_its_turn() {
        let mut reporter = Reporter::default();
        assert_eq!(lines_of(&mut reporter, outage(1, Some(0), None), 1).len(), 1);
        assert!(lines_of(&mut reporter, outage(1, None, Some(2)), 2).is_empty());
        assert!(reporter.has_more());
        // The origin fails again meanwhile, which continues the same outage.
        assert!(lines_of(&mut reporter, outage(2, Some(3), Some(2)), 4).is_empty());
        let last = lines_of(&mut reporter, outage(2, None, Some(5)), 6);
        assert_eq!(last, ["origin http://a:80: responding again after 5 s; 2 attempts failed"]);
    }

    #[test]
    fn a_lasting_outage_after_flapping_does_not_wait_for_the_longer_interval() {
        let mut reporter = Reporter::default();
        for now in 1..400 {
            lines_of(&mut reporter, outage(now, None, Some(now)), now);
        }
        let mut lines = Vec::new();
        for now in 400..420 {
            lines.extend(lines_of(&mut reporter, outage(now, Some(400), None), now));
            if !lines.is_empty() {
                assert_eq!(now, 405);
                break;
            }
        }
        assert!(lines.len() == 1 && !lines[0].contains("responds again"), "{lines:?}");
        // The same holds for its end.
        let mut ends = (420..440)
            .filter(|&now| !lines_of(&mut reporter, outage(420, None, Some(420)), now).is_empty());
        assert_eq!(ends.next(), Some(425));
    }

    #[test]
    fn counts_of_an_origin_that_left_and_came_back_begin_again() {
        let mut reporter = Reporter::default();
        lines_of(&mut reporter, outage(8, Some(0), None), 1);
        let again = Outage { generation: 2, ..outage(3, Some(20), None) };
        let line = "origin http://a:80: no connection; 3 attempts failed in the last 20 s";
        assert_eq!(lines_of(&mut reporter, again, 21), [line]);
        // The third outage ends before the round.
        let third = Outage { generation: 3, ..outage(1, None, Some(60)) };
        let line = "origin http://a:80: no connection; 1 attempt failed in the last 40 s; it \
                    responds again";
        assert_eq!(lines_of(&mut reporter, third, 61), [line]);
    }

    #[test]
    fn the_lines_of_a_round_are_bounded_and_each_origin_is_named() {
        let mut reporter = Reporter::default();
        let mut all: Vec<_> =
            (0..95).map(|port| (format!("http://a:{port}"), outage(1, Some(0), None))).collect();
        all.sort_by(|one, other| one.0.cmp(&other.0));
        let mut named = std::collections::BTreeSet::new();
        for now in 1..=10 {
            let lines = reporter.round(&all, second(now));
            assert_eq!(lines.len(), if now < 10 { 10 } else { 5 });
            assert!(reporter.has_more());
            named.extend(lines);
        }
        assert_eq!(named.len(), 95);
        assert!(reporter.round(&all, second(11)).is_empty());
        reporter.round(&all[..1], second(101));
        assert_eq!(reporter.reported.len(), 1, "origins that left are forgotten");
    }
}

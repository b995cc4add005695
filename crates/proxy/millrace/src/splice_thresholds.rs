//! Selects the body lengths from which bodies are spliced.

use std::fmt;
use std::time::Duration;

use millrace_config::Splice;
use millrace_engine::{EpollWatch, Error, PollWatch, SelectWatch, UringWatch, UselectWatch};
use millrace_proxy::DIRECT_BYTES;
use millrace_splice::{NEVER, Thresholds};

use crate::calibrate::{self, ForwardCosts, RestKind};
use crate::console;
use crate::engines::Engine;

/// The selected thresholds and the reason for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct ThresholdSelection {
    pub(crate) thresholds: Thresholds,
    pub(crate) reason: String,
}

impl ThresholdSelection {
    /// Describes how bodies of each kind are forwarded.
    pub(crate) fn plan(&self) -> [(&'static str, String); 4] {
        let Thresholds { alone_min, behind_min, tee_min, .. } = self.thresholds;
        let Thresholds { bulk_min, bulk_after, fill_min, .. } = self.thresholds;
        let stream = match bulk_min {
            usize::MAX => "copied".to_owned(),
            0 => "spliced".to_owned(),
            _ => format!(
                "copied; after {} spliced if a receive returns at least {}, until a pipe gets less than {}",
                console::format_bytes(bulk_after),
                console::format_bytes(bulk_min as u64),
                console::format_bytes(fill_min as u64)
            ),
        };
        let direct = console::format_bytes(DIRECT_BYTES);
        let kept =
            format!("received into the slab (from {direct} without a buffer) and sent from there");
        let teed = "spliced, and read from a second pipe (tee) into the slab";
        [
            ("of known length", describe_by_length("copied", "spliced", alone_min)),
            ("after its header", describe_by_length("copied", "spliced", behind_min)),
            ("until close, tunnel", stream),
            ("stored", describe_by_length(&kept, teed, tee_min)),
        ]
    }
}

/// Describes how bodies shorter than `min`, and the others, are forwarded.
fn describe_by_length(below: &str, others: &str, min: u64) -> String {
    match min {
        NEVER => below.to_owned(),
        0 | 1 => others.to_owned(),
        _ => format!("{below}; from {} {others}", console::format_bytes(min)),
    }
}

impl fmt::Display for ThresholdSelection {
    /// Formats the selection in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thresholds { alone_min, behind_min, .. } = self.thresholds;
        let (alone, behind) = (console::format_bytes(alone_min), console::format_bytes(behind_min));
        write!(f, "from {alone}, after a header from {behind} ({})", self.reason)
    }
}

/// Lengths in KB at which splicing of a rest alone is measured. The threshold becomes one of them,
/// clamped by [`Thresholds::measured`].
const ALONE_KB: [usize; 6] = [8, 16, 24, 32, 48, 64];
/// Lengths in KB at which splicing of a rest behind bytes received with the header is measured.
const AFTER_HEADER_KB: [usize; 5] = [2, 4, 8, 16, 32];

/// Time limit of the measurement at start. A machine that needs longer is too busy to be measured.
const TIMEOUT: Duration = Duration::from_secs(1);

/// Returns the configured thresholds. Calibrating takes about 200 ms of CPU time.
pub(crate) fn select_thresholds(choice: Splice, engine: Engine) -> ThresholdSelection {
    match choice.thresholds() {
        Some(thresholds) => {
            let is_fixed = choice == Splice::Fixed;
            let reason = if is_fixed { "fixed: docs/design/splice.md" } else { "configured" };
            ThresholdSelection { thresholds, reason: reason.to_owned() }
        }
        None => select_calibrated(measure(engine)),
    }
}

fn measure(engine: Engine) -> Result<Vec<ForwardCosts>, Error> {
    let alone = ALONE_KB.map(|size| (RestKind::Alone, size * 1024));
    let behind = AFTER_HEADER_KB.map(|size| (RestKind::AfterHeader, size * 1024));
    let cells = [&alone[..], &behind].concat();
    match engine {
        Engine::Epoll => calibrate::measure_forwarding::<EpollWatch>(&cells, TIMEOUT),
        Engine::Uring => calibrate::measure_forwarding::<UringWatch>(&cells, TIMEOUT),
        Engine::Uselect => calibrate::measure_forwarding::<UselectWatch>(&cells, TIMEOUT),
        Engine::Poll => calibrate::measure_forwarding::<PollWatch>(&cells, TIMEOUT),
        Engine::Select => calibrate::measure_forwarding::<SelectWatch>(&cells, TIMEOUT),
    }
}

fn select_calibrated(measured: Result<Vec<ForwardCosts>, Error>) -> ThresholdSelection {
    let fixed = |why: &str| ThresholdSelection {
        thresholds: Thresholds::FIXED,
        reason: format!("calibrated: {why}; using the fixed thresholds"),
    };
    let costs = match measured {
        Ok(costs) => costs,
        Err(error) => {
            let why = calibrate::describe_failure(error);
            return fixed(&format!("cannot measure splicing: {why}"));
        }
    };
    let of_kind =
        |kind| -> Vec<&ForwardCosts> { costs.iter().filter(|it| it.kind == kind).collect() };
    let (alone, behind) = (of_kind(RestKind::Alone), of_kind(RestKind::AfterHeader));
    let medians = format!(
        "{}; {}",
        format_medians("a rest", &alone),
        format_medians("after a header", &behind)
    );
    match (crossing(&alone), crossing(&behind)) {
        (Some(alone), Some(behind)) => ThresholdSelection {
            thresholds: Thresholds::measured(alone, behind),
            reason: format!("calibrated: {medians}"),
        },
        _ => fixed(&format!("the measurement is inconclusive ({medians})")),
    }
}

/// Returns the length from which splicing is cheaper, or [`NEVER`] if it is cheaper at no measured
/// length. Returns `None` if the results are inconsistent (splicing is cheaper at one length but
/// not at a longer one) or unclear at the longest: then other load disturbed the measurement.
fn crossing(costs: &[&ForwardCosts]) -> Option<u64> {
    let comparisons = costs.iter().map(|costs| compare_costs(&costs.rounds));
    let comparisons: Vec<CostComparison> = comparisons.collect();
    match comparisons.iter().position(|comparison| *comparison == CostComparison::Cheaper) {
        None if comparisons.last() == Some(&CostComparison::Dearer) => Some(NEVER),
        Some(at)
            if comparisons[at..]
                .iter()
                .all(|comparison| *comparison == CostComparison::Cheaper) =>
        {
            Some(costs[at].bytes as u64)
        }
        _ => None,
    }
}

/// The cost of the other method in comparison with copying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum CostComparison {
    Cheaper,
    Dearer,
    /// The rounds disagree.
    Unclear,
}

/// Compares the costs (copying, other method) of all rounds: three quarters of the rounds must
/// agree. Rounds are compared one by one, because both methods of a round are measured within a
/// millisecond, and so under about the same load.
pub(crate) fn compare_costs(rounds: &[(Duration, Duration)]) -> CostComparison {
    let cheaper = rounds.iter().filter(|(copied, other)| other < copied).count();
    match () {
        () if 4 * cheaper >= 3 * rounds.len() => CostComparison::Cheaper,
        () if 4 * cheaper <= rounds.len() => CostComparison::Dearer,
        () => CostComparison::Unclear,
    }
}

/// Formats the median costs of the shortest and the longest length.
fn format_medians(what: &str, costs: &[&ForwardCosts]) -> String {
    let of = |costs: &&ForwardCosts| {
        let copied = median_us(costs.rounds.iter().map(|round| round.0));
        let spliced = median_us(costs.rounds.iter().map(|round| round.1));
        format!("{} KB {copied:.1} us copied, {spliced:.1} us spliced", costs.bytes / 1024)
    };
    let ends = [costs.first(), costs.last()].into_iter().flatten().map(of);
    format!("{what} of {}", ends.collect::<Vec<_>>().join(", of "))
}

/// Returns the median in microseconds.
pub(crate) fn median_us(times: impl Iterator<Item = Duration>) -> f64 {
    let mut all: Vec<Duration> = times.collect();
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0.0, |middle| middle.as_nanos() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates costs where a copy takes 100 us. A cell is (KB, cost of splicing in three rounds of
    /// four, cost in the fourth).
    fn costs(kind: RestKind, cells: &[(usize, u64, u64)]) -> Vec<ForwardCosts> {
        let us = Duration::from_micros;
        let cell = |&(size, most, last): &_| ForwardCosts {
            kind,
            bytes: size * 1024,
            rounds: [most, most, most, last].map(|spliced| (us(100), us(spliced))).repeat(4),
        };
        cells.iter().map(cell).collect()
    }

    #[test]
    fn splicing_begins_where_it_gets_cheaper() {
        let cells = [(8, 120, 120), (16, 120, 90), (24, 90, 120), (32, 60, 60), (64, 40, 40)];
        let alone = costs(RestKind::Alone, &cells);
        let behind = costs(RestKind::AfterHeader, &[(4, 110, 110), (8, 90, 90), (32, 50, 50)]);
        let selection = select_calibrated(Ok([alone, behind].concat()));
        assert_eq!(selection.thresholds, Thresholds::measured(24 << 10, 8 << 10));
        assert!(selection.reason.contains("64 KB 100.0 us copied, 40.0 us spliced"));
    }

    #[test]
    fn thresholds_outside_the_measured_lengths_end_at_the_bounds() {
        let cheap = [(2, 90, 90), (64, 40, 40)];
        let dear = [(2, 110, 110), (64, 120, 120)];
        for (cells, expected) in [(cheap, (0, 0)), (dear, (NEVER, NEVER))] {
            let all =
                [costs(RestKind::Alone, &cells), costs(RestKind::AfterHeader, &cells)].concat();
            let selection = select_calibrated(Ok(all));
            assert_eq!(selection.thresholds, Thresholds::measured(expected.0, expected.1));
        }
    }

    #[test]
    fn inconclusive_measurements_select_the_fixed_thresholds() {
        let clear = costs(RestKind::AfterHeader, &[(2, 110, 110), (32, 60, 60)]);
        let relapse = costs(RestKind::Alone, &[(8, 90, 90), (16, 110, 110), (64, 60, 60)]);
        let (us, two) = (Duration::from_micros, [(90, 100), (110, 100)]);
        let rounds = two.map(|(copied, spliced)| (us(copied), us(spliced))).repeat(8);
        let undecided = vec![ForwardCosts { kind: RestKind::Alone, bytes: 65536, rounds }];
        for alone in [relapse, undecided] {
            let selection = select_calibrated(Ok([alone, clear.clone()].concat()));
            assert_eq!(selection.thresholds, Thresholds::FIXED);
            assert!(selection.reason.contains("inconclusive"));
        }
        let selection = select_calibrated(Err(Error::TimedOut));
        assert_eq!(selection.thresholds, Thresholds::FIXED);
        assert!(selection.reason.contains("cannot measure"));
    }

    #[test]
    fn the_plan_describes_each_kind_of_body() {
        let plan = |choice| select_thresholds(choice, Engine::Epoll).plan().map(|(_, what)| what);
        let [alone, behind, stream, stored] = plan(Splice::Fixed);
        assert_eq!(alone, "copied; from 32 KB spliced");
        assert_eq!(behind, "copied; from 4.0 KB spliced");
        assert!(stream.contains("returns at least 32 KB") && stream.ends_with("less than 8.0 KB"));
        let teed = format!("; from {} spliced", console::format_bytes(Thresholds::FIXED.tee_min));
        assert!(stored.contains("(from 32 KB without") && stored.contains(&teed), "{stored}");
        assert_eq!(plan(Splice::Never)[..3], ["copied"; 3]);
        assert_eq!(plan(Splice::Always)[..3], ["spliced"; 3]);
    }

    #[test]
    fn configured_thresholds_are_used() {
        for engine in [Engine::Epoll, Engine::Uring, Engine::Poll, Engine::Select] {
            let never = select_thresholds(Splice::Never, engine);
            assert_eq!((never.thresholds, &never.reason[..]), (Thresholds::COPY, "configured"));
        }
        assert!(
            select_thresholds(Splice::Calibrated, Engine::Epoll).reason.starts_with("calibrated: ")
        );
    }
}

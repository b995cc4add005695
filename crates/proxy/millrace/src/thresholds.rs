//! From how many bytes on bodies are spliced, and why from there.

use std::fmt;
use std::time::Duration;

use millrace_config::Splice;
use millrace_engine::{EpollWatch, Error, PollWatch, SelectWatch, UringWatch, UselectWatch};
use millrace_proxy::DIRECT_BYTES;
use millrace_splice::{NEVER, Thresholds};

use crate::calibrate::{self, Costs, Kind};
use crate::engines::Engine;
use crate::print;

/// The thresholds to run with, and why they are those.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Picked {
    pub(crate) thresholds: Thresholds,
    pub(crate) reason: String,
}

impl Picked {
    /// How bodies of each kind are moved.
    pub(crate) fn plan(&self) -> [(&'static str, String); 4] {
        let Thresholds { alone_min, behind_min, tee_min, .. } = self.thresholds;
        let Thresholds { bulk_min, bulk_after, fill_min, .. } = self.thresholds;
        let stream = match bulk_min {
            usize::MAX => "copied".to_owned(),
            0 => "spliced".to_owned(),
            _ => format!(
                "copied; after {} spliced once a receive brings {}, until a pipe gets less than {}",
                print::bytes(bulk_after),
                print::bytes(bulk_min as u64),
                print::bytes(fill_min as u64)
            ),
        };
        let direct = print::bytes(DIRECT_BYTES);
        let kept = format!("into the slab (from {direct} on without a buffer) and sent from there");
        let teed = "spliced, and read out of a second pipe (tee) into the slab";
        [
            ("of known length", by_length("copied", "spliced", alone_min)),
            ("behind its head", by_length("copied", "spliced", behind_min)),
            ("until close, tunnel", stream),
            ("stored", by_length(&kept, teed, tee_min)),
        ]
    }
}

/// What is done with bodies shorter than `min`, and with the others.
fn by_length(below: &str, others: &str, min: u64) -> String {
    match min {
        NEVER => below.to_owned(),
        0 | 1 => others.to_owned(),
        _ => format!("{below}; from {} on {others}", print::bytes(min)),
    }
}

impl fmt::Display for Picked {
    /// In one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Thresholds { alone_min, behind_min, .. } = self.thresholds;
        let (alone, behind) = (print::bytes(alone_min), print::bytes(behind_min));
        write!(f, "from {alone} on, behind a head from {behind} ({})", self.reason)
    }
}

/// Rests that are measured alone, in KB: they are what a crossing is looked for among.
const ALONE_KB: [usize; 6] = [8, 16, 24, 32, 48, 64];
/// The same behind what was received with a head.
const BEHIND_KB: [usize; 5] = [2, 4, 8, 16, 32];

/// How long a start waits for an answer; a machine that is so busy has none.
const PATIENCE: Duration = Duration::from_secs(1);

/// The thresholds that are asked for. To calibrate them takes some 200 ms of CPU time.
pub(crate) fn pick(choice: Splice, engine: Engine) -> Picked {
    match choice.thresholds() {
        Some(thresholds) => {
            let is_fixed = choice == Splice::Fixed;
            let reason = if is_fixed { "fixed: docs/design/bodies.md" } else { "asked for" };
            Picked { thresholds, reason: reason.to_owned() }
        }
        None => calibrated(measure(engine)),
    }
}

fn measure(engine: Engine) -> Result<Vec<Costs>, Error> {
    let alone = ALONE_KB.map(|size| (Kind::Alone, size * 1024));
    let behind = BEHIND_KB.map(|size| (Kind::Behind, size * 1024));
    let cells = [&alone[..], &behind].concat();
    match engine {
        Engine::Epoll => calibrate::costs::<EpollWatch>(&cells, PATIENCE),
        Engine::Uring => calibrate::costs::<UringWatch>(&cells, PATIENCE),
        Engine::Uselect => calibrate::costs::<UselectWatch>(&cells, PATIENCE),
        Engine::Poll => calibrate::costs::<PollWatch>(&cells, PATIENCE),
        Engine::Select => calibrate::costs::<SelectWatch>(&cells, PATIENCE),
    }
}

fn calibrated(measured: Result<Vec<Costs>, Error>) -> Picked {
    let fixed = |why: &str| Picked {
        thresholds: Thresholds::FIXED,
        reason: format!("calibrated: {why}, so the fixed thresholds are taken"),
    };
    let costs = match measured {
        Ok(costs) => costs,
        Err(error) => return fixed(&format!("splicing could not be measured: {error}")),
    };
    let of_kind = |kind| -> Vec<&Costs> { costs.iter().filter(|it| it.kind == kind).collect() };
    let (alone, behind) = (of_kind(Kind::Alone), of_kind(Kind::Behind));
    let told = format!("{}; {}", told("a rest", &alone), told("behind a head", &behind));
    match (crossing(&alone), crossing(&behind)) {
        (Some(alone), Some(behind)) => Picked {
            thresholds: Thresholds::measured(alone, behind),
            reason: format!("calibrated: {told}"),
        },
        _ => fixed(&format!("this machine gave no clear answer ({told})")),
    }
}

/// The length from which on splicing is cheaper; [`NEVER`]: it is not at any that was measured.
/// `None` where one length says this and a longer one that, or the longest says nothing: what is
/// true does not do so, and the machine had other things to do.
fn crossing(costs: &[&Costs]) -> Option<u64> {
    let verdicts = costs.iter().map(|costs| verdict(&costs.rounds));
    let verdicts: Vec<Verdict> = verdicts.collect();
    match verdicts.iter().position(|verdict| *verdict == Verdict::Cheaper) {
        None if verdicts.last() == Some(&Verdict::Dearer) => Some(NEVER),
        Some(at) if verdicts[at..].iter().all(|verdict| *verdict == Verdict::Cheaper) => {
            Some(costs[at].bytes as u64)
        }
        _ => None,
    }
}

/// What the other way is, beside copying.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Verdict {
    Cheaper,
    Dearer,
    /// The rounds do not agree.
    Level,
}

/// What three of four rounds say, each of which compares what was measured within a millisecond.
pub(crate) fn verdict(rounds: &[(Duration, Duration)]) -> Verdict {
    let cheaper = rounds.iter().filter(|(copied, other)| other < copied).count();
    match () {
        () if 4 * cheaper >= 3 * rounds.len() => Verdict::Cheaper,
        () if 4 * cheaper <= rounds.len() => Verdict::Dearer,
        () => Verdict::Level,
    }
}

/// Medians, for people: what the shortest and the longest take.
fn told(what: &str, costs: &[&Costs]) -> String {
    let of = |costs: &&Costs| {
        let copied = median_us(costs.rounds.iter().map(|round| round.0));
        let spliced = median_us(costs.rounds.iter().map(|round| round.1));
        format!("{} KB {copied:.1} us copied, {spliced:.1} us spliced", costs.bytes / 1024)
    };
    let ends = [costs.first(), costs.last()].into_iter().flatten().map(of);
    format!("{what} of {}", ends.collect::<Vec<_>>().join(", of "))
}

/// The median in microseconds.
pub(crate) fn median_us(times: impl Iterator<Item = Duration>) -> f64 {
    let mut all: Vec<Duration> = times.collect();
    all.sort_unstable();
    all.get(all.len() / 2).map_or(0.0, |middle| middle.as_nanos() as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What splicing takes, of a copy that takes 100: in three rounds of four, and in the fourth.
    fn costs(kind: Kind, cells: &[(usize, u64, u64)]) -> Vec<Costs> {
        let us = Duration::from_micros;
        let cell = |&(size, most, last): &_| Costs {
            kind,
            bytes: size * 1024,
            rounds: [most, most, most, last].map(|spliced| (us(100), us(spliced))).repeat(4),
        };
        cells.iter().map(cell).collect()
    }

    #[test]
    fn where_splicing_gets_cheaper_it_begins() {
        let cells = [(8, 120, 120), (16, 120, 90), (24, 90, 120), (32, 60, 60), (64, 40, 40)];
        let alone = costs(Kind::Alone, &cells);
        let behind = costs(Kind::Behind, &[(4, 110, 110), (8, 90, 90), (32, 50, 50)]);
        let picked = calibrated(Ok([alone, behind].concat()));
        assert_eq!(picked.thresholds, Thresholds::measured(24 << 10, 8 << 10));
        assert!(picked.reason.contains("64 KB 100.0 us copied, 40.0 us spliced"));
    }

    #[test]
    fn what_is_beyond_all_that_was_measured_ends_at_the_bounds() {
        let cheap = [(2, 90, 90), (64, 40, 40)];
        let dear = [(2, 110, 110), (64, 120, 120)];
        for (cells, expected) in [(cheap, (0, 0)), (dear, (NEVER, NEVER))] {
            let all = [costs(Kind::Alone, &cells), costs(Kind::Behind, &cells)].concat();
            let picked = calibrated(Ok(all));
            assert_eq!(picked.thresholds, Thresholds::measured(expected.0, expected.1));
        }
    }

    #[test]
    fn without_a_clear_answer_the_fixed_ones_are_taken_and_that_is_said() {
        let clear = costs(Kind::Behind, &[(2, 110, 110), (32, 60, 60)]);
        let relapse = costs(Kind::Alone, &[(8, 90, 90), (16, 110, 110), (64, 60, 60)]);
        let (us, two) = (Duration::from_micros, [(90, 100), (110, 100)]);
        let rounds = two.map(|(copied, spliced)| (us(copied), us(spliced))).repeat(8);
        let undecided = vec![Costs { kind: Kind::Alone, bytes: 65536, rounds }];
        for alone in [relapse, undecided] {
            let picked = calibrated(Ok([alone, clear.clone()].concat()));
            assert_eq!(picked.thresholds, Thresholds::FIXED);
            assert!(picked.reason.contains("no clear answer"));
        }
        let picked = calibrated(Err(Error::TimedOut));
        assert_eq!(picked.thresholds, Thresholds::FIXED);
        assert!(picked.reason.contains("could not be measured"));
    }

    #[test]
    fn a_plan_says_what_is_done_with_which_body() {
        let plan = |choice| pick(choice, Engine::Epoll).plan().map(|(_, what)| what);
        let [alone, behind, stream, stored] = plan(Splice::Fixed);
        assert_eq!(alone, "copied; from 32 KB on spliced");
        assert_eq!(behind, "copied; from 4.0 KB on spliced");
        assert!(stream.contains("brings 32 KB") && stream.ends_with("less than 8.0 KB"));
        let teed = format!("; from {} on spliced", print::bytes(Thresholds::FIXED.tee_min));
        assert!(stored.contains("(from 32 KB on without") && stored.contains(&teed), "{stored}");
        assert_eq!(plan(Splice::Never)[..3], ["copied"; 3]);
        assert_eq!(plan(Splice::Always)[..3], ["spliced"; 3]);
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        for engine in [Engine::Epoll, Engine::Uring, Engine::Poll, Engine::Select] {
            let never = pick(Splice::Never, engine);
            assert_eq!((never.thresholds, &never.reason[..]), (Thresholds::COPY, "asked for"));
        }
        assert!(pick(Splice::Calibrated, Engine::Epoll).reason.starts_with("calibrated: "));
    }
}

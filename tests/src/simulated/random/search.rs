//! Plays many seeds on several threads, and reports failures.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use super::findings::{Coverage, Failure};
use super::shrink::{fails, shrink};
use super::{RandomScenario, play_random, random_scenario};

/// The result of many seeds.
#[derive(Default)]
pub struct SearchResult {
    /// Seeds played.
    pub seeds: u64,
    /// Seeds that failed, lowest first, each with its scenario and its failure.
    pub failures: Vec<(RandomScenario, Failure)>,
    /// How often each class of behaviour occurred.
    pub coverage: Coverage,
}

/// One in this number of seeds is played twice, to check that the run repeats exactly. Every
/// failing seed is played twice too.
const REPLAYED_OF: u64 = 32;

/// Plays `seeds` seeds from `first` on, on `threads` threads. Stops once `failures_max` have
/// failed.
pub fn search(first: u64, seeds: u64, threads: usize, failures_max: usize) -> SearchResult {
    let next = AtomicU64::new(first);
    let found = Mutex::new(SearchResult::default());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut coverage = Coverage::new();
                loop {
                    // Each seed is taken once. The counter orders no other memory.
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed - first >= seeds {
                        break;
                    }
                    let failure = play_seed(seed, &mut coverage);
                    let mut found = found.lock().expect("no thread panics with the lock");
                    found.seeds += 1;
                    found.failures.extend(failure);
                    if found.failures.len() >= failures_max {
                        break;
                    }
                }
                let mut found = found.lock().expect("no thread panics with the lock");
                for (class, count) in coverage {
                    *found.coverage.entry(class).or_default() += count;
                }
            });
        }
    });
    let mut found = found.into_inner().expect("no thread panicked");
    found.failures.sort_by_key(|(scenario, _)| scenario.seed);
    found
}

fn play_seed(seed: u64, coverage: &mut Coverage) -> Option<(RandomScenario, Failure)> {
    let scenario = random_scenario(seed);
    let outcome = play_random(&scenario, false);
    for (class, count) in &outcome.coverage {
        *coverage.entry(class.clone()).or_default() += count;
    }
    if (outcome.failure.is_some() || seed.is_multiple_of(REPLAYED_OF))
        && let Some(failure) = check_replay(&scenario, outcome.hash)
    {
        return Some((scenario, failure));
    }
    outcome.failure.map(|failure| (scenario, failure))
}

/// Plays a scenario again and returns a failure if the runs differ.
fn check_replay(scenario: &RandomScenario, hash: u64) -> Option<Failure> {
    let again = play_random(scenario, false).hash;
    let details = format!("the trace has the hash {hash:016x}, and {again:016x} when played again");
    (again != hash).then_some(Failure { kind: "replay", details })
}

/// Shrinks a failing scenario for at most `time` and returns a readable report: the scenario, its
/// event log, the failure, and the command to play it again.
pub fn report(scenario: &RandomScenario, failure: &Failure, time: Duration) -> String {
    let (small, failure) = match failure.kind {
        "replay" => (scenario.clone(), failure.clone()),
        _ => shrink(scenario, failure, time, &fails),
    };
    let outcome = play_random(&small, true);
    let again = play_random(&small, true);
    // With TRACE set, the report contains the last lines of the simulated kernel's trace.
    let traces = std::env::var_os("TRACE").is_some();
    let trace = if traces { format!("\n{}", outcome.trace) } else { String::new() };
    let repeats = if outcome.hash == again.hash { "repeats" } else { "DOES NOT REPEAT" };
    format!(
        "seed {} fails ({}).\n\nThe whole scenario has {} connections; shrunk, it is:\n\n{small}\n\
         What happened:\n\n{}{trace}\nWhat was wrong ({}): {}\nThe trace's hash {:016x} {repeats}.\n\
         Again: make sim SEED={}\n",
        scenario.seed,
        failure.kind,
        scenario.connections.len(),
        outcome.event_log,
        failure.kind,
        failure.details,
        outcome.hash,
        scenario.seed,
    )
}

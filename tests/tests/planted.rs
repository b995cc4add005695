//! Proves that the simulator finds bugs: each one of `Fault::ALL` is planted, and seeds are played
//! until one fails (docs/design/faults.md). Without it the same seeds hold.
//!
//! A seed names what is played: every fourth one a story that it invents (docs/design/simulator.md),
//! every eighth one a story of a cache, the others a scenario, how unkind its world is, and the
//! world. They are the same for all faults,
//! and are played in order. `FAULT=name` plants only those whose name contains it;
//! `SCENARIO=name` plays only such scenarios, which shows how rare a bug is where it can show;
//! `ALL_SEEDS=1` plays on after the first failure, and tells how many of all seeds fail.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_engine::planted::{COSTLY, Fault, plant};
use millrace_sim::Faults;
use millrace_tests::scenario::Scenario;
use millrace_tests::simulated;

/// One seed of so many is a story that it invents: they take longer than scenarios.
const STORY_OF: u64 = 4;
/// One seed of so many is a story of a cache: the second of them.
const CACHED_OF: u64 = 8;
/// Seeds that a fault has to be found within.
const SEEDS_MAX: u64 = 1000;

thread_local! {
    /// What the last panic of this thread said, and where.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What the search for one fault came to.
struct Search {
    fault: Fault,
    /// The first seed that failed, and what the model said.
    first: Option<(u64, String)>,
    /// Seeds that failed, of those that were played.
    failed: u64,
    played: u64,
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, first, failed, played } = self;
        let fault = format!("{fault:?}");
        match first {
            Some((seed, why)) => {
                write!(f, "{fault:<17} seed {seed:>3} ({failed} of {played}) {why}")
            }
            None => write!(f, "{fault:<17} not in {played} seeds"),
        }
    }
}

/// What `seed` names: a story, or the scenarios in turn, each in a world that works and in a hostile
/// one.
fn play(scenarios: &[Scenario], seed: u64) -> Result<(), String> {
    if seed % STORY_OF == STORY_OF - 1 {
        return play_invented(seed / STORY_OF);
    }
    if seed % CACHED_OF == 1 {
        return play_cached(seed / CACHED_OF);
    }
    // Scenarios take turns, none of which is lost to a story.
    let seed = seed - seed / STORY_OF - (seed + CACHED_OF - 2) / CACHED_OF;
    let count = scenarios.len() as u64;
    let scenario = &scenarios[(seed % count) as usize];
    let works = !scenario.hostile || (seed / count).is_multiple_of(2);
    let faults = if works { Faults::Benign } else { Faults::Hostile };
    let played = catch_unwind(AssertUnwindSafe(|| simulated::play(scenario, seed, faults)));
    let said = match played {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(why)) => verdict(&why).to_owned(),
        Err(_) => PANIC.with_borrow(Clone::clone),
    };
    Err(format!("{} {faults:?}: {}", scenario.name, beginning(&said)))
}

fn play_invented(seed: u64) -> Result<(), String> {
    if std::env::var_os("SCENARIO").is_some() {
        return Ok(());
    }
    let story = simulated::draw(seed);
    match simulated::play_story(&story, false).failure {
        None => Ok(()),
        Some(failure) => {
            let said = failure.words.replace('\n', " ");
            Err(format!("story {seed} {:?}: {}: {}", story.world, failure.kind, beginning(&said)))
        }
    }
}

fn play_cached(seed: u64) -> Result<(), String> {
    if std::env::var_os("SCENARIO").is_some() {
        return Ok(());
    }
    match simulated::play_cached(&simulated::draw_cached(seed), false).failure {
        None => Ok(()),
        Some(failure) => {
            let said = failure.words.replace('\n', " ");
            Err(format!("cached story {seed}: {}: {}", failure.kind, beginning(&said)))
        }
    }
}

fn beginning(said: &str) -> String {
    said.chars().take(120).collect()
}

/// The line that says what was wrong: it follows the trace, whose lines begin with the time.
fn verdict(why: &str) -> &str {
    let after = why.rsplit_once(" ms  ").map_or(why, |(_, after)| after);
    after.lines().skip(1).find(|line| !line.is_empty()).unwrap_or(after)
}

fn search(scenarios: &[Scenario], fault: Fault) -> Search {
    let all = std::env::var_os("ALL_SEEDS").is_some();
    let mut search = Search { fault, first: None, failed: 0, played: 0 };
    plant(Some(fault));
    for seed in 0..SEEDS_MAX {
        search.played += 1;
        if let Err(why) = play(scenarios, seed) {
            search.failed += 1;
            search.first.get_or_insert((seed, why));
            if !all {
                break;
            }
        }
    }
    plant(None);
    search
}

/// Searches for the faults, a thread a core.
fn search_all(scenarios: &[Scenario], faults: &[Fault]) -> Vec<Search> {
    let next = AtomicUsize::new(0);
    let searches = Mutex::new(Vec::new());
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                // Each index is taken once; nothing else is told by it.
                while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let found = search(scenarios, *fault);
                    println!("{found}");
                    searches.lock().expect("nobody panics with the lock").push(found);
                }
            });
        }
    });
    searches.into_inner().expect("nobody panics with the lock")
}

#[test]
fn every_planted_fault_is_found() {
    std::panic::set_hook(Box::new(|info| PANIC.set(info.to_string().replace('\n', " "))));
    let mut scenarios = Scenario::all();
    let wanted = std::env::var("SCENARIO").unwrap_or_default();
    scenarios.retain(|scenario| scenario.simulated && scenario.name.contains(&wanted));
    let wanted = std::env::var("FAULT").unwrap_or_default();
    let faults = Fault::ALL.iter().copied().filter(|fault| !COSTLY.contains(fault));
    let faults: Vec<Fault> =
        faults.filter(|fault| format!("{fault:?}").contains(&wanted)).collect();
    let searches = search_all(&scenarios, &faults);
    let missed: Vec<String> = searches
        .iter()
        .filter(|search| search.first.is_none())
        .map(|search| format!("{:?}", search.fault))
        .collect();
    let deepest =
        searches.iter().filter_map(|search| search.first.as_ref()).map(|first| first.0).max();
    for seed in 0..=deepest.unwrap_or_default() {
        if let Err(why) = play(&scenarios, seed) {
            panic!("seed {seed} fails without a fault: {why}");
        }
    }
    assert!(missed.is_empty(), "not found: {}", missed.join(", "));
}

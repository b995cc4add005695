//! Proves that the simulator finds bugs (docs/design/testing.md). Each [`EngineFault`] is planted
//! in the engines of the simulated worlds, and seeds are played until one fails. Without a fault
//! the same seeds pass.
//!
//! Bugs of the proxy are patches (`tests/faults`). `tests/faults/play` applies each to a copy of
//! the source and runs the ignored test below, which has to fail there.
//!
//! Every fourth seed is a random scenario (docs/design/testing.md), every eighth one a random
//! scenario of the cache. The others are the written scenarios in turn, each in a working world and
//! in a hostile one. The seeds are the same for all faults, and are played in order. `FAULT=name`
//! plants only the faults whose name contains it. `SCENARIO=name` plays only scenarios whose name
//! contains it, which shows how rarely they reveal a bug. `ALL_SEEDS=1` continues after the first
//! failure, and counts how many of all seeds fail.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use millrace_sim::{EngineFault, Faults, World};
use millrace_tests::scenario::Scenario;
use millrace_tests::simulated;

/// One in this number of seeds is a random scenario, which takes longer than a written one.
const RANDOM_OF: u64 = 4;
/// One in this number of seeds is a random scenario of the cache: seeds 1, 9, 17 and so on.
const CACHED_OF: u64 = 8;
/// A fault has to be found within this number of seeds.
const SEEDS_MAX: u64 = 1000;

thread_local! {
    /// The message of the last panic of this thread, and its place.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The outcome of the search for one fault.
struct Search {
    fault: EngineFault,
    /// The first seed that failed, and the message of the failure.
    first: Option<(u64, String)>,
    /// Number of seeds that failed, of those that were played.
    failed: u64,
    played: u64,
}

impl fmt::Display for Search {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fault, first, failed, played } = self;
        let fault = format!("{fault:?}");
        match first {
            Some((seed, why)) => {
                write!(f, "{fault:<21} seed {seed:>3} ({failed} of {played}) {why}")
            }
            None => write!(f, "{fault:<21} not in {played} seeds"),
        }
    }
}

/// Plays the random or written scenario of `seed`, with `fault` in its engines.
fn play(scenarios: &[Scenario], seed: u64, fault: Option<EngineFault>) -> Result<(), String> {
    if seed % RANDOM_OF == RANDOM_OF - 1 {
        return play_random(seed / RANDOM_OF, fault);
    }
    if seed % CACHED_OF == 1 {
        return play_cached(seed / CACHED_OF, fault);
    }
    // The written scenarios are played in turn, so the seeds of random scenarios are not counted
    // here.
    let seed = seed - seed / RANDOM_OF - (seed + CACHED_OF - 2) / CACHED_OF;
    let count = scenarios.len() as u64;
    let scenario = &scenarios[(seed % count) as usize];
    let works = !scenario.hostile || (seed / count).is_multiple_of(2);
    let faults = if works { Faults::Benign } else { Faults::Hostile };
    let world = world(seed, faults, fault);
    let played =
        catch_unwind(AssertUnwindSafe(|| simulated::play_in(&world, scenario, seed, faults)));
    let details = match played {
        Ok(Ok(_)) => return Ok(()),
        Ok(Err(why)) => verdict(&why).to_owned(),
        Err(_) => PANIC.with_borrow(Clone::clone),
    };
    Err(format!("{} {faults:?}: {}", scenario.name, beginning(&details)))
}

fn play_random(seed: u64, fault: Option<EngineFault>) -> Result<(), String> {
    if std::env::var_os("SCENARIO").is_some() {
        return Ok(());
    }
    let scenario = simulated::random_scenario(seed);
    let world = world(scenario.seed, scenario.world, fault);
    match simulated::play_random_in(&world, &scenario, false).failure {
        None => Ok(()),
        Some(failure) => {
            let details = failure.details.replace('\n', " ");
            Err(format!(
                "scenario {seed} {:?}: {}: {}",
                scenario.world,
                failure.kind,
                beginning(&details)
            ))
        }
    }
}

fn play_cached(seed: u64, fault: Option<EngineFault>) -> Result<(), String> {
    if std::env::var_os("SCENARIO").is_some() {
        return Ok(());
    }
    let scenario = simulated::random_cache_scenario(seed);
    let world = world(scenario.seed, scenario.world, fault);
    match simulated::play_cache_in(&world, &scenario, false).failure {
        None => Ok(()),
        Some(failure) => {
            let details = failure.details.replace('\n', " ");
            Err(format!("cached scenario {seed}: {}: {}", failure.kind, beginning(&details)))
        }
    }
}

fn world(seed: u64, faults: Faults, fault: Option<EngineFault>) -> World {
    let world = World::new(seed, faults);
    fault.into_iter().for_each(|fault| world.plant_fault(fault));
    world
}

fn beginning(details: &str) -> String {
    details.chars().take(120).collect()
}

/// Returns the line that describes the failure. It follows the trace, whose lines begin with the
/// time.
fn verdict(why: &str) -> &str {
    let after = why.rsplit_once(" ms  ").map_or(why, |(_, after)| after);
    after.lines().skip(1).find(|line| !line.is_empty()).unwrap_or(after)
}

/// Returns the scenarios of the simulator, and makes panics keep their messages for [`play`].
fn prepare() -> Vec<Scenario> {
    std::panic::set_hook(Box::new(|info| PANIC.set(info.to_string().replace('\n', " "))));
    let mut scenarios = Scenario::all();
    let wanted = std::env::var("SCENARIO").unwrap_or_default();
    scenarios.retain(|scenario| scenario.simulated && scenario.name.contains(&wanted));
    scenarios
}

/// Runs `work` on a thread for each processor.
fn on_all_processors(work: impl Fn() + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(&work);
        }
    });
}

/// Returns the first of `seeds` seeds that fails without a fault of the engine, and why.
fn first_failure(scenarios: &[Scenario], seeds: u64) -> Option<(u64, String)> {
    let next = AtomicU64::new(0);
    let failures = Mutex::new(Vec::new());
    on_all_processors(|| {
        loop {
            // Each seed is taken once, and those before the first failure are all played. The
            // counter orders no other memory.
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= seeds {
                return;
            }
            if let Err(why) = play(scenarios, seed, None) {
                next.store(seeds, Ordering::Relaxed);
                failures.lock().expect("no thread panics with the lock").push((seed, why));
            }
        }
    });
    failures.into_inner().expect("no thread panics with the lock").into_iter().min()
}

fn search(scenarios: &[Scenario], fault: EngineFault) -> Search {
    let all = std::env::var_os("ALL_SEEDS").is_some();
    let mut search = Search { fault, first: None, failed: 0, played: 0 };
    for seed in 0..SEEDS_MAX {
        search.played += 1;
        if let Err(why) = play(scenarios, seed, Some(fault)) {
            search.failed += 1;
            search.first.get_or_insert((seed, why));
            if !all {
                break;
            }
        }
    }
    search
}

fn search_all(scenarios: &[Scenario], faults: &[EngineFault]) -> Vec<Search> {
    let next = AtomicUsize::new(0);
    let searches = Mutex::new(Vec::new());
    on_all_processors(|| {
        // Each index is taken once. The counter orders no other memory.
        while let Some(fault) = faults.get(next.fetch_add(1, Ordering::Relaxed)) {
            let found = search(scenarios, *fault);
            println!("{found}");
            searches.lock().expect("no thread panics with the lock").push(found);
        }
    });
    searches.into_inner().expect("no thread panics with the lock")
}

#[test]
fn every_engine_fault_is_found() {
    let scenarios = prepare();
    let wanted = std::env::var("FAULT").unwrap_or_default();
    let mut faults = EngineFault::ALL.to_vec();
    faults.retain(|fault| format!("{fault:?}").contains(&wanted));
    let searches = search_all(&scenarios, &faults);
    let missed = searches.iter().filter(|search| search.first.is_none());
    let missed: Vec<String> = missed.map(|search| format!("{:?}", search.fault)).collect();
    let found = searches.iter().filter_map(|search| search.first.as_ref());
    let seeds = found.map(|(seed, _)| seed + 1).max().unwrap_or_default();
    if let Some((seed, why)) = first_failure(&scenarios, seeds) {
        panic!("seed {seed} fails without a fault: {why}");
    }
    assert!(missed.is_empty(), "not found: {}", missed.join(", "));
}

#[test]
#[ignore = "run by tests/faults/play in a copy of the source, which has a bug"]
fn no_seed_fails() {
    let scenarios = prepare();
    match first_failure(&scenarios, SEEDS_MAX) {
        None => println!("no failure: {SEEDS_MAX} seeds"),
        Some((seed, why)) => {
            println!("failure: seed {seed}: {why}");
            panic!("seed {seed} fails");
        }
    }
}

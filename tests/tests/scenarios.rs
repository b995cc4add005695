//! Every scenario, against the real program and in the simulator.
//!
//! `SCENARIO=name` plays only those whose name contains it; `SEEDS=n` plays n seeds of each (100);
//! `SEED=n` plays that seed alone, twice, and compares the runs. A failure prints the seed's trace.

use std::panic::{AssertUnwindSafe, catch_unwind};

use millrace_sim::Faults;
use millrace_tests::scenario::Scenario;
use millrace_tests::{real, simulated};

/// The scenarios that are asked for.
fn chosen() -> impl Iterator<Item = Scenario> {
    let wanted = std::env::var("SCENARIO").unwrap_or_default();
    Scenario::all().into_iter().filter(move |scenario| scenario.name.contains(&wanted))
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is a number")))
}

/// Plays the seeds of every scenario; a seed that is asked for is played twice.
fn play_seeds(faults: Faults) {
    let mut failures = Vec::new();
    for scenario in chosen().filter(|scenario| scenario.simulated) {
        let seeds = match number("SEED") {
            Some(seed) => seed..seed + 1,
            None => 0..number("SEEDS").unwrap_or(100),
        };
        for seed in seeds {
            let play = || {
                let played =
                    catch_unwind(AssertUnwindSafe(|| simulated::play(&scenario, seed, faults)));
                played.unwrap_or_else(|_| {
                    let name = &scenario.name;
                    Err(format!("{name} with SEED={seed} {faults:?}: a panic, see above"))
                })
            };
            let first = play();
            if number("SEED").is_some() || seed == 0 {
                assert_eq!(first, play(), "{}: seed {seed} repeats exactly", scenario.name);
            }
            if let Err(why) = first {
                failures.push(why);
                break;
            }
        }
    }
    let count = failures.len();
    assert!(failures.is_empty(), "{count} scenarios fail\n{}", failures.join("\n\n"));
}

#[test]
fn scenarios_hold_in_simulated_worlds_that_work() {
    play_seeds(Faults::None);
    play_seeds(Faults::Benign);
}

#[test]
fn scenarios_keep_the_model_in_hostile_simulated_worlds() {
    play_seeds(Faults::Hostile);
}

#[test]
fn scenarios_hold_for_the_real_program() {
    let program = real::program().unwrap_or_else(|wrong| panic!("{wrong}"));
    let mut failures = Vec::new();
    for scenario in chosen().filter(|scenario| scenario.real) {
        if let Err(why) = real::play(&scenario, &program) {
            failures.push(format!("{}:\n{why}", scenario.name));
        }
    }
    let count = failures.len();
    assert!(failures.is_empty(), "{count} scenarios fail\n{}", failures.join("\n\n"));
}

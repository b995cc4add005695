//! Random scenarios: a proxy, origins and clients, well-behaved or not. A scenario is plain data
//! ([`plan`]), which [`random_scenario`] generates from a seed. The simulator plays it, and the
//! [`model`] checks every byte and every turn. A failing scenario is shrunk ([`shrink()`]) and
//! printed.
//!
//! docs/design/testing.md describes the model, its limits, and how to read a failure.

mod cache;
mod client;
mod coverage;
mod display;
mod files;
mod findings;
mod generate;
mod model;
mod names;
#[cfg(test)]
mod negative_tests;
mod origin;
mod pace;
mod plain;
pub mod plan;
mod programs;
mod reader;
mod run;
mod search;
mod send;
mod shrink;
mod wire;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use millrace_sim::World;

pub use cache::{CacheScenario, play_cache, play_cache_in, random_cache_scenario};
pub use coverage::required_classes;
pub use findings::{Coverage, Failure};
pub use generate::random_scenario;
pub use plain::{plain_request, plain_scenario};
pub use plan::RandomScenario;
pub use run::Outcome;
pub use search::{SearchResult, report, search};
pub use shrink::shrink;

thread_local! {
    /// The message of the last panic of this thread, if panics are captured instead of printed.
    static CAPTURED_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Plays a scenario; a panic counts as a failure. `log_events` enables the event log.
pub fn play_random(scenario: &RandomScenario, log_events: bool) -> Outcome {
    play_random_in(&World::new(scenario.seed, scenario.world), scenario, log_events)
}

/// Like [`play_random`], in a new world of the caller's.
pub fn play_random_in(world: &World, scenario: &RandomScenario, log_events: bool) -> Outcome {
    catch_panic(world, log_events, || run::play(scenario, world, log_events))
}

/// Returns the outcome of `play`, or its panic as a failure.
fn catch_panic(world: &World, log_events: bool, play: impl FnOnce() -> Outcome) -> Outcome {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let printed = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let kept = CAPTURED_PANIC.with_borrow_mut(|kept| match kept {
                Some(details) => {
                    *details = panic.to_string();
                    true
                }
                None => false,
            });
            if !kept {
                printed(panic);
            }
        }));
    });
    CAPTURED_PANIC.set(Some(String::new()));
    let played = catch_unwind(AssertUnwindSafe(play));
    let details = CAPTURED_PANIC.take().unwrap_or_default();
    played.unwrap_or_else(|_| Outcome {
        failure: Some(Failure { kind: "panic", details }),
        hash: world.trace_hash(),
        coverage: Coverage::new(),
        event_log: world.event_log(),
        trace: if log_events { world.trace() } else { String::new() },
    })
}

//! Cache poisoning and deception against the real program, on each engine: docs/design/attack.md.
#![forbid(unsafe_code)]

use std::env;

use millrace_tests::poison::campaign::{self, Plan};
use millrace_tests::poison::mutant::CLASSES;
use millrace_tests::real;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `MUTANTS` sets how many, `SEED` where the random sequences begin; `MUTANT` plays one of them
/// again, `CLASS` those of a class alone.
#[test]
fn no_mutant_changes_another_clients_response() {
    let (seed, only) = (number("SEED").unwrap_or(1), number("MUTANT"));
    let class = env::var("CLASS").ok().map(|name| {
        let class = CLASSES.into_iter().find(|class| format!("{class:?}") == name);
        class.unwrap_or_else(|| panic!("unknown CLASS={name} (expected: one of {CLASSES:?})"))
    });
    let mutants = number("MUTANTS").unwrap_or(6_000);
    for engine in real::engines() {
        let tally = campaign::run(Plan { engine: Some(&engine), seed, mutants, only, class });
        println!("attack: {engine}, {tally}");
        assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
        assert_eq!(tally.changed(), 0);
        // A program that stores nothing, or refuses everything, shows nothing.
        let innocent = tally.innocent;
        let shows = only.is_none() && class.is_none() && mutants >= 1_000;
        assert!(innocent.hits > innocent.responses / 10 || !shows, "{innocent:?}");
        assert!(innocent.refused < innocent.responses / 4 || !shows, "{innocent:?}");
    }
}

/// A check that cannot fail shows nothing: of a cache that makes every mistake, every class of
/// mutants has to change another client's response.
#[test]
fn a_cache_that_makes_every_mistake_is_found_out() {
    let plan = Plan { engine: None, seed: 1, mutants: 1_000, only: None, class: None };
    let tally = campaign::run(plan);
    println!("attack: a naive cache, {tally}");
    for class in CLASSES {
        assert!(tally.changed_by(class) > 0, "{class:?} finds nothing");
    }
}

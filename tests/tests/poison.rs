//! Cache poisoning and deception against the real program, on each engine: docs/design/testing.md.
#![forbid(unsafe_code)]

use std::env;

use millrace_tests::poison::campaign::{self, CampaignStats, ClassCounts, Plan};
use millrace_tests::poison::mutant::{CLASSES, Class};
use millrace_tests::real;

fn number(name: &str) -> Option<u64> {
    env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `MUTANTS` sets the number, `SEED` the seed of the random sequences. `MUTANT` plays only one of
/// them, `CLASS` only those of a class.
#[test]
fn no_mutant_changes_another_clients_response() {
    let (seed, only) = (number("SEED").unwrap_or(1), number("MUTANT"));
    let class = env::var("CLASS").ok().map(|name| {
        let class = CLASSES.into_iter().find(|class| format!("{class:?}") == name);
        class.unwrap_or_else(|| panic!("unknown CLASS={name} (expected: one of {CLASSES:?})"))
    });
    let mutants = number("MUTANTS").unwrap_or(6_000);
    for engine in real::engines() {
        let stats = campaign::run(Plan { engine: Some(&engine), seed, mutants, only, class });
        println!("attack: {engine}, {stats}");
        assert!(stats.failures.is_empty(), "{}", stats.failures.join("\n"));
        assert_eq!(stats.changed(), 0);
        if only.is_none() && class.is_none() && mutants >= 1_000 {
            CLASSES.into_iter().for_each(|class| assert_shows(class, &stats, mutants));
        }
    }
}

/// Asserts that the mutants of a class reach the origin and the cache. A program that refuses
/// everything, or stores nothing, would change no response either. The limits are far from the
/// percentages of 100,000 mutants, which differ little between seeds.
fn assert_shows(class: Class, stats: &CampaignStats, mutants: u64) {
    let counts = stats.classes.get(&class).copied().unwrap_or_default();
    let ClassCounts { attacks, reached, responses, hits, refused, .. } = counts;
    // Percentages: attacks that reach the origin, hits, refusals. path-strict refuses most of the
    // paths that two programs may read differently.
    let (reached_min, hits_min, refused_max) = match class {
        Class::Path => (20, 5, 60),
        _ => (50, 10, 5),
    };
    assert!(attacks >= mutants / 40, "{class:?}: too few attacks: {counts:?}");
    assert!(100 * reached >= reached_min * attacks, "{class:?}: attacks are refused: {counts:?}");
    assert!(100 * hits >= hits_min * responses, "{class:?}: too few hits: {counts:?}");
    assert!(100 * refused <= refused_max * responses, "{class:?}: refusals: {counts:?}");
}

/// Proves that the check can fail: with a cache that makes every mistake, every class of mutants
/// has to change another client's response.
#[test]
fn a_cache_that_makes_every_mistake_is_detected() {
    let plan = Plan { engine: None, seed: 1, mutants: 1_000, only: None, class: None };
    let stats = campaign::run(plan);
    println!("attack: a naive cache, {stats}");
    for class in CLASSES {
        assert!(stats.changed_by(class) > 0, "{class:?} finds nothing");
    }
}

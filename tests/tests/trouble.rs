//! Checks that every kind of fault of a simulated world occurs. A fault that never occurs tests
//! nothing.

use std::collections::BTreeMap;

use millrace_sim::{Faults, World};
use millrace_tests::scenario::Scenario;
use millrace_tests::simulated;

/// Short scenarios that together exercise everything: names, pipes, several workers, many clients.
const SCENARIOS: &[&str] = &["names", "keep_alive", "splice_upload", "crowd", "websocket"];

/// Faults that also occur on a working machine.
const BENIGN: &[&str] = &[
    "spurious wake",
    "spurious readable",
    "late connect",
    "late segment",
    "no pipe",
    "skewed accepts",
    "slow turn",
];

/// Faults of a broken machine or network. The seeds that are played in a working world have none of
/// them.
const HOSTILE: &[&str] = &[
    "clock jumps",
    "failed connect",
    "forged name",
    "late wake",
    "late name",
    "log lost",
    "lost datagram",
    "name server fails",
    "name sent twice",
    "no descriptor",
    "no memory",
    "reset",
    "shortage",
    "stale completion",
    "stall",
    "vanished peer",
    "wrong address",
];

/// Returns how often each fault occurred, over the seeds of all scenarios.
fn fault_counts(faults: Faults, seeds: u64) -> BTreeMap<&'static str, u64> {
    let mut counts = BTreeMap::new();
    let scenarios: Vec<Scenario> = Scenario::all()
        .into_iter()
        .filter(|scenario| SCENARIOS.contains(&&scenario.name[..]))
        .collect();
    assert_eq!(scenarios.len(), SCENARIOS.len(), "a scenario was renamed");
    for (scenario, seed) in
        scenarios.iter().flat_map(|scenario| (0..seeds).map(move |seed| (scenario, seed)))
    {
        let world = World::new(seed, faults);
        let played = simulated::play_in(&world, scenario, seed, faults);
        if let Err(why) = played {
            panic!("{why}");
        }
        for (what, count) in world.trouble_counts() {
            *counts.entry(what).or_default() += count;
        }
    }
    counts
}

#[test]
fn a_working_world_has_every_benign_fault() {
    let counts = fault_counts(Faults::Benign, 20);
    let missing: Vec<_> = BENIGN.iter().filter(|what| !counts.contains_key(**what)).collect();
    assert!(missing.is_empty(), "never occurred: {missing:?} in {counts:?}");
    let broken: Vec<_> = HOSTILE.iter().filter(|what| counts.contains_key(**what)).collect();
    assert!(broken.is_empty(), "in a working world: {broken:?}");
}

#[test]
fn a_hostile_world_has_every_fault() {
    let counts = fault_counts(Faults::Hostile, 40);
    let missing: Vec<_> =
        BENIGN.iter().chain(HOSTILE).filter(|what| !counts.contains_key(**what)).collect();
    assert!(missing.is_empty(), "never occurred: {missing:?} in {counts:?}");
}

#[test]
fn a_world_without_faults_has_none_of_them() {
    let counts = fault_counts(Faults::None, 1);
    assert!(counts.is_empty(), "{counts:?}");
}

//! What can go wrong in a simulated world does: a kind of trouble that never shows tests nothing.

use std::collections::BTreeMap;

use millrace_sim::{Faults, World};
use millrace_tests::scenario::Scenario;
use millrace_tests::simulated;

/// Short stories that meet everything together: names, pipes, several workers, many clients.
const STORIES: &[&str] = &["names", "keep_alive", "splice_upload", "crowd", "websocket"];

/// What a machine that works does as well.
const BENIGN: &[&str] = &[
    "spurious wake",
    "spurious readable",
    "late connect",
    "late segment",
    "no pipe",
    "skewed accepts",
    "slow turn",
];

/// What only happens where something is broken.
const HOSTILE: &[&str] = &[
    "clock jumps",
    "failed connect",
    "guessed name",
    "late wake",
    "late name",
    "log lost",
    "lost datagram",
    "name server fails",
    "name told twice",
    "no descriptor",
    "no memory",
    "reset",
    "shortage",
    "stale completion",
    "stall",
    "vanished peer",
    "wrong address",
];

/// How often what happened, over the seeds of all stories.
fn met(faults: Faults, seeds: u64) -> BTreeMap<&'static str, u64> {
    let mut met = BTreeMap::new();
    let stories: Vec<Scenario> = Scenario::all()
        .into_iter()
        .filter(|scenario| STORIES.contains(&&scenario.name[..]))
        .collect();
    assert_eq!(stories.len(), STORIES.len(), "a story was renamed");
    for (scenario, seed) in
        stories.iter().flat_map(|story| (0..seeds).map(move |seed| (story, seed)))
    {
        let world = World::new(seed, faults);
        let played = simulated::play_in(&world, scenario, seed, faults);
        if let Err(why) = played {
            panic!("{why}");
        }
        for (what, count) in world.trouble_counts() {
            *met.entry(what).or_default() += count;
        }
    }
    met
}

#[test]
fn a_busy_world_troubles_its_proxy() {
    let met = met(Faults::Benign, 20);
    let missing: Vec<_> = BENIGN.iter().filter(|what| !met.contains_key(**what)).collect();
    assert!(missing.is_empty(), "never: {missing:?} in {met:?}");
    let broken: Vec<_> = HOSTILE.iter().filter(|what| met.contains_key(**what)).collect();
    assert!(broken.is_empty(), "in a world that works: {broken:?}");
}

#[test]
fn a_hostile_world_does_all_that_can_go_wrong() {
    let met = met(Faults::Hostile, 40);
    let missing: Vec<_> =
        BENIGN.iter().chain(HOSTILE).filter(|what| !met.contains_key(**what)).collect();
    assert!(missing.is_empty(), "never: {missing:?} in {met:?}");
}

#[test]
fn a_kind_world_does_nothing_of_it() {
    let met = met(Faults::None, 1);
    assert!(met.is_empty(), "{met:?}");
}

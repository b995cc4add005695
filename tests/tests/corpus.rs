//! The hostile corpus against the real program. See tests/corpus/README.md for the format.
#![forbid(unsafe_code)]

use std::env;
use std::path::Path;
use std::thread;

use millrace_tests::corpus::case::{self, Case, Outcome};
use millrace_tests::corpus::client::Pace;
use millrace_tests::corpus::lane::Lane;
use millrace_tests::corpus::literal::Role;
use millrace_tests::corpus::mutate::{self, Random, Stock};
use millrace_tests::corpus::{judge, plan, table};

/// The corpus, or the cases of it, at least one, whose name holds what `CASE` says.
fn cases() -> Vec<Case> {
    let mut cases = case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    let part = env::var("CASE").unwrap_or_default();
    cases.retain(|case| case.name.contains(&part));
    assert!(!cases.is_empty(), "no case's name contains CASE={part}");
    cases
}

#[test]
fn the_corpus_is_whole_and_its_refusals_of_valid_messages_are_told() {
    let cases = case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    let mut wrong = Vec::new();
    for case in &cases {
        if let Err(why) = plan::check(case) {
            wrong.push(format!("{} ({}): {why}", case.place, case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() >= 280, "only {} cases", cases.len());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/refused.md");
    table::compare(&docs, &cases).unwrap_or_else(|why| panic!("docs/refused.md:\n{why}"));
}

#[test]
fn every_case_has_its_exact_outcome() {
    run_all(Pace::Whole);
}

#[test]
fn every_case_has_the_same_outcome_when_it_comes_byte_by_byte() {
    run_all(Pace::EveryByte);
}

fn run_all(pace: Pace) {
    let cases = cases();
    let failures: Vec<String> = thread::scope(|scope| {
        let cases = &cases;
        let run = |role| scope.spawn(move || run_role(cases, role, pace));
        let lanes = [run(Role::Boost), run(Role::Forward)];
        lanes.into_iter().flat_map(|lane| lane.join().expect("a lane's thread ends")).collect()
    });
    let outcomes = || cases.iter().flat_map(|case| &case.outcomes);
    let forwarded = outcomes().filter(|outcome| outcome.shows()).count();
    let all = outcomes().count();
    let doubtful = failures.iter().filter(|failure| failure.contains("DOUBTFUL")).count();
    let refused = all - forwarded;
    println!(
        "corpus: {all} messages, {refused} refused, {forwarded} forwarded, {doubtful} doubtful"
    );
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn run_role(cases: &[Case], role: Role, pace: Pace) -> Vec<String> {
    let mut lane = Lane::start(role);
    let mut failures = Vec::new();
    for case in cases.iter().filter(|case| case.runs(role)) {
        if let Err(why) = judge::run(case, &lane, pace) {
            failures.push(format!("{} ({}, {role:?}): {why}", case.place, case.name));
        }
        if let Some(why) = lane.ended() {
            failures.push(format!("{} ({}, {role:?}): {why}", case.place, case.name));
            lane = Lane::start(role);
        }
    }
    failures
}

/// `MUTANTS` says how many, `SEED` where the sequences begin.
#[test]
fn mutants_reach_the_origin_with_one_meaning_or_not_at_all() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let mutants = number("MUTANTS").unwrap_or(60_000);
    let seed = number("SEED").unwrap_or(1);
    let cases = cases();
    let roles = [Role::Boost, Role::Forward, Role::Boost, Role::Forward];
    let lanes: Vec<Mutants> = thread::scope(|scope| {
        let cases = &cases;
        let start = |(index, role): (usize, Role)| {
            let lanes = roles.len() as u64;
            let seed = seed.wrapping_mul(lanes).wrapping_add(index as u64);
            scope.spawn(move || run_mutants(cases, role, seed, mutants / lanes))
        };
        let lanes: Vec<_> = roles.into_iter().enumerate().map(start).collect();
        lanes.into_iter().map(|lane| lane.join().expect("a lane's thread ends")).collect()
    });
    let run: u64 = lanes.iter().map(|lane| lane.run).sum();
    let reached: u64 = lanes.iter().map(|lane| lane.reached).sum();
    let failures: Vec<_> = lanes.into_iter().flat_map(|lane| lane.failures).collect();
    let failed = failures.len();
    println!(
        "corpus: {run} mutants from seed {seed}, {reached} reached the origin, {failed} failed"
    );
    assert!(failures.is_empty(), "seed {seed}:\n{}", failures.join("\n"));
}

/// What came of one lane's mutants.
#[derive(Default)]
struct Mutants {
    run: u64,
    reached: u64,
    failures: Vec<String>,
}

fn run_mutants(cases: &[Case], role: Role, seed: u64, mutants: u64) -> Mutants {
    // More of them would hardly tell more, and some take as long as the runner's patience.
    const FAILURES_MAX: usize = 8;
    let mut lane = Lane::start(role);
    let stock = Stock::new(cases, &lane.place());
    let mut random = Random::new(seed);
    let mut all = Mutants::default();
    while all.run < mutants && all.failures.len() < FAILURES_MAX {
        let verdict = mutate::run(&stock, &mut random, &lane);
        let fail = |why| format!("{role:?}, sequence {seed}, mutant {}: {why}", all.run);
        match verdict {
            Ok(reached) => all.reached += u64::from(reached),
            Err(why) => all.failures.push(fail(why)),
        }
        if let Some(why) = lane.ended() {
            all.failures.push(fail(why));
            lane = Lane::start(role);
        }
        all.run += 1;
    }
    // Even after all of that the program serves: the corpus' first forwarded case still passes.
    let plain = cases.iter().find(|case| case.runs(role) && case.outcomes == [Outcome::Forwarded]);
    if let Some(Err(why)) = plain.map(|case| judge::run(case, &lane, Pace::Whole)) {
        all.failures.push(format!("{role:?}, after all mutants of sequence {seed}: {why}"));
    }
    all
}

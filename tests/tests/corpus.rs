//! The hostile corpus against the real program. See tests/corpus/README.md for the format.
#![forbid(unsafe_code)]

use std::env;
use std::path::Path;
use std::thread;

use millrace_tests::corpus::campaign::{self, Plan, Tally};
use millrace_tests::corpus::case::{self, Case};
use millrace_tests::corpus::client::Pace;
use millrace_tests::corpus::lane::Lane;
use millrace_tests::corpus::literal::Role;
use millrace_tests::corpus::mutant::Wrong;
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
    assert!(cases.len() >= 880, "only {} cases", cases.len());
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
    let count = cases.len();
    println!(
        "attack: {count} literal cases, {all} messages ({pace:?}): {forwarded} forwarded, {refused} \
         refused, {doubtful} doubtful, {} not as written",
        failures.len()
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

/// `MUTANTS` says how many, `SEED` where the sequences begin; `MUTANT` runs one of them again.
#[test]
fn mutants_reach_the_origin_with_one_meaning_or_not_at_all() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let mutants = number("MUTANTS").unwrap_or(30_000);
    let plan = Plan { seed: number("SEED").unwrap_or(1), mutants, only: number("MUTANT") };
    let cases = cases();
    let mut tally = campaign::run(&cases, plan);
    println!("attack: {tally}");
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n"));
    let few = tally.forwarded < tally.run / 10 && tally.run > 1_000;
    assert!(!few, "so few valid mutants show nothing: the mutator no longer knows HTTP");
    tally.add_literals(&cases);
    let Tally { forwarded, ruled, refused, .. } = tally;
    let share = tally.refused_per_mille();
    println!(
        "attack: of {} valid messages, literal and mutated, {ruled} answered by a rule and {refused} \
         ({}.{} %) refused, as docs/refused.md tells",
        forwarded + ruled + refused,
        share / 10,
        share % 10
    );
    // One case alone, or a few, show no share.
    assert!(share <= 20 || tally.run <= 1_000, "too many valid messages are refused");
}

/// A check that cannot fail shows nothing: before a proxy that forwards everything the judge must
/// find what the mutants are made for.
#[test]
fn a_proxy_that_forwards_everything_is_found_out() {
    const MUTANTS: u64 = 2_000;
    let found = campaign::run_before_relay(&cases(), 1, MUTANTS);
    let count = |wrong| found.iter().filter(|(what, _)| *what == wrong).count();
    let (requests, answers) = (count(Wrong::DoubtfulRequest), count(Wrong::DoubtfulAnswer));
    println!("attack: {MUTANTS} mutants before a relay: {requests} and {answers} doubtful");
    assert!(requests > 500, "{requests} doubtful requests");
    assert!(answers > 20, "{answers} doubtful answers");
}

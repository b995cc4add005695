//! The hostile corpus against the real program, on each engine. See tests/corpus/README.md for the
//! format.
#![forbid(unsafe_code)]

use std::env;
use std::path::Path;
use std::thread;

use millrace_tests::corpus::campaign::{self, CampaignStats, Plan};
use millrace_tests::corpus::case::{self, Case, Outcome};
use millrace_tests::corpus::client::Pace;
use millrace_tests::corpus::literal::{Role, Substitutions, fill};
use millrace_tests::corpus::mutant::Violation;
use millrace_tests::corpus::program::ProgramUnderTest;
use millrace_tests::corpus::{judge, lenient, plan, table};
use millrace_tests::{real, strict};

/// Returns the cases of the corpus whose name contains `CASE`, at least one.
fn cases() -> Vec<Case> {
    let mut cases = case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    let part = env::var("CASE").unwrap_or_default();
    cases.retain(|case| case.name.contains(&part));
    assert!(!cases.is_empty(), "no case's name contains CASE={part}");
    cases
}

#[test]
fn the_corpus_is_consistent_and_docs_list_its_refusals_of_valid_messages() {
    let cases = case::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus"));
    let mut wrong = Vec::new();
    for case in &cases {
        if let Err(why) = plan::check(case) {
            wrong.push(format!("{} ({}): {why}", case.location, case.name));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(cases.len() >= 880, "only {} cases", cases.len());
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/refused.md");
    table::compare(&docs, &cases).unwrap_or_else(|why| panic!("docs/refused.md:\n{why}"));
}

/// The strict parser must reject every message that the proxy refuses as malformed. Otherwise it
/// would not detect a proxy that forwards them. Messages that limits, roles or rules refuse do not
/// count.
#[test]
fn the_strict_parser_rejects_what_is_refused_as_malformed() {
    let substitutions = Substitutions {
        host: "127.0.0.1:8000".to_owned(),
        role: Role::Boost,
        own: "127.0.0.1:8000".to_owned(),
        via: "millrace".to_owned(),
    };
    let (mut called, mut passed) = (0, Vec::new());
    for case in cases().iter().filter(|case| case.runs(Role::Boost) && case.valid.is_none()) {
        let [Outcome::Refused(own) | Outcome::Cut(own)] = &case.outcomes[..] else { continue };
        if own.status != 400 {
            continue;
        }
        let sent = fill(&case.sent, &substitutions, true).expect("known marks").bytes();
        let mut rest = &sent[..];
        while let Ok(Some(message)) = strict::request(rest) {
            rest = &rest[message.bytes..];
        }
        match strict::request(rest) {
            Err(_) => called += 1,
            // An incomplete message does not count.
            Ok(None) if !rest.is_empty() => {}
            Ok(_) => passed.push(format!("{} ({})", case.location, case.name)),
        }
    }
    println!("attack: {called} refused messages are ambiguous as sent");
    assert!(passed.is_empty(), "refused, but not ambiguous:\n{}", passed.join("\n"));
    assert!(called > 300 || env::var("CASE").is_ok(), "only {called}");
}

#[test]
fn every_case_has_its_exact_outcome() {
    run_all(Pace::Whole);
}

#[test]
fn every_case_has_the_same_outcome_byte_by_byte() {
    run_all(Pace::EveryByte);
}

fn run_all(pace: Pace) {
    let cases = cases();
    for engine in real::engines() {
        run_on(&engine, &cases, pace);
    }
}

fn run_on(engine: &str, cases: &[Case], pace: Pace) {
    let failures: Vec<String> = thread::scope(|scope| {
        let run = |role| scope.spawn(move || run_role(cases, role, engine, pace));
        let threads = [run(Role::Boost), run(Role::Forward)];
        threads
            .into_iter()
            .flat_map(|thread| thread.join().expect("a thread does not panic"))
            .collect()
    });
    let outcomes = || cases.iter().flat_map(|case| &case.outcomes);
    let forwarded = outcomes().filter(|outcome| outcome.shows()).count();
    let all = outcomes().count();
    let ambiguous = failures.iter().filter(|failure| failure.contains("AMBIGUOUS")).count();
    let refused = all - forwarded;
    let count = cases.len();
    println!(
        "attack: {engine}, {count} literal cases, {all} messages ({pace:?}): {forwarded} forwarded, {refused} \
         refused, {ambiguous} ambiguous, {} unexpected",
        failures.len()
    );
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

fn run_role(cases: &[Case], role: Role, engine: &str, pace: Pace) -> Vec<String> {
    let mut program = ProgramUnderTest::start(role, engine);
    let mut failures = Vec::new();
    for case in cases.iter().filter(|case| case.runs(role)) {
        if let Err(why) = judge::run(case, &program, pace) {
            failures.push(format!("{} ({}, {role:?}): {why}", case.location, case.name));
        }
        if let Some(why) = program.ended() {
            failures.push(format!("{} ({}, {role:?}): {why}", case.location, case.name));
            program = ProgramUnderTest::start(role, engine);
        }
    }
    failures
}

/// `MUTANTS` sets the number, `SEED` the seed of the sequences. `MUTANT` runs only one of them.
#[test]
fn mutants_reach_the_origin_only_with_one_meaning() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, only) = (number("SEED").unwrap_or(1), number("MUTANT"));
    let mutants = number("MUTANTS").unwrap_or(15_000);
    let cases = cases();
    for engine in real::engines() {
        let stats = campaign::run(&cases, Plan { engine: &engine, seed, mutants, only });
        println!("attack: {engine}, {stats}");
        check(&cases, stats);
    }
}

/// Asserts that there are no violations, that enough mutants are valid, and that not too many valid
/// ones are refused.
fn check(cases: &[Case], mut stats: CampaignStats) {
    assert!(stats.failures.is_empty(), "{}", stats.failures.join("\n"));
    // One mutant, or mutants of one case, do not show a ratio.
    let shows = stats.run > 1_000 && cases.len() > 500;
    let few = stats.forwarded < stats.run / 10;
    assert!(!few || !shows, "too few mutants are valid");
    assert!(stats.refused_per_mille() <= 20 || !shows, "too many valid mutants are refused");
    // The corpus itself contains many valid messages that are refused, so its ratio counts only
    // among many mutants.
    let shows = stats.run >= 100_000;
    stats.add_literals(cases);
    let CampaignStats { forwarded, unsupported, refused, .. } = stats;
    let share = stats.refused_per_mille();
    println!(
        "attack: of {} valid messages, literal and mutated, {unsupported} unsupported or too large and {refused} \
         ({}.{} %) refused as docs/refused.md lists",
        forwarded + unsupported + refused,
        share / 10,
        share % 10
    );
    assert!(share <= 20 || !shows, "too many valid messages are refused");
}

/// `MUTANTS`, `SEED` and `MUTANT` as above, with fewer mutants by default.
#[test]
fn rewritten_responses_are_strict_and_ambiguous_ones_are_not_stored() {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (seed, only) = (number("SEED").unwrap_or(1), number("MUTANT"));
    let mutants = number("MUTANTS").unwrap_or(3_000);
    for engine in real::engines() {
        let stats = lenient::run(&engine, seed, mutants, only);
        println!("attack: {engine}, {stats}");
        assert!(stats.failures.is_empty(), "{}", stats.failures.join("\n"));
        if only.is_none() && mutants >= 1_000 {
            for (what, count) in [
                ("rewritten", stats.rewritten),
                ("stored", stats.stored),
                ("refused", stats.refused),
            ] {
                assert!(count > stats.run / 20, "only {count} of {} were {what}", stats.run);
            }
        }
    }
}

/// Proves that the check can fail: before a proxy that forwards everything, it must detect the
/// violations that the mutants are made for.
#[test]
fn a_proxy_that_forwards_everything_is_detected() {
    const MUTANTS: u64 = 2_000;
    let found = campaign::run_before_relay(&cases(), 1, MUTANTS);
    let count = |wrong| found.iter().filter(|(what, _)| *what == wrong).count();
    let (requests, answers) =
        (count(Violation::AmbiguousRequest), count(Violation::AmbiguousResponse));
    println!(
        "attack: {MUTANTS} mutants before a relay: {requests} ambiguous requests, {answers} ambiguous responses"
    );
    assert!(requests > 500, "{requests} ambiguous requests");
    assert!(answers > 20, "{answers} ambiguous responses");
}

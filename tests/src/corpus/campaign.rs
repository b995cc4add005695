//! Runs many mutants against several programs at once, and sums up the results.

use std::fmt;
use std::thread;

use super::case::{Case, Outcome};
use super::client::Pace;
use super::judge;
use super::literal::Role;
use super::mutant::{self, Failure, MutantOutcome, RequestOutcome, Violation};
use super::program::ProgramUnderTest;
use super::random::Random;
use super::shrink::shrink;
use super::templates::Templates;

/// Concurrent programs, half of them in each role. There are several because some always wait for
/// the kernel.
const THREADS: u64 = 6;

/// Number of failures after which a thread stops. More failures add little information, and some
/// take as long as the limit of a wait.
const FAILURES_MAX: usize = 8;

/// The mutants to run.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The engine of the program.
    pub engine: &'a str,
    /// The seed of the random sequences.
    pub seed: u64,
    /// Number of mutants.
    pub mutants: u64,
    /// Runs only the mutant with this number.
    pub only: Option<u64>,
}

/// The results of the mutants.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CampaignStats {
    /// Number of mutants that were run.
    pub run: u64,
    /// Mutants of which a complete request reached the origin.
    pub reached: u64,
    /// Mutants whose first request is valid and was forwarded.
    pub forwarded: u64,
    /// Valid requests that were refused as unsupported or too large, with the status that an RFC
    /// defines for that.
    pub unsupported: u64,
    /// Valid requests that were refused as malformed, as docs/refused.md lists.
    pub refused: u64,
    /// The violations, each with its shrunk mutant.
    pub failures: Vec<String>,
}

impl CampaignStats {
    fn count(&mut self, outcome: MutantOutcome) {
        self.reached += u64::from(outcome.reached);
        match outcome.first_outcome {
            Some(RequestOutcome::Forwarded) => self.forwarded += 1,
            Some(RequestOutcome::Unsupported) => self.unsupported += 1,
            Some(RequestOutcome::Refused) => self.refused += 1,
            None => {}
        }
    }

    /// Adds the valid messages of the corpus itself. Other tests check their outcomes.
    pub fn add_literals(&mut self, cases: &[Case]) {
        for outcome in cases.iter().flat_map(|case| &case.outcomes) {
            self.forwarded += u64::from(outcome.reaches());
        }
        let refusals = |case: &Case| case.outcomes.iter().rev().find_map(Outcome::own).cloned();
        for own in cases.iter().filter(|case| case.valid.is_some()).filter_map(refusals) {
            match mutant::is_unsupported(own.status) {
                true => self.unsupported += 1,
                false => self.refused += 1,
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.run += other.run;
        self.reached += other.reached;
        self.forwarded += other.forwarded;
        self.unsupported += other.unsupported;
        self.refused += other.refused;
        self.failures.extend(other.failures);
    }

    /// Returns how many of a thousand valid requests were refused as malformed.
    pub fn refused_per_mille(&self) -> u64 {
        let valid = self.forwarded + self.unsupported + self.refused;
        (self.refused * 1000).div_ceil(valid.max(1))
    }
}

impl fmt::Display for CampaignStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, reached, forwarded, unsupported, refused, failures } = self;
        let ambiguous =
            failures.iter().filter(|description| description.contains("Ambiguous")).count();
        let share = self.refused_per_mille();
        write!(
            f,
            "{run} mutants, {reached} reached the origin, {ambiguous} in an ambiguous form, {} \
             failed; {} valid: {forwarded} forwarded, {unsupported} unsupported or too large, {refused} \
             refused ({}.{} %)",
            failures.len(),
            forwarded + unsupported + refused,
            share / 10,
            share % 10
        )
    }
}

/// Runs the mutants of a plan.
///
/// # Panics
/// Panics if a program cannot be started.
pub fn run(cases: &[Case], plan: Plan<'_>) -> CampaignStats {
    let templates_by_role =
        [Role::Boost, Role::Forward].map(|role| (role, Templates::new(cases, role)));
    let threads = if plan.only.is_some() { 1 } else { THREADS };
    thread::scope(|scope| {
        let templates_by_role = &templates_by_role;
        let start = |first: u64| {
            scope.spawn(move || run_thread(cases, templates_by_role, plan, first, threads))
        };
        let threads: Vec<_> = (0..threads).map(start).collect();
        let mut all = CampaignStats::default();
        for thread in threads {
            all.add(thread.join().expect("a thread does not panic"));
        }
        all
    })
}

/// Runs the mutants of the plan whose index modulo `threads` is `first`. Even indices run against a
/// reverse proxy, odd ones against a forward proxy.
fn run_thread(
    cases: &[Case],
    templates_by_role: &[(Role, Templates); 2],
    plan: Plan<'_>,
    first: u64,
    threads: u64,
) -> CampaignStats {
    let mut stats = CampaignStats::default();
    let mut index = plan.only.unwrap_or(first);
    let end = plan.only.map_or(plan.mutants, |only| only + 1);
    let (role, templates) = &templates_by_role[usize::try_from(index % 2).expect("0 or 1")];
    let mut program = ProgramUnderTest::start(*role, plan.engine);
    while index < end && stats.failures.len() < FAILURES_MAX {
        let mutant = templates.mutant(&mut Random::of(plan.seed, index));
        let title = format!("ENGINE={} SEED={} MUTANT={index}, {role:?}", plan.engine, plan.seed);
        match mutant::run(&mutant, templates, &program) {
            Ok(outcome) => stats.count(outcome),
            Err((violation, description)) => {
                let fails = |smaller: &_| {
                    let again = mutant::run(smaller, templates, &program);
                    again.is_err_and(|(same, _)| same == violation)
                };
                // Each attempt of a mutant that hangs takes as long as the limit of a wait.
                let small = match violation {
                    Violation::Hangs => mutant.clone(),
                    _ => shrink(&mutant, *role, fails),
                };
                let small = small.description();
                stats
                    .failures
                    .push(format!("{title}: {violation:?}: {description}\nshrunk to\n{small}"));
            }
        }
        if let Some(why) = program.ended() {
            stats.failures.push(format!("{title}: {why}"));
            program = ProgramUnderTest::start(*role, plan.engine);
        }
        stats.run += 1;
        index += threads;
    }
    // Check that the program still serves after all mutants: run the first forwarded case of the
    // corpus.
    let plain = cases.iter().find(|case| case.runs(*role) && case.outcomes == [Outcome::Forwarded]);
    if let Some(Err(why)) = plain.map(|case| judge::run(case, &program, Pace::Whole)) {
        stats.failures.push(format!("{role:?}, after all mutants of thread {first}: {why}"));
    }
    stats
}

/// Runs mutants against a proxy that forwards everything. Returns the reported violations.
///
/// # Panics
/// Panics if the proxy cannot be started.
pub fn run_before_relay(cases: &[Case], seed: u64, mutants: u64) -> Vec<Failure> {
    let templates = Templates::new(cases, Role::Boost);
    let program = ProgramUnderTest::relay();
    let run = |index| {
        let mutant = templates.mutant(&mut Random::of(seed, index));
        mutant::run(&mutant, &templates, &program).err()
    };
    (0..mutants).filter_map(run).collect()
}

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

/// Concurrent programs, half of them of either role, because some always wait for the kernel.
const LANES: u64 = 6;

/// Failures after which a thread stops. More would hardly add information, and some take as long as
/// the limit of a wait.
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
    /// Valid requests that got the status that an RFC section defines for unsupported or oversized
    /// requests.
    pub ruled: u64,
    /// Valid requests that were refused as malformed, as docs/refused.md lists.
    pub refused: u64,
    /// The violations, each with its shrunk mutant.
    pub failures: Vec<String>,
}

impl CampaignStats {
    fn count(&mut self, verdict: MutantOutcome) {
        self.reached += u64::from(verdict.reached);
        match verdict.fate {
            Some(RequestOutcome::Forwarded) => self.forwarded += 1,
            Some(RequestOutcome::Ruled) => self.ruled += 1,
            Some(RequestOutcome::Refused) => self.refused += 1,
            None => {}
        }
    }

    /// Counts the valid messages of the corpus itself, whose outcomes other tests check.
    pub fn add_literals(&mut self, cases: &[Case]) {
        for outcome in cases.iter().flat_map(|case| &case.outcomes) {
            self.forwarded += u64::from(outcome.reaches());
        }
        let refusals = |case: &Case| case.outcomes.iter().rev().find_map(Outcome::own).cloned();
        for own in cases.iter().filter(|case| case.valid.is_some()).filter_map(refusals) {
            match mutant::by_rule(own.status) {
                true => self.ruled += 1,
                false => self.refused += 1,
            }
        }
    }

    fn add(&mut self, other: Self) {
        self.run += other.run;
        self.reached += other.reached;
        self.forwarded += other.forwarded;
        self.ruled += other.ruled;
        self.refused += other.refused;
        self.failures.extend(other.failures);
    }

    /// Returns how many of a thousand valid requests were refused as malformed.
    pub fn refused_per_mille(&self) -> u64 {
        let valid = self.forwarded + self.ruled + self.refused;
        (self.refused * 1000).div_ceil(valid.max(1))
    }
}

impl fmt::Display for CampaignStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { run, reached, forwarded, ruled, refused, failures } = self;
        let doubtful = failures.iter().filter(|story| story.contains("Doubtful")).count();
        let share = self.refused_per_mille();
        write!(
            f,
            "{run} mutants, {reached} reached the origin, {doubtful} in a doubtful form, {} \
             failed; {} valid: {forwarded} forwarded, {ruled} answered by a rule, {refused} \
             refused ({}.{} %)",
            failures.len(),
            forwarded + ruled + refused,
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
    let stocks = [Role::Boost, Role::Forward].map(|role| (role, Templates::new(cases, role)));
    let lanes = if plan.only.is_some() { 1 } else { LANES };
    thread::scope(|scope| {
        let stocks = &stocks;
        let lane = |first: u64| scope.spawn(move || run_lane(cases, stocks, plan, first, lanes));
        let lanes: Vec<_> = (0..lanes).map(lane).collect();
        let mut all = CampaignStats::default();
        for lane in lanes {
            all.add(lane.join().expect("a lane's thread ends"));
        }
        all
    })
}

/// Runs the mutants of the plan whose index modulo `lanes` is `first`. Even indices run against a
/// reverse proxy, odd ones against a forward proxy.
fn run_lane(
    cases: &[Case],
    stocks: &[(Role, Templates); 2],
    plan: Plan<'_>,
    first: u64,
    lanes: u64,
) -> CampaignStats {
    let mut tally = CampaignStats::default();
    let mut index = plan.only.unwrap_or(first);
    let end = plan.only.map_or(plan.mutants, |only| only + 1);
    let (role, stock) = &stocks[usize::try_from(index % 2).expect("0 or 1")];
    let mut lane = ProgramUnderTest::start(*role, plan.engine);
    while index < end && tally.failures.len() < FAILURES_MAX {
        let mutant = stock.mutant(&mut Random::of(plan.seed, index));
        let title = format!("ENGINE={} SEED={} MUTANT={index}, {role:?}", plan.engine, plan.seed);
        match mutant::run(&mutant, stock, &lane) {
            Ok(verdict) => tally.count(verdict),
            Err((wrong, story)) => {
                let fails = |smaller: &_| {
                    let again = mutant::run(smaller, stock, &lane);
                    again.is_err_and(|(same, _)| same == wrong)
                };
                // Each attempt of a mutant that hangs takes as long as the limit of a wait.
                let small = match wrong {
                    Violation::Hangs => mutant.clone(),
                    _ => shrink(&mutant, *role, fails),
                };
                let small = small.story();
                tally.failures.push(format!("{title}: {wrong:?}: {story}\nmade small\n{small}"));
            }
        }
        if let Some(why) = lane.ended() {
            tally.failures.push(format!("{title}: {why}"));
            lane = ProgramUnderTest::start(*role, plan.engine);
        }
        tally.run += 1;
        index += lanes;
    }
    // The program still serves after all mutants: the first forwarded case of the corpus passes.
    let plain = cases.iter().find(|case| case.runs(*role) && case.outcomes == [Outcome::Forwarded]);
    if let Some(Err(why)) = plain.map(|case| judge::run(case, &lane, Pace::Whole)) {
        tally.failures.push(format!("{role:?}, after all mutants of lane {first}: {why}"));
    }
    tally
}

/// Runs mutants before a proxy that forwards everything. Returns the violations that the checks
/// report.
///
/// # Panics
/// Panics if the proxy cannot be started.
pub fn run_before_relay(cases: &[Case], seed: u64, mutants: u64) -> Vec<Failure> {
    let stock = Templates::new(cases, Role::Boost);
    let lane = ProgramUnderTest::relay();
    let run = |index| {
        let mutant = stock.mutant(&mut Random::of(seed, index));
        mutant::run(&mutant, &stock, &lane).err()
    };
    (0..mutants).filter_map(run).collect()
}

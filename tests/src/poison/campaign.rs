//! Runs many mutants against several program pairs at once, and sums up the results.

use std::collections::BTreeMap;
use std::fmt;
use std::thread;

use super::mutant::{Class, Mutant};
pub use super::pair::ClassCounts;
use super::pair::{Outcome, ProgramPair};
use super::shrink::shrink;
use crate::corpus::random::Random;

/// Concurrent program pairs. There are several because some always wait for the kernel.
const THREADS: u64 = 3;

/// Mutants that are played together.
const BATCH: usize = 24;

/// Limit of the failures of one class that a thread shrinks and describes. All are counted.
const DESCRIBED_MAX: u64 = 2;

/// The classes of mutants by number. Classes with more possible mistakes occur more often.
const ORDER: [Class; 20] = [
    Class::Path,
    Class::Trusted,
    Class::Unkeyed,
    Class::Vary,
    Class::Path,
    Class::Forwarded,
    Class::Vary,
    Class::Trusted,
    Class::Host,
    Class::Path,
    Class::Cookies,
    Class::Vary,
    Class::Unkeyed,
    Class::Head,
    Class::Path,
    Class::Errors,
    Class::Trusted,
    Class::Groups,
    Class::Private,
    Class::Early,
];

/// The mutants to play.
#[derive(Clone, Copy, Debug)]
pub struct Plan<'a> {
    /// The engine of the program; `None`: the cache that makes every mistake.
    pub engine: Option<&'a str>,
    /// The seed of the random sequences.
    pub seed: u64,
    /// Number of mutants.
    pub mutants: u64,
    /// Plays only the mutant with this number.
    pub only: Option<u64>,
    /// Plays only mutants of this class.
    pub class: Option<Class>,
}

/// The sum of the results of mutants.
#[derive(Clone, Debug, Default)]
pub struct CampaignStats {
    /// The counts of each class that was played.
    pub classes: BTreeMap<Class, ClassCounts>,
    /// The shrunk failures, each with the seed and the number of its mutant.
    pub failures: Vec<String>,
}

impl CampaignStats {
    /// Returns how many mutants changed another client's response.
    pub fn changed(&self) -> u64 {
        self.classes.values().map(|counts| counts.changed).sum()
    }

    /// Returns how many mutants of a class changed another client's response.
    pub fn changed_by(&self, class: Class) -> u64 {
        self.classes.get(&class).map_or(0, |counts| counts.changed)
    }

    fn add(&mut self, other: Self) {
        for (class, counts) in other.classes {
            self.classes.entry(class).or_default().join(counts);
        }
        self.failures.extend(other.failures);
    }
}

impl fmt::Display for CampaignStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let played: u64 = self.classes.values().map(|counts| counts.played).sum();
        let changed = self.changed();
        write!(f, "{played} poisoning mutants, {changed} changed another client's response (")?;
        for (at, (class, counts)) in self.classes.iter().enumerate() {
            let comma = if at == 0 { "" } else { "; " };
            let ClassCounts { played, changed, attacks, reached, responses, hits, refused } =
                counts;
            write!(f, "{comma}{class:?} {changed} of {played}, {reached} of {attacks} attack ")?;
            write!(
                f,
                "requests at the origin, of {responses} responses to victims {hits} from the "
            )?;
            write!(f, "cache and {refused} refused")?;
        }
        write!(f, ")")
    }
}

/// Plays the mutants of a plan.
///
/// # Panics
/// Panics if a program cannot be started.
pub fn run(plan: Plan<'_>) -> CampaignStats {
    let threads = if plan.only.is_some() { 1 } else { THREADS };
    thread::scope(|scope| {
        let start = |first: u64| scope.spawn(move || run_thread(plan, first, threads));
        let threads: Vec<_> = (0..threads).map(start).collect();
        let mut all = CampaignStats::default();
        for thread in threads {
            all.add(thread.join().expect("a thread does not panic"));
        }
        all
    })
}

/// Returns the mutant with this number.
fn mutant(seed: u64, index: u64) -> Mutant {
    let class = ORDER[usize::try_from(index % 20).expect("below 20")];
    Mutant::new(class, &mut Random::of(seed, index), index)
}

/// Plays the mutants of the plan whose numbers modulo `threads` are `first`.
fn run_thread(plan: Plan<'_>, first: u64, threads: u64) -> CampaignStats {
    let start = || plan.engine.map_or_else(ProgramPair::start_broken, ProgramPair::start);
    let mut pair = start();
    let mut stats = CampaignStats::default();
    let mut attempts = 0;
    let end = plan.only.map_or(plan.mutants, |only| only + 1);
    let mut index = plan.only.unwrap_or(first);
    while index < end {
        let mut batch: Vec<(u64, Mutant)> = Vec::new();
        while index < end && batch.len() < BATCH {
            let mutant = mutant(plan.seed, index);
            if plan.class.is_some_and(|class| class != mutant.class) {
                index += threads;
                continue;
            }
            // A mutant of this class leaves connections in a bad state, which must not affect
            // another mutant of the class.
            let is_alone = mutant.class == Class::Early;
            if is_alone && !batch.is_empty() {
                break;
            }
            batch.push((index, mutant));
            index += threads;
            if is_alone {
                break;
            }
        }
        let named = batch.iter().map(|(index, mutant)| (format!("t{index}x0"), mutant));
        let results = pair.play(&named.collect::<Vec<_>>());
        for ((index, mutant), Outcome { changed, counts }) in batch.iter().zip(results) {
            let sum = stats.classes.entry(mutant.class).or_default();
            sum.join(counts);
            let Some(why) = changed.filter(|_| sum.changed <= DESCRIBED_MAX) else { continue };
            let mut again = |mutant: &Mutant| {
                attempts += 1;
                let token = format!("t{index}x{attempts}");
                pair.play(&[(token, mutant)]).remove(0).changed
            };
            let small = shrink(mutant, |smaller| again(smaller).is_some());
            let (why, note) = match again(&small) {
                Some(why) => (why, ""),
                None => (why, " (does not repeat when played alone)"),
            };
            let engine = plan.engine.unwrap_or("none");
            stats.failures.push(format!(
                "ENGINE={engine} SEED={} MUTANT={index}, {:?}{note}:\n{small}    {why}",
                plan.seed, mutant.class
            ));
        }
        if let Some(why) = pair.ended() {
            stats.failures.push(why);
            pair = start();
        }
    }
    stats
}

#[cfg(test)]
mod tests {
    use super::super::mutant::CLASSES;
    use super::*;

    #[test]
    fn every_class_is_generated() {
        assert!(CLASSES.iter().all(|class| ORDER.contains(class)));
    }

    #[test]
    fn a_mutant_is_made_from_its_seed_and_number_alone() {
        for index in 0..200 {
            let [one, other] = [0, 1].map(|_| mutant(7, index).to_string());
            assert_eq!(one, other);
            assert!(mutant(7, index).is_fair(), "{one}");
        }
    }
}

//! Whether the work for a message is linear in the bytes received.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::process::ExitCode;

use millrace_tests::growth::{self, Cost, FieldPlace, Size};

/// The argument of the runs under callgrind.
pub(crate) const PLAY: &str = "play-linear";

/// For each kind of message, this number of the most expensive cases, and this number of those that
/// grow most, are also counted at the default limits.
const CHOSEN: usize = 2;

/// Plays the cases that the environment names. Callgrind runs this.
pub(crate) fn play() -> ExitCode {
    growth::play_from_environment(|_| {});
    ExitCode::SUCCESS
}

/// Counts every case at small sizes, and some at the default limits.
pub(crate) fn check() -> ExitCode {
    match count() {
        Err(why) => {
            eprintln!("icount: {why}");
            ExitCode::FAILURE
        }
        Ok(costs) if costs.iter().any(Cost::is_too_much) => {
            let too_much = costs.iter().filter(|cost| cost.is_too_much());
            too_much.for_each(|cost| eprintln!("icount: {cost}"));
            eprintln!(
                "icount: a message may cost at most {} times as much at twice the size, and at most {} instructions",
                growth::GROWTH_MAX,
                growth::INSTRUCTIONS_MAX
            );
            ExitCode::FAILURE
        }
        Ok(_) => ExitCode::SUCCESS,
    }
}

/// Counts the cases, and prints the highest cost and growth of each kind of message.
fn count() -> Result<Vec<Cost>, String> {
    let all: Vec<usize> = (0..growth::cases().len()).collect();
    let mut costs = measure(&all, Size::SMALL)?;
    let mut chosen = BTreeSet::new();
    for place in FieldPlace::ALL {
        let mut of_kind: Vec<&Cost> = costs.iter().filter(|cost| cost.place == place).collect();
        of_kind.sort_by_key(|cost| Reverse(cost.full));
        chosen.extend(of_kind.iter().take(CHOSEN).map(|cost| cost.case));
        of_kind.sort_by(|one, other| other.growth().total_cmp(&one.growth()));
        chosen.extend(of_kind.iter().take(CHOSEN).map(|cost| cost.case));
    }
    let chosen: Vec<usize> = chosen.into_iter().collect();
    let largest = measure(&chosen, Size::DEFAULT)?;
    println!("the most that a message of each kind costs, at the default limits:");
    for place in FieldPlace::ALL {
        let most = largest.iter().filter(|cost| cost.place == place).max_by_key(|cost| cost.full);
        most.into_iter().for_each(|cost| println!("  {cost}"));
    }
    costs.extend(largest);
    let most = costs.iter().max_by(|one, other| one.growth().total_cmp(&other.growth()));
    most.into_iter().for_each(|cost| println!("{} messages; most growth: {cost}", costs.len()));
    Ok(costs)
}

/// Counts `cases`. A case that costs too much is counted again in a run of its own: periodic work
/// of the worker then falls on another exchange, while the work for the message stays the same.
fn measure(cases: &[usize], size: Size) -> Result<Vec<Cost>, String> {
    let mut costs = growth::measure(&[PLAY], cases, size)?;
    let again = costs.iter().filter(|cost| cost.is_too_much()).map(|cost| cost.case);
    for case in again.collect::<BTreeSet<usize>>() {
        costs.retain(|cost| cost.case != case);
        costs.extend(growth::measure(&[PLAY], &[case], size)?);
    }
    Ok(costs)
}

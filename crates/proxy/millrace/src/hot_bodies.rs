//! Selects how hot bodies are sent from the cache to clients.

use std::fmt;
use std::time::Duration;

use millrace_config::CacheSend;
use millrace_engine::Error;
use millrace_store::{HotCopies, LARGE_BYTES};

use crate::calibrate::{self, SendCosts};
use crate::console;
use crate::splice_thresholds::{CostComparison, compare_costs, median_us};

/// The hot bodies that are copied, and the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HotBodySelection {
    pub(crate) copies: HotCopies,
    pub(crate) reason: String,
    /// Whether the measurement failed, so that the default was taken.
    pub(crate) is_fallback: bool,
}

impl HotBodySelection {
    /// Describes how hot bodies are sent.
    pub(crate) fn plan(&self) -> String {
        let large = console::format_bytes(LARGE_BYTES);
        match self.copies {
            HotCopies::NONE => "by reference".to_owned(),
            HotCopies::ALL => "by copy".to_owned(),
            HotCopies { large: false, .. } => format!("by copy; from {large} by reference"),
            HotCopies { medium: false, .. } => format!("by reference; from {large} by copy"),
        }
    }
}

impl fmt::Display for HotBodySelection {
    /// Formats the selection in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.plan(), self.reason)
    }
}

/// Measured sizes: one below [`LARGE_BYTES`] and one above.
const SIZES: [usize; 2] = [64 << 10, 1 << 20];

/// Time limit of the measurement at start. A machine that needs longer is too busy to be measured.
const TIMEOUT: Duration = Duration::from_millis(500);

/// Returns the configured method. For `auto` it is measured, which takes about 5 ms of CPU time.
pub(crate) fn select_hot_copies(choice: CacheSend) -> HotBodySelection {
    let requested =
        |copies| HotBodySelection { copies, reason: "configured".to_owned(), is_fallback: false };
    match choice {
        CacheSend::Copy => requested(HotCopies::ALL),
        CacheSend::ZeroCopy => requested(HotCopies::NONE),
        CacheSend::Auto => select_measured(calibrate::measure_sending(&SIZES, TIMEOUT)),
    }
}

/// Selects copying where it is clearly cheaper. Otherwise a reference is better, because its cost
/// does not depend on the processor's cache.
fn select_measured(costs: Result<Vec<SendCosts>, Error>) -> HotBodySelection {
    let costs = match costs {
        Ok(costs) => costs,
        Err(error) => {
            let why = calibrate::describe_failure(error);
            let reason = format!("auto: cannot compare copies with references: {why}");
            return HotBodySelection { copies: HotCopies::NONE, reason, is_fallback: true };
        }
    };
    let is_copied = |cell: &SendCosts| compare_costs(&cell.rounds) == CostComparison::Dearer;
    let [medium, large] = [0, 1].map(|at| costs.get(at).is_some_and(is_copied));
    let medians = |cell: &SendCosts| {
        let copied = median_us(cell.rounds.iter().map(|round| round.0));
        let referred = median_us(cell.rounds.iter().map(|round| round.1));
        let bytes = console::format_bytes(cell.bytes as u64);
        format!("{bytes} take {copied:.1} us by copy and {referred:.1} us by reference")
    };
    let medians: Vec<String> = costs.iter().map(medians).collect();
    let reason = format!("auto: {}", medians.join(", "));
    HotBodySelection { copies: HotCopies { medium, large }, reason, is_fallback: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates costs where a copy takes 100 us and a reference takes these times in turn.
    fn costs(bytes: usize, referred: [u64; 4]) -> SendCosts {
        let us = Duration::from_micros;
        let rounds = referred.map(|referred| (us(100), us(referred))).repeat(4);
        SendCosts { bytes, rounds }
    }

    #[test]
    fn bodies_that_are_clearly_cheaper_to_copy_are_copied() {
        let (cheap, dear) = ([80, 80, 80, 120], [120, 120, 120, 80]);
        let level = [80, 80, 120, 120];
        for (medium, large, plan) in [
            (cheap, cheap, "by reference"),
            (level, level, "by reference"),
            (dear, dear, "by copy"),
            (dear, cheap, "by copy; from 256 KB by reference"),
            (cheap, dear, "by reference; from 256 KB by copy"),
        ] {
            let selection =
                select_measured(Ok(vec![costs(SIZES[0], medium), costs(SIZES[1], large)]));
            assert_eq!(selection.plan(), plan);
            assert!(
                selection.reason.starts_with("auto: 64 KB take 100.0 us by copy"),
                "{selection}"
            );
        }
        let selection = select_measured(Err(Error::TimedOut));
        assert!(selection.copies == HotCopies::NONE && selection.is_fallback);
        assert!(selection.reason.ends_with("references: the machine is too busy"));
    }

    #[test]
    fn a_configured_method_is_used() {
        for (choice, copies) in
            [(CacheSend::Copy, HotCopies::ALL), (CacheSend::ZeroCopy, HotCopies::NONE)]
        {
            let reason = "configured".to_owned();
            assert_eq!(
                select_hot_copies(choice),
                HotBodySelection { copies, reason, is_fallback: false }
            );
        }
        assert!(select_hot_copies(CacheSend::Auto).reason.starts_with("auto: "));
    }
}

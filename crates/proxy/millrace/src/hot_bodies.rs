//! How hot bodies go from the cache to clients, and why so.

use std::fmt;
use std::time::Duration;

use millrace_config::CacheSend;
use millrace_engine::Error;
use millrace_store::{HotCopies, LARGE_BYTES};

use crate::calibrate::{self, SendCosts};
use crate::console;
use crate::splice_thresholds::{CostComparison, compare_costs, median_us};

/// Which hot bodies are copied, and why those.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct HotBodySelection {
    pub(crate) copies: HotCopies,
    pub(crate) reason: String,
    /// Whether they should have been measured, and could not be.
    pub(crate) is_fallback: bool,
}

impl HotBodySelection {
    /// How they are sent.
    pub(crate) fn plan(&self) -> String {
        let large = console::format_bytes(LARGE_BYTES);
        match self.copies {
            HotCopies::NONE => "by reference".to_owned(),
            HotCopies::ALL => "by copy".to_owned(),
            HotCopies { large: false, .. } => format!("by copy; from {large} on by reference"),
            HotCopies { medium: false, .. } => format!("by reference; from {large} on by copy"),
        }
    }
}

impl fmt::Display for HotBodySelection {
    /// In one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.plan(), self.reason)
    }
}

/// Bodies that stand for those below [`LARGE_BYTES`], and for the others.
const SIZES: [usize; 2] = [64 << 10, 1 << 20];

/// How long a start waits for an answer; a machine that is so busy has none.
const TIMEOUT: Duration = Duration::from_millis(500);

/// The way that `choice` names. To measure it for `auto` takes some 5 ms of CPU time.
pub(crate) fn select_hot_copies(choice: CacheSend) -> HotBodySelection {
    let requested =
        |copies| HotBodySelection { copies, reason: "asked for".to_owned(), is_fallback: false };
    match choice {
        CacheSend::Copy => requested(HotCopies::ALL),
        CacheSend::ZeroCopy => requested(HotCopies::NONE),
        CacheSend::Auto => select_measured(calibrate::measure_sending(&SIZES, TIMEOUT)),
    }
}

/// A copy is taken only where it is clearly cheaper: a reference costs the same whatever the
/// processor's cache holds.
fn select_measured(costs: Result<Vec<SendCosts>, Error>) -> HotBodySelection {
    let costs = match costs {
        Ok(costs) => costs,
        Err(error) => {
            let reason = format!("auto: the two ways could not be compared: {error}");
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

    /// What a reference takes, in four rounds that repeat, where a copy takes 100.
    fn costs(bytes: usize, referred: [u64; 4]) -> SendCosts {
        let us = Duration::from_micros;
        let rounds = referred.map(|referred| (us(100), us(referred))).repeat(4);
        SendCosts { bytes, rounds }
    }

    #[test]
    fn what_is_clearly_cheaper_by_copy_is_copied() {
        let (cheap, dear) = ([80, 80, 80, 120], [120, 120, 120, 80]);
        let level = [80, 80, 120, 120];
        for (medium, large, plan) in [
            (cheap, cheap, "by reference"),
            (level, level, "by reference"),
            (dear, dear, "by copy"),
            (dear, cheap, "by copy; from 256 KB on by reference"),
            (cheap, dear, "by reference; from 256 KB on by copy"),
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
        assert!(selection.reason.contains("not be compared"));
    }

    #[test]
    fn what_is_asked_for_is_taken() {
        for (choice, copies) in
            [(CacheSend::Copy, HotCopies::ALL), (CacheSend::ZeroCopy, HotCopies::NONE)]
        {
            let reason = "asked for".to_owned();
            assert_eq!(
                select_hot_copies(choice),
                HotBodySelection { copies, reason, is_fallback: false }
            );
        }
        assert!(select_hot_copies(CacheSend::Auto).reason.starts_with("auto: "));
    }
}

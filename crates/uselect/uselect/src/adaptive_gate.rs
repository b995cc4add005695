//! `Worth`: whether what may be in vain is tried.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether something that may be in vain is worth a try: as long as that has lately been of use. It
/// is given up then, and tried again later. Of threads that learn at once one may be forgotten.
#[derive(Default)]
pub(crate) struct AdaptiveGate {
    /// Tries in vain lately, as a share of [`SHARE_ALL`].
    wasted: AtomicU64,
    /// Occasions that are passed over before it is tried again.
    passed_over: AtomicU64,
}

/// What came of a try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    Useful,
    Wasted,
    /// Worse than that: it counts as so many in vain, and is not tried again so soon.
    Harmful,
}

/// All tries in vain.
const WASTED_ALL: u64 = 1 << 16;
/// Of so many in vain it is given up,
const WASTED_MAX: u64 = WASTED_ALL / 4 * 3;
/// and tried again after so many occasions,
pub(crate) const SKIPS: u64 = 64;
/// or, where it did harm, so many.
pub(crate) const SKIPS_HARMFUL: u64 = 4096;
/// A new try counts for a sixteenth,
const WEIGHT: u64 = 16;
/// and one that did harm for a quarter.
const WEIGHT_HARMFUL: u64 = 4;

impl AdaptiveGate {
    /// An occasion: whether it is to be tried.
    pub(crate) fn allow_attempt(&self) -> bool {
        if self.wasted.load(Ordering::Relaxed) < WASTED_MAX {
            return true;
        }
        let left = self.passed_over.load(Ordering::Relaxed);
        self.passed_over.store(left.checked_sub(1).unwrap_or(SKIPS), Ordering::Relaxed);
        left == 0
    }

    pub(crate) fn record(&self, outcome: AttemptResult) {
        let vain = self.wasted.load(Ordering::Relaxed);
        let next = match outcome {
            // One that was of use is enough to go on: it is as good as any other.
            AttemptResult::Useful => (vain - vain / WEIGHT).min(WASTED_MAX - 1),
            AttemptResult::Wasted => vain + (WASTED_ALL - vain) / WEIGHT,
            AttemptResult::Harmful => vain + (WASTED_ALL - vain) / WEIGHT_HARMFUL,
        };
        self.wasted.store(next, Ordering::Relaxed);
        if outcome == AttemptResult::Harmful && next >= WASTED_MAX {
            self.passed_over.store(SKIPS_HARMFUL, Ordering::Relaxed);
        }
    }

    /// It is not tried again soon.
    pub(crate) fn close(&self) {
        self.wasted.store(WASTED_ALL, Ordering::Relaxed);
        self.passed_over.store(SKIPS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skips_left(worth: &AdaptiveGate) -> u64 {
        (0..10_000).take_while(|_| !worth.allow_attempt()).count() as u64
    }

    /// Tries in a row until it is given up.
    fn tries(worth: &AdaptiveGate, outcome: AttemptResult) -> u32 {
        let mut tries = 0;
        while worth.allow_attempt() {
            worth.record(outcome);
            tries += 1;
            assert!(tries <= 32, "it is given up");
        }
        tries
    }

    #[test]
    fn what_is_in_vain_is_given_up_and_tried_again_later() {
        let worth = AdaptiveGate::default();
        tries(&worth, AttemptResult::Wasted);
        skips_left(&worth);
        worth.record(AttemptResult::Wasted);
        assert_eq!(skips_left(&worth), SKIPS);
        // What nobody learns of is no better.
        assert_eq!(skips_left(&worth), SKIPS);
        worth.record(AttemptResult::Useful);
        assert!(worth.allow_attempt(), "at once");
        worth.close();
        assert_eq!(skips_left(&worth), SKIPS);
    }

    #[test]
    fn what_did_harm_is_given_up_sooner_and_for_longer() {
        let worth = AdaptiveGate::default();
        assert!(
            tries(&worth, AttemptResult::Harmful)
                < tries(&AdaptiveGate::default(), AttemptResult::Wasted) / 3
        );
        skips_left(&worth);
        worth.record(AttemptResult::Harmful);
        assert_eq!(skips_left(&worth), SKIPS_HARMFUL);
        // Also if it is of use in between.
        let worth = AdaptiveGate::default();
        let given_up = (0..32).any(|_| {
            worth.record(AttemptResult::Harmful);
            let is_given_up = !worth.allow_attempt();
            worth.record(AttemptResult::Useful);
            is_given_up
        });
        assert!(given_up);
    }
}

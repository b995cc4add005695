//! `Worth`: whether what may be in vain is tried.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether something that may be in vain is worth a try: as long as that has lately been of use. It
/// is given up then, and tried again later. Of threads that learn at once one may be forgotten.
#[derive(Default)]
pub(crate) struct Worth {
    /// Tries in vain lately, as a share of [`SHARE_ALL`].
    vain: AtomicU64,
    /// Occasions that are passed over before it is tried again.
    passed_over: AtomicU64,
}

/// What came of a try.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    OfUse,
    InVain,
    /// Worse than that: it counts as so many in vain, and is not tried again so soon.
    Harmful,
}

/// All tries in vain.
const SHARE_ALL: u64 = 1 << 16;
/// Of so many in vain it is given up,
const SHARE_MAX: u64 = SHARE_ALL / 4 * 3;
/// and tried again after so many occasions,
pub(crate) const PASSED_OVER: u64 = 64;
/// or, where it did harm, so many.
pub(crate) const PASSED_OVER_HARMFUL: u64 = 4096;
/// A new try counts for a sixteenth,
const WEIGHT: u64 = 16;
/// and one that did harm for a quarter.
const WEIGHT_HARMFUL: u64 = 4;

impl Worth {
    /// An occasion: whether it is to be tried.
    pub(crate) fn is_tried(&self) -> bool {
        if self.vain.load(Ordering::Relaxed) < SHARE_MAX {
            return true;
        }
        let left = self.passed_over.load(Ordering::Relaxed);
        self.passed_over.store(left.checked_sub(1).unwrap_or(PASSED_OVER), Ordering::Relaxed);
        left == 0
    }

    pub(crate) fn learn(&self, outcome: Outcome) {
        let vain = self.vain.load(Ordering::Relaxed);
        let next = match outcome {
            // One that was of use is enough to go on: it is as good as any other.
            Outcome::OfUse => (vain - vain / WEIGHT).min(SHARE_MAX - 1),
            Outcome::InVain => vain + (SHARE_ALL - vain) / WEIGHT,
            Outcome::Harmful => vain + (SHARE_ALL - vain) / WEIGHT_HARMFUL,
        };
        self.vain.store(next, Ordering::Relaxed);
        if outcome == Outcome::Harmful && next >= SHARE_MAX {
            self.passed_over.store(PASSED_OVER_HARMFUL, Ordering::Relaxed);
        }
    }

    /// It is not tried again soon.
    pub(crate) fn give_up(&self) {
        self.vain.store(SHARE_ALL, Ordering::Relaxed);
        self.passed_over.store(PASSED_OVER, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passed_over(worth: &Worth) -> u64 {
        (0..10_000).take_while(|_| !worth.is_tried()).count() as u64
    }

    /// Tries in a row until it is given up.
    fn tries(worth: &Worth, outcome: Outcome) -> u32 {
        let mut tries = 0;
        while worth.is_tried() {
            worth.learn(outcome);
            tries += 1;
            assert!(tries <= 32, "it is given up");
        }
        tries
    }

    #[test]
    fn what_is_in_vain_is_given_up_and_tried_again_later() {
        let worth = Worth::default();
        tries(&worth, Outcome::InVain);
        passed_over(&worth);
        worth.learn(Outcome::InVain);
        assert_eq!(passed_over(&worth), PASSED_OVER);
        // What nobody learns of is no better.
        assert_eq!(passed_over(&worth), PASSED_OVER);
        worth.learn(Outcome::OfUse);
        assert!(worth.is_tried(), "at once");
        worth.give_up();
        assert_eq!(passed_over(&worth), PASSED_OVER);
    }

    #[test]
    fn what_did_harm_is_given_up_sooner_and_for_longer() {
        let worth = Worth::default();
        assert!(tries(&worth, Outcome::Harmful) < tries(&Worth::default(), Outcome::InVain) / 3);
        passed_over(&worth);
        worth.learn(Outcome::Harmful);
        assert_eq!(passed_over(&worth), PASSED_OVER_HARMFUL);
        // Also if it is of use in between.
        let worth = Worth::default();
        let given_up = (0..32).any(|_| {
            worth.learn(Outcome::Harmful);
            let is_given_up = !worth.is_tried();
            worth.learn(Outcome::OfUse);
            is_given_up
        });
        assert!(given_up);
    }
}

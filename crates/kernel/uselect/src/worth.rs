//! `Worth`: whether what may be in vain is tried.

use std::sync::atomic::{AtomicU64, Ordering};

/// Whether something that may be in vain is worth a try: as long as that has lately been of use. It
/// is given up then, and tried again later.
#[derive(Default)]
pub(crate) struct Worth {
    /// Tries in vain lately, as a share of [`SHARE_ALL`].
    vain: AtomicU64,
    /// Occasions that are passed over before it is tried again.
    passed_over: AtomicU64,
}

/// All tries in vain.
const SHARE_ALL: u64 = 1 << 16;
/// Of so many in vain it is given up,
const SHARE_MAX: u64 = SHARE_ALL / 4 * 3;
/// and tried again after so many occasions.
pub(crate) const PASSED_OVER: u64 = 64;
/// A new try counts for a sixteenth.
const WEIGHT: u64 = 16;

impl Worth {
    /// An occasion: whether it is to be tried.
    pub(crate) fn is_tried(&self) -> bool {
        if self.vain.load(Ordering::Relaxed) < SHARE_MAX {
            return true;
        }
        let left = self.passed_over.load(Ordering::Relaxed);
        self.passed_over.store(left.saturating_sub(1), Ordering::Relaxed);
        left == 0
    }

    /// What came of a try.
    pub(crate) fn learn(&self, was_of_use: bool) {
        let vain = self.vain.load(Ordering::Relaxed);
        let mut next = vain - vain / WEIGHT;
        if was_of_use {
            // One that was of use is enough to go on: it is as good as any other.
            next = next.min(SHARE_MAX - 1);
        } else {
            next += SHARE_ALL / WEIGHT;
            self.passed_over.store(PASSED_OVER, Ordering::Relaxed);
        }
        self.vain.store(next, Ordering::Relaxed);
    }

    /// It is not tried again before so many occasions are over.
    pub(crate) fn give_up(&self, passed_over: u64) {
        self.vain.store(SHARE_ALL, Ordering::Relaxed);
        self.passed_over.store(passed_over, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_vain_is_given_up_and_tried_again_later() {
        let worth = Worth::default();
        let mut tries = 0;
        while worth.is_tried() {
            worth.learn(false);
            tries += 1;
            assert!(tries <= 32, "it is given up");
        }
        // The first of them was just passed over.
        let passed_over = (0..1000).take_while(|_| !worth.is_tried()).count() as u64 + 1;
        assert_eq!(passed_over, PASSED_OVER);
        // What is of use again is done again, at once.
        worth.learn(true);
        assert!(worth.is_tried());
        worth.give_up(1000);
        assert_eq!((0..2000).take_while(|_| !worth.is_tried()).count(), 1000);
    }
}

//! `AdaptiveGate`: stops an optional attempt while it does not pay off.

use std::sync::atomic::{AtomicU64, Ordering};

/// A gate for attempts that may be wasted. It closes when three quarters of the recent attempts
/// were wasted, and lets one attempt pass now and then to find out whether that has changed. If two
/// threads record results at the same time, one result may be lost.
#[derive(Default)]
pub(crate) struct AdaptiveGate {
    /// The share of recent attempts that were wasted, in units of 1 / [`WASTED_ALL`].
    wasted: AtomicU64,
    /// Opportunities that are skipped before the next attempt.
    skips_left: AtomicU64,
}

/// The result of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AttemptResult {
    Useful,
    Wasted,
    /// Worse than wasted: it counts more, and the next attempt comes later.
    Harmful,
}

/// The value of `wasted` if all recent attempts were wasted.
const WASTED_ALL: u64 = 1 << 16;
/// The gate closes from this value of `wasted` on.
const WASTED_MAX: u64 = WASTED_ALL / 4 * 3;
/// Opportunities that are skipped before another attempt.
pub(crate) const SKIPS: u64 = 64;
/// Opportunities that are skipped after a harmful attempt.
pub(crate) const SKIPS_HARMFUL: u64 = 4096;
/// A new result has 1 / `WEIGHT` of the weight in the moving average.
const WEIGHT: u64 = 16;
/// A harmful result has 1 / `WEIGHT_HARMFUL` of the weight.
const WEIGHT_HARMFUL: u64 = 4;

impl AdaptiveGate {
    /// Returns whether to make an attempt now, and counts the opportunity.
    pub(crate) fn allow_attempt(&self) -> bool {
        if self.wasted.load(Ordering::Relaxed) < WASTED_MAX {
            return true;
        }
        let left = self.skips_left.load(Ordering::Relaxed);
        self.skips_left.store(left.checked_sub(1).unwrap_or(SKIPS), Ordering::Relaxed);
        left == 0
    }

    pub(crate) fn record(&self, result: AttemptResult) {
        let wasted = self.wasted.load(Ordering::Relaxed);
        let next = match result {
            // One useful attempt is enough to continue.
            AttemptResult::Useful => (wasted - wasted / WEIGHT).min(WASTED_MAX - 1),
            AttemptResult::Wasted => wasted + (WASTED_ALL - wasted) / WEIGHT,
            AttemptResult::Harmful => wasted + (WASTED_ALL - wasted) / WEIGHT_HARMFUL,
        };
        self.wasted.store(next, Ordering::Relaxed);
        if result == AttemptResult::Harmful && next >= WASTED_MAX {
            self.skips_left.store(SKIPS_HARMFUL, Ordering::Relaxed);
        }
    }

    /// Stops attempts for a while.
    pub(crate) fn close(&self) {
        self.wasted.store(WASTED_ALL, Ordering::Relaxed);
        self.skips_left.store(SKIPS, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skips_left(gate: &AdaptiveGate) -> u64 {
        (0..10_000).take_while(|_| !gate.allow_attempt()).count() as u64
    }

    /// Returns the number of attempts until they stop.
    fn attempts(gate: &AdaptiveGate, result: AttemptResult) -> u32 {
        let mut attempts = 0;
        while gate.allow_attempt() {
            gate.record(result);
            attempts += 1;
            assert!(attempts <= 32, "attempts stop");
        }
        attempts
    }

    #[test]
    fn wasted_attempts_stop_and_are_tried_again_later() {
        let gate = AdaptiveGate::default();
        attempts(&gate, AttemptResult::Wasted);
        skips_left(&gate);
        gate.record(AttemptResult::Wasted);
        assert_eq!(skips_left(&gate), SKIPS);
        // An attempt without a recorded result changes nothing.
        assert_eq!(skips_left(&gate), SKIPS);
        gate.record(AttemptResult::Useful);
        assert!(gate.allow_attempt(), "one useful attempt opens the gate");
        gate.close();
        assert_eq!(skips_left(&gate), SKIPS);
    }

    #[test]
    fn harmful_attempts_stop_sooner_and_for_longer() {
        let gate = AdaptiveGate::default();
        assert!(
            attempts(&gate, AttemptResult::Harmful)
                < attempts(&AdaptiveGate::default(), AttemptResult::Wasted) / 3
        );
        skips_left(&gate);
        gate.record(AttemptResult::Harmful);
        assert_eq!(skips_left(&gate), SKIPS_HARMFUL);
        // Useful attempts in between do not keep the gate open.
        let gate = AdaptiveGate::default();
        let closed = (0..32).any(|_| {
            gate.record(AttemptResult::Harmful);
            let is_closed = !gate.allow_attempt();
            gate.record(AttemptResult::Useful);
            is_closed
        });
        assert!(closed);
    }
}

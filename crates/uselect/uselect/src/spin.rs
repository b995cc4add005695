//! `Spin`: reads memory repeatedly for a while before a sleep, while that pays off.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::adaptive_gate::{AdaptiveGate, AttemptResult};
use crate::kernel;

/// Spins before a wait sleeps. A wake-up costs the sender of a packet some microseconds, and the
/// sleeper may lose its processor. Reading memory takes tens of nanoseconds. So if the next event
/// is near, it is cheaper to spin until it comes. Waits stop spinning when recent attempts found
/// nothing, or when another thread needs the processor, which involuntary context switches show.
#[derive(Default)]
pub(crate) struct Spin {
    max_ns: AtomicU64,
    gate: AdaptiveGate,
    /// The involuntary context switches of the thread that last recorded a wasted spin, at that
    /// time.
    switches: AtomicU64,
}

/// How often memory is read between two readings of the clock.
const CHECKS_PER_CLOCK_READ: u32 = 8;

impl Spin {
    pub(crate) fn set(&self, max: Duration) {
        let max_ns = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        self.max_ns.store(max_ns, Ordering::Relaxed);
    }

    /// Returns whether a wait with this timeout shall spin first, and counts the opportunity.
    pub(crate) fn begin_spin(&self, timeout: Option<Duration>) -> bool {
        self.max_ns.load(Ordering::Relaxed) > 0
            && timeout != Some(Duration::ZERO)
            && self.gate.allow_attempt()
    }

    /// Spins until `is_ready` returns true, or the limit is reached. Returns whether it was ready.
    pub(crate) fn spin_until(&self, mut is_ready: impl FnMut() -> bool) -> bool {
        let max = Duration::from_nanos(self.max_ns.load(Ordering::Relaxed));
        let begin = Instant::now();
        let found = loop {
            if (0..CHECKS_PER_CLOCK_READ).any(|_| {
                std::hint::spin_loop();
                is_ready()
            }) {
                break true;
            }
            if begin.elapsed() >= max {
                break false;
            }
        };
        self.record(found);
        found
    }

    fn record(&self, found: bool) {
        if found {
            return self.gate.record(AttemptResult::Useful);
        }
        let switches = kernel::involuntary_switches();
        match self.switches.swap(switches, Ordering::Relaxed) == switches {
            true => self.gate.record(AttemptResult::Wasted),
            // Another thread needs this processor: stop spinning at once.
            false => self.gate.close(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wasted_spins_stop_and_are_tried_again_later() {
        let spin = Spin::default();
        assert!(!spin.begin_spin(None), "spinning is off by default");
        spin.set(Duration::from_nanos(1));
        assert!(!spin.begin_spin(Some(Duration::ZERO)));
        let mut spins = 0;
        while spin.begin_spin(None) {
            assert!(!spin.spin_until(|| false));
            spins += 1;
            assert!(spins <= 32, "attempts stop");
        }
        // One useful attempt opens the gate again.
        assert!(spin.spin_until(|| true));
        assert!(spin.begin_spin(None));
    }
}

//! `Spin`: looking at memory for a while before a sleep, where that is worth it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::adaptive_gate::{AdaptiveGate, AttemptResult};
use crate::kernel;

/// A wake costs who sends a packet some microseconds and the sleeper its place on the processor; a
/// look at memory costs tens of nanoseconds. So a wait whose answer comes soon looks until then.
/// Adaptive: it spins as long as that has lately been of use, and not where another thread wants
/// the processor, of which involuntary switches tell.
#[derive(Default)]
pub(crate) struct Spin {
    max_ns: AtomicU64,
    gate: AdaptiveGate,
    /// Involuntary switches of the process at the last spin in vain.
    switches: AtomicU64,
}

/// Looks between two readings of the clock.
const CHECKS_PER_CLOCK_READ: u32 = 8;

impl Spin {
    pub(crate) fn set(&self, max: Duration) {
        let max_ns = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        self.max_ns.store(max_ns, Ordering::Relaxed);
    }

    /// Whether a wait of at most `timeout` is to spin first.
    pub(crate) fn begin_spin(&self, timeout: Option<Duration>) -> bool {
        self.max_ns.load(Ordering::Relaxed) > 0
            && timeout != Some(Duration::ZERO)
            && self.gate.allow_attempt()
    }

    /// Looks until there is something; false if there is nothing for too long.
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
        // Somebody else wants this processor: at once.
        match self.switches.swap(switches, Ordering::Relaxed) == switches {
            true => self.gate.record(AttemptResult::Wasted),
            false => self.gate.close(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_in_vain_is_given_up_and_tried_again_later() {
        let spin = Spin::default();
        assert!(!spin.begin_spin(None), "not unless asked for");
        spin.set(Duration::from_nanos(1));
        assert!(!spin.begin_spin(Some(Duration::ZERO)));
        let mut spins = 0;
        while spin.begin_spin(None) {
            assert!(!spin.spin_until(|| false));
            spins += 1;
            assert!(spins <= 32, "it is given up");
        }
        // What is of use again is done again, at once.
        assert!(spin.spin_until(|| true));
        assert!(spin.begin_spin(None));
    }
}

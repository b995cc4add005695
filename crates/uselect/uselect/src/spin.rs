//! `Spin`: looking at memory for a while before a sleep, where that is worth it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::kernel;
use crate::worth::{Outcome, Worth};

/// A wake costs who sends a packet some microseconds and the sleeper its place on the processor; a
/// look at memory costs tens of nanoseconds. So a wait whose answer comes soon looks until then.
/// Adaptive: it spins as long as that has lately been of use, and not where another thread wants
/// the processor, of which involuntary switches tell.
#[derive(Default)]
pub(crate) struct Spin {
    max_ns: AtomicU64,
    worth: Worth,
    /// Involuntary switches of the process at the last spin in vain.
    switches: AtomicU64,
}

/// Looks between two readings of the clock.
const LOOKS: u32 = 8;

impl Spin {
    pub(crate) fn set(&self, max: Duration) {
        let max_ns = u64::try_from(max.as_nanos()).unwrap_or(u64::MAX);
        self.max_ns.store(max_ns, Ordering::Relaxed);
    }

    /// Whether a wait of at most `timeout` is to spin first.
    pub(crate) fn spins(&self, timeout: Option<Duration>) -> bool {
        self.max_ns.load(Ordering::Relaxed) > 0
            && timeout != Some(Duration::ZERO)
            && self.worth.is_tried()
    }

    /// Looks until there is something; false if there is nothing for too long.
    pub(crate) fn until(&self, mut is_ready: impl FnMut() -> bool) -> bool {
        let max = Duration::from_nanos(self.max_ns.load(Ordering::Relaxed));
        let begin = Instant::now();
        let found = loop {
            if (0..LOOKS).any(|_| {
                std::hint::spin_loop();
                is_ready()
            }) {
                break true;
            }
            if begin.elapsed() >= max {
                break false;
            }
        };
        self.learn(found);
        found
    }

    fn learn(&self, found: bool) {
        if found {
            return self.worth.learn(Outcome::OfUse);
        }
        let switches = kernel::involuntary_switches();
        // Somebody else wants this processor: at once.
        match self.switches.swap(switches, Ordering::Relaxed) == switches {
            true => self.worth.learn(Outcome::InVain),
            false => self.worth.give_up(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spinning_in_vain_is_given_up_and_tried_again_later() {
        let spin = Spin::default();
        assert!(!spin.spins(None), "not unless asked for");
        spin.set(Duration::from_nanos(1));
        assert!(!spin.spins(Some(Duration::ZERO)));
        let mut spins = 0;
        while spin.spins(None) {
            assert!(!spin.until(|| false));
            spins += 1;
            assert!(spins <= 32, "it is given up");
        }
        // What is of use again is done again, at once.
        assert!(spin.until(|| true));
        assert!(spin.spins(None));
    }
}

//! `Turn`: giving way to who shares the processor before a sleep, where that is worth it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crate::kernel::{HeldSignals, SignalSet};
use crate::worth::Worth;

/// A thread that sleeps is woken by an interrupt, which whoever sends to it has to pay, and in a
/// closed loop the scheduler may then let it run for each packet. Where the sender shares the
/// processor it need not come to that: it goes first (sched_yield(2)), and what it sends until our
/// turn comes is there already when we look. Adaptive, as [`crate::spin::Spin`] is. It is no wait:
/// there is nothing to do, and who is alone on a processor has his turn back at once.
#[derive(Default)]
pub(crate) struct Turn {
    worth: Worth,
    /// Turns that took too long, in a row.
    long: AtomicU32,
}

/// Whose turn has taken longer than this for each descriptor that is ready then has more to do than
/// to send to us: had we slept, we might have been let in before he was done.
const TIME_MAX: Duration = Duration::from_micros(50);
/// After so many of those in a row
const LONG_MAX: u32 = 4;
/// it is given up for so many sleeps.
const PASSED_OVER: u64 = 4096;

impl Turn {
    /// Before a sleep of at most `timeout`: gives way. What is given back is to be told what was
    /// ready when our turn had come.
    pub(crate) fn give(&self, timeout: Option<Duration>) -> Option<Given<'_>> {
        (timeout != Some(Duration::ZERO) && self.worth.is_tried()).then(|| {
            let (signals, begin) = (HeldSignals::new(), Instant::now());
            std::thread::yield_now();
            Given { turn: self, took: begin.elapsed(), signals }
        })
    }
}

/// A turn that was given away. As long as it is there signals wait: one that came meanwhile is to
/// end the sleep.
pub(crate) struct Given<'a> {
    turn: &'a Turn,
    took: Duration,
    signals: HeldSignals,
}

impl Given<'_> {
    /// For the sleep, unless its caller has one.
    pub(crate) fn mask(&self) -> &SignalSet {
        self.signals.mask()
    }

    pub(crate) fn learn(&self, ready: usize) {
        let Turn { worth, long } = self.turn;
        if self.took.as_micros() <= TIME_MAX.as_micros() * ready.max(1) as u128 {
            long.store(0, Ordering::Relaxed);
            worth.learn(ready > 0);
        } else if long.fetch_add(1, Ordering::Relaxed) + 1 >= LONG_MAX {
            worth.give_up(PASSED_OVER);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn learn(turn: &Turn, took: Duration, ready: usize) {
        Given { turn, took, signals: HeldSignals::new() }.learn(ready);
    }

    #[test]
    fn who_sends_is_given_way_to_and_who_computes_is_not() {
        let turn = Turn::default();
        assert!(turn.give(Some(Duration::ZERO)).is_none(), "no sleep");
        for _ in 0..1000 {
            learn(&turn, 40 * TIME_MAX, 40);
            assert!(turn.give(None).is_some());
        }
        // One who computes now and then is none who always does.
        for _ in 1..LONG_MAX {
            learn(&turn, 41 * TIME_MAX, 40);
        }
        learn(&turn, TIME_MAX, 1);
        assert!(turn.give(None).is_some());
        for _ in 0..LONG_MAX {
            learn(&turn, 2 * TIME_MAX, 0);
        }
        let sleeps = (0..2 * PASSED_OVER).take_while(|_| turn.give(None).is_none()).count();
        assert_eq!(sleeps as u64, PASSED_OVER);
    }
}

//! `Turn`: giving way to who shares the processor before a sleep, where that is worth it.

use std::time::{Duration, Instant};

use crate::kernel;
use crate::worth::{Outcome, Worth};

/// A thread that sleeps is woken by an interrupt, which whoever sends to it has to pay, and in a
/// closed loop the scheduler may then let it run for each packet. Where the sender shares the
/// processor it need not come to that: it goes first (sched_yield(2)), and what it sends until our
/// turn comes is there already when we look. Adaptive, as [`crate::spin::Spin`] is: who is alone on
/// a processor has his turn back at once, and who shares it with one that computes would wait for a
/// slice of his. docs/design/uselect.md has what it gives.
#[derive(Default)]
pub(crate) struct Turn {
    worth: Worth,
}

/// Whose turn has taken longer than this for each descriptor that is ready then has more to do than
/// to send to us: had we slept, we might have been let in before he was done.
const TIME_MAX: Duration = Duration::from_micros(50);
/// A wait that ends sooner than this might end too late by a turn.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);

impl Turn {
    /// Before a sleep of at most `timeout`: gives way.
    pub(crate) fn give(&self, timeout: Option<Duration>) -> Option<Given<'_>> {
        if timeout.is_some_and(|timeout| timeout < TIMEOUT_MIN) || !self.worth.is_tried() {
            return None;
        }
        let begin = Instant::now();
        let is_interrupted = kernel::holding_signals(kernel::give_way)?;
        Some(Given { turn: self, took: begin.elapsed(), is_interrupted })
    }
}

/// A turn that was given away.
pub(crate) struct Given<'a> {
    turn: &'a Turn,
    took: Duration,
    /// A signal has been handled meanwhile: the wait ends as if that had come in the sleep.
    pub(crate) is_interrupted: bool,
}

impl Given<'_> {
    /// How many descriptors were ready when our turn had come.
    pub(crate) fn learn(&self, ready: usize) {
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        self.turn.worth.learn(match ready {
            _ if self.took > TIME_MAX.saturating_mul(ready.max(1)) => Outcome::Harmful,
            0 => Outcome::InVain,
            _ => Outcome::OfUse,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worth::PASSED_OVER_HARMFUL;

    fn learn(turn: &Turn, took: Duration, ready: usize) {
        Given { turn, took, is_interrupted: false }.learn(ready);
    }

    #[test]
    fn who_sends_is_given_way_to_and_who_computes_is_not() {
        let turn = Turn::default();
        assert!(turn.give(Some(TIMEOUT_MIN - Duration::from_nanos(1))).is_none());
        for _ in 0..1000 {
            learn(&turn, 40 * TIME_MAX, 40);
            assert!(turn.give(None).is_some());
        }
        // One who computes now and then is none who always does.
        learn(&turn, 41 * TIME_MAX, 40);
        assert!(turn.give(Some(TIMEOUT_MIN)).is_some());
        for _ in 0..10 {
            learn(&turn, 2 * TIME_MAX, 0);
        }
        let sleeps = (0..10_000).take_while(|_| turn.give(None).is_none()).count();
        assert_eq!(sleeps as u64, PASSED_OVER_HARMFUL);
    }
}

//! `Turn`: giving way to who shares the processor before a sleep, where that is worth it.

use std::time::{Duration, Instant};

use crate::adaptive_gate::{AdaptiveGate, AttemptResult};
use crate::deadline::remaining;
use crate::kernel;

/// A thread that sleeps is woken by an interrupt, which whoever sends to it has to pay, and in a
/// closed loop the scheduler may then let it run for each packet. Where the sender shares the
/// processor it need not come to that: it goes first (sched_yield(2)), and what it sends until our
/// turn comes is there already when we look. Adaptive, as [`crate::spin::Spin`] is: who is alone on
/// a processor has his turn back at once, and who shares it with one that computes would wait for a
/// slice of his. docs/design/uselect.md has what it gives.
#[derive(Default)]
pub(crate) struct YieldBeforeSleep {
    gate: AdaptiveGate,
}

/// Whose turn has taken longer than this for each descriptor that is ready then has more to do than
/// to send to us: had we slept, we might have been let in before he was done.
const TIME_MAX_PER_FD: Duration = Duration::from_micros(50);
/// A wait that ends sooner than this might end too late by a turn.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);

impl YieldBeforeSleep {
    /// Before a sleep of at most `timeout`: gives way.
    pub(crate) fn yield_now(&self, timeout: Option<Duration>) -> Yielded<'_> {
        if timeout.is_some_and(|timeout| timeout < TIMEOUT_MIN) || !self.gate.allow_attempt() {
            return Yielded::default();
        }
        let begin = Instant::now();
        match kernel::with_signals_blocked(kernel::sched_yield) {
            Some(is_interrupted) => {
                Yielded { yielded: Some((self, begin.elapsed())), is_interrupted }
            }
            None => Yielded::default(),
        }
    }
}

/// A turn that was given away, or none.
#[derive(Default)]
pub(crate) struct Yielded<'a> {
    /// Whose it was, and how long it took to come again.
    yielded: Option<(&'a YieldBeforeSleep, Duration)>,
    /// A signal has been handled meanwhile: the wait ends as if that had come in the sleep.
    pub(crate) is_interrupted: bool,
}

impl Yielded<'_> {
    /// Our turn has come, and so many descriptors are ready: learns from that, and gives what is
    /// left of the sleep.
    pub(crate) fn finish(
        &self,
        ready: usize,
        timeout: Option<Duration>,
        deadline: Option<Instant>,
    ) -> Option<Duration> {
        let Some((turn, took)) = self.yielded else { return timeout };
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        turn.gate.record(match ready {
            _ if took > TIME_MAX_PER_FD.saturating_mul(ready.max(1)) => AttemptResult::Harmful,
            0 => AttemptResult::Wasted,
            _ => AttemptResult::Useful,
        });
        if self.is_interrupted { Some(Duration::ZERO) } else { remaining(deadline) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::adaptive_gate::SKIPS_HARMFUL;

    fn learn(turn: &YieldBeforeSleep, took: Duration, ready: usize) {
        Yielded { yielded: Some((turn, took)), is_interrupted: false }.finish(ready, None, None);
    }

    #[test]
    fn who_sends_is_given_way_to_and_who_computes_is_not() {
        let turn = YieldBeforeSleep::default();
        assert!(turn.yield_now(Some(TIMEOUT_MIN - Duration::from_nanos(1))).yielded.is_none());
        for _ in 0..1000 {
            learn(&turn, 40 * TIME_MAX_PER_FD, 40);
            assert!(turn.yield_now(None).yielded.is_some());
        }
        // One who computes now and then is none who always does.
        learn(&turn, 41 * TIME_MAX_PER_FD, 40);
        assert!(turn.yield_now(Some(TIMEOUT_MIN)).yielded.is_some());
        for _ in 0..10 {
            learn(&turn, 2 * TIME_MAX_PER_FD, 0);
        }
        let sleeps = (0..10_000).take_while(|_| turn.yield_now(None).yielded.is_none()).count();
        assert_eq!(sleeps as u64, SKIPS_HARMFUL);
    }
}

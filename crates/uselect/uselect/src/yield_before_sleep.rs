//! `YieldBeforeSleep`: yields the processor before a sleep, while that pays off.

use std::time::{Duration, Instant};

use crate::adaptive_gate::{AdaptiveGate, AttemptResult};
use crate::deadline::remaining;
use crate::kernel;

/// Yields the processor before a wait sleeps. Waking a sleeping thread costs the sender an
/// interrupt. With request-response traffic the scheduler may then switch to the sleeper for each
/// packet. If the sender shares the processor, sched_yield(2) lets it run first. Packets that it
/// sends until this thread runs again need no wake-up. Waits stop yielding while that does not pay
/// off, as in [`crate::spin::Spin`]: a thread that is alone on its processor gains nothing, and
/// beside a compute-bound thread it would wait for a time slice. docs/design/uselect.md has
/// measurements.
#[derive(Default)]
pub(crate) struct YieldBeforeSleep {
    gate: AdaptiveGate,
}

/// If yielding took longer than this per descriptor that became ready, the other thread is
/// compute-bound rather than our peer. Sleeping is then better: a wake-up can preempt the other
/// thread before its time slice ends, but a yield waits for the end.
const TIME_MAX_PER_FD: Duration = Duration::from_micros(50);
/// With a shorter timeout a yield might end too late.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);

impl YieldBeforeSleep {
    /// Yields before a sleep of at most `timeout`, if that has paid off recently.
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

/// The result of an attempt to yield.
#[derive(Default)]
pub(crate) struct Yielded<'a> {
    /// The object that yielded and the time that this took; `None` if it did not yield.
    yielded: Option<(&'a YieldBeforeSleep, Duration)>,
    /// A signal was handled meanwhile. The wait must end as if the signal had interrupted its
    /// sleep.
    pub(crate) is_interrupted: bool,
}

impl Yielded<'_> {
    /// Records the result: `ready` descriptors became ready. Returns the remaining timeout.
    pub(crate) fn finish(
        &self,
        ready: usize,
        timeout: Option<Duration>,
        deadline: Option<Instant>,
    ) -> Option<Duration> {
        let Some((yielding, took)) = self.yielded else { return timeout };
        let ready = u32::try_from(ready).unwrap_or(u32::MAX);
        yielding.gate.record(match ready {
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

    fn record(yielding: &YieldBeforeSleep, took: Duration, ready: usize) {
        Yielded { yielded: Some((yielding, took)), is_interrupted: false }
            .finish(ready, None, None);
    }

    #[test]
    fn yields_to_a_peer_and_not_to_a_compute_bound_thread() {
        let yielding = YieldBeforeSleep::default();
        assert!(yielding.yield_now(Some(TIMEOUT_MIN - Duration::from_nanos(1))).yielded.is_none());
        for _ in 0..1000 {
            record(&yielding, 40 * TIME_MAX_PER_FD, 40);
            assert!(yielding.yield_now(None).yielded.is_some());
        }
        // An occasional compute-bound thread does not close the gate.
        record(&yielding, 41 * TIME_MAX_PER_FD, 40);
        assert!(yielding.yield_now(Some(TIMEOUT_MIN)).yielded.is_some());
        for _ in 0..10 {
            record(&yielding, 2 * TIME_MAX_PER_FD, 0);
        }
        let sleeps = (0..10_000).take_while(|_| yielding.yield_now(None).yielded.is_none()).count();
        assert_eq!(sleeps as u64, SKIPS_HARMFUL);
    }
}

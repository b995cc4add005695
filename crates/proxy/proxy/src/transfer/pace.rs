//! The pace of a transfer whose source or sink is a client.

use std::time::Duration;

use millrace_engine::Instant;

use crate::transfer::{Transfer, TransferState};

impl Transfer {
    /// Checks whether a client that is waited for keeps pace: at least `rate` bytes a second over
    /// each period of `limit`, and at least one byte in each. Call it when `limit` has passed since
    /// [`Transfer::since`], and when a slow source has delivered bytes again.
    pub(crate) fn check_pace(
        &mut self,
        now: Instant,
        limit: Duration,
        rate: u64,
        unsent: usize,
    ) -> bool {
        match self.state {
            TransferState::Off | TransferState::Ended => true,
            TransferState::AwaitingSource => {
                let elapsed = self.waited_before + now.since(self.since);
                if elapsed < limit {
                    return true;
                }
                let kept = now.since(self.since) < limit
                    && meets_rate(self.forwarded - self.forwarded_at_check, elapsed, rate);
                (self.waited_before, self.forwarded_at_check, self.since) =
                    (Duration::ZERO, self.forwarded, now);
                kept
            }
            TransferState::AwaitingSink => {
                let elapsed = now.since(self.since);
                if elapsed < limit {
                    return true;
                }
                let kept =
                    meets_rate(self.unsent_at_wait.saturating_sub(unsent) as u64, elapsed, rate);
                (self.unsent_at_wait, self.since) = (unsent, now);
                kept
            }
        }
    }

    /// Returns how long a client that is waited for has been stalled, if it has moved less than
    /// `rate` bytes a second during the wait. `unsent` is the number of unsent bytes of the sink
    /// and the pipe.
    pub(crate) fn stalled_for(&self, now: Instant, rate: u64, unsent: usize) -> Option<Duration> {
        let (elapsed, moved) = match self.state {
            TransferState::Off | TransferState::Ended => return None,
            TransferState::AwaitingSource => (
                self.waited_before + now.since(self.since),
                self.forwarded - self.forwarded_at_check,
            ),
            TransferState::AwaitingSink => {
                (now.since(self.since()), self.unsent_at_wait.saturating_sub(unsent) as u64)
            }
        };
        (u128::from(moved) * 1000 < u128::from(rate) * elapsed.as_millis()).then_some(elapsed)
    }
}

/// Returns whether a client that was waited for during `elapsed` moved enough: `rate` bytes a
/// second, and at least one byte.
pub(crate) fn meets_rate(moved: u64, elapsed: Duration, rate: u64) -> bool {
    u128::from(moved) * 1000 >= u128::from(rate) * elapsed.as_millis() && moved > 0
}

#[cfg(test)]
mod tests {
    use millrace_http1::Framing;

    use super::*;

    #[test]
    fn a_slow_source_fails_the_pace_check_although_it_never_stalls() {
        let mut transfer = Transfer::default();
        let second = Duration::from_secs(1);
        let mut now = Instant::default();
        transfer.start(Framing::Length(1000), false, now);
        let mut kept = true;
        for _ in 0..40 {
            now = now + second;
            transfer.enter(TransferState::AwaitingSink, now);
            transfer.forwarded += 1;
            transfer.enter(TransferState::AwaitingSource, now);
            kept &= transfer.check_pace(now, 30 * second, 100, 0);
        }
        assert!(!kept);
    }
}

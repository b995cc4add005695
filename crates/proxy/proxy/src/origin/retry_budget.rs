//! The retry budget of a route: tries again are a share of what was asked lately, so that origins
//! that fail under load are not given still more of it.
//!
//! Nothing is counted per request: the route counts its picks anyhow, and what came since the last
//! look is spread evenly over the time since then.

use millrace_engine::Instant;

/// The window, in seconds.
const WINDOW_SECONDS: usize = 10;

/// What may be tried again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RetryLimits {
    /// Of the requests of the window.
    pub(crate) percent: u64,
    /// Tries a second that are granted in any case.
    pub(crate) per_second_min: u64,
}

/// What was asked and tried again in the window.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    /// One entry a second; the one of `second` is at `second % WINDOW`.
    requests: [u64; WINDOW_SECONDS],
    retries: [u64; WINDOW_SECONDS],
    /// The second of the latest look.
    second: u64,
    /// The route's picks at that look, tries again included.
    picks: usize,
}

impl RetryBudget {
    /// One whose route begins now, with its counter of picks at `picks`.
    pub(crate) fn new(now: Instant, picks: usize) -> Self {
        Self { second: now.milliseconds() / 1000, picks, ..Self::default() }
    }

    /// Whether a request may be tried again now; if so, the try is counted. `picks` is what the
    /// route's counter of picks stands at.
    pub(crate) fn grant(&mut self, now: Instant, picks: usize, share: RetryLimits) -> bool {
        self.advance(now, picks);
        let requests: u64 = self.requests.iter().sum();
        let retries: u64 = self.retries.iter().sum();
        let granted = share.per_second_min * WINDOW_SECONDS as u64 + requests * share.percent / 100;
        if retries >= granted {
            return false;
        }
        self.retries[self.slot()] += 1;
        // The pick that follows is no request.
        self.picks = self.picks.wrapping_add(1);
        true
    }

    fn slot(&self) -> usize {
        (self.second % WINDOW_SECONDS as u64) as usize
    }

    /// Moves the window up to now.
    fn advance(&mut self, now: Instant, picks: usize) {
        let second = now.milliseconds() / 1000;
        // A pick that was counted in advance may still be to come.
        let new = (picks.wrapping_sub(self.picks) as isize).max(0) as u64;
        if new > 0 {
            self.picks = picks;
        }
        let passed = second.saturating_sub(self.second);
        let each = new / passed.max(1);
        for _ in 0..passed.min(WINDOW_SECONDS as u64) {
            self.second += 1;
            let slot = self.slot();
            (self.requests[slot], self.retries[slot]) = (each, 0);
        }
        self.second = self.second.max(second);
        if passed == 0 {
            let slot = self.slot();
            self.requests[slot] += new;
        } else if passed > WINDOW_SECONDS as u64 {
            // All slots are alike; only the order in which they are replaced matters from here on.
            self.requests = [each; WINDOW_SECONDS];
            self.retries = [0; WINDOW_SECONDS];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const SHARE: RetryLimits = RetryLimits { percent: 20, per_second_min: 1 };

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    /// How many tries in a row are granted; each is picked, as the stage would.
    fn granted(budget: &mut RetryBudget, now: Instant, picks: &mut usize) -> usize {
        let mut count = 0;
        while budget.grant(now, *picks, SHARE) {
            *picks += 1;
            count += 1;
        }
        count
    }

    #[test]
    fn the_floor_is_granted_without_requests() {
        let (mut budget, mut picks) = (RetryBudget::default(), 0);
        assert_eq!(granted(&mut budget, at(5), &mut picks), 10);
        assert_eq!(granted(&mut budget, at(6), &mut picks), 0, "the window has not moved past");
        assert_eq!(granted(&mut budget, at(15), &mut picks), 10);
    }

    #[test]
    fn a_share_of_the_window_is_granted_and_retries_earn_none() {
        let (mut budget, mut picks) = (RetryBudget::default(), 0);
        picks += 1000;
        assert_eq!(granted(&mut budget, at(0), &mut picks), 210);
        assert_eq!(granted(&mut budget, at(0), &mut picks), 0);
        picks += 100;
        assert_eq!(granted(&mut budget, at(1), &mut picks), 20);
        // The first second's have left the window, and so have the tries made then.
        assert_eq!(granted(&mut budget, at(10), &mut picks), 10);
    }

    #[test]
    fn a_route_that_begins_late_has_had_no_time_before() {
        let mut picks = 7;
        let mut budget = RetryBudget::new(at(86_400), picks);
        picks += 1000;
        assert_eq!(granted(&mut budget, at(86_402), &mut picks), 210);
    }

    #[test]
    fn what_came_long_before_the_window_earns_nothing() {
        let (mut budget, mut picks) = (RetryBudget::default(), 0);
        budget.grant(at(0), picks, SHARE);
        picks += 36_001;
        // Ten a second for an hour: a hundred in the window.
        assert_eq!(granted(&mut budget, at(3600), &mut picks), 30);
    }
}

//! The retry budget of a route: retries are limited to a percentage of the recent requests, so that
//! they do not add to the load of origins that fail under load.
//!
//! The budget costs nothing per request. The route counts its picks anyway, and each update of the
//! window spreads the picks since the last update evenly over the time between.

use millrace_engine::Instant;

/// The length of the window, in seconds.
const WINDOW_SECONDS: usize = 10;

/// The limits of retries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RetryLimits {
    /// Retries as a percentage of the requests in the window.
    pub(crate) percent: u64,
    /// Retries per second that are granted regardless of the requests.
    pub(crate) per_second_min: u64,
}

/// The requests and retries in the window.
#[derive(Debug, Default)]
pub(crate) struct RetryBudget {
    /// Requests per second; those of `second` are at the index `second % WINDOW_SECONDS`.
    requests: [u64; WINDOW_SECONDS],
    /// Retries per second, at the same indices.
    retries: [u64; WINDOW_SECONDS],
    /// The second of the latest update, since the start of the clock.
    second: u64,
    /// The route's picks, retries included, at the latest update.
    picks: usize,
}

impl RetryBudget {
    /// Creates the budget of a route that begins at `now` with its counter of picks at `picks`.
    pub(crate) fn new(now: Instant, picks: usize) -> Self {
        Self { second: now.milliseconds() / 1000, picks, ..Self::default() }
    }

    /// Grants a retry and counts it, or returns false. `picks` is the route's counter of picks.
    pub(crate) fn grant(&mut self, now: Instant, picks: usize, limits: RetryLimits) -> bool {
        self.advance(now, picks);
        let requests: u64 = self.requests.iter().sum();
        let retries: u64 = self.retries.iter().sum();
        let granted =
            limits.per_second_min * WINDOW_SECONDS as u64 + requests * limits.percent / 100;
        if retries >= granted {
            return false;
        }
        self.retries[self.slot()] += 1;
        // The pick for the retry follows, and does not count as a request.
        self.picks = self.picks.wrapping_add(1);
        true
    }

    fn slot(&self) -> usize {
        (self.second % WINDOW_SECONDS as u64) as usize
    }

    /// Moves the window forward to `now`.
    fn advance(&mut self, now: Instant, picks: usize) {
        let second = now.milliseconds() / 1000;
        // A pick that `grant` counted in advance may not have happened yet.
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
            // The whole window has passed, so all its slots are equal.
            self.requests = [each; WINDOW_SECONDS];
            self.retries = [0; WINDOW_SECONDS];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const LIMITS: RetryLimits = RetryLimits { percent: 20, per_second_min: 1 };

    fn at(seconds: u64) -> Instant {
        Instant::default() + Duration::from_secs(seconds)
    }

    /// Requests retries until one is refused, and counts a pick for each granted one. Returns the
    /// number of granted retries.
    fn granted(budget: &mut RetryBudget, now: Instant, picks: &mut usize) -> usize {
        let mut count = 0;
        while budget.grant(now, *picks, LIMITS) {
            *picks += 1;
            count += 1;
        }
        count
    }

    #[test]
    fn the_minimum_per_second_is_granted_without_requests() {
        let (mut budget, mut picks) = (RetryBudget::default(), 0);
        assert_eq!(granted(&mut budget, at(5), &mut picks), 10);
        assert_eq!(granted(&mut budget, at(6), &mut picks), 0, "the window still has the retries");
        assert_eq!(granted(&mut budget, at(15), &mut picks), 10);
    }

    #[test]
    fn a_percentage_of_the_requests_is_granted_and_retries_do_not_count_as_requests() {
        let (mut budget, mut picks) = (RetryBudget::default(), 0);
        picks += 1000;
        assert_eq!(granted(&mut budget, at(0), &mut picks), 210);
        assert_eq!(granted(&mut budget, at(0), &mut picks), 0);
        picks += 100;
        assert_eq!(granted(&mut budget, at(1), &mut picks), 20);
        // The requests and retries of the first second have left the window.
        assert_eq!(granted(&mut budget, at(10), &mut picks), 10);
    }

    #[test]
    fn a_route_that_begins_late_has_a_full_window_of_its_requests() {
        let mut picks = 7;
        let mut budget = RetryBudget::new(at(86_400), picks);
        picks += 1000;
        assert_eq!(granted(&mut budget, at(86_402), &mut picks), 210);
    }

    #[test]
    fn requests_from_before_the_window_do_not_count() {
        let (mut budget, mut picks) = (RetryBudget::default(), 0);
        budget.grant(at(0), picks, LIMITS);
        picks += 36_001;
        // Ten requests per second for an hour: a hundred in the window.
        assert_eq!(granted(&mut budget, at(3600), &mut picks), 30);
    }
}

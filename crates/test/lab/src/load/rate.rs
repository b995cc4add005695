//! Requests for one object at a rate.

use std::time::Duration;

use rand_distr::{Distribution, Exp1};
use rand_pcg::Pcg64;

use crate::load::plan::{PlannedRequest, RequestPlan};
use crate::trace::seeded;

/// The distribution of the times between requests.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrivals {
    /// All times are equal.
    Constant,
    /// Times are exponentially distributed, as those of many independent clients.
    Poisson,
}

/// Requests for one object at a constant mean rate.
#[derive(Debug)]
pub struct Rate {
    interval: f64,
    arrivals: Arrivals,
    random: Pcg64,
    /// Requests so far.
    count: u64,
    /// When the last request begins, in intervals since the start; for Poisson only.
    last: f64,
    time: Duration,
    bytes: Option<u64>,
}

impl Rate {
    /// Plans `rate` requests per second, above 0, in the first `time` of a run.
    pub fn new(rate: f64, arrivals: Arrivals, time: Duration, seed: u64) -> Self {
        assert!(rate > 0.0, "a rate of 0 has no interval");
        let random = seeded(u128::from(seed) << 64 | 2);
        Self { interval: 1.0 / rate, arrivals, random, count: 0, last: 0.0, time, bytes: None }
    }

    /// Sets the length of the object. Otherwise, the first response with status 200 shows it.
    pub fn expect_bytes(self, bytes: u64) -> Self {
        Self { bytes: Some(bytes), ..self }
    }
}

impl RequestPlan for Rate {
    fn advance(&mut self) -> Option<PlannedRequest> {
        let intervals = match self.arrivals {
            // Not a sum, so that rounding errors do not add up.
            Arrivals::Constant => self.count as f64,
            Arrivals::Poisson => {
                let draw: f64 = Exp1.sample(&mut self.random);
                self.last += draw;
                self.last
            }
        };
        self.count += 1;
        let at = Duration::try_from_secs_f64(intervals * self.interval).ok()?;
        (at < self.time).then_some(PlannedRequest { at, user: 0, file: None })
    }

    fn time(&self) -> Duration {
        self.time
    }

    fn object_bytes(&self, _: Option<u32>) -> Option<u64> {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(arrivals: Arrivals, seed: u64) -> Vec<f64> {
        let mut plan = Rate::new(1000.0, arrivals, Duration::from_secs(20), seed);
        std::iter::from_fn(|| plan.advance()).map(|request| request.at.as_secs_f64()).collect()
    }

    #[test]
    fn constant_arrivals_are_equally_far_apart() {
        let times = times(Arrivals::Constant, 1);
        assert_eq!(times.len(), 20_000);
        assert!(times.iter().enumerate().all(|(n, at)| (at - n as f64 / 1000.0).abs() < 1e-6));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_vary() {
        let times = times(Arrivals::Poisson, 1);
        assert!((19_500..20_500).contains(&times.len()), "{}", times.len());
        let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
        // P(gap > mean) = 1 / e.
        let long = gaps.filter(|&gap| gap > 0.001).count();
        assert!((7_000..7_700).contains(&long), "{long}");
    }
}

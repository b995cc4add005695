//! Happy Eyeballs (RFC 8305): which address to try when, without knowing how to connect.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::Instant;

/// The order in which the addresses of one origin are tried. Whoever opens the connections asks
/// [`Race::next_attempt`] at once, whenever the instant that it named has come, and after each
/// [`Race::failed`]; the first connection that stands ends the race, and the others are closed.
#[derive(Clone, Debug)]
pub struct Race {
    candidates: Arc<[IpAddr]>,
    /// `started <= candidates.len()`; those before it have been tried.
    started: usize,
    /// `failed <= started`.
    failed: usize,
    /// The next candidate waits until then, unless an attempt fails before.
    next_at: Instant,
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextAttempt {
    /// Connect to this address, and ask again.
    Start(IpAddr),
    /// Ask again at this instant, or when an attempt fails.
    WaitUntil(Instant),
    /// Every address is being tried or has failed: only an attempt that ends can change something.
    Wait,
    /// Every address has failed.
    Exhausted,
}

impl Race {
    /// RFC 8305 section 5: how long an attempt has the field to itself.
    pub const DELAY: Duration = Duration::from_millis(250);

    /// A race over `candidates`, tried in their order: [`Names`](crate::Names) gives them with the
    /// families alternating.
    pub fn new(candidates: Arc<[IpAddr]>) -> Self {
        Self { candidates, started: 0, failed: 0, next_at: Instant::default() }
    }

    /// What to do at `now`. An address that was given counts as under way until it has failed.
    pub fn next_attempt(&mut self, now: Instant) -> NextAttempt {
        let under_way = self.started - self.failed;
        match self.candidates.get(self.started) {
            None if under_way == 0 => NextAttempt::Exhausted,
            None => NextAttempt::Wait,
            Some(_) if under_way > 0 && now < self.next_at => NextAttempt::WaitUntil(self.next_at),
            Some(candidate) => {
                self.started += 1;
                self.next_at = now + Self::DELAY;
                NextAttempt::Start(*candidate)
            }
        }
    }

    /// An attempt came to nothing, or its address may not be reached at all. The next one need not
    /// wait any longer.
    ///
    /// # Panics
    /// When no attempt is under way.
    pub fn record_failure(&mut self) {
        assert!(self.failed < self.started, "an attempt fails once");
        self.failed += 1;
        self.next_at = Instant::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(milliseconds: u64) -> Instant {
        Instant::from_nanoseconds(milliseconds * 1_000_000)
    }

    fn addresses<const N: usize>(texts: [&str; N]) -> [IpAddr; N] {
        texts.map(|text| text.parse().unwrap())
    }

    #[test]
    fn attempts_follow_each_other_by_time_or_by_failure() {
        let [a, b, c] = addresses(["2001:db8::1", "192.0.2.1", "2001:db8::2"]);
        let mut race = Race::new([a, b, c].into());
        assert_eq!(race.next_attempt(at(1000)), NextAttempt::Start(a));
        assert_eq!(race.next_attempt(at(1000)), NextAttempt::WaitUntil(at(1250)));
        assert_eq!(race.next_attempt(at(1249)), NextAttempt::WaitUntil(at(1250)));
        assert_eq!(race.next_attempt(at(1250)), NextAttempt::Start(b));
        assert_eq!(race.next_attempt(at(1260)), NextAttempt::WaitUntil(at(1500)));
        race.record_failure();
        assert_eq!(race.next_attempt(at(1260)), NextAttempt::Start(c));
        assert_eq!(race.next_attempt(at(9999)), NextAttempt::Wait);
        race.record_failure();
        assert_eq!(race.next_attempt(at(9999)), NextAttempt::Wait);
        race.record_failure();
        assert_eq!(race.next_attempt(at(9999)), NextAttempt::Exhausted);
    }

    #[test]
    fn a_race_without_candidates_or_with_instant_failures_ends() {
        assert_eq!(Race::new([].into()).next_attempt(at(0)), NextAttempt::Exhausted);
        let list = addresses(["192.0.2.1", "192.0.2.2"]);
        let mut race = Race::new(list.into());
        for address in list {
            assert_eq!(race.next_attempt(at(0)), NextAttempt::Start(address));
            race.record_failure();
        }
        assert_eq!(race.next_attempt(at(0)), NextAttempt::Exhausted);
    }
}

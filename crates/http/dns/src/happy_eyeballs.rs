//! Happy Eyeballs (RFC 8305): which address to try at which time. The module opens no connections.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::Instant;

/// The order in which the addresses of one origin are tried.
///
/// The caller calls [`Race::next_attempt`] at the start, after each [`NextAttempt::Start`], at each
/// instant of [`NextAttempt::WaitUntil`], and after each [`Race::record_failure`]. The first
/// established connection ends the race, and the caller closes the others.
#[derive(Clone, Debug)]
pub struct Race {
    candidates: Arc<[IpAddr]>,
    /// Number of candidates tried: `started <= candidates.len()`.
    started: usize,
    /// Number of attempts that failed: `failed <= started`.
    failed: usize,
    /// The time of the next attempt, unless an attempt fails before.
    next_at: Instant,
}

/// The next action of a race.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NextAttempt {
    /// Connect to this address, and call [`Race::next_attempt`] again.
    Start(IpAddr),
    /// Call [`Race::next_attempt`] at this instant, or when an attempt fails.
    WaitUntil(Instant),
    /// Each address has been tried or is being tried. Wait for an attempt to end.
    Wait,
    /// All addresses have failed.
    Exhausted,
}

impl Race {
    /// The time before the next attempt begins, if none fails (RFC 8305 section 5).
    pub const DELAY: Duration = Duration::from_millis(250);

    /// Creates a race over `candidates` in their order. [`DnsResolver`](crate::DnsResolver) returns
    /// addresses with alternating families.
    pub fn new(candidates: Arc<[IpAddr]>) -> Self {
        Self { candidates, started: 0, failed: 0, next_at: Instant::default() }
    }

    /// Returns what to do at `now`. A returned address counts as an attempt in progress until a
    /// failure is recorded.
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

    /// Records that an attempt failed, or that its address may not be used. The next attempt begins
    /// without further delay.
    ///
    /// # Panics
    /// Panics if no attempt is in progress.
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

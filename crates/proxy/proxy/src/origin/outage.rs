//! Tracks whether a configured origin responds.
//!
//! Workers record failed requests and the first response after them. A thread of the program reads
//! the records and logs them. This module only reports; `origin/health.rs` selects origins.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_engine::Instant;

use crate::exchange::Reason;

/// Why an attempt at an origin failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureCause {
    /// No response came.
    Reason(Reason),
    /// The response had this status, which the route counts as a failure.
    Status(u16),
}

impl fmt::Display for FailureCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Reason::*;
        f.write_str(match self {
            Self::Status(status) => return write!(f, "status {status}"),
            Self::Reason(reason) => match reason {
                NameUnknown => "its name has no address",
                NameFailed => "its name could not be resolved",
                NameTimedOut => "the lookup of its name timed out",
                ConnectFailed => "no connection",
                OriginUnreachable => "unreachable",
                ConnectTimedOut => "connection timed out",
                OriginClosed => "connection closed before a response",
                OriginTimedOut => "no response in time",
                MalformedResponse | MalformedResponseFraming | MalformedResponseBody => {
                    "malformed response"
                }
                UpgradeUnrequested => "unrequested protocol switch",
                TooManyInterim => "too many interim responses",
                other => other.word(),
            },
        })
    }
}

/// The failures of one origin. The count only rises, so that a reader misses no failure between
/// two reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outage {
    /// Identifies the period of the origin in the configuration. An origin that leaves the
    /// configuration and comes back has another generation, and counts from 0.
    pub generation: u64,
    /// Attempts that failed in this generation.
    pub failures: u64,
    /// Why the latest of them failed.
    pub cause: Option<FailureCause>,
    /// Time of the first failure since the latest response; `None`: the origin responds.
    pub since: Option<Instant>,
    /// Time of the first response after the latest failure.
    pub responded_at: Option<Instant>,
}

/// An [`Outage`] that workers write and another thread reads.
#[derive(Debug)]
pub(crate) struct SharedOutage {
    outage: Mutex<Outage>,
    /// Whether `since` is set in `outage`; written under its lock.
    is_failing: AtomicBool,
}

impl SharedOutage {
    pub(crate) fn new(generation: u64) -> Self {
        let outage = Mutex::new(Outage { generation, ..Outage::default() });
        Self { outage, is_failing: AtomicBool::new(false) }
    }

    /// Whether a response would end an outage. One relaxed load for each response: after a stale
    /// value, the next response ends the outage.
    pub(crate) fn is_failing(&self) -> bool {
        // Pairs with the stores below. The outage itself is read under the lock.
        self.is_failing.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Outage {
        *self.lock()
    }

    /// Records a failed attempt.
    pub(crate) fn record_failure(&self, cause: FailureCause, now: Instant, bell: &Notifier) {
        let mut outage = self.lock();
        outage.failures += 1;
        outage.cause = Some(cause);
        outage.since.get_or_insert(now);
        self.is_failing.store(true, Ordering::Relaxed);
        drop(outage);
        bell.notify();
    }

    /// Records a response.
    pub(crate) fn record_response(&self, now: Instant, bell: &Notifier) {
        let mut outage = self.lock();
        if outage.since.take().is_some() {
            outage.responded_at = Some(now);
        }
        self.is_failing.store(false, Ordering::Relaxed);
        drop(outage);
        bell.notify();
    }

    fn lock(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that reads outages.
#[derive(Debug, Default)]
pub(crate) struct Notifier {
    is_notified: Mutex<bool>,
    wake: Condvar,
}

impl Notifier {
    /// Wakes the reader. This is a system call only if the reader sleeps.
    fn notify(&self) {
        let was_rung = std::mem::replace(
            &mut *self.is_notified.lock().unwrap_or_else(PoisonError::into_inner),
            true,
        );
        if !was_rung {
            self.wake.notify_one();
        }
    }

    /// Waits until the bell has rung since the last wait, for at most `most`.
    pub(crate) fn wait(&self, most: Duration) {
        let rung = self.is_notified.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.wake.wait_timeout_while(rung, most, |rung| !*rung);
        let (mut rung, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *rung = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_with_its_first_failure_and_ends_with_a_response() {
        let (outage, bell) = (SharedOutage::new(7), Notifier::default());
        let at = |seconds| Instant::default() + Duration::from_secs(seconds);
        let refused = FailureCause::Reason(Reason::ConnectFailed);
        outage.record_failure(refused, at(1), &bell);
        outage.record_failure(FailureCause::Status(503), at(2), &bell);
        assert!(outage.is_failing());
        let (failed, cause) = (2, Some(FailureCause::Status(503)));
        let since = Some(at(1));
        let expected = Outage { generation: 7, failures: failed, cause, since, responded_at: None };
        assert_eq!(outage.read(), expected);
        outage.record_response(at(5), &bell);
        assert!(!outage.is_failing());
        assert_eq!(outage.read(), Outage { since: None, responded_at: Some(at(5)), ..expected });
        outage.record_response(at(6), &bell);
        assert_eq!(outage.read().responded_at, Some(at(5)), "it had ended");
        outage.record_failure(refused, at(7), &bell);
        assert_eq!((outage.read().failures, outage.read().since), (3, Some(at(7))));
    }

    #[test]
    fn the_bell_remembers_one_ring() {
        let bell = Notifier::default();
        bell.notify();
        bell.notify();
        bell.wait(Duration::MAX);
        assert!(!*bell.is_notified.lock().unwrap());
    }
}

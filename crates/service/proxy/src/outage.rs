//! Whether a configured origin responds, as the workers see it: what the operator is told on
//! standard error. Workers write it down when a request fails, and when the first one after that is
//! answered; another thread reads it and decides what is worth a line.
//!
//! It decides nothing: which origins are asked is `origin/health.rs`, even where that never ejects.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_event::Instant;

use crate::reason::Reason;

/// Why a request failed at its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// No response came.
    Reason(Reason),
    /// The response had this status, and the route takes it for a failure.
    Status(u16),
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Reason::*;
        f.write_str(match self {
            Self::Status(status) => return write!(f, "status {status}"),
            Self::Reason(reason) => match reason {
                NameUnknown => "its name has no address",
                NameFailed => "its name could not be resolved",
                NameTimedOut => "the lookup of its name timed out",
                ConnectFailed => "connection refused",
                OriginUnreachable => "unreachable",
                ConnectTimedOut => "connection timed out",
                OriginClosed => "connection closed before a response",
                OriginTimedOut => "no response in time",
                MalformedAnswer | MalformedAnswerFraming | MalformedAnswerBody => {
                    "malformed response"
                }
                UpgradeUnasked => "unrequested protocol switch",
                TooManyInterim => "too many interim responses",
                other => other.word(),
            },
        })
    }
}

/// The failures of one origin. Counters only rise, so that a reader misses nothing between two
/// readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Outage {
    /// Requests that failed since the process started.
    pub failed: u64,
    /// Why the latest of them failed.
    pub cause: Option<Cause>,
    /// When the first request failed after which none was answered yet; `None`: the origin
    /// responds.
    pub since: Option<Instant>,
    /// When the first request was answered after the latest failure.
    pub responded: Option<Instant>,
}

/// An [`Outage`] that workers write and another thread reads.
#[derive(Debug, Default)]
pub(crate) struct SharedOutage {
    outage: Mutex<Outage>,
    /// Whether `since` is set in `outage`; written under its lock.
    is_failing: AtomicBool,
}

impl SharedOutage {
    /// Whether a response would end an outage. One relaxed load, for each response: whoever sees an
    /// older value is followed by another response.
    pub(crate) fn is_failing(&self) -> bool {
        // Pairs with the stores below; what they announce is read under the lock.
        self.is_failing.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Outage {
        *self.locked()
    }

    /// A request failed.
    pub(crate) fn fail(&self, cause: Cause, now: Instant, bell: &Bell) {
        let mut outage = self.locked();
        outage.failed += 1;
        outage.cause = Some(cause);
        outage.since.get_or_insert(now);
        self.is_failing.store(true, Ordering::Relaxed);
        drop(outage);
        bell.ring();
    }

    /// A request was answered.
    pub(crate) fn respond(&self, now: Instant, bell: &Bell) {
        let mut outage = self.locked();
        if outage.since.take().is_some() {
            outage.responded = Some(now);
        }
        self.is_failing.store(false, Ordering::Relaxed);
        drop(outage);
        bell.ring();
    }

    fn locked(&self) -> MutexGuard<'_, Outage> {
        self.outage.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the thread that reads outages.
#[derive(Debug, Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    wake: Condvar,
}

impl Bell {
    /// Costs a system call only if the reader sleeps.
    fn ring(&self) {
        let was_rung =
            std::mem::replace(&mut *self.rung.lock().unwrap_or_else(PoisonError::into_inner), true);
        if !was_rung {
            self.wake.notify_one();
        }
    }

    /// Waits until it was rung since the last wait, or so long at most.
    pub(crate) fn wait(&self, most: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
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
        let (outage, bell) = (SharedOutage::default(), Bell::default());
        let at = |seconds| Instant::default() + Duration::from_secs(seconds);
        let refused = Cause::Reason(Reason::ConnectFailed);
        outage.fail(refused, at(1), &bell);
        outage.fail(Cause::Status(503), at(2), &bell);
        assert!(outage.is_failing());
        let (failed, cause) = (2, Some(Cause::Status(503)));
        let expected = Outage { failed, cause, since: Some(at(1)), responded: None };
        assert_eq!(outage.read(), expected);
        outage.respond(at(5), &bell);
        assert!(!outage.is_failing());
        assert_eq!(outage.read(), Outage { since: None, responded: Some(at(5)), ..expected });
        outage.respond(at(6), &bell);
        assert_eq!(outage.read().responded, Some(at(5)), "it had ended");
        outage.fail(refused, at(7), &bell);
        assert_eq!((outage.read().failed, outage.read().since), (3, Some(at(7))));
    }

    #[test]
    fn the_bell_remembers_one_ring() {
        let bell = Bell::default();
        bell.ring();
        bell.ring();
        bell.wait(Duration::MAX);
        assert!(!*bell.rung.lock().unwrap());
    }
}

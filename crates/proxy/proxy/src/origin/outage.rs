//! Tracks whether configured origins respond.
//!
//! Workers record failed requests and the first response after them. A thread of the program reads
//! the records and logs them. This module only reports; `origin/health.rs` selects origins.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use millrace_engine::Instant;

use crate::exchange::Reason;

/// Why a request to an origin failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FailureCause {
    /// There was no valid response header.
    Reason(Reason),
    /// The response had this status, which the route treats as a failure.
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
    /// Requests that failed in this generation, retries included.
    pub failures: u64,
    /// The cause of the latest failure.
    pub cause: Option<FailureCause>,
    /// Time of the first failure since the latest response; `None` if the origin responds.
    pub since: Option<Instant>,
    /// Time of the response that ended the latest outage that is over; `None` if there was none.
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

    /// Returns whether a response would end an outage. This is one relaxed load per response. If
    /// the value is stale, the next response ends the outage.
    pub(crate) fn is_failing(&self) -> bool {
        // Pairs with the stores in `record_failure` and `record_response`. The outage itself is
        // read under the lock.
        self.is_failing.load(Ordering::Relaxed)
    }

    pub(crate) fn read(&self) -> Outage {
        *self.lock()
    }

    /// Records a failed request.
    pub(crate) fn record_failure(&self, cause: FailureCause, now: Instant, notifier: &Notifier) {
        let mut outage = self.lock();
        outage.failures += 1;
        outage.cause = Some(cause);
        outage.since.get_or_insert(now);
        self.is_failing.store(true, Ordering::Relaxed);
        drop(outage);
        notifier.notify();
    }

    /// Records a response.
    pub(crate) fn record_response(&self, now: Instant, notifier: &Notifier) {
        let mut outage = self.lock();
        if outage.since.take().is_some() {
            outage.responded_at = Some(now);
        }
        self.is_failing.store(false, Ordering::Relaxed);
        drop(outage);
        notifier.notify();
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
    pub(super) fn notify(&self) {
        let was_notified = std::mem::replace(
            &mut *self.is_notified.lock().unwrap_or_else(PoisonError::into_inner),
            true,
        );
        if !was_notified {
            self.wake.notify_one();
        }
    }

    /// Waits until there was a notification since the last wait, or until the timeout is over.
    pub(crate) fn wait(&self, timeout: Duration) {
        let is_notified = self.is_notified.lock().unwrap_or_else(PoisonError::into_inner);
        let waited =
            self.wake.wait_timeout_while(is_notified, timeout, |is_notified| !*is_notified);
        let (mut is_notified, _) = waited.unwrap_or_else(PoisonError::into_inner);
        *is_notified = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_begins_with_its_first_failure_and_ends_with_a_response() {
        let (outage, notifier) = (SharedOutage::new(7), Notifier::default());
        let at = |seconds| Instant::default() + Duration::from_secs(seconds);
        let refused = FailureCause::Reason(Reason::ConnectFailed);
        outage.record_failure(refused, at(1), &notifier);
        outage.record_failure(FailureCause::Status(503), at(2), &notifier);
        assert!(outage.is_failing());
        let (failed, cause) = (2, Some(FailureCause::Status(503)));
        let since = Some(at(1));
        let expected = Outage { generation: 7, failures: failed, cause, since, responded_at: None };
        assert_eq!(outage.read(), expected);
        outage.record_response(at(5), &notifier);
        assert!(!outage.is_failing());
        assert_eq!(outage.read(), Outage { since: None, responded_at: Some(at(5)), ..expected });
        outage.record_response(at(6), &notifier);
        assert_eq!(outage.read().responded_at, Some(at(5)), "the outage had ended before");
        outage.record_failure(refused, at(7), &notifier);
        assert_eq!((outage.read().failures, outage.read().since), (3, Some(at(7))));
    }

    #[test]
    fn the_notifier_remembers_one_notification() {
        let notifier = Notifier::default();
        notifier.notify();
        notifier.notify();
        notifier.wait(Duration::MAX);
        assert!(!*notifier.is_notified.lock().unwrap());
    }
}

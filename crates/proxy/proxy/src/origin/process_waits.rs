//! The connections of all workers to one origin that have waited long for a process of it. See
//! `origin/fastcgi_processes.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_engine::{Instant, Key};

/// For how long a new connection waits at least for its first response before an idle one is closed
/// for it.
pub(crate) const PROCESS_WAIT_MIN: Duration = Duration::from_millis(10);
/// For how long it waits at most.
const PROCESS_WAIT_MAX: Duration = Duration::from_millis(100);

/// The waits for processes of one origin.
#[derive(Debug, Default)]
pub(crate) struct ProcessWaits {
    /// The number of connections that have waited longer than [`ProcessWaits::wait`].
    waiting: AtomicU32,
    /// A moving average of the time until the header of a response, in nanoseconds; 0 before the
    /// first response.
    response_ns: AtomicU64,
    closings: Mutex<Closings>,
}

/// The idle connections that were closed in a period of [`ProcessWaits::wait`].
#[derive(Debug, Default)]
struct Closings {
    since: Instant,
    count: u32,
}

// No other memory depends on the numbers, and an average may lose a response.
impl ProcessWaits {
    /// Notes the time until the header of a response. That of the first response over a connection
    /// counts only if there is no other, because the connection may have waited for a process.
    pub(super) fn note_response(&self, time: Duration, is_first: bool) {
        let average = self.response_ns.load(Ordering::Relaxed);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let updated = match (average, is_first) {
            (0, _) => time,
            (_, true) => return,
            (_, false) => average - average / 8 + time / 8,
        };
        self.response_ns.store(updated, Ordering::Relaxed);
    }

    /// Returns for how long a connection waits before it is known to lack a process: twice as long
    /// as others wait for their responses.
    pub(super) fn wait(&self) -> Duration {
        let response = Duration::from_nanos(self.response_ns.load(Ordering::Relaxed));
        response.saturating_mul(2).clamp(PROCESS_WAIT_MIN, PROCESS_WAIT_MAX)
    }

    /// Returns whether a connection of any worker has waited too long.
    pub(super) fn has_waiting(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    /// Claims the process of an idle connection for one that waits. Returns false if none waits, or
    /// if as many were claimed in this period as connections wait.
    pub(super) fn claim_process(&self, now: Instant) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 {
            return false;
        }
        let mut closings = self.closings.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= closings.since + self.wait() {
            *closings = Closings { since: now, count: 0 };
        }
        let is_claimed = closings.count < waiting;
        closings.count += u32::from(is_claimed);
        is_claimed
    }
}

/// The connections of one worker that occupy processes of an origin.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(super) waits: Arc<ProcessWaits>,
    /// Connections with the times at which they were opened, in this order, until their first
    /// response or a long wait; possibly some that have had it, or were closed since.
    pub(super) new: VecDeque<(Instant, Key)>,
    /// A connection has carried a second response: the program keeps connections, as requested.
    pub(super) keeps_connections: bool,
}

impl Processes {
    pub(super) fn new(waits: Arc<ProcessWaits>) -> Self {
        Self { waits, new: VecDeque::new(), keeps_connections: false }
    }
}

/// A connection before its first response. It is counted from [`NewConnection::mark_waiting`] until
/// then, or until its end.
#[derive(Debug)]
pub(crate) struct NewConnection {
    waits: Arc<ProcessWaits>,
    is_counted: bool,
}

impl NewConnection {
    /// Creates the state of a connection that was just opened.
    pub(super) fn new(waits: Arc<ProcessWaits>) -> Self {
        Self { waits, is_counted: false }
    }

    /// Counts the connection as one that waits, once.
    pub(super) fn mark_waiting(&mut self) {
        if !self.is_counted {
            self.waits.waiting.fetch_add(1, Ordering::Relaxed);
            self.is_counted = true;
        }
    }
}

impl Drop for NewConnection {
    fn drop(&mut self) {
        if self.is_counted {
            self.waits.waiting.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_connection_is_closed_for_each_one_that_waits() {
        let waits = Arc::new(ProcessWaits::default());
        let [mut first, second] = [(); 2].map(|()| NewConnection::new(waits.clone()));
        drop(second);
        let now = Instant::default() + PROCESS_WAIT_MIN;
        assert!(!waits.claim_process(now), "others stay idle while it is new");
        first.mark_waiting();
        first.mark_waiting();
        assert!(waits.claim_process(now));
        assert!(!waits.claim_process(now), "one connection needs one process");
        let later = now + PROCESS_WAIT_MIN;
        assert!(waits.claim_process(later), "another program got the process");
        drop(first);
        assert!(!waits.claim_process(later + PROCESS_WAIT_MIN));
    }

    #[test]
    fn a_slow_program_is_waited_for() {
        let waits = ProcessWaits::default();
        assert_eq!(waits.wait(), PROCESS_WAIT_MIN);
        waits.note_response(Duration::from_millis(30), true);
        assert_eq!(waits.wait(), Duration::from_millis(60));
        waits.note_response(Duration::from_secs(60), true);
        assert_eq!(waits.wait(), Duration::from_millis(60), "it may have waited for a process");
        waits.note_response(Duration::from_secs(60), false);
        assert_eq!(waits.wait(), PROCESS_WAIT_MAX);
    }
}

//! The connections of all workers to one origin that have waited long for a process of it. See
//! `origin/programs.rs`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_engine::{Instant, Key};

/// For how long a new connection waits at least for its first response before an idle one is closed
/// for it.
pub(crate) const PROCESS_WAIT_MIN: Duration = Duration::from_millis(10);
/// For how long it waits at most. Beside programs that take longer, connections cost nothing.
const PROCESS_WAIT_MAX: Duration = Duration::from_millis(100);

/// The waits for processes of one origin.
#[derive(Debug, Default)]
pub(crate) struct ProcessWaits {
    /// The number of connections that have waited longer than [`ProcessWaits::wait`].
    waiting: AtomicU32,
    /// A moving average of the time to the first byte of a response, in nanoseconds.
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
    /// Notes the time to the first byte of a response over a connection that has its process.
    pub(super) fn note_response(&self, time: Duration) {
        let average = self.response_ns.load(Ordering::Relaxed);
        let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.response_ns.store(average - average / 8 + time / 8, Ordering::Relaxed);
    }

    /// Returns for how long a connection waits before it is known to lack a process: twice as long
    /// as others wait for their responses.
    pub(super) fn wait(&self) -> Duration {
        let response = Duration::from_nanos(self.response_ns.load(Ordering::Relaxed));
        response.saturating_mul(2).clamp(PROCESS_WAIT_MIN, PROCESS_WAIT_MAX)
    }

    /// Returns whether an idle connection has to be closed now. In each period, as many are closed
    /// as connections wait, since these need no more processes.
    pub(super) fn takes_idle_connection(&self, now: Instant) -> bool {
        let waiting = self.waiting.load(Ordering::Relaxed);
        if waiting == 0 {
            return false;
        }
        let mut closings = self.closings.lock().unwrap_or_else(PoisonError::into_inner);
        if now >= closings.since + self.wait() {
            *closings = Closings { since: now, count: 0 };
        }
        let takes = closings.count < waiting;
        closings.count += u32::from(takes);
        takes
    }
}

/// The connections of one worker that occupy processes of an origin.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(super) waits: Arc<ProcessWaits>,
    /// Connections with the times at which they were opened, in this order, until their first
    /// response or a long wait; possibly some that have had it, or were closed since.
    pub(super) new: VecDeque<(Instant, Key)>,
}

impl Processes {
    pub(super) fn new(waits: Arc<ProcessWaits>) -> Self {
        Self { waits, new: VecDeque::new() }
    }
}

/// A connection before its first response. It is counted from [`NewConnection::count`] until then,
/// or until its end.
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
    pub(super) fn count(&mut self) {
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
        assert!(!waits.takes_idle_connection(now), "others stay idle while it is new");
        first.count();
        first.count();
        assert!(waits.takes_idle_connection(now));
        assert!(!waits.takes_idle_connection(now), "one connection needs one process");
        let later = now + PROCESS_WAIT_MIN;
        assert!(waits.takes_idle_connection(later), "another program got the process");
        drop(first);
        assert!(!waits.takes_idle_connection(later + PROCESS_WAIT_MIN));
    }

    #[test]
    fn a_slow_program_is_waited_for() {
        let waits = ProcessWaits::default();
        assert_eq!(waits.wait(), PROCESS_WAIT_MIN);
        for _ in 0..100 {
            waits.note_response(Duration::from_millis(30));
        }
        let wait = waits.wait().as_millis();
        assert!((50..=60).contains(&wait), "{wait}");
        waits.note_response(Duration::from_secs(60));
        assert_eq!(waits.wait(), PROCESS_WAIT_MAX);
    }
}

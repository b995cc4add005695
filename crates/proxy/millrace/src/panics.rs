//! Panics: which of them the process survives.
//!
//! A panic is a bug of ours, after which the tables of its worker are not to be trusted. They are
//! thrown away with all that they describe, and a new worker takes the slot: the other workers share
//! nothing with it but mailboxes, counters and the listeners. A panic of any other thread ends the
//! process, so that whoever supervises it starts another; so do too many in a row, since a bug that
//! every client meets is no better served by a new worker.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::console;
use crate::threads::lock;

/// The time in which panics are counted.
const WINDOW: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether a panic of this thread is caught by [`survive`].
    static CATCHES_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body`; a panic in it gives an error instead of ending the process. What `body` changes is
/// the caller's not to trust afterwards.
pub(crate) fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    CATCHES_PANICS.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    CATCHES_PANICS.set(false);
    result
}

/// From now on a panic is told in one line, and ends the process unless somebody survives it.
pub(crate) fn install_panic_hook() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let text = format!("{}: {panic}", thread.name().unwrap_or("a thread"));
        console::log(&text.replace('\n', " "));
        if !CATCHES_PANICS.get() {
            std::process::exit(1);
        }
    }));
}

/// The panics of all workers that were survived of late.
#[derive(Debug, Default)]
pub(crate) struct RestartBudget(Mutex<VecDeque<Instant>>);

impl RestartBudget {
    /// Counts one more at `now`; whether that is no more than `max` in a minute.
    pub(crate) fn record(&self, max: u64, now: Instant) -> bool {
        let mut times = lock(&self.0);
        while times.front().is_some_and(|first| now.duration_since(*first) >= WINDOW) {
            times.pop_front();
        }
        times.push_back(now);
        times.len() as u64 <= max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_minute_and_no_more() {
        let (restarts, start) = (RestartBudget::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(restarts.record(2, at(0)) && restarts.record(2, at(30)));
        assert!(restarts.record(2, at(60)), "the first was a minute ago");
        assert!(!restarts.record(2, at(61)));
        assert!(!RestartBudget::default().record(0, at(0)));
    }
}

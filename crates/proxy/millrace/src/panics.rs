//! Panics, and which of them the process survives.
//!
//! A panic is a bug. The tables of a worker cannot be trusted after one, so they are dropped with
//! everything they describe, and a new worker takes the slot. The other workers share only
//! mailboxes, counters and listeners with it. A panic of any other thread ends the process, so that
//! the service manager restarts it. So do too many panics within a minute: if every client triggers
//! the bug, a new worker does not help.

use std::any::Any;
use std::cell::Cell;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::console;
use crate::threads::lock;

/// The time window in which panics are counted.
const WINDOW: Duration = Duration::from_secs(60);

thread_local! {
    /// Whether [`catch_panic`] catches a panic of this thread.
    static CATCHES_PANICS: Cell<bool> = const { Cell::new(false) };
}

/// Runs `body` and returns a panic in it as an error. The caller must not trust state that `body`
/// changed before the panic.
pub(crate) fn catch_panic<T>(body: impl FnOnce() -> T) -> Result<T, Box<dyn Any + Send>> {
    CATCHES_PANICS.set(true);
    let result = catch_unwind(AssertUnwindSafe(body));
    CATCHES_PANICS.set(false);
    result
}

/// Installs the panic hook: it logs a panic in one line and ends the process unless [`catch_panic`]
/// catches it.
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

/// The recent panics of all workers.
#[derive(Debug, Default)]
pub(crate) struct RestartBudget(Mutex<VecDeque<Instant>>);

impl RestartBudget {
    /// Records a panic at `now` and returns whether at most `max` occurred within the window.
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
    fn the_number_of_panics_in_a_minute_is_limited() {
        let (restarts, start) = (RestartBudget::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(restarts.record(2, at(0)) && restarts.record(2, at(30)));
        assert!(restarts.record(2, at(60)), "the first panic was a minute ago");
        assert!(!restarts.record(2, at(61)));
        assert!(!RestartBudget::default().record(0, at(0)));
    }
}

//! The engines over poll(2) and select(2), for comparison: what a program is that names all its
//! descriptors to the kernel for each wait, and looks through all of them afterwards.
//!
//! Nothing is kept in the kernel. A worker that shares a listener is woken by each connection, as
//! all others that wait for it are.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use millrace_sys::{Errno, Interest, LevelSet, PollSet, Result, SelectSet};

use crate::{Error, ReadinessEngine, Watch, WatchEvent};

/// The engine over poll(2).
pub type PollEngine = ReadinessEngine<PollWatch>;
/// The engine over select(2).
pub type SelectEngine = ReadinessEngine<SelectWatch>;

/// Waits by poll(2).
pub type PollWatch = LevelWatch<PollSet>;
/// Waits by select(2).
pub type SelectWatch = LevelWatch<SelectSet>;

/// What is handed to the kernel for each wait, and what the last one found.
pub struct LevelWatch<S> {
    set: S,
}

impl<S: LevelSet> Watch for LevelWatch<S> {
    fn new() -> std::result::Result<Self, Error> {
        Ok(Self { set: S::default() })
    }

    /// The next wait is told, if anything is waited for.
    fn add_connection(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> Result<()> {
        Ok(())
    }

    fn add_listener(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> Result<()> {
        Ok(())
    }

    fn remove(&mut self, _fd: BorrowedFd<'_>, _data: u64) {}

    /// Where the kernel has no memory for the wait, the turn goes on as if nothing had happened.
    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        interests: impl Iterator<Item = Interest<'a>>,
    ) {
        match self.set.wait(interests, wait_max) {
            Ok(()) | Err(Errno::INTR | Errno::NOMEM) => {}
            Err(error) => panic!("open descriptors are waited for: {error}"),
        }
    }

    fn next_event(&mut self) -> Option<(u64, WatchEvent)> {
        self.set.next_ready().map(|(data, readiness)| (data, WatchEvent::Ready(readiness)))
    }

    const LEVEL_TRIGGERED: bool = true;
}

//! The engines over poll(2) and select(2), for comparison with programs that pass all their
//! descriptors to the kernel for each wait and scan all of them afterwards.
//!
//! The kernel keeps no state. If workers share a listener, each connection wakes all of them that
//! wait for it.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use millrace_sys::{Errno, Interest, LevelSet, PollSet, Result, SelectSet};

use crate::{Error, ReadinessEngine, Watch, WatchEvent};

/// The engine over poll(2).
pub type PollEngine = ReadinessEngine<PollWatch>;
/// The engine over select(2).
pub type SelectEngine = ReadinessEngine<SelectWatch>;

/// The watch over poll(2).
pub type PollWatch = LevelWatch<PollSet>;
/// The watch over select(2).
pub type SelectWatch = LevelWatch<SelectSet>;

/// The descriptors passed to the kernel for each wait, and the result of the last wait.
pub struct LevelWatch<S> {
    set: S,
}

impl<S: LevelSet> Watch for LevelWatch<S> {
    fn new() -> std::result::Result<Self, Error> {
        Ok(Self { set: S::default() })
    }

    /// Does nothing: the descriptors are passed to each wait.
    fn add_connection(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> Result<()> {
        Ok(())
    }

    fn add_listener(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> Result<()> {
        Ok(())
    }

    fn remove(&mut self, _fd: BorrowedFd<'_>, _data: u64) {}

    /// If the kernel has no memory for the wait, the turn continues as if nothing were ready.
    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        interests: impl Iterator<Item = Interest<'a>>,
    ) {
        match self.set.wait(interests, wait_max) {
            Ok(()) | Err(Errno::INTR | Errno::NOMEM) => {}
            Err(error) => panic!("poll or select: {error}"),
        }
    }

    fn next_event(&mut self) -> Option<(u64, WatchEvent)> {
        self.set.next_ready().map(|(data, readiness)| (data, WatchEvent::Ready(readiness)))
    }

    const LEVEL_TRIGGERED: bool = true;
}

//! The engine over epoll(7).

use std::os::fd::BorrowedFd;
use std::time::Duration;

use millrace_sys::{Errno, Events, Interest, Poller, Result};

use crate::limits::EVENTS_MAX;
use crate::{Error, ReadinessEngine, Watch, WatchEvent};

/// The engine over epoll(7).
pub type EpollEngine = ReadinessEngine<EpollWatch>;

/// An epoll instance, and the events of its last wait.
pub struct EpollWatch {
    poller: Poller,
    events: Events,
}

impl Watch for EpollWatch {
    fn new() -> std::result::Result<Self, Error> {
        let poller = Poller::new().map_err(Error::from_errno)?;
        Ok(Self { poller, events: Events::new(EVENTS_MAX) })
    }

    fn add_connection(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.poller.add_connection(fd, data)
    }

    fn add_listener(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.poller.add_listener(fd, data)
    }

    fn remove(&mut self, fd: BorrowedFd<'_>, _data: u64) {
        self.poller.delete(fd).expect("a watched descriptor is registered");
    }

    /// Waits for whole milliseconds, rounded up, so that the deadline has passed when the wait
    /// ends.
    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        _interests: impl Iterator<Item = Interest<'a>>,
    ) {
        let wait_ms = wait_max
            .map(|wait| u32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(u32::MAX));
        match self.poller.wait(&mut self.events, wait_ms) {
            Ok(()) | Err(Errno::INTR) => {}
            Err(error) => panic!("epoll_wait: {error}"),
        }
    }

    fn next_event(&mut self) -> Option<(u64, WatchEvent)> {
        self.events.next().map(|(data, readiness)| (data, WatchEvent::Ready(readiness)))
    }
}

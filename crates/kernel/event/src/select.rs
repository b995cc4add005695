//! The engine over select(2), for comparison: what a program is that hands the kernel three sets of
//! bits for each wait, as long as its greatest descriptor asks for, and looks through them
//! afterwards.
//!
//! Nothing is kept in the kernel. A worker that shares a listener is woken by each connection, as
//! all others that wait for it are.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use millrace_sys::{Errno, Result, SelectSet, Wanted};

use crate::{Error, Found, Sockets, Watch};

/// The engine over select(2).
pub type Select = Sockets<SelectWatch>;

/// What is handed to select(2), and what its last wait found.
pub struct SelectWatch {
    set: SelectSet,
}

impl Watch for SelectWatch {
    fn new() -> std::result::Result<Self, Error> {
        Ok(Self { set: SelectSet::default() })
    }

    /// The next wait is told, if anything is waited for.
    fn add_connection(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> Result<()> {
        Ok(())
    }

    fn add_listener(&mut self, _fd: BorrowedFd<'_>, _data: u64) -> Result<()> {
        Ok(())
    }

    fn remove(&mut self, _fd: BorrowedFd<'_>, _data: u64) {}

    fn close(&mut self, fd: OwnedFd, _data: u64) {
        drop(fd);
    }

    /// Where the kernel has no memory for the wait, the turn goes on as if nothing had happened.
    fn wait<'a>(&mut self, wait_max: Option<Duration>, wanted: impl Iterator<Item = Wanted<'a>>) {
        match self.set.wait(wanted, wait_max) {
            Ok(()) | Err(Errno::INTR | Errno::NOMEM) => {}
            Err(error) => panic!("open descriptors are waited for: {error}"),
        }
    }

    fn next(&mut self) -> Option<(u64, Found)> {
        self.set.next_ready().map(|(data, readiness)| (data, Found::Ready(readiness)))
    }

    const LEVELS: bool = true;
}

//! `Socket`: a TCP socket that the library has opened, and closes.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;

use rustix::net::{Shutdown, sockopt};

use crate::error::Error;
use crate::kernel;
use crate::tracker::{Opened, Tracker};

/// A TCP socket that is tracked unless [`Socket::is_tracked`] says otherwise. What it is used for
/// by its descriptor is seen by the kernel; it must be closed by dropping it, for the number of a
/// descriptor that was closed elsewhere may be another file's.
///
/// A copy of the descriptor (dup(2)) is another descriptor, which is not tracked.
pub struct Socket {
    tracker: Tracker,
    /// Closed behind `drop`, which withdraws it.
    fd: OwnedFd,
    /// 0: not tracked.
    index: u32,
}

/// What is known of a socket without a system call, as of its last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// What poll(2) would say, including bits that have to be asked for. POLLPRI: there is urgent
    /// data, or was or will be, and the rest has to be asked of poll(2).
    pub events: u32,
    /// Bytes that can be received, with one more behind an end (as SIOCINQ has it before it takes
    /// that off); of a listener, connections that wait.
    pub readable: u32,
    /// Bytes of room to send.
    pub room: u32,
    /// The congestion window, in segments.
    pub window: u32,
    /// The smoothed round-trip time.
    pub rtt_us: u32,
}

impl Socket {
    pub(crate) fn new(tracker: Tracker, fd: OwnedFd, index: u32) -> Self {
        Self { tracker, fd, index }
    }

    /// The process that it is of.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Whether waits for it can be answered from memory.
    pub fn is_tracked(&self) -> bool {
        self.index != 0 && self.tracker.inner().is_live()
    }

    /// What is known of it; `None` if it is not tracked.
    pub fn state(&self) -> Option<State> {
        if !self.is_tracked() {
            return None;
        }
        let pages = &self.tracker.inner().pages;
        let numbers = pages.numbers(self.index as usize);
        Some(State {
            events: pages.word(self.index as usize),
            readable: numbers.readable.load(Ordering::Relaxed),
            room: numbers.room.load(Ordering::Relaxed),
            window: numbers.window.load(Ordering::Relaxed),
            rtt_us: numbers.rtt_us.load(Ordering::Relaxed),
        })
    }

    /// The next connection of a listener, tracked from now on, closed on exec.
    ///
    /// # Errors
    /// Those of accept(2). ECONNABORTED too where the peer's address is gone already.
    pub fn accept(&self, is_blocking: bool) -> Result<(Socket, Option<SocketAddr>), Error> {
        let inner = self.tracker.inner();
        let accepted = inner.open(|| kernel::accept(self.as_fd(), is_blocking));
        // Of the queue that became empty nothing tells.
        self.refresh();
        let ((fd, address), index) = accepted?;
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        Ok((Socket::new(self.tracker.clone(), fd, index), address))
    }

    /// Ends one or both directions (shutdown(2)).
    ///
    /// # Errors
    /// ENOTCONN when the connection is gone already.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        let ended = rustix::net::shutdown(&self.fd, how);
        self.refresh();
        Ok(ended?)
    }

    /// An error that the socket has kept (SO_ERROR), given once.
    ///
    /// # Errors
    /// That error.
    pub fn take_error(&self) -> Result<(), Error> {
        let taken = sockopt::socket_error(&self.fd);
        self.refresh();
        Ok(taken??)
    }

    /// Makes the memory what the socket is: to be called after what no hook of the kernel tells of,
    /// which is setsockopt(2) of buffers and marks, SO_ERROR asked for by the descriptor,
    /// shutdown(2) of the receiving side, and a connect(2) that dissolves. One system call.
    pub fn refresh(&self) {
        if self.is_tracked() {
            kernel::touch(self.as_fd());
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for Socket {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.index != 0 {
            self.tracker.inner().forget(self.fd.number(), self.index);
        }
    }
}

//! `TrackedSocket`: a TCP socket that the library opens and closes.

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, RecvFlags, SendFlags, Shutdown, sockopt};

use crate::error::Error;
use crate::kernel::{self, Result};
use crate::tracker::{SocketState, Tracker};

/// A TCP socket, tracked if [`TrackedSocket::is_tracked`]. It must be closed by dropping it: if
/// other code closes the descriptor, the drop may close another file that got the same number.
///
/// A copy of the descriptor (dup(2)) is not tracked.
pub struct TrackedSocket {
    tracker: Tracker,
    /// Closed after `drop` has untracked it.
    fd: OwnedFd,
}

impl Tracker {
    /// Opens a TCP socket with close-on-exec, tracked if possible.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn socket(&self, is_ipv6: bool, is_blocking: bool) -> Result<TrackedSocket, Error> {
        let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let (fd, ()) = self.open_owned(|| Ok((kernel::tcp_socket(family, is_blocking)?, ())))?;
        Ok(TrackedSocket::new(self.clone(), fd))
    }
}

impl TrackedSocket {
    fn new(tracker: Tracker, fd: OwnedFd) -> Self {
        Self { tracker, fd }
    }

    /// Returns the tracker that opened the socket.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Like [`Tracker::is_tracked`].
    pub fn is_tracked(&self) -> bool {
        self.tracker.is_tracked(self.as_raw_fd())
    }

    /// Like [`Tracker::state`].
    pub fn state(&self) -> Option<SocketState> {
        self.tracker.state(self.as_raw_fd())
    }

    /// Like [`Tracker::refresh`].
    pub fn refresh(&self) {
        self.tracker.refresh(self.as_raw_fd());
    }

    /// Accepts the next connection of a listener, with close-on-exec and tracked if possible.
    ///
    /// # Errors
    /// Those of accept(2); ECONNABORTED also if the address of the peer is not available any more.
    pub fn accept(&self, is_blocking: bool) -> Result<(TrackedSocket, Option<SocketAddr>), Error> {
        let accepted = self.tracker.open_owned(|| kernel::accept(self.as_fd(), is_blocking));
        // The kernel does not report that the queue became empty.
        self.refresh();
        let (fd, address) = accepted?;
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        Ok((TrackedSocket::new(self.tracker.clone(), fd), address))
    }

    /// Receives bytes like recv(2). Returns how many, 0 at the end of the stream. Calls
    /// [`Tracker::begin_receive`] and [`Tracker::end_receive`], which lean mode may require.
    ///
    /// # Errors
    /// Those of recv(2).
    pub fn receive(&self, bytes: &mut [u8]) -> Result<usize> {
        self.tracker.begin_receive(self.as_raw_fd());
        let received = rustix::net::recv(&self.fd, &mut *bytes, RecvFlags::empty());
        let received = received.map(|(_, received)| received);
        self.tracker.end_receive(self.as_raw_fd(), received.ok(), bytes.len());
        received
    }

    /// Sends bytes like send(2), without SIGPIPE. Returns how many the kernel took. Calls
    /// [`Tracker::end_send`], which lean mode may require.
    ///
    /// # Errors
    /// Those of send(2).
    pub fn send(&self, bytes: &[u8]) -> Result<usize> {
        let sent = rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL);
        self.tracker.end_send(self.as_raw_fd(), sent.ok(), bytes.len());
        sent
    }

    /// Ends one or both directions, like shutdown(2).
    ///
    /// # Errors
    /// ENOTCONN if the connection is gone already.
    pub fn shutdown(&self, how: Shutdown) -> Result<(), Error> {
        let ended = rustix::net::shutdown(&self.fd, how);
        self.refresh();
        Ok(ended?)
    }

    /// Returns and clears the pending error of the socket (SO_ERROR).
    ///
    /// # Errors
    /// The pending error.
    pub fn take_error(&self) -> Result<(), Error> {
        let taken = sockopt::socket_error(&self.fd);
        self.refresh();
        Ok(taken??)
    }
}

impl AsFd for TrackedSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for TrackedSocket {
    fn as_raw_fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }
}

impl Drop for TrackedSocket {
    fn drop(&mut self) {
        self.tracker.untrack(self.as_raw_fd());
    }
}

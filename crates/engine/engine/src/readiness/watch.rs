//! Who tells an engine what is ready.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use millrace_sys::{Interest, Readiness, Result};

use crate::{Buffer, Error, PathEstimate};

/// A set of watched descriptors, each with a number of the engine's choice.
///
/// A watch gives edges: what is ready when it begins, and from then on what becomes ready. Edges
/// of one descriptor may fold into one that says all of it. After a descriptor was removed or
/// closed an edge that was on its way may still come. A watch over levels gives them as edges, of
/// what a wait is asked for and nothing else: docs/design/engines.md.
pub trait Watch: Sized {
    /// A set with nothing in it.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::OutOfMemory`], [`Error::Unsupported`].
    fn new() -> std::result::Result<Self, Error>;
    /// Watches a connection for readability, room to write, urgent data, and either side's end.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC when the user has too many.
    fn add_connection(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()>;
    /// Watches a listener, or an eventfd, for readability. Of several sets that have the same
    /// listener only one or few are woken.
    ///
    /// # Errors
    /// As [`Watch::add_connection`].
    fn add_listener(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()>;
    /// Ends a watch whose descriptor lives on, here or elsewhere. Before this returns the kernel
    /// has forgotten it.
    fn remove(&mut self, fd: BorrowedFd<'_>, data: u64);
    /// Ends the watch of a connection, and closes it: by the end of the next [`Watch::wait`] at
    /// the latest, its peer is told. The default suffices where the kernel forgets a closed
    /// descriptor by itself, as epoll(7) does.
    fn close(&mut self, fd: OwnedFd, _data: u64) {
        drop(fd);
    }
    /// A send has found less room in a connection than it had bytes for, so an edge of room is
    /// waited for from now on. Most watches know that without being told.
    fn notify_unwritable(&mut self, _fd: BorrowedFd<'_>) {}
    /// What is known of the way to a connection's peer without a system call; `None`: nothing.
    fn path_estimate(&self, _fd: BorrowedFd<'_>) -> Option<PathEstimate> {
        None
    }
    /// Waits until something is ready or, at most, `wait_max` (`None`: for ever). `interests` is all
    /// that an edge is waited for at this moment; a watch over edges was told enough when it was
    /// added, and does not look at it.
    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        interests: impl Iterator<Item = Interest<'a>>,
    );
    /// The next that the last wait found: the number of its descriptor, and what happened.
    fn next_event(&mut self) -> Option<(u64, WatchEvent)>;

    /// Whether each wait tells all that is ready, and is asked for nothing but what its `interests`
    /// says: then nothing is added, and an eventfd is read.
    const LEVEL_TRIGGERED: bool = false;

    /// Whether [`Watch::expect_bytes`] is of any use.
    const USES_EXPECTED_BYTES: bool = false;
    /// So many bytes are certain to come to a connection of which all that there was has been
    /// received: an edge of readability may wait until a good part of them is there, but not long.
    /// From that edge on it is as before.
    fn expect_bytes(&mut self, _fd: BorrowedFd<'_>, _data: u64, _bytes: u64) {}

    /// Whether [`Watch::queue_receive`] and [`Watch::queue_send`] are to be used, for what is ready: they are
    /// gathered until the end of a turn, and all of them are over when the next wait is.
    const MOVES_BYTES: bool = false;
    /// Receives up to `max` bytes of what is there, without waiting.
    fn queue_receive(&mut self, _fd: BorrowedFd<'_>, _data: u64, _buffer: Buffer, _max: usize) {
        unreachable!("only what moves bytes is asked to")
    }
    /// Sends as many of `bytes` as there is room for, without waiting.
    fn queue_send(&mut self, _fd: BorrowedFd<'_>, _data: u64, _bytes: Vec<u8>) {
        unreachable!("only what moves bytes is asked to")
    }
}

/// What a wait found.
#[derive(Debug)]
pub enum WatchEvent {
    /// What a descriptor is ready for.
    Ready(Readiness),
    /// It is watched no longer, though nobody ended that.
    Lost,
    /// A receive is over. The buffer's bytes are not counted yet.
    Received(Buffer, Result<usize>),
    /// A send is over; the bytes are given back.
    Sent(Vec<u8>, Result<usize>),
}

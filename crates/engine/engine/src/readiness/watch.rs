//! The source of readiness of an engine.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use millrace_sys::{Interest, Readiness, Result};

use crate::{Buffer, Error, PathEstimate};

/// A set of watched descriptors, each with a number of the engine's choice.
///
/// A watch reports edges: the readiness at the moment when a descriptor is added, and every
/// descriptor that becomes ready later. Several edges of one descriptor may be merged into one
/// event. An event may still arrive after its descriptor was removed or closed. A level-triggered
/// watch ([`Watch::LEVEL_TRIGGERED`]) reports only the readiness that the argument `interests` of
/// [`Watch::wait`] requests. The engine handles it like edges: see docs/design/engine.md.
pub trait Watch: Sized {
    /// Creates an empty set.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::OutOfMemory`], [`Error::Unsupported`].
    fn new() -> std::result::Result<Self, Error>;
    /// Watches a connection for readability, writability, urgent data, and the end of either
    /// direction.
    ///
    /// # Errors
    /// ENOMEM; ENOSPC if the user has too many registrations.
    fn add_connection(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()>;
    /// Watches a listener or an eventfd for readability. If several sets watch the same listener, a
    /// connection wakes only one or a few of them. With a level-triggered watch it wakes all.
    ///
    /// # Errors
    /// Like [`Watch::add_connection`].
    fn add_listener(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()>;
    /// Stops watching a descriptor that stays open, here or elsewhere. The kernel has forgotten it
    /// when this returns.
    fn remove(&mut self, fd: BorrowedFd<'_>, data: u64);
    /// Stops watching a connection and closes it. The peer is notified by the end of the next
    /// [`Watch::wait`] at the latest. The default suffices if the kernel forgets closed descriptors
    /// by itself, as epoll(7) does.
    fn close(&mut self, fd: OwnedFd, _data: u64) {
        drop(fd);
    }
    /// Notifies the watch that a send found too little room. The watch then reports when there is
    /// room again. Most watches report that without this call.
    fn notify_unwritable(&mut self, _fd: BorrowedFd<'_>) {}
    /// Returns the kernel's estimates for the path to a connection's peer if they are known without
    /// a system call.
    fn path_estimate(&self, _fd: BorrowedFd<'_>) -> Option<PathEstimate> {
        None
    }
    /// Waits until a descriptor is ready, for at most `wait_max` (`None`: no bound). `interests`
    /// has an item for each descriptor for which an operation waits. Only a level-triggered watch
    /// uses it.
    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        interests: impl Iterator<Item = Interest<'a>>,
    );
    /// Returns the next event of the last wait, with the number of its descriptor.
    fn next_event(&mut self) -> Option<(u64, WatchEvent)>;

    /// Whether each wait reports the current state of its `interests`, instead of edges of the
    /// descriptors that were added. The engine then reads the waker's eventfd, which would stay
    /// ready otherwise.
    const LEVEL_TRIGGERED: bool = false;

    /// Whether [`Watch::expect_bytes`] has an effect.
    const USES_EXPECTED_BYTES: bool = false;
    /// Hints that `bytes` more bytes will certainly arrive at a connection that has been read until
    /// it was empty. The next edge of readability may be delayed briefly, until a large part of
    /// them has arrived. Later edges are not affected.
    fn expect_bytes(&mut self, _fd: BorrowedFd<'_>, _data: u64, _bytes: u64) {}

    /// Whether the engine uses [`Watch::queue_receive`] and [`Watch::queue_send`] for ready
    /// descriptors. The requests are collected until the end of the turn, and all of them have
    /// completed when the next wait returns.
    const MOVES_BYTES: bool = false;
    /// Queues a receive of up to `max` bytes that does not wait for bytes.
    fn queue_receive(&mut self, _fd: BorrowedFd<'_>, _data: u64, _buffer: Buffer, _max: usize) {
        unreachable!("only a watch with MOVES_BYTES is used this way")
    }
    /// Queues a send that does not wait for room.
    fn queue_send(&mut self, _fd: BorrowedFd<'_>, _data: u64, _bytes: Vec<u8>) {
        unreachable!("only a watch with MOVES_BYTES is used this way")
    }
}

/// An event that a wait has found.
#[derive(Debug)]
pub enum WatchEvent {
    /// The descriptor is ready.
    Ready(Readiness),
    /// The watch of the descriptor has ended although the engine did not remove it.
    Lost,
    /// A receive has completed. The length of the buffer is not set yet.
    Received(Buffer, Result<usize>),
    /// A send has completed, and its memory is returned.
    Sent(Vec<u8>, Result<usize>),
}

//! The engine over io_uring(7). One system call a turn submits all requests and waits for
//! completions.
//!
//! A watch is a poll request that continues until it is cancelled, and it keeps the open file
//! alive. So a connection is closed in two steps: its descriptor is closed at once, which frees the
//! number, and its watch is cancelled with the next submission, which releases the file and
//! notifies the peer. Completions that were created before that carry a key with an old generation,
//! and are dropped.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use millrace_sys::{Errno, Interest, Readiness, Result};
use millrace_uring::{DisabledRing, Ring, RingCompletion};

use crate::limits::{COMPLETIONS_MAX, REQUESTS_MAX};
use crate::{Buffer, Error, ReadinessEngine, Unsupported, Watch, WatchEvent};

/// The engine over io_uring(7).
pub type UringEngine = ReadinessEngine<UringWatch>;

/// The kernel memory of one engine's ring. One thread may reserve it and another one use it.
#[derive(Debug)]
pub struct ReservedRing(DisabledRing);

impl ReservedRing {
    /// Reserves a ring of the size that every engine uses.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], also if RLIMIT_MEMLOCK has no room for the ring;
    /// [`Error::OutOfDescriptors`]; [`Error::Unsupported`].
    pub fn new() -> std::result::Result<Self, Error> {
        DisabledRing::new(REQUESTS_MAX, COMPLETIONS_MAX).map(Self).map_err(setup_error)
    }

    /// Returns the number of bytes that count against RLIMIT_MEMLOCK since Linux 6.14.
    pub fn memory_bytes(&self) -> u64 {
        self.0.memory_bytes() as u64
    }

    /// Binds the ring to the calling thread.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`]; [`Error::Unsupported`] if a filter of system calls forbids enabling
    /// the ring.
    pub fn into_watch(self) -> std::result::Result<UringWatch, Error> {
        Ok(UringWatch { ring: self.0.enable().map_err(setup_error)? })
    }
}

/// A ring whose poll requests are the watches.
pub struct UringWatch {
    ring: Ring,
}

impl UringWatch {
    /// Waits for at most `wait_max`. A signal may end the wait earlier.
    fn enter(&mut self, wait_max: Option<Duration>) {
        if let Err(error) = self.ring.enter(wait_max) {
            panic!("io_uring_enter: {error}");
        }
    }

    fn cancel(&mut self, data: u64) {
        self.ring.cancel(data).expect("a full queue is submitted first, to make room");
    }
}

impl Watch for UringWatch {
    fn new() -> std::result::Result<Self, Error> {
        ReservedRing::new()?.into_watch()
    }

    fn add_connection(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.ring.watch_connection(fd, data)
    }

    fn add_listener(&mut self, fd: BorrowedFd<'_>, data: u64) -> Result<()> {
        self.ring.watch_listener(fd, data)
    }

    fn remove(&mut self, _fd: BorrowedFd<'_>, data: u64) {
        self.cancel(data);
        self.enter(Some(Duration::ZERO));
    }

    fn close(&mut self, fd: OwnedFd, data: u64) {
        drop(fd);
        self.cancel(data);
    }

    fn wait<'a>(
        &mut self,
        wait_max: Option<Duration>,
        _interests: impl Iterator<Item = Interest<'a>>,
    ) {
        self.enter(wait_max);
    }

    fn next_event(&mut self) -> Option<(u64, WatchEvent)> {
        loop {
            return Some(match self.ring.next_completion()? {
                RingCompletion::Watched { result: Err(Errno::CANCELED), .. } => continue,
                RingCompletion::Watched { data, result: Ok(events), more: true } => {
                    (data, WatchEvent::Ready(Readiness::from_bits(events)))
                }
                // If the kernel had no memory to continue the request, a new watch reports
                // everything again. If the descriptor was closed before the request was submitted,
                // its key no longer exists.
                RingCompletion::Watched { data, .. } => (data, WatchEvent::Lost),
                RingCompletion::Received { data, memory, result } => {
                    (data, WatchEvent::Received(Buffer::from_block(memory), result))
                }
                RingCompletion::Sent { data, memory, result } => {
                    (data, WatchEvent::Sent(memory, result))
                }
            });
        }
    }

    const MOVES_BYTES: bool = true;

    fn queue_receive(&mut self, fd: BorrowedFd<'_>, data: u64, buffer: Buffer, max: usize) {
        let queued = self.ring.receive(fd, data, buffer.into_block(), max);
        queued.expect("a full queue is submitted first, to make room");
    }

    fn queue_send(&mut self, fd: BorrowedFd<'_>, data: u64, bytes: Vec<u8>) {
        self.ring.send(fd, data, bytes).expect("a full queue is submitted first, to make room");
    }
}

/// Converts an error of io_uring_setup(2).
fn setup_error(errno: Errno) -> Error {
    Error::Unsupported(match errno {
        Errno::NOSYS => Unsupported::RingMissing,
        Errno::PERM | Errno::ACCESS => Unsupported::RingForbidden,
        Errno::INVAL => Unsupported::RingTooOld,
        other => return Error::from_errno(other),
    })
}

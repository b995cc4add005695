//! `Hidden`: descriptors of the library's own, out of the way of the program's.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use crate::bitmap::{fd_index, is_set, set_bit};
use crate::error::Errno;
use crate::layout::{Bitmap, WORDS};

/// By number: whether it is the library's.
static INTERNAL_FDS: Bitmap = [const { AtomicU64::new(0) }; WORDS];

/// The numbers of the library's descriptors begin so far below the last that select(2) of the C
/// library takes, or that the process may have: programs expect low ones for theirs.
const RESERVED_BELOW_LIMIT: u64 = 128;
const FD_SETSIZE: u64 = 1024;

/// Whether a descriptor is the library's own: who closes all that are open, or puts others in their
/// place, is to leave it alone.
pub fn is_internal_fd(fd: i32) -> bool {
    fd_index(fd).is_some_and(|fd| is_set(&INTERNAL_FDS, fd))
}

/// A descriptor that [`owns`] knows, for as long as it is there.
pub struct InternalFd(OwnedFd);

impl InternalFd {
    /// Takes a descriptor that nobody else has; it gets a high number. Where there is no place for it
    /// further up it stays.
    pub fn new(fd: OwnedFd) -> Self {
        let numbers = getrlimit(Resource::Nofile).current.unwrap_or(FD_SETSIZE).min(FD_SETSIZE);
        let moved = fcntl_dupfd_cloexec(&fd, numbers.saturating_sub(RESERVED_BELOW_LIMIT) as i32);
        let fd = moved.unwrap_or(fd);
        if let Some(number) = fd_index(fd.as_raw_fd()) {
            set_bit(&INTERNAL_FDS, number, true);
        }
        Self(fd)
    }

    pub(crate) fn from_result(opened: Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        opened.map(Self::new)
    }
}

impl AsFd for InternalFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for InternalFd {
    fn as_raw_fd(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// Unmarked before it is closed: from then on the number may be the program's.
impl Drop for InternalFd {
    fn drop(&mut self) {
        if let Some(number) = fd_index(self.as_raw_fd()) {
            set_bit(&INTERNAL_FDS, number, false);
        }
    }
}

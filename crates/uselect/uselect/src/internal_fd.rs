//! `InternalFd`: the library's own descriptors, which must not disturb those of the program.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

use crate::bitmap::{fd_index, is_set, set_bit};
use crate::error::Errno;
use crate::layout::{Bitmap, WORDS};

/// By descriptor, whether it is the library's own.
static INTERNAL_FDS: Bitmap = [const { AtomicU64::new(0) }; WORDS];

/// Internal descriptors begin this far below the limit of open files, or below FD_SETSIZE if that
/// is lower, because programs expect low numbers for their own descriptors.
const RESERVED_BELOW_LIMIT: u64 = 128;
const FD_SETSIZE: u64 = 1024;

/// Returns whether a descriptor is the library's own. Code that closes all descriptors, or replaces
/// them by dup2(2), must leave it open.
pub fn is_internal_fd(fd: i32) -> bool {
    fd_index(fd).is_some_and(|fd| is_set(&INTERNAL_FDS, fd))
}

/// An open descriptor of the library, recorded for [`is_internal_fd`].
pub struct InternalFd(OwnedFd);

impl InternalFd {
    /// Moves a descriptor to a high number and records it. It keeps its number if no higher one is
    /// free. No other code may use the descriptor.
    pub fn new(fd: OwnedFd) -> Self {
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(FD_SETSIZE).min(FD_SETSIZE);
        let moved = fcntl_dupfd_cloexec(&fd, limit.saturating_sub(RESERVED_BELOW_LIMIT) as i32);
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

/// Clears the record before the close: afterwards the program may get the number.
impl Drop for InternalFd {
    fn drop(&mut self) {
        if let Some(number) = fd_index(self.as_raw_fd()) {
            set_bit(&INTERNAL_FDS, number, false);
        }
    }
}

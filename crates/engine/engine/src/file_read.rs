//! Files whose bytes are sent without a copy.

use std::fmt;
use std::os::fd::BorrowedFd;

use millrace_sys::Errno;

/// A regular file whose bytes can be sent without a copy. Its content may change at any time.
pub trait FileRead: Send + Sync + fmt::Debug {
    /// Reads from offset `at` into `bytes`, and returns the number of bytes read; 0 at the end of
    /// the file. With `waits` false, the call fails instead of waiting for a disk.
    ///
    /// # Errors
    /// EAGAIN if `waits` is false and the bytes are not in memory; those of pread(2).
    fn read_at(&self, at: u64, bytes: &mut [u8], waits: bool) -> Result<usize, Errno>;
    /// Returns the descriptor for sendfile(2); `None` in the simulator, whose engine calls
    /// [`FileRead::read_at`] instead.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

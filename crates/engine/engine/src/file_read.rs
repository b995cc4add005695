//! Files whose bytes are sent without a copy.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

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
    /// Returns the part that has the byte at offset `at`, if the bytes are in several files in
    /// memory, which never change. They are sent from there.
    fn part_at(&self, at: u64) -> Option<FilePart<'_>> {
        let _ = at;
        None
    }
}

/// A part of a file, as a file of its own.
#[derive(Debug)]
pub struct FilePart<'a> {
    /// The file that has the bytes.
    pub file: &'a Arc<dyn FileRead>,
    /// The offset of the first byte in that file.
    pub offset: u64,
    /// The number of bytes there, at least one.
    pub bytes: u64,
}

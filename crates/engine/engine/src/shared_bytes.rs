//! Bytes that are sent without a copy.

use std::fmt;
use std::os::fd::BorrowedFd;

/// Immutable bytes, possibly in a memory file, that can be sent to many peers without being copied.
/// They do not change while any value that refers to them lives.
///
/// The kernel may read bytes that were sent by reference long after the send has completed, even
/// after this value is dropped: see [`SharedBytes::file`].
pub trait SharedBytes: fmt::Debug {
    /// Returns the bytes. The result is the same for as long as the value lives.
    fn bytes(&self) -> &[u8];
    /// Returns the file that contains the bytes and the offset at which they begin, or `None` if
    /// they have to be copied. The caller is about to let the kernel refer to the file's pages, so
    /// the owner of the file must never write to these pages again. The simulated kernel does not
    /// call it.
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)>;
    /// Creates another value that refers to the same bytes.
    fn clone_box(&self) -> Box<dyn SharedBytes>;
}

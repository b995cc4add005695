//! Bytes that are sent from where they rest.

use std::fmt;
use std::os::fd::BorrowedFd;

/// Bytes in a file of memory that are not changed while any of the values that stand for them
/// lives, so that they can be sent to many peers without being copied.
///
/// What was sent by reference may be read by the peer long after the send has ended, even after
/// this value is gone: see [`SharedBytes::file`].
pub trait SharedBytes: fmt::Debug {
    /// The bytes; the same for as long as the value lives.
    fn bytes(&self) -> &[u8];
    /// The file that has them, and where in it they begin. The kernel is about to refer to their
    /// pages: whoever owns the file never writes them again. `None` where it is not to: then they
    /// go by copy. A simulated kernel does not ask.
    fn file(&self) -> Option<(BorrowedFd<'_>, u64)>;
    /// Another value that stands for them.
    fn clone_box(&self) -> Box<dyn SharedBytes>;
}

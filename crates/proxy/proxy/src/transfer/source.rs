//! The source of a transfer.

use crate::cached::reader::CachedReader;
use crate::conn::wire::Wire;
use crate::files::reader::FileReader;

/// The end of a transfer that delivers bytes.
pub(crate) enum TransferSource<'a> {
    /// A connection: its unread bytes, and the bytes in its socket.
    Wire(&'a mut Wire),
    /// A body in the cache, which may still be arriving.
    Cached(&'a mut CachedReader),
    /// A file, whose length is known.
    File(&'a mut FileReader),
    /// Bytes in memory, all of which are sent in one step.
    Memory(&'a [u8]),
}

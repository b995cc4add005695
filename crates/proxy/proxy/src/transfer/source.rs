//! Where a transfer reads from.

use crate::cached::reader::CachedReader;
use crate::conn::wire::Wire;

/// The end of a transfer that gives bytes.
pub(crate) enum TransferSource<'a> {
    /// A connection: its unread bytes, and what its socket has.
    Wire(&'a mut Wire),
    /// A body in the cache, which may still be arriving.
    Cached(&'a mut CachedReader),
    /// Bytes in memory, all of them in one step.
    Memory(&'a [u8]),
}

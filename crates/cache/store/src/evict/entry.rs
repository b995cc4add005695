//! Entries of the queues.

use std::sync::atomic::AtomicU8;

/// A stored object, as the eviction sees it.
#[derive(Debug)]
pub(super) struct EvictionEntry {
    pub(super) size: u64,
    pub(super) key: u64,
    /// The time when the object expires, in the seconds that callers pass.
    pub(super) expires: u32,
    /// The tick when it entered its queue.
    pub(super) stamp: u32,
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Hits since it entered its queue, less one for each time that it stayed there instead of
    /// being evicted: `hits <= HITS_MAX`. Relaxed: it is ordered with no other memory, and losing a
    /// hit does no harm.
    pub(super) hits: AtomicU8,
    pub(super) queue: QueueKind,
}

/// The queue of an entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueKind {
    /// The handle is not in use.
    None,
    Probation,
    Main,
}

const _: () = assert!(size_of::<EvictionEntry>() <= 40);

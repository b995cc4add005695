//! What a queue is made of.

use std::sync::atomic::AtomicU8;

/// What is held for its caller.
#[derive(Debug)]
pub(super) struct EvictionEntry {
    pub(super) size: u64,
    pub(super) key: u64,
    /// In the caller's seconds.
    pub(super) expires: u32,
    /// The tick when it entered its queue.
    pub(super) stamp: u32,
    pub(super) previous: u32,
    pub(super) next: u32,
    /// Since it entered its queue, less what it spent on staying: `hits <= HITS_MAX`. Whoever loads
    /// or stores it needs no order with anything else: a lost hit is as good as one that came late.
    pub(super) hits: AtomicU8,
    pub(super) queue: QueueKind,
}

/// Where an entry is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum QueueKind {
    /// The handle of no object.
    None,
    Probation,
    Main,
}

const _: () = assert!(size_of::<EvictionEntry>() <= 40);

//! What is counted of a disk.

use std::sync::{Mutex, PoisonError};

/// What a disk did since it was opened, and what it has.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Answers that can be fetched, or are in the queue.
    pub answers: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Its segments.
    pub segments: u64,
    /// Jobs in its queue.
    pub queue: u64,
    /// What earlier runs stored is not all found yet.
    pub is_recovering: bool,
    /// Answers that were written.
    pub stored: u64,
    /// Answers that were not written: the queue was above its first mark, or the disk had failed a
    /// moment ago.
    pub stores_skipped: u64,
    /// Answers of which the head, and the beginning of the body, was given.
    pub fetched: u64,
    /// Fetches that were left to the origin: the queue was above its first mark.
    pub fetches_skipped: u64,
    /// Fetches that came too late.
    pub gone: u64,
    /// Records that were not what had been written.
    pub damaged: u64,
    /// Reads and writes that failed, without those for want of room.
    pub read_errors: u64,
    /// See above.
    pub write_errors: u64,
    /// Writes for which the file system had no room.
    pub full: u64,
    /// Purges that waited: the queue was above its second mark.
    pub waits: u64,
    /// Segments that were dropped to make room.
    pub dropped: u64,
    /// Answers that were written again when their segment was dropped.
    pub rewritten: u64,
    /// Times that everything older was dropped because a purge had been lost.
    pub lost_purges: u64,
}

impl std::ops::Add for Counters {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            answers: self.answers + other.answers,
            bytes: self.bytes + other.bytes,
            segments: self.segments + other.segments,
            queue: self.queue + other.queue,
            is_recovering: self.is_recovering || other.is_recovering,
            stored: self.stored + other.stored,
            stores_skipped: self.stores_skipped + other.stores_skipped,
            fetched: self.fetched + other.fetched,
            fetches_skipped: self.fetches_skipped + other.fetches_skipped,
            gone: self.gone + other.gone,
            damaged: self.damaged + other.damaged,
            read_errors: self.read_errors + other.read_errors,
            write_errors: self.write_errors + other.write_errors,
            full: self.full + other.full,
            waits: self.waits + other.waits,
            dropped: self.dropped + other.dropped,
            rewritten: self.rewritten + other.rewritten,
            lost_purges: self.lost_purges + other.lost_purges,
        }
    }
}

/// The counters that only ever go up, while a disk works.
#[derive(Debug, Default)]
pub(super) struct Tally(Mutex<Counters>);

impl Tally {
    pub(super) fn count(&self, count: impl FnOnce(&mut Counters)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// What was counted; nothing of what the disk has.
    pub(super) fn counters(&self) -> Counters {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! Statistics of a disk.

use std::sync::{Mutex, PoisonError};

/// The state of a disk, and what it did since it was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DiskStats {
    /// Responses that can be fetched or are in the queue.
    pub responses: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Its segments.
    pub segments: u64,
    /// Jobs in its queue.
    pub queued_jobs: u64,
    /// Whether segments of earlier runs are still being read.
    pub is_recovering: bool,
    /// Responses written.
    pub stored: u64,
    /// Responses not written because they were too long, because the disk was overloaded or had the
    /// maximum number of responses, or because a write had just failed.
    pub stores_skipped: u64,
    /// Fetches that delivered the header and the beginning of the body.
    pub fetched: u64,
    /// Fetches left to the origin because the disk was overloaded.
    pub fetches_skipped: u64,
    /// Fetches of responses that were removed meanwhile.
    pub fetches_gone: u64,
    /// Records that were damaged.
    pub damaged_records: u64,
    /// Failed reads.
    pub read_errors: u64,
    /// Failed writes, syncs and removals. If the file system has no space for a record, a segment
    /// is dropped; only a failure after that counts.
    pub write_errors: u64,
    /// Writes for which the file system had no space.
    pub writes_without_space: u64,
    /// Purges that waited because the queue had reached its second mark.
    pub purge_waits: u64,
    /// Segments dropped to make room, or because everything was purged.
    pub dropped_segments: u64,
    /// Responses rewritten when their segment was dropped.
    pub rewritten: u64,
    /// Times that all older records were dropped because a purge had been lost.
    pub lost_purges: u64,
}

impl std::ops::Add for DiskStats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            responses: self.responses + other.responses,
            bytes: self.bytes + other.bytes,
            segments: self.segments + other.segments,
            queued_jobs: self.queued_jobs + other.queued_jobs,
            is_recovering: self.is_recovering || other.is_recovering,
            stored: self.stored + other.stored,
            stores_skipped: self.stores_skipped + other.stores_skipped,
            fetched: self.fetched + other.fetched,
            fetches_skipped: self.fetches_skipped + other.fetches_skipped,
            fetches_gone: self.fetches_gone + other.fetches_gone,
            damaged_records: self.damaged_records + other.damaged_records,
            read_errors: self.read_errors + other.read_errors,
            write_errors: self.write_errors + other.write_errors,
            writes_without_space: self.writes_without_space + other.writes_without_space,
            purge_waits: self.purge_waits + other.purge_waits,
            dropped_segments: self.dropped_segments + other.dropped_segments,
            rewritten: self.rewritten + other.rewritten,
            lost_purges: self.lost_purges + other.lost_purges,
        }
    }
}

/// The monotonic counters of a disk.
#[derive(Debug, Default)]
pub(super) struct StatsCell(Mutex<DiskStats>);

impl StatsCell {
    pub(super) fn update(&self, count: impl FnOnce(&mut DiskStats)) {
        count(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    /// Returns the counters; the fields about the state of the disk are 0.
    pub(super) fn get(&self) -> DiskStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

//! The state that the threads of a disk share.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use millrace_http_cache::SpaceTag;

use super::directory_io::{DirectoryIo, read_exactly};
use super::format::{RecordKind, RecordPosition, ResponseId, Sealer};
use super::index::{HeaderLocation, Index, IndexedRecord};
use super::message::{DiskCallbacks, FetchError};
use super::purge_rules::{PurgeRules, PurgeTarget, RecordStatus, RuleSubject};
use super::queue::{JobQueue, PurgeJob, WriteJob};
use super::record::RecordHeader;
use super::segments::{Segment, Segments};
use super::stats::StatsCell;

/// The state that the threads of a disk share.
#[derive(Debug)]
pub(super) struct DiskShared {
    pub(super) directory_io: Arc<dyn DirectoryIo>,
    /// The random number of the directory, from its identity.
    pub(super) directory_number: u64,
    pub(super) sealer: Sealer,
    pub(super) index: Index,
    pub(super) rules: PurgeRules,
    pub(super) segments: Segments,
    pub(super) queue: JobQueue,
    pub(super) stats: StatsCell,
    /// The number of responses that recovery has found so far, by key space.
    pub(super) recovered: Mutex<BTreeMap<SpaceTag, u64>>,
    pub(super) callbacks: Arc<dyn DiskCallbacks>,
    /// Its index among the disks.
    pub(super) disk: usize,
    /// Whether segments of earlier runs are still to be read. The store of `false` after the last
    /// one pairs with the load in [`Disk::stats`](super::disk::Disk::stats).
    pub(super) is_recovering: AtomicBool,
    /// Bodies longer than this are not stored.
    pub(super) body_bytes_max: u64,
}

/// The headers of a stored response.
#[derive(Debug)]
pub(super) struct RecordHeaders {
    pub(super) record: RecordHeader,
    /// The update record with the newest response header, if there is one.
    pub(super) update: Option<RecordHeader>,
    /// The status of the response under the purge rules.
    pub(super) status: RecordStatus,
}

impl DiskShared {
    /// Reads the record headers of a response, without its body, and checks the purge rules. The
    /// response is in `segment`; its newest header may be in another one.
    ///
    /// # Errors
    /// [`FetchError::Gone`] if the segment of the update was dropped; [`FetchError::Damaged`] if a
    /// record is damaged or cannot be read.
    pub(super) fn read_headers(
        &self,
        segment: &Segment,
        indexed: &IndexedRecord,
    ) -> Result<RecordHeaders, FetchError> {
        let (id, at) = (indexed.id, indexed.at);
        let header = self.read_record_header(
            segment,
            id,
            HeaderLocation { at, header_bytes: indexed.header_bytes },
        )?;
        if !header.has_kind(RecordKind::Response) || header.fixed.body_bytes != indexed.body_bytes {
            return Err(FetchError::Damaged);
        }
        let mut update = None;
        if let Some(head) = indexed.update {
            let segment = self.segments.get(head.at.segment).ok_or(FetchError::Gone)?;
            let newer = self.read_record_header(&segment, id, head)?;
            if !newer.has_kind(RecordKind::Update) || newer.fixed.target != at {
                return Err(FetchError::Damaged);
            }
            update = Some(newer);
        }
        let parts = header.parts();
        let head_at = indexed.update.map_or(at, |head| head.at);
        let record = RuleSubject { id, at, header_at: head_at, name: parts.name, tags: parts.tags };
        let status = self.rules.status_of(&record);
        Ok(RecordHeaders { record: header, update, status })
    }

    fn read_record_header(
        &self,
        segment: &Segment,
        id: ResponseId,
        head: HeaderLocation,
    ) -> Result<RecordHeader, FetchError> {
        let mut bytes = vec![0; head.header_bytes as usize];
        let fixed = self.read_checked(segment, head.at.offset(), &mut bytes, |header| {
            let fixed = self.sealer.read_fixed(header, head.at)?;
            let is_it = fixed.id == id && fixed.record_header_bytes() == header.len();
            (is_it && self.sealer.is_record_header(header, head.at)).then_some(fixed)
        })?;
        Ok(RecordHeader { fixed, bytes })
    }

    /// Reads all of `bytes` from an offset of a segment, and returns the result of `check`, which
    /// is `None` for damaged bytes.
    ///
    /// # Errors
    /// [`FetchError::Damaged`]. The failure is counted.
    pub(super) fn read_checked<T>(
        &self,
        segment: &Segment,
        at: u64,
        bytes: &mut [u8],
        check: impl FnOnce(&[u8]) -> Option<T>,
    ) -> Result<T, FetchError> {
        let is_there = read_exactly(&*segment.file, at, bytes);
        let checked = if is_there == Ok(true) { check(bytes) } else { None };
        checked.ok_or_else(|| {
            self.stats.update(|counters| match is_there {
                Ok(_) => counters.damaged_records += 1,
                Err(_) => counters.read_errors += 1,
            });
            FetchError::Damaged
        })
    }

    /// Removes a damaged or unreadable response, and queues a purge of it. The index no longer has
    /// the response, so a later purge without a requester would not be written. If a later start
    /// could read the response, it would serve it although it was purged.
    pub(super) fn discard_damaged(&self, id: ResponseId, at: RecordPosition) {
        let mut shard = self.index.shard(id.key);
        if shard.remove_at(id, at) {
            let target = PurgeTarget::Response(id);
            self.queue.push_write(WriteJob::Purge(PurgeJob {
                target,
                is_soft: false,
                waiter: None,
            }));
        }
    }
}

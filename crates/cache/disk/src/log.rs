//! The log of a disk: appending records, opening and closing segments, and dropping the oldest
//! ones.
//!
//! Only one thread at a time does this. A failed write is undone as far as possible and reported;
//! nothing is retried endlessly.

use std::sync::Arc;

use millrace_sys::Errno;

use super::directory_io::{IoResult, ensure_removed, read_exactly, write_all};
use super::format::{
    FixedHeader, PurgeScope, RecordKind, RecordParts, RecordPosition, ResponseId,
    SEGMENT_HEADER_BYTES, SEGMENT_TAIL_BYTES, SegmentHeader, SegmentTail, put_item, put_variant,
};
use super::index::{HeaderLocation, IndexedRecord};
use super::limits::{
    PAUSE_STORES, REWRITTEN_BYTES_MAX, REWRITTEN_SHARE, SEGMENTS_MAX, UNIT, VERIFIED_BYTES_MAX,
    segment_bytes,
};
use super::purge_rules::RecordStatus;
use super::record::{NewRecord, RecordHeader};
use super::segments::Segment;
use super::shared::{DiskShared, RecordHeaders};

/// The state of the writer.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) shared: Arc<DiskShared>,
    /// The maximum total size of all files, without the space that is reserved for rewriting.
    bytes_max: u64,
    segment_bytes: u64,
    pub(super) open: Option<OpenSegment>,
    /// The number of the next segment.
    pub(super) next_segment: u32,
    /// The number of purges that were ever written to this disk, without second copies.
    pub(super) purges: u64,
    /// Segments of earlier runs that are not read yet, newest last.
    pub(super) unread_segments: Vec<u32>,
    /// Segments of earlier runs that were read.
    pub(super) segments_read: u32,
    /// The number of purges before the segment that recovery read last. An older segment that ends
    /// with fewer shows that a purge was lost. `None` until one segment could be read.
    pub(super) expected_purges: Option<u64>,
    /// Files were created or removed, and the directory is not synced yet.
    has_unsynced_names: bool,
    /// Stores that will still be skipped.
    pub(super) stores_to_skip: u32,
    /// Closing a segment failed, so the segment may be unsynced. A purge with a waiter checks this.
    pub(super) close_failed: bool,
    /// A purge was not written, or recovery could not remove a segment that it dropped. The next
    /// start could not detect that, so [`Log::ensure_purge_recorded`] removes the identity.
    pub(super) has_unwritten_purge: bool,
    /// A reused buffer for record headers.
    header_buffer: Vec<u8>,
}

/// The segment that is being written.
#[derive(Debug)]
pub(super) struct OpenSegment {
    segment: Arc<Segment>,
    /// Offset of the next record.
    end: u64,
    /// The items of its summary.
    items: Vec<u8>,
    is_dirty: bool,
}

impl Log {
    /// Creates a log. `unread` has the numbers of the existing segments, in order.
    pub(super) fn new(shared: Arc<DiskShared>, unread: Vec<u32>, bytes: u64) -> Self {
        let segment_bytes = segment_bytes(bytes);
        Self {
            shared,
            bytes_max: bytes - segment_bytes / REWRITTEN_SHARE,
            segment_bytes,
            open: None,
            next_segment: unread.last().map_or(1, |last| last + 1),
            purges: 0,
            unread_segments: unread,
            segments_read: 0,
            expected_purges: None,
            has_unsynced_names: false,
            stores_to_skip: 0,
            close_failed: false,
            has_unwritten_purge: false,
            header_buffer: Vec::new(),
        }
    }

    /// Returns a position after all records written so far. The next record begins there or later.
    pub(super) fn next_position(&self) -> RecordPosition {
        match &self.open {
            Some(open) => position_at(&open.segment, open.end),
            None => RecordPosition { segment: self.next_segment, unit: 0 },
        }
    }

    /// Writes a record, after making room for it.
    pub(super) fn write_record(&mut self, record: &NewRecord<'_>) -> IoResult<RecordPosition> {
        let bytes = record.fixed.record_bytes();
        self.make_room(bytes)?;
        match self.append(record) {
            // Another program may have filled the file system, and may use all space that is freed.
            // So only one segment is dropped, even if the record does not fit then.
            Err(Errno::NOSPC | Errno::DQUOT) => {
                self.shared.stats.update(|counters| counters.writes_without_space += 1);
                self.drop_oldest(false)?;
                self.append(record)
            }
            written => written,
        }
    }

    /// Drops the oldest segments until a record of `bytes` fits.
    fn make_room(&mut self, bytes: u64) -> IoResult<()> {
        let pending = |log: &Self| log.open.as_ref().map_or(0, |open| open.items.len());
        // Rewriting uses only a part of the space that is freed, so the loop ends.
        loop {
            let more = bytes
                + (pending(self) + SEGMENT_TAIL_BYTES + SEGMENT_HEADER_BYTES) as u64
                + 2 * UNIT;
            let segments = &self.shared.segments;
            if segments.bytes() + more <= self.bytes_max && segments.len() < SEGMENTS_MAX {
                return Ok(());
            }
            self.drop_oldest(true)?;
        }
    }

    /// Appends a record. It is complete once its end seal is written.
    fn append(&mut self, record: &NewRecord<'_>) -> IoResult<RecordPosition> {
        self.begin_segment()?;
        let open = self.open.as_mut().expect("just opened");
        let (offset, at) = (open.end, position_at(&open.segment, open.end));
        let sealer = self.shared.sealer;
        let (mut fixed, parts) = (record.fixed, &record.parts);
        fixed.purges = self.purges;
        let header = &mut self.header_buffer;
        header.clear();
        sealer.put_fixed(header, &fixed, at);
        header.extend_from_slice(parts.meta);
        put_variant(header, parts.variant);
        for part in [parts.vary, parts.response_header, parts.name, parts.tags, parts.sums] {
            header.extend_from_slice(part);
        }
        sealer.put_header_seal(header, at);
        debug_assert_eq!(header.len(), fixed.record_header_bytes());
        let end = sealer.end_seal(header, at);
        open.is_dirty = true;
        let written = write_parts(&open.segment, offset, header, record.body, &end);
        if let Err(error) = written {
            self.undo_append(offset);
            return Err(error);
        }
        put_item(&mut open.items, at.unit, &fixed, parts);
        open.end = (offset + fixed.record_bytes()).next_multiple_of(UNIT);
        open.segment.set_bytes(open.end);
        if fixed.kind == RecordKind::Response {
            open.segment.add_id(fixed.id);
        }
        self.purges += u64::from(fixed.is_purge());
        Ok(at)
    }

    /// Makes the next record begin at least `bytes` after `at`.
    pub(super) fn skip_past(&mut self, at: RecordPosition, bytes: u64) {
        if let Some(open) = &mut self.open
            && open.segment.number == at.segment
        {
            open.end = open.end.max((at.offset() + bytes).next_multiple_of(UNIT));
        }
    }

    /// Truncates an incompletely written record; if that fails, abandons the segment.
    fn undo_append(&mut self, offset: u64) {
        let Some(open) = &self.open else { return };
        if open.segment.file.truncate(offset).is_err() {
            self.open = None;
        }
    }

    /// Ensures that a segment is open and not full.
    fn begin_segment(&mut self) -> IoResult<()> {
        if self.open.as_ref().is_some_and(|open| open.end >= self.segment_bytes) {
            // Without a summary, the next start reads the whole segment, which only takes longer.
            self.close_failed |= self.close().is_err();
        }
        if self.open.is_some() {
            return Ok(());
        }
        let number = self.next_segment;
        let shared = &self.shared;
        // The number is never used again, even if creating the segment fails.
        self.next_segment += 1;
        let name = Segment::name(number);
        let file = shared.directory_io.create(&name)?;
        let header = SegmentHeader { segment: number, purges: self.purges };
        if let Err(error) = write_all(&*file, 0, &[&shared.sealer.header_bytes(&header)]) {
            let _ = shared.directory_io.remove(&name);
            return Err(error);
        }
        let segment = Arc::new(Segment::new(number, file, SEGMENT_HEADER_BYTES as u64));
        shared.segments.insert(segment.clone());
        let end = SEGMENT_HEADER_BYTES as u64;
        self.open = Some(OpenSegment { segment, end, items: Vec::new(), is_dirty: true });
        self.has_unsynced_names = true;
        Ok(())
    }

    /// Closes the open segment with a summary. Nothing more is written to it, even if this fails.
    pub(super) fn close(&mut self) -> IoResult<()> {
        let Some(open) = self.open.take() else { return Ok(()) };
        let file = &*open.segment.file;
        let written = self.write_summary(&open.segment, open.end, &open.items, self.purges);
        match written {
            Ok(()) => {
                open.segment.set_bytes(open.end + (open.items.len() + SEGMENT_TAIL_BYTES) as u64)
            }
            Err(_) => drop(file.truncate(open.end)),
        }
        written.and(file.sync()).and(self.sync_names())
    }

    /// Writes the summary of a segment behind its last record, which ends at `end`.
    pub(super) fn write_summary(
        &self,
        segment: &Segment,
        end: u64,
        items: &[u8],
        purges: u64,
    ) -> IoResult<()> {
        let (sum, bytes) = (crc32c::crc32c(items), items.len() as u64);
        let tail = SegmentTail { segment: segment.number, sum, bytes, purges };
        write_all(&*segment.file, end, &[items, &self.shared.sealer.tail_bytes(&tail)])
    }

    /// Syncs everything written so far, so that it survives a failure of the machine.
    pub(super) fn sync(&mut self) -> IoResult<()> {
        if let Some(open) = &mut self.open
            && open.is_dirty
        {
            open.segment.file.sync()?;
            open.is_dirty = false;
        }
        self.sync_names()
    }

    fn sync_names(&mut self) -> IoResult<()> {
        if self.has_unsynced_names {
            self.shared.directory_io.sync()?;
            self.has_unsynced_names = false;
        }
        Ok(())
    }

    /// Drops the oldest segment. With `rewrites`, responses that were fetched are written again.
    ///
    /// # Errors
    /// ENOSPC if there is no segment; the error of the kernel if it cannot be removed.
    pub(super) fn drop_oldest(&mut self, rewrites: bool) -> IoResult<()> {
        let shared = self.shared.clone();
        let oldest = shared.segments.oldest().ok_or(Errno::NOSPC)?;
        let is_open = |open: &OpenSegment| open.segment.number == oldest.number;
        if self.open.as_ref().is_some_and(is_open) {
            self.open = None;
        }
        // If the file cannot be removed, the segment must stay. Otherwise the next newer segment
        // could be dropped with purges of these records, and the next start would serve them.
        ensure_removed(&*shared.directory_io, &Segment::name(oldest.number))?;
        self.has_unsynced_names = true;
        shared.segments.remove(oldest.number);
        shared.stats.update(|counters| counters.dropped_segments += 1);
        let mut budget = if rewrites { self.segment_bytes / REWRITTEN_SHARE } else { 0 };
        for id in oldest.ids(0, usize::MAX) {
            let indexed = shared.index.shard(id.key).get(id);
            let Some(indexed) = indexed.filter(|indexed| indexed.at.segment == oldest.number)
            else {
                continue;
            };
            let bytes = indexed.body_bytes + 2 * u64::from(indexed.header_bytes);
            let is_worth_it = indexed.was_fetched && bytes <= REWRITTEN_BYTES_MAX.min(budget);
            if is_worth_it && self.rewrite(&oldest, &indexed).is_some() {
                budget -= bytes;
            } else {
                shared.index.shard(id.key).remove_at(id, indexed.at);
            }
        }
        let first = shared.segments.oldest().map_or(self.next_segment, |segment| segment.number);
        shared.rules.prune(first);
        self.sync_names()
    }

    /// Rewrites a response whose segment is dropped.
    fn rewrite(&mut self, from: &Segment, indexed: &IndexedRecord) -> Option<()> {
        let shared = self.shared.clone();
        let RecordHeaders { record: header, update, status } =
            shared.read_headers(from, indexed).ok()?;
        // The rewritten record would come after the purge rule, which then would not cover it.
        if status != RecordStatus::Valid {
            return None;
        }
        let mut record = header.to_new_record();
        if let Some(newer) = update.as_ref().map(RecordHeader::to_new_record) {
            (record.parts.meta, record.parts.response_header) =
                (newer.parts.meta, newer.parts.response_header);
            record.fixed.response_header_bytes = newer.fixed.response_header_bytes;
        }
        let mut body = vec![0; usize::try_from(indexed.body_bytes).ok()?];
        let offset = indexed.at.offset() + u64::from(indexed.header_bytes);
        if !read_exactly(&*from.file, offset, &mut body).ok()? || !header.matches_body(&body) {
            return None;
        }
        let at = self.append(&NewRecord { body: &[&body], ..record }).ok()?;
        let head = HeaderLocation { at, header_bytes: record.fixed.record_header_bytes() as u32 };
        if !shared.index.shard(indexed.id.key).relocate(indexed.id, indexed.at, head) {
            // The response was removed meanwhile, so the new record must not be found either.
            let purge = record_without_body(
                RecordKind::Purge(PurgeScope::Id),
                indexed.id,
                RecordParts::NONE,
            );
            self.has_unwritten_purge |= self.append(&purge).is_err();
        }
        shared.stats.update(|counters| counters.rewritten += 1);
        Some(())
    }

    /// Drops all segments except the open one.
    pub(super) fn drop_all(&mut self) -> IoResult<()> {
        let present = self.open.as_ref().map_or(self.next_segment, |open| open.segment.number);
        while self.shared.segments.oldest().is_some_and(|oldest| oldest.number < present) {
            self.drop_oldest(false)?;
        }
        Ok(())
    }

    /// Makes the writer skip the next [`PAUSE_STORES`] stores.
    pub(super) fn pause_stores(&mut self) {
        self.stores_to_skip = PAUSE_STORES;
    }
}

fn position_at(segment: &Segment, offset: u64) -> RecordPosition {
    // On a disk of up to 256 TiB, every offset in a segment fits.
    let unit = u32::try_from(offset / UNIT).unwrap_or(u32::MAX);
    RecordPosition { segment: segment.number, unit }
}

/// Writes a record, with its end seal last. So after a failure of the process, a record with an end
/// seal is complete. After a failure of the machine it may not be, but then its checksums do not
/// match. Recovery does not verify the checksums of a long body, so the body is synced before the
/// end seal is written.
fn write_parts(
    segment: &Segment,
    offset: u64,
    header: &[u8],
    body: &[&[u8]],
    end: &[u8],
) -> IoResult<()> {
    let file = &*segment.file;
    let mut parts = Vec::with_capacity(body.len() + 2);
    parts.push(header);
    parts.extend_from_slice(body);
    let body_bytes: usize = body.iter().map(|part| part.len()).sum();
    if body_bytes as u64 <= VERIFIED_BYTES_MAX {
        parts.push(end);
        return write_all(file, offset, &parts);
    }
    write_all(file, offset, &parts)?;
    file.sync()?;
    write_all(file, offset + (header.len() + body_bytes) as u64, &[end])
}

/// Creates a record without a body.
pub(super) fn record_without_body<'a>(
    kind: RecordKind,
    id: ResponseId,
    parts: RecordParts<'a>,
) -> NewRecord<'a> {
    let mut fixed = FixedHeader::new(kind, id);
    fixed.tags = (parts.tags.len() / 16) as u16;
    fixed.response_header_bytes = parts.response_header.len() as u32;
    fixed.name_bytes = parts.name.len() as u32;
    NewRecord { fixed, parts, body: &[] }
}

//! The writer's side of a disk: records are appended, segments end and begin, the oldest go.
//!
//! One thread at a time does this. What fails is undone as far as it can be, and told; nothing here
//! is repeated for ever.

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

/// The log of a disk: what is written next, and where.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) shared: Arc<DiskShared>,
    /// Bytes that all files may have together; a rewritten share of a segment is kept free.
    bytes_max: u64,
    segment_bytes: u64,
    pub(super) open: Option<OpenSegment>,
    /// The number of the next segment.
    pub(super) next_segment: u32,
    /// Purges that were ever written.
    pub(super) purges: u64,
    /// Segments of earlier runs that were not read yet, the newest last.
    pub(super) unread_segments: Vec<u32>,
    /// How many of them were.
    pub(super) segments_read: u32,
    /// Purges before the segment that was read last.
    pub(super) expected_purges: Option<u64>,
    /// Names were made or taken away that are not synced.
    has_unsynced_names: bool,
    /// Stores that are still skipped.
    pub(super) stores_to_skip: u32,
    /// A segment ended that may not be synced. Looked at by who wrote to it and has to know.
    pub(super) close_failed: bool,
    /// A purge was not written, and the next start does not know of it.
    pub(super) has_unwritten_purge: bool,
    /// Memory for fronts.
    header_buffer: Vec<u8>,
}

/// The segment that is written to.
#[derive(Debug)]
pub(super) struct OpenSegment {
    segment: Arc<Segment>,
    /// Where the next record begins.
    end: u64,
    /// What its summary will say.
    items: Vec<u8>,
    is_dirty: bool,
}

impl Log {
    /// `past`: the numbers of the segments that there are, in order.
    pub(super) fn new(shared: Arc<DiskShared>, past: Vec<u32>, bytes: u64) -> Self {
        let segment_bytes = segment_bytes(bytes);
        Self {
            shared,
            bytes_max: bytes - segment_bytes / REWRITTEN_SHARE,
            segment_bytes,
            open: None,
            next_segment: past.last().map_or(1, |last| last + 1),
            purges: 0,
            unread_segments: past,
            segments_read: 0,
            expected_purges: None,
            has_unsynced_names: false,
            stores_to_skip: 0,
            close_failed: false,
            has_unwritten_purge: false,
            header_buffer: Vec::new(),
        }
    }

    /// Where the next record will be, or anything that is written later.
    pub(super) fn next_position(&self) -> RecordPosition {
        match &self.open {
            Some(open) => position_at(&open.segment, open.end),
            None => RecordPosition { segment: self.next_segment, unit: 0 },
        }
    }

    /// Writes a record, when there is room for it or some can be made.
    pub(super) fn write_record(&mut self, draft: &NewRecord<'_>) -> IoResult<RecordPosition> {
        let bytes = draft.fixed.record_bytes();
        self.make_room(bytes)?;
        match self.append(draft) {
            // Others fill the file system too. What is oldest goes; but not everything.
            Err(Errno::NOSPC | Errno::DQUOT) => {
                self.shared.stats.update(|counters| counters.writes_without_space += 1);
                self.drop_oldest(false)?;
                self.append(draft)
            }
            written => written,
        }
    }

    /// Drops the oldest segments until so many bytes fit.
    fn make_room(&mut self, bytes: u64) -> IoResult<()> {
        let pending = |log: &Self| log.open.as_ref().map_or(0, |open| open.items.len());
        // Rewriting what was asked for takes a part of what is won, so this comes to an end.
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

    /// Appends a record: it counts when its end is written.
    fn append(&mut self, draft: &NewRecord<'_>) -> IoResult<RecordPosition> {
        self.begin_segment()?;
        let open = self.open.as_mut().expect("it was just begun");
        let (offset, at) = (open.end, position_at(&open.segment, open.end));
        let sealer = self.shared.sealer;
        let (mut fixed, parts) = (draft.fixed, &draft.parts);
        fixed.purges = self.purges;
        let front = &mut self.header_buffer;
        front.clear();
        sealer.put_fixed(front, &fixed, at);
        front.extend_from_slice(parts.meta);
        put_variant(front, parts.variant);
        for part in [parts.vary, parts.response_header, parts.name, parts.tags, parts.sums] {
            front.extend_from_slice(part);
        }
        sealer.put_header_seal(front, at);
        debug_assert_eq!(front.len(), fixed.record_header_bytes());
        let end = sealer.end_seal(front, at);
        open.is_dirty = true;
        let written = write_parts(&open.segment, offset, front, draft.body, &end);
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

    /// The next record begins so far on at least.
    pub(super) fn skip_past(&mut self, at: RecordPosition, bytes: u64) {
        if let Some(open) = &mut self.open
            && open.segment.number == at.segment
        {
            open.end = open.end.max((at.offset() + bytes).next_multiple_of(UNIT));
        }
    }

    /// A record could not be written as a whole: it is cut off, or else nothing is written behind.
    fn undo_append(&mut self, offset: u64) {
        let Some(open) = &self.open else { return };
        if open.segment.file.truncate(offset).is_err() {
            self.open = None;
        }
    }

    /// Makes sure that a segment is open that is not full.
    fn begin_segment(&mut self) -> IoResult<()> {
        if self.open.as_ref().is_some_and(|open| open.end >= self.segment_bytes) {
            // Without a summary it is read as a whole at the next start: no loss but of time.
            self.close_failed |= self.close().is_err();
        }
        if self.open.is_some() {
            return Ok(());
        }
        let number = self.next_segment;
        let shared = &self.shared;
        // The number is never used again, whatever comes of it.
        self.next_segment += 1;
        let name = Segment::name(number);
        let file = shared.volume.create(&name)?;
        let header = SegmentHeader { segment: number, purges: self.purges };
        if let Err(error) = write_all(&*file, 0, &[&shared.sealer.header_bytes(&header)]) {
            let _ = shared.volume.remove(&name);
            return Err(error);
        }
        let segment = Arc::new(Segment::new(number, file, SEGMENT_HEADER_BYTES as u64));
        shared.segments.insert(segment.clone());
        let end = SEGMENT_HEADER_BYTES as u64;
        self.open = Some(OpenSegment { segment, end, items: Vec::new(), is_dirty: true });
        self.has_unsynced_names = true;
        Ok(())
    }

    /// Ends the open segment with its summary. Nothing is written to it any more, whatever comes of
    /// that.
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

    /// What was written before survives the machine from now on.
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
            self.shared.volume.sync()?;
            self.has_unsynced_names = false;
        }
        Ok(())
    }

    /// Drops the oldest segment. What of it was asked for is written again, if `rewrites`.
    ///
    /// # Errors
    /// ENOSPC where there is nothing to drop.
    pub(super) fn drop_oldest(&mut self, rewrites: bool) -> IoResult<()> {
        let shared = self.shared.clone();
        let oldest = shared.segments.oldest().ok_or(Errno::NOSPC)?;
        let is_open = |open: &OpenSegment| open.segment.number == oldest.number;
        if self.open.as_ref().is_some_and(is_open) {
            self.open = None;
        }
        // The name goes first, for good: what is known of it goes with it, and purges of what was
        // in it may go after it.
        ensure_removed(&*shared.volume, &Segment::name(oldest.number))?;
        self.has_unsynced_names = true;
        shared.segments.remove(oldest.number);
        shared.stats.update(|counters| counters.dropped_segments += 1);
        let mut budget = if rewrites { self.segment_bytes / REWRITTEN_SHARE } else { 0 };
        for id in oldest.ids(0, usize::MAX) {
            let known = shared.index.shard(id.key).get(id);
            let Some(known) = known.filter(|known| known.at.segment == oldest.number) else {
                continue;
            };
            let bytes = known.body_bytes + 2 * u64::from(known.header_bytes);
            let is_worth_it = known.is_asked && bytes <= REWRITTEN_BYTES_MAX.min(budget);
            if is_worth_it && self.rewrite(&oldest, &known).is_some() {
                budget -= bytes;
            } else {
                shared.index.shard(id.key).remove_at(id, known.at);
            }
        }
        let first = shared.segments.oldest().map_or(self.next_segment, |segment| segment.number);
        shared.rules.prune(first);
        self.sync_names()
    }

    /// Writes an answer again whose segment goes.
    fn rewrite(&mut self, from: &Segment, known: &IndexedRecord) -> Option<()> {
        let shared = self.shared.clone();
        let RecordHeaders { record: front, update, status } =
            shared.read_headers(from, known).ok()?;
        // Written again it would be behind the rule that is about it.
        if status != RecordStatus::Valid {
            return None;
        }
        let mut draft = front.to_new_record();
        if let Some(newer) = update.as_ref().map(RecordHeader::to_new_record) {
            (draft.parts.meta, draft.parts.response_header) =
                (newer.parts.meta, newer.parts.response_header);
            draft.fixed.response_header_bytes = newer.fixed.response_header_bytes;
        }
        let mut body = vec![0; usize::try_from(known.body_bytes).ok()?];
        let offset = known.at.offset() + u64::from(known.header_bytes);
        if !read_exactly(&*from.file, offset, &mut body).ok()? || !front.matches_body(&body) {
            return None;
        }
        let at = self.append(&NewRecord { body: &[&body], ..draft }).ok()?;
        let head = HeaderLocation { at, header_bytes: draft.fixed.record_header_bytes() as u32 };
        if !shared.index.shard(known.id.key).relocate(known.id, known.at, head) {
            // Somebody found it gone meanwhile. So it has to be.
            let gone =
                record_without_body(RecordKind::Purge(PurgeScope::Id), known.id, RecordParts::NONE);
            self.has_unwritten_purge |= self.append(&gone).is_err();
        }
        shared.stats.update(|counters| counters.rewritten += 1);
        Some(())
    }

    /// Drops whatever was written before now.
    pub(super) fn drop_all(&mut self) -> IoResult<()> {
        let present = self.open.as_ref().map_or(self.next_segment, |open| open.segment.number);
        while self.shared.segments.oldest().is_some_and(|oldest| oldest.number < present) {
            self.drop_oldest(false)?;
        }
        Ok(())
    }

    /// Nothing is stored for a while.
    pub(super) fn pause_stores(&mut self) {
        self.stores_to_skip = PAUSE_STORES;
    }
}

fn position_at(segment: &Segment, offset: u64) -> RecordPosition {
    // Segments that are longer than this have one record that began before.
    let unit = u32::try_from(offset / UNIT).unwrap_or(u32::MAX);
    RecordPosition { segment: segment.number, unit }
}

/// Writes a record so that its end is there only if all of it is: by the order of writing as long
/// as the machine runs, by the checksums if it stops, and by a sync where those are not looked at.
fn write_parts(
    segment: &Segment,
    offset: u64,
    front: &[u8],
    body: &[&[u8]],
    end: &[u8],
) -> IoResult<()> {
    let file = &*segment.file;
    let mut parts = Vec::with_capacity(body.len() + 2);
    parts.push(front);
    parts.extend_from_slice(body);
    let body_bytes: usize = body.iter().map(|part| part.len()).sum();
    if body_bytes as u64 <= VERIFIED_BYTES_MAX {
        parts.push(end);
        return write_all(file, offset, &parts);
    }
    write_all(file, offset, &parts)?;
    file.sync()?;
    write_all(file, offset + (front.len() + body_bytes) as u64, &[end])
}

/// A record without a body.
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

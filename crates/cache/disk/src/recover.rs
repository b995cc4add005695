//! Recovery of the records of earlier runs, newest segment first. So every purge or replacement of
//! a response is known before the response itself, and each response can be served as soon as it is
//! found.
//!
//! A closed segment has a summary. A segment without a valid one is read from its beginning; where
//! there is no record, the next one is searched for. Each record has the number of purges written
//! before it, so a lost purge is noticed. The responses that it covered are unknown, so
//! everything older is dropped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use millrace_http_cache::TagHash;

use super::directory_io::{FileIo, IoResult, ensure_removed, read_exactly};
use super::format::{
    FixedHeader, PurgeScope, RecordKind, RecordParts, RecordPosition, ResponseId, SEAL_BYTES,
    SEALED_FIXED_BYTES, SEGMENT_HEADER_BYTES, SEGMENT_TAIL_BYTES, SummaryItem, put_item, take_item,
};
use super::limits::{CHUNK_BYTES, UNIT, VERIFIED_BYTES_MAX, WINDOW_BYTES};
use super::log::Log;
use super::purge_rules::PurgeTarget;
use super::record::RecordHeader;
use super::segments::Segment;

/// The number of newest segments that may be unsynced.
const SEGMENTS_RESYNCED: u32 = 2;

/// The contents of a segment.
#[derive(Debug, Default)]
struct SegmentContents {
    /// Items as in a summary.
    items: Vec<u8>,
    /// The number of purges written before the segment.
    purges_before: u64,
    /// The number of purges written before the end of the segment.
    purges: u64,
    /// A purge was lost before this unit.
    lost_before: Option<u32>,
}

impl SegmentContents {
    /// Sets the number of purges before the segment, from its header or else from its first record.
    fn set_purges_before(&mut self, purges_before: Option<u64>) {
        let first = || take_item(&mut &self.items[..]).map(|item| item.fixed.purges);
        self.purges_before = purges_before.or_else(first).unwrap_or(self.purges);
    }
}

impl Log {
    /// Reads one segment of an earlier run. Returns `false` if there is none left.
    pub(super) fn recover_next_segment(&mut self) -> bool {
        let Some(number) = self.unread_segments.pop() else { return false };
        self.segments_read += 1;
        let shared = self.shared.clone();
        if let Some(segment) = shared.segments.get(number) {
            self.recover_segment(&segment);
        }
        if self.unread_segments.is_empty() {
            shared.index.end_recovery();
            shared.is_recovering.store(false, Ordering::Release);
        }
        true
    }

    fn recover_segment(&mut self, segment: &Arc<Segment>) {
        match self.read_contents(segment) {
            Ok(Some(found)) => self.recover_contents(segment, &found),
            // Nothing in the segment is valid, so its purges are lost too. If there is a newer
            // segment, the next older one reveals the loss: it has fewer purges than expected. The
            // newest segment has no such check and needs none: a confirmed purge has two copies a
            // page apart, so one bad place leaves at least one of them valid.
            Ok(None) => self.drop_segments(|number| number == segment.number),
            Err(_) => {
                self.shared.stats.update(|counters| counters.read_errors += 1);
                match self.expected_purges {
                    Some(_) => self.drop_segments(|number| number == segment.number),
                    // The records of the newest segment may be intact, but cannot be read now. No
                    // other segment shows whether there are purges among them.
                    None => self.drop_after_lost_purge(segment.number),
                }
            }
        }
    }

    /// Adds the contents of a segment to the index. Drops segments if a purge is missing or the
    /// index becomes full.
    fn recover_contents(&mut self, segment: &Arc<Segment>, found: &SegmentContents) {
        match self.expected_purges.replace(found.purges_before) {
            // Purges at the end of this segment, or in a dropped segment after it, are missing.
            Some(expected) if found.purges < expected => {
                return self.drop_after_lost_purge(segment.number);
            }
            Some(_) => {}
            None => self.purges = found.purges,
        }
        self.add_to_index(segment, found);
        if found.lost_before.is_some() {
            self.drop_after_lost_purge(segment.number - 1);
        } else if self.shared.index.is_full() {
            // A response that is not in the index could not be purged.
            self.drop_with_older(segment.number);
        }
    }

    /// Counts a lost purge, and drops segment `last` and all older ones.
    fn drop_after_lost_purge(&mut self, last: u32) {
        self.shared.stats.update(|counters| counters.lost_purges += 1);
        self.drop_with_older(last);
    }

    fn drop_with_older(&mut self, last: u32) {
        self.drop_segments(|number| number <= last);
        self.unread_segments.clear();
    }

    fn drop_segments(&mut self, which: impl Fn(u32) -> bool) {
        let shared = self.shared.clone();
        for number in shared.segments.numbers().into_iter().filter(|number| which(*number)) {
            shared.segments.remove(number);
            // After a failure, the next start has to discard everything, so no further file
            // is removed.
            if self.has_unwritten_purge {
                continue;
            }
            // The oldest file is removed first, and each removal is synced, so that a crash in
            // between does not leave a response without the purge that covers it. If the removal
            // fails, the file stays, but later purges do not apply to it: it is no longer tracked.
            let removed = ensure_removed(&*shared.directory_io, &Segment::name(number));
            let removed = removed.and_then(|()| shared.directory_io.sync());
            self.has_unwritten_purge = removed.is_err();
        }
        self.ensure_purge_recorded();
    }

    /// Reads the contents of a segment; `None` if there are none.
    fn read_contents(&mut self, segment: &Segment) -> IoResult<Option<SegmentContents>> {
        let mut header = [0; SEGMENT_HEADER_BYTES];
        let is_whole = read_exactly(&*segment.file, 0, &mut header)?;
        let header = is_whole.then(|| self.shared.sealer.read_header(&header)).flatten();
        let header = header.filter(|header| header.segment == segment.number);
        let purges_before = header.map(|header| header.purges);
        if let Some(mut found) = self.read_summary(segment) {
            // The two newest segments may be unsynced: the previous process may have been killed
            // before it synced the newest one, and may have failed to sync the other. A power
            // failure could then lose their records and keep records that are written from now on.
            if self.segments_read <= SEGMENTS_RESYNCED {
                self.count_error(&segment.file.sync());
            }
            found.set_purges_before(purges_before);
            return Ok(Some(found));
        }
        let (mut found, end) = self.scan(segment, purges_before)?;
        if purges_before.is_none() && found.items.is_empty() {
            return Ok(None);
        }
        found.set_purges_before(purges_before);
        self.summarize(segment, &found, end);
        Ok(Some(found))
    }

    fn read_summary(&self, segment: &Segment) -> Option<SegmentContents> {
        let file = &*segment.file;
        let bytes = segment.bytes();
        let at = bytes.checked_sub(SEGMENT_TAIL_BYTES as u64)?;
        let mut tail = [0; SEGMENT_TAIL_BYTES];
        read_exactly(file, at, &mut tail).ok().filter(|is_whole| *is_whole)?;
        let tail = self.shared.sealer.read_tail(&tail)?;
        let start = at.checked_sub(tail.bytes)?;
        let mut items = vec![0; tail.bytes as usize];
        read_exactly(file, start, &mut items).ok().filter(|is_whole| *is_whole)?;
        let is_sound = tail.segment == segment.number && crc32c::crc32c(&items) == tail.sum;
        is_sound.then_some(SegmentContents {
            items,
            purges: tail.purges,
            ..SegmentContents::default()
        })
    }

    /// Reads a segment without a summary. Also returns the end of its last record.
    fn scan(&self, segment: &Segment, purges: Option<u64>) -> IoResult<(SegmentContents, u64)> {
        let mut window = Window::new(&*segment.file, segment.bytes());
        let mut found = SegmentContents::default();
        let mut purges = purges;
        let (mut offset, mut end) = (SEGMENT_HEADER_BYTES as u64, SEGMENT_HEADER_BYTES as u64);
        while offset < window.bytes {
            let Ok(unit) = u32::try_from(offset / UNIT) else { break };
            let at = RecordPosition { segment: segment.number, unit };
            let Some(record) = self.read_record(&mut window, at)? else {
                offset += UNIT;
                continue;
            };
            let before = purges.unwrap_or(record.purges);
            if record.purges > before {
                found.lost_before = Some(unit);
            }
            purges = Some(before.max(record.purges + u64::from(record.is_purge())));
            self.put_item(&mut found.items, &mut window, at, record)?;
            offset = (offset + record.record_bytes()).next_multiple_of(UNIT);
            end = offset.min(window.bytes);
        }
        found.purges = purges.unwrap_or(0);
        Ok((found, end))
    }

    /// Returns the record that begins at a position, if there is one.
    fn read_record(
        &self,
        window: &mut Window<'_>,
        at: RecordPosition,
    ) -> IoResult<Option<FixedHeader>> {
        let sealer = &self.shared.sealer;
        let Some(fixed) = window.get(at.offset(), SEALED_FIXED_BYTES)? else { return Ok(None) };
        let Some(fixed) = sealer.read_fixed(fixed, at) else { return Ok(None) };
        let Some(header) = window.get(at.offset(), fixed.record_header_bytes())? else {
            return Ok(None);
        };
        Ok(sealer.is_record_header(header, at).then_some(fixed))
    }

    /// Appends the summary item of a record. An incomplete response becomes a purge of its id,
    /// because it may have replaced an older one. A purge or an update counts even without its end
    /// seal, because its contents are complete.
    fn put_item(
        &self,
        items: &mut Vec<u8>,
        window: &mut Window<'_>,
        at: RecordPosition,
        fixed: FixedHeader,
    ) -> IoResult<()> {
        let bytes = window.get(at.offset(), fixed.record_header_bytes())?;
        let header = RecordHeader { fixed, bytes: bytes.map(<[u8]>::to_vec).unwrap_or_default() };
        if header.has_kind(RecordKind::Response) && !self.verify_record(window, at, &header)? {
            let purge = FixedHeader {
                purges: fixed.purges,
                ..FixedHeader::new(RecordKind::Purge(PurgeScope::Id), fixed.id)
            };
            put_item(items, at.unit, &purge, &RecordParts::NONE);
        } else {
            put_item(items, at.unit, &fixed, &header.parts());
        }
        Ok(())
    }

    fn verify_record(
        &self,
        window: &mut Window<'_>,
        at: RecordPosition,
        header: &RecordHeader,
    ) -> IoResult<bool> {
        let body = at.offset() + header.bytes.len() as u64;
        let body_bytes = header.fixed.body_bytes;
        let end = self.shared.sealer.end_seal(&header.bytes, at);
        let written = window.get(body + body_bytes, SEAL_BYTES)?;
        if written != Some(&end[..]) {
            return Ok(false);
        }
        if body_bytes > VERIFIED_BYTES_MAX {
            return Ok(true);
        }
        for chunk in 0..header.fixed.chunks() {
            let start = (chunk * CHUNK_BYTES) as u64;
            let bytes = (body_bytes - start).min(CHUNK_BYTES as u64) as usize;
            let sum = window.get(body + start, bytes)?.map(crc32c::crc32c);
            if sum.is_none() || sum != header.chunk_sum(chunk) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Writes the missing summary of a segment. If that fails, the next start reads the segment
    /// again.
    fn summarize(&self, segment: &Segment, found: &SegmentContents, end: u64) {
        // The loss has to be noticed again if this run ends before everything older is dropped.
        if found.lost_before.is_some() {
            return;
        }
        let file = &*segment.file;
        let written = file
            .truncate(end)
            .and_then(|()| self.write_summary(segment, end, &found.items, found.purges))
            .and_then(|()| file.sync());
        let bytes = if written.is_ok() { found.items.len() + SEGMENT_TAIL_BYTES } else { 0 };
        segment.set_bytes(end + bytes as u64);
    }

    /// Adds the contents to the index, last record first.
    fn add_to_index(&self, segment: &Segment, found: &SegmentContents) {
        let mut items = Vec::new();
        let mut rest = &found.items[..];
        while let Some(item) = take_item(&mut rest) {
            items.push(item);
        }
        let mut ids: Vec<ResponseId> = Vec::new();
        let mut spaces = Vec::new();
        let is_kept =
            |item: &&SummaryItem<'_>| found.lost_before.is_none_or(|lost| item.unit >= lost);
        for item in items.iter().rev().filter(is_kept) {
            if let Some((target, is_soft)) = purge_rule(item) {
                let at = RecordPosition { segment: segment.number, unit: item.unit };
                self.shared.rules.add_recovered(&target, is_soft, at);
            } else if let Some(id) = self.shared.index.add_recovered(segment.number, item) {
                spaces.push(item.fixed.space);
                ids.push(id);
            }
        }
        let mut recovered = self.shared.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        for space in spaces {
            *recovered.entry(space).or_default() += 1;
        }
        drop(recovered);
        ids.reverse();
        segment.set_ids(ids);
    }
}

/// Returns the rule of an item, unless the index applies it.
fn purge_rule(item: &SummaryItem<'_>) -> Option<(PurgeTarget, bool)> {
    let (fixed, is_soft) = (&item.fixed, item.fixed.is_soft);
    let RecordKind::Purge(purged) = fixed.kind else { return None };
    let target = match purged {
        PurgeScope::Id if is_soft => PurgeTarget::Response(fixed.id),
        PurgeScope::Key if is_soft => PurgeTarget::Key(fixed.id.key),
        PurgeScope::Id | PurgeScope::Key => return None,
        PurgeScope::Prefix => PurgeTarget::Prefix(item.name.into()),
        PurgeScope::Tag => {
            let tag = item.tags.first_chunk()?;
            PurgeTarget::Tag(TagHash(u128::from_le_bytes(*tag)))
        }
        PurgeScope::All => PurgeTarget::All,
    };
    Some((target, is_soft))
}

/// A buffer over a file that is read from its beginning to its end.
struct Window<'a> {
    file: &'a dyn FileIo,
    bytes: u64,
    start: u64,
    buffer: Vec<u8>,
}

impl<'a> Window<'a> {
    fn new(file: &'a dyn FileIo, bytes: u64) -> Self {
        Self { file, bytes, start: 0, buffer: Vec::new() }
    }

    /// Returns `count` bytes at an offset; `None` if the file ends before.
    fn get(&mut self, at: u64, count: usize) -> IoResult<Option<&[u8]>> {
        if at.checked_add(count as u64).is_none_or(|end| end > self.bytes) {
            return Ok(None);
        }
        let is_there = |window: &Self| {
            let end = window.start + window.buffer.len() as u64;
            window.start <= at && at + count as u64 <= end
        };
        if !is_there(self) {
            let stretch = (self.bytes - at).min(count.max(WINDOW_BYTES) as u64);
            self.buffer.resize(stretch as usize, 0);
            self.start = at;
            if !read_exactly(self.file, at, &mut self.buffer)? {
                self.buffer.clear();
                return Ok(None);
            }
        }
        let from = (at - self.start) as usize;
        Ok(Some(&self.buffer[from..from + count]))
    }
}

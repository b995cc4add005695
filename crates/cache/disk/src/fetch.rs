//! Fetching a response: first its record header, then its body. No byte is delivered before it was
//! verified by a checksum.

use std::ops::Range;

use millrace_body::{Filler, WaiterId};

use super::fetch_task::{FetchTask, OpenRecord};
use super::format::{RecordPosition, ResponseId};
use super::limits::{CHUNK_BYTES, MEMORY_TRIES_MAX, MEMORY_TRIES_WITH_READER_MAX, TURN_BYTES};
use super::message::{DiskReply, FetchError};
use super::purge_rules::RecordStatus;
use super::shared::{DiskShared, RecordHeaders};

/// The result of one step.
enum FetchStep {
    Progress,
    Complete,
    NoMemory,
}

/// Reads the record header of a response and checks the rules.
pub(super) fn open_record(
    shared: &DiskShared,
    id: ResponseId,
    at: RecordPosition,
) -> Result<OpenRecord, FetchError> {
    let now = shared.index.shard(id.key).get(id).filter(|now| now.at == at);
    let indexed = now.ok_or(FetchError::Gone)?;
    let segment = shared.segments.get(at.segment).ok_or(FetchError::Gone)?;
    let RecordHeaders { record, update, status } = shared.read_headers(&segment, &indexed)?;
    if status == RecordStatus::Purged {
        return Err(FetchError::Gone);
    }
    let header = record.stored_header(update.as_ref(), status == RecordStatus::Stale);
    let body_at = at.offset() + u64::from(indexed.header_bytes);
    Ok(OpenRecord { segment, record, body_at, header })
}

impl FetchTask {
    fn filler(&mut self) -> &mut Filler {
        self.filler.as_mut().expect("the filler is present until the fetch ends")
    }

    /// Continues a fetch for one turn, and queues it again if it is not complete. Returns whether
    /// it lacks memory, so that the caller should pause.
    pub(super) fn run_turn(mut self, shared: &DiskShared) -> bool {
        if self.opened.is_none() {
            match open_record(shared, self.id, self.at) {
                Ok(opened) => self.opened = Some(opened),
                Err(error) => return self.fail(shared, error),
            }
        }
        let mut budget = TURN_BYTES;
        loop {
            // The requester received the header, and nothing holds the body any more: the response
            // was rejected or evicted, and no client reads it.
            if self.has_reported && !self.filler().is_shared() {
                return false;
            }
            let delivered = self.delivered;
            match self.deliver_chunk(shared) {
                Ok(FetchStep::Progress) => self.tries = 0,
                Ok(FetchStep::Complete) => return self.finish_body(shared),
                Ok(FetchStep::NoMemory) if self.tries < self.tries_max() => {
                    self.tries += 1;
                    shared.queue.push_fetch(self);
                    return true;
                }
                Ok(FetchStep::NoMemory) => return self.fail(shared, FetchError::NoMemory),
                Err(error) => return self.fail(shared, error),
            }
            if self.delivered > 0 {
                self.report_fetched(shared);
            }
            budget = budget.saturating_sub((self.delivered - delivered) as usize);
            if budget == 0 {
                shared.queue.push_fetch(self);
                return false;
            }
        }
    }

    /// Returns the maximum number of attempts to allocate memory. It is far higher while a client
    /// reads the body, because a failure would cut it.
    fn tries_max(&mut self) -> u32 {
        if self.filler().reader_count() > 0 {
            MEMORY_TRIES_WITH_READER_MAX
        } else {
            MEMORY_TRIES_MAX
        }
    }

    /// Delivers the next bytes, at most one chunk.
    fn deliver_chunk(&mut self, shared: &DiskShared) -> Result<FetchStep, FetchError> {
        let opened = self.opened.as_ref().expect("opened at the start of a turn");
        let filler = self.filler.as_mut().expect("present until the fetch ends");
        let body_bytes = opened.record.fixed.body_bytes;
        if self.delivered == body_bytes {
            return Ok(FetchStep::Complete);
        }
        if self.unplaced.is_empty() {
            // All bytes that were read have been delivered, so a chunk begins here.
            let chunk = self.delivered..body_bytes.min(self.delivered + CHUNK_BYTES as u64);
            if let Some(count) = read_directly(shared, opened, filler, chunk.clone())? {
                self.delivered += count;
                return Ok(FetchStep::Progress);
            }
            self.unplaced.resize((chunk.end - chunk.start) as usize, 0);
            read_chunk(shared, opened, chunk.start, &mut self.unplaced)?;
        }
        let count = match filler.unfilled() {
            Ok(unfilled) => {
                let count = unfilled.len().min(self.unplaced.len());
                unfilled[..count].copy_from_slice(&self.unplaced[..count]);
                count
            }
            Err(error) => {
                // After the header was delivered, wait until readers release memory, even if
                // nothing is left to evict.
                return match shared.callbacks.make_room(error) || self.has_reported {
                    true => Ok(FetchStep::NoMemory),
                    false => Err(FetchError::NoMemory),
                };
            }
        };
        self.unplaced.drain(..count);
        wake(shared, filler.advance(count));
        self.delivered += count as u64;
        Ok(FetchStep::Progress)
    }

    /// Replies with the header, once.
    fn report_fetched(&mut self, shared: &DiskShared) {
        if let Some(opened) = &mut self.opened
            && !self.has_reported
        {
            self.has_reported = true;
            shared.stats.update(|counters| counters.fetched += 1);
            shared.index.shard(self.id.key).mark_fetched(self.id);
            let header = opened.header.clone();
            shared.callbacks.handle_reply(self.requester, DiskReply::Fetched(header));
        }
    }

    fn finish_body(mut self, shared: &DiskShared) -> bool {
        if let Some(filler) = self.filler.take() {
            wake(shared, filler.finish());
        }
        self.report_fetched(shared);
        false
    }

    /// Ends the fetch with an error. If the header was delivered already, the body is cut.
    fn fail(mut self, shared: &DiskShared, error: FetchError) -> bool {
        let (id, at) = (self.id, self.at);
        match error {
            FetchError::Damaged => shared.discard_damaged(id, at),
            FetchError::Gone => {
                shared.stats.update(|counters| counters.fetches_gone += 1);
                // A purge rule covers the response, or the segment of its record or of its update
                // was dropped, so it leaves the index.
                if self.opened.is_none() {
                    shared.index.shard(id.key).remove_at(id, at);
                }
            }
            FetchError::NoMemory => {}
        }
        if let Some(filler) = self.filler.take() {
            wake(shared, filler.cut());
        }
        self.report_end(shared, error);
        false
    }

    /// Ends the fetch because the disk is being closed. If the header was delivered already, the
    /// body is cut; otherwise the origin is used.
    pub(super) fn abandon(mut self, shared: &DiskShared) {
        if let Some(filler) = self.filler.take() {
            wake(shared, filler.cut());
        }
        self.report_end(shared, FetchError::Gone);
    }

    fn report_end(&self, shared: &DiskShared, error: FetchError) {
        let reply = match self.has_reported {
            true => DiskReply::Cut(self.id),
            false => DiskReply::NotFetched(error),
        };
        shared.callbacks.handle_reply(self.requester, reply);
    }
}

/// Reads a chunk into the memory of the body, and returns its length; `None` if there is no
/// contiguous memory for it.
fn read_directly(
    shared: &DiskShared,
    opened: &OpenRecord,
    filler: &mut Filler,
    chunk: Range<u64>,
) -> Result<Option<u64>, FetchError> {
    let count = (chunk.end - chunk.start) as usize;
    let Ok(unfilled) = filler.unfilled() else { return Ok(None) };
    let Some(unfilled) = unfilled.get_mut(..count) else { return Ok(None) };
    read_chunk(shared, opened, chunk.start, unfilled)?;
    wake(shared, filler.advance(count));
    Ok(Some(count as u64))
}

/// Reads and verifies the chunk that begins at an offset of the body.
fn read_chunk(
    shared: &DiskShared,
    opened: &OpenRecord,
    start: u64,
    bytes: &mut [u8],
) -> Result<(), FetchError> {
    let chunk = (start / CHUNK_BYTES as u64) as usize;
    let at = opened.body_at + start;
    let is_sound = |bytes: &[u8]| opened.record.chunk_sum(chunk) == Some(crc32c::crc32c(bytes));
    shared.read_checked(&opened.segment, at, bytes, |bytes| is_sound(bytes).then_some(()))
}

fn wake(shared: &DiskShared, waiters: Vec<WaiterId>) {
    waiters.into_iter().for_each(|waiter| shared.callbacks.wake(waiter));
}

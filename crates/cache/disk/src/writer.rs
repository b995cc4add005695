//! The execution of the jobs of the writer.

use std::sync::PoisonError;
use std::time::Duration;

use millrace_http_cache::META_BYTES;
use millrace_sys::Errno;

use super::directory_io::{IoResult, ensure_removed};
use super::format::{PurgeScope, RecordKind, RecordParts, RecordPosition, ResponseId};
use super::identity::IDENTITY;
use super::index::{HeaderLocation, IndexedRecord};
use super::limits::COPY_BYTES;
use super::log::{Log, record_without_body};
use super::message::{Cursor, DiskReply, StoredHeader, StoredResponse};
use super::purge_rules::PurgeTarget;
use super::queue::{NextJob, PurgeJob, WriteJob};
use super::record::NewRecord;

/// The maximum number of purges that are written and synced together.
const PURGE_BATCH_MAX: usize = 64;
/// The number of headers in one step of a listing.
const LISTED_MAX: usize = 100;

impl Log {
    /// Reads a segment of an earlier run, if one is unread, and executes a job, if one is queued.
    /// If there is neither, waits up to `wait` for a job. Returns `false` if there was nothing to
    /// do.
    pub(super) fn run_once(&mut self, wait: Option<Duration>) -> bool {
        // Before the first job, the number of purges must be known. The newest segment that can be
        // read has it.
        let mut recovers = false;
        while self.expected_purges.is_none() && self.recover_next_segment() {
            recovers = true;
        }
        // When the disk is being closed, the other segments are left to the next start.
        recovers |= !self.shared.queue.is_closing() && self.recover_next_segment();
        let wait = if recovers { None } else { wait };
        self.ensure_purge_recorded();
        match self.shared.queue.pop_write(wait) {
            NextJob::Job(job) => {
                self.execute(job);
                true
            }
            NextJob::Empty | NextJob::Closed => recovers,
        }
    }

    /// Returns whether the queue is closed and all its jobs are done.
    pub(super) fn is_drained(&self) -> bool {
        self.shared.queue.is_drained()
    }

    /// Syncs written data after a time without jobs.
    pub(super) fn sync_when_idle(&mut self) {
        let synced = self.sync();
        self.count_error(&synced);
    }

    fn execute(&mut self, job: WriteJob) {
        match job {
            WriteJob::Store { response, number, replaces } => {
                self.execute_store(&response, number, replaces)
            }
            WriteJob::Update { id, meta, head } => self.execute_update(id, &meta, &head),
            WriteJob::Purge(purge) => self.execute_purges(purge),
            WriteJob::List { cursor, disks, requester } => {
                let (headers, cursor) = self.execute_list(cursor, disks);
                self.shared.callbacks.handle_reply(requester, DiskReply::Listed(headers, cursor));
            }
        }
    }

    pub(super) fn count_error<T>(&self, result: &IoResult<T>) {
        if result.is_err() {
            self.shared.stats.update(|counters| counters.write_errors += 1);
        }
    }

    fn execute_store(&mut self, response: &StoredResponse, number: u64, replaces: bool) {
        let shared = self.shared.clone();
        let id = response.id;
        let at = if self.stores_to_skip > 0 {
            self.stores_to_skip -= 1;
            shared.stats.update(|counters| counters.stores_skipped += 1);
            None
        } else {
            let written = self.write_response(response);
            self.count_error(&written);
            if written.is_err() {
                self.pause_stores();
            }
            written.ok()
        };
        let Some((at, header_bytes)) = at else {
            shared.index.shard(id.key).remove_queued(id, number);
            if replaces {
                // The response that was to be replaced must not come back. If the purge is not
                // written either, the next start discards everything stored so far.
                let target = PurgeTarget::Response(id);
                self.execute_purges(PurgeJob { target, is_soft: false, waiter: None });
            }
            return;
        };
        let indexed = IndexedRecord {
            id,
            at,
            header_bytes,
            body_bytes: response.body.len(),
            update: None,
            was_fetched: false,
            variant: response.variant,
            vary: response.vary.as_ref().and_then(|vary| shared.index.intern_vary(vary)),
        };
        shared.index.shard(id.key).commit(number, indexed);
        shared.stats.update(|counters| counters.stored += 1);
    }

    fn write_response(&mut self, response: &StoredResponse) -> IoResult<(RecordPosition, u32)> {
        let fixed = response.fixed_header().expect("queued responses were checked");
        let body: Vec<&[u8]> = response.body.slices().map(|slice| &**slice).collect();
        let (sums, tags) = (response.chunk_sums(), tag_bytes(response));
        let parts = RecordParts {
            meta: &response.meta,
            variant: response.variant,
            vary: response.vary.as_deref().unwrap_or_default(),
            response_header: &response.header,
            name: &response.name,
            tags: &tags,
            sums: &sums,
        };
        let at = self.write_record(&NewRecord { fixed, parts, body: &body })?;
        Ok((at, fixed.record_header_bytes() as u32))
    }

    fn execute_update(&mut self, id: ResponseId, meta: &[u8; META_BYTES], head: &[u8]) {
        let shared = self.shared.clone();
        let Some(indexed) = shared.index.shard(id.key).get(id) else { return };
        let mut record = record_without_body(
            RecordKind::Update,
            id,
            RecordParts { meta, response_header: head, ..RecordParts::NONE },
        );
        record.fixed.target = indexed.at;
        let written = match record.fixed.is_within_limits() {
            true => self.write_record(&record),
            false => Err(Errno::FBIG),
        };
        self.count_error(&written);
        if let Ok(at) = written {
            let head =
                HeaderLocation { at, header_bytes: record.fixed.record_header_bytes() as u32 };
            return shared.index.shard(id.key).update(id, indexed.at, head);
        }
        // The old header may allow a longer use than the new one, so the response is removed.
        if shared.index.shard(id.key).remove_at(id, indexed.at) {
            let target = PurgeTarget::Response(id);
            self.execute_purges(PurgeJob { target, is_soft: false, waiter: None });
        }
    }

    /// Writes a purge, and those that follow it in the queue.
    fn execute_purges(&mut self, first: PurgeJob) {
        let mut batch = vec![first];
        while batch.len() < PURGE_BATCH_MAX
            && let Some(next) = self.shared.queue.pop_purge()
        {
            batch.push(next);
        }
        let written = self.write_purges(&batch);
        self.count_error(&written);
        self.has_unwritten_purge |= written.is_err();
        let is_durable = self.ensure_purge_recorded();
        for job in &batch {
            if job.is_rule() {
                let at = self.next_position();
                self.shared.rules.commit(&job.target, job.is_soft, at);
            }
            if let Some(requester) = &job.waiter {
                let mut rest = requester.remaining.lock().unwrap_or_else(PoisonError::into_inner);
                *rest = (rest.0 - 1, rest.1 && is_durable);
                if let (0, is_durable) = *rest {
                    drop(rest);
                    let reply = DiskReply::Purged { is_durable };
                    self.shared.callbacks.handle_reply(requester.requester, reply);
                }
            }
        }
        if batch.iter().any(PurgeJob::covers_all) {
            let dropped = self.drop_all();
            self.count_error(&dropped);
        }
    }

    /// Writes purges. If a requester waits, each one is written twice, a page apart, and synced, so
    /// that a single bad place on the medium does not lose it.
    fn write_purges(&mut self, batch: &[PurgeJob]) -> IoResult<()> {
        if batch.iter().any(PurgeJob::covers_all) {
            // A purge of everything becomes the first record of a segment, so that all older
            // segments can be dropped at once.
            let closed = self.close();
            self.count_error(&closed);
        }
        self.close_failed = false;
        let written = self.write_copies(batch);
        // If a segment became full during this batch, it contains some of the copies. It was synced
        // only when it was closed, so a failed close means that these copies may be lost.
        match self.close_failed && batch.iter().any(|job| job.waiter.is_some()) {
            true => written.and(Err(Errno::IO)),
            false => written,
        }
    }

    fn write_copies(&mut self, batch: &[PurgeJob]) -> IoResult<()> {
        let mut first = None;
        for job in batch {
            let at = self.write_purge(job)?;
            first.get_or_insert(at);
        }
        if batch.iter().all(|job| job.waiter.is_none()) {
            return Ok(());
        }
        if let Some(first) = first {
            self.skip_past(first, COPY_BYTES);
        }
        // A copy does not count as another purge.
        let purges = self.purges;
        self.purges -= batch.len() as u64;
        for job in batch {
            let written = self.write_purge(job);
            if written.is_err() {
                self.purges = purges;
            }
            written?;
        }
        self.sync()
    }

    fn write_purge(&mut self, job: &PurgeJob) -> IoResult<RecordPosition> {
        let no_id = ResponseId::default();
        let tag;
        let (purged, id, parts) = match &job.target {
            PurgeTarget::Response(id) => (PurgeScope::Id, *id, RecordParts::NONE),
            PurgeTarget::Key(key) => {
                (PurgeScope::Key, ResponseId { key: *key, ..no_id }, RecordParts::NONE)
            }
            PurgeTarget::Prefix(prefix) => {
                (PurgeScope::Prefix, no_id, RecordParts { name: prefix, ..RecordParts::NONE })
            }
            PurgeTarget::Tag(hash) => {
                tag = hash.0.to_le_bytes();
                (PurgeScope::Tag, no_id, RecordParts { tags: &tag, ..RecordParts::NONE })
            }
            PurgeTarget::All => (PurgeScope::All, no_id, RecordParts::NONE),
        };
        let mut record = record_without_body(RecordKind::Purge(purged), id, parts);
        record.fixed.is_soft = job.is_soft;
        self.write_record(&record)
    }

    /// If a purge could not be written, removes the identity of the directory, so that the next
    /// start discards its contents. Returns `false` if that fails; the next call tries again.
    pub(super) fn ensure_purge_recorded(&mut self) -> bool {
        if self.has_unwritten_purge {
            let directory_io = &self.shared.directory_io;
            let removed =
                ensure_removed(&**directory_io, IDENTITY).and_then(|()| directory_io.sync());
            self.count_error(&removed);
            self.has_unwritten_purge = removed.is_err();
        }
        !self.has_unwritten_purge
    }

    /// Reads the stored headers of some responses, and returns where to continue.
    fn execute_list(
        &mut self,
        cursor: Cursor,
        disks: usize,
    ) -> (Vec<StoredHeader>, Option<Cursor>) {
        let shared = self.shared.clone();
        let Some(segment) = shared.segments.from(cursor.segment) else {
            let next = Cursor { disk: cursor.disk + 1, ..Cursor::default() };
            return (Vec::new(), (next.disk < disks).then_some(next));
        };
        let from = if segment.number == cursor.segment { cursor.index } else { 0 };
        let ids = segment.ids(from, LISTED_MAX);
        let headers = ids.iter().filter_map(|&id| {
            let indexed = shared.index.shard(id.key).get(id)?;
            let is_there = indexed.at.segment == segment.number;
            let opened = is_there
                .then(|| super::fetch::open_record(&shared, id, indexed.at).ok())
                .flatten()?;
            Some(*opened.header)
        });
        let next = if ids.len() < LISTED_MAX {
            Cursor { segment: segment.number + 1, index: 0, ..cursor }
        } else {
            Cursor { segment: segment.number, index: from + ids.len(), ..cursor }
        };
        (headers.collect(), Some(next))
    }
}

impl PurgeJob {
    pub(super) fn covers_all(&self) -> bool {
        self.target == PurgeTarget::All && !self.is_soft
    }

    /// Returns whether the purge becomes a rule, because removing index entries is not enough.
    fn is_rule(&self) -> bool {
        self.is_soft || !matches!(self.target, PurgeTarget::Response(_) | PurgeTarget::Key(_))
    }
}

fn tag_bytes(response: &StoredResponse) -> Vec<u8> {
    response.tags.iter().flat_map(|tag| tag.0.to_le_bytes()).collect()
}

//! What the writer does with a job.

use std::sync::PoisonError;
use std::time::Duration;

use millrace_http_cache::META_BYTES;
use millrace_sys::Errno;

use super::format::{Id, Kind, Parts, Position, Purged};
use super::front::Draft;
use super::identity::IDENTITY;
use super::index::{Head, Known};
use super::limits::COPY_BYTES;
use super::log::{Log, bodiless};
use super::message::{Answer, Answered, Cursor, StoredHead};
use super::queue::{Job, Next, PurgeJob};
use super::rules::Subject;
use super::volume::{IoResult, ensure_removed};

/// Purges that are written and synced together, at most.
const PURGES_AT_ONCE: usize = 64;
/// Heads of one step of a listing.
const LISTED_MAX: usize = 100;

impl Log {
    /// Does one piece of work: a segment of earlier runs, or a job. With nothing to do it waits for
    /// a job, `wait` at most. `false`: there was nothing to do.
    pub(super) fn work(&mut self, wait: Option<Duration>) -> bool {
        // The last segment first: before it was read, nobody knows how many purges there were.
        let mut recovers = false;
        while self.expected.is_none() && self.recover() {
            recovers = true;
        }
        // At the end the rest is left to the next start.
        recovers |= !self.shared.queue.is_ending() && self.recover();
        let wait = if recovers { None } else { wait };
        self.is_condemned_or_sound();
        match self.shared.queue.next_write(wait) {
            Next::Job(job) => {
                self.do_job(job);
                true
            }
            Next::Nothing | Next::End => recovers,
        }
    }

    /// Whether there is nothing to do and there never will be.
    pub(super) fn has_ended(&self) -> bool {
        self.shared.queue.has_ended()
    }

    /// Syncs what was written a while ago.
    pub(super) fn sync_in_time(&mut self) {
        let synced = self.sync();
        self.count_error(&synced);
    }

    fn do_job(&mut self, job: Job) {
        match job {
            Job::Store { answer, number, replaces } => self.store(&answer, number, replaces),
            Job::Update { id, meta, head } => self.update(id, &meta, &head),
            Job::Purge(purge) => self.purge(purge),
            Job::List { cursor, disks, asker } => {
                let (heads, cursor) = self.list(cursor, disks);
                self.shared.host.answered(asker, Answered::Listed(heads, cursor));
            }
        }
    }

    pub(super) fn count_error<T>(&self, result: &IoResult<T>) {
        if result.is_err() {
            self.shared.tally.count(|counters| counters.write_errors += 1);
        }
    }

    fn store(&mut self, answer: &Answer, number: u64, replaces: bool) {
        let shared = self.shared.clone();
        let id = answer.id;
        let at = if self.pause > 0 {
            self.pause -= 1;
            shared.tally.count(|counters| counters.stores_skipped += 1);
            None
        } else {
            let written = self.write_answer(answer);
            self.count_error(&written);
            if written.is_err() {
                self.pause();
            }
            written.ok()
        };
        let Some((at, front_bytes)) = at else {
            shared.index.shard(id.key).abandon(id, number);
            if replaces {
                // What it was to replace must not come back. If this fails too, nothing that was
                // stored so far is found by the next start.
                let subject = Subject::Answer(id);
                self.purge(PurgeJob { subject, is_soft: false, asker: None });
            }
            return;
        };
        let known = Known {
            id,
            at,
            front_bytes,
            body_bytes: answer.body.len(),
            update: None,
            is_asked: false,
            variant: answer.variant,
            vary: answer.vary.as_ref().and_then(|vary| shared.index.share(vary)),
        };
        shared.index.shard(id.key).settle(number, known);
        shared.tally.count(|counters| counters.stored += 1);
    }

    fn write_answer(&mut self, answer: &Answer) -> IoResult<(Position, u32)> {
        let fixed = answer.fixed().expect("what is in the queue was looked at");
        let body: Vec<&[u8]> = answer.body.slices().map(|slice| &**slice).collect();
        let (sums, tags) = (answer.sums(), tag_bytes(answer));
        let parts = Parts {
            meta: &answer.meta,
            variant: answer.variant,
            vary: answer.vary.as_deref().unwrap_or_default(),
            head: &answer.head,
            name: &answer.name,
            tags: &tags,
            sums: &sums,
        };
        let at = self.write(&Draft { fixed, parts, body: &body })?;
        Ok((at, fixed.front_bytes() as u32))
    }

    fn update(&mut self, id: Id, meta: &[u8; META_BYTES], head: &[u8]) {
        let shared = self.shared.clone();
        let Some(known) = shared.index.shard(id.key).known(id) else { return };
        let mut draft = bodiless(Kind::Update, id, Parts { meta, head, ..Parts::NONE });
        draft.fixed.target = known.at;
        let written = match draft.fixed.is_sound() {
            true => self.write(&draft),
            false => Err(Errno::FBIG),
        };
        self.count_error(&written);
        if let Ok(at) = written {
            let head = Head { at, front_bytes: draft.fixed.front_bytes() as u32 };
            return shared.index.shard(id.key).update(id, known.at, head);
        }
        // What it has now may let it be used for longer.
        if shared.index.shard(id.key).remove_at(id, known.at) {
            let subject = Subject::Answer(id);
            self.purge(PurgeJob { subject, is_soft: false, asker: None });
        }
    }

    /// Writes a purge, and those that are next in the queue.
    fn purge(&mut self, first: PurgeJob) {
        let mut batch = vec![first];
        while batch.len() < PURGES_AT_ONCE
            && let Some(next) = self.shared.queue.next_purge()
        {
            batch.push(next);
        }
        let written = self.write_purges(&batch);
        self.count_error(&written);
        self.owes_purge |= written.is_err();
        let is_durable = self.is_condemned_or_sound();
        for job in &batch {
            if job.follows_rule() {
                let at = self.position();
                self.shared.rules.settle(&job.subject, job.is_soft, at);
            }
            if let Some(asker) = &job.asker {
                let mut rest = asker.rest.lock().unwrap_or_else(PoisonError::into_inner);
                *rest = (rest.0 - 1, rest.1 && is_durable);
                if let (0, is_durable) = *rest {
                    drop(rest);
                    let answered = Answered::Purged { is_durable };
                    self.shared.host.answered(asker.asker, answered);
                }
            }
        }
        if batch.iter().any(PurgeJob::is_about_all) {
            let dropped = self.drop_all();
            self.count_error(&dropped);
        }
    }

    /// If anybody wants to know, each is written twice, a page apart, and synced: no single bad
    /// place takes it.
    fn write_purges(&mut self, batch: &[PurgeJob]) -> IoResult<()> {
        if batch.iter().any(PurgeJob::is_about_all) {
            // So that what it is about can go at once, it is the first of a segment.
            let closed = self.close();
            self.count_error(&closed);
        }
        self.close_failed = false;
        let written = self.write_copies(batch);
        // A segment that ended among them, with copies in it, was synced then and only then.
        match self.close_failed && batch.iter().any(|job| job.asker.is_some()) {
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
        if batch.iter().all(|job| job.asker.is_none()) {
            return Ok(());
        }
        if let Some(first) = first {
            self.skip_to(first, COPY_BYTES);
        }
        // A copy counts as no further purge.
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

    fn write_purge(&mut self, job: &PurgeJob) -> IoResult<Position> {
        let nobody = Id::default();
        let tag;
        let (purged, id, parts) = match &job.subject {
            Subject::Answer(id) => (Purged::Id, *id, Parts::NONE),
            Subject::Key(key) => (Purged::Key, Id { key: *key, ..nobody }, Parts::NONE),
            Subject::Prefix(prefix) => {
                (Purged::Prefix, nobody, Parts { name: prefix, ..Parts::NONE })
            }
            Subject::Tag(hash) => {
                tag = hash.0.to_le_bytes();
                (Purged::Tag, nobody, Parts { tags: &tag, ..Parts::NONE })
            }
            Subject::All => (Purged::All, nobody, Parts::NONE),
        };
        let mut draft = bodiless(Kind::Purge(purged), id, parts);
        draft.fixed.is_soft = job.is_soft;
        self.write(&draft)
    }

    /// Where a purge could not be written, the next start has to find nothing, so that nothing
    /// comes back: the directory loses its identity. Where that fails too, it is tried again.
    pub(super) fn is_condemned_or_sound(&mut self) -> bool {
        if self.owes_purge {
            let volume = &self.shared.volume;
            let removed = ensure_removed(&**volume, IDENTITY).and_then(|()| volume.sync());
            self.count_error(&removed);
            self.owes_purge = removed.is_err();
        }
        !self.owes_purge
    }

    /// The heads of some answers, and where to go on.
    fn list(&mut self, cursor: Cursor, disks: usize) -> (Vec<StoredHead>, Option<Cursor>) {
        let shared = self.shared.clone();
        let Some(segment) = shared.segments.from(cursor.segment) else {
            let next = Cursor { disk: cursor.disk + 1, ..Cursor::default() };
            return (Vec::new(), (next.disk < disks).then_some(next));
        };
        let from = if segment.number == cursor.segment { cursor.index } else { 0 };
        let ids = segment.ids(from, LISTED_MAX);
        let heads = ids.iter().filter_map(|&id| {
            let known = shared.index.shard(id.key).known(id)?;
            let is_there = known.at.segment == segment.number;
            let opened =
                is_there.then(|| super::fetch::open(&shared, id, known.at).ok()).flatten()?;
            Some(*opened.head)
        });
        let next = if ids.len() < LISTED_MAX {
            Cursor { segment: segment.number + 1, index: 0, ..cursor }
        } else {
            Cursor { segment: segment.number, index: from + ids.len(), ..cursor }
        };
        (heads.collect(), Some(next))
    }
}

impl PurgeJob {
    pub(super) fn is_about_all(&self) -> bool {
        self.subject == Subject::All && !self.is_soft
    }

    /// Whether it is about what the index does not follow.
    fn follows_rule(&self) -> bool {
        self.is_soft || !matches!(self.subject, Subject::Answer(_) | Subject::Key(_))
    }
}

fn tag_bytes(answer: &Answer) -> Vec<u8> {
    answer.tags.iter().flat_map(|tag| tag.0.to_le_bytes()).collect()
}

//! One disk: its parts, and what may be asked of it from any thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_body::Waiter;
use millrace_http_cache::{Key, META_BYTES, SpaceTag};

use super::fetching::Fetching;
use super::format::{Id, Sealer};
use super::identity::{Contents, Identity};
use super::index::{Index, Known};
use super::log::Log;
use super::message::{Answer, Candidate, Cursor, Fetch, Host};
use super::queue::{Job, Next, Options, PurgeAsker, PurgeJob, Queue};
use super::rules::{Rules, Subject};
use super::segments::{Segment, Segments};
use super::shared::Shared;
use super::tally::{Counters, Tally};
use super::volume::{IoResult, Volume};

/// One disk.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) shared: Arc<Shared>,
    /// Held by the one who writes, for as long as one job takes.
    pub(super) log: Arc<Mutex<Log>>,
}

impl Disk {
    /// Opens one whose identity is written already. What is in it is looked for later.
    pub(super) fn open(
        volume: Arc<dyn Volume>,
        bytes: u64,
        identity: &Identity,
        contents: Contents,
        place: usize,
        host: &Arc<dyn Host>,
        options: &Options,
    ) -> IoResult<Self> {
        let segments = Segments::default();
        for number in volume.list()?.iter().filter_map(|name| Segment::number_of(name)) {
            debug_assert_eq!(contents, Contents::Kept, "what is not kept was removed before");
            let file = volume.open(&Segment::name(number))?;
            let bytes = file.bytes()?;
            segments.insert(Arc::new(Segment::new(number, file, bytes)));
        }
        let past = segments.numbers();
        let shared = Arc::new(Shared {
            volume,
            number: identity.directory,
            sealer: Sealer::new(identity.key, identity.directory),
            index: Index::new(!past.is_empty()),
            rules: Rules::default(),
            segments,
            queue: Queue::new(options.marks, options.readers == 0),
            tally: Tally::default(),
            recovered: Mutex::default(),
            host: host.clone(),
            place,
            is_recovering: AtomicBool::new(!past.is_empty()),
            body_bytes_max: bytes / super::limits::BODY_SHARE,
        });
        let log = Arc::new(Mutex::new(Log::new(shared.clone(), past, bytes)));
        Ok(Self { shared, log })
    }

    pub(super) fn find(&self, key: Key) -> impl Iterator<Item = Candidate> {
        let known = self.shared.index.shard(key).find(key);
        known.into_iter().map(|known| self.candidate(known))
    }

    pub(super) fn candidate(&self, known: Known) -> Candidate {
        Candidate {
            id: known.id,
            variant: known.variant,
            vary: known.vary,
            body_bytes: known.body_bytes,
            disk: self.shared.place,
            at: known.at,
        }
    }

    pub(super) fn has(&self, candidate: &Candidate) -> bool {
        let known = self.shared.index.shard(candidate.id.key).known(candidate.id);
        known.is_some_and(|known| known.at == candidate.at)
    }

    /// Takes an answer; gives it back where it is left out. What it would have replaced is gone in
    /// any case.
    pub(super) fn store(&self, answer: Box<Answer>) -> Result<(), Box<Answer>> {
        let shared = &self.shared;
        let is_sound = answer.fixed().is_some() && answer.body.len() <= shared.body_bytes_max;
        let is_full = shared.index.is_full();
        if !is_sound || is_full || shared.queue.is_above_skip(answer.bytes()) {
            shared.tally.count(|counters| counters.stores_skipped += 1);
            self.forget(answer.id);
            return Err(answer);
        }
        let number = shared.queue.number();
        let mut shard = shared.index.shard(answer.id.key);
        let replaces = shard.queue(answer.id, number);
        shared.queue.write(Job::Store { answer, number, replaces });
        Ok(())
    }

    /// One answer is no longer to be had.
    pub(super) fn forget(&self, id: Id) {
        if self.shared.index.shard(id.key).has_key(id.key) {
            self.purge(&Subject::Answer(id), false, None);
        }
    }

    pub(super) fn update(&self, id: Id, meta: [u8; META_BYTES], head: &Arc<[u8]>) {
        let shared = &self.shared;
        if shared.queue.is_above_skip(0) {
            return self.forget(id);
        }
        let shard = shared.index.shard(id.key);
        if shard.has_key(id.key) {
            shared.queue.write(Job::Update { id, meta, head: head.clone() });
        }
    }

    /// Waits while the queue is above its second mark, if it may, and so long at most.
    pub(super) fn wait_for_room(&self, most: Duration) {
        if self.shared.queue.wait_for_room(most) {
            self.shared.tally.count(|counters| counters.waits += 1);
        }
    }

    pub(super) fn purge(&self, subject: &Subject, is_soft: bool, asker: Option<Arc<PurgeAsker>>) {
        let shared = &self.shared;
        let is_wanted = asker.is_some();
        if !is_wanted && let Some(is_covered) = shared.queue.is_flooded() {
            if !is_covered {
                self.purge_all();
            }
            return;
        }
        let job = || Job::Purge(PurgeJob { subject: subject.clone(), is_soft, asker });
        let key = match subject {
            Subject::Answer(id) => id.key,
            Subject::Key(key) => *key,
            Subject::Prefix(_) | Subject::Tag(_) | Subject::All => {
                shared.rules.announce(subject, is_soft);
                if *subject == Subject::All && !is_soft {
                    shared.index.clear();
                }
                return shared.queue.write(job());
            }
        };
        let mut shard = shared.index.shard(key);
        let is_there = match subject {
            _ if is_soft => shard.has_key(key),
            Subject::Answer(id) => shard.remove(*id),
            _ => shard.remove_key(key),
        };
        // What was purged before may still have to be written: whoever asks waits for that too.
        if is_there || is_wanted {
            if is_soft {
                shared.rules.announce(subject, is_soft);
            }
            shared.queue.write(job());
        }
    }

    /// Everything is gone, which nobody waits for.
    fn purge_all(&self) {
        let (shared, subject) = (&self.shared, Subject::All);
        shared.rules.announce(&subject, false);
        shared.index.clear();
        shared.queue.write(Job::Purge(PurgeJob { subject, is_soft: false, asker: None }));
    }

    /// Takes a wish, or gives it back: the origin is to be asked.
    pub(super) fn fetch(&self, fetch: Box<Fetch>) -> Result<(), Box<Fetch>> {
        let shared = &self.shared;
        if shared.queue.is_above_skip(0) {
            shared.tally.count(|counters| counters.fetches_skipped += 1);
            return Err(fetch);
        }
        shared.queue.read(Fetching::new(*fetch));
        Ok(())
    }

    /// `disks`: how many there are.
    pub(super) fn list(&self, cursor: Cursor, disks: usize, asker: Waiter) {
        self.shared.queue.write(Job::List { cursor, disks, asker });
    }

    /// One piece of work, without threads: a turn of a fetch, or what the writer does.
    pub(super) fn work(&self) -> bool {
        if let Next::Job(fetching) = self.shared.queue.next_read(false) {
            fetching.turn(&self.shared);
            return true;
        }
        self.log.lock().unwrap_or_else(PoisonError::into_inner).work(None)
    }

    pub(super) fn counters(&self) -> Counters {
        let shared = &self.shared;
        Counters {
            answers: shared.index.len() as u64,
            bytes: shared.segments.bytes(),
            segments: shared.segments.len() as u64,
            queue: shared.queue.len() as u64,
            is_recovering: shared.is_recovering.load(Ordering::Acquire),
            ..shared.tally.counters()
        }
    }

    /// Returns how many of the responses that recovery has found so far belong to none of `spaces`.
    pub(super) fn recovered_outside(&self, spaces: &[SpaceTag]) -> u64 {
        let recovered = self.shared.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        let outside = recovered.iter().filter(|(space, _)| !spaces.contains(space));
        outside.map(|(_, count)| count).sum()
    }

    /// No more is fetched: those who wait for what was to be are told.
    pub(super) fn end_fetches(&self) {
        for fetching in self.shared.queue.end() {
            fetching.leave(&self.shared);
        }
    }

    /// Ends: what is in the queue is written, and the open segment gets its summary.
    pub(super) fn end(&self) {
        // Those that a thread put back when it ended.
        self.end_fetches();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        while log.work(None) {}
        // Without a summary the segment is read as a whole at the next start.
        let _ = log.close();
    }
}

//! One disk: its parts, and its operations, which any thread may call.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use millrace_body::WaiterId;
use millrace_http_cache::{Key, META_BYTES, SpaceTag};

use super::directory_io::{DirectoryIo, IoResult};
use super::fetch_task::FetchTask;
use super::format::{ResponseId, Sealer};
use super::identity::{DirectoryContents, Identity};
use super::index::{Index, IndexedRecord};
use super::log::Log;
use super::message::{Cursor, DiskCallbacks, DiskHit, FetchRequest, StoredResponse};
use super::purge_rules::{PurgeRules, PurgeTarget};
use super::queue::{DiskOptions, JobQueue, NextJob, PurgeJob, PurgeWaiter, WriteJob};
use super::segments::{Segment, Segments};
use super::shared::DiskShared;
use super::stats::{DiskStats, StatsCell};

/// One disk.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub(super) shared: Arc<DiskShared>,
    /// The writer thread keeps this locked until it ends. Without threads, each call of
    /// [`Disk::run_once`] locks it.
    pub(super) log: Arc<Mutex<Log>>,
}

impl Disk {
    /// Opens a disk whose identity is written already. Its contents are recovered later.
    pub(super) fn open(
        directory_io: Arc<dyn DirectoryIo>,
        bytes: u64,
        identity: &Identity,
        contents: DirectoryContents,
        disk: usize,
        callbacks: &Arc<dyn DiskCallbacks>,
        options: &DiskOptions,
    ) -> IoResult<Self> {
        let segments = Segments::default();
        for number in directory_io.list()?.iter().filter_map(|name| Segment::number_of(name)) {
            debug_assert_eq!(
                contents,
                DirectoryContents::Kept,
                "a directory that is not kept has no segments"
            );
            let file = directory_io.open(&Segment::name(number))?;
            let bytes = file.bytes()?;
            segments.insert(Arc::new(Segment::new(number, file, bytes)));
        }
        let unread = segments.numbers();
        let shared = Arc::new(DiskShared {
            directory_io,
            directory_number: identity.directory,
            sealer: Sealer::new(identity.key, identity.directory),
            index: Index::new(!unread.is_empty()),
            rules: PurgeRules::default(),
            segments,
            queue: JobQueue::new(options.marks, options.readers == 0),
            stats: StatsCell::default(),
            recovered: Mutex::default(),
            callbacks: callbacks.clone(),
            disk,
            is_recovering: AtomicBool::new(!unread.is_empty()),
            body_bytes_max: bytes / super::limits::BODY_SHARE,
        });
        let log = Arc::new(Mutex::new(Log::new(shared.clone(), unread, bytes)));
        Ok(Self { shared, log })
    }

    pub(super) fn find(&self, key: Key) -> impl Iterator<Item = DiskHit> {
        let indexed = self.shared.index.shard(key).find(key);
        indexed.into_iter().map(|indexed| self.to_hit(indexed))
    }

    pub(super) fn to_hit(&self, indexed: IndexedRecord) -> DiskHit {
        DiskHit {
            id: indexed.id,
            variant: indexed.variant,
            vary: indexed.vary,
            body_bytes: indexed.body_bytes,
            disk: self.shared.disk,
            at: indexed.at,
        }
    }

    pub(super) fn has(&self, hit: &DiskHit) -> bool {
        let indexed = self.shared.index.shard(hit.id.key).get(hit.id);
        indexed.is_some_and(|indexed| indexed.at == hit.at)
    }

    /// Queues a response. Returns it if it is refused. In both cases, the version that it replaces
    /// is no longer found.
    pub(super) fn store(&self, response: Box<StoredResponse>) -> Result<(), Box<StoredResponse>> {
        let shared = &self.shared;
        let is_sound =
            response.fixed_header().is_some() && response.body.len() <= shared.body_bytes_max;
        let is_full = shared.index.is_full();
        if !is_sound || is_full || shared.queue.must_skip(response.bytes()) {
            shared.stats.update(|counters| counters.stores_skipped += 1);
            self.forget(response.id);
            return Err(response);
        }
        let number = shared.queue.next_store_number();
        let mut shard = shared.index.shard(response.id.key);
        let replaces = shard.insert_queued(response.id, number);
        shared.queue.push_write(WriteJob::Store { response, number, replaces });
        Ok(())
    }

    /// Removes one response.
    pub(super) fn forget(&self, id: ResponseId) {
        if self.shared.index.shard(id.key).has_key(id.key) {
            self.purge(&PurgeTarget::Response(id), false, None);
        }
    }

    pub(super) fn update(&self, id: ResponseId, meta: [u8; META_BYTES], head: &Arc<[u8]>) {
        let shared = &self.shared;
        if shared.queue.must_skip(0) {
            return self.forget(id);
        }
        let shard = shared.index.shard(id.key);
        if shard.has_key(id.key) {
            shared.queue.push_write(WriteJob::Update { id, meta, head: head.clone() });
        }
    }

    /// Waits up to `most` until the queue is below its second mark, unless the disk has no threads.
    pub(super) fn wait_for_room(&self, most: Duration) {
        if self.shared.queue.wait_for_room(most) {
            self.shared.stats.update(|counters| counters.purge_waits += 1);
        }
    }

    pub(super) fn purge(
        &self,
        target: &PurgeTarget,
        is_soft: bool,
        requester: Option<Arc<PurgeWaiter>>,
    ) {
        let shared = &self.shared;
        let has_requester = requester.is_some();
        if !has_requester && let Some(is_covered) = shared.queue.overflow() {
            if !is_covered {
                self.purge_all();
            }
            return;
        }
        let job =
            || WriteJob::Purge(PurgeJob { target: target.clone(), is_soft, waiter: requester });
        let key = match target {
            PurgeTarget::Response(id) => id.key,
            PurgeTarget::Key(key) => *key,
            PurgeTarget::Prefix(_) | PurgeTarget::Tag(_) | PurgeTarget::All => {
                shared.rules.add_pending(target, is_soft);
                if *target == PurgeTarget::All && !is_soft {
                    shared.index.clear();
                }
                return shared.queue.push_write(job());
            }
        };
        let mut shard = shared.index.shard(key);
        let was_there = match target {
            _ if is_soft => shard.has_key(key),
            PurgeTarget::Response(id) => shard.remove(*id),
            _ => shard.remove_key(key),
        };
        // A requester gets its reply from the writer even if there is nothing to remove. An earlier
        // purge of the same responses may still be queued, and must be written before the reply.
        if was_there || has_requester {
            if is_soft {
                shared.rules.add_pending(target, is_soft);
            }
            shared.queue.push_write(job());
        }
    }

    /// Removes everything, without a requester.
    fn purge_all(&self) {
        let (shared, target) = (&self.shared, PurgeTarget::All);
        shared.rules.add_pending(&target, false);
        shared.index.clear();
        shared.queue.push_write(WriteJob::Purge(PurgeJob { target, is_soft: false, waiter: None }));
    }

    /// Queues a fetch, or returns it if it is refused: the origin has to be used.
    pub(super) fn fetch(&self, fetch: Box<FetchRequest>) -> Result<(), Box<FetchRequest>> {
        let shared = &self.shared;
        if shared.queue.must_skip(0) {
            shared.stats.update(|counters| counters.fetches_skipped += 1);
            return Err(fetch);
        }
        shared.queue.push_fetch(FetchTask::new(*fetch));
        Ok(())
    }

    /// Queues a listing. `disks` is the number of disks.
    pub(super) fn list(&self, cursor: Cursor, disks: usize, requester: WaiterId) {
        self.shared.queue.push_write(WriteJob::List { cursor, disks, requester });
    }

    /// Runs one piece of work of a disk without threads: a turn of a fetch, or a job of the writer.
    pub(super) fn run_once(&self) -> bool {
        if let NextJob::Job(task) = self.shared.queue.pop_fetch(false) {
            task.run_turn(&self.shared);
            return true;
        }
        self.log.lock().unwrap_or_else(PoisonError::into_inner).run_once(None)
    }

    pub(super) fn stats(&self) -> DiskStats {
        let shared = &self.shared;
        DiskStats {
            responses: shared.index.len() as u64,
            bytes: shared.segments.bytes(),
            segments: shared.segments.len() as u64,
            queued_jobs: shared.queue.len() as u64,
            is_recovering: shared.is_recovering.load(Ordering::Acquire),
            ..shared.stats.get()
        }
    }

    /// Returns how many of the responses that recovery has found so far belong to none of `spaces`.
    pub(super) fn recovered_outside(&self, spaces: &[SpaceTag]) -> u64 {
        let recovered = self.shared.recovered.lock().unwrap_or_else(PoisonError::into_inner);
        let outside = recovered.iter().filter(|(space, _)| !spaces.contains(space));
        outside.map(|(_, count)| count).sum()
    }

    /// Closes the queue and ends the queued fetches; their requesters get a reply.
    pub(super) fn abandon_fetches(&self) {
        for task in self.shared.queue.close() {
            task.abandon(&self.shared);
        }
    }

    /// Closes the disk: the queue is written, and the open segment gets its summary.
    pub(super) fn close(&self) {
        // A thread may have put fetches back when it ended.
        self.abandon_fetches();
        let mut log = self.log.lock().unwrap_or_else(PoisonError::into_inner);
        while log.run_once(None) {}
        // Without a summary, the next start reads the whole segment.
        let _ = log.close();
    }
}

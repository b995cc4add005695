//! The disks beneath the memory.
//!
//! ```text
//!  lookup ── not in memory, on a disk ── claim, for the disk ──> fetch ──> object in memory
//!     └── whoever asks waits for it, as for anybody's fetch <──── woken ────┘
//!  filled ──> store, unless something made it invalid meanwhile
//! ```
//!
//! Memory answers all clients: what a disk has is brought into memory and found there. So nothing
//! that goes to a client needs to know of disks, and one body has one copy. Who asked the disk once
//! and finds nothing asks the origin.
//!
//! **Purges**: the disks are told first, then memory, in one *step*; and to look whether something
//! is in memory as it was and to hand it to a disk is a step too. Steps never overlap. So what a disk
//! began to read before a purge is known to memory when that is told ([`Cache::has_come`] finds its
//! claim outdated, or the purge's number above its own), and what is handed to a disk after it has
//! heeded it.

mod admin;
mod convert;
mod load;
mod store;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use iolite::AllocError;
use millrace_body::WaiterId;
use millrace_disk::{
    DirectoryContents, DirectoryIo, DiskCallbacks, DiskOptions, DiskReply, DiskStats, Disks, Error,
};
use millrace_http_cache::SpaceTag;

use super::cache::Cache;
use super::disk_state::{DiskState, OpenDisks};

/// How those are woken who wait for something that a disk brings. Called on the disks' threads.
pub trait Waker: Send + Sync + std::fmt::Debug {
    /// Somebody may go on.
    fn wake(&self, waiter: WaiterId);
}

impl Cache {
    /// Opens disks, which have to have the hash key of this cache: see
    /// [`Disks::hash_key_of`](millrace_disk::Disks::hash_key_of). They are used from now on, until
    /// [`Cache::close_disks`], without which they go with the cache. Says what was done with what
    /// each of them held.
    ///
    /// # Errors
    /// What is wrong with which.
    pub fn open_disks(
        self: &Arc<Self>,
        volumes: Vec<(Arc<dyn DirectoryIo>, u64)>,
        options: &DiskOptions,
        waker: Arc<dyn Waker>,
        now_ms: u64,
    ) -> Result<Vec<DirectoryContents>, Error> {
        let host = CacheCallbacks { cache: Arc::downgrade(self), waker };
        let host: Arc<dyn DiskCallbacks> = Arc::new(host);
        let disks = Disks::open(volumes, &host, options, self.hash, now_ms)?;
        if disks.hash_key() != self.hash {
            return Err(Error::OtherKey);
        }
        let contents = disks.contents().to_vec();
        self.disk_tier.now_ms.store(now_ms, Ordering::Relaxed);
        let mut tier = self.disk_tier.state.write().unwrap_or_else(PoisonError::into_inner);
        if let DiskState::Awaited(purges) = &*tier {
            purges.iter().for_each(|(subject, is_soft)| disks.forget_all(subject, *is_soft));
        }
        *tier = DiskState::Open(OpenDisks { disks, is_threadless: options.readers == 0 });
        drop(tier);
        self.disk_tier.has_disks.store(true, Ordering::Relaxed);
        Ok(contents)
    }

    /// From now on what disks have is read there each time that somebody asks for it, though it is in
    /// memory.
    pub fn always_reread_disks(&self) {
        self.disk_tier.always_rereads.store(true, Ordering::Relaxed);
    }

    /// There will be disks, but another process has them still: what is purged and made invalid
    /// from now on holds for what is on them.
    pub fn await_disks(&self) {
        *self.disk_tier.state.write().unwrap_or_else(PoisonError::into_inner) =
            DiskState::Awaited(Vec::new());
        self.disk_tier.has_disks.store(true, Ordering::Relaxed);
    }

    /// Goes on without disks: what is in their queues is written, and they are let go. What they
    /// were bringing is left to the origin.
    pub fn close_disks(&self) {
        self.disk_tier.has_disks.store(false, Ordering::Relaxed);
        let tier = self.disk_tier.state.write().map(|mut tier| std::mem::take(&mut *tier));
        // It takes as long as the disks take, and nobody else waits for that.
        drop(tier);
    }

    /// Of disks without threads: does a piece of their work. `false`: there was none.
    pub fn run_disk_work(&self) -> bool {
        self.disk_tier.with_disks(|open| open.disks.run_once()).unwrap_or(false)
    }

    /// Returns how many of the responses that recovery has found on disks so far belong to none of
    /// `spaces`; see [`Disks::recovered_outside`].
    ///
    /// [`Disks::recovered_outside`]: millrace_disk::Disks::recovered_outside
    pub fn recovered_outside(&self, spaces: &[SpaceTag]) -> u64 {
        self.disk_tier.with_disks(|open| open.disks.recovered_outside(spaces)).unwrap_or(0)
    }

    /// What each disk did, and has.
    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.disk_tier.with_disks(|open| open.disks.stats()).unwrap_or_default()
    }
}

/// The cache, as its disks see it.
#[derive(Debug)]
struct CacheCallbacks {
    /// Disks are a part of it, and must not keep it.
    cache: Weak<Cache>,
    waker: Arc<dyn Waker>,
}

impl DiskCallbacks for CacheCallbacks {
    fn wake(&self, waiter: WaiterId) {
        self.waker.wake(waiter);
    }

    fn make_room(&self, error: AllocError) -> bool {
        let Some(cache) = self.cache.upgrade() else { return false };
        let now_ms = cache.disk_tier.now_ms.load(Ordering::Relaxed);
        // Memory is made ready by a thread.
        cache.make_memory_available(error, now_ms) || error == AllocError::NotReady
    }

    fn handle_reply(&self, requester: WaiterId, reply: DiskReply) {
        let Some(cache) = self.cache.upgrade() else { return };
        let woken = match reply {
            DiskReply::Fetched(head) if cache.is_loading(requester.token) => {
                cache.finish_load(requester.token, &head)
            }
            DiskReply::NotFetched(_) if cache.is_loading(requester.token) => {
                cache.fail_load(requester.token)
            }
            DiskReply::Cut(id) => {
                cache.remove_cut(id.key);
                Vec::new()
            }
            other => {
                cache.record_reply(requester.token, other);
                Vec::new()
            }
        };
        woken.into_iter().for_each(|waiter| self.waker.wake(waiter));
    }
}

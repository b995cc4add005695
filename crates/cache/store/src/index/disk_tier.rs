//! The disks below the memory.
//!
//! ```text
//!  lookup ── not in memory, on a disk ── fetch lease for the disk ──> load ──> object in memory
//!     └── the request waits for the load, as for any fetch <──── woken ────┘
//!  filled ──> stored on a disk, unless it was invalidated meanwhile
//! ```
//!
//! Memory serves all clients: a response on a disk is loaded into memory and found there. So code
//! that sends to clients knows nothing about disks, and a body has one copy. A request that waited
//! for a disk once and still finds nothing goes to the origin.
//!
//! **Purges**: the disks are notified first, then memory, in one *step*. Checking that an object in
//! memory is unchanged and handing it to a disk is a step, too. Steps never overlap. A load takes
//! the current sequence number before it looks for its response on the disks. If it finds the
//! response before a purge removes it there, the purge gets a higher number. So
//! [`Cache::finish_load`] finds either an outdated lease or a purge with a higher number. A purge
//! is applied to an object before the object can be handed to a disk in a later step.

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

/// Wakes waiters of loads from disk, and readers of bodies that are being loaded. Called on the
/// threads of the disks, and on the thread that closes the disks, lists them or runs their work.
pub trait Waker: Send + Sync + std::fmt::Debug {
    /// Wakes the waiter.
    fn wake(&self, waiter: WaiterId);
}

impl Cache {
    /// Opens disks, which must have the hash key of this cache: see
    /// [`Disks::hash_key_of`](millrace_disk::Disks::hash_key_of). They are used until
    /// [`Cache::close_disks`] or until the cache is dropped. Returns what was done with the
    /// contents of each directory.
    ///
    /// # Errors
    /// Which directory or option is wrong, and why.
    pub fn open_disks(
        self: &Arc<Self>,
        directories: Vec<(Arc<dyn DirectoryIo>, u64)>,
        options: &DiskOptions,
        waker: Arc<dyn Waker>,
        now_ms: u64,
    ) -> Result<Vec<DirectoryContents>, Error> {
        let host = CacheCallbacks { cache: Arc::downgrade(self), waker };
        let host: Arc<dyn DiskCallbacks> = Arc::new(host);
        let disks = Disks::open(directories, &host, options, self.hash, now_ms)?;
        if disks.hash_key() != self.hash {
            return Err(Error::OtherKey);
        }
        let contents = disks.contents().to_vec();
        self.disk_tier.now_ms.store(now_ms, Ordering::Relaxed);
        let mut state = self.disk_tier.state.write().unwrap_or_else(PoisonError::into_inner);
        if let DiskState::Awaited(purges) = &*state {
            purges.iter().for_each(|(subject, is_soft)| disks.forget_all(subject, *is_soft));
        }
        *state = DiskState::Open(OpenDisks { disks, is_threadless: options.readers == 0 });
        drop(state);
        self.disk_tier.has_disks.store(true, Ordering::Relaxed);
        Ok(contents)
    }

    /// Makes every request read a stored response from disk again, even if it is in memory.
    pub fn always_reread_disks(&self) {
        self.disk_tier.always_rereads.store(true, Ordering::Relaxed);
    }

    /// Announces disks that another process still uses. Purges and invalidations from now on are
    /// applied to them when they are opened.
    pub fn await_disks(&self) {
        *self.disk_tier.state.write().unwrap_or_else(PoisonError::into_inner) =
            DiskState::Awaited(Vec::new());
        self.disk_tier.has_disks.store(true, Ordering::Relaxed);
    }

    /// Continues without disks. Their queues are written before they are closed. Responses that are
    /// still being loaded are fetched from the origin.
    pub fn close_disks(&self) {
        self.disk_tier.has_disks.store(false, Ordering::Relaxed);
        let state = self.disk_tier.state.write().map(|mut state| std::mem::take(&mut *state));
        // Closing may take long; it is done without the lock.
        drop(state);
    }

    /// Runs one piece of work of disks without threads. Returns `false` if there was none.
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

    /// Returns the statistics of each disk.
    pub fn disk_stats(&self) -> Vec<DiskStats> {
        self.disk_tier.with_disks(|open| open.disks.stats()).unwrap_or_default()
    }
}

/// The callbacks from the disks to the cache.
#[derive(Debug)]
struct CacheCallbacks {
    /// Weak, because the cache owns the disks.
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
        // The prefault thread will make memory ready.
        cache.make_memory_available(error, now_ms) || error == AllocError::NotReady
    }

    fn handle_reply(&self, requester: WaiterId, reply: DiskReply) {
        let Some(cache) = self.cache.upgrade() else { return };
        let woken = match reply {
            DiskReply::Fetched(header) if cache.is_loading(requester.token) => {
                cache.finish_load(requester.token, &header)
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

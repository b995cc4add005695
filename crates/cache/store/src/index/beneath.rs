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

mod answer;
mod bring;
mod keep;
mod operate;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, Weak};

use iolite::Refusal;
use millrace_body::Waiter;
use millrace_disk::{Answered, Contents, Counters, Disks, Error, Host, Options, Volume};
use millrace_http_cache::SpaceTag;

use super::cache::Cache;
use super::tier::{Open, Tier};

/// How those are woken who wait for something that a disk brings. Called on the disks' threads.
pub trait Waker: Send + Sync + std::fmt::Debug {
    /// Somebody may go on.
    fn wake(&self, waiter: Waiter);
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
        volumes: Vec<(Arc<dyn Volume>, u64)>,
        options: &Options,
        waker: Arc<dyn Waker>,
        now_ms: u64,
    ) -> Result<Vec<Contents>, Error> {
        let host = Below { cache: Arc::downgrade(self), waker };
        let host: Arc<dyn Host> = Arc::new(host);
        let disks = Disks::open(volumes, &host, options, self.hash, now_ms)?;
        if disks.hash_key() != self.hash {
            return Err(Error::OtherKey);
        }
        let contents = disks.contents().to_vec();
        self.beneath.now_ms.store(now_ms, Ordering::Relaxed);
        let mut tier = self.beneath.tier.write().unwrap_or_else(PoisonError::into_inner);
        if let Tier::Awaited(purges) = &*tier {
            purges.iter().for_each(|(subject, is_soft)| disks.forget_all(subject, *is_soft));
        }
        *tier = Tier::Open(Open { disks, is_driven: options.readers == 0 });
        drop(tier);
        self.beneath.is_there.store(true, Ordering::Relaxed);
        Ok(contents)
    }

    /// From now on what disks have is read there each time that somebody asks for it, though it is in
    /// memory.
    pub fn reread_disks(&self) {
        self.beneath.rereads.store(true, Ordering::Relaxed);
    }

    /// There will be disks, but another process has them still: what is purged and made invalid
    /// from now on holds for what is on them.
    pub fn await_disks(&self) {
        *self.beneath.tier.write().unwrap_or_else(PoisonError::into_inner) =
            Tier::Awaited(Vec::new());
        self.beneath.is_there.store(true, Ordering::Relaxed);
    }

    /// Goes on without disks: what is in their queues is written, and they are let go. What they
    /// were bringing is left to the origin.
    pub fn close_disks(&self) {
        self.beneath.is_there.store(false, Ordering::Relaxed);
        let tier = self.beneath.tier.write().map(|mut tier| std::mem::take(&mut *tier));
        // It takes as long as the disks take, and nobody else waits for that.
        drop(tier);
    }

    /// Of disks without threads: does a piece of their work. `false`: there was none.
    pub fn work_disks(&self) -> bool {
        self.beneath.with(|open| open.disks.work()).unwrap_or(false)
    }

    /// Returns how many of the responses that recovery has found on disks so far belong to none of
    /// `spaces`; see [`Disks::recovered_outside`].
    ///
    /// [`Disks::recovered_outside`]: millrace_disk::Disks::recovered_outside
    pub fn recovered_outside(&self, spaces: &[SpaceTag]) -> u64 {
        self.beneath.with(|open| open.disks.recovered_outside(spaces)).unwrap_or(0)
    }

    /// What each disk did, and has.
    pub fn disk_counters(&self) -> Vec<Counters> {
        self.beneath.with(|open| open.disks.counters()).unwrap_or_default()
    }
}

/// The cache, as its disks see it.
#[derive(Debug)]
struct Below {
    /// Disks are a part of it, and must not keep it.
    cache: Weak<Cache>,
    waker: Arc<dyn Waker>,
}

impl Host for Below {
    fn wake(&self, waiter: Waiter) {
        self.waker.wake(waiter);
    }

    fn make_room(&self, refusal: Refusal) -> bool {
        let Some(cache) = self.cache.upgrade() else { return false };
        let now_ms = cache.beneath.now_ms.load(Ordering::Relaxed);
        // Memory is made ready by a thread.
        cache.relieve(refusal, now_ms) || refusal == Refusal::Later
    }

    fn answered(&self, asker: Waiter, answered: Answered) {
        let Some(cache) = self.cache.upgrade() else { return };
        let woken = match answered {
            Answered::Fetched(head) if cache.is_coming(asker.token) => {
                cache.has_come(asker.token, &head)
            }
            Answered::NotFetched(_) if cache.is_coming(asker.token) => cache.comes_not(asker.token),
            Answered::Cut(id) => {
                cache.take_out_cut(id.key);
                Vec::new()
            }
            other => {
                cache.note(asker.token, other);
                Vec::new()
            }
        };
        woken.into_iter().for_each(|waiter| self.waker.wake(waiter));
    }
}

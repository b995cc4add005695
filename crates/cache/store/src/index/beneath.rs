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

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, Weak};

use iolite::Refusal;
use millrace_body::Waiter;
use millrace_disk::{Answered, Contents, Counters, Disks, Error, Host, Options, Subject, Volume};
use millrace_http_cache::SpaceTag;

use bring::Coming;

use super::Cache;

/// How those are woken who wait for something that a disk brings. Called on the disks' threads.
pub trait Waker: Send + Sync + std::fmt::Debug {
    /// Somebody may go on.
    fn wake(&self, waiter: Waiter);
}

/// What a cache knows of its disks.
#[derive(Debug, Default)]
pub(super) struct Beneath {
    /// Whether there are any: a hint, so that nobody takes the lock for nothing. Ordered with
    /// nothing, since the lock is taken before they are used.
    is_there: AtomicBool,
    /// What is on a disk is read there each time. Set before anybody asks.
    rereads: AtomicBool,
    tier: RwLock<Tier>,
    /// Held for one such step. Never taken with a shard locked.
    step: Mutex<()>,
    /// What disks are fetching, by the number of the claim.
    coming: Mutex<HashMap<u64, Coming>>,
    /// What operators were told; `None`: they wait for it.
    told: Mutex<HashMap<u64, Option<Answered>>>,
    news: Condvar,
    /// The time when it was last asked for something, for the disks' threads, which have no clock.
    now_ms: AtomicU64,
}

#[derive(Debug, Default)]
enum Tier {
    /// There are no disks.
    #[default]
    Absent,
    /// Another process has them still: what is purged meanwhile, to be told to them.
    Awaited(Vec<(Subject, bool)>),
    Open(Open),
}

#[derive(Debug)]
struct Open {
    disks: Disks,
    /// There are no threads: whoever waits works.
    is_driven: bool,
}

/// Purges that are remembered for disks that are awaited. Above: all of what they have goes.
const AWAITED_MAX: usize = 1024;
/// Who the disks tell is always the cache, which knows the rest by number.
const ASKER: u16 = u16::MAX;

impl Beneath {
    pub(super) fn step(&self) -> Step<'_> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self) -> RwLockReadGuard<'_, Tier> {
        self.tier.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is worth to look for disks.
    fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Does something with the disks, if they are open.
    fn with<T>(&self, what: impl FnOnce(&Open) -> T) -> Option<T> {
        if !self.is_there() {
            return None;
        }
        match &*self.read() {
            Tier::Open(open) => Some(what(open)),
            Tier::Absent | Tier::Awaited(_) => None,
        }
    }

    /// Whether what is in memory is read from a disk again, if it is there.
    pub(super) fn rereads(&self) -> bool {
        self.rereads.load(Ordering::Relaxed)
    }

    /// Begins a step in which the disks are told that something is no longer to be had, or is stale,
    /// which memory has to be told before it ends. Not durable at once; it waits only while a disk
    /// has far too much to do, and before the step, which others need who have nothing to wait for.
    pub(super) fn tell(&self, subjects: &[Subject], is_soft: bool) -> Option<Step<'_>> {
        if !self.is_there() {
            return None;
        }
        self.with(|open| open.disks.wait_for_room());
        let step = self.step();
        let forget = |open: &Open| {
            subjects.iter().for_each(|subject| open.disks.forget_all(subject, is_soft));
        };
        match &*self.read() {
            Tier::Absent => return Some(step),
            Tier::Open(open) => {
                forget(open);
                return Some(step);
            }
            Tier::Awaited(_) => {}
        }
        let mut tier = self.tier.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *tier {
            Tier::Awaited(purges) if purges.len() < AWAITED_MAX => {
                purges.extend(subjects.iter().map(|subject| (subject.clone(), is_soft)));
            }
            Tier::Awaited(purges) => *purges = vec![(Subject::All, false)],
            Tier::Open(open) => forget(open),
            Tier::Absent => {}
        }
        Some(step)
    }
}

/// A step: see above.
type Step<'a> = MutexGuard<'a, ()>;

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

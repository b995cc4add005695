//! What a cache knows of its disks, and what they are to bring.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use millrace_body::Body;
use millrace_disk::{Answered, Candidate, Disks, Subject};
use millrace_http_cache::Key;

/// What a cache knows of its disks.
#[derive(Debug, Default)]
pub(super) struct Beneath {
    /// Whether there are any: a hint, so that nobody takes the lock for nothing. Ordered with
    /// nothing, since the lock is taken before they are used.
    pub(super) is_there: AtomicBool,
    /// What is on a disk is read there each time. Set before anybody asks.
    pub(super) rereads: AtomicBool,
    pub(super) tier: RwLock<Tier>,
    /// Held for one such step. Never taken with a shard locked.
    pub(super) step: Mutex<()>,
    /// What disks are fetching, by the number of the claim.
    pub(super) coming: Mutex<HashMap<u64, Coming>>,
    /// What operators were told; `None`: they wait for it.
    pub(super) told: Mutex<HashMap<u64, Option<Answered>>>,
    pub(super) news: Condvar,
    /// The time when it was last asked for something, for the disks' threads, which have no clock.
    pub(super) now_ms: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) enum Tier {
    /// There are no disks.
    #[default]
    Absent,
    /// Another process has them still: what is purged meanwhile, to be told to them.
    Awaited(Vec<(Subject, bool)>),
    Open(Open),
}

#[derive(Debug)]
pub(super) struct Open {
    pub(super) disks: Disks,
    /// There are no threads: whoever waits works.
    pub(super) is_driven: bool,
}

/// Purges that are remembered for disks that are awaited. Above: all of what they have goes.
const AWAITED_MAX: usize = 1024;
/// Who the disks tell is always the cache, which knows the rest by number.
pub(super) const ASKER: u16 = u16::MAX;

impl Beneath {
    pub(super) fn step(&self) -> Step<'_> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Tier> {
        self.tier.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is worth to look for disks.
    pub(super) fn is_there(&self) -> bool {
        self.is_there.load(Ordering::Relaxed)
    }

    /// Does something with the disks, if they are open.
    pub(super) fn with<T>(&self, what: impl FnOnce(&Open) -> T) -> Option<T> {
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

/// A step: see [`beneath`](super::beneath).
pub(super) type Step<'a> = MutexGuard<'a, ()>;

/// An answer that a disk is to bring; the number under which it stands is its claim's.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) key: Key,
    /// Names the key until the object is there.
    pub(super) handle: u32,
    pub(super) body: Arc<Body>,
    /// [`Cache::number`](super::cache::Cache::number) before it was looked for.
    pub(super) since: u64,
    /// What it was found as.
    pub(super) candidate: Candidate,
}

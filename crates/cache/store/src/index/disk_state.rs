//! What a cache knows of its disks, and what they are to bring.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use millrace_body::Body;
use millrace_disk::{DiskHit, DiskReply, Disks, PurgeTarget};
use millrace_http_cache::Key;

/// What a cache knows of its disks.
#[derive(Debug, Default)]
pub(super) struct DiskTier {
    /// Whether there are any: a hint, so that nobody takes the lock for nothing. Ordered with
    /// nothing, since the lock is taken before they are used.
    pub(super) has_disks: AtomicBool,
    /// What is on a disk is read there each time. Set before anybody asks.
    pub(super) always_rereads: AtomicBool,
    pub(super) state: RwLock<DiskState>,
    /// Held for one such step. Never taken with a shard locked.
    pub(super) step: Mutex<()>,
    /// What disks are fetching, by the number of the claim.
    pub(super) pending_loads: Mutex<HashMap<u64, PendingLoad>>,
    /// What operators were told; `None`: they wait for it.
    pub(super) admin_replies: Mutex<HashMap<u64, Option<DiskReply>>>,
    pub(super) admin_reply_arrived: Condvar,
    /// The time when it was last asked for something, for the disks' threads, which have no clock.
    pub(super) now_ms: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) enum DiskState {
    /// There are no disks.
    #[default]
    Absent,
    /// Another process has them still: what is purged meanwhile, to be told to them.
    Awaited(Vec<(PurgeTarget, bool)>),
    Open(OpenDisks),
}

#[derive(Debug)]
pub(super) struct OpenDisks {
    pub(super) disks: Disks,
    /// There are no threads: whoever waits works.
    pub(super) is_threadless: bool,
}

/// Purges that are remembered for disks that are awaited. Above: all of what they have goes.
const AWAITED_PURGES_MAX: usize = 1024;
/// Who the disks tell is always the cache, which knows the rest by number.
pub(super) const CACHE_WORKER: u16 = u16::MAX;

impl DiskTier {
    pub(super) fn begin_step(&self) -> PurgeStep<'_> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read_state(&self) -> RwLockReadGuard<'_, DiskState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is worth to look for disks.
    pub(super) fn has_disks(&self) -> bool {
        self.has_disks.load(Ordering::Relaxed)
    }

    /// Does something with the disks, if they are open.
    pub(super) fn with_disks<T>(&self, what: impl FnOnce(&OpenDisks) -> T) -> Option<T> {
        if !self.has_disks() {
            return None;
        }
        match &*self.read_state() {
            DiskState::Open(open) => Some(what(open)),
            DiskState::Absent | DiskState::Awaited(_) => None,
        }
    }

    /// Whether what is in memory is read from a disk again, if it is there.
    pub(super) fn always_rereads(&self) -> bool {
        self.always_rereads.load(Ordering::Relaxed)
    }

    /// Begins a step in which the disks are told that something is no longer to be had, or is stale,
    /// which memory has to be told before it ends. Not durable at once; it waits only while a disk
    /// has far too much to do, and before the step, which others need who have nothing to wait for.
    pub(super) fn begin_purge_step(
        &self,
        subjects: &[PurgeTarget],
        is_soft: bool,
    ) -> Option<PurgeStep<'_>> {
        if !self.has_disks() {
            return None;
        }
        self.with_disks(|open| open.disks.wait_for_room());
        let step = self.begin_step();
        let forget = |open: &OpenDisks| {
            subjects.iter().for_each(|subject| open.disks.forget_all(subject, is_soft));
        };
        match &*self.read_state() {
            DiskState::Absent => return Some(step),
            DiskState::Open(open) => {
                forget(open);
                return Some(step);
            }
            DiskState::Awaited(_) => {}
        }
        let mut tier = self.state.write().unwrap_or_else(PoisonError::into_inner);
        match &mut *tier {
            DiskState::Awaited(purges) if purges.len() < AWAITED_PURGES_MAX => {
                purges.extend(subjects.iter().map(|subject| (subject.clone(), is_soft)));
            }
            DiskState::Awaited(purges) => *purges = vec![(PurgeTarget::All, false)],
            DiskState::Open(open) => forget(open),
            DiskState::Absent => {}
        }
        Some(step)
    }
}

/// A step: see [`beneath`](super::beneath).
pub(super) type PurgeStep<'a> = MutexGuard<'a, ()>;

/// An answer that a disk is to bring; the number under which it stands is its claim's.
#[derive(Debug)]
pub(super) struct PendingLoad {
    pub(super) key: Key,
    /// Names the key until the object is there.
    pub(super) handle: u32,
    pub(super) body: Arc<Body>,
    /// [`Cache::number`](super::cache::Cache::number) before it was looked for.
    pub(super) since: u64,
    /// What it was found as.
    pub(super) candidate: DiskHit,
}

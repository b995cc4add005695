//! The cache's state of its disks, and the loads in progress.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use millrace_body::Body;
use millrace_disk::{DiskHit, DiskReply, Disks, PurgeTarget};
use millrace_http_cache::Key;

/// The disks of a cache.
#[derive(Debug, Default)]
pub(super) struct DiskTier {
    /// Whether there are any: a hint that avoids the lock. Relaxed, because the lock is taken
    /// before the disks are used.
    pub(super) has_disks: AtomicBool,
    /// Whether every request reads a stored response from disk again, even if it is in memory. Set
    /// before the first request.
    pub(super) always_rereads: AtomicBool,
    pub(super) state: RwLock<DiskState>,
    /// Held during one step: see [`disk_tier`](super::disk_tier). Never taken with a shard locked.
    pub(super) step: Mutex<()>,
    /// Loads in progress, by the number of their lease.
    pub(super) pending_loads: Mutex<HashMap<u64, PendingLoad>>,
    /// Replies for operators; `None`: not arrived yet.
    pub(super) admin_replies: Mutex<HashMap<u64, Option<DiskReply>>>,
    pub(super) admin_reply_arrived: Condvar,
    /// The time when the disks were opened or when a load last began, for the threads of the disks,
    /// which have no clock.
    pub(super) now_ms: AtomicU64,
}

#[derive(Debug, Default)]
pub(super) enum DiskState {
    /// There are no disks.
    #[default]
    Absent,
    /// Another process still uses them. Purges are collected, with whether they are soft.
    Awaited(Vec<(PurgeTarget, bool)>),
    Open(OpenDisks),
}

#[derive(Debug)]
pub(super) struct OpenDisks {
    pub(super) disks: Disks,
    /// There are no threads: waiting callers run the work themselves.
    pub(super) is_threadless: bool,
}

/// The maximum number of purges that are collected for awaited disks. If there are more, everything
/// on the disks is purged.
const AWAITED_PURGES_MAX: usize = 1024;
/// The worker number in the waiter ids of disk requests: replies go to the cache, which knows the
/// request by its token.
pub(super) const CACHE_WORKER: u16 = u16::MAX;

impl DiskTier {
    pub(super) fn begin_step(&self) -> PurgeStep<'_> {
        self.step.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn read_state(&self) -> RwLockReadGuard<'_, DiskState> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether looking for disks is worthwhile.
    pub(super) fn has_disks(&self) -> bool {
        self.has_disks.load(Ordering::Relaxed)
    }

    /// Calls `call` with the disks, if they are open.
    pub(super) fn with_disks<T>(&self, call: impl FnOnce(&OpenDisks) -> T) -> Option<T> {
        if !self.has_disks() {
            return None;
        }
        match &*self.read_state() {
            DiskState::Open(open) => Some(call(open)),
            DiskState::Absent | DiskState::Awaited(_) => None,
        }
    }

    /// Returns whether responses in memory are read from a disk again.
    pub(super) fn always_rereads(&self) -> bool {
        self.always_rereads.load(Ordering::Relaxed)
    }

    /// Begins a step in which the disks are notified that responses are removed or stale; the
    /// caller changes memory before the step ends. The purge is not durable at once. The call waits
    /// only while a disk is overloaded. It does so before the step, so that steps of others are not
    /// delayed.
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

/// A step: see [`disk_tier`](super::disk_tier).
pub(super) type PurgeStep<'a> = MutexGuard<'a, ()>;

/// A response that a disk is loading, keyed by the number of its lease.
#[derive(Debug)]
pub(super) struct PendingLoad {
    pub(super) key: Key,
    /// Names the key until the object is inserted.
    pub(super) handle: u32,
    pub(super) body: Arc<Body>,
    /// [`Cache::invalidation_seq`](super::cache::Cache::invalidation_seq) before the disk was
    /// queried.
    pub(super) since: u64,
    /// The record that was found.
    pub(super) hit: DiskHit,
}

//! The state of the cache that workers share: shards, bounds, and how memory is made available.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iolite::{Aggregate, AllocError, Slab};
use millrace_body::{Body, WaiterId};
use millrace_disk::PurgeTarget;
use millrace_http_cache::{CachedHeader, HashKey, Key};

use super::disk_state::DiskTier;
use super::invalidations::Invalidations;
use super::shard::{ObjectSlot, Shard};
use crate::evict::{Eviction, SHARDS_SKIPPED_MAX};
use crate::hot_bodies::{HotBodies, HotCopies};
use crate::object::Object;

/// The stored responses of a process, shared by its workers.
#[derive(Debug)]
pub struct Cache {
    pub(super) slab: Slab,
    pub(super) hash: HashKey,
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) bounds: Bounds,
    /// The present [`Bounds::object_bytes`]. Relaxed: ordered with no other memory.
    pub(super) object_bytes: AtomicU64,
    /// The present [`Bounds::variants`]. Relaxed: ordered with no other memory.
    pub(super) variants: AtomicUsize,
    /// The number of the next fetch lease, load from disk, or operator's request to the disks; each
    /// has its own. Relaxed: ordered with no other memory.
    pub(super) last_lease: AtomicU64,
    /// The next shard that has to evict. Its order with other memory does not matter.
    pub(super) next_evicting_shard: AtomicU64,
    /// Bytes of all objects. Written under the lock of the shard that changes. A reader without
    /// that lock at worst evicts one object too many.
    pub(super) held_bytes: AtomicU64,
    /// Failed allocations for bodies. Relaxed: ordered with no other memory.
    pub(super) alloc_failures: AtomicU64,
    /// Recent purges and invalidations.
    pub(super) invalidations: Invalidations,
    /// Responses that operators purged.
    pub(super) purged: AtomicU64,
    /// Waiters whose lease or body was dropped: see [`Cache::take_abandoned_waiters`].
    pub(super) abandoned_waiters: Mutex<Vec<WaiterId>>,
    pub(super) disk_tier: DiskTier,
    /// Which bodies are hot.
    hot_bodies: HotBodies,
}

/// The limits of a cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of all objects, with headers and bookkeeping.
    pub bytes: u64,
    /// Bytes of one body. A longer body passes through and is not stored.
    pub object_bytes: u64,
    /// Objects of one key that differ by the fields in `Vary`.
    pub variants: usize,
    /// Whether a caller that finds no populated memory populates some itself, because there is no
    /// prefault thread.
    pub prefaults: bool,
}

impl Cache {
    /// Creates an empty cache over a slab.
    pub fn new(slab: Slab, hash: HashKey, bounds: Bounds) -> Arc<Self> {
        let shards = Eviction::shards(bounds.bytes).into_iter();
        Arc::new(Self {
            slab,
            hash,
            shards: shards.map(|eviction| Mutex::new(Shard::new(eviction))).collect(),
            object_bytes: AtomicU64::new(bounds.object_bytes),
            variants: AtomicUsize::new(bounds.variants),
            bounds,
            last_lease: AtomicU64::new(0),
            next_evicting_shard: AtomicU64::new(0),
            held_bytes: AtomicU64::new(0),
            alloc_failures: AtomicU64::new(0),
            invalidations: Invalidations::default(),
            purged: AtomicU64::new(0),
            abandoned_waiters: Mutex::default(),
            disk_tier: DiskTier::default(),
            hot_bodies: HotBodies::default(),
        })
    }

    /// Returns the memory of the bodies.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// Returns the key with which cache keys are hashed.
    pub fn hash(&self) -> &HashKey {
        &self.hash
    }

    /// Returns the maximum number of bytes of all objects.
    pub fn bytes_max(&self) -> u64 {
        self.bounds.bytes
    }

    /// Changes the maximum length of a stored body and the maximum number of variants of a key.
    pub fn set_limits(&self, object_bytes: u64, variants: usize) {
        self.object_bytes.store(object_bytes, Ordering::Relaxed);
        self.variants.store(variants, Ordering::Relaxed);
    }

    /// Selects the hot bodies that are sent by copying; none before the first call. The first value
    /// other than [`HotCopies::NONE`] stays.
    pub fn copy_hot(&self, copies: HotCopies) {
        self.hot_bodies.set_copies(copies);
    }

    /// Counts a whole body of `bytes` that is about to be sent. Returns whether to copy it although
    /// it could be sent zero-copy.
    #[inline]
    pub fn note_sent(&self, body: &Body, bytes: u64) -> bool {
        self.hot_bodies.note_sent(body, bytes)
    }

    /// Returns the maximum number of objects of one key that differ by the fields in `Vary`.
    pub(super) fn variants(&self) -> usize {
        self.variants.load(Ordering::Relaxed)
    }

    /// Returns the maximum length of a stored body.
    pub(super) fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Ordering::Relaxed)
    }

    /// Returns whether a body of `bytes` is too long to be stored.
    pub fn is_too_long(&self, bytes: u64) -> bool {
        bytes > self.object_bytes()
    }

    /// Removes a waiter from the fetches for a key.
    pub fn remove_waiter(&self, key: Key, waiter: WaiterId) {
        let mut shard = self.lock_shard(key);
        let Some(entry) = shard.keys.get_mut(&key) else { return };
        for fetch in &mut entry.fetches {
            fetch.waiters.retain(|other| *other != waiter);
        }
    }

    /// Adds the change of a shard's size to the total.
    pub(super) fn update_held_bytes(&self, shard: &mut Shard) {
        let (before, now) = (shard.counted_bytes, shard.eviction.bytes());
        shard.counted_bytes = now;
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Evicts objects, from each shard in turn, until all of them together fit.
    pub(super) fn evict_to_fit(&self, now_ms: u64) {
        while self.held_bytes.load(Ordering::Relaxed) > self.bounds.bytes && self.evict_one(now_ms)
        {
        }
    }

    /// Evicts one object. Returns `false` if there is none.
    fn evict_one(&self, now_ms: u64) -> bool {
        for skipped in 0..self.shards.len() + SHARDS_SKIPPED_MAX {
            let turn = self.next_evicting_shard.fetch_add(1, Ordering::Relaxed) as usize;
            let mut shard = self.lock_shard_at(turn % self.shards.len());
            let removed = shard.evict((now_ms / 1000) as u32, skipped < SHARDS_SKIPPED_MAX);
            self.update_held_bytes(&mut shard);
            drop(shard);
            if removed.is_some() {
                return true;
            }
        }
        false
    }

    /// Makes memory available, or ensures that there will be some. Returns `false` if it can do
    /// nothing.
    pub(super) fn make_memory_available(&self, error: AllocError, now_ms: u64) -> bool {
        match error {
            AllocError::NotReady if self.bounds.prefaults => {
                self.slab.prefault();
                true
            }
            AllocError::NotReady => false,
            AllocError::Fragmented => match self.slab.start_evacuation() {
                Some(tags) => {
                    self.remove_evacuating(&tags);
                    true
                }
                None => self.evict_one(now_ms),
            },
            AllocError::Full => self.evict_one(now_ms),
        }
    }

    /// Counts an allocation for a body that failed after all evictions.
    pub(super) fn count_alloc_failure(&self, error: AllocError) {
        if error != AllocError::NotReady {
            self.alloc_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how often no memory was found for a body although others were evicted for it:
    /// clients that still read evicted bodies hold their memory.
    pub fn alloc_failures(&self) -> u64 {
        self.alloc_failures.load(Ordering::Relaxed)
    }

    /// Returns whether an object of the key has this body. Otherwise only its readers keep its
    /// memory in use.
    pub fn has_body(&self, key: Key, body: &Arc<Body>) -> bool {
        self.lock_shard(key).slot_of(key, body).is_some()
    }

    /// Removes the objects that occupy an evacuating block of the slab.
    fn remove_evacuating(&self, tags: &[u64]) {
        for &tag in tags {
            let (index, handle) = ((tag >> 32) as usize, tag as u32);
            let shard = self.lock_shard_at(index);
            if let Some(key) = shard.key_of(handle) {
                self.remove_objects(shard, key, |slot| slot.handle == handle);
            }
        }
    }

    /// Removes the objects of a key that `is_gone` selects. The caller drops them, which releases
    /// their memory, when it holds no contended lock.
    pub(super) fn remove_objects(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        key: Key,
        is_gone: impl FnMut(&ObjectSlot) -> bool,
    ) -> Vec<ObjectSlot> {
        let removed = shard.remove_objects(key, is_gone);
        self.update_held_bytes(&mut shard);
        removed
    }

    /// Returns the waiters whose lease or body was dropped, for example by a panic. The worker that
    /// replaces the panicked one wakes them. Leases and bodies that end in order return their
    /// waiters themselves.
    #[must_use = "the waiters have to be woken"]
    pub fn take_abandoned_waiters(&self) -> Vec<WaiterId> {
        std::mem::take(&mut *self.lock_abandoned_waiters())
    }

    /// Adds waiters for [`Cache::take_abandoned_waiters`].
    pub fn add_abandoned_waiters(&self, waiters: Vec<WaiterId>) {
        if !waiters.is_empty() {
            self.lock_abandoned_waiters().extend(waiters);
        }
    }

    fn lock_abandoned_waiters(&self) -> MutexGuard<'_, Vec<WaiterId>> {
        self.abandoned_waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the objects of a key from memory and disks. Returns how many were in memory. A
    /// response that is being fetched with a lease is validated before its next use.
    pub fn remove(&self, key: Key) -> usize {
        let step = self.disk_tier.begin_purge_step(&[PurgeTarget::Key(key)], false);
        let mut shard = self.lock_shard(key);
        if let Some(entry) = shard.keys.get_mut(&key) {
            entry.fetches.iter_mut().for_each(|fetch| fetch.is_outdated = true);
        }
        let removed = self.remove_objects(shard, key, |_| true);
        drop(step);
        removed.len()
    }

    /// Replaces an object after its body was cut: the new object is a part and has the bytes that
    /// arrived. If the object was changed meanwhile, it is removed instead, because an invalidation
    /// must not be undone.
    pub(super) fn store_part(
        &self,
        key: Key,
        old: &Arc<Object>,
        stored: CachedHeader,
        arrived: Aggregate,
    ) {
        let mut part = old.with(stored);
        part.declared = Some(arrived.len());
        part.body = Arc::new(Body::whole(arrived));
        let size = part.body.arrived() + part.overhead();
        let mut shard = self.lock_shard(key);
        let slot = shard.slot_of(key, &old.body);
        let Some(slot) = slot.filter(|slot| Arc::ptr_eq(&slot.object, old)) else {
            drop(shard);
            self.remove_body(key, &old.body);
            return;
        };
        let (handle, before) = (slot.handle, std::mem::replace(&mut slot.object, Arc::new(part)));
        shard.eviction.resize(handle, size);
        self.update_held_bytes(&mut shard);
        drop(shard);
        drop(before);
    }

    /// Removes an object from memory and disks.
    pub fn remove_object(&self, key: Key, object: &Object) {
        self.remove_body(key, &object.body);
        self.forget_on_disk(key, object);
    }

    /// Removes the object with this body. Returns whether it was found.
    pub(super) fn remove_body(&self, key: Key, body: &Arc<Body>) -> bool {
        let removed = self
            .remove_objects(self.lock_shard(key), key, |slot| Arc::ptr_eq(&slot.object.body, body));
        !removed.is_empty()
    }

    /// Changes the size of the object with this body.
    pub(super) fn resize(&self, key: Key, body: &Arc<Body>, size: u64, now_ms: u64) {
        let mut shard = self.lock_shard(key);
        let Some(handle) = shard.slot_of(key, body).map(|slot| slot.handle) else { return };
        shard.eviction.resize(handle, size);
        self.update_held_bytes(&mut shard);
        drop(shard);
        self.evict_to_fit(now_ms);
    }

    pub(super) fn shard_index(&self, key: Key) -> u32 {
        (key.0 >> 96) as u32 % self.shards.len() as u32
    }

    pub(super) fn lock_shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.lock_shard_at(self.shard_index(key) as usize)
    }

    /// Locks a shard. A poisoned lock is used: a panic of its holder ends that worker, and the
    /// shard is consistent between any two statements. At worst an object is lost.
    pub(super) fn lock_shard_at(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

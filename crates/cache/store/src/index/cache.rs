//! The state of the cache that its users share: its shards, its bounds, and how room is made.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iolite::{Aggregate, AllocError, Slab};
use millrace_body::{Body, WaiterId};
use millrace_disk::PurgeTarget;
use millrace_http_cache::{HashKey, Key, Stored};

use super::disk_state::DiskTier;
use super::invalidations::Invalidations;
use super::shard::{ObjectSlot, Shard};
use crate::evict::{Eviction, SHARDS_SKIPPED_MAX};
use crate::hot_bodies::{HotBodies, HotCopies};
use crate::object::Object;

/// The stored answers of a process. Shared by its workers.
#[derive(Debug)]
pub struct Cache {
    pub(super) slab: Slab,
    pub(super) hash: HashKey,
    pub(super) shards: Box<[Mutex<Shard>]>,
    pub(super) bounds: Bounds,
    /// Those of [`Bounds`] that may change; in no order with anything else.
    pub(super) object_bytes: AtomicU64,
    pub(super) variants: AtomicUsize,
    /// The number of the last claim; each has its own, in no order with anything else.
    pub(super) last_lease: AtomicU64,
    /// The shard whose turn it is to let an object go; it matters only that all have theirs.
    pub(super) next_evicting_shard: AtomicU64,
    /// Bytes of all objects. Written under the lock of the shard that changes. A reader without
    /// that lock evicts one object too many at worst.
    pub(super) held_bytes: AtomicU64,
    /// Times that no memory was found for a body; in no order with anything else.
    pub(super) alloc_failures: AtomicU64,
    /// What was purged and made invalid of late.
    pub(super) invalidations: Invalidations,
    /// Answers that operators purged.
    pub(super) purged: AtomicU64,
    /// Waiters for something whose owner was dropped: see [`Cache::take_orphans`].
    pub(super) abandoned_waiters: Mutex<Vec<WaiterId>>,
    pub(super) disk_tier: DiskTier,
    /// How hot its bodies are.
    hot_bodies: HotBodies,
}

/// How much is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of all objects together, heads and bookkeeping included.
    pub bytes: u64,
    /// Bytes of one body; what turns out to be longer is passed on and not kept.
    pub object_bytes: u64,
    /// Objects of one key that differ by the request's fields.
    pub variants: usize,
    /// Whether a caller that finds no memory prepares some, because no thread does.
    pub prefaults: bool,
}

impl Cache {
    /// An empty cache over a slab.
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

    /// Where bodies rest.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// What keys are hashed with.
    pub fn hash(&self) -> &HashKey {
        &self.hash
    }

    /// Bytes that all objects may take together.
    pub fn bytes_max(&self) -> u64 {
        self.bounds.bytes
    }

    /// From now on bodies up to `object_bytes` are kept, and so many variants of a key.
    pub fn set_limits(&self, object_bytes: u64, variants: usize) {
        self.object_bytes.store(object_bytes, Ordering::Relaxed);
        self.variants.store(variants, Ordering::Relaxed);
    }

    /// Selects the hot bodies to send by copy; without a call there are none. Only the first call
    /// counts.
    pub fn copy_hot(&self, copies: HotCopies) {
        self.hot_bodies.set_copies(copies);
    }

    /// Counts a whole body of `bytes` that is about to be sent. Returns whether to send it by copy
    /// although it could be sent by reference.
    #[inline]
    pub fn note_sent(&self, body: &Body, bytes: u64) -> bool {
        self.hot_bodies.note_sent(body, bytes)
    }

    /// Objects of one key that differ by the request's fields.
    pub(super) fn variants(&self) -> usize {
        self.variants.load(Ordering::Relaxed)
    }

    /// Bytes of the longest body that is kept.
    pub(super) fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Ordering::Relaxed)
    }

    /// Whether bodies of so many bytes are longer than what is kept.
    pub fn is_too_long(&self, bytes: u64) -> bool {
        bytes > self.object_bytes()
    }

    /// Somebody does not wait any more for whoever fetches what is stored under the key.
    pub fn remove_waiter(&self, key: Key, waiter: WaiterId) {
        let mut shard = self.lock_shard(key);
        let Some(entry) = shard.keys.get_mut(&key) else { return };
        for fetch in &mut entry.fetches {
            fetch.waiters.retain(|other| *other != waiter);
        }
    }

    /// Notes what a shard holds now.
    pub(super) fn update_held_bytes(&self, shard: &mut Shard) {
        let (before, now) = (shard.counted_bytes, shard.eviction.bytes());
        shard.counted_bytes = now;
        self.held_bytes.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Lets objects go, of each shard in turn, until all of them together fit.
    pub(super) fn evict_to_fit(&self, now_ms: u64) {
        while self.held_bytes.load(Ordering::Relaxed) > self.bounds.bytes && self.evict_one(now_ms)
        {
        }
    }

    /// Takes one object out. False if there is none.
    fn evict_one(&self, now_ms: u64) -> bool {
        for passed in 0..self.shards.len() + SHARDS_SKIPPED_MAX {
            let turn = self.next_evicting_shard.fetch_add(1, Ordering::Relaxed) as usize;
            let mut shard = self.lock_shard_at(turn % self.shards.len());
            let gone = shard.evict((now_ms / 1000) as u32, passed < SHARDS_SKIPPED_MAX);
            self.update_held_bytes(&mut shard);
            drop(shard);
            if gone.is_some() {
                return true;
            }
        }
        false
    }

    /// Makes memory available, or sees to it that there will be some. False if there is nothing to
    /// be done.
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

    /// Nothing more was taken out for a body, and there is no memory for it.
    pub(super) fn count_alloc_failure(&self, error: AllocError) {
        if error != AllocError::NotReady {
            self.alloc_failures.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Times that no memory was found for a body, though others were taken out for it: those who
    /// read what is not stored any more have it.
    pub fn alloc_failures(&self) -> u64 {
        self.alloc_failures.load(Ordering::Relaxed)
    }

    /// Whether what is stored under the key has this body. Otherwise only those who read it keep
    /// its memory from being used again.
    pub fn has_body(&self, key: Key, body: &Arc<Body>) -> bool {
        self.lock_shard(key).slot_of(key, body).is_some()
    }

    /// Takes the objects out that a condemned block of the slab has parts of.
    fn remove_evacuating(&self, tags: &[u64]) {
        for &tag in tags {
            let (index, handle) = ((tag >> 32) as usize, tag as u32);
            let shard = self.lock_shard_at(index);
            if let Some(key) = shard.key_of(handle) {
                self.remove_objects(shard, key, |slot| slot.handle == handle);
            }
        }
    }

    /// Takes those objects of a key out that `is_gone` says. The caller drops them, and so gives
    /// their memory back, when it holds no lock that others wait for.
    pub(super) fn remove_objects(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        key: Key,
        is_gone: impl FnMut(&ObjectSlot) -> bool,
    ) -> Vec<ObjectSlot> {
        let gone = shard.remove_objects(key, is_gone);
        self.update_held_bytes(&mut shard);
        gone
    }

    /// Those who waited for a claim or a body whose owner was dropped, in a panic say: whoever takes
    /// its place wakes them. The others give theirs back as they end.
    #[must_use = "they have to be woken"]
    pub fn take_abandoned_waiters(&self) -> Vec<WaiterId> {
        std::mem::take(&mut *self.lock_abandoned_waiters())
    }

    /// Leaves waiters to whoever takes them next.
    pub fn add_abandoned_waiters(&self, waiters: Vec<WaiterId>) {
        if !waiters.is_empty() {
            self.lock_abandoned_waiters().extend(waiters);
        }
    }

    fn lock_abandoned_waiters(&self) -> MutexGuard<'_, Vec<WaiterId>> {
        self.abandoned_waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is stored under the key; gives how many objects that were.
    pub fn remove(&self, key: Key) -> usize {
        let step = self.disk_tier.begin_purge_step(&[PurgeTarget::Key(key)], false);
        let mut shard = self.lock_shard(key);
        if let Some(entry) = shard.keys.get_mut(&key) {
            entry.fetches.iter_mut().for_each(|fetch| fetch.is_outdated = true);
        }
        let gone = self.remove_objects(shard, key, |_| true);
        drop(step);
        gone.len()
    }

    /// What came of an object's body takes its place as a part; or it goes, if it is not there as it
    /// was: what was made invalid meanwhile must not come back.
    pub(super) fn store_part(&self, key: Key, old: &Arc<Object>, stored: Stored, came: Aggregate) {
        let mut part = old.with(stored);
        part.declared = Some(came.len());
        part.body = Arc::new(Body::whole(came));
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

    /// Takes this one out, wherever it is stored.
    pub fn remove_object(&self, key: Key, object: &Object) {
        self.remove_body(key, &object.body);
        self.forget_on_disk(key, object);
    }

    /// Takes the object with this body out. Gives whether it was there.
    pub(super) fn remove_body(&self, key: Key, body: &Arc<Body>) -> bool {
        let gone = self
            .remove_objects(self.lock_shard(key), key, |slot| Arc::ptr_eq(&slot.object.body, body));
        !gone.is_empty()
    }

    /// The object with this body has so many bytes now.
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

    /// Poisoned only by a panic of somebody who held it, which ends the worker: what it guards is
    /// whole between two statements, and at worst an object is forgotten.
    pub(super) fn lock_shard_at(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

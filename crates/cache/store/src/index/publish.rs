//! Storing a response whose body is about to arrive.

use std::sync::{Arc, MutexGuard};

use iolite::AllocError;
use millrace_body::{Filler, WaiterId};
use millrace_http_cache::{CachedHeader, Key, TagHash, VariantKey};

use super::cache::Cache;
use super::fetch_lease::{FetchLease, UNCOLLAPSED_MS};
use super::object_filler::{self, ObjectFiller};
use super::shard::{ObjectSlot, Shard};
use crate::object::Object;

/// The reason why a response that may be stored is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StoreRefusal {
    /// It is longer than the maximum, or it is too large for its value and no request waits for it.
    Size,
    /// There is no memory for its beginning, because readers hold all of it.
    Memory,
}

/// A response to store.
#[derive(Debug)]
pub struct NewEntry {
    /// Its header, and the metadata that decides about its reuse.
    pub stored: CachedHeader,
    /// The values of the fields in `Vary` in the request.
    pub variant: Option<VariantKey>,
    /// The length of its body, if announced.
    pub declared: Option<u64>,
    /// The text of its key.
    pub name: Arc<[u8]>,
    /// The tags by which it can be purged.
    pub tags: Arc<[TagHash]>,
    /// [`Cache::invalidation_seq`] before the request was sent to the origin.
    pub since: u64,
    /// The return value of [`Cache::invalidate`] if this is the response to the unsafe request that
    /// caused the invalidation, so that it does not invalidate itself; 0 otherwise.
    pub own_invalidation: u64,
    /// Whether disks do not get it, because its bytes come from a file.
    pub stays_in_memory: bool,
}

impl Cache {
    /// Stores a response whose body is about to arrive, and removes those that it replaces. Returns
    /// the filler of its body, or why it is not stored; and the waiters of the lease.
    pub fn publish(
        self: &Arc<Self>,
        key: Key,
        lease: Option<FetchLease>,
        entry: NewEntry,
        now_ms: u64,
    ) -> (Result<ObjectFiller, StoreRefusal>, Vec<WaiterId>) {
        let NewEntry { variant, declared, name, tags, since, own_invalidation, .. } = entry;
        let (mut stored, stays_in_memory) = (entry.stored, entry.stays_in_memory);
        let size = declared.unwrap_or(object_filler::FIRST_BYTES);
        let mut shard = self.lock_shard(key);
        // The lock stays held unless objects have to be evicted: no other fetch comes between the
        // lease and the object. Invalidations that come between are found below by their numbers.
        let ended = lease.map(|mut lease| lease.end_in(&mut shard)).unwrap_or_default();
        let is_wanted = shard.eviction.admit(key.0 as u64, size) || !ended.waiters.is_empty();
        if !is_wanted || self.is_too_long(size) {
            return (Err(StoreRefusal::Size), ended.waiters);
        }
        let Some((mut shard, handle, filler)) = self.allocate_filler(shard, key, declared, now_ms)
        else {
            self.count_alloc_failure(AllocError::Full);
            self.lock_shard(key).mark_hit_for_pass(key, now_ms.saturating_add(UNCOLLAPSED_MS));
            return (Err(StoreRefusal::Memory), ended.waiters);
        };
        if ended.is_outdated {
            stored.meta.invalidate();
        }
        // Under the lock: a later purge finds the object, and an earlier one is in these tables.
        if shard.invalidated_keys.has_any_since(&[key], since.max(own_invalidation)) {
            stored.meta.invalidate();
        }
        self.invalidations.apply_since(&mut stored.meta, since, &name, &tags, now_ms);
        let (body, is_from_disk) = (filler.body().clone(), false);
        let object = Object { stored, variant, declared, body, name, tags, is_from_disk };
        let removed = self.remove_replaced(&mut shard, key, &object);
        let (size, number) = (size + object.overhead(), self.invalidation_seq());
        let object = Arc::new(object);
        shard.insert(key, handle, object.clone(), size, since);
        self.update_held_bytes(&mut shard);
        drop(shard);
        drop(removed);
        self.evict_to_fit(now_ms);
        let (cache, filler) = (self.clone(), Some(filler));
        let object_filler = ObjectFiller {
            stored_seq: number,
            is_kept: true,
            stays_in_memory,
            cache,
            key,
            object,
            filler,
            size,
        };
        (Ok(object_filler), ended.waiters)
    }

    /// Returns a handle for a new object and the filler of its body. The filler has memory for the
    /// beginning, unless no populated memory is ready yet. Returns `None` if no memory can be made
    /// available. The shard is unlocked while objects are evicted.
    fn allocate_filler<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        key: Key,
        declared: Option<u64>,
        now_ms: u64,
    ) -> Option<(MutexGuard<'a, Shard>, u32, Filler)> {
        for _ in 0..object_filler::EVICTIONS_MAX {
            let handle = shard.new_handle(key);
            let tag = u64::from(self.shard_index(key)) << 32 | u64::from(handle);
            let mut filler =
                Filler::new(&self.slab, object_filler::memory_kind(declared), declared, tag);
            let error = match declared {
                Some(0) => None,
                _ => filler.unfilled().err(),
            };
            let Some(error) = error.filter(|error| *error != AllocError::NotReady) else {
                return Some((shard, handle, filler));
            };
            shard.free_handle(handle);
            drop(shard);
            if !self.make_memory_available(error, now_ms) {
                return None;
            }
            shard = self.lock_shard(key);
        }
        None
    }

    /// Removes the objects that a new one replaces: those of the same variant, those with another
    /// `Vary`, and the oldest ones if there are too many. A part does not replace a complete
    /// response of its variant.
    fn remove_replaced(&self, shard: &mut Shard, key: Key, new: &Object) -> Vec<ObjectSlot> {
        let is_part = new.meta().stored_range.is_some();
        let count = shard.keys.get(&key).map_or(0, |entry| entry.objects.len());
        let mut surplus = (count + 1).saturating_sub(self.variants());
        shard.remove_objects(key, |slot| {
            let old = &slot.object;
            let is_same = old.variant == new.variant && old.stored.vary == new.stored.vary;
            let is_other = old.stored.vary != new.stored.vary;
            let is_better = is_part && old.meta().stored_range.is_none() && !old.is_cut();
            let is_gone = (is_same && !is_better) || is_other || surplus > 0;
            surplus = surplus.saturating_sub(usize::from(is_gone));
            is_gone
        })
    }
}

//! Loading responses from disk into memory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use millrace_body::{Filler, WaiterId};
use millrace_disk::{DiskHit, FetchRequest, StoredHeader};
use millrace_http_cache::{Key, VaryNames};

use super::convert::from_disk;
use crate::index::cache::Cache;
use crate::index::disk_state::{CACHE_WORKER, DiskState, PendingLoad};
use crate::index::fetch_lease::FetchLease;
use crate::index::lookup::LookupRequest;
use crate::index::object_filler;
use crate::index::shard::{KeyEntry, ObjectSlot, PendingFetch, Shard};

impl Cache {
    /// Starts to load the response to a request that memory cannot serve, and registers the
    /// waiter. Returns `false` if the request may not wait, if its variant is already being fetched
    /// by another one, if no disk has the response, or if the disk is overloaded or being closed.
    ///
    /// The shard stays locked during the request to the disk, which takes a short lock. Otherwise
    /// another request could already wait for a load that the disk refuses.
    pub(in crate::index) fn start_load(
        &self,
        shard: &mut Shard,
        lookup: &LookupRequest<'_>,
    ) -> bool {
        if !self.disk_tier.has_disks() {
            return false;
        }
        let Some(waiter) = lookup.waiter.filter(|_| lookup.uses_disks) else { return false };
        let key = lookup.key;
        let since = self.invalidation_seq();
        let entry = shard.keys.get(&key);
        let vary_key = entry.and_then(|entry| entry.vary_key(&self.hash, lookup.request));
        if entry.is_some_and(|entry| entry.fetches.iter().any(|fetch| fetch.vary_key == vary_key)) {
            return false;
        }
        // The shard is locked, so nothing here may wait, for example for disks that are being
        // closed.
        let Ok(state) = self.disk_tier.state.try_read() else { return false };
        let DiskState::Open(open) = &*state else { return false };
        let mut found = open.disks.find(key).into_iter();
        let Some(hit) = found.find(|hit| self.matches_request(hit, entry, lookup)) else {
            return false;
        };
        self.disk_tier.now_ms.store(lookup.now_ms, Ordering::Relaxed);
        let handle = shard.new_handle(key);
        let tag = u64::from(self.shard_index(key)) << 32 | u64::from(handle);
        let bytes = hit.body_bytes;
        let filler =
            Filler::new(&self.slab, object_filler::memory_kind(Some(bytes)), Some(bytes), tag);
        let body = filler.body().clone();
        let number = self.last_lease.fetch_add(1, Ordering::Relaxed);
        let requester = WaiterId { worker: CACHE_WORKER, token: number };
        let request = FetchRequest { hit: hit.clone(), filler, requester };
        // Locked until the load is inserted: a thread of the disk may reply before this one
        // continues.
        let mut all = self.lock_pending_loads();
        if open.disks.fetch(Box::new(request)).is_err() {
            shard.free_handle(handle);
            return false;
        }
        all.insert(number, PendingLoad { key, handle, body, since, hit });
        let (waiters, is_disk_load) = (vec![waiter], true);
        let fetch = PendingFetch {
            lease: number,
            vary_key,
            waiters,
            is_disk_load,
            ..PendingFetch::default()
        };
        shard.keys.entry(key).or_default().fetches.push(fetch);
        true
    }

    /// Removes the response to a request from memory if a disk has it and the request may use
    /// disks.
    pub(in crate::index) fn drop_for_reread(&self, shard: &mut Shard, lookup: &LookupRequest<'_>) {
        let entry = shard.keys.get(&lookup.key);
        let slot = entry.and_then(|entry| entry.find(&self.hash, lookup.request));
        let is_whole = |slot: &&ObjectSlot| slot.object.body.bytes().is_some();
        let Some(slot) = slot.filter(is_whole).filter(|_| lookup.uses_disks) else { return };
        let (handle, variant) = (slot.handle, slot.object.variant);
        let Ok(state) = self.disk_tier.state.try_read() else { return };
        let DiskState::Open(open) = &*state else { return };
        let found = open.disks.find(lookup.key);
        if lookup.waiter.is_some() && found.iter().any(|found| found.variant == variant) {
            shard.remove_objects(lookup.key, |slot| slot.handle == handle);
            self.update_held_bytes(shard);
        }
    }

    /// Returns whether a response on disk matches a request. One with another `Vary` than the
    /// objects in memory is older than they are.
    fn matches_request(
        &self,
        found: &DiskHit,
        entry: Option<&KeyEntry>,
        lookup: &LookupRequest<'_>,
    ) -> bool {
        let objects = entry.map_or(&[][..], |entry| &entry.objects);
        let newest = objects.last().map(|slot| slot.object.stored.vary.as_ref());
        let newest = newest.map(|names| names.map(VaryNames::as_bytes));
        if newest.is_some_and(|names| names != found.vary.as_deref())
            || found.body_bytes > self.object_bytes()
        {
            return false;
        }
        let (Some(names), Some(variant)) = (&found.vary, &found.variant) else { return true };
        let names = VaryNames::from_bytes(names);
        names.is_some_and(|names| variant.matches(&names.key(&self.hash, lookup.request)))
    }

    pub(super) fn is_loading(&self, number: u64) -> bool {
        self.lock_pending_loads().contains_key(&number)
    }

    /// Inserts the object whose header and first bytes were loaded. Returns the waiters.
    pub(super) fn finish_load(
        self: &Arc<Self>,
        number: u64,
        header: &StoredHeader,
    ) -> Vec<WaiterId> {
        let Some(load) = self.lock_pending_loads().remove(&number) else { return Vec::new() };
        let PendingLoad { key, handle, body, since, hit } = load;
        let mut lease = FetchLease::new(self.clone(), key, number);
        let now_ms = self.disk_tier.now_ms.load(Ordering::Relaxed);
        let object = from_disk(header, body, &self.hash);
        let mut shard = self.lock_shard(key);
        let ended = lease.end_in(&mut shard);
        let is_there = self.check_on_disk(&hit, object.is_some());
        let Some(mut object) = object.filter(|_| is_there) else {
            shard.free_handle(handle);
            return ended.waiters;
        };
        let meta = &mut object.stored.meta;
        // The disk does not record when and why the response became stale. The cause may have been
        // an unsafe request of a client, after which no stale use is allowed.
        if ended.is_outdated || header.is_stale {
            meta.invalidate();
        }
        self.invalidations.apply_since(meta, since, &object.name, &object.tags, now_ms);
        // Meanwhile memory may have got a newer response from the origin: the same variant, or one
        // with another `Vary`.
        let replaces = |other: &crate::Object| {
            other.stored.vary != object.stored.vary
                || (other.variant == object.variant && !other.is_cut())
        };
        let others = shard.keys.get(&key).map_or(&[][..], |entry| &entry.objects);
        if others.len() >= self.variants() || others.iter().any(|slot| replaces(&slot.object)) {
            shard.free_handle(handle);
            return ended.waiters;
        }
        let size = header.body_bytes + object.overhead();
        let objects = shard.insert(key, handle, Arc::new(object), size, since);
        // The other objects of its key are newer.
        objects.rotate_right(1);
        objects[0].is_on_disk = true;
        self.update_held_bytes(&mut shard);
        drop(shard);
        self.evict_to_fit(now_ms);
        ended.waiters
    }

    /// Returns whether the disk still has the response that was found. If not, the response was
    /// removed, or a newer one replaced it. The newer one need not be in memory any more. An
    /// unreadable response is removed from the disk.
    fn check_on_disk(&self, hit: &DiskHit, is_readable: bool) -> bool {
        // As in `start_load`: a shard is locked, so this must not wait.
        let Ok(state) = self.disk_tier.state.try_read() else { return false };
        let DiskState::Open(open) = &*state else { return false };
        let is_there = open.disks.has(hit);
        if is_there && !is_readable {
            open.disks.forget(hit.id);
        }
        is_there
    }

    /// Ends a load that failed. Returns the waiters, which look up again.
    pub(super) fn fail_load(self: &Arc<Self>, number: u64) -> Vec<WaiterId> {
        let Some(load) = self.lock_pending_loads().remove(&number) else { return Vec::new() };
        let PendingLoad { key, handle, .. } = load;
        let ended = FetchLease::new(self.clone(), key, number).end(None);
        self.lock_shard(key).free_handle(handle);
        ended.waiters
    }

    /// Removes objects whose load was cut.
    pub(super) fn remove_cut(&self, key: Key) {
        self.remove_objects(self.lock_shard(key), key, |slot| slot.object.is_cut());
    }

    fn lock_pending_loads(
        &self,
    ) -> std::sync::MutexGuard<'_, std::collections::HashMap<u64, PendingLoad>> {
        self.disk_tier.pending_loads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

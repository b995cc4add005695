//! Storing objects of memory on disks.

use std::sync::Arc;

use millrace_body::Body;
use millrace_http_cache::Key;

use super::convert::{id_of, to_disk};
use crate::index::cache::Cache;
use crate::index::disk_state::DiskState;
use crate::index::shard::ObjectSlot;
use crate::object::Object;

impl Cache {
    /// Writes an object to a disk, after its body has become whole. `since` is
    /// [`Cache::invalidation_seq`] when it was stored in memory.
    ///
    /// It is written at once rather than at its eviction: popular objects stay in memory, and would
    /// be lost at the end of the process.
    pub(in crate::index) fn store_on_disk(&self, key: Key, body: &Arc<Body>, since: u64) {
        if !self.disk_tier.has_disks() {
            return;
        }
        let _step = self.disk_tier.begin_step();
        let Some(object) = self.current_object(key, body) else { return };
        let mut meta = *object.meta();
        self.invalidations.apply_since(&mut meta, since, &object.name, &object.tags, 0);
        if meta != *object.meta() {
            // A purge covers the object and is about to remove it.
            return;
        }
        let Some(response) = to_disk(key, &object, &self.hash) else { return };
        self.disk_tier.with_disks(|open| {
            let mut others = open.disks.find(key);
            others.retain(|other| other.id != response.id);
            let surplus = (others.len() + 1).saturating_sub(self.variants());
            for (at, other) in others.iter().enumerate() {
                if other.vary != response.vary || at < surplus {
                    open.disks.forget(other.id);
                }
            }
            let mut shard = self.lock_shard(key);
            let slot = shard.slot_of(key, body);
            match slot.filter(|slot| Arc::ptr_eq(&slot.object, &object)) {
                // An object that the disk refuses stays in memory only: the disk has also removed
                // the version before it.
                Some(slot) => slot.is_on_disk = open.disks.store(Box::new(response)).is_ok(),
                // Meanwhile a 304 replaced the object, or it was evicted. The version on the disk
                // is older than the response that was just received.
                None => open.disks.forget(response.id),
            }
        });
    }

    /// Returns a stored object after applying the invalidations of its tags.
    fn current_object(&self, key: Key, body: &Arc<Body>) -> Option<Arc<Object>> {
        let mut shard = self.lock_shard(key);
        self.invalidations.apply_to_entry(shard.keys.get_mut(&key)?);
        Some(shard.slot_of(key, body)?.object.clone())
    }

    /// Updates the disk after a 304 replaced `old` by the object in `slot`. Called under the
    /// shard's lock, so that no other object with the same id can be stored before.
    ///
    /// Returns whether the version on the disk has to be removed. This is so if its `Vary` or its
    /// tags differ, because wrong requests or purges would match it. It is also so if its body is
    /// older, because it must not get this header.
    pub(in crate::index) fn update_on_disk(
        &self,
        key: Key,
        old: &Object,
        slot: &ObjectSlot,
    ) -> bool {
        let new = &slot.object;
        if !self.disk_tier.has_disks() {
            return false;
        }
        if !slot.is_on_disk || old.stored.vary != new.stored.vary || old.tags != new.tags {
            return true;
        }
        let Ok(state) = self.disk_tier.state.try_read() else { return true };
        if let DiskState::Open(open) = &*state {
            let id = id_of(key, new.variant.as_ref());
            open.disks.update(id, new.meta().to_bytes(), &new.header().into());
        }
        false
    }

    /// Removes a response from the disks.
    pub(in crate::index) fn forget_on_disk(&self, key: Key, object: &Object) {
        let id = id_of(key, object.variant.as_ref());
        let _step = self.disk_tier.begin_step();
        self.disk_tier.with_disks(|open| open.disks.forget(id));
    }
}

//! Handing what memory has to the disks.

use std::sync::Arc;

use millrace_body::Body;
use millrace_http_cache::Key;

use super::convert::{id_of, to_disk};
use crate::index::cache::Cache;
use crate::index::disk_state::DiskState;
use crate::index::shard::ObjectSlot;
use crate::object::Object;

impl Cache {
    /// Has an object stored on a disk too, whose body is whole now. `since`: what [`Cache::number`]
    /// was when it was put into memory.
    ///
    /// At once, not when memory lets go of it: what is popular stays in memory, and would be gone
    /// when the process ends.
    pub(in crate::index) fn store_on_disk(&self, key: Key, body: &Arc<Body>, since: u64) {
        if !self.disk_tier.has_disks() {
            return;
        }
        let _step = self.disk_tier.begin_step();
        let Some(object) = self.current_object(key, body) else { return };
        let mut meta = *object.meta();
        self.invalidations.apply_since(&mut meta, since, &object.name, &object.tags, 0);
        if meta != *object.meta() {
            // Purged, and about to be found by whoever does it.
            return;
        }
        let Some(answer) = to_disk(key, &object, &self.hash) else { return };
        self.disk_tier.with_disks(|open| {
            let mut others = open.disks.find(key);
            others.retain(|other| other.id != answer.id);
            let surplus = (others.len() + 1).saturating_sub(self.variants());
            for (at, other) in others.iter().enumerate() {
                if other.vary != answer.vary || at < surplus {
                    open.disks.forget(other.id);
                }
            }
            let mut shard = self.lock_shard(key);
            let slot = shard.slot_of(key, body);
            match slot.filter(|slot| Arc::ptr_eq(&slot.object, &object)) {
                // One that is left out is in memory all the same.
                Some(slot) => slot.is_on_disk = open.disks.store(Box::new(answer)).is_ok(),
                // A 304 came just now, or memory let it go: what the disk has is older than that.
                None => open.disks.forget(answer.id),
            }
        });
    }

    /// An object that is stored, when it has heeded everything.
    fn current_object(&self, key: Key, body: &Arc<Body>) -> Option<Arc<Object>> {
        let mut shard = self.lock_shard(key);
        self.invalidations.apply_to_entry(shard.keys.get_mut(&key)?);
        Some(shard.slot_of(key, body)?.object.clone())
    }

    /// What a 304 made of the object in a slot, which was `old`. Called under its shard's lock, so
    /// that no other object with the same id can be handed over before. Gives whether what the disks
    /// have under its id has to be forgotten: it is found by what the object varied by, and goes by
    /// the tags that it had; or it is the body of an older one, which this head must not get.
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
        let Ok(tier) = self.disk_tier.state.try_read() else { return true };
        if let DiskState::Open(open) = &*tier {
            let id = id_of(key, new.variant.as_ref());
            open.disks.update(id, new.meta().to_bytes(), &new.header().into());
        }
        false
    }

    /// An answer is no longer to be had from a disk.
    pub(in crate::index) fn forget_on_disk(&self, key: Key, object: &Object) {
        let id = id_of(key, object.variant.as_ref());
        let _step = self.disk_tier.begin_step();
        self.disk_tier.with_disks(|open| open.disks.forget(id));
    }
}

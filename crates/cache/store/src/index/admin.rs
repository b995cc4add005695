//! What operators do with all that is stored: they look, count and purge. Nobody else waits for
//! them: a shard's lock is held for a few objects at a time, and never while a caller has them.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iolite::SlabStats;
use millrace_disk as disk;
use millrace_http_cache::Key;

use super::cache::Cache;
use super::selector::Selector;
use crate::object::Object;

/// What a purge came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PurgeResult {
    /// Answers that were in memory. Those that only disks have are purged too, and not counted.
    pub count: u64,
    /// Nothing of it comes back from a disk, even if the machine loses its power now. `None`: there
    /// are no disks.
    pub is_durable: Option<bool>,
}

/// What is stored and what became of it, at one time or nearly so: the shards are counted one after
/// the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Answers that are stored.
    pub objects: u64,
    /// Bytes that they count as: bodies, heads and bookkeeping.
    pub bytes: u64,
    /// Bytes that they may count as.
    pub bytes_max: u64,
    /// Answers that were let go to make room, expired ones among them.
    pub evicted: u64,
    /// Answers that were let go because nothing could be made of them any more.
    pub expired: u64,
    /// Answers that were not stored since they were large and nobody had asked for them twice.
    pub refused: u64,
    /// Answers that operators purged, softly or not.
    pub purged: u64,
    /// The memory in which bodies rest.
    pub slab: SlabStats,
    /// All disks together.
    pub disks: disk::DiskStats,
}

/// Objects that are looked at while a shard's lock is held: some microseconds.
const OBJECTS_PER_LOCK: u32 = 256;

impl Cache {
    /// The number of the last purge or invalidation, to be taken before an origin is asked: see
    /// [`Draft::since`](super::publish::Draft::since).
    pub fn invalidation_seq(&self) -> u64 {
        self.invalidations.last_seq()
    }

    /// Takes answers out; with `is_soft` they stay and are stale from now on, to be used where stale
    /// answers may be. Those that are being fetched are not used without being validated. Gives how
    /// many were there. With disks it waits until they have written it.
    pub fn purge(&self, selector: &Selector, is_soft: bool, now_ms: u64) -> PurgeResult {
        // Before the walk: what comes in behind it has heeded this.
        self.begin_purge(selector, is_soft);
        let mut count = 0;
        self.walk(selector, |key, object| {
            count += u64::from(match is_soft {
                true => self.expire(key, &object, now_ms),
                false => self.remove_body(key, &object.body),
            });
            ControlFlow::Continue(())
        });
        let is_durable = self.purge_disks(selector, is_soft);
        // A number for people, in no order with anything.
        self.purged.fetch_add(count, Ordering::Relaxed);
        PurgeResult { count, is_durable }
    }

    /// Up to `max` of the answers, in no order, and whether there are more.
    pub fn list(&self, selector: &Selector, max: usize) -> (Vec<Arc<Object>>, bool) {
        let (mut found, mut is_more) = (Vec::new(), false);
        self.walk(selector, |_, object| {
            is_more = found.len() == max;
            if is_more {
                return ControlFlow::Break(());
            }
            found.push(object);
            ControlFlow::Continue(())
        });
        (found, is_more)
    }

    /// What is stored, counted.
    pub fn stats(&self) -> CacheStats {
        let mut stats = CacheStats {
            bytes_max: self.bounds.bytes,
            purged: self.purged.load(Ordering::Relaxed),
            slab: self.slab.stats(),
            disks: self
                .disk_stats()
                .iter()
                .fold(disk::DiskStats::default(), |all, disk| all + *disk),
            ..CacheStats::default()
        };
        for index in 0..self.shards.len() {
            let shard = self.lock_shard_at(index);
            let counts = shard.eviction.stats();
            stats.objects += counts.entries;
            stats.bytes += shard.eviction.bytes();
            stats.evicted += counts.evicted;
            stats.expired += counts.expired;
            stats.refused += counts.refused;
        }
        stats
    }

    /// Gives each of the answers that are there now to `each`, which may end it; some that come
    /// meanwhile too.
    fn walk(&self, selector: &Selector, mut each: impl FnMut(Key, Arc<Object>) -> ControlFlow<()>) {
        for index in 0..self.shards.len() {
            let mut at = Some(0);
            while let Some(from) = at {
                let (found, next) = self.collect_matches(index, from, selector);
                for (key, object) in found {
                    if each(key, object).is_break() {
                        return;
                    }
                }
                at = next;
            }
        }
    }

    /// The answers among some handles of a shard, and where the next ones begin.
    fn collect_matches(
        &self,
        index: usize,
        from: u32,
        selector: &Selector,
    ) -> (Vec<(Key, Arc<Object>)>, Option<u32>) {
        let mut found = Vec::new();
        let mut shard = self.lock_shard_at(index);
        let end = shard.handles_end().min(from.saturating_add(OBJECTS_PER_LOCK));
        for handle in from..end {
            let Some(key) = shard.key_of(handle) else { continue };
            // A body that is about to be filled has a handle before it has a place.
            let Some(entry) = shard.keys.get_mut(&key) else { continue };
            self.invalidations.apply_to_entry(entry);
            let slot = entry.objects.iter().find(|slot| slot.handle == handle);
            let object = slot.map(|slot| &slot.object);
            let object = object.filter(|object| selector.matches(&object.name, &object.tags));
            found.extend(object.map(|object| (key, object.clone())));
        }
        let next = (end < shard.handles_end()).then_some(end);
        (found, next)
    }

    fn expire(&self, key: Key, object: &Object, now_ms: u64) -> bool {
        let mut shard = self.lock_shard(key);
        let Some(slot) = shard.slot_of(key, &object.body) else { return false };
        Arc::make_mut(&mut slot.object).stored.meta.expire(now_ms);
        true
    }
}

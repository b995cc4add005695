//! Operators' queries and purges of all stored responses. Requests are hardly delayed: a shard's
//! lock is held for at most 256 objects at a time, and never while a callback runs.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use iolite::SlabStats;
use millrace_disk as disk;
use millrace_http_cache::Key;

use super::cache::Cache;
use super::selector::Selector;
use crate::object::Object;

/// The result of a purge.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PurgeResult {
    /// Responses purged from memory. Responses that only disks have are purged, too, but not
    /// counted.
    pub count: u64,
    /// Whether the purge survives a power failure. `None`: there are no disks.
    pub is_durable: Option<bool>,
}

/// Statistics of the cache. The shards are counted one after the other, so the numbers may be a
/// little inconsistent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStats {
    /// Stored responses.
    pub objects: u64,
    /// Their size in bytes: bodies, headers and bookkeeping.
    pub bytes: u64,
    /// The maximum of `bytes`.
    pub bytes_max: u64,
    /// Responses evicted to make room, including expired ones.
    pub evicted: u64,
    /// Responses evicted because they had expired and were useless.
    pub expired: u64,
    /// Responses that the eviction policy refused: they were large and not requested shortly
    /// before, or larger than the cache. They count even if they were stored because requests
    /// waited for them.
    pub refused: u64,
    /// Responses that operators purged, softly or not.
    pub purged: u64,
    /// The memory of the bodies.
    pub slab: SlabStats,
    /// The sum of all disks.
    pub disks: disk::DiskStats,
}

/// Objects examined while a shard's lock is held: some microseconds.
const OBJECTS_PER_LOCK: u32 = 256;

impl Cache {
    /// Returns the sequence number of the last purge or invalidation. Read it before sending a
    /// request to an origin: see [`NewEntry::since`](super::publish::NewEntry::since).
    pub fn invalidation_seq(&self) -> u64 {
        self.invalidations.last_seq()
    }

    /// Purges responses. With `is_soft` they stay, are stale from now on, and are served where
    /// stale responses are allowed. A response that is being fetched is validated before its next
    /// use, or is stale after a soft purge. With disks, the call waits until they have written the
    /// purge.
    pub fn purge(&self, selector: &Selector, is_soft: bool, now_ms: u64) -> PurgeResult {
        // Before the walk, because the walk misses objects that are inserted where it has passed.
        // The purge is applied to them when they are inserted.
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
        // Relaxed: a statistic, ordered with no other memory.
        self.purged.fetch_add(count, Ordering::Relaxed);
        PurgeResult { count, is_durable }
    }

    /// Returns up to `max` of the responses, in no particular order, and whether there are more.
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

    /// Returns the statistics.
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

    /// Calls `each` with every selected response that is stored now, until `each` returns
    /// [`ControlFlow::Break`]. Responses that are stored meanwhile may be among them.
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

    /// Returns the selected responses in a range of a shard's handles, and where the next range
    /// begins.
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
            // A body that is about to be filled has a handle before it has a slot.
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

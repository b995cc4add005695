//! Clearing a cache and counting its contents, so that leaks are noticed at its end.

use std::sync::atomic::Ordering;

use super::cache::Cache;

/// The contents of a cache when it was cleared.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClearReport {
    /// Objects.
    pub objects: usize,
    /// Objects whose body was not whole: its filler is still active, or was lost without a cut.
    pub unfinished: usize,
    /// Fetch leases that had not ended.
    pub leases: usize,
    /// Waiters for the end of a lease.
    pub waiters: usize,
    /// Bytes still counted after all objects were removed; 0 unless there is a bug.
    pub leaked_bytes: u64,
}

impl Cache {
    /// Removes all objects and returns the counts. Leases remain with their owners. Meant for the
    /// end of a cache: it walks over all shards, one lock at a time.
    pub fn clear(&self) -> ClearReport {
        let mut cleared = ClearReport::default();
        for index in 0..self.shards.len() {
            let mut shard = self.lock_shard_at(index);
            let keys: Vec<_> = shard.keys.keys().copied().collect();
            let mut removed = Vec::new();
            for key in keys {
                let fetches = shard.keys.get(&key).map_or(&[][..], |entry| &entry.fetches);
                cleared.leases += fetches.len();
                cleared.waiters += fetches.iter().map(|fetch| fetch.waiters.len()).sum::<usize>();
                removed.append(&mut shard.remove_objects(key, |_| true));
            }
            self.update_held_bytes(&mut shard);
            drop(shard);
            cleared.objects += removed.len();
            let unfinished = removed.iter().filter(|slot| slot.object.body.bytes().is_none());
            cleared.unfinished += unfinished.count();
        }
        cleared.leaked_bytes = self.held_bytes.load(Ordering::Relaxed);
        cleared
    }
}

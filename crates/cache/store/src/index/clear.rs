//! Taking everything out, with a count of what was there: whoever ends a cache finds out whether
//! something was left behind.

use std::sync::atomic::Ordering;

use super::cache::Cache;

/// What a cache held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ClearReport {
    /// Objects.
    pub objects: usize,
    /// Those whose body was not whole: each has somebody who fills it, or had one who did not say
    /// that the rest would never come.
    pub unfinished: usize,
    /// Claims that had not ended.
    pub leases: usize,
    /// Those who waited for a claim to end.
    pub waiters: usize,
    /// Bytes that the objects counted as and that were not taken off when they went.
    pub leaked_bytes: u64,
}

impl Cache {
    /// Takes out everything that is stored, and says what was there. Claims stay with those who
    /// have them. For the end of a cache: all shards are walked, each under its lock.
    pub fn clear(&self) -> ClearReport {
        let mut cleared = ClearReport::default();
        for index in 0..self.shards.len() {
            let mut shard = self.lock_shard_at(index);
            let keys: Vec<_> = shard.keys.keys().copied().collect();
            let mut gone = Vec::new();
            for key in keys {
                let fetches = shard.keys.get(&key).map_or(&[][..], |entry| &entry.fetches);
                cleared.leases += fetches.len();
                cleared.waiters += fetches.iter().map(|fetch| fetch.waiters.len()).sum::<usize>();
                gone.append(&mut shard.remove_objects(key, |_| true));
            }
            self.update_held_bytes(&mut shard);
            drop(shard);
            cleared.objects += gone.len();
            let unfinished = gone.iter().filter(|slot| slot.object.body.bytes().is_none());
            cleared.unfinished += unfinished.count();
        }
        cleared.leaked_bytes = self.held_bytes.load(Ordering::Relaxed);
        cleared
    }
}

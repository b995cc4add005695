//! The right to fetch for a key.

use std::sync::Arc;

use millrace_body::WaiterId;
use millrace_http_cache::Key;

use super::cache::Cache;
use super::shard::Shard;

/// The right to fetch what is to be stored under a key, for one variant of it: until it ends, those
/// who ask for the same wait. It ends by [`Cache::publish`], by [`Claim::release`], or by
/// [`Claim::pass`].
#[derive(Debug)]
pub struct FetchLease {
    cache: Arc<Cache>,
    key: Key,
    /// Among all claims that there ever were; `None`: it has ended.
    number: Option<u64>,
}

impl FetchLease {
    pub(super) fn new(cache: Arc<Cache>, key: Key, number: u64) -> Self {
        Self { cache, key, number: Some(number) }
    }

    /// Nothing came of it. Gives those who waited: the first of them may try.
    #[must_use = "who waited has to be woken"]
    pub fn release(mut self) -> Vec<WaiterId> {
        self.end(None).waiters
    }

    /// What came is for its client alone. Gives those who waited: they ask the origin themselves,
    /// and so does, until `until_ms`, everybody who asks for this key.
    #[must_use = "who waited has to be woken"]
    pub fn release_as_private(mut self, until_ms: u64) -> Vec<WaiterId> {
        self.end(Some(until_ms)).waiters
    }

    pub(super) fn end(&mut self, pass_until_ms: Option<u64>) -> EndedLease {
        let Some(number) = self.number.take() else { return EndedLease::default() };
        end(&mut self.cache.lock_shard(self.key), self.key, number, pass_until_ms)
    }

    /// The same in its shard, which is locked: what comes of it is put there before anybody can make
    /// it invalid.
    pub(super) fn end_in(&mut self, shard: &mut Shard) -> EndedLease {
        let Some(number) = self.number.take() else { return EndedLease::default() };
        end(shard, self.key, number, None)
    }
}

/// For how long nobody waits for others who ask for the same, after something failed that may well
/// succeed the next time: to try one after the other would hold up all of them.
pub const UNCOLLAPSED_MS: u64 = 1000;

fn end(shard: &mut Shard, key: Key, number: u64, pass_until_ms: Option<u64>) -> EndedLease {
    let Some(entry) = shard.keys.get_mut(&key) else { return EndedLease::default() };
    let place = entry.fetches.iter().position(|fetch| fetch.lease == number);
    let fetch = place.map(|place| entry.fetches.swap_remove(place));
    match pass_until_ms {
        Some(until_ms) => shard.mark_hit_for_pass(key, until_ms),
        None => shard.remove_key_if_empty(key),
    }
    fetch.map_or_else(EndedLease::default, |fetch| EndedLease {
        waiters: fetch.waiters,
        is_outdated: fetch.is_outdated,
    })
}

/// Whoever drops it, in a panic say, leaves nobody waiting for good: others may claim at once, and
/// those who wait are left to [`Cache::take_orphans`].
impl Drop for FetchLease {
    fn drop(&mut self) {
        let waiters = self.end(None).waiters;
        self.cache.add_abandoned_waiters(waiters);
    }
}

/// What a claim was when it ended.
#[derive(Debug, Default)]
pub(super) struct EndedLease {
    pub(super) waiters: Vec<WaiterId>,
    /// What is stored under the key was made invalid meanwhile.
    pub(super) is_outdated: bool,
}

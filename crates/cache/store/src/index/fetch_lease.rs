//! The right to fetch for a key.

use std::sync::Arc;

use millrace_body::WaiterId;
use millrace_http_cache::Key;

use super::cache::Cache;
use super::shard::Shard;

/// The right to fetch one variant of a key. Until it ends, requests for the same variant wait. It
/// ends by [`Cache::publish`], [`FetchLease::release`] or [`FetchLease::release_as_private`].
#[derive(Debug)]
pub struct FetchLease {
    cache: Arc<Cache>,
    key: Key,
    /// Unique among all leases; `None` once it has ended.
    number: Option<u64>,
}

impl FetchLease {
    pub(super) fn new(cache: Arc<Cache>, key: Key, number: u64) -> Self {
        Self { cache, key, number: Some(number) }
    }

    /// Ends without a stored response. Returns the waiters: the first of them may fetch.
    #[must_use = "the waiters have to be woken"]
    pub fn release(mut self) -> Vec<WaiterId> {
        self.end(None).waiters
    }

    /// Ends with a response that is for its client only. Returns the waiters. They, and all
    /// requests for this key until `until_ms`, go to the origin without waiting.
    #[must_use = "the waiters have to be woken"]
    pub fn release_as_private(mut self, until_ms: u64) -> Vec<WaiterId> {
        self.end(Some(until_ms)).waiters
    }

    pub(super) fn end(&mut self, pass_until_ms: Option<u64>) -> EndedLease {
        let Some(number) = self.number.take() else { return EndedLease::default() };
        end(&mut self.cache.lock_shard(self.key), self.key, number, pass_until_ms)
    }

    /// Ends the lease in its locked shard, so that the response can be stored before any other
    /// thread can invalidate it.
    pub(super) fn end_in(&mut self, shard: &mut Shard) -> EndedLease {
        let Some(number) = self.number.take() else { return EndedLease::default() };
        end(shard, self.key, number, None)
    }
}

/// Time after a failed fetch in which requests for the same key do not wait for each other. If they
/// fetched one after the other and each fetch failed, all of them would be delayed.
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

/// A lease that is dropped, for example by a panic, leaves no waiter forever. Another request can
/// take the lease at once, and the waiters go to [`Cache::take_abandoned_waiters`].
impl Drop for FetchLease {
    fn drop(&mut self) {
        let waiters = self.end(None).waiters;
        self.cache.add_abandoned_waiters(waiters);
    }
}

/// The state of a lease when it ended.
#[derive(Debug, Default)]
pub(super) struct EndedLease {
    pub(super) waiters: Vec<WaiterId>,
    /// The key was invalidated meanwhile.
    pub(super) is_outdated: bool,
}

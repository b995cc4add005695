//! Looking up a request, and granting fetch leases.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_body::WaiterId;
use millrace_http_cache::{Forward, Key, RequestDirectives, Reuse, reuse};
use millrace_http1::OriginRequest;

use super::cache::Cache;
use super::fetch_lease::FetchLease;
use super::shard::{KeyEntry, PendingFetch, Shard};
use crate::object::Object;

/// A request to the cache.
#[derive(Clone, Copy, Debug)]
pub struct LookupRequest<'a> {
    /// The cache key.
    pub key: Key,
    /// The request as its origin would receive it, for the fields in `Vary`.
    pub request: &'a OriginRequest<'a>,
    /// Its cache directives; the defaults if the route ignores them.
    pub directives: &'a RequestDirectives,
    /// The time of day in milliseconds since 1970.
    pub now_ms: u64,
    /// The waiter to wake; `None` if the request may not wait.
    pub waiter: Option<WaiterId>,
    /// Whether other requests may wait for the response to this one, because it will be complete.
    pub takes_lease: bool,
    /// Whether a stale response may be served while it is refreshed.
    pub may_refresh: bool,
    /// Whether disks are used. `false` for a request that has waited for a disk already.
    pub uses_disks: bool,
}

/// The result of a lookup.
#[derive(Debug)]
pub enum LookupResult {
    /// A response that may be used now.
    Stored(Arc<Object>),
    /// A response that may be used now, while the holder of the lease validates it. `None`: another
    /// request is doing so, or this one may not ([`LookupRequest::may_refresh`]).
    Stale(Arc<Object>, Option<FetchLease>),
    /// A response that has to be validated first.
    Validate {
        /// The response.
        object: Arc<Object>,
        /// Whether it is a stale fallback: it may be used if the origin fails.
        is_stale_fallback: bool,
        /// `None`: no other request waits for this fetch.
        lease: Option<FetchLease>,
    },
    /// No response: the request has to go to the origin.
    Miss {
        /// Why, for `Cache-Status` (RFC 9211).
        why: Forward,
        /// `None`: no other request waits for this fetch.
        lease: Option<FetchLease>,
    },
    /// Another request is fetching. The waiter was registered; when it is woken, look up again. The
    /// value says why the origin is needed.
    Wait(Forward),
    /// A disk is loading the response. As with `Wait`, the waiter was registered.
    PendingDisk {
        /// The load was started by this request: the next lookup need not use disks.
        is_own: bool,
    },
    /// No usable response, and the client allows no other source: status 504 (RFC 9111 section
    /// 5.2.1.7).
    OnlyIfCached,
}

impl Cache {
    /// Looks up the response to a request.
    pub fn lookup(self: &Arc<Self>, lookup: &LookupRequest<'_>) -> LookupResult {
        let LookupRequest { key, request, directives, now_ms, .. } = *lookup;
        let mut shard = self.lock_shard(key);
        if self.disk_tier.always_rereads() {
            self.drop_for_reread(&mut shard, lookup);
        }
        let Shard { keys, eviction, .. } = &mut *shard;
        let Some(entry) = keys.get_mut(&key) else {
            return self.miss(&mut shard, lookup);
        };
        self.invalidations.apply_to_entry(entry);
        let Some(slot) = entry.find(&self.hash, request) else {
            return self.miss(&mut shard, lookup);
        };
        let object = &slot.object;
        match reuse(object.meta(), directives, now_ms) {
            Reuse::Fresh { .. } | Reuse::Stale { .. } => {
                eviction.hit(slot.handle);
                LookupResult::Stored(object.clone())
            }
            Reuse::StaleWhileRevalidate { .. } => {
                eviction.hit(slot.handle);
                let object = object.clone();
                let vary_key = entry.vary_key(&self.hash, request);
                let is_free = entry.fetch_to_join(vary_key).is_none();
                let lease = (is_free && lookup.may_refresh)
                    .then(|| self.grant_lease(entry, lookup, vary_key));
                LookupResult::Stale(object, lease)
            }
            Reuse::Validate { is_stale_fallback, .. } => {
                eviction.hit(slot.handle);
                let object = object.clone();
                // A client that demands a validation now must not get a response that was requested
                // before.
                let is_own = directives.no_cache || directives.max_age_s.is_some();
                let may_wait = !is_own && !object.meta().is_fresh(now_ms);
                match self.lease_or_wait(entry, lookup, may_wait) {
                    Ok(lease) => LookupResult::Validate { object, is_stale_fallback, lease },
                    Err(wait) => wait.result(Forward::Stale),
                }
            }
            Reuse::OnlyIfCached => LookupResult::OnlyIfCached,
        }
    }

    /// Returns the newest whole object of a key, whatever its freshness, and counts a hit. For
    /// objects whose key changes when they do, such as files.
    pub fn find(&self, key: Key) -> Option<Arc<Object>> {
        let shard = self.lock_shard(key);
        let slot = shard.keys.get(&key)?.objects.last()?;
        slot.object.body.bytes()?;
        shard.eviction.hit(slot.handle);
        Some(slot.object.clone())
    }

    /// Handles a request without a response in memory.
    fn miss(self: &Arc<Self>, shard: &mut Shard, lookup: &LookupRequest<'_>) -> LookupResult {
        if self.start_load(shard, lookup) {
            return LookupResult::PendingDisk { is_own: true };
        }
        if lookup.directives.only_if_cached {
            return LookupResult::OnlyIfCached;
        }
        let Some(entry) = shard.keys.get_mut(&lookup.key) else {
            let lease = match lookup.takes_lease {
                true => {
                    let entry = shard.keys.entry(lookup.key).or_default();
                    Some(self.grant_lease(entry, lookup, None))
                }
                false => None,
            };
            return LookupResult::Miss { why: Forward::UriMiss, lease };
        };
        let why = if entry.objects.is_empty() { Forward::UriMiss } else { Forward::VaryMiss };
        match self.lease_or_wait(entry, lookup, true) {
            Ok(lease) => LookupResult::Miss { why, lease },
            Err(wait) => wait.result(why),
        }
    }

    /// Grants the lease if it is free and the request takes one. Registers the waiter if another
    /// fetch is under way and the request may wait for it. Otherwise returns `None`: the request
    /// fetches for itself.
    fn lease_or_wait(
        self: &Arc<Self>,
        entry: &mut KeyEntry,
        lookup: &LookupRequest<'_>,
        may_wait: bool,
    ) -> Result<Option<FetchLease>, LeaseWait> {
        if lookup.now_ms < entry.hit_for_pass_until_ms {
            return Ok(None);
        }
        let vary_key = entry.vary_key(&self.hash, lookup.request);
        if may_wait && lookup.waiter.is_none() {
            entry.mark_disk_loads_timed_out(vary_key);
        }
        let Some(fetch) = entry.fetch_to_join(vary_key) else {
            return Ok(lookup.takes_lease.then(|| self.grant_lease(entry, lookup, vary_key)));
        };
        match lookup.waiter.filter(|_| may_wait && !fetch.is_outdated) {
            Some(waiter) => {
                fetch.waiters.push(waiter);
                Err(LeaseWait { is_for_disk: fetch.is_disk_load })
            }
            None => Ok(None),
        }
    }

    fn grant_lease(
        self: &Arc<Self>,
        entry: &mut KeyEntry,
        lookup: &LookupRequest<'_>,
        vary_key: Option<u128>,
    ) -> FetchLease {
        let number = self.last_lease.fetch_add(1, Ordering::Relaxed);
        entry.fetches.push(PendingFetch { lease: number, vary_key, ..PendingFetch::default() });
        FetchLease::new(self.clone(), lookup.key, number)
    }
}

/// A wait for a lease: the waiter was registered.
struct LeaseWait {
    is_for_disk: bool,
}

impl LeaseWait {
    /// Returns the lookup's result; `why` applies unless a disk is loading the response.
    fn result(self, why: Forward) -> LookupResult {
        if self.is_for_disk {
            LookupResult::PendingDisk { is_own: false }
        } else {
            LookupResult::Wait(why)
        }
    }
}

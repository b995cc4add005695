//! What there is for a request, and who fetches it if there is nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_body::WaiterId;
use millrace_http_cache::{Forward, Key, RequestDirectives, Reuse, reuse};
use millrace_http1::OriginRequest;

use super::cache::Cache;
use super::fetch_lease::FetchLease;
use super::shard::{KeyEntry, PendingFetch, Shard};
use crate::object::Object;

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct LookupRequest<'a> {
    /// What is asked for.
    pub key: Key,
    /// The request as its origin would receive it, for the fields that objects vary by.
    pub request: &'a OriginRequest<'a>,
    /// What it asks of caches; the default where the route does not heed that.
    pub directives: &'a RequestDirectives,
    /// The time of day, milliseconds since 1970.
    pub now_ms: u64,
    /// Who is to be woken; `None` where nobody waits.
    pub waiter: Option<WaiterId>,
    /// Whether others may wait for what comes: it is all of what they ask for.
    pub takes_lease: bool,
    /// Whether what is stale may be validated for its own sake, while this client gets it.
    pub may_refresh: bool,
    /// Whether disks are asked too: not by who has waited for one already.
    pub uses_disks: bool,
}

/// What there is for a request.
#[derive(Debug)]
pub enum LookupResult {
    /// An answer that may be used now.
    Stored(Arc<Object>),
    /// An answer that may be used now, while it is validated: by whoever gets the claim. `None`:
    /// somebody does so already.
    Stale(Arc<Object>, Option<FetchLease>),
    /// An answer that has to be validated first.
    Validate {
        /// The answer.
        object: Arc<Object>,
        /// Whether it may be used if the origin fails.
        is_stale_fallback: bool,
        /// `None`: nobody else waits for what comes.
        lease: Option<FetchLease>,
    },
    /// Nothing: the origin is to be asked.
    Miss {
        /// Why.
        why: Forward,
        /// `None`: nobody else waits for what comes.
        lease: Option<FetchLease>,
    },
    /// Somebody fetches it, and why the origin has to be asked: the waiter is kept, and is woken to
    /// ask again.
    Wait(Forward),
    /// A disk has it: likewise. `is_own`: it was asked for this very request.
    PendingDisk {
        /// Who asks again need not ask the disks.
        is_own: bool,
    },
    /// Nothing that may be used, and the client wants nothing else: status 504, RFC 9111 section
    /// 5.2.1.7.
    OnlyIfCached,
}

impl Cache {
    /// What there is for a request.
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
                let words = entry.vary_key(&self.hash, request);
                let is_free = entry.fetch_to_join(words).is_none();
                let lease =
                    (is_free && lookup.may_refresh).then(|| self.grant_lease(entry, lookup, words));
                LookupResult::Stale(object, lease)
            }
            Reuse::Validate { is_spare, .. } => {
                eviction.hit(slot.handle);
                let object = object.clone();
                // A client that wants it validated now gets no answer that was asked for before.
                let is_own = directives.no_cache || directives.max_age_s.is_some();
                let may_wait = !is_own && !object.meta().is_fresh(now_ms);
                match self.lease_or_wait(entry, lookup, may_wait) {
                    Ok(lease) => {
                        LookupResult::Validate { object, is_stale_fallback: is_spare, lease }
                    }
                    Err(wait) => wait.result(Forward::Stale),
                }
            }
            Reuse::OnlyIfCached => LookupResult::OnlyIfCached,
        }
    }

    /// There is nothing for the request in memory.
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

    /// The claim if nobody has it; otherwise none, or the place among those who wait for who has.
    fn lease_or_wait(
        self: &Arc<Self>,
        entry: &mut KeyEntry,
        lookup: &LookupRequest<'_>,
        may_wait: bool,
    ) -> Result<Option<FetchLease>, LeaseWait> {
        if lookup.now_ms < entry.hit_for_pass_until_ms {
            return Ok(None);
        }
        let words = entry.vary_key(&self.hash, lookup.request);
        if may_wait && lookup.waiter.is_none() {
            entry.mark_disk_loads_timed_out(words);
        }
        let Some(fetch) = entry.fetch_to_join(words) else {
            return Ok(lookup.takes_lease.then(|| self.grant_lease(entry, lookup, words)));
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
        words: Option<u128>,
    ) -> FetchLease {
        let number = self.last_lease.fetch_add(1, Ordering::Relaxed);
        entry.fetches.push(PendingFetch {
            lease: number,
            vary_key: words,
            ..PendingFetch::default()
        });
        FetchLease::new(self.clone(), lookup.key, number)
    }
}

/// The waiter was kept.
struct LeaseWait {
    is_for_disk: bool,
}

impl LeaseWait {
    /// For whom there would be no answer without the origin, and `why`.
    fn result(self, why: Forward) -> LookupResult {
        if self.is_for_disk {
            LookupResult::PendingDisk { is_own: false }
        } else {
            LookupResult::Wait(why)
        }
    }
}

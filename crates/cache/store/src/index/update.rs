//! Updating stored responses from later responses and requests.

use std::sync::Arc;

use millrace_disk::PurgeTarget;
use millrace_http_cache::{
    CachedHeader, Freshened, Key, ReceivedResponse, Space, TagHash, UriOrigin, VaryNames,
    freshen_by_head, updated_tags,
};
use millrace_http1::{OriginRequest, ResponseHead};

use super::cache::Cache;
use super::shard::initial_applied_seq;
use crate::object::Object;

impl Cache {
    /// Applies a 304 to a stored response and returns the result, which serves the request that
    /// validated it. The result replaces the stored object only if the object is unchanged, because
    /// an invalidation meanwhile may be newer than the 304. `since` is as in
    /// [`NewEntry`](super::publish::NewEntry).
    pub fn update(
        &self,
        key: Key,
        old: &Arc<Object>,
        stored: CachedHeader,
        (request, response): (&OriginRequest<'_>, &ResponseHead),
        since: u64,
    ) -> Arc<Object> {
        let mut new = old.with(stored);
        if new.stored.vary != old.stored.vary {
            let vary = new.stored.vary.as_ref();
            new.variant = vary.map(|names| names.response_key(&self.hash, request, response));
        }
        let (space, site) = (Space::from_key_text(&old.name), UriOrigin::from_key_text(&old.name));
        if let Some(tags) = updated_tags(&self.hash, &space, site.as_ref(), response, new.header())
        {
            new.tags = tags;
        }
        let new = Arc::new(new);
        let mut shard = self.lock_shard(key);
        if let Some(slot) = shard.slot_of(key, &old.body)
            && Arc::ptr_eq(&slot.object, old)
        {
            slot.object = new.clone();
            if new.tags != old.tags {
                slot.applied_seq = initial_applied_seq(&new, since);
            }
            let must_forget = self.update_on_disk(key, old, slot);
            let handle = slot.handle;
            if let Some(length) = new.length() {
                shard.eviction.resize(handle, length + new.overhead());
                self.update_held_bytes(&mut shard);
            }
            drop(shard);
            if must_forget {
                self.forget_on_disk(key, old);
            }
        }
        new
    }

    /// Applies the response to a HEAD request (RFC 9111 section 4.3.5). `since` is
    /// [`Cache::invalidation_seq`] before the request was sent to the origin.
    pub fn update_by_head(
        &self,
        key: Key,
        request: &OriginRequest<'_>,
        received: &ReceivedResponse<'_>,
        since: u64,
    ) {
        let shard = self.lock_shard(key);
        let Some(entry) = shard.keys.get(&key) else { return };
        let Some(slot) = entry.find(&self.hash, request) else { return };
        let old = slot.object.clone();
        drop(shard);
        let Some(length) = old.length() else { return };
        let ReceivedResponse { response, receipt, .. } = received;
        let freshened = freshen_by_head(received, &old.stored, length);
        let is_same_vary = || match VaryNames::parse(response) {
            Ok(vary) => vary.is_none() || vary == old.stored.vary,
            Err(_) => false,
        };
        let stored = match freshened {
            // The update must not undo invalidations that happened during the request.
            Freshened::Updated(mut stored) if is_same_vary() => {
                if self.lock_shard(key).invalidated_keys.has_any_since(&[key], since) {
                    stored.meta.invalidate();
                }
                let now_ms = receipt.response_ms;
                self.invalidations.apply_since(
                    &mut stored.meta,
                    since,
                    &old.name,
                    &old.tags,
                    now_ms,
                );
                stored
            }
            // If the response has another `Vary`, the request for which the object was stored may
            // have had other values in these fields.
            Freshened::Updated(_) | Freshened::Stale => {
                let mut stored = old.stored.clone();
                stored.meta.invalidate();
                stored
            }
            Freshened::Unchanged => return,
        };
        self.update(key, &old, stored, (request, response), since);
    }

    /// Invalidates a key (RFC 9111 section 4.4): its objects, and responses that are being fetched
    /// now, are validated before their next use. `since` is [`Cache::invalidation_seq`] before the
    /// unsafe request was sent to the origin. Returns the `own_invalidation` of the response to
    /// that request. It is 0 if the key was already invalidated after `since`, or may have been,
    /// because that change may be newer than the response.
    pub fn invalidate(&self, key: Key, since: u64) -> u64 {
        let _step = self.disk_tier.begin_purge_step(&[PurgeTarget::Key(key)], false);
        let mut shard = self.lock_shard(key);
        let is_first = !shard.invalidated_keys.has_any_since(&[key], since);
        let number = self.invalidations.next_seq();
        shard.invalidated_keys.add(key, number);
        if let Some(entry) = shard.keys.get_mut(&key) {
            for slot in &mut entry.objects {
                Arc::make_mut(&mut slot.object).stored.meta.invalidate();
            }
            entry.fetches.iter_mut().for_each(|fetch| fetch.is_outdated = true);
        }
        if is_first { number } else { 0 }
    }

    /// Invalidates all responses with a tag, also those being fetched now: they are validated
    /// before their next use. The cost does not depend on the number of objects, because each one
    /// is checked when it is found.
    pub fn invalidate_tag(&self, tag: TagHash) {
        let _step = self.disk_tier.begin_purge_step(&[PurgeTarget::Tag(tag)], true);
        self.invalidations.invalidate_tag(tag);
    }
}

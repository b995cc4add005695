//! One shard of the index: the data behind its lock.

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use millrace_body::{Body, WaiterId};
use millrace_http_cache::{HashKey, Key, KeyHasher, VariantKey, VaryNames};
use millrace_http1::OriginRequest;

use super::invalidation_table::InvalidationTable;
use crate::evict::{Eviction, NEVER};
use crate::object::Object;

#[derive(Debug)]
pub(super) struct Shard {
    pub(super) keys: HashMap<Key, KeyEntry, BuildHasherDefault<KeyHasher>>,
    /// The key of each handle.
    handles: Vec<Option<Key>>,
    /// Handles that are not in use.
    free: Vec<u32>,
    pub(super) eviction: Eviction,
    /// The bytes of this shard that are counted in [`Cache::held_bytes`](super::cache::Cache).
    pub(super) counted_bytes: u64,
    /// Keys that were marked with [`KeyEntry::hit_for_pass_until_ms`], in the order in which they
    /// were marked. A key stays here when storing an object removes its mark.
    hit_for_pass_keys: VecDeque<Key>,
    /// The last invalidation of each key. It also covers responses that are fetched without a
    /// lease, which have no [`PendingFetch`].
    pub(super) invalidated_keys: InvalidationTable<Key, INVALIDATED_KEYS_MAX>,
}

/// The state of a key. A key without any state has no entry.
#[derive(Debug, Default)]
pub(super) struct KeyEntry {
    /// The newest is last.
    pub(super) objects: Vec<ObjectSlot>,
    pub(super) fetches: Vec<PendingFetch>,
    /// The time until which responses of this key count as private, so that requests do not wait
    /// for each other; 0 if they are not private.
    pub(super) hit_for_pass_until_ms: u64,
}

#[derive(Debug)]
pub(super) struct ObjectSlot {
    pub(super) handle: u32,
    pub(super) object: Arc<Object>,
    /// The number of the last invalidation by a tag that was applied; `u64::MAX` if the object has
    /// no tags.
    pub(super) applied_seq: u64,
    /// A disk has its body under its id.
    pub(super) is_on_disk: bool,
}

/// A fetch for a key, and its waiters.
#[derive(Debug, Default)]
pub(super) struct PendingFetch {
    pub(super) lease: u64,
    /// See [`KeyEntry::vary_key`]. If the response comes with another `Vary`, it may not match the
    /// request of a waiter, which then has to fetch or wait again.
    pub(super) vary_key: Option<u128>,
    pub(super) waiters: Vec<WaiterId>,
    pub(super) is_outdated: bool,
    /// A disk is loading the response.
    pub(super) is_disk_load: bool,
    /// A waiter for it has timed out: other requests should not wait for it.
    pub(super) has_timed_out: bool,
}

impl Shard {
    pub(super) fn new(eviction: Eviction) -> Self {
        Self {
            keys: HashMap::default(),
            handles: Vec::new(),
            free: Vec::new(),
            eviction,
            counted_bytes: 0,
            hit_for_pass_keys: VecDeque::new(),
            invalidated_keys: InvalidationTable::default(),
        }
    }

    /// Returns a handle that names the key until [`Shard::free_handle`].
    pub(super) fn new_handle(&mut self, key: Key) -> u32 {
        if let Some(handle) = self.free.pop() {
            self.handles[handle as usize] = Some(key);
            return handle;
        }
        self.handles.push(Some(key));
        self.handles.len() as u32 - 1
    }

    pub(super) fn free_handle(&mut self, handle: u32) {
        self.handles[handle as usize] = None;
        self.free.push(handle);
    }

    /// Inserts an object as the newest of its key, and returns all objects of that key.
    /// Invalidations up to number `since` have been applied to the object.
    pub(super) fn insert(
        &mut self,
        key: Key,
        handle: u32,
        object: Arc<Object>,
        size: u64,
        since: u64,
    ) -> &mut [ObjectSlot] {
        let expires = expires(&object);
        self.eviction.insert(handle, key.0 as u64, size, expires);
        let entry = self.keys.entry(key).or_default();
        entry.hit_for_pass_until_ms = 0;
        let applied_seq = initial_applied_seq(&object, since);
        entry.objects.push(ObjectSlot { handle, object, applied_seq, is_on_disk: false });
        &mut entry.objects
    }

    /// Removes the objects of a key that `is_gone` selects.
    pub(super) fn remove_objects(
        &mut self,
        key: Key,
        mut is_gone: impl FnMut(&ObjectSlot) -> bool,
    ) -> Vec<ObjectSlot> {
        let Some(entry) = self.keys.get_mut(&key) else { return Vec::new() };
        let removed: Vec<ObjectSlot> = entry.objects.extract_if(.., |slot| is_gone(slot)).collect();
        for slot in &removed {
            self.eviction.remove(slot.handle);
            self.free_handle(slot.handle);
        }
        self.remove_key_if_empty(key);
        removed
    }

    /// Evicts one object. Returns `None` if there is none, or if the shard `may_pass` and the
    /// chosen entry is young.
    pub(super) fn evict(&mut self, now_s: u32, may_pass: bool) -> Option<Arc<Object>> {
        let handle = match may_pass {
            true => self.eviction.evict_if_ripe(now_s)?,
            false => self.eviction.evict(now_s)?,
        };
        let key = self.handles[handle as usize].expect("a handle in use names a key");
        let entry = self.keys.get_mut(&key).expect("a handle in use has an entry");
        let place = entry.objects.iter().position(|slot| slot.handle == handle);
        let slot = entry.objects.remove(place.expect("a handle names an object of its key"));
        self.free_handle(handle);
        self.remove_key_if_empty(key);
        Some(slot.object)
    }

    /// Returns one more than the highest handle ever used.
    pub(super) fn handles_end(&self) -> u32 {
        self.handles.len() as u32
    }

    /// Returns the key of a handle.
    pub(super) fn key_of(&self, handle: u32) -> Option<Key> {
        *self.handles.get(handle as usize)?
    }

    /// Returns the slot of the object with this body.
    pub(super) fn slot_of(&mut self, key: Key, body: &Arc<Body>) -> Option<&mut ObjectSlot> {
        let entry = self.keys.get_mut(&key)?;
        entry.objects.iter_mut().find(|slot| Arc::ptr_eq(&slot.object.body, body))
    }

    /// Marks a key whose responses are for one client each (hit-for-pass).
    pub(super) fn mark_hit_for_pass(&mut self, key: Key, until_ms: u64) {
        let entry = self.keys.entry(key).or_default();
        let is_new = entry.hit_for_pass_until_ms == 0;
        entry.hit_for_pass_until_ms = until_ms;
        if is_new {
            self.hit_for_pass_keys.push_back(key);
        }
        if self.hit_for_pass_keys.len() > HIT_FOR_PASS_MAX
            && let Some(oldest) = self.hit_for_pass_keys.pop_front()
        {
            if let Some(entry) = self.keys.get_mut(&oldest) {
                entry.hit_for_pass_until_ms = 0;
            }
            self.remove_key_if_empty(oldest);
        }
    }

    pub(super) fn remove_key_if_empty(&mut self, key: Key) {
        if self.keys.get(&key).is_some_and(KeyEntry::is_empty) {
            self.keys.remove(&key);
        }
    }
}

impl KeyEntry {
    fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.fetches.is_empty() && self.hit_for_pass_until_ms == 0
    }

    /// Returns the object that matches a request: a whole one before a part, a newer one before an
    /// older one.
    pub(super) fn find(&self, hash: &HashKey, request: &OriginRequest<'_>) -> Option<&ObjectSlot> {
        let mut matcher = VaryMatcher { hash, request, last: None };
        let mut part = None;
        for slot in self.objects.iter().rev() {
            if slot.object.is_cut() || !matcher.matches(&slot.object) {
                continue;
            }
            if slot.object.meta().stored_range.is_none() {
                return Some(slot);
            }
            part = part.or(Some(slot));
        }
        part
    }

    /// Returns a hash of the values that a request has in the fields of the key's newest `Vary`;
    /// `None` if no object of the key has a `Vary`.
    pub(super) fn vary_key(&self, hash: &HashKey, request: &OriginRequest<'_>) -> Option<u128> {
        let newest = self.objects.iter().rev().find_map(|slot| slot.object.stored.vary.as_ref());
        newest.map(|names| names.raw_hash(hash, request))
    }

    /// Returns the fetch that a request with this `vary_key` should wait for.
    pub(super) fn fetch_to_join(&mut self, vary_key: Option<u128>) -> Option<&mut PendingFetch> {
        self.fetches.iter_mut().find(|fetch| fetch.vary_key == vary_key && !fetch.has_timed_out)
    }

    /// Stops new requests from waiting for a disk's loads with this `vary_key`, because the disk
    /// may be stuck. Requests continue to wait for a slow origin, which saves it requests.
    pub(super) fn mark_disk_loads_timed_out(&mut self, vary_key: Option<u128>) {
        let of_disk = self.fetches.iter_mut().filter(|fetch| fetch.is_disk_load);
        of_disk
            .filter(|fetch| fetch.vary_key == vary_key)
            .for_each(|fetch| fetch.has_timed_out = true);
    }
}

/// Matches objects of one key against a request, and reuses the hashes of the last `Vary`, which is
/// mostly the same.
struct VaryMatcher<'a> {
    hash: &'a HashKey,
    request: &'a OriginRequest<'a>,
    last: Option<(&'a VaryNames, VariantKey)>,
}

impl<'a> VaryMatcher<'a> {
    fn matches(&mut self, object: &'a Object) -> bool {
        let Some(names) = &object.stored.vary else { return true };
        let Some(variant) = &object.variant else { return false };
        let known = self.last.filter(|(last, _)| *last == names).map(|(_, vary_key)| vary_key);
        let vary_key = known.unwrap_or_else(|| names.key(self.hash, self.request));
        self.last = Some((names, vary_key));
        variant.matches(&vary_key)
    }
}

/// Returns the initial [`ObjectSlot::applied_seq`] of an object to which all invalidations up to
/// `since` were applied.
pub(super) fn initial_applied_seq(object: &Object, since: u64) -> u64 {
    if object.tags.is_empty() { u64::MAX } else { since }
}

/// Returns when an object becomes useless, in seconds since 1970.
fn expires(object: &Object) -> u32 {
    let meta = object.meta();
    if meta.has_validator() {
        return NEVER;
    }
    let stale_s = meta.stale_while_revalidate_s.max(meta.stale_if_error_s);
    let left_s = meta.lifetime_s.saturating_add(stale_s).saturating_sub(meta.initial_age_s);
    let end_s = meta.response_ms / 1000 + u64::from(left_s);
    u32::try_from(end_s).unwrap_or(NEVER)
}

/// The maximum number of keys of a shard that are marked as hit-for-pass. A client that requests
/// many different keys displaces only these marks.
const HIT_FOR_PASS_MAX: usize = 4096;

/// The maximum number of invalidated keys in the table of a shard. If more unsafe requests succeed
/// in a shard while a response is being fetched, the response has to be validated before its next
/// use.
const INVALIDATED_KEYS_MAX: usize = 1024;

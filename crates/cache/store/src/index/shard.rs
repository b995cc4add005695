//! A part of the index: what has its lock.

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
    /// By handle: under which key the object is.
    handles: Vec<Option<Key>>,
    /// Handles that are nobody's.
    free: Vec<u32>,
    pub(super) eviction: Eviction,
    /// What of it is counted in [`Cache::held`](super::cache::Cache).
    pub(super) counted_bytes: u64,
    /// Keys with [`Entry::pass_until_ms`], in the order in which that was noted.
    hit_for_pass_keys: VecDeque<Key>,
    /// Of each key, when it was made invalid: what is on its way without a claim, of which nobody
    /// knows here, is told by it when it comes.
    pub(super) invalidated_keys: InvalidationTable<Key, INVALIDATED_KEYS_MAX>,
}

/// What is known of a key. There is none about which nothing is known.
#[derive(Debug, Default)]
pub(super) struct KeyEntry {
    /// The newest last.
    pub(super) objects: Vec<ObjectSlot>,
    pub(super) fetches: Vec<PendingFetch>,
    /// Until when its answers are taken as being for one client each; 0: they are not.
    pub(super) hit_for_pass_until_ms: u64,
}

#[derive(Debug)]
pub(super) struct ObjectSlot {
    pub(super) handle: u32,
    pub(super) object: Arc<Object>,
    /// The number of the last invalidation by a tag that it is known to have heeded; the highest
    /// where it carries no tag.
    pub(super) applied_seq: u64,
    /// A disk has its body under its id.
    pub(super) is_on_disk: bool,
}

/// Somebody fetches, and others wait.
#[derive(Debug, Default)]
pub(super) struct PendingFetch {
    pub(super) lease: u64,
    /// What the request says in the fields by which the newest object varies. That may be another
    /// one soon: then who waits for nothing looks again.
    pub(super) vary_key: Option<u128>,
    pub(super) waiters: Vec<WaiterId>,
    pub(super) is_outdated: bool,
    /// It is a disk that fetches.
    pub(super) is_disk_load: bool,
    /// Somebody waited for it as long as he may: that is no reason for others to do so too.
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

    /// A handle that names the key from now on, until [`Shard::free_handle`].
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

    /// Inserts an object as the newest of its key, and returns all objects of that key. The object
    /// already reflects the invalidations up to number `since`.
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
        let heeded = initial_applied_seq(&object, since);
        entry.objects.push(ObjectSlot { handle, object, applied_seq: heeded, is_on_disk: false });
        &mut entry.objects
    }

    /// Takes those objects of a key out that `is_gone` says.
    pub(super) fn remove_objects(
        &mut self,
        key: Key,
        mut is_gone: impl FnMut(&ObjectSlot) -> bool,
    ) -> Vec<ObjectSlot> {
        let Some(entry) = self.keys.get_mut(&key) else { return Vec::new() };
        let gone: Vec<ObjectSlot> = entry.objects.extract_if(.., |slot| is_gone(slot)).collect();
        for slot in &gone {
            self.eviction.remove(slot.handle);
            self.free_handle(slot.handle);
        }
        self.remove_key_if_empty(key);
        gone
    }

    /// Takes the object out whose turn it is; none, where the shard `may_pass`, if it is too early.
    pub(super) fn evict(&mut self, now_s: u32, may_pass: bool) -> Option<Arc<Object>> {
        let handle = match may_pass {
            true => self.eviction.evict_if_ripe(now_s)?,
            false => self.eviction.evict(now_s)?,
        };
        let key = self.handles[handle as usize].expect("a handle in use names a key");
        let entry = self.keys.get_mut(&key).expect("who has a handle has an entry");
        let place = entry.objects.iter().position(|slot| slot.handle == handle);
        let slot = entry.objects.remove(place.expect("a handle names an object of its key"));
        self.free_handle(handle);
        self.remove_key_if_empty(key);
        Some(slot.object)
    }

    /// Handles that there ever were: those in use are below.
    pub(super) fn handles_end(&self) -> u32 {
        self.handles.len() as u32
    }

    /// The key that a handle names.
    pub(super) fn key_of(&self, handle: u32) -> Option<Key> {
        *self.handles.get(handle as usize)?
    }

    /// The object that has this body.
    pub(super) fn slot_of(&mut self, key: Key, body: &Arc<Body>) -> Option<&mut ObjectSlot> {
        let entry = self.keys.get_mut(&key)?;
        entry.objects.iter_mut().find(|slot| Arc::ptr_eq(&slot.object.body, body))
    }

    /// Notes that answers under a key are for one client each.
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

    /// The object that fits a request: a whole one before a part, a newer one before an older.
    pub(super) fn find(&self, hash: &HashKey, request: &OriginRequest<'_>) -> Option<&ObjectSlot> {
        let mut words = VaryMatcher { hash, request, last: None };
        let mut part = None;
        for slot in self.objects.iter().rev() {
            if slot.object.is_cut() || !words.matches(&slot.object) {
                continue;
            }
            if slot.object.meta().extent.is_none() {
                return Some(slot);
            }
            part = part.or(Some(slot));
        }
        part
    }

    /// What a request says in the fields by which the newest object varies.
    pub(super) fn vary_key(&self, hash: &HashKey, request: &OriginRequest<'_>) -> Option<u128> {
        let newest = self.objects.iter().rev().find_map(|slot| slot.object.stored.vary.as_ref());
        newest.map(|names| names.words(hash, request))
    }

    /// Who fetches what requests with these words ask for, if it is worth to wait for him.
    pub(super) fn fetch_to_join(&mut self, words: Option<u128>) -> Option<&mut PendingFetch> {
        self.fetches.iter_mut().find(|fetch| fetch.vary_key == words && !fetch.has_timed_out)
    }

    /// Nobody begins to wait any more for what a disk was asked with these words: it may be stuck.
    /// An origin that is slow is waited for all the same, which spares it requests.
    pub(super) fn mark_disk_loads_timed_out(&mut self, words: Option<u128>) {
        let of_disk = self.fetches.iter_mut().filter(|fetch| fetch.is_disk_load);
        of_disk
            .filter(|fetch| fetch.vary_key == words)
            .for_each(|fetch| fetch.has_timed_out = true);
    }
}

/// What a request says in the fields of the objects that are looked at one after the other, which
/// mostly are the same.
struct VaryMatcher<'a> {
    hash: &'a HashKey,
    request: &'a OriginRequest<'a>,
    last: Option<(&'a VaryNames, VariantKey)>,
}

impl<'a> VaryMatcher<'a> {
    fn matches(&mut self, object: &'a Object) -> bool {
        let Some(names) = &object.stored.vary else { return true };
        let Some(variant) = &object.variant else { return false };
        let known = self.last.filter(|(last, _)| *last == names).map(|(_, words)| words);
        let words = known.unwrap_or_else(|| names.key(self.hash, self.request));
        self.last = Some((names, words));
        variant.fits(&words)
    }
}

/// What [`Slot::heeded`] is at first, where everything up to the number `since` was heeded.
pub(super) fn initial_applied_seq(object: &Object, since: u64) -> u64 {
    if object.tags.is_empty() { u64::MAX } else { since }
}

/// When nothing can be made of an object any more, in seconds since 1970.
fn expires(object: &Object) -> u32 {
    let meta = object.meta();
    if meta.has_validator() {
        return NEVER;
    }
    let spare_s = meta.stale_while_revalidate_s.max(meta.stale_if_error_s);
    let left_s = meta.lifetime_s.saturating_add(spare_s).saturating_sub(meta.initial_age_s);
    let end_s = meta.response_ms / 1000 + u64::from(left_s);
    u32::try_from(end_s).unwrap_or(NEVER)
}

/// Keys of a shard about which it is remembered that nothing is stored. An attacker who asks for
/// ever new ones displaces only these.
const HIT_FOR_PASS_MAX: usize = 4096;

/// Keys of a shard that were made invalid and are told apart: as many unsafe requests may succeed
/// in a shard while an answer is fetched, before it has to be validated for want of knowledge.
const INVALIDATED_KEYS_MAX: usize = 1024;

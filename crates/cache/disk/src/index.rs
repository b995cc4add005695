//! The in-memory index of the responses on a disk. Each start rebuilds it from the summaries of the
//! segments, newest first.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_http_cache::{Key, KeyHasher, VariantKey};

use super::format::{PurgeScope, RecordKind, RecordPosition, ResponseId, SummaryItem};
use super::limits::RESPONSES_MAX;

/// The index. Each shard has its own lock, which is held briefly and never during I/O.
#[derive(Debug)]
pub(super) struct Index {
    shards: Box<[Mutex<IndexShard>]>,
    /// The number of entries in all shards. Relaxed: a limit and a statistic, ordered with no other
    /// memory.
    count: AtomicUsize,
    vary_names: Mutex<HashSet<Arc<[u8]>>>,
}

const SHARDS: usize = 64;
/// The maximum number of `Vary` texts that responses share; there are few in practice.
const VARY_NAMES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct IndexShard {
    entries: HashMap<ResponseId, IndexEntry, BuildHasherDefault<KeyHasher>>,
    /// For each key, the variants other than 0 in `entries`.
    variants: HashMap<u128, Vec<u128>, BuildHasherDefault<KeyHasher>>,
    /// Present while segments of earlier runs are still to be read.
    recovery: Option<RecoveryState>,
}

/// The purges, replacements and updates in newer segments that concern responses in older ones.
#[derive(Debug, Default)]
struct RecoveryState {
    purged_ids: HashSet<ResponseId>,
    purged_keys: HashSet<u128>,
    updates: HashMap<ResponseId, (RecordPosition, HeaderLocation)>,
}

/// The entry of a response.
#[derive(Clone, Debug)]
pub(super) struct IndexEntry {
    pub(super) location: EntryLocation,
    pub(super) body_bytes: u64,
    pub(super) header_bytes: u32,
    /// Whether it was fetched since it was written.
    was_fetched: bool,
    /// Fields that few responses have.
    rare: Option<Box<RareFields>>,
}

#[derive(Clone, Debug, Default)]
struct RareFields {
    variant: Option<VariantKey>,
    vary: Option<Arc<[u8]>>,
    update: Option<HeaderLocation>,
}

/// Where a response is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EntryLocation {
    /// In the queue, with this store number.
    Queued(u64),
    /// On the disk.
    OnDisk(RecordPosition),
}

/// The position of a record header, and the number of bytes to read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct HeaderLocation {
    pub(super) at: RecordPosition,
    pub(super) header_bytes: u32,
}

/// A response that can be fetched.
#[derive(Clone, Debug)]
pub(super) struct IndexedRecord {
    pub(super) id: ResponseId,
    pub(super) at: RecordPosition,
    pub(super) header_bytes: u32,
    pub(super) body_bytes: u64,
    pub(super) update: Option<HeaderLocation>,
    pub(super) was_fetched: bool,
    pub(super) variant: Option<VariantKey>,
    pub(super) vary: Option<Arc<[u8]>>,
}

impl IndexEntry {
    fn new(location: EntryLocation, header_bytes: u32, body_bytes: u64, rare: RareFields) -> Self {
        let has_more = rare.variant.is_some() || rare.vary.is_some() || rare.update.is_some();
        let rare = has_more.then(|| Box::new(rare));
        Self { location, body_bytes, header_bytes, was_fetched: false, rare }
    }

    fn to_record(&self, id: ResponseId) -> Option<IndexedRecord> {
        let EntryLocation::OnDisk(at) = self.location else { return None };
        let rare = self.rare.as_deref();
        Some(IndexedRecord {
            id,
            at,
            header_bytes: self.header_bytes,
            body_bytes: self.body_bytes,
            update: rare.and_then(|rare| rare.update),
            was_fetched: self.was_fetched,
            variant: rare.and_then(|rare| rare.variant),
            vary: rare.and_then(|rare| rare.vary.clone()),
        })
    }
}

impl Index {
    /// Creates an index. With `has_segments`, there are segments to recover.
    pub(super) fn new(has_segments: bool) -> Self {
        let shard = || {
            let recovery = has_segments.then(RecoveryState::default);
            Mutex::new(IndexShard { recovery, ..IndexShard::default() })
        };
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { shards, count: AtomicUsize::new(0), vary_names: Mutex::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// Locks and returns the shard of a key. Change the index and queue the job that writes the
    /// change under the same lock, so that the queue has the order of the changes.
    pub(super) fn shard(&self, key: Key) -> LockedShard<'_> {
        let shard = &self.shards[(key.0 >> 64) as usize % SHARDS];
        LockedShard {
            // A panic of another thread may have poisoned the lock. No method of a shard panics
            // between two changes that belong together, so the shard is consistent nevertheless.
            shard: shard.lock().unwrap_or_else(PoisonError::into_inner),
            count: &self.count,
        }
    }

    /// Returns a shared copy of a `Vary` text.
    pub(super) fn intern_vary(&self, vary: &[u8]) -> Option<Arc<[u8]>> {
        if vary.is_empty() {
            return None;
        }
        let mut names = self.vary_names.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = names.get(vary) {
            return Some(text.clone());
        }
        let text: Arc<[u8]> = vary.into();
        if names.len() < VARY_NAMES_MAX {
            names.insert(text.clone());
        }
        Some(text)
    }

    /// Adds a record of an earlier run. Records come in the reverse order of their writing. Returns
    /// the id if a response was added.
    pub(super) fn add_recovered(&self, segment: u32, item: &SummaryItem<'_>) -> Option<ResponseId> {
        let at = RecordPosition { segment, unit: item.unit };
        let (fixed, id) = (&item.fixed, item.fixed.id);
        let vary = self.intern_vary(item.vary);
        let mut shard = self.shard(id.key);
        let is_full = self.is_full();
        let is_there = shard.shard.entries.contains_key(&id);
        let recovery = shard.shard.recovery.as_mut()?;
        let is_purged =
            recovery.purged_ids.contains(&id) || recovery.purged_keys.contains(&id.key.0);
        let header_bytes = fixed.record_header_bytes() as u32;
        match fixed.kind {
            RecordKind::Purge(PurgeScope::Id) => drop(recovery.purged_ids.insert(id)),
            RecordKind::Purge(PurgeScope::Key) => drop(recovery.purged_keys.insert(id.key.0)),
            RecordKind::Purge(_) => {}
            RecordKind::Response | RecordKind::Update if is_purged => {}
            RecordKind::Update if is_there => {}
            RecordKind::Update => {
                recovery
                    .updates
                    .entry(id)
                    .or_insert((fixed.target, HeaderLocation { at, header_bytes }));
            }
            RecordKind::Response if is_there || is_full => {}
            RecordKind::Response => {
                let update = recovery.updates.remove(&id);
                let update = update.filter(|(target, _)| *target == at).map(|(_, head)| head);
                let rare = RareFields { variant: item.variant, vary, update };
                let entry = IndexEntry::new(
                    EntryLocation::OnDisk(at),
                    header_bytes,
                    fixed.body_bytes,
                    rare,
                );
                shard.insert(id, entry);
                return Some(id);
            }
        }
        None
    }

    /// Returns whether there is no room for further responses.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= RESPONSES_MAX
    }

    /// Ends the recovery.
    pub(super) fn end_recovery(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).recovery = None;
        }
    }

    /// Removes all responses that are on the disk; those in the queue stay.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let ids: Vec<ResponseId> = shard.entries.keys().copied().collect();
            let mut shard = LockedShard { shard, count: &self.count };
            for id in ids {
                if shard.get(id).is_some() {
                    shard.remove_entry(id);
                }
            }
        }
    }
}

/// A locked shard.
#[derive(Debug)]
pub(super) struct LockedShard<'a> {
    shard: MutexGuard<'a, IndexShard>,
    count: &'a AtomicUsize,
}

impl LockedShard<'_> {
    /// Returns whether there may be responses that are not in the index yet.
    fn is_recovering(&self) -> bool {
        self.shard.recovery.is_some()
    }

    /// Returns the responses of a key that are on the disk.
    pub(super) fn find(&self, key: Key) -> Vec<IndexedRecord> {
        self.ids(key).into_iter().filter_map(|id| self.get(id)).collect()
    }

    pub(super) fn get(&self, id: ResponseId) -> Option<IndexedRecord> {
        self.shard.entries.get(&id)?.to_record(id)
    }

    /// Inserts a queued response, replacing the one with the same id. Returns whether a response
    /// with this id was in the index or may be on the disk.
    pub(super) fn insert_queued(&mut self, id: ResponseId, number: u64) -> bool {
        let entry = IndexEntry::new(EntryLocation::Queued(number), 0, 0, RareFields::default());
        let before = self.insert(id, entry);
        before.is_some() || self.is_recovering()
    }

    /// Records that a queued response was written. Returns `false` if it was purged or replaced
    /// meanwhile.
    pub(super) fn commit(&mut self, number: u64, indexed: IndexedRecord) -> bool {
        let is_same = |entry: &IndexEntry| entry.location == EntryLocation::Queued(number);
        if !self.shard.entries.get(&indexed.id).is_some_and(is_same) {
            return false;
        }
        let rare = RareFields { variant: indexed.variant, vary: indexed.vary, update: None };
        let entry = IndexEntry::new(
            EntryLocation::OnDisk(indexed.at),
            indexed.header_bytes,
            indexed.body_bytes,
            rare,
        );
        self.insert(indexed.id, entry);
        true
    }

    /// Removes a queued response that was not written.
    pub(super) fn remove_queued(&mut self, id: ResponseId, number: u64) {
        if self
            .shard
            .entries
            .get(&id)
            .is_some_and(|entry| entry.location == EntryLocation::Queued(number))
        {
            self.remove(id);
        }
    }

    /// Removes a response. Returns whether it was, or may have been, there.
    pub(super) fn remove(&mut self, id: ResponseId) -> bool {
        let was_there = self.remove_entry(id);
        if let Some(recovery) = &mut self.shard.recovery {
            recovery.purged_ids.insert(id);
            return true;
        }
        was_there
    }

    /// Removes a response if it is at this position. Returns whether it was.
    pub(super) fn remove_at(&mut self, id: ResponseId, at: RecordPosition) -> bool {
        self.get(id).is_some_and(|indexed| indexed.at == at) && self.remove(id)
    }

    /// Removes all responses of a key. Returns whether any were, or may have been, there.
    pub(super) fn remove_key(&mut self, key: Key) -> bool {
        let mut was_there = false;
        for id in self.ids(key) {
            was_there |= self.remove_entry(id);
        }
        if let Some(recovery) = &mut self.shard.recovery {
            recovery.purged_keys.insert(key.0);
            return true;
        }
        was_there
    }

    /// Returns whether a key has, or may have, responses.
    pub(super) fn has_key(&self, key: Key) -> bool {
        self.is_recovering() || !self.ids(key).is_empty()
    }

    /// Records a newer header of the response at `target`.
    pub(super) fn update(&mut self, id: ResponseId, target: RecordPosition, head: HeaderLocation) {
        if let Some(entry) = self.shard.entries.get_mut(&id)
            && entry.location == EntryLocation::OnDisk(target)
        {
            entry.rare.get_or_insert_default().update = Some(head);
        }
    }

    /// Records that the response at `from` was rewritten with its newest header. Returns `false` if
    /// the response was removed or replaced meanwhile.
    pub(super) fn relocate(
        &mut self,
        id: ResponseId,
        from: RecordPosition,
        head: HeaderLocation,
    ) -> bool {
        match self.shard.entries.get_mut(&id) {
            Some(entry) if entry.location == EntryLocation::OnDisk(from) => {
                (entry.location, entry.header_bytes) =
                    (EntryLocation::OnDisk(head.at), head.header_bytes);
                entry.was_fetched = false;
                if let Some(rare) = &mut entry.rare {
                    rare.update = None;
                }
                true
            }
            _ => false,
        }
    }

    /// Records that a response was fetched.
    pub(super) fn mark_fetched(&mut self, id: ResponseId) {
        if let Some(entry) = self.shard.entries.get_mut(&id) {
            entry.was_fetched = true;
        }
    }

    fn ids(&self, key: Key) -> Vec<ResponseId> {
        let id = |variant| ResponseId { key, variant };
        let plain = self.shard.entries.contains_key(&id(0)).then_some(id(0));
        let variants = self.shard.variants.get(&key.0).into_iter().flatten();
        plain.into_iter().chain(variants.map(|variant| id(*variant))).collect()
    }

    fn insert(&mut self, id: ResponseId, entry: IndexEntry) -> Option<IndexEntry> {
        let before = self.shard.entries.insert(id, entry);
        if before.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
            if id.variant != 0 {
                self.shard.variants.entry(id.key.0).or_default().push(id.variant);
            }
        }
        before
    }

    fn remove_entry(&mut self, id: ResponseId) -> bool {
        if self.shard.entries.remove(&id).is_none() {
            return false;
        }
        self.count.fetch_sub(1, Ordering::Relaxed);
        if let Some(variants) = self.shard.variants.get_mut(&id.key.0) {
            variants.retain(|variant| *variant != id.variant);
            if variants.is_empty() {
                self.shard.variants.remove(&id.key.0);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::FixedHeader;

    const KEY: Key = Key(7 << 64 | 7);
    const PLAIN: ResponseId = ResponseId { key: KEY, variant: 0 };
    const OTHER: ResponseId = ResponseId { key: KEY, variant: 9 };

    fn at(segment: u32, unit: u32) -> RecordPosition {
        RecordPosition { segment, unit }
    }

    fn indexed(id: ResponseId, at: RecordPosition) -> IndexedRecord {
        let (variant, vary) = (None, None);
        let (header_bytes, body_bytes) = (200, 10);
        IndexedRecord {
            id,
            at,
            header_bytes,
            body_bytes,
            update: None,
            was_fetched: false,
            variant,
            vary,
        }
    }

    fn recover(index: &Index, kind: RecordKind, id: ResponseId, segment: u32, unit: u32) -> bool {
        let mut fixed = FixedHeader::new(kind, id);
        fixed.target = at(1, 1);
        let item =
            SummaryItem { unit, fixed, variant: None, vary: b"accept", name: b"", tags: b"" };
        index.add_recovered(segment, &item).is_some()
    }

    #[test]
    fn a_queued_response_is_found_once_written() {
        let index = Index::new(false);
        let mut shard = index.shard(KEY);
        assert!(!shard.insert_queued(PLAIN, 1) && !shard.insert_queued(OTHER, 2));
        assert!(shard.find(KEY).is_empty() && shard.has_key(KEY));
        assert!(
            shard.commit(1, indexed(PLAIN, at(1, 1))) && shard.commit(2, indexed(OTHER, at(1, 5)))
        );
        assert_eq!(shard.find(KEY).len(), 2);
        assert!(shard.insert_queued(PLAIN, 3), "one is on the disk");
        assert_eq!(shard.find(KEY).len(), 1, "it is already replaced");
        assert!(!shard.commit(2, indexed(PLAIN, at(1, 7))));
        shard.remove_queued(PLAIN, 2);
        shard.remove_queued(PLAIN, 3);
        assert!(!shard.remove(PLAIN) && shard.remove_key(KEY) && !shard.has_key(KEY));
        drop(shard);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn older_versions_do_not_come_back() {
        let index = Index::new(true);
        assert!(recover(&index, RecordKind::Response, PLAIN, 5, 1));
        assert!(!recover(&index, RecordKind::Response, PLAIN, 4, 1), "it was replaced");
        assert!(!recover(&index, RecordKind::Purge(PurgeScope::Id), OTHER, 4, 1));
        assert!(!recover(&index, RecordKind::Response, OTHER, 3, 1), "it was purged");
        index.shard(KEY).remove(PLAIN);
        assert!(!recover(&index, RecordKind::Response, PLAIN, 3, 1), "it was removed meanwhile");
        assert!(index.shard(KEY).find(KEY).is_empty());
        assert!(!recover(&index, RecordKind::Purge(PurgeScope::Key), PLAIN, 3, 1));
        let fourth = ResponseId { variant: 10, ..PLAIN };
        assert!(!recover(&index, RecordKind::Response, fourth, 2, 1), "purged with all others");
        let third = ResponseId { key: Key(8), variant: 0 };
        assert!(index.shard(third.key).remove_key(third.key), "it may be on the disk");
        assert!(!recover(&index, RecordKind::Response, third, 3, 1));
        index.end_recovery();
        assert!(!index.shard(third.key).remove_key(third.key));
        assert!(!recover(&index, RecordKind::Response, third, 3, 1), "recovery has ended");
    }

    #[test]
    fn a_newer_header_finds_its_response() {
        let index = Index::new(true);
        for id in [PLAIN, OTHER] {
            recover(&index, RecordKind::Update, id, 3, 8);
            recover(&index, RecordKind::Update, id, 2, 8);
        }
        assert!(
            recover(&index, RecordKind::Response, PLAIN, 1, 1)
                && recover(&index, RecordKind::Response, OTHER, 1, 2)
        );
        let mut shard = index.shard(KEY);
        let head = shard.get(PLAIN).unwrap().update.unwrap();
        assert_eq!(head.at, at(3, 8));
        assert_eq!(shard.get(OTHER).unwrap().update, None, "it was for an older version");
        assert_eq!(shard.get(OTHER).unwrap().vary.as_deref(), Some(&b"accept"[..]));
        shard.mark_fetched(PLAIN);
        assert!(shard.get(PLAIN).unwrap().was_fetched);
        assert!(!shard.relocate(PLAIN, at(1, 2), head) && shard.relocate(PLAIN, at(1, 1), head));
        let rewritten = shard.get(PLAIN).unwrap();
        assert_eq!(
            (rewritten.at, rewritten.update, rewritten.was_fetched),
            (at(3, 8), None, false)
        );
        assert!(!shard.remove_at(PLAIN, at(1, 1)) && shard.get(PLAIN).is_some());
        assert!(shard.remove_at(PLAIN, at(3, 8)) && shard.get(PLAIN).is_none());
    }
}

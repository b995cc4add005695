//! Which answers a disk has, and where: in memory, and made anew at each start from what the
//! segments say of themselves, the newest first.

use std::collections::{HashMap, HashSet};
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use millrace_http_cache::{Key, KeyHasher, VariantKey};

use super::format::{Id, Item, Kind, Position, Purged};
use super::limits::ANSWERS_MAX;

/// The answers of a disk. Shards of a short lock each; a lock is never held while anything waits.
#[derive(Debug)]
pub(super) struct Index {
    shards: Box<[Mutex<Shard>]>,
    /// Entries of all shards; a bound and a figure, ordered with nothing.
    count: AtomicUsize,
    varies: Mutex<HashSet<Arc<[u8]>>>,
}

const SHARDS: usize = 64;
/// Texts of `Vary` that answers share; there are few in practice.
const VARIES_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(super) struct Shard {
    entries: HashMap<Id, Entry, BuildHasherDefault<KeyHasher>>,
    /// Of each key that has any, the variants other than 0 in `entries`.
    variants: HashMap<u128, Vec<u128>, BuildHasherDefault<KeyHasher>>,
    /// While segments of earlier runs are still to be read.
    past: Option<Past>,
}

/// What was found in newer segments about answers in older ones.
#[derive(Debug, Default)]
struct Past {
    dead_ids: HashSet<Id>,
    dead_keys: HashSet<u128>,
    updates: HashMap<Id, (Position, Head)>,
}

/// What is known of an answer.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) place: Place,
    pub(super) body_bytes: u64,
    pub(super) front_bytes: u32,
    /// Somebody fetched it since it was written.
    is_asked: bool,
    /// What few answers have.
    more: Option<Box<More>>,
}

#[derive(Clone, Debug, Default)]
struct More {
    variant: Option<VariantKey>,
    vary: Option<Arc<[u8]>>,
    update: Option<Head>,
}

/// Where an answer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// In the queue: the number that it got there.
    Queued(u64),
    /// On the disk.
    At(Position),
}

/// Where a head is, and how much is to be read to have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Head {
    pub(super) at: Position,
    pub(super) front_bytes: u32,
}

/// An answer that may be fetched.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub(super) id: Id,
    pub(super) at: Position,
    pub(super) front_bytes: u32,
    pub(super) body_bytes: u64,
    pub(super) update: Option<Head>,
    pub(super) is_asked: bool,
    pub(super) variant: Option<VariantKey>,
    pub(super) vary: Option<Arc<[u8]>>,
}

impl Entry {
    fn new(place: Place, front_bytes: u32, body_bytes: u64, more: More) -> Self {
        let has_more = more.variant.is_some() || more.vary.is_some() || more.update.is_some();
        let more = has_more.then(|| Box::new(more));
        Self { place, body_bytes, front_bytes, is_asked: false, more }
    }

    fn known(&self, id: Id) -> Option<Known> {
        let Place::At(at) = self.place else { return None };
        let more = self.more.as_deref();
        Some(Known {
            id,
            at,
            front_bytes: self.front_bytes,
            body_bytes: self.body_bytes,
            update: more.and_then(|more| more.update),
            is_asked: self.is_asked,
            variant: more.and_then(|more| more.variant),
            vary: more.and_then(|more| more.vary.clone()),
        })
    }
}

impl Index {
    /// `has_past`: there are segments to be read.
    pub(super) fn new(has_past: bool) -> Self {
        let shard = || {
            let past = has_past.then(Past::default);
            Mutex::new(Shard { past, ..Shard::default() })
        };
        let shards = (0..SHARDS).map(|_| shard()).collect();
        Self { shards, count: AtomicUsize::new(0), varies: Mutex::default() }
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    /// The shard of a key, locked. Whoever changes an answer and queues what that means for the
    /// disk does both under this lock, so that the queue has the order in which it was changed.
    pub(super) fn shard(&self, key: Key) -> Locked<'_> {
        let shard = &self.shards[(key.0 >> 64) as usize % SHARDS];
        Locked {
            // Poisoned by a panic of somebody else: nothing is ever half changed here.
            shard: shard.lock().unwrap_or_else(PoisonError::into_inner),
            count: &self.count,
        }
    }

    /// The same text as others with the same text have.
    pub(super) fn share(&self, vary: &[u8]) -> Option<Arc<[u8]>> {
        if vary.is_empty() {
            return None;
        }
        let mut varies = self.varies.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(text) = varies.get(vary) {
            return Some(text.clone());
        }
        let text: Arc<[u8]> = vary.into();
        if varies.len() < VARIES_MAX {
            varies.insert(text.clone());
        }
        Some(text)
    }

    /// Takes in what a segment of an earlier run says of a record. They come in the opposite order
    /// of how they were written. Gives the id if there is an answer now.
    pub(super) fn learn(&self, segment: u32, item: &Item<'_>) -> Option<Id> {
        let at = Position { segment, unit: item.unit };
        let (fixed, id) = (&item.fixed, item.fixed.id);
        let vary = self.share(item.vary);
        let mut shard = self.shard(id.key);
        let is_full = self.is_full();
        let is_there = shard.shard.entries.contains_key(&id);
        let past = shard.shard.past.as_mut()?;
        let is_dead = past.dead_ids.contains(&id) || past.dead_keys.contains(&id.key.0);
        let front_bytes = fixed.front_bytes() as u32;
        match fixed.kind {
            Kind::Purge(Purged::Id) => drop(past.dead_ids.insert(id)),
            Kind::Purge(Purged::Key) => drop(past.dead_keys.insert(id.key.0)),
            Kind::Purge(_) => {}
            Kind::Answer | Kind::Update if is_dead => {}
            Kind::Update if is_there => {}
            Kind::Update => {
                past.updates.entry(id).or_insert((fixed.target, Head { at, front_bytes }));
            }
            Kind::Answer if is_there || is_full => {}
            Kind::Answer => {
                let update = past.updates.remove(&id);
                let update = update.filter(|(target, _)| *target == at).map(|(_, head)| head);
                let more = More { variant: item.variant, vary, update };
                let entry = Entry::new(Place::At(at), front_bytes, fixed.body_bytes, more);
                shard.insert(id, entry);
                return Some(id);
            }
        }
        None
    }

    /// Whether there is no room for any more.
    pub(super) fn is_full(&self) -> bool {
        self.len() >= ANSWERS_MAX
    }

    /// Everything of earlier runs was read.
    pub(super) fn end_past(&self) {
        for shard in &self.shards {
            shard.lock().unwrap_or_else(PoisonError::into_inner).past = None;
        }
    }

    /// Drops every answer that is on the disk; those in the queue stay.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            let shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let ids: Vec<Id> = shard.entries.keys().copied().collect();
            let mut shard = Locked { shard, count: &self.count };
            for id in ids {
                if shard.known(id).is_some() {
                    shard.take_out(id);
                }
            }
        }
    }
}

/// A shard, as long as it is locked.
#[derive(Debug)]
pub(super) struct Locked<'a> {
    shard: MutexGuard<'a, Shard>,
    count: &'a AtomicUsize,
}

impl Locked<'_> {
    /// Whether there may be answers that are not known yet.
    fn has_past(&self) -> bool {
        self.shard.past.is_some()
    }

    /// The answers under a key that are on the disk.
    pub(super) fn find(&self, key: Key) -> Vec<Known> {
        self.ids(key).into_iter().filter_map(|id| self.known(id)).collect()
    }

    pub(super) fn known(&self, id: Id) -> Option<Known> {
        self.shard.entries.get(&id)?.known(id)
    }

    /// Puts one in that is in the queue, in the place of any with the same id. Gives whether there
    /// is, or may be, such a one on the disk.
    pub(super) fn queue(&mut self, id: Id, number: u64) -> bool {
        let entry = Entry::new(Place::Queued(number), 0, 0, More::default());
        let before = self.insert(id, entry);
        before.is_some() || self.has_past()
    }

    /// One that was queued was written; `false` where it was purged or replaced meanwhile.
    pub(super) fn settle(&mut self, number: u64, known: Known) -> bool {
        let is_same = |entry: &Entry| entry.place == Place::Queued(number);
        if !self.shard.entries.get(&known.id).is_some_and(is_same) {
            return false;
        }
        let more = More { variant: known.variant, vary: known.vary, update: None };
        let entry = Entry::new(Place::At(known.at), known.front_bytes, known.body_bytes, more);
        self.insert(known.id, entry);
        true
    }

    /// One that was queued was not written.
    pub(super) fn abandon(&mut self, id: Id, number: u64) {
        if self.shard.entries.get(&id).is_some_and(|entry| entry.place == Place::Queued(number)) {
            self.remove(id);
        }
    }

    /// It is no longer to be had. Gives whether it was, or may have been, there.
    pub(super) fn remove(&mut self, id: Id) -> bool {
        let was_there = self.take_out(id);
        if let Some(past) = &mut self.shard.past {
            past.dead_ids.insert(id);
            return true;
        }
        was_there
    }

    /// The same, if it is where it was; gives whether it was.
    pub(super) fn remove_at(&mut self, id: Id, at: Position) -> bool {
        self.known(id).is_some_and(|known| known.at == at) && self.remove(id)
    }

    /// Nothing under a key is to be had any more. Gives whether anything was, or may have been.
    pub(super) fn remove_key(&mut self, key: Key) -> bool {
        let mut was_there = false;
        for id in self.ids(key) {
            was_there |= self.take_out(id);
        }
        if let Some(past) = &mut self.shard.past {
            past.dead_keys.insert(key.0);
            return true;
        }
        was_there
    }

    /// Whether anything under a key is there, or may be.
    pub(super) fn has_key(&self, key: Key) -> bool {
        self.has_past() || !self.ids(key).is_empty()
    }

    /// The answer at `target` has another head.
    pub(super) fn update(&mut self, id: Id, target: Position, head: Head) {
        if let Some(entry) = self.shard.entries.get_mut(&id)
            && entry.place == Place::At(target)
        {
            entry.more.get_or_insert_default().update = Some(head);
        }
    }

    /// The answer at `from` was written again, with its present head.
    pub(super) fn relocate(&mut self, id: Id, from: Position, head: Head) -> bool {
        match self.shard.entries.get_mut(&id) {
            Some(entry) if entry.place == Place::At(from) => {
                (entry.place, entry.front_bytes) = (Place::At(head.at), head.front_bytes);
                entry.is_asked = false;
                if let Some(more) = &mut entry.more {
                    more.update = None;
                }
                true
            }
            _ => false,
        }
    }

    /// Somebody fetches it.
    pub(super) fn ask(&mut self, id: Id) {
        if let Some(entry) = self.shard.entries.get_mut(&id) {
            entry.is_asked = true;
        }
    }

    fn ids(&self, key: Key) -> Vec<Id> {
        let id = |variant| Id { key, variant };
        let plain = self.shard.entries.contains_key(&id(0)).then_some(id(0));
        let variants = self.shard.variants.get(&key.0).into_iter().flatten();
        plain.into_iter().chain(variants.map(|variant| id(*variant))).collect()
    }

    fn insert(&mut self, id: Id, entry: Entry) -> Option<Entry> {
        let before = self.shard.entries.insert(id, entry);
        if before.is_none() {
            self.count.fetch_add(1, Ordering::Relaxed);
            if id.variant != 0 {
                self.shard.variants.entry(id.key.0).or_default().push(id.variant);
            }
        }
        before
    }

    fn take_out(&mut self, id: Id) -> bool {
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
    use crate::format::Fixed;

    const KEY: Key = Key(7 << 64 | 7);
    const PLAIN: Id = Id { key: KEY, variant: 0 };
    const OTHER: Id = Id { key: KEY, variant: 9 };

    fn at(segment: u32, unit: u32) -> Position {
        Position { segment, unit }
    }

    fn known(id: Id, at: Position) -> Known {
        let (variant, vary) = (None, None);
        let (front_bytes, body_bytes) = (200, 10);
        Known { id, at, front_bytes, body_bytes, update: None, is_asked: false, variant, vary }
    }

    fn learn(index: &Index, kind: Kind, id: Id, segment: u32, unit: u32) -> bool {
        let mut fixed = Fixed::new(kind, id);
        fixed.target = at(1, 1);
        let item = Item { unit, fixed, variant: None, vary: b"accept", name: b"", tags: b"" };
        index.learn(segment, &item).is_some()
    }

    #[test]
    fn what_is_queued_is_found_when_it_is_written() {
        let index = Index::new(false);
        let mut shard = index.shard(KEY);
        assert!(!shard.queue(PLAIN, 1) && !shard.queue(OTHER, 2));
        assert!(shard.find(KEY).is_empty() && shard.has_key(KEY));
        assert!(shard.settle(1, known(PLAIN, at(1, 1))) && shard.settle(2, known(OTHER, at(1, 5))));
        assert_eq!(shard.find(KEY).len(), 2);
        assert!(shard.queue(PLAIN, 3), "there is one on the disk");
        assert_eq!(shard.find(KEY).len(), 1, "which is replaced already");
        assert!(!shard.settle(2, known(PLAIN, at(1, 7))));
        shard.abandon(PLAIN, 2);
        shard.abandon(PLAIN, 3);
        assert!(!shard.remove(PLAIN) && shard.remove_key(KEY) && !shard.has_key(KEY));
        drop(shard);
        assert_eq!(index.len(), 0);
    }

    #[test]
    fn what_is_older_does_not_come_back() {
        let index = Index::new(true);
        assert!(learn(&index, Kind::Answer, PLAIN, 5, 1));
        assert!(!learn(&index, Kind::Answer, PLAIN, 4, 1), "it was replaced");
        assert!(!learn(&index, Kind::Purge(Purged::Id), OTHER, 4, 1));
        assert!(!learn(&index, Kind::Answer, OTHER, 3, 1), "it was purged");
        index.shard(KEY).remove(PLAIN);
        assert!(!learn(&index, Kind::Answer, PLAIN, 3, 1), "it was removed by now");
        assert!(index.shard(KEY).find(KEY).is_empty());
        assert!(!learn(&index, Kind::Purge(Purged::Key), PLAIN, 3, 1));
        let fourth = Id { variant: 10, ..PLAIN };
        assert!(!learn(&index, Kind::Answer, fourth, 2, 1), "with all others");
        let third = Id { key: Key(8), variant: 0 };
        assert!(index.shard(third.key).remove_key(third.key), "it may be there");
        assert!(!learn(&index, Kind::Answer, third, 3, 1));
        index.end_past();
        assert!(!index.shard(third.key).remove_key(third.key));
        assert!(!learn(&index, Kind::Answer, third, 3, 1), "too late");
    }

    #[test]
    fn a_newer_head_finds_its_answer() {
        let index = Index::new(true);
        for id in [PLAIN, OTHER] {
            learn(&index, Kind::Update, id, 3, 8);
            learn(&index, Kind::Update, id, 2, 8);
        }
        assert!(
            learn(&index, Kind::Answer, PLAIN, 1, 1) && learn(&index, Kind::Answer, OTHER, 1, 2)
        );
        let mut shard = index.shard(KEY);
        let head = shard.known(PLAIN).unwrap().update.unwrap();
        assert_eq!(head.at, at(3, 8));
        assert_eq!(shard.known(OTHER).unwrap().update, None, "it was for one before");
        assert_eq!(shard.known(OTHER).unwrap().vary.as_deref(), Some(&b"accept"[..]));
        shard.ask(PLAIN);
        assert!(shard.known(PLAIN).unwrap().is_asked);
        assert!(!shard.relocate(PLAIN, at(1, 2), head) && shard.relocate(PLAIN, at(1, 1), head));
        let moved = shard.known(PLAIN).unwrap();
        assert_eq!((moved.at, moved.update, moved.is_asked), (at(3, 8), None, false));
        assert!(!shard.remove_at(PLAIN, at(1, 1)) && shard.known(PLAIN).is_some());
        assert!(shard.remove_at(PLAIN, at(3, 8)) && shard.known(PLAIN).is_none());
    }
}

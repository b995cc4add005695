//! Bringing what a disk has into memory, for those who ask for it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use millrace_body::{Filler, Waiter};
use millrace_disk::{Candidate, Fetch, StoredHead};
use millrace_http_cache::{Key, VaryNames};

use super::answer::from_disk;
use crate::index::cache::Cache;
use crate::index::claim::Claim;
use crate::index::filling;
use crate::index::lookup::Question;
use crate::index::shard::{Entry, Fetch as UnderWay, Shard, Slot};
use crate::index::tier::{ASKER, Coming, Tier};

impl Cache {
    /// Has a disk fetch what it has for a request that memory has nothing for, if who asks may wait
    /// for it, and is among those who wait from now on. `false`: no disk has it, or has the time.
    ///
    /// The disk is asked while the shard is locked, which costs one more short lock: so where it
    /// refuses, nobody waits for it already.
    pub(in crate::index) fn bring(&self, shard: &mut Shard, question: &Question<'_>) -> bool {
        if !self.beneath.is_there() {
            return false;
        }
        let Some(waiter) = question.waiter.filter(|_| question.asks_disks) else { return false };
        let key = question.key;
        let since = self.number();
        let entry = shard.keys.get(&key);
        let words = entry.and_then(|entry| entry.words(&self.hash, question.request));
        if entry.is_some_and(|entry| entry.fetches.iter().any(|fetch| fetch.words == words)) {
            return false;
        }
        // The shard is locked: nothing here may wait, for disks that are being closed say.
        let Ok(tier) = self.beneath.tier.try_read() else { return false };
        let Tier::Open(open) = &*tier else { return false };
        let mut found = open.disks.find(key).into_iter();
        let Some(candidate) = found.find(|candidate| self.fits(candidate, entry, question)) else {
            return false;
        };
        self.beneath.now_ms.store(question.now_ms, Ordering::Relaxed);
        let handle = shard.new_handle(key);
        let tag = u64::from(self.index_of(key)) << 32 | u64::from(handle);
        let bytes = candidate.body_bytes;
        let filler = Filler::new(&self.slab, filling::kind(Some(bytes)), Some(bytes), tag);
        let body = filler.body().clone();
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let asker = Waiter { worker: ASKER, token: number };
        let wish = Fetch { candidate: candidate.clone(), filler, asker };
        // Locked until it is in there: a thread of the disk's may answer before this one goes on.
        let mut all = self.lock_coming();
        if open.disks.fetch(Box::new(wish)).is_err() {
            shard.free_handle(handle);
            return false;
        }
        all.insert(number, Coming { key, handle, body, since, candidate });
        let (waiters, is_of_disk) = (vec![waiter], true);
        let fetch = UnderWay { number, words, waiters, is_of_disk, ..UnderWay::default() };
        shard.keys.entry(key).or_default().fetches.push(fetch);
        true
    }

    /// Takes the answer to a request out of memory, if a disk has it too and may be asked.
    pub(in crate::index) fn let_go(&self, shard: &mut Shard, question: &Question<'_>) {
        let entry = shard.keys.get(&question.key);
        let slot = entry.and_then(|entry| entry.find(&self.hash, question.request));
        let is_whole = |slot: &&Slot| slot.object.body.bytes().is_some();
        let Some(slot) = slot.filter(is_whole).filter(|_| question.asks_disks) else { return };
        let (handle, variant) = (slot.handle, slot.object.variant);
        let Ok(tier) = self.beneath.tier.try_read() else { return };
        let Tier::Open(open) = &*tier else { return };
        let found = open.disks.find(question.key);
        if question.waiter.is_some() && found.iter().any(|found| found.variant == variant) {
            shard.take_out(question.key, |slot| slot.handle == handle);
            self.count(shard);
        }
    }

    /// Whether what a disk has is what a request asks for. What varies by something else than what
    /// memory has under the key is older than that.
    fn fits(&self, found: &Candidate, entry: Option<&Entry>, question: &Question<'_>) -> bool {
        let objects = entry.map_or(&[][..], |entry| &entry.objects);
        let newest = objects.last().map(|slot| slot.object.stored.vary.as_ref());
        let newest = newest.map(|names| names.map(VaryNames::as_bytes));
        if newest.is_some_and(|names| names != found.vary.as_deref())
            || found.body_bytes > self.object_bytes()
        {
            return false;
        }
        let (Some(names), Some(variant)) = (&found.vary, &found.variant) else { return true };
        let names = VaryNames::from_bytes(names);
        names.is_some_and(|names| variant.fits(&names.key(&self.hash, question.request)))
    }

    pub(super) fn is_coming(&self, number: u64) -> bool {
        self.lock_coming().contains_key(&number)
    }

    /// The beginning of it is in memory: it is found there from now on. Gives those who waited.
    pub(super) fn has_come(self: &Arc<Self>, number: u64, head: &StoredHead) -> Vec<Waiter> {
        let Some(coming) = self.lock_coming().remove(&number) else { return Vec::new() };
        let Coming { key, handle, body, since, candidate } = coming;
        let mut claim = Claim::new(self.clone(), key, number);
        let now_ms = self.beneath.now_ms.load(Ordering::Relaxed);
        let object = from_disk(head, body, &self.hash);
        let mut shard = self.shard(key);
        let ended = claim.end_in(&mut shard);
        let is_there = self.is_there_still(&candidate, object.is_some());
        let Some(mut object) = object.filter(|_| is_there) else {
            shard.free_handle(handle);
            return ended.waiters;
        };
        let meta = &mut object.stored.meta;
        // The disk knows neither when it was made stale nor whether by a purge or by a client's
        // request, after which no use of it is allowed.
        if ended.is_outdated || head.is_outdated {
            meta.invalidate();
        }
        self.recent.apply(meta, since, &object.name, &object.tags, now_ms);
        // Somebody may have fetched it from the origin meanwhile, or found that it varies otherwise.
        let replaces = |other: &crate::Object| {
            other.stored.vary != object.stored.vary
                || (other.variant == object.variant && !other.is_cut())
        };
        let others = shard.keys.get(&key).map_or(&[][..], |entry| &entry.objects);
        if others.len() >= self.variants() || others.iter().any(|slot| replaces(&slot.object)) {
            shard.free_handle(handle);
            return ended.waiters;
        }
        let size = head.body_bytes + object.overhead();
        let objects = shard.insert(key, handle, Arc::new(object), size, since);
        // Others under its key are newer.
        objects.rotate_right(1);
        objects[0].is_on_disk = true;
        self.count(&mut shard);
        drop(shard);
        self.shrink(now_ms);
        ended.waiters
    }

    /// Whether a disk has what it gave under the same id still; otherwise something newer is there, or
    /// was, and may have left memory already. What cannot be read is given up.
    fn is_there_still(&self, candidate: &Candidate, is_readable: bool) -> bool {
        // A shard is locked: see above.
        let Ok(tier) = self.beneath.tier.try_read() else { return false };
        let Tier::Open(open) = &*tier else { return false };
        let is_there = open.disks.has(candidate);
        if is_there && !is_readable {
            open.disks.forget(candidate.id);
        }
        is_there
    }

    /// Nothing of it will come. Gives those who waited: they ask again.
    pub(super) fn comes_not(self: &Arc<Self>, number: u64) -> Vec<Waiter> {
        let Some(coming) = self.lock_coming().remove(&number) else { return Vec::new() };
        let Coming { key, handle, .. } = coming;
        let ended = Claim::new(self.clone(), key, number).end(None);
        self.shard(key).free_handle(handle);
        ended.waiters
    }

    /// The rest of a body that has come will not.
    pub(super) fn take_out_cut(&self, key: Key) {
        self.take_out(self.shard(key), key, |slot| slot.object.is_cut());
    }

    fn lock_coming(&self) -> std::sync::MutexGuard<'_, std::collections::HashMap<u64, Coming>> {
        self.beneath.coming.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

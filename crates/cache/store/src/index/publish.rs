//! Storing an answer whose body is about to arrive.

use std::sync::{Arc, MutexGuard};

use iolite::Refusal;
use millrace_body::{Filler, Waiter};
use millrace_http_cache::{Key, Stored, TagHash, VariantKey};

use super::cache::Cache;
use super::claim::{BRIEFLY_MS, Claim};
use super::filling::{self, Filling};
use super::shard::{Shard, Slot};
use crate::object::Object;

/// Why an answer is not stored that may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Unkept {
    /// It is not worth its room, and nobody waits for it.
    Size,
    /// There is no memory for its beginning: readers have all of it.
    Memory,
}

/// What is to be stored.
#[derive(Debug)]
pub struct Draft {
    /// Its head, and what decides about its reuse.
    pub stored: Stored,
    /// What the request said in the fields that it varies by.
    pub variant: Option<VariantKey>,
    /// The length of its body, where it was announced.
    pub declared: Option<u64>,
    /// The text of its key.
    pub name: Arc<[u8]>,
    /// What it may be purged by.
    pub tags: Arc<[TagHash]>,
    /// What [`Cache::number`] was before the origin was asked.
    pub since: u64,
    /// What [`Cache::invalidate`] gave, if it is the answer to an unsafe request: it is not what
    /// that has made invalid. 0: it is another.
    pub own_change: u64,
}

impl Cache {
    /// Stores an answer whose body is about to arrive, in the place of those for the same requests.
    /// Gives what fills the body, or why there is nothing to fill; and those who waited for the
    /// claim.
    pub fn publish(
        self: &Arc<Self>,
        key: Key,
        claim: Option<Claim>,
        draft: Draft,
        now_ms: u64,
    ) -> (Result<Filling, Unkept>, Vec<Waiter>) {
        let Draft { mut stored, variant, declared, name, tags, since, own_change } = draft;
        let size = declared.unwrap_or(filling::FIRST_BYTES);
        let mut shard = self.shard(key);
        // Nobody makes it invalid, or fetches again, between the claim and the object.
        let ended = claim.map(|mut claim| claim.end_in(&mut shard)).unwrap_or_default();
        let is_wanted = shard.eviction.admit(key.0 as u64, size) || !ended.waiters.is_empty();
        if !is_wanted || self.is_too_long(size) {
            return (Err(Unkept::Size), ended.waiters);
        }
        let Some((mut shard, handle, filler)) = self.begin_body(shard, key, declared, now_ms)
        else {
            self.note_memory_missed(Refusal::Full);
            self.shard(key).note_pass(key, now_ms.saturating_add(BRIEFLY_MS));
            return (Err(Unkept::Memory), ended.waiters);
        };
        if ended.is_outdated {
            stored.meta.invalidate();
        }
        // Under the lock: whoever purges after this finds the object, and before it is in here.
        if shard.outdated.has(&[key], since.max(own_change)) {
            stored.meta.invalidate();
        }
        self.recent.apply(&mut stored.meta, since, &name, &tags, now_ms);
        let (body, is_from_disk) = (filler.body().clone(), false);
        let object = Object { stored, variant, declared, body, name, tags, is_from_disk };
        let gone = self.replaced_by(&mut shard, key, &object);
        let (size, number) = (size + object.overhead(), self.number());
        let object = Arc::new(object);
        shard.insert(key, handle, object.clone(), size, since);
        self.count(&mut shard);
        drop(shard);
        drop(gone);
        self.shrink(now_ms);
        let (cache, filler) = (self.clone(), Some(filler));
        let filling = Filling { cache, key, object, filler, size, number, is_kept: true };
        (Ok(filling), ended.waiters)
    }

    /// A handle for a new object, and what fills its body, with memory for the beginning: `None`
    /// where there is none, and none can be had. The shard is let go while others are taken out.
    fn begin_body<'a>(
        &'a self,
        mut shard: MutexGuard<'a, Shard>,
        key: Key,
        declared: Option<u64>,
        now_ms: u64,
    ) -> Option<(MutexGuard<'a, Shard>, u32, Filler)> {
        for _ in 0..filling::EVICTIONS_MAX {
            let handle = shard.new_handle(key);
            let tag = u64::from(self.index_of(key)) << 32 | u64::from(handle);
            let mut filler = Filler::new(&self.slab, filling::kind(declared), declared, tag);
            let refusal = match declared {
                Some(0) => None,
                _ => filler.spare().err(),
            };
            let Some(refusal) = refusal.filter(|refusal| *refusal != Refusal::Later) else {
                return Some((shard, handle, filler));
            };
            shard.free_handle(handle);
            drop(shard);
            if !self.relieve(refusal, now_ms) {
                return None;
            }
            shard = self.shard(key);
        }
        None
    }

    /// Takes out what a new object stands for from now on: those of the same variant, those that
    /// vary by something else, and the oldest ones if there are too many.
    fn replaced_by(&self, shard: &mut Shard, key: Key, new: &Object) -> Vec<Slot> {
        let is_part = new.meta().extent.is_some();
        let count = shard.keys.get(&key).map_or(0, |entry| entry.objects.len());
        let mut surplus = (count + 1).saturating_sub(self.variants());
        shard.take_out(key, |slot| {
            let old = &slot.object;
            let is_same = old.variant == new.variant && old.stored.vary == new.stored.vary;
            let is_other = old.stored.vary != new.stored.vary;
            let is_better = is_part && old.meta().extent.is_none() && !old.is_cut();
            let is_gone = (is_same && !is_better) || is_other || surplus > 0;
            surplus = surplus.saturating_sub(usize::from(is_gone));
            is_gone
        })
    }
}

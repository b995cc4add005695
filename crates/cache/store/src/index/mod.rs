//! Where stored answers are found, and who may fetch: from a key to its objects and its fetches.
//!
//! Cut into shards by the key, each behind a lock that is held for some hundred nanoseconds: a hit
//! clones a count and looks at numbers. Nobody waits here: who has to leaves a [`Waiter`] behind,
//! and whoever changes what he waits for gets it back and wakes him.

mod beneath;
mod claim;
mod clear;
mod filling;
mod numbers;
mod operate;
mod recent;
mod shard;

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use iolite::{Aggregate, Refusal, Slab};
use millrace_body::{Body, Filler, Waiter};
use millrace_disk::Subject;
use millrace_http_cache::{
    Forward, Freshened, HashKey, Key, Policy, Receipt, RequestDirectives, Reuse, Space, Stored,
    TagHash, VariantKey, VaryNames, freshen_by_head, reuse, updated_tags,
};
use millrace_http1::{AnswerHead, OriginRequest};

use beneath::Beneath;
pub use beneath::Waker;
pub use claim::{BRIEFLY_MS, Claim};
pub use clear::Cleared;
pub use filling::{COPIED_BYTES, Filling};
pub use operate::{Purged, Stat, Which};
use recent::Recent;
use shard::{Entry, Fetch, Shard};

use crate::evict::{Eviction, PASSES_MAX};
use crate::object::Object;

/// The stored answers of a process. Shared by its workers.
#[derive(Debug)]
pub struct Cache {
    slab: Slab,
    hash: HashKey,
    shards: Box<[Mutex<Shard>]>,
    bounds: Bounds,
    /// Those of [`Bounds`] that may change; in no order with anything else.
    object_bytes: AtomicU64,
    variants: AtomicUsize,
    /// The number of the last claim; each has its own, in no order with anything else.
    claims: AtomicU64,
    /// The shard whose turn it is to let an object go; it matters only that all have theirs.
    turn: AtomicU64,
    /// Bytes of all objects. Written under the lock of the shard that changes; who reads it lets go
    /// an object too many at worst.
    held: AtomicU64,
    /// Times that no memory was found for a body; in no order with anything else.
    memory_missed: AtomicU64,
    /// What was purged and made invalid of late.
    recent: Recent,
    /// Answers that operators purged.
    purged: AtomicU64,
    /// Who waited for something whose owner was dropped: see [`Cache::take_orphans`].
    orphans: Mutex<Vec<Waiter>>,
    beneath: Beneath,
}

/// How much is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Bytes of all objects together, heads and bookkeeping included.
    pub bytes: u64,
    /// Bytes of one body; what turns out to be longer is passed on and not kept.
    pub object_bytes: u64,
    /// Objects of one key that differ by the request's fields.
    pub variants: usize,
    /// Whether memory is made ready by whoever finds none: where no thread does.
    pub tends: bool,
}

/// Who asks for what.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// What is asked for.
    pub key: Key,
    /// The request as its origin would receive it, for the fields that objects vary by.
    pub request: &'a OriginRequest<'a>,
    /// What it asks of caches; the default where the route does not heed that.
    pub asked: &'a RequestDirectives,
    /// The time of day, milliseconds since 1970.
    pub now_ms: u64,
    /// Who is to be woken; `None` where nobody waits.
    pub waiter: Option<Waiter>,
    /// Whether others may wait for what comes: it is all of what they ask for.
    pub claims: bool,
    /// Whether what is stale may be validated for its own sake, while this client gets it.
    pub refreshes: bool,
    /// Whether disks are asked too: not by who has waited for one already.
    pub asks_disks: bool,
}

/// What there is for a request.
#[derive(Debug)]
pub enum Found {
    /// An answer that may be used now.
    Stored(Arc<Object>),
    /// An answer that may be used now, while it is validated: by whoever gets the claim. `None`:
    /// somebody does so already.
    Stale(Arc<Object>, Option<Claim>),
    /// An answer that has to be validated first.
    Validate {
        /// The answer.
        object: Arc<Object>,
        /// Whether it may be used if the origin fails.
        is_spare: bool,
        /// `None`: nobody else waits for what comes.
        claim: Option<Claim>,
    },
    /// Nothing: the origin is to be asked.
    Nothing {
        /// Why.
        why: Forward,
        /// `None`: nobody else waits for what comes.
        claim: Option<Claim>,
    },
    /// Somebody fetches it, and why the origin has to be asked: the waiter is kept, and is woken to
    /// ask again.
    Wait(Forward),
    /// A disk has it: likewise. `is_own`: it was asked for this very request.
    Comes {
        /// Who asks again need not ask the disks.
        is_own: bool,
    },
    /// Nothing that may be used, and the client wants nothing else: status 504, RFC 9111 section
    /// 5.2.1.7.
    OnlyIfCached,
}

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
    /// An empty cache over a slab.
    pub fn new(slab: Slab, hash: HashKey, bounds: Bounds) -> Arc<Self> {
        let shards = Eviction::shards(bounds.bytes).into_iter();
        Arc::new(Self {
            slab,
            hash,
            shards: shards.map(|eviction| Mutex::new(Shard::new(eviction))).collect(),
            object_bytes: AtomicU64::new(bounds.object_bytes),
            variants: AtomicUsize::new(bounds.variants),
            bounds,
            claims: AtomicU64::new(0),
            turn: AtomicU64::new(0),
            held: AtomicU64::new(0),
            memory_missed: AtomicU64::new(0),
            recent: Recent::default(),
            purged: AtomicU64::new(0),
            orphans: Mutex::default(),
            beneath: Beneath::default(),
        })
    }

    /// Where bodies rest.
    pub fn slab(&self) -> &Slab {
        &self.slab
    }

    /// What keys are hashed with.
    pub fn hash(&self) -> &HashKey {
        &self.hash
    }

    /// Bytes that all objects may take together.
    pub fn bytes_max(&self) -> u64 {
        self.bounds.bytes
    }

    /// From now on bodies up to `object_bytes` are kept, and so many variants of a key.
    pub fn set_limits(&self, object_bytes: u64, variants: usize) {
        self.object_bytes.store(object_bytes, Ordering::Relaxed);
        self.variants.store(variants, Ordering::Relaxed);
    }

    /// Objects of one key that differ by the request's fields.
    fn variants(&self) -> usize {
        self.variants.load(Ordering::Relaxed)
    }

    /// Bytes of the longest body that is kept.
    fn object_bytes(&self) -> u64 {
        self.object_bytes.load(Ordering::Relaxed)
    }

    /// Whether bodies of so many bytes are longer than what is kept.
    pub fn is_too_long(&self, bytes: u64) -> bool {
        bytes > self.object_bytes()
    }

    /// What there is for a request.
    pub fn lookup(self: &Arc<Self>, question: &Question<'_>) -> Found {
        let Question { key, request, asked, now_ms, .. } = *question;
        let mut shard = self.shard(key);
        if self.beneath.rereads() {
            self.let_go(&mut shard, question);
        }
        let Shard { keys, eviction, .. } = &mut *shard;
        let Some(entry) = keys.get_mut(&key) else {
            return self.nothing(&mut shard, question);
        };
        self.recent.heed(entry);
        let Some(slot) = entry.find(&self.hash, request) else {
            return self.nothing(&mut shard, question);
        };
        let object = &slot.object;
        match reuse(object.meta(), asked, now_ms) {
            Reuse::Fresh { .. } | Reuse::Stale { .. } => {
                eviction.hit(slot.handle);
                Found::Stored(object.clone())
            }
            Reuse::StaleWhileRevalidate { .. } => {
                eviction.hit(slot.handle);
                let object = object.clone();
                let words = entry.words(&self.hash, request);
                let is_free = entry.fetch(words).is_none();
                let claim =
                    (is_free && question.refreshes).then(|| self.claim(entry, question, words));
                Found::Stale(object, claim)
            }
            Reuse::Validate { is_spare, .. } => {
                eviction.hit(slot.handle);
                let object = object.clone();
                // A client that wants it validated now gets no answer that was asked for before.
                let is_own = asked.no_cache || asked.max_age_s.is_some();
                let may_wait = !is_own && !object.meta().is_fresh(now_ms);
                match self.claim_or_wait(entry, question, may_wait) {
                    Ok(claim) => Found::Validate { object, is_spare, claim },
                    Err(waits) => waits.found(Forward::Stale),
                }
            }
            Reuse::OnlyIfCached => Found::OnlyIfCached,
        }
    }

    /// There is nothing for the request in memory.
    fn nothing(self: &Arc<Self>, shard: &mut Shard, question: &Question<'_>) -> Found {
        if self.bring(shard, question) {
            return Found::Comes { is_own: true };
        }
        if question.asked.only_if_cached {
            return Found::OnlyIfCached;
        }
        let Some(entry) = shard.keys.get_mut(&question.key) else {
            let claim = match question.claims {
                true => {
                    let entry = shard.keys.entry(question.key).or_default();
                    Some(self.claim(entry, question, None))
                }
                false => None,
            };
            return Found::Nothing { why: Forward::UriMiss, claim };
        };
        let why = if entry.objects.is_empty() { Forward::UriMiss } else { Forward::VaryMiss };
        match self.claim_or_wait(entry, question, true) {
            Ok(claim) => Found::Nothing { why, claim },
            Err(waits) => waits.found(why),
        }
    }

    /// The claim if nobody has it; otherwise none, or the place among those who wait for who has.
    fn claim_or_wait(
        self: &Arc<Self>,
        entry: &mut Entry,
        question: &Question<'_>,
        may_wait: bool,
    ) -> Result<Option<Claim>, Waits> {
        if question.now_ms < entry.pass_until_ms {
            return Ok(None);
        }
        let words = entry.words(&self.hash, question.request);
        if may_wait && question.waiter.is_none() {
            entry.give_up_disks(words);
        }
        let Some(fetch) = entry.fetch(words) else {
            return Ok(question.claims.then(|| self.claim(entry, question, words)));
        };
        match question.waiter.filter(|_| may_wait && !fetch.is_outdated) {
            Some(waiter) => {
                fetch.waiters.push(waiter);
                Err(Waits { is_for_disk: fetch.is_of_disk })
            }
            None => Ok(None),
        }
    }

    fn claim(
        self: &Arc<Self>,
        entry: &mut Entry,
        question: &Question<'_>,
        words: Option<u128>,
    ) -> Claim {
        let number = self.claims.fetch_add(1, Ordering::Relaxed);
        let waiters = Vec::new();
        entry.fetches.push(Fetch::new(number, words, waiters, false));
        Claim::new(self.clone(), question.key, number)
    }

    /// Somebody does not wait any more for whoever fetches what is stored under the key.
    pub fn forget(&self, key: Key, waiter: Waiter) {
        let mut shard = self.shard(key);
        let Some(entry) = shard.keys.get_mut(&key) else { return };
        for fetch in &mut entry.fetches {
            fetch.waiters.retain(|other| *other != waiter);
        }
    }

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
        let object = Object { stored, variant, declared, body: filler.body().clone(), name, tags };
        let gone = self.replaced_by(&mut shard, key, &object);
        let (size, number) = (size + object.overhead(), self.number());
        let object = Arc::new(object);
        shard.insert(key, handle, object.clone(), size, since);
        self.count(&mut shard);
        drop(shard);
        drop(gone);
        self.shrink(now_ms);
        let filling = Filling::new(self.clone(), key, object, filler, size, number);
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
    fn replaced_by(&self, shard: &mut Shard, key: Key, new: &Object) -> Vec<shard::Slot> {
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

    /// Notes what a shard holds now.
    fn count(&self, shard: &mut Shard) {
        let (before, now) = (shard.counted, shard.eviction.bytes());
        shard.counted = now;
        self.held.fetch_add(now.wrapping_sub(before), Ordering::Relaxed);
    }

    /// Lets objects go, of each shard in turn, until all of them together fit.
    fn shrink(&self, now_ms: u64) {
        while self.held.load(Ordering::Relaxed) > self.bounds.bytes && self.make_room(now_ms) {}
    }

    /// Takes one object out. False if there is none.
    fn make_room(&self, now_ms: u64) -> bool {
        for passed in 0..self.shards.len() + PASSES_MAX {
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) as usize;
            let mut shard = self.lock(turn % self.shards.len());
            let gone = shard.evict((now_ms / 1000) as u32, passed < PASSES_MAX);
            self.count(&mut shard);
            drop(shard);
            if gone.is_some() {
                return true;
            }
        }
        false
    }

    /// Makes memory available, or sees to it that there will be some. False if there is nothing to
    /// be done.
    fn relieve(&self, refusal: Refusal, now_ms: u64) -> bool {
        match refusal {
            Refusal::Later if self.bounds.tends => {
                self.slab.tend();
                true
            }
            Refusal::Later => false,
            Refusal::Scattered => match self.slab.condemn() {
                Some(tags) => {
                    self.drop_condemned(&tags);
                    true
                }
                None => self.make_room(now_ms),
            },
            Refusal::Full => self.make_room(now_ms),
        }
    }

    /// Nothing more was taken out for a body, and there is no memory for it.
    fn note_memory_missed(&self, refusal: Refusal) {
        if refusal != Refusal::Later {
            self.memory_missed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Times that no memory was found for a body, though others were taken out for it: those who
    /// read what is not stored any more have it.
    pub fn memory_missed(&self) -> u64 {
        self.memory_missed.load(Ordering::Relaxed)
    }

    /// Whether what is stored under the key has this body. Otherwise only those who read it keep
    /// its memory from being used again.
    pub fn holds(&self, key: Key, body: &Arc<Body>) -> bool {
        self.shard(key).slot_of(key, body).is_some()
    }

    /// Takes the objects out that a condemned block of the slab has parts of.
    fn drop_condemned(&self, tags: &[u64]) {
        for &tag in tags {
            let (index, handle) = ((tag >> 32) as usize, tag as u32);
            let mut shard = self.lock(index);
            let key = shard.key_of(handle);
            let gone = key.map(|key| shard.take_out(key, |slot| slot.handle == handle));
            self.count(&mut shard);
            drop(shard);
            drop(gone);
        }
    }

    /// What a 304 to the request made of a stored answer. It takes that one's place if it is still
    /// there as it was: what made it invalid meanwhile may be newer than the 304. It is the answer
    /// to the one who validated it in any case. `since`: as of a [`Draft`].
    pub fn update(
        &self,
        key: Key,
        old: &Arc<Object>,
        stored: Stored,
        (request, answer): (&OriginRequest<'_>, &AnswerHead),
        since: u64,
    ) -> Arc<Object> {
        let mut new = old.with(stored);
        if new.stored.vary != old.stored.vary {
            let vary = new.stored.vary.as_ref();
            new.variant = vary.map(|names| names.key_of_answer(&self.hash, request, answer));
        }
        let space = Space::in_text(&old.name);
        if let Some(tags) = updated_tags(&self.hash, &space, request.head(), answer, new.head()) {
            new.tags = tags;
        }
        let new = Arc::new(new);
        let mut shard = self.shard(key);
        if let Some(slot) = shard.slot_of(key, &old.body)
            && Arc::ptr_eq(&slot.object, old)
        {
            slot.object = new.clone();
            if new.tags != old.tags {
                slot.heeded = shard::heeded(&new, since);
            }
            let is_other = self.keep_update(key, old, slot);
            let handle = slot.handle;
            if let Some(length) = new.length() {
                shard.eviction.resize(handle, length + new.overhead());
                self.count(&mut shard);
            }
            drop(shard);
            if is_other {
                self.forget_on_disk(key, old);
            }
        }
        new
    }

    /// What is stored under the key may not be used any more before it was validated, nor what is
    /// being fetched now, RFC 9111 section 4.4. `since`: [`Cache::number`] before the origin was
    /// asked for the change. Gives the [`Draft::own_change`] of what it answers: 0 where another
    /// change came before this one, and may be newer than its answer.
    pub fn invalidate(&self, key: Key, since: u64) -> u64 {
        let _step = self.beneath.tell(&[Subject::Key(key)], false);
        let mut shard = self.shard(key);
        let is_first = !shard.outdated.has(&[key], since);
        let number = self.recent.next();
        shard.outdated.add(key, number);
        if let Some(entry) = shard.keys.get_mut(&key) {
            for slot in &mut entry.objects {
                let mut object = (*slot.object).clone();
                object.stored.meta.invalidate();
                slot.object = Arc::new(object);
            }
            entry.fetches.iter_mut().for_each(|fetch| fetch.is_outdated = true);
        }
        if is_first { number } else { 0 }
    }

    /// What carries the tag may not be used any more before it was validated, nor what is being
    /// fetched now. Costs the same however much is stored: each object heeds it when it is found.
    pub fn invalidate_tag(&self, tag: TagHash) {
        let _step = self.beneath.tell(&[Subject::Tag(tag)], true);
        self.recent.invalidate(tag);
    }

    /// Those who waited for a claim or a body whose owner was dropped, in a panic say: whoever takes
    /// its place wakes them. The others give theirs back as they end.
    #[must_use = "they have to be woken"]
    pub fn take_orphans(&self) -> Vec<Waiter> {
        std::mem::take(&mut *self.orphans())
    }

    /// Leaves waiters to whoever takes them next.
    pub fn leave_orphans(&self, waiters: Vec<Waiter>) {
        if !waiters.is_empty() {
            self.orphans().extend(waiters);
        }
    }

    fn orphans(&self) -> MutexGuard<'_, Vec<Waiter>> {
        self.orphans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the answer to a HEAD says of what is stored, RFC 9111 section 4.3.5. `since` is what
    /// [`Cache::number`] was before the origin was asked.
    pub fn update_by_head(
        &self,
        key: Key,
        (request, answer): (&OriginRequest<'_>, &AnswerHead),
        since: u64,
        receipt: &Receipt,
        policy: &Policy,
    ) {
        let shard = self.shard(key);
        let Some(entry) = shard.keys.get(&key) else { return };
        let Some(slot) = entry.find(&self.hash, request) else { return };
        let old = slot.object.clone();
        drop(shard);
        let Some(length) = old.length() else { return };
        let head = request.head();
        let freshened = freshen_by_head(head, &old.view(), length, answer, receipt, policy);
        let is_same_vary = || match VaryNames::of(answer) {
            Ok(vary) => vary.is_none() || vary == old.stored.vary,
            Err(_) => false,
        };
        let stored = match freshened {
            // It does not undo what came while it was under way.
            Freshened::Updated(mut stored) if is_same_vary() => {
                if self.shard(key).outdated.has(&[key], since) {
                    stored.meta.invalidate();
                }
                let now_ms = receipt.response_ms;
                self.recent.apply(&mut stored.meta, since, &old.name, &old.tags, now_ms);
                stored
            }
            // What it varies by now, it may have varied by when it was asked for with other words.
            Freshened::Updated(_) | Freshened::Stale => {
                let mut stored = old.stored.clone();
                stored.meta.invalidate();
                stored
            }
            Freshened::Unchanged => return,
        };
        self.update(key, &old, stored, (request, answer), since);
    }

    /// Takes out what is stored under the key; gives how many objects that were.
    pub fn remove(&self, key: Key) -> usize {
        let step = self.beneath.tell(&[Subject::Key(key)], false);
        let mut shard = self.shard(key);
        if let Some(entry) = shard.keys.get_mut(&key) {
            entry.fetches.iter_mut().for_each(|fetch| fetch.is_outdated = true);
        }
        let gone = shard.take_out(key, |_| true);
        self.count(&mut shard);
        drop((shard, step));
        gone.len()
    }

    /// What came of an object's body takes its place as a part; or it goes, if it is not there as it
    /// was: what was made invalid meanwhile must not come back.
    fn keep_part(&self, key: Key, old: &Arc<Object>, stored: Stored, came: Aggregate) {
        let mut part = old.with(stored);
        part.declared = Some(came.len());
        part.body = Arc::new(Body::whole(came));
        let size = part.body.arrived() + part.overhead();
        let mut shard = self.shard(key);
        let slot = shard.slot_of(key, &old.body);
        let Some(slot) = slot.filter(|slot| Arc::ptr_eq(&slot.object, old)) else {
            drop(shard);
            return self.remove_body(key, &old.body);
        };
        let (handle, before) = (slot.handle, std::mem::replace(&mut slot.object, Arc::new(part)));
        shard.eviction.resize(handle, size);
        self.count(&mut shard);
        drop(shard);
        drop(before);
    }

    /// Takes this one out, wherever it is stored.
    pub fn remove_object(&self, key: Key, object: &Object) {
        self.remove_body(key, &object.body);
        self.forget_on_disk(key, object);
    }

    /// Takes the object with this body out.
    fn remove_body(&self, key: Key, body: &Arc<Body>) {
        let mut shard = self.shard(key);
        let gone = shard.take_out(key, |slot| Arc::ptr_eq(&slot.object.body, body));
        self.count(&mut shard);
        drop(shard);
        drop(gone);
    }

    /// The object with this body has so many bytes now.
    fn resize(&self, key: Key, body: &Arc<Body>, size: u64, now_ms: u64) {
        let mut shard = self.shard(key);
        let Some(handle) = shard.slot_of(key, body).map(|slot| slot.handle) else { return };
        shard.eviction.resize(handle, size);
        self.count(&mut shard);
        drop(shard);
        self.shrink(now_ms);
    }

    fn index_of(&self, key: Key) -> u32 {
        (key.0 >> 96) as u32 % self.shards.len() as u32
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        self.lock(self.index_of(key) as usize)
    }

    /// Poisoned only by a panic of somebody who held it, which ends the worker: what it guards is
    /// whole between two statements, and at worst an object is forgotten.
    fn lock(&self, index: usize) -> MutexGuard<'_, Shard> {
        self.shards[index].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The waiter was kept.
struct Waits {
    is_for_disk: bool,
}

impl Waits {
    /// For whom there would be no answer without the origin, and `why`.
    fn found(self, why: Forward) -> Found {
        if self.is_for_disk { Found::Comes { is_own: false } } else { Found::Wait(why) }
    }
}

#[cfg(test)]
mod tests;

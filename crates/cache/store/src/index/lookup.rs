//! What there is for a request, and who fetches it if there is nothing.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use millrace_body::Waiter;
use millrace_http_cache::{Forward, Key, RequestDirectives, Reuse, reuse};
use millrace_http1::OriginRequest;

use super::cache::Cache;
use super::claim::Claim;
use super::shard::{Entry, Fetch, Shard};
use crate::object::Object;

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

impl Cache {
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
        entry.fetches.push(Fetch { number, words, ..Fetch::default() });
        Claim::new(self.clone(), question.key, number)
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

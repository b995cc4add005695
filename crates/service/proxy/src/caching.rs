//! What an exchange has to do with the cache: what it asks for, what it may fetch for others, what
//! it reads. The stages are `stage/lookup.rs`, before there is an origin, `stage/keep.rs`, once the
//! origin has answered, and `stage/serve.rs`, where a stored answer goes to the client.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use millrace_cache::rules::{
    CacheStatus, Forward, HashKey, Key as CacheKey, KeyParts, Remainder, Scheme, Site,
};
use millrace_cache::{Cache, Claim, Object, Waiter};
use millrace_event::{Engine, Instant, Key, Kind, Token};
use millrace_http::{OriginRequest, destination};

use crate::fill;
use crate::flow::{self, Stage};
use crate::house::HOUSEKEEPING;
use crate::kept::Kept;
use crate::letter::Letter;
use crate::refresh;
use crate::stage::deliver;
use crate::transfer::Waits;
use crate::worker::Worker;

/// What an exchange has to do with the cache. The default: nothing.
#[derive(Debug, Default)]
pub(crate) struct Caching {
    /// What it asks for.
    pub(crate) key: Option<CacheKey>,
    /// Until when it waits for somebody else's fetch, if it does: its place among
    /// [`Worker::collapsed`].
    pub(crate) waits_until: Option<Instant>,
    /// When it began to wait for the first time; it does not wait for longer than is allowed in all.
    pub(crate) waited_since: Option<Instant>,
    /// Others wait for what it fetches.
    pub(crate) claim: Option<Claim>,
    /// What is stored: about to be validated, or the answer.
    pub(crate) object: Option<Arc<Object>>,
    /// Whether the origin is asked if that still holds.
    pub(crate) validates: bool,
    /// What the origin is asked for to make it whole, where it is a part.
    pub(crate) completes: Option<Remainder>,
    /// Whether it is the answer if the origin fails.
    pub(crate) is_spare: bool,
    /// Where the answer comes from.
    pub(crate) answer: Answer,
    /// Whether the origin was asked for all of it, whatever the client asked for.
    pub(crate) asks_for_all: bool,
    /// Why the origin was asked; `None`: it was not.
    pub(crate) forward: Option<Forward>,
    /// What the origin said, where the client is told something else.
    pub(crate) forward_status: Option<u16>,
    /// Whether the client gets fields of the origin's 304 that are meant for it alone and are not
    /// stored: `FOR_ONE_CLIENT`.
    pub(crate) adds_fields_for_client: bool,
    /// Whether it is an answer that is not fresh any more.
    pub(crate) is_stale: bool,
    /// Whether what the origin said was stored.
    pub(crate) is_stored: bool,
    /// Why the origin had to be asked when somebody else did so already, and this one waited.
    pub(crate) waited_for: Option<Forward>,
    /// Whether somebody else's fetch was its own.
    pub(crate) is_collapsed: bool,
    /// Whether what it waited for last was to come from a disk.
    pub(crate) comes_from_disk: bool,
    /// Whether a disk was asked for this very request: once is enough.
    pub(crate) has_asked_disks: bool,
    /// Why the answer was not stored.
    pub(crate) detail: Option<&'static str>,
    /// The number of the cache's last purge when the cache was asked.
    pub(crate) since: u64,
    /// The number of the change that it has made; 0: none that its own answer would not be.
    pub(crate) own_change: u64,
    /// When the request was sent, milliseconds since 1970.
    pub(crate) request_ms: u64,
    /// The body of the answer, or a place at its beginning until that is sent.
    pub(crate) kept: Option<Kept>,
}

/// Where the head and the body of an answer come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Answer {
    /// Both from the origin.
    #[default]
    Origin,
    /// The head from the origin; the body from the cache, into which it is received.
    Filled,
    /// Both from the cache.
    Stored,
}

impl Caching {
    /// What the cache did, for the record.
    pub(crate) fn word(&self) -> &'static str {
        match (self.answer, self.forward) {
            (Answer::Stored, None) if self.is_stale => "stale",
            (Answer::Stored, None) if self.is_collapsed => "collapsed",
            (Answer::Stored, None) => "hit",
            (Answer::Stored, Some(_)) if self.forward_status == Some(304) => "validated",
            (_, Some(Forward::Method | Forward::Bypass)) => "bypass",
            (_, Some(_)) => "miss",
            (_, None) => "",
        }
    }

    /// What its client is told of it, RFC 9211. Who waited for what somebody else fetched went
    /// forward, if not by itself: section 2.6 knows no hits that were collapsed.
    pub(crate) fn status(&self) -> CacheStatus<'static> {
        let forward = self.forward.or(self.waited_for.filter(|_| self.is_collapsed));
        CacheStatus {
            is_hit: forward.is_none(),
            forward,
            forward_status: self.forward_status,
            is_stored: self.is_stored,
            collapsed: self.waited_for.map(|_| self.is_collapsed),
            detail: self.detail,
            ..CacheStatus::default()
        }
    }

    /// Whether it reads what is not stored any more: nobody else gets that, and its memory is not
    /// used for others as long as it is read.
    pub(crate) fn reads_gone(&self, cache: &Cache) -> bool {
        let (Some(key), Some(kept)) = (self.key, &self.kept) else { return false };
        !cache.holds(key, kept.body())
    }

    /// What is stored is the answer. A body that still arrives has a reader from now on: it may be
    /// only passed on before the exchange has its turn to send. False where its beginning was let go
    /// already, or its end will never come.
    pub(crate) fn serve(&mut self, object: Arc<Object>, waiter: Waiter) -> bool {
        if object.body.bytes().is_none() {
            let kept = Kept::new(&object.body, None, waiter);
            let Some(kept) = kept.filter(|_| !object.is_cut()) else { return false };
            self.kept = Some(kept);
        }
        (self.object, self.answer) = (Some(object), Answer::Stored);
        true
    }
}

/// The key that a request asks for, as a GET; `None` where nobody can say which site it is of.
pub(crate) fn key_of(
    hash: &HashKey,
    request: &OriginRequest<'_>,
    parts: &KeyParts,
) -> Option<CacheKey> {
    let destination = destination(request.head()).ok()?;
    let site = Site { scheme: Scheme::Http, authority: destination.authority? };
    Some(CacheKey::of(hash, &site, destination.path_and_query, request, parts))
}

/// The time of day as the cache counts it.
pub(crate) fn now_ms<E: Engine>(engine: &E) -> u64 {
    u64::try_from(engine.time_of_day().as_millis()).unwrap_or(u64::MAX)
}

impl<E: Engine> Worker<E> {
    /// How others wake an object of this worker.
    pub(crate) fn waiter(&self, key: Key, kind: Kind) -> Waiter {
        Waiter { worker: self.index as u16, token: key.token(kind).to_bits() }
    }

    /// The cache; the caller knows that there is one.
    pub(crate) fn cache(&self) -> Arc<Cache> {
        self.shared.cache.clone().expect("whoever has to do with the cache has found one")
    }

    /// Wakes those who waited for something in the cache: here before this turn ends, elsewhere by
    /// letters.
    pub(crate) fn wake(&mut self, waiters: impl IntoIterator<Item = Waiter>) {
        for Waiter { worker, token } in waiters {
            let token = Token::from_bits(token);
            if usize::from(worker) == self.index {
                self.woken_here.push_back(token);
            } else if let Err(Letter::Wake(token)) =
                self.mail.send(usize::from(worker), Letter::Wake(token))
            {
                self.late_wakes.push((worker, token));
            }
        }
    }

    /// When [`Worker::tend_cache`] has to be called next, at the latest.
    pub(crate) fn cache_deadline(&self) -> Option<Instant> {
        self.shared.cache.as_ref()?;
        let is_late =
            !self.starved.is_empty() || !self.late_wakes.is_empty() || !self.woken_here.is_empty();
        let late = is_late.then(|| self.engine.now() + LATE);
        let unread = self.draining && !self.fills.is_empty();
        let unread = unread.then(|| self.engine.now() + HOUSEKEEPING);
        let collapsed = self.collapsed.first().map(|(due, _)| *due);
        [late, unread, collapsed].into_iter().flatten().min()
    }

    /// What has to do with the cache and waits for the end of a turn.
    pub(crate) fn tend_cache(&mut self, now: Instant) {
        self.give_up_collapsed(now);
        if self.draining {
            refresh::end_all(self);
            self.end_unread_fills();
        }
        self.feed_starved();
        self.run_woken();
    }

    /// Goes on with those who were woken.
    fn run_woken(&mut self) {
        for (worker, token) in std::mem::take(&mut self.late_wakes) {
            self.wake([Waiter { worker, token: token.to_bits() }]);
        }
        while let Some(token) = self.woken_here.pop_front() {
            match token.kind() {
                Kind::Exchange => self.exchange_woken(token.into()),
                Kind::Fill => fill::run(self, token.into()),
                kind => unreachable!("no {kind:?} waits for the cache"),
            }
        }
    }

    fn exchange_woken(&mut self, key: Key) {
        let Some(exchange) = self.exchanges.get(key) else { return };
        let (stage, reads) = (exchange.stage, exchange.download.waits() == Waits::Source);
        match stage {
            Stage::Lookup if self.ends_wait(key) => flow::run(self, key),
            Stage::Deliver if reads => deliver::download(self, key, false),
            // It has found what it waited for, or goes on without.
            _ => {}
        }
    }

    /// Those who have waited long enough for somebody else's fetch go on by themselves.
    fn give_up_collapsed(&mut self, now: Instant) {
        while let Some((_, key)) = self.collapsed.first().copied().filter(|(due, _)| *due <= now) {
            self.leave_line_of_cache(key);
            flow::run(self, key);
        }
    }

    /// The exchange waits for somebody else's fetch no longer. False if it did not.
    fn ends_wait(&mut self, key: Key) -> bool {
        let due = self.exchange(key).caching.waits_until.take();
        due.is_some_and(|due| self.collapsed.remove(&(due, key)))
    }

    /// The exchange does not wait for somebody else's fetch any more.
    fn leave_line_of_cache(&mut self, key: Key) {
        let waiter = self.waiter(key, Kind::Exchange);
        if self.ends_wait(key) {
            let asked_for = self.exchange(key).caching.key.expect("it waits for something");
            self.cache().forget(asked_for, waiter);
        }
    }

    /// The exchange ends, or goes on without the cache: others may fetch, and nobody waits for it.
    pub(crate) fn leave_cache(&mut self, key: Key) {
        if self.exchange(key).caching.key.is_none() {
            return;
        }
        self.leave_line_of_cache(key);
        let caching = &mut self.exchange(key).caching;
        let released = caching.claim.take().map(Claim::release);
        let left = caching.kept.take().and_then(Kept::leave);
        self.wake(released.into_iter().flatten().chain(left));
    }
}

/// How soon fills that found no memory, and wakes that found no room, are tried again.
const LATE: Duration = Duration::from_millis(1);

/// Exchanges that wait for somebody else's fetch, in the order in which they have waited long enough.
pub(crate) type Collapsed = BTreeSet<(Instant, Key)>;

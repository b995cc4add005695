//! The cache's part in an exchange: what the exchange requests of it, what it may fetch for others,
//! and what it reads. It is used by `stage/lookup.rs`, before there is an origin, by `outcome.rs`,
//! once the origin has responded, and by `serve.rs`, where a stored response goes to the client.

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_engine::{Engine, Instant, Key};
use millrace_http_cache::{
    CacheStatus, Forward, HashKey, Key as CacheKey, KeyParts, Remainder, Scheme, Site,
};
use millrace_http1::{OriginRequest, destination};
use millrace_store::{Cache, Claim, Object, Waiter};

use crate::cached::reader::CachedReader;

/// What of a worker waits for something in the cache, and refreshes.
#[derive(Debug, Default)]
pub(crate) struct CacheWaits {
    /// Exchanges that wait for another one's fetch, in the order in which they stop waiting.
    pub(crate) collapsed: BTreeSet<(Instant, Key)>,
    /// Fills that found no memory.
    pub(crate) starved: Vec<Key>,
    /// Exchanges without a client.
    pub(crate) refreshes: usize,
}

/// What an exchange has to do with the cache. The default: nothing.
#[derive(Debug, Default)]
pub(crate) struct CacheContext {
    /// What it asks for.
    pub(crate) key: Option<CacheKey>,
    /// Until when it waits for another exchange's fetch, if it does: its place among
    /// [`CacheWaits::collapsed`].
    pub(crate) waits_until: Option<Instant>,
    /// When it began to wait for the first time; it does not wait for longer than is allowed in
    /// all.
    pub(crate) waited_since: Option<Instant>,
    /// Others wait for what it fetches.
    pub(crate) lease: Option<Claim>,
    /// What is stored: about to be validated, or the response.
    pub(crate) object: Option<Arc<Object>>,
    /// Whether the origin is asked if that still holds.
    pub(crate) is_validating: bool,
    /// What the origin is asked for to make it whole, where it is a part.
    pub(crate) remainder: Option<Remainder>,
    /// Whether it is the response if the origin fails.
    pub(crate) is_stale_fallback: bool,
    /// Where the response comes from.
    pub(crate) source: ResponseSource,
    /// Whether the origin was asked without the client's own conditions.
    pub(crate) is_unconditional: bool,
    /// Why the origin was asked; `None`: it was not.
    pub(crate) forward: Option<Forward>,
    /// The origin's status, where the client gets another one.
    pub(crate) forward_status: Option<u16>,
    /// Whether the client gets fields of the origin's 304 that are meant for it alone and are not
    /// stored: `FOR_ONE_CLIENT`.
    pub(crate) adds_client_fields: bool,
    /// Whether it is a response that is not fresh any more.
    pub(crate) is_stale: bool,
    /// Whether what the origin said was stored.
    pub(crate) is_stored: bool,
    /// Why the origin had to be asked, where another exchange did so already and this one waited.
    pub(crate) waited_for: Option<Forward>,
    /// Whether another exchange's fetch served it.
    pub(crate) is_collapsed: bool,
    /// Whether what it waited for last was to come from a disk.
    pub(crate) is_from_disk: bool,
    /// Whether a disk was asked for this very request: once is enough.
    pub(crate) has_queried_disks: bool,
    /// Why the response was not stored.
    pub(crate) store_refusal: Option<&'static str>,
    /// The number of the cache's last purge when the cache was asked.
    pub(crate) purge_number: u64,
    /// The number of the change that it has made; 0: none that its own response would not be.
    pub(crate) own_invalidation: u64,
    /// When the request was sent, milliseconds since 1970.
    pub(crate) request_ms: u64,
    /// The body of the response, or a place at its beginning until that is sent.
    pub(crate) reader: Option<CachedReader>,
}

/// Where the header and the body of a response come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ResponseSource {
    /// Both from the origin.
    #[default]
    Origin,
    /// The header from the origin; the body from the cache, into which it is received.
    Filled,
    /// Both from the cache.
    Stored,
}

impl CacheContext {
    /// What the cache did, for the record.
    pub(crate) fn log_word(&self) -> &'static str {
        match (self.source, self.forward) {
            (ResponseSource::Stored, None) if self.is_stale => "stale",
            (ResponseSource::Stored, None) if self.is_collapsed => "collapsed",
            (ResponseSource::Stored, None) => "hit",
            (ResponseSource::Stored, Some(_)) if self.forward_status == Some(304) => "validated",
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
            detail: self.store_refusal,
            ..CacheStatus::default()
        }
    }

    /// Whether it reads what is not stored any more: nobody else gets that, and its memory is not
    /// used for others as long as it is read.
    pub(crate) fn reads_removed(&self, cache: &Cache) -> bool {
        let (Some(key), Some(reader)) = (self.key, &self.reader) else { return false };
        !cache.holds(key, reader.body())
    }

    /// What is stored is the response. A body that still arrives has a reader from now on: it may
    /// be only passed on before the exchange has its turn to send. False where its beginning was
    /// let go already, or its end will never come.
    pub(crate) fn serve_stored(&mut self, object: Arc<Object>, waiter: Waiter) -> bool {
        if object.body.bytes().is_none() {
            let reader = CachedReader::new(&object.body, None, waiter);
            let Some(reader) = reader.filter(|_| !object.is_cut()) else { return false };
            self.reader = Some(reader);
        }
        (self.object, self.source) = (Some(object), ResponseSource::Stored);
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

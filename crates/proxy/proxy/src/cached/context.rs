//! The state of an exchange at the cache: its cache key, its lease to fetch for others, and the
//! body that it reads. `stage/lookup.rs` sets the state before an origin is chosen.
//! `store_outcome.rs` updates it once the origin has responded. `serve.rs` sends a stored response
//! to the client.

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_engine::{Engine, Instant, Key};
use millrace_http_cache::{
    CacheStatus, Forward, HashKey, Key as CacheKey, KeyParts, Remainder, UriOrigin,
};
use millrace_http1::{OriginRequest, destination};
use millrace_store::{Cache, FetchLease, Object, WaiterId};

use crate::cached::reader::CachedReader;
use crate::coded::coder::{BodyCoder, BodyCoders};
use crate::coded::derived::DerivedForms;

/// A worker's objects that wait for the cache, its number of refreshes, and the compression of
/// responses.
#[derive(Debug, Default)]
pub(crate) struct CachedState {
    /// Exchanges that wait for another exchange's fetch or for a file, ordered by their deadlines.
    pub(crate) collapsed: BTreeSet<(Instant, Key)>,
    /// Fills that found no memory.
    pub(crate) starved: Vec<Key>,
    /// The number of refreshes in progress.
    pub(crate) refreshes: usize,
    pub(crate) derived: DerivedForms,
    pub(crate) coders: BodyCoders,
}

/// The state of an exchange at the cache. The default is that of an exchange without a cache.
#[derive(Debug, Default)]
pub(crate) struct CacheContext {
    /// The cache key of the request.
    pub(crate) key: Option<CacheKey>,
    /// The wait for another exchange's fetch, or for a file.
    pub(crate) wait: CollapsedWait,
    /// Whether the disks were queried for this request. Once is enough.
    pub(crate) has_queried_disks: bool,
    /// The lease under which this exchange fetches for others too.
    pub(crate) lease: Option<FetchLease>,
    /// The stored object: the response, or the object to validate or to complete.
    pub(crate) object: Option<Arc<Object>>,
    /// Whether the request to the origin validates `object`.
    pub(crate) is_validating: bool,
    /// The range that is requested from the origin to complete `object`, which is a part.
    pub(crate) remainder: Option<Remainder>,
    /// Whether `object` may be served if the origin fails.
    pub(crate) is_stale_fallback: bool,
    /// Whether the request went to the origin without the client's own conditions. It may have
    /// conditions of the proxy.
    pub(crate) omits_client_conditions: bool,
    /// When the request was sent, in milliseconds since 1970.
    pub(crate) request_ms: u64,
    /// The cache's invalidation sequence number at the lookup. A response is not stored if its key
    /// was purged or invalidated after that.
    pub(crate) invalidation_seq: u64,
    /// The sequence number that [`Cache::invalidate`] returned if this unsafe request invalidated
    /// its own key; 0 otherwise. That invalidation does not prevent storing the response.
    pub(crate) own_invalidation: u64,
    /// Where the response comes from.
    pub(crate) source: ResponseSource,
    /// Whether the client gets the fields `SINGLE_CLIENT_FIELDS` of the origin's 304 or 206. They
    /// are meant for this client alone and are not stored.
    pub(crate) adds_client_fields: bool,
    /// The reader of the response's body. Until the response is sent, it keeps the beginning of the
    /// body from being discarded.
    pub(crate) reader: Option<CachedReader>,
    /// The coder of the response's body, also of one that is not cached. `None` unless the body is
    /// compressed while it passes.
    pub(crate) coder: Option<Box<BodyCoder>>,
    /// The cache's part in the exchange, for reports.
    pub(crate) report: CacheReport,
}

/// The wait of an exchange for another exchange's fetch of the same response.
#[derive(Debug, Default)]
pub(crate) struct CollapsedWait {
    /// The deadline of the present wait; `None` if the exchange does not wait. With the exchange's
    /// key, this is its entry in [`CachedState::collapsed`].
    pub(crate) until: Option<Instant>,
    /// When the exchange first waited. The wait limit applies to all its waits together.
    pub(crate) since: Option<Instant>,
}

/// The cache's part in an exchange, for Cache-Status (RFC 9211) and the access log.
#[derive(Debug, Default)]
pub(crate) struct CacheReport {
    /// Why the request went to the origin (`fwd`). `None` if it did not.
    pub(crate) forward: Option<Forward>,
    /// The status of the origin's response, if the client gets another one.
    pub(crate) forward_status: Option<u16>,
    /// Why the exchange that this one waited for went to the origin. `None` if this one did not
    /// wait.
    pub(crate) leader_forward: Option<Forward>,
    /// Whether another exchange's fetch provided the response.
    pub(crate) is_collapsed: bool,
    /// Whether a stale response is served.
    pub(crate) is_stale: bool,
    /// Whether the exchange last waited for an object from a disk.
    pub(crate) is_from_disk: bool,
    /// Whether the origin's response was stored.
    pub(crate) is_stored: bool,
    /// Why the response was not stored.
    pub(crate) store_refusal: Option<&'static str>,
}

/// Where the header and the body of a response come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum ResponseSource {
    /// Both from the origin.
    #[default]
    Origin,
    /// The header from the origin, the body from the cache into which it is being received.
    Filled,
    /// Both from the cache.
    Stored,
}

impl CacheContext {
    /// Returns the cache's part in the response for the access log.
    pub(crate) fn log_word(&self) -> &'static str {
        match (self.source, self.report.forward) {
            (ResponseSource::Stored, None) if self.report.is_stale => "stale",
            (ResponseSource::Stored, None) if self.report.is_collapsed => "collapsed",
            (ResponseSource::Stored, None) if self.object.is_none() => "file",
            (ResponseSource::Stored, None) => "hit",
            (ResponseSource::Stored, Some(_)) if self.report.forward_status == Some(304) => {
                "validated"
            }
            (_, Some(Forward::Method | Forward::Bypass)) => "bypass",
            (_, Some(_)) => "miss",
            (_, None) => "",
        }
    }

    /// Returns whether the exchange reads a body that is no longer stored. No other exchange gets
    /// that body, and its memory cannot be reused while it is read.
    pub(crate) fn reads_removed(&self, cache: &Cache) -> bool {
        let (Some(key), Some(reader)) = (self.key, &self.reader) else { return false };
        !cache.has_body(key, reader.body())
    }

    /// Makes a stored object the response. If its body is still arriving, the exchange gets a
    /// reader at once: the reader keeps the cache from discarding the beginning of the body before
    /// the exchange has its turn in the pipeline. Returns false if the beginning was discarded
    /// already, or if the body is cut.
    pub(crate) fn serve_stored(&mut self, object: Arc<Object>, waiter: WaiterId) -> bool {
        if object.body.bytes().is_none() {
            let reader = CachedReader::new(&object.body, None, waiter);
            let Some(reader) = reader.filter(|_| !object.is_cut()) else { return false };
            self.reader = Some(reader);
        }
        (self.object, self.source) = (Some(object), ResponseSource::Stored);
        true
    }
}

impl CacheReport {
    /// Returns the Cache-Status of the response (RFC 9211). A collapsed request counts as
    /// forwarded, since section 2.6 defines no collapsed hit.
    pub(crate) fn status(&self) -> CacheStatus<'static> {
        let forward = self.forward.or(self.leader_forward.filter(|_| self.is_collapsed));
        CacheStatus {
            is_hit: forward.is_none(),
            forward,
            forward_status: self.forward_status,
            is_stored: self.is_stored,
            collapsed: self.leader_forward.map(|_| self.is_collapsed),
            detail: self.store_refusal,
            ..CacheStatus::default()
        }
    }
}

/// Returns the cache key of a GET request for the target of `request`. `None` if the target names
/// no authority.
pub(crate) fn key_of(
    hash: &HashKey,
    request: &OriginRequest<'_>,
    parts: &KeyParts,
) -> Option<CacheKey> {
    let destination = destination(request.head()).ok()?;
    let site = UriOrigin { scheme: request.scheme(), authority: destination.authority? };
    Some(CacheKey::from_request(hash, &site, destination.path_and_query, request, parts))
}

/// Returns the time of day as the cache counts it: milliseconds since 1970.
pub(crate) fn now_ms<E: Engine>(engine: &E) -> u64 {
    u64::try_from(engine.time_of_day().as_millis()).unwrap_or(u64::MAX)
}

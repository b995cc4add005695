//! Refreshes: requests of the cache itself that validate a stale response while clients are served
//! from it (RFC 5861 section 3). A refresh is an exchange without a client. It passes the fetch
//! stage like any other exchange and ends where its response would be delivered.

use std::sync::Arc;

use millrace_engine::{Engine, Key, TokenKind};
use millrace_http_cache::{Forward, Key as CacheKey};
use millrace_http1::Framing;
use millrace_store::{FetchLease, Object};

use crate::cached::{CacheContext, CacheReport, waiting};
use crate::core::Core;
use crate::exchange::Stage;
use crate::origin::release;

/// The maximum number of refreshes in progress in a worker. Beyond it, stale responses are
/// refreshed a little later.
pub(crate) const REFRESHES_MAX: usize = 256;

/// Begins a refresh of the stale response that the exchange `of` gets. The request is sent at the
/// end of this turn.
pub(crate) fn begin<E: Engine>(
    core: &mut Core<E>,
    of: Key,
    cache_key: CacheKey,
    object: Arc<Object>,
    lease: FetchLease,
) {
    if core.cached.refreshes == REFRESHES_MAX {
        return core.wake(lease.release());
    }
    let now = core.engine.now();
    let mut exchange = core.exchange_pool.take();
    let cause = core.exchange(of);
    let snapshot = cause.snapshot().clone();
    // Copied rather than parsed again, since the limits may have changed in the meantime.
    exchange.request.clone_from(&cause.request);
    (exchange.service, exchange.plan) = (cause.service, cause.plan);
    // Forwarded fields name the client, and the cache key and the variant may depend on them.
    exchange.sender = cause.sender.clone();
    exchange.snapshot = Some(snapshot);
    exchange.has_request = true;
    exchange.framing = Framing::None;
    exchange.started = Some(now);
    exchange.stage = Stage::Fetch;
    exchange.caching = CacheContext {
        // Read now rather than at the lookup: the request is sent from now on, so its response is
        // newer than any purge until now. After a later purge, the response is not stored.
        invalidation_seq: core.cache().invalidation_seq(),
        key: Some(cache_key),
        object: Some(object),
        lease: Some(lease),
        report: CacheReport { forward: Some(Forward::Stale), ..CacheReport::default() },
        ..CacheContext::default()
    };
    let bytes = exchange.request.bytes().len() + size_of_val(exchange.request.fields());
    exchange.charges[0] = Some(core.engine.budget().charge(bytes));
    let key = core.exchanges.insert(exchange).expect("the table has slots for all refreshes");
    core.cached.refreshes += 1;
    core.counters.cache_refreshes.add(1);
    core.wakes.local.push_back(key.token(TokenKind::Exchange));
}

/// Returns the keys of the refreshes in progress.
pub(crate) fn keys<E: Engine>(core: &Core<E>) -> Vec<Key> {
    match core.cached.refreshes {
        0 => Vec::new(),
        _ => core.exchanges.keys_where(|exchange| exchange.is_refresh()),
    }
}

/// Ends a refresh, with or without a response.
#[inline(never)]
pub(crate) fn end<E: Engine>(core: &mut Core<E>, key: Key) {
    release::abandon_transaction(core, key);
    waiting::leave_cache(core, key);
    let mut exchange = core.exchanges.remove(key).expect("the caller's refresh is in the table");
    core.cached.refreshes -= 1;
    exchange.abandon_transfers(&mut core.engine, &mut core.pipes);
    core.exchange_pool.recycle(exchange);
}

//! Refreshes: requests of the cache's own, which find out whether a stale answer still holds while
//! clients get it (RFC 5861 section 3). A refresh is an exchange without a client: it goes through
//! the fetch stage like any other, and ends where an answer would be delivered.

use std::sync::Arc;

use millrace_engine::{Engine, Key, Kind};
use millrace_http_cache::{Forward, Key as CacheKey};
use millrace_http1::Framing;
use millrace_store::{Claim, Object};

use crate::caching::Caching;
use crate::flow::{self, Stage};
use crate::worker::Worker;

/// Refreshes under way at a time in a worker. Above it, stale answers stay as they are a little
/// longer.
pub(crate) const REFRESHES_MAX: usize = 256;

/// Begins to find out whether what the exchange `of` gets is still the answer to its request.
pub(crate) fn begin<E: Engine>(
    worker: &mut Worker<E>,
    of: Key,
    asked_for: CacheKey,
    object: Arc<Object>,
    claim: Claim,
) {
    if worker.refreshes == REFRESHES_MAX {
        return worker.wake(claim.release());
    }
    let now = worker.engine.now();
    let mut exchange = worker.new_exchange();
    let asked = worker.exchange(of);
    let snapshot = asked.snapshot().clone();
    // Not read again: the limits of its snapshot may be others than those it was read within.
    exchange.request.clone_from(&asked.request);
    (exchange.service, exchange.plan) = (asked.service, asked.plan);
    // The key and the variant are those of a request by this client.
    exchange.sender = asked.sender;
    exchange.snapshot = Some(snapshot);
    exchange.request_is_whole = true;
    exchange.framing = Framing::None;
    exchange.started = Some(now);
    exchange.stage = Stage::Fetch;
    exchange.caching = Caching {
        // What was purged since the stale answer was found is not there to be replaced by a 304,
        // and an answer to what is asked from now on is newer.
        since: worker.cache().number(),
        key: Some(asked_for),
        object: Some(object),
        claim: Some(claim),
        forward: Some(Forward::Stale),
        ..Caching::default()
    };
    let bytes = exchange.request.bytes().len() + size_of_val(exchange.request.fields());
    exchange.charges[0] = Some(worker.engine.budget().charge(bytes));
    let key = worker.exchanges.insert(exchange).expect("there is room for so many");
    worker.refreshes += 1;
    worker.counters.cache_refreshes.add(1);
    flow::run(worker, key);
}

/// Sends the request, whose head is in `worker.out`.
pub(crate) fn ask<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Worker { engine, exchanges, origins, out, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let slot = exchange.transaction.connection.expect("the request has its origin connection");
    let origin = origins.connections.get_mut(slot).expect("held by the exchange");
    exchange.upload = Default::default();
    engine.send(&origin.fd, &[out], slot.token(Kind::Origin));
    origin.sending = true;
}

/// Ends all of them: where all are leaving, nobody needs what they bring.
pub(crate) fn end_all<E: Engine>(worker: &mut Worker<E>) {
    if worker.refreshes == 0 {
        return;
    }
    let refreshes = worker.exchanges.iter().filter(|(_, exchange)| exchange.is_refresh());
    let keys: Vec<Key> = refreshes.map(|(key, _)| key).collect();
    for key in keys {
        end(worker, key);
    }
}

/// Ends a refresh: its answer was taken in, or there is none.
pub(crate) fn end<E: Engine>(worker: &mut Worker<E>, key: Key) {
    worker.leave_origin(key);
    worker.leave_cache(key);
    let exchange = worker.exchanges.remove(key).expect("the caller's exchange is there");
    worker.refreshes -= 1;
    worker.spare(exchange);
}

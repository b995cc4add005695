//! Stage lookup: serves a stored response, waits for another exchange's fetch of the same response,
//! or advances to a fetch, for which other exchanges may wait.

use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Engine, Instant, Key, TokenKind};
use millrace_http_cache::{
    Bypass, Flags, Forward, Meta, RequestDirectives, Selection, bypass, may_collapse, remainder,
    select_ranges,
};
use millrace_http1::{FieldName, Method, RequestHead, has_token};
use millrace_store::{Cache, FetchLease, LookupRequest, LookupResult, Object, WaiterId};

use crate::cached::{key_of, now_ms, refresh, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::exchange::{Exchange, RequestPlan, origin_request};
use crate::origin;

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match event {
        Event::Enter => begin(core, key),
        Event::Woken if waiting::end_wait(core, key) => begin(core, key),
        Event::TimedOut => {
            waiting::cancel_wait(core, key);
            begin(core, key)
        }
        Event::End(reason) => NextStep::End(reason),
        // Becoming first changes nothing for an exchange that waits for another's fetch.
        _ => NextStep::Wait,
    }
}

fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let found = if core.shared.cache.is_some() { query_cache(core, key) } else { None };
    let Some(found) = found else { return advance(core, key) };
    let waiter = core.waiter(key, TokenKind::Exchange);
    let Core { engine, exchanges, cached, counters, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the driver's exchange is in the table");
    let due = wait_deadline(exchange, engine.now());
    let caching = &mut exchange.caching;
    match found {
        LookupResult::Stored(object) => {
            if !caching.serve_stored(object, waiter) {
                return look_up_again(core, key, None);
            }
            counters.cache_hits.add(1);
            caching.report.is_collapsed =
                caching.report.leader_forward.is_some() && !caching.report.is_from_disk;
            NextStep::Advance(Stage::Deliver)
        }
        LookupResult::Stale(object, lease) => {
            if !caching.serve_stored(object.clone(), waiter) {
                return look_up_again(core, key, lease);
            }
            counters.cache_hits.add(1);
            caching.report.is_stale = true;
            if let Some(lease) = lease {
                let cache_key = caching.key.expect("the lookup had a key");
                refresh::begin(core, key, cache_key, object, lease);
            }
            NextStep::Advance(Stage::Deliver)
        }
        LookupResult::Validate { object, is_stale_fallback, lease } => {
            counters.cache_misses.add(1);
            caching.report.forward = Some(why_validate(object.meta(), now_ms(engine)));
            (caching.object, caching.lease) = (Some(object), lease);
            caching.is_stale_fallback = is_stale_fallback;
            advance(core, key)
        }
        LookupResult::Miss { why, lease } => {
            counters.cache_misses.add(1);
            (caching.report.forward, caching.lease) = (Some(why), lease);
            advance(core, key)
        }
        LookupResult::Wait(_) | LookupResult::PendingDisk { .. } => {
            caching.report.is_from_disk = matches!(found, LookupResult::PendingDisk { .. });
            caching.has_queried_disks |=
                matches!(found, LookupResult::PendingDisk { is_own: true });
            if let LookupResult::Wait(why) = found {
                counters.cache_collapsed.add(1);
                caching.report.leader_forward = Some(why);
            }
            caching.wait.until = Some(due);
            caching.wait.since.get_or_insert(engine.now());
            cached.collapsed.insert((due, key));
            NextStep::Wait
        }
        LookupResult::OnlyIfCached => NextStep::End(Reason::OnlyIfCached),
    }
}

/// Advances to the fetch, or first to the receipt of the request's body.
#[inline(always)]
fn advance<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let receives_body = origin::fastcgi::receives_body_first(core, key);
    NextStep::Advance(if receives_body { Stage::Receive } else { Stage::Fetch })
}

/// Looks the request up. If a miss has conditions that the origin has to see, its fetch lease is
/// released. Returns `None` if the request bypasses the cache or the stored object lacks the
/// requested bytes: the request goes to the origin, and `CacheContext` has the reason.
fn query_cache<E: Engine>(core: &mut Core<E>, key: Key) -> Option<LookupResult> {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let ExchangeParts { engine, exchange, client, shared, counters, .. } =
        core.parts_with_client(key);
    let cache = shared.cache.as_ref()?;
    let may_wait = wait_deadline(exchange, engine.now()) > engine.now();
    let waiter = may_wait.then_some(waiter);
    let is_first = client.pipeline.is_first(key);
    let found = look_up(exchange, cache, waiter, is_first, now_ms(engine))?;
    let Exchange { request, caching, plan, .. } = &mut *exchange;
    let (object, lease) = match found {
        LookupResult::Miss { why, lease } if has_conditions(request, *plan) => {
            core.wake(lease.map(FetchLease::release).into_iter().flatten());
            return Some(LookupResult::Miss { why, lease: None });
        }
        LookupResult::Validate { object, is_stale_fallback, lease } => {
            let is_absent = lacks_part(request, &object, cache);
            if !is_absent || !wants_range(request) {
                // A part is no stale fallback for another part.
                let is_stale_fallback = is_stale_fallback && !is_absent;
                return Some(LookupResult::Validate { object, is_stale_fallback, lease });
            }
            // This client needs another part, so the stored one is not validated.
            (object, lease)
        }
        LookupResult::Stored(object) if lacks_part(request, &object, cache) => (object, None),
        LookupResult::Stale(object, lease) if lacks_part(request, &object, cache) => {
            (object, lease)
        }
        other => return Some(other),
    };
    // The stored object lacks the requested bytes.
    counters.cache_misses.add(1);
    caching.report.forward = Some(Forward::Partial);
    if wants_range(request) {
        // The fetch of this part serves no other request, so the lease is released.
        core.wake(lease.map(FetchLease::release).into_iter().flatten());
        return None;
    }
    caching.lease = lease;
    let is_completed = request.method() == Method::Get && object.body.bytes().is_some();
    caching.remainder = remainder(&object.stored).filter(|_| is_completed);
    caching.object = Some(object).filter(|_| caching.remainder.is_some());
    None
}

/// Returns why a stored response has to be validated: it is stale, or the request demands
/// validation although it is fresh (RFC 9211 section 2.2).
fn why_validate(meta: &Meta, now_ms: u64) -> Forward {
    let is_usable = meta.is_fresh(now_ms) && !meta.flags.contains(Flags::NO_CACHE);
    if is_usable { Forward::Request } else { Forward::Stale }
}

/// Repeats the lookup. Another worker has just removed the object, because it was too long to be
/// stored or its body was cut.
fn look_up_again<E: Engine>(core: &mut Core<E>, key: Key, lease: Option<FetchLease>) -> NextStep {
    let released = lease.map(FetchLease::release);
    core.wake(released.into_iter().flatten());
    begin(core, key)
}

/// Returns the time until which the exchange may wait for another exchange's fetch.
fn wait_deadline(exchange: &Exchange, now: Instant) -> Instant {
    let wait = Duration::from_millis(exchange.snapshot().limits().collapse_wait_ms);
    exchange.caching.wait.since.unwrap_or(now) + wait
}

/// Looks the request up in the cache. `None` if the request bypasses the cache.
fn look_up(
    exchange: &mut Exchange,
    cache: &Arc<Cache>,
    waiter: Option<WaiterId>,
    is_first: bool,
    now_ms: u64,
) -> Option<LookupResult> {
    let is_pinned = origin::pinned::requires_pinning(exchange);
    let Exchange { request, caching, snapshot, service, plan, sender, .. } = exchange;
    let snapshot = snapshot.as_ref().expect("set when the exchange begins");
    let sent = origin_request(request, sender, *service, *plan, snapshot);
    let route = snapshot.cache(*service, *plan)?;
    if route.bypass.is_any_in(request) {
        caching.report.forward = Some(Forward::Bypass);
        return None;
    }
    if caching.key.is_none() {
        caching.key = key_of(cache.hash(), &sent, &route.key);
    }
    let Some(key) = caching.key else {
        caching.report.forward = Some(Forward::Bypass);
        return None;
    };
    caching.invalidation_seq = cache.invalidation_seq();
    if let Some(why) = bypass(request, &route.policy) {
        let is_method = why == Bypass::Method;
        caching.report.forward = Some(if is_method { Forward::Method } else { Forward::Bypass });
        return None;
    }
    let directives = match route.policy.applies_request_directives {
        true => RequestDirectives::parse(request),
        false => RequestDirectives::default(),
    };
    let may_refresh = request.method() == Method::Get && !is_pinned;
    // A part, a response to HEAD, and a response over a pinned connection serve no other request.
    // Other requests must not wait for an exchange that itself waits for its turn in the pipeline.
    let is_for_others = may_refresh && !wants_range(request) && is_first;
    let takes_lease = is_for_others && may_collapse(&sent, &directives, &route.policy);
    let uses_disks = !caching.has_queried_disks;
    let directives = &directives;
    Some(cache.lookup(&LookupRequest {
        key,
        request: &sent,
        directives,
        now_ms,
        waiter,
        takes_lease,
        may_refresh,
        uses_disks,
    }))
}

/// Returns whether the request asks for a range. The Range field is always passed to the origin.
#[inline(always)]
fn wants_range(request: &RequestHead) -> bool {
    request.find(FieldName::Range).is_some() && request.method() == Method::Get
}

/// Returns whether the stored object lacks the requested bytes: the object is another part of the
/// representation, or the bytes begin more than `NEAR_BYTES` after the last byte that has arrived.
#[inline(always)]
fn lacks_part(request: &RequestHead, object: &Object, cache: &Cache) -> bool {
    let is_of_part = object.meta().stored_range.is_some() || wants_range(request);
    is_of_part && lacks_part_slow(request, object, cache)
}

#[inline(never)]
fn lacks_part_slow(request: &RequestHead, object: &Object, cache: &Cache) -> bool {
    let extent = object.meta().stored_range;
    let is_arriving = object.body.bytes().is_none();
    if extent.is_none() && !(is_arriving && !object.is_from_disk && accepts_ranges(object)) {
        return false;
    }
    // `select_ranges` ignores the length if the object is a part.
    let Some(length) = extent.map_or(object.length(), |_| Some(0)) else { return false };
    match select_ranges(request, &object.stored, length, cache.hash()) {
        Selection::Absent => true,
        // A multipart response is made only of a body that has arrived whole.
        Selection::Parts(_) => is_arriving,
        Selection::Part(range) => {
            let first = range.first - extent.map_or(0, |extent| extent.first);
            is_arriving && first > object.body.arrived() + NEAR_BYTES
        }
        _ => false,
    }
}

/// Returns whether the origin announced that it supports ranges of this response. An origin without
/// this support would send the whole response again.
fn accepts_ranges(object: &Object) -> bool {
    let mut lines = object.stored.lines();
    lines.any(|line| line.known == FieldName::AcceptRanges && has_token(line.value, b"bytes"))
}

/// The proxy waits for a range that begins at most this far after the last byte that has arrived.
/// It requests a range that begins later from the origin, so that a client that seeks does not wait
/// for bytes that it skips.
const NEAR_BYTES: u64 = 64 * 1024;

/// Returns whether the client's conditions are sent to the origin. Other requests must not wait for
/// such a fetch, because the response may be a 304 for this client alone. A reverse proxy removes
/// the conditions and fetches the whole response, which serves all requests that wait.
fn has_conditions(request: &RequestHead, plan: RequestPlan) -> bool {
    let conditions = [FieldName::IfNoneMatch, FieldName::IfModifiedSince];
    !matches!(plan, RequestPlan::Route(_))
        && conditions.into_iter().any(|name| request.find(name).is_some())
}

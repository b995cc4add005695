//! Stage lookup: whether a stored response serves the request, another exchange is fetching it, or
//! the origin has to be asked, and then whether others wait for the response.

use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Engine, Instant, Key, Kind};
use millrace_http_cache::{
    Bypass, Flags, Forward, Meta, RequestDirectives, Selection, bypass, may_claim, ranges,
    remainder,
};
use millrace_http1::{Method, Name, RequestHead, has_token};
use millrace_store::{Cache, Claim, Found, Object, Question, Waiter};

use crate::cached::{key_of, now_ms, refresh, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::exchange::{Exchange, RequestPlan, origin_request};
use crate::origin;

/// Handles an event of an exchange that is in this stage.
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
        // Its turn changes nothing for one that waits for another one's fetch.
        _ => NextStep::Wait,
    }
}

fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let Some(found) = query_cache(core, key) else { return NextStep::Advance(Stage::Fetch) };
    let waiter = core.waiter(key, Kind::Exchange);
    let Core { engine, exchanges, cache_waits, counters, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the driver's exchange is there");
    let due = wait_deadline(exchange, engine.now());
    let caching = &mut exchange.caching;
    match found {
        Found::Stored(object) => {
            if !caching.serve_stored(object, waiter) {
                return retry(core, key, None);
            }
            counters.cache_hits.add(1);
            caching.is_collapsed = caching.waited_for.is_some() && !caching.is_from_disk;
            NextStep::Advance(Stage::Deliver)
        }
        Found::Stale(object, claim) => {
            if !caching.serve_stored(object.clone(), waiter) {
                return retry(core, key, claim);
            }
            counters.cache_hits.add(1);
            caching.is_stale = true;
            if let Some(claim) = claim {
                let asked_for = caching.key.expect("it was looked for");
                refresh::begin(core, key, asked_for, object, claim);
            }
            NextStep::Advance(Stage::Deliver)
        }
        Found::Validate { object, is_spare, claim } => {
            counters.cache_misses.add(1);
            caching.forward = Some(why_validate(object.meta(), now_ms(engine)));
            (caching.object, caching.lease) = (Some(object), claim);
            caching.is_stale_fallback = is_spare;
            NextStep::Advance(Stage::Fetch)
        }
        Found::Nothing { why, claim } => {
            counters.cache_misses.add(1);
            (caching.forward, caching.lease) = (Some(why), claim);
            NextStep::Advance(Stage::Fetch)
        }
        Found::Wait(_) | Found::Comes { .. } => {
            caching.is_from_disk = matches!(found, Found::Comes { .. });
            caching.has_queried_disks |= matches!(found, Found::Comes { is_own: true });
            if let Found::Wait(why) = found {
                counters.cache_collapsed.add(1);
                caching.waited_for = Some(why);
            }
            caching.waits_until = Some(due);
            caching.waited_since.get_or_insert(engine.now());
            cache_waits.collapsed.insert((due, key));
            NextStep::Wait
        }
        Found::OnlyIfCached => NextStep::End(Reason::OnlyIfCached),
    }
}

/// What there is for the request, as its client may have it; `None` where the origin is to be asked
/// and that was noted already.
fn query_cache<E: Engine>(core: &mut Core<E>, key: Key) -> Option<Found> {
    let waiter = core.waiter(key, Kind::Exchange);
    let ExchangeParts { engine, exchange, client, shared, counters, .. } =
        core.parts_with_client(key);
    let cache = shared.cache.as_ref()?;
    let may_wait = (wait_deadline(exchange, engine.now()) > engine.now()).then_some(waiter);
    let is_first = client.pipeline.is_first(key);
    let found = look_up(exchange, cache, may_wait, is_first, now_ms(engine))?;
    let Exchange { request, caching, plan, .. } = &mut *exchange;
    let (object, claim) = match found {
        Found::Nothing { why, claim } if has_conditions(request, *plan) => {
            core.wake(claim.map(Claim::release).into_iter().flatten());
            return Some(Found::Nothing { why, claim: None });
        }
        Found::Validate { object, is_spare, claim } => {
            let is_absent = lacks_part(request, &object, cache);
            if !is_absent || !wants_range(request) {
                // A part stands in for nothing else.
                let is_spare = is_spare && !is_absent;
                return Some(Found::Validate { object, is_spare, claim });
            }
            // This client needs another part, so the stored one is not validated.
            (object, claim)
        }
        Found::Stored(object) if lacks_part(request, &object, cache) => (object, None),
        Found::Stale(object, claim) if lacks_part(request, &object, cache) => (object, claim),
        other => return Some(other),
    };
    // A part of it is stored, and not the one that is asked for.
    counters.cache_misses.add(1);
    caching.forward = Some(Forward::Partial);
    if wants_range(request) {
        // The fetch of this part serves no other request: the claim is released.
        core.wake(claim.map(Claim::release).into_iter().flatten());
        return None;
    }
    caching.lease = claim;
    let is_completed = request.method() == Method::Get && object.body.bytes().is_some();
    caching.remainder = remainder(&object.stored).filter(|_| is_completed);
    caching.object = Some(object).filter(|_| caching.remainder.is_some());
    None
}

/// RFC 9211 section 2.2: it is stale, or it is not and the request wants it validated all the same.
fn why_validate(meta: &Meta, now_ms: u64) -> Forward {
    let is_good = meta.is_fresh(now_ms) && !meta.flags.has(Flags::NO_CACHE);
    if is_good { Forward::Request } else { Forward::Stale }
}

/// Another worker has just found that the object is too long to be stored, or cut it: it is not
/// found again.
fn retry<E: Engine>(core: &mut Core<E>, key: Key, claim: Option<Claim>) -> NextStep {
    let released = claim.map(Claim::release);
    core.wake(released.into_iter().flatten());
    begin(core, key)
}

/// Until when the exchange may wait for another one's fetch.
fn wait_deadline(exchange: &Exchange, now: Instant) -> Instant {
    let wait = Duration::from_millis(exchange.snapshot().limits().collapse_wait_ms);
    exchange.caching.waited_since.unwrap_or(now) + wait
}

/// What the cache has for the request; `None` where it has no part in it.
fn look_up(
    exchange: &mut Exchange,
    cache: &Arc<Cache>,
    waiter: Option<Waiter>,
    is_first: bool,
    now_ms: u64,
) -> Option<Found> {
    let is_bound = origin::pinned::binds(exchange);
    let Exchange { request, caching, snapshot, service, plan, sender, .. } = exchange;
    let snapshot = snapshot.as_ref().expect("set when the exchange begins");
    let sent = origin_request(request, *sender, *service, *plan, snapshot);
    let route = snapshot.cache(*service, *plan)?;
    if route.bypass.is_any_in(request) {
        caching.forward = Some(Forward::Bypass);
        return None;
    }
    if caching.key.is_none() {
        caching.key = key_of(cache.hash(), &sent, &route.key);
    }
    let Some(key) = caching.key else {
        // Nothing tells it from others.
        caching.forward = Some(Forward::Bypass);
        return None;
    };
    caching.purge_number = cache.number();
    if let Some(why) = bypass(request, &route.policy) {
        let is_method = why == Bypass::Method;
        caching.forward = Some(if is_method { Forward::Method } else { Forward::Bypass });
        return None;
    }
    let asked = match route.policy.heeds_requests {
        true => RequestDirectives::of(request),
        false => RequestDirectives::default(),
    };
    let refreshes = request.method() == Method::Get && !is_bound;
    // A part, a response to HEAD, and a response over a pinned connection serve no other request.
    // Nor may others wait for an exchange that itself waits for its turn.
    let is_for_others = refreshes && !wants_range(request) && is_first;
    let claims = is_for_others && may_claim(request, &asked, &route.policy);
    let asks_disks = !caching.has_queried_disks;
    let asked = &asked;
    Some(cache.lookup(&Question {
        key,
        request: &sent,
        asked,
        now_ms,
        waiter,
        claims,
        refreshes,
        asks_disks,
    }))
}

/// Whether the request is for a range, which goes to the origin with it wherever it does.
fn wants_range(request: &RequestHead) -> bool {
    request.find(Name::Range).is_some() && request.method() == Method::Get
}

/// Whether what is stored does not serve the request: it is a part, and not the one that is asked
/// for; or what is asked for has not arrived, and will not soon.
#[inline(always)]
fn lacks_part(request: &RequestHead, object: &Object, cache: &Cache) -> bool {
    let is_of_part = object.meta().extent.is_some() || wants_range(request);
    is_of_part && lacks_part_slow(request, object, cache)
}

#[inline(never)]
fn lacks_part_slow(request: &RequestHead, object: &Object, cache: &Cache) -> bool {
    let extent = object.meta().extent;
    let is_arriving = object.body.bytes().is_none();
    if extent.is_none() && !(is_arriving && !object.is_from_disk && accepts_ranges(object)) {
        return false;
    }
    let Some(length) = extent.map_or(object.length(), |_| Some(0)) else { return false };
    match ranges(request, &object.stored, length, cache.hash()) {
        Selection::Absent => true,
        // They are sent of what has arrived only.
        Selection::Parts(_) => is_arriving,
        Selection::Part(range) => {
            let first = range.first - extent.map_or(0, |extent| extent.first);
            is_arriving && first > object.body.arrived() + NEAR_BYTES
        }
        _ => false,
    }
}

/// Whether the origin has said that it sends ranges of a response. One that does not would send all
/// of it again.
fn accepts_ranges(object: &Object) -> bool {
    let mut lines = object.stored.lines();
    lines.any(|line| line.known == Name::AcceptRanges && has_token(line.value, b"bytes"))
}

/// A range that begins so far behind what has arrived is waited for. One that begins later is asked
/// for: a client that seeks waits for nothing that it skips.
const NEAR_BYTES: u64 = 64 * 1024;

/// Whether the request has conditions of the client's, which the origin is to see: the response to
/// them serves no other request. A booster asks for the whole response where others may wait.
fn has_conditions(request: &RequestHead, plan: RequestPlan) -> bool {
    let conditions = [Name::IfNoneMatch, Name::IfModifiedSince];
    !matches!(plan, RequestPlan::Route(_))
        && conditions.into_iter().any(|name| request.find(name).is_some())
}

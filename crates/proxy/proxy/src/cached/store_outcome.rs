//! The store outcome of an origin's response, decided when its header has arrived. The response is
//! stored, or it validates or completes a stored response, or it only goes to its client.

use std::sync::Arc;

use millrace_engine::{Engine, Key, TokenKind};
use millrace_http_cache::{
    self as rules, CachedHeader, Forward, Key as CacheKey, NotStored, Receipt, ReceivedResponse,
    Selection, SetCookie, UriOrigin, combine, freshen, group_hash, group_invalidations,
    invalidated_paths, is_failure, is_not_modified, is_same_strongly, parse_content_range,
    select_ranges, tag_hashes, updated_tags,
};
use millrace_http1::{
    FieldName, Framing, Method, OriginRequest, RequestHead, ResponseHead, destination, path,
};
use millrace_store::{
    Cache, FetchLease, NewEntry, Object, ObjectFiller, StoreRefusal, UNCOLLAPSED_MS,
};

use crate::cached::{ResponseSource, fill, now_ms, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Exchange, origin_request};
use crate::origin::release;
use millrace_config::{CacheRoute, PathForward};

/// The rules and the times by which a response is stored.
#[derive(Clone, Copy)]
struct StoreContext<'a> {
    cache: &'a Arc<Cache>,
    route: &'a CacheRoute,
    receipt: &'a Receipt,
    cache_key: CacheKey,
}

impl<'a> StoreContext<'a> {
    /// Returns the response and its request in the form that the rules take.
    fn received(
        self,
        request: &'a RequestHead,
        response: &'a ResponseHead,
    ) -> ReceivedResponse<'a> {
        ReceivedResponse { request, response, receipt: self.receipt, policy: &self.route.policy }
    }
}

/// Processes the header of a final response. Returns whether there is a response for the client:
/// this one or a stored one. If not, the request has to be sent to the origin once more without
/// conditions.
pub(crate) fn process_response<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let exchange = core.exchange(key);
    let Some(cache_key) = exchange.caching.key else {
        if exchange.caching.report.forward == Some(Forward::Bypass) {
            invalidate_after_bypass(core, key);
        }
        return true;
    };
    let (status, request_ms) = (exchange.response.status(), exchange.caching.request_ms);
    let scheme = exchange.sender.scheme;
    let has_client_certificate = exchange.sender.certificate.is_some();
    let snapshot = exchange.snapshot().clone();
    let route = snapshot.cache(exchange.service, exchange.plan);
    let route = route.expect("an exchange with a key has a cache");
    let cache = &core.cache().clone();
    let response_ms = now_ms(&core.engine);
    let hash = *cache.hash();
    let receipt = &Receipt { request_ms, response_ms, scheme, hash, has_client_certificate };
    let context = StoreContext { cache, route, receipt, cache_key };
    let exchange = core.exchange(key);
    let is_ambiguous = exchange.transaction.is_ambiguous;
    match status {
        101 => {
            waiting::leave_cache(core, key);
            true
        }
        // The response of the new path has another key, and a file has its own.
        _ if exchange.transaction.is_local_redirect || exchange.transaction.names_file => {
            invalidate(exchange, cache, route);
            refuse_to_store(core, key, context, NotStored::Useless);
            true
        }
        // An ambiguous header changes nothing that is stored.
        304 if exchange.caching.is_validating => {
            !is_ambiguous && apply_not_modified(core, key, context)
        }
        206 if exchange.caching.remainder.is_some() => {
            !is_ambiguous && complete_part(core, key, context)
        }
        // The status is about the proxy's own conditions. The part is removed: otherwise the next
        // request would fail in the same way.
        304 | 412 | 416 if exchange.caching.remainder.is_some() => {
            if !is_ambiguous {
                drop_part(exchange, context);
            }
            false
        }
        status if is_failure(status) && serve_stale(core, key) => {
            core.exchange(key).caching.report.forward_status = Some(status);
            release::abandon_transaction(core, key);
            true
        }
        _ => {
            forward_and_store(core, key, context);
            true
        }
    }
}

/// Invalidates stored responses after an unsafe request that bypassed the cache.
fn invalidate_after_bypass<E: Engine>(core: &mut Core<E>, key: Key) {
    let cache = core.cache().clone();
    let exchange = core.exchange(key);
    let snapshot = exchange.snapshot().clone();
    if let Some(route) = snapshot.cache(exchange.service, exchange.plan) {
        invalidate(exchange, &cache, route);
    }
}

/// Forwards a response to its client, and stores it if the rules allow it.
fn forward_and_store<E: Engine>(core: &mut Core<E>, key: Key, context: StoreContext<'_>) {
    let StoreContext { cache, route, cache_key, .. } = context;
    let exchange = core.exchange(key);
    invalidate(exchange, cache, route);
    if exchange.transaction.is_ambiguous {
        return refuse_to_store(core, key, context, NotStored::Ambiguous);
    }
    if exchange.request.method() == Method::Head {
        // RFC 9111 section 4.3.5.
        let received = context.received(&exchange.request, &exchange.response);
        let (sent, since) = (exchange.origin_request(), exchange.caching.invalidation_seq);
        cache.update_by_head(cache_key, &sent, &received, since);
    }
    let stored = match rules::store(&context.received(&exchange.request, &exchange.response)) {
        // Trailers are not stored. An origin that announces trailers means them to arrive.
        Ok(_) if exchange.response.find(FieldName::Trailer).is_some() => {
            return refuse_to_store(core, key, context, NotStored::Trailer);
        }
        // An early response to a POST: its connection is still needed for the request body.
        Ok(_) if !exchange.has_received_request() || exchange.has_unsent_body() => {
            return refuse_to_store(core, key, context, NotStored::RequestBody);
        }
        Ok(stored) => stored,
        Err(refusal) => return refuse_to_store(core, key, context, refusal),
    };
    if stored.meta.stored_range.is_some() {
        drop_outdated(exchange, &stored, context);
        if exchange.is_refresh() {
            // A refresh has no reader. The next request for a part fetches that part.
            return refuse_to_store(core, key, context, NotStored::Range);
        }
    }
    let declared = match exchange.transaction.framing {
        Framing::Length(length) => Some(length),
        Framing::None => Some(0),
        Framing::Chunked | Framing::UntilClose => None,
    };
    if declared.is_some_and(|bytes| cache.is_too_long(bytes)) {
        return refuse_to_store(core, key, context, NotStored::TooLong);
    }
    let entry = new_entry(exchange, context, stored, declared);
    let Some(filling) = publish(core, key, context, entry) else { return };
    let exchange = core.exchange(key);
    let wants_less = wants_less(exchange, cache);
    exchange.caching.source =
        if wants_less { ResponseSource::Stored } else { ResponseSource::Filled };
    fill::run::begin(core, key, filling, None);
}

/// Removes the stored object if the request validated it and the origin sent this part instead. If
/// it stayed, lookups would find the outdated whole response before the new part. An object with
/// the same strong validator as the part is not outdated and stays.
///
/// Without a validation the stored object stays: no client may remove a response that others share.
fn drop_outdated(exchange: &Exchange, part: &CachedHeader, context: StoreContext<'_>) {
    let caching = &exchange.caching;
    if let Some(old) = &caching.object
        && caching.is_validating
        && !is_same_strongly(&old.stored, part)
    {
        context.cache.remove_object(context.cache_key, old);
    }
}

/// Returns whether the client wants less than the origin sent: the request was sent without the
/// client's conditions, or the origin ignored `Range`. Otherwise the client gets the header of the
/// origin, including fields that are not stored (RFC 9111 section 5.2.2.4).
fn wants_less(exchange: &Exchange, cache: &Cache) -> bool {
    let Exchange { request, caching, .. } = exchange;
    let Some(object) = &caching.object else { return false };
    if caching.omits_client_conditions && is_not_modified(request, &object.stored) {
        return true;
    }
    let length = object.length().filter(|_| object.meta().stored_range.is_none());
    let selection =
        length.map(|length| select_ranges(request, &object.stored, length, cache.hash()));
    matches!(selection, Some(Selection::Part(_) | Selection::Unsatisfiable))
}

/// Completes a stored part with a 206. Returns false if they do not fit together.
fn complete_part<E: Engine>(core: &mut Core<E>, key: Key, context: StoreContext<'_>) -> bool {
    let exchange = core.exchange(key);
    let Exchange { request, response, caching, transaction, .. } = exchange;
    let object = caching.object.clone().expect("the stored part to complete is set");
    let stored = combine(&context.received(request, response), &object.stored);
    let is_certain = matches!(transaction.framing, Framing::Length(_));
    let (Ok(stored), Ok(new), Some(old), Some(bytes), true) = (
        stored,
        parse_content_range(response),
        object.meta().stored_range,
        object.body.bytes(),
        is_certain,
    ) else {
        return false;
    };
    // The client requested the whole representation.
    if stored.meta.stored_range.is_some() || bytes.len() != old.last - old.first + 1 {
        return false;
    }
    let first = old.first.min(new.first);
    let declared = old.last.max(new.last) - first + 1;
    let before = bytes.slice(0..new.first.saturating_sub(old.first));
    let after = (new.last + 1).saturating_sub(old.first).min(bytes.len());
    let after = bytes.slice(after..bytes.len());
    let entry = new_entry(exchange, context, stored, Some(declared));
    let Some(mut filling) = publish(core, key, context, entry) else {
        return false;
    };
    let woken = filling.append(before);
    core.wake(woken);
    let caching = &mut core.exchange(key).caching;
    (caching.source, caching.report.forward_status) = (ResponseSource::Stored, Some(206));
    caching.adds_client_fields = context.route.policy.set_cookie != SetCookie::Explicit;
    fill::run::begin(core, key, filling, Some(after));
    true
}

/// Removes a stored part that the origin does not complete, unless the response is meant for one
/// client alone.
fn drop_part(exchange: &Exchange, context: StoreContext<'_>) {
    let Exchange { request, response, caching, .. } = exchange;
    let StoreContext { cache, cache_key, .. } = context;
    if !rules::is_personal(&context.received(request, response)) {
        let object = caching.object.as_ref().expect("the stored part to complete is set");
        cache.remove_object(cache_key, object);
    }
}

fn new_entry(
    exchange: &Exchange,
    StoreContext { cache, route, .. }: StoreContext<'_>,
    stored: CachedHeader,
    declared: Option<u64>,
) -> NewEntry {
    let Exchange { response, caching, .. } = exchange;
    let sent = &exchange.origin_request();
    let variant = stored.vary.as_ref().map(|it| it.response_key(cache.hash(), sent, response));
    let space = &route.key.space;
    let old = caching.object.as_deref().filter(|_| caching.remainder.is_some());
    let site = site_of(sent).map(|site| route.key.keyed_site(site));
    let tags = match old {
        None => tag_hashes(cache.hash(), space, site.as_ref(), response),
        Some(old) => updated_tags(cache.hash(), space, site.as_ref(), response, &stored.head)
            .unwrap_or_else(|| old.tags.clone()),
    };
    let name = object_name(sent, route);
    let (since, own_change) = (caching.invalidation_seq, caching.own_invalidation);
    NewEntry {
        stored,
        variant,
        declared,
        name,
        tags,
        since,
        own_invalidation: own_change,
        stays_in_memory: false,
    }
}

/// Publishes a new entry. Returns `None` if it does not fit into the cache.
fn publish<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    StoreContext { cache, receipt, cache_key, .. }: StoreContext<'_>,
    entry: NewEntry,
) -> Option<ObjectFiller> {
    let caching = &mut core.exchange(key).caching;
    let (filling, woken) =
        cache.publish(cache_key, caching.lease.take(), entry, receipt.response_ms);
    core.wake(woken);
    let caching = &mut core.exchange(key).caching;
    let filling = match filling {
        Ok(filling) => filling,
        Err(refusal) => {
            caching.report.store_refusal = Some(match refusal {
                StoreRefusal::Size => "size",
                StoreRefusal::Memory => "memory",
            });
            return None;
        }
    };
    caching.object = Some(filling.object().clone());
    caching.report.is_stored = true;
    core.counters.cache_stored.add(1);
    Some(filling)
}

/// Applies a 304 to the proxy's own conditions. Returns false if the stored object is a part that
/// the client did not request, or if its body can no longer be read from the beginning.
fn apply_not_modified<E: Engine>(core: &mut Core<E>, key: Key, context: StoreContext<'_>) -> bool {
    let StoreContext { cache, route, receipt, cache_key } = context;
    let waiter = core.waiter(key, TokenKind::Exchange);
    let exchange = core.exchange(key);
    let has_client = !exchange.is_refresh();
    let Exchange { request, response, caching, snapshot, service, plan, sender, .. } = exchange;
    let snapshot = snapshot.as_ref().expect("set when the exchange begins");
    let sent = origin_request(request, sender, *service, *plan, snapshot);
    let old = caching.object.clone().expect("the stored object to validate is set");
    let (object, refusal) = match freshen(&context.received(request, response), &old.stored) {
        Ok(stored) => {
            let (heads, since) = ((&sent, &*response), caching.invalidation_seq);
            (cache.update(cache_key, &old, stored, heads, since), None)
        }
        Err(refusal) => (old, Some(refusal)),
    };
    let is_other = has_client && is_unrequested_part(request, &object, cache);
    if is_other || !caching.serve_stored(object.clone(), waiter) {
        return false;
    }
    caching.report.forward_status = Some(304);
    caching.report.is_stored = refusal.is_none();
    caching.adds_client_fields =
        refusal.is_some() || route.policy.set_cookie != SetCookie::Explicit;
    let is_personal = refusal.is_some() && rules::is_personal(&context.received(request, response));
    if refusal.is_some_and(|it| it.drops_stored(object.meta().status)) && !is_personal {
        cache.remove(cache_key);
    }
    let lease = caching.lease.take();
    core.counters.cache_validated.add(1);
    // The responses to other requests will probably be personal as well. So for a while, no request
    // waits for the fetch of another.
    let woken = match is_personal {
        true => lease.map(|lease| lease.release_as_private(receipt.response_ms + UNCOLLAPSED_MS)),
        false => lease.map(FetchLease::release),
    };
    core.wake(woken.into_iter().flatten());
    release::finish_transaction(core, key);
    end_upload(core, key);
    true
}

/// Returns whether the stored object is a part that the client did not request. The lookup found it
/// to be the requested part, but `If-Range` may not match the `Last-Modified` of the 304.
fn is_unrequested_part(request: &RequestHead, object: &Object, cache: &Cache) -> bool {
    object.meta().stored_range.is_some()
        && !is_not_modified(request, &object.stored)
        && select_ranges(request, &object.stored, 0, cache.hash()) == Selection::Absent
}

/// Ends the upload. The origin may have responded before the engine reported that the whole request
/// was sent; nothing waits for that report.
pub(crate) fn end_upload<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { engine, pipes, exchange, .. } = core.parts(key);
    exchange.upload.abandon(engine, pipes);
}

/// Serves the stored response in place of an origin that fails (RFC 5861 section 4). Returns false
/// if there is none.
pub(crate) fn serve_stale<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let caching = &mut core.exchange(key).caching;
    let fallback = caching.object.clone().filter(|_| caching.is_stale_fallback);
    let serves = fallback.is_some_and(|fallback| caching.serve_stored(fallback, waiter));
    if serves {
        end_upload(core, key);
        // Waiting requests may be served the same response.
        let released = core.exchange(key).caching.lease.take().map(FetchLease::release);
        core.wake(released.into_iter().flatten());
    }
    serves
}

/// Records why the response is not stored, removes a stored response that it supersedes, and
/// releases the lease.
fn refuse_to_store<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    context: StoreContext<'_>,
    refusal: NotStored,
) {
    let StoreContext { cache, cache_key, .. } = context;
    let now_ms = now_ms(&core.engine);
    let exchange = core.exchange(key);
    let uncollapsed_ms = exchange.snapshot().limits().uncacheable_ms;
    let Exchange { request, response, caching, .. } = exchange;
    let status = response.status();
    caching.report.store_refusal = Some(refusal.as_str());
    let drops_stored = refusal.drops_stored(status);
    let is_personal = drops_stored && rules::is_personal(&context.received(request, response));
    if request.method() == Method::Get && drops_stored && !is_personal {
        cache.remove(cache_key);
    }
    // For a while, requests for this key do not wait for each other. If they waited, the origin
    // would get them one after the other. The time is short if the next response may be storable.
    // This is so after a 304, 412 or 416 too: the proxy sent no conditions, so the status is about
    // the conditions of the client.
    let is_temporary = is_personal
        || refusal.concerns_request()
        || matches!(status, 304 | 412 | 416)
        || status >= 500;
    let uncollapsed_ms =
        if is_temporary { uncollapsed_ms.min(UNCOLLAPSED_MS) } else { uncollapsed_ms };
    let woken = caching
        .lease
        .take()
        .map(|lease| lease.release_as_private(now_ms.saturating_add(uncollapsed_ms)));
    core.wake(woken.into_iter().flatten());
}

/// Invalidates stored responses after an unsafe request (RFC 9111 section 4.4, RFC 9875 section 3).
fn invalidate(exchange: &mut Exchange, cache: &Arc<Cache>, route: &CacheRoute) {
    let Exchange { request, response, caching, snapshot, service, plan, sender, .. } = exchange;
    if request.method().is_safe() {
        return;
    }
    let snapshot = snapshot.as_ref().expect("set when the exchange begins");
    let sent = origin_request(request, sender, *service, *plan, snapshot);
    let Some(site) = site_of(&sent) else { return };
    let is_normalised = snapshot
        .route_of(*service, *plan)
        .is_some_and(|route| route.path_forward == PathForward::Normalised);
    for mut path in invalidated_paths(request, response, &site) {
        if is_normalised {
            let (bare, query) = path::split_query(&path);
            path = [&path::normalise(bare), query].concat();
        }
        let key = CacheKey::from_request(cache.hash(), &site, &path, &sent, &route.key);
        let number = cache.invalidate(key, caching.invalidation_seq.max(caching.own_invalidation));
        if caching.key == Some(key) {
            caching.own_invalidation = number;
        }
    }
    let keyed_site = route.key.keyed_site(site);
    for group in group_invalidations(request, response) {
        cache.invalidate_tag(group_hash(cache.hash(), &route.key.space, &keyed_site, &group));
    }
}

fn object_name(request: &OriginRequest<'_>, route: &CacheRoute) -> Arc<[u8]> {
    let mut name = Vec::with_capacity(NAME_BYTES);
    if let Ok(destination) = destination(request.head())
        && let Some(site) = site_of(request)
    {
        CacheKey::write(&mut name, &site, destination.path_and_query, request, &route.key);
    }
    name.into()
}

/// Returns the origin of the target URI; `None` if the target names no authority.
fn site_of<'a>(request: &OriginRequest<'a>) -> Option<UriOrigin<'a>> {
    let authority = destination(request.head()).ok()?.authority?;
    Some(UriOrigin { scheme: request.scheme(), authority })
}

/// The capacity that is enough for most names.
const NAME_BYTES: usize = 256;

//! Pipelining to origins (docs/design/offload.md): requests that are sent on a connection before
//! the responses to earlier ones.
//!
//! The first user of a connection receives the bytes that arrive. An exchange behind it, a
//! follower, has sent its request and holds a place (`Transaction::place`), with which it cannot
//! reach the connection. When the first use ends, the next follower gets the connection. A follower
//! whose response cannot come any more is displaced: it sends its request on another connection.

use std::time::Duration;

use millrace_engine::{Engine, Key, TokenKind};
use millrace_http1::{Expectation, FieldName, Framing, Method, Version, expectation};

use crate::cached::now_ms;
use crate::conn::client;
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Exchange, Failure, Reason, RequestPlan, headers};
use crate::origin::pipeline_state::{PipelineFault, PipelineState};
use crate::origin::{
    ConnectionUser, OriginId, OriginUse, Origins, Phase, PickReason, UsableConnections,
    connection::UseQueue, displaced::displace_from, h1,
};
use crate::transfer::TransferState;

/// Takes a place for the exchange on the connection that has the fewest requests. A connection that
/// waits for a slow client has no place.
pub(super) fn take_place<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    id: OriginId,
) -> Option<OriginUse> {
    if !may_share(core, key) || !core.origins.permits_pipelining(id) {
        return None;
    }
    let depth = core.exchange(key).route_origins()?.pipeline_depth;
    let Core { origins: Origins { states, connections, .. }, exchanges, fills, drain, .. } = core;
    let state = states[id.0 as usize].as_mut()?;
    if !state.is_in_force || drain.is_draining {
        return None;
    }
    state.pipelines.retain(|&slot| {
        let connection = connections.get_mut(slot).expect("listed while it is open");
        connection.uses.is_listed = connection.uses.accepts_more || connection.uses.has_followers();
        connection.uses.is_listed
    });
    let length = |slot: &Key| {
        let open = connections.get(*slot).filter(|connection| connection.wire.is_open());
        let uses = open.map(|connection| &connection.uses);
        let is_blocked = |uses: &UseQueue| match uses.first() {
            Some(ConnectionUser::Exchange(key)) => {
                exchanges.get(key).is_some_and(|it| awaits_client(it))
            }
            Some(ConnectionUser::Fill(key)) => fills.get(key).is_some_and(|fill| fill.is_blocked),
            None => true,
        };
        uses.filter(|uses| uses.accepts_more && uses.len() < depth && !is_blocked(uses))
            .map(UseQueue::len)
    };
    let slots = state.pipelines.iter().copied();
    let (_, slot) = slots.filter_map(|slot| Some((length(&slot)?, slot))).min_by_key(|it| it.0)?;
    Some(connections.get_mut(slot)?.follow(slot, key))
}

/// Returns whether the client of an exchange has to take bytes before more of the response are
/// received. A request behind it would wait for that client.
fn awaits_client(exchange: &Exchange) -> bool {
    let download = &exchange.download;
    download.state() == TransferState::AwaitingSink && !download.has_received_all()
}

/// Sends the request of an exchange behind the others on the connection.
pub(crate) fn send_request<E: Engine>(core: &mut Core<E>, key: Key, place: OriginUse) {
    let Core { engine, exchanges, origins, out, conns, counters, .. } = core;
    let exchange = exchanges.get_mut(key).expect("it has just taken the place");
    let now = engine.now();
    exchange.caching.request_ms = now_ms(engine);
    let id = exchange.transaction.origin.expect("picked before its connection");
    out.clear();
    let address = (origins.address(id), origins.default_port(id));
    headers::write_request(&mut h1::header(out), exchange, address);
    let accepts_more = may_be_followed(exchange);
    exchange.upload.start(exchange.framing, false, now);
    exchange.upload.finish(now);
    let connection = origins.connections.get_mut(place.slot()).expect("it is in use");
    connection.wire.send_behind(engine, out);
    connection.uses.accepts_more = accepts_more;
    let transaction = &mut exchange.transaction;
    (transaction.phase, transaction.awaiting_since) = (Phase::Pipelined, now);
    (transaction.address, transaction.is_reused) = (connection.address, true);
    transaction.wait_listed_since = None;
    transaction.place = Some(place);
    counters.origin_requests_pipelined.add(1);
    if let Some(conn) = exchange.conn.and_then(|conn| conns.get_mut(conn)) {
        client::receive_ahead(engine, conn);
    }
}

/// Lets other requests follow that of the exchange, which is the first user of its connection.
#[inline(never)]
pub(crate) fn offer_places<E: Engine>(core: &mut Core<E>, key: Key) {
    if !may_share(core, key) || !may_be_followed(core.exchange(key)) {
        return;
    }
    let ExchangeParts { exchange, origin: Some(connection), .. } = core.parts(key) else { return };
    let Some(slot) = exchange.transaction.connection.as_ref().map(OriginUse::slot) else { return };
    connection.uses.accepts_more = true;
    if !std::mem::replace(&mut connection.uses.is_listed, true) {
        let id = connection.origin;
        core.origins.state_mut(id).pipelines.push(slot);
    }
}

/// Returns whether the exchange may share a connection with others. Only the first exchange of its
/// client may. The response to a later one waits until the client has the earlier responses, and
/// the requests behind it would wait, too.
fn may_share<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let ExchangeParts { exchange, client: Some(client), .. } = core.parts(key) else {
        return false;
    };
    let request = &exchange.request;
    exchange.snapshot().pipelines
        && matches!(exchange.plan, RequestPlan::Route(_))
        && exchange.route_origins().is_some_and(|route| route.pipeline_depth > 1)
        && client.pipeline.is_first(key)
        && exchange.transaction.usable == UsableConnections::Any
        && exchange.transaction.pick_reason == PickReason::Normal
        && matches!(request.method(), Method::Get | Method::Head)
        && matches!(exchange.framing, Framing::None | Framing::Length(0))
        && request.find(FieldName::Upgrade).is_none()
        && expectation(request) == Expectation::None
        && !h1::authenticates_connection(request)
}

/// Returns whether another request may be sent behind that of the exchange, which was written last.
/// If the response has no body, wrong bytes after it could pass for the next response, and their
/// content may be that of an attacker.
fn may_be_followed(exchange: &Exchange) -> bool {
    exchange.request.method() == Method::Get && !headers::has_sent_conditions(exchange)
}

/// Ends the first use of a connection with followers, and gives the connection to the next one.
/// Returns false, and does nothing, if the connection is broken or pipelining has ended.
#[cold]
#[inline(never)]
pub(super) fn advance<E: Engine>(core: &mut Core<E>, slot: Key, id: OriginId) -> bool {
    let is_permitted = core.origins.permits_pipelining(id);
    let connection = core.origins.connections.get_mut(slot).expect("the caller has its use");
    if !is_permitted || connection.wire.is_broken() {
        return false;
    }
    let next = connection.end_use().expect("the caller has seen a follower");
    let now = core.engine.now();
    let transaction = &mut core.exchange(next).transaction;
    transaction.connection = transaction.place.take();
    (transaction.phase, transaction.awaiting_since) = (Phase::Requesting, now);
    // Its response may have arrived already.
    core.wakes.local.push_back(next.token(TokenKind::Exchange));
    core.origins.note_capacity(id);
    true
}

/// Gives up the place of an exchange. Its response would come nevertheless, so the connection is
/// closed after the responses before that one, and the exchanges behind are displaced.
#[cold]
#[inline(never)]
pub(super) fn leave<E: Engine>(core: &mut Core<E>, key: Key) {
    let place = core.exchange(key).transaction.place.take();
    let place = place.expect("the phase `Pipelined` has a place");
    displace_from(core, place.slot(), Some(key));
}

/// Displaces the followers of a connection if the first of them has waited for `pipeline_wait_ms`.
pub(super) fn displace_overdue<E: Engine>(core: &mut Core<E>, slot: Key) {
    let Core { origins, exchanges, engine, .. } = core;
    let Some(connection) = origins.connections.get(slot) else { return };
    let Some(exchange) = connection.uses.followers().next().and_then(|key| exchanges.get(key))
    else {
        return;
    };
    let wait = Duration::from_millis(exchange.snapshot().limits().pipeline_wait_ms);
    if exchange.transaction.awaiting_since + wait <= engine.now() {
        displace_from(core, slot, None);
    }
}

/// Ends pipelining to the origin of an exchange that fails for `reason`, if the origin did
/// something wrong.
pub(crate) fn note_failure<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) {
    let ExchangeParts { origin: Some(connection), .. } = core.parts(key) else { return };
    let id = connection.origin;
    let UseQueue { has_advanced, .. } = connection.uses;
    let is_shared = has_advanced || connection.uses.has_followers();
    let fault = match reason {
        Reason::OriginTimedOut | Reason::ResponseTimedOut => return,
        Reason::ResponseCut if is_shared => PipelineFault::ClosedEarly,
        Reason::ResponseCut => return,
        _ => match reason.failure() {
            Failure::Header | Failure::Body => PipelineFault::WrongResponse,
            // An idle connection may end at any time, also while requests are on their way.
            Failure::NoResponse if has_advanced => PipelineFault::ClosedEarly,
            _ => return,
        },
    };
    end(core, id, fault);
}

/// Checks the header of a final response that the exchange has received.
#[inline(never)]
pub(crate) fn check_response<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { exchange, origin: Some(connection), .. } = core.parts(key) else { return };
    let id = connection.origin;
    if exchange.response.version() == Version::Http10 {
        end(core, id, PipelineFault::OldVersion);
    } else if exchange.transaction.is_ambiguous {
        end(core, id, PipelineFault::WrongResponse);
    }
}

/// Ends pipelining to the origin of a connection without a user if bytes have arrived on it.
#[cold]
#[inline(never)]
pub(super) fn check_unread<E: Engine>(core: &mut Core<E>, slot: Key) {
    let Some(connection) = core.origins.connections.get(slot) else { return };
    // The responses to displaced requests may arrive.
    if !connection.wire.recv_buffer.is_empty() && !connection.uses.is_cut {
        end(core, connection.origin, PipelineFault::UnexpectedBytes);
    }
}

/// Ends pipelining to the origin of a connection whose stream ended within a body, if requests
/// share the connection.
#[cold]
#[inline(never)]
pub(crate) fn note_cut_body<E: Engine>(core: &mut Core<E>, slot: Key) {
    let Some(connection) = core.origins.connections.get(slot) else { return };
    if connection.uses.has_advanced || connection.uses.has_followers() {
        end(core, connection.origin, PipelineFault::ClosedEarly);
    }
}

/// Ends pipelining to an origin to which it is permitted. Requests that were pipelined before are
/// displaced, since their responses might be wrong, too.
fn end<E: Engine>(core: &mut Core<E>, id: OriginId, fault: PipelineFault) {
    if !core.origins.permits_pipelining(id) {
        return;
    }
    let Core { origins, shared, counters, .. } = core;
    if let Some(entry) = origins.shared_entry(id)
        && shared.health.end_pipelining(entry, fault)
    {
        counters.origin_pipelines_ended.add(1);
    }
    for slot in std::mem::take(&mut core.origins.state_mut(id).pipelines) {
        let connection = core.origins.connections.get_mut(slot);
        connection.expect("listed while it is open").uses.is_listed = false;
        displace_from(core, slot, None);
    }
}

impl Origins {
    /// Returns whether the origin has passed the test of pipelining, and did nothing wrong since.
    fn permits_pipelining(&self, id: OriginId) -> bool {
        let entry = self.shared_entry(id);
        entry.is_some_and(|entry| entry.pipelining.get() == PipelineState::Permitted)
    }
}

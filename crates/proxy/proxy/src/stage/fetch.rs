//! Stage fetch: the request goes to an origin, and the header of its response comes back. The stage
//! picks the origin and the connection, sends the request's header (its body follows by the
//! upload), passes interim responses on, and begins again elsewhere where that is sound.

use std::sync::Arc;
use std::task::Poll;

use millrace_engine::{Engine, Key};
use millrace_http1::{Authority, Framing, HeadScan, Version, destination};

use crate::cached::now_ms;
use crate::cached::outcome;
use crate::conn::{self, client};
use crate::core::{Core, Parts};
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, Stage, Step};
use crate::exchange::{Exchange, Plan};
use crate::exchange::{end, headers};
use crate::names;
use crate::origin::h1::{self, Status};
use crate::origin::queue::{self, Way};
use crate::origin::{
    self, OriginId, Phase, Place, Probing, Transaction, Trial, dial, pick, pinned, side,
};
use crate::overload::RECEIVE_AHEAD_MAX;
use crate::overload::wait_list::{self, Want};
use crate::transfer::sink::Sink;
use crate::transfer::{Moved, upload};
use millrace_dns::NameError;

/// Handles an event of an exchange that is in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> Step {
    let moved = match event {
        Event::Enter => return begin(core, key),
        Event::End(reason) => return Step::End(reason),
        Event::OriginReadable => return read_response(core, key),
        Event::OriginEnded | Event::OriginBroke => return origin_ended(core, key),
        Event::OriginSent => upload::pump(core, key, false),
        Event::OriginSpliced(count) => upload::spliced(core, key, count),
        Event::OriginFailed => upload::failed(core, key),
        Event::ClientReadable => upload::pump(core, key, false),
        Event::ClientEnded => upload::client_ended(core, key),
        Event::ClientFailed => return Step::End(Reason::ClientClosed),
        event => return resume(core, key, event),
    };
    step(moved)
}

/// Goes on after what concerns a fetch only while it waits for that.
#[inline(never)]
fn resume<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> Step {
    match (event, core.exchange(key).transaction.phase) {
        // A refresh begins by a wake-up.
        (Event::Room | Event::Woken, Phase::Start) => begin(core, key),
        (Event::Room, Phase::Queued) => leave_queue(core, key),
        (Event::Named(result), Phase::Naming) => named(core, key, result),
        (Event::Dialed, Phase::Dialing) => dialed(core, key),
        (Event::Turn, Phase::Asked) => {
            core.exchange(key).transaction.since = core.engine.now();
            read_response(core, key)
        }
        // An interim response was in the way.
        (Event::ClientSent, Phase::Asked) => read_response(core, key),
        // Its turn, or what it waited for in the cache, changes nothing for it.
        _ => Step::Wait,
    }
}

/// The upload may end long before there is a response.
fn step(moved: Moved) -> Step {
    match moved {
        Moved::Waiting | Moved::Ended | Moved::Nothing => Step::Wait,
        Moved::Failed(reason) => Step::End(reason),
    }
}

/// Picks an origin and sends the request, over an idle connection or a new one.
#[inline(never)]
fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    let phase = core.exchange(key).transaction.phase;
    assert_eq!(phase, Phase::Start, "events take a fetch on that has begun");
    let Some((id, trial)) = pick_origin(core, key) else {
        return Step::End(Reason::MalformedTarget);
    };
    core.origins.note_picked(id);
    let exchange = core.exchange(key);
    let is_configured = matches!(exchange.plan, Plan::Route(_));
    let is_tunnel = exchange.plan == Plan::Tunnel;
    let transaction = &mut exchange.transaction;
    (transaction.origin, transaction.trial) = (Some(id), trial);
    (transaction.configured, transaction.address) = (is_configured.then_some(id), None);
    let way = queue::way_in_turn(core, key, id);
    if is_tunnel {
        // Its end is to be seen while the connection is opened, and what it sends early is welcome.
        let Parts { engine, client, .. } = core.served(key);
        client::watch(engine, client);
    }
    if let Some(way) = way {
        return proceed(core, key, way);
    }
    match queue::overflow(core, key) {
        Ok(Some(way)) => proceed(core, key, way),
        Ok(None) => Step::Wait,
        Err(reason) => Step::End(reason),
    }
}

/// The exchange is the first in the queue of its origin, where there may be room by now.
fn leave_queue<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    let id = core.exchange(key).transaction.origin.expect("it waits for room there");
    let Some(way) = queue::way_to(core, key, id) else { return Step::Wait };
    core.origins.leave_queue(id, key);
    core.exchange(key).transaction.phase = Phase::Start;
    proceed(core, key, way)
}

/// Sends the request to the origin that was picked, or opens a connection for it.
fn proceed<E: Engine>(core: &mut Core<E>, key: Key, way: Way) -> Step {
    match way {
        Way::Idle(origin_use) => {
            let transaction = &mut core.exchange(key).transaction;
            (transaction.connection, transaction.reused) = (Some(origin_use), true);
            core.counters.origin_connections_reused.add(1);
            send_request(core, key)
        }
        Way::New => {
            let id = core.exchange(key).transaction.origin.expect("picked before");
            core.origins.note_open(id);
            core.exchange(key).transaction.opens = true;
            let opening = open(core, key, id);
            opening.map_or_else(|reason| connect_failed(core, key, reason), |()| Step::Wait)
        }
    }
}

fn pick_origin<E: Engine>(core: &mut Core<E>, key: Key) -> Option<(OriginId, Trial)> {
    let Core { exchanges, origins, shared, engine, counters, .. } = core;
    let exchange = exchanges.get(key)?;
    let snapshot = exchange.snapshot();
    if let Plan::Route(index) = exchange.plan {
        let route = snapshot.route(exchange.service, index);
        let tried = exchange.transaction.tried;
        let probing = || Probing { now: engine.now(), repeatable: h1::may_repeat(exchange) };
        let picked = pick(origins, route, &shared.board, tried, probing);
        if picked.1 == Trial::Probe {
            counters.origin_probes.add(1);
        }
        return Some(picked);
    }
    let Authority { host, port } = destination(&exchange.request).ok()?.authority?;
    let rules = snapshot.rules[exchange.service as usize];
    let are_whole = snapshot.ask_rules(exchange.service).take_names_whole();
    Some((origins.asked_for(rules, host, port.unwrap_or(80), are_whole), Trial::No))
}

/// Opens a connection to an origin: its address is known, or has to be looked up first.
fn open<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId) -> Result<(), Reason> {
    let (name, port) = match core.origins.place(id) {
        Place::Unix(path) => {
            let path = path.clone();
            return dial::unix(core, key, path);
        }
        Place::Address(address) => {
            let address = *address;
            return dial::race(core, key, Arc::new([address.ip()]), address.port());
        }
        Place::Name(name, port) => (name.clone(), *port),
    };
    match core.names.lookup(&mut core.engine, &name, key) {
        Poll::Ready(Ok(addresses)) => dial::race(core, key, addresses, port),
        Poll::Pending => {
            core.exchange(key).transaction.phase = Phase::Naming;
            Ok(())
        }
        Poll::Ready(Err(error)) => Err(names::reason(error)),
    }
}

/// A name was looked up for the exchange.
fn named<E: Engine>(core: &mut Core<E>, key: Key, result: Result<(), NameError>) -> Step {
    let transaction = &mut core.exchange(key).transaction;
    let id = transaction.origin.expect("picked before it was looked up");
    let addresses = transaction.addresses.take().unwrap_or_default();
    let opening = match result {
        Ok(()) => {
            let Place::Name(_, port) = *core.origins.place(id) else {
                unreachable!("only names are looked up");
            };
            dial::race(core, key, addresses, port)
        }
        Err(error) => Err(names::reason(error)),
    };
    opening.map_or_else(|reason| connect_failed(core, key, reason), |()| Step::Wait)
}

/// Something happened to an attempt to connect.
fn dialed<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    match dial::on_news(core, key) {
        Ok(true) => send_request(core, key),
        Ok(false) => Step::Wait,
        Err(reason) => connect_failed(core, key, reason),
    }
}

/// The connection is there: the request goes out.
fn send_request<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    let Parts { engine, exchange, origin, .. } = core.parts(key);
    let transaction = &mut exchange.transaction;
    transaction.address = origin.and_then(|origin| origin.address);
    transaction.waiting_since = None;
    if exchange.plan == Plan::Tunnel {
        transaction.phase = Phase::Answered;
        return Step::Go(Stage::Deliver);
    }
    exchange.caching.request_ms = now_ms(engine);
    if !exchange.transaction.reused && pinned::owner(exchange).is_some() {
        pinned::write_header(core, key);
    }
    let Core { engine, exchanges, origins, out, .. } = core;
    let now = engine.now();
    let exchange = exchanges.get_mut(key).expect("its connection is there");
    let id = exchange.transaction.origin.expect("picked before it was connected to");
    out.clear();
    let upgrade = headers::write_request(&mut h1::header(out), exchange, origins.place(id));
    let transaction = &mut exchange.transaction;
    transaction.upgrade_sent = upgrade;
    transaction.phase = Phase::Asked;
    transaction.since = now;
    transaction.scan = HeadScan::default();
    side::receive(core, key);
    let Parts { engine, exchange, client, origin, out, .. } = core.parts(key);
    if client.is_none() {
        // A refresh has no body, and nothing waits for the end of its upload.
        exchange.upload = Default::default();
        origin.expect("the request has its connection").wire.send(engine, &[out]);
        return Step::Wait;
    }
    exchange.upload.start(exchange.framing, exchange.framing == Framing::Chunked, now);
    step(upload::pump(core, key, true))
}

/// Reads the response's header from what the origin has sent. Called when bytes have come, and when
/// an interim response that was in the way has been taken by the client, or its turn has come.
#[inline(never)]
fn read_response<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    loop {
        let Parts { engine, exchange, client, origin, .. } = core.parts(key);
        let Some(origin) = origin else { unreachable!("a response comes on a connection") };
        if client.is_some_and(|client| !client.may_send(key)) {
            return read_ahead(core, key);
        }
        let Exchange { transaction, answer, snapshot, .. } = &mut *exchange;
        let input = &mut origin.wire.input;
        let limits = &snapshot.as_ref().expect("set at its beginning").answer_limits;
        let length = match answer.parse_lenient(input.bytes(), &mut transaction.scan, limits) {
            Ok(Some(length)) => {
                input.consume(length);
                transaction.is_ambiguous |= transaction.scan.is_ambiguous();
                transaction.scan = HeadScan::default();
                length
            }
            Ok(None) if origin.wire.has_ended() => return origin_ended(core, key),
            Ok(None) => {
                side::receive(core, key);
                return Step::Wait;
            }
            Err(_) => return Step::End(Reason::MalformedAnswer),
        };
        match h1::status(exchange) {
            Ok(Status::Interim) => {
                let early_bytes = &mut exchange.transaction.early_bytes;
                *early_bytes = early_bytes.saturating_sub(length);
                pass_interim(core, key);
            }
            Ok(Status::Final(framing)) => {
                let transaction = &mut exchange.transaction;
                transaction.framing = framing;
                transaction.phase = Phase::Answered;
                transaction.answered = Some(engine.now());
                let head = answer_bytes(exchange);
                exchange.charges[1] = Some(engine.budget().charge(head));
                return responded(core, key);
            }
            Err(reason) => return Step::End(reason),
        }
    }
}

fn answer_bytes(exchange: &Exchange) -> usize {
    exchange.answer.bytes().len() + size_of_val(exchange.answer.fields())
}

/// The header of the final response is there.
fn responded<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    origin::verdict::note_answer(core, key);
    if core.exchange(key).answer.status() >= 502
        && let Some(step) = end::retry_on_status(core, key)
    {
        return step;
    }
    if outcome::take_in(core, key) { Step::Go(Stage::Deliver) } else { ask_again(core, key) }
}

/// While a response waits for its turn: a little of it is held, and the end of its connection is to
/// be seen, or the next request would be sent to no one.
fn read_ahead<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    let Parts { origin, .. } = core.parts(key);
    if origin.is_some_and(|origin| origin.wire.input.bytes().len() < RECEIVE_AHEAD_MAX) {
        side::receive(core, key);
    }
    Step::Wait
}

/// The response does not apply to what is stored, or what is stored does not serve the request: the
/// same request again, without our conditions.
fn ask_again<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    match core.exchange(key).transaction.framing {
        Framing::None | Framing::Length(0) => side::finish(core, key),
        // Its body is of no use.
        _ => side::leave(core, key),
    }
    let exchange = core.exchange(key);
    (exchange.caching.object, exchange.caching.completes) = (None, None);
    exchange.caching.is_stale_fallback = false;
    exchange.upload = Default::default();
    exchange.transaction = Transaction::default();
    Step::Again
}

/// RFC 9110 section 15.2: an interim response goes on to the client, unless it speaks HTTP/1.0,
/// which has none.
fn pass_interim<E: Engine>(core: &mut Core<E>, key: Key) {
    let Parts { engine, exchange, client, out, .. } = core.parts(key);
    exchange.transaction.since = engine.now();
    let Some(client) = client else { return };
    if exchange.request.version() == Version::Http10 {
        return;
    }
    out.clear();
    headers::write_interim(&mut conn::h1::header(out), exchange);
    client.wire.send(engine, &[out]);
}

/// The origin's stream ended, or broke, before the header of its response did; unless that header
/// is there, and only waits for its turn.
#[inline(never)]
fn origin_ended<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    let Parts { client, origin, .. } = core.parts(key);
    let waits = client.is_some_and(|client| !client.may_send(key));
    if waits && origin.is_some_and(|origin| !origin.wire.input.is_empty()) {
        // The wire keeps whether it ended or broke: a body that its end would end is whole only after
        // the former.
        return Step::Wait;
    }
    Step::End(Reason::OriginClosed)
}

/// No connection could be opened. If this worker has no room for one, the exchange waits for room.
fn connect_failed<E: Engine>(core: &mut Core<E>, key: Key, reason: Reason) -> Step {
    let transaction = &core.exchange(key).transaction;
    let (phase, id) = (transaction.phase, transaction.origin);
    if reason == Reason::Overloaded {
        let want = if phase == Phase::Dialing { Want::Connection } else { Want::Lookup };
        side::leave(core, key);
        return match wait_list::wait(core, key, want) {
            true => Step::Wait,
            false => Step::End(Reason::Overloaded),
        };
    }
    if let Some(counters) = id.and_then(|id| core.origins.counters(id)) {
        counters.connect_errors.add(1);
    }
    Step::End(reason)
}

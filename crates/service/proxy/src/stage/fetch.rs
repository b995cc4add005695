//! Stage fetch: the request goes to an origin, and the head of its answer comes back. It picks the
//! origin and the connection, sends the request's head (its body follows by the upload), passes
//! interim answers on, and begins again elsewhere where that is sound.

use std::net::IpAddr;
use std::sync::Arc;

use millrace_event::{Engine, Error, Key};
use millrace_http::{
    Authority, Framing, HeadScan, Version, answer_framing, destination, upgrade_accepted,
};

use crate::caching::now_ms;
use crate::exchange::{Exchange, Plan};
use crate::flow::{self, Stage, Step};
use crate::heads;
use crate::names::{Answered, NameError};
use crate::origin::{self, INTERIM_MAX, OriginId, Phase, Place, Probing, Share, Trial, Want, pick};
use crate::origin_side::RECEIVE_AHEAD_MAX;
use crate::reason::Reason;
use crate::refresh;
use crate::stage::deliver;
use crate::stage::keep::{self, Kept};
use crate::transfer::{Line, Waits};
use crate::tunnel;
use crate::worker::Worker;

/// Picks an origin and asks it, over a kept connection or a new one.
pub(crate) fn run<E: Engine>(worker: &mut Worker<E>, key: Key) -> Step {
    let phase = worker.exchange(key).transaction.phase;
    assert_eq!(phase, Phase::Start, "completions, not the driver, take a started fetch on");
    let Some((id, trial)) = pick_origin(worker, key) else {
        return Step::Refuse(Reason::MalformedTarget);
    };
    worker.origins.note_picked(id);
    let exchange = worker.exchange(key);
    let is_configured = matches!(exchange.plan, Plan::Route(_));
    let transaction = &mut exchange.transaction;
    (transaction.origin, transaction.trial) = (Some(id), trial);
    (transaction.configured, transaction.address) = (is_configured.then_some(id), None);
    let is_tunnel = exchange.plan == Plan::Tunnel;
    let has_line = worker.origins.has_line(id);
    let kept = if has_line { None } else { worker.take_kept(key, id) };
    if is_tunnel {
        // Its end is to be seen while the connection is opened, and what it says early is welcome.
        let conn = worker.exchange(key).conn();
        worker.watch_client(conn);
    }
    if kept.is_none() && (has_line || !worker.make_origin_room(key, id)) {
        origin::overflow(worker, key);
    } else {
        proceed(worker, key, id, kept);
    }
    Step::Wait
}

/// Asks the origin that was picked, over the connection that was `kept`, or over a new one, which
/// there is room for.
pub(crate) fn proceed<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    id: OriginId,
    kept: Option<Key>,
) {
    if kept.is_some() {
        let transaction = &mut worker.exchange(key).transaction;
        (transaction.connection, transaction.reused) = (kept, true);
        worker.counters.origin_connections_reused.add(1);
        connected(worker, key);
    } else {
        worker.origins.note_open(id);
        worker.exchange(key).transaction.opens = true;
        open(worker, key, id);
    }
}

fn pick_origin<E: Engine>(worker: &mut Worker<E>, key: Key) -> Option<(OriginId, Trial)> {
    let Worker { exchanges, origins, shared, engine, counters, .. } = worker;
    let exchange = exchanges.get(key).expect("the caller's exchange is there");
    let snapshot = exchange.snapshot();
    if let Plan::Route(index) = exchange.plan {
        let route = snapshot.route(exchange.service, index);
        let tried = exchange.transaction.tried;
        let probing = || Probing { now: engine.now(), repeatable: may_repeat(exchange) };
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

/// RFC 9110 section 9.2.2: whether a request may be sent again after an origin had all of it.
fn may_repeat(exchange: &Exchange) -> bool {
    let is_held = exchange.framing == Framing::None || exchange.framing == Framing::Length(0);
    exchange.request.method().is_idempotent() && is_held
}

/// Opens a connection to an origin: its address is known, or has to be looked up first.
fn open<E: Engine>(worker: &mut Worker<E>, key: Key, id: OriginId) {
    let (name, port) = match worker.origins.place(id) {
        Place::Unix(path) => {
            let path = path.clone();
            return origin::dial_unix(worker, key, path);
        }
        Place::Address(address) => {
            let address = *address;
            return origin::dial(worker, key, Arc::new([address.ip()]), address.port());
        }
        Place::Name(name, port) => (name.clone(), *port),
    };
    match worker.names.lookup(&mut worker.engine, &name, key) {
        Answered::Ready(addresses) => origin::dial(worker, key, addresses, port),
        Answered::Pending => worker.exchange(key).transaction.phase = Phase::Naming,
        Answered::Failed(error) => connect_failed(worker, key, error.reason()),
    }
}

/// A name was looked up for the exchange.
pub(crate) fn named<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    result: Result<Arc<[IpAddr]>, NameError>,
) {
    let transaction = &worker.exchange(key).transaction;
    assert_eq!(transaction.phase, Phase::Naming);
    let id = transaction.origin.expect("picked before it was looked up");
    match result {
        Ok(addresses) => {
            let Place::Name(_, port) = *worker.origins.place(id) else {
                unreachable!("only names are looked up");
            };
            origin::dial(worker, key, addresses, port);
        }
        Err(error) => connect_failed(worker, key, error.reason()),
    }
}

/// The connection is there: the request goes out.
pub(crate) fn connected<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    let address = worker.origin_of(key).address;
    let transaction = &mut worker.exchange(key).transaction;
    (transaction.address, transaction.waiting_since) = (address, None);
    if worker.exchange(key).plan == Plan::Tunnel {
        worker.exchange(key).transaction.phase = Phase::Answered;
        flow::go(worker, key, Stage::Deliver);
        flow::run(worker, key);
        return;
    }
    let asked_ms = now_ms(&worker.engine);
    worker.exchange(key).caching.request_ms = asked_ms;
    worker.out.clear();
    if !worker.exchange(key).transaction.reused {
        origin::write_header(worker, key);
    }
    let exchange = worker.exchanges.get_mut(key).expect("a connection is for a live exchange");
    let id = exchange.transaction.origin.expect("picked before it was connected to");
    let place = worker.origins.place(id);
    let upgrade = heads::write_request(&mut worker.out, exchange, place);
    let transaction = &mut exchange.transaction;
    transaction.upgrade_sent = upgrade;
    transaction.phase = Phase::Asked;
    transaction.since = now;
    transaction.scan = HeadScan::default();
    exchange.upload.start(exchange.framing, exchange.framing == Framing::Chunked, now);
    worker.receive_origin(key);
    upload(worker, key, true);
}

/// Moves the request on: `with_head`, the head in `worker.out` goes first.
pub(crate) fn upload<E: Engine>(worker: &mut Worker<E>, key: Key, with_head: bool) {
    match worker.exchange(key).is_refresh() {
        true if with_head => return refresh::ask(worker, key),
        true => return,
        false => {}
    }
    let Worker { engine, pipes, exchanges, conns, origins, out, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let conn = conns.get_mut(exchange.conn()).expect("an exchange has its connection");
    let slot = exchange.transaction.connection.expect("an upload has its origin connection");
    let origin = origins.connections.get_mut(slot).expect("held by the exchange");
    let head = if with_head { &out[..] } else { &[] };
    let sink = (&origin.fd, slot.token(millrace_event::Kind::Origin));
    let before = exchange.upload.moved();
    let may_fill = !conn.receiving && !conn.ended && !conn.broken;
    let line = may_fill.then_some(Line { fd: &conn.fd, broken: &mut conn.broken });
    let result = exchange.upload.pump((engine, pipes), &mut conn.input, line, sink, head);
    worker.counters.bytes_uploaded.add(exchange.upload.moved() - before);
    match result {
        Ok(Waits::Sink) => origin.sending = true,
        Ok(Waits::Source) if conn.ended => client_ended(worker, key),
        Ok(Waits::Source) => {
            let (conn, watches) = (exchange.conn(), exchange.upload.watches());
            let expected = exchange.upload.expected();
            worker.receive_upload(conn, expected, watches);
        }
        Ok(Waits::Off | Waits::Ended) => {
            exchange.transaction.since = engine.now();
            let conn = exchange.conn();
            worker.watch_client(conn);
            deliver::finish_if_done(worker, key);
        }
        Err(_) => fail(worker, key, Reason::MalformedBody),
    }
}

/// The client ended its stream while its request's body, or a tunnel, is read from it.
pub(crate) fn client_ended<E: Engine>(worker: &mut Worker<E>, key: Key) {
    if worker.exchange(key).tunnel {
        tunnel::client_ended(worker, key);
    } else {
        fail(worker, key, Reason::BodyCut);
    }
}

/// The origin took what was sent, or will not.
pub(crate) fn upload_sent<E: Engine>(worker: &mut Worker<E>, key: Key, result: Result<(), Error>) {
    match result {
        Ok(()) => upload(worker, key, false),
        Err(_) if worker.exchange(key).tunnel => fail(worker, key, Reason::AnswerCut),
        Err(_) => {
            // It may have answered before it stopped reading (RFC 9112 section 9.5): what is in the
            // receive queue decides. Nothing more is sent, and neither side is used again.
            worker.origin_of(key).broken = true;
            let Worker { engine, pipes, exchanges, .. } = worker;
            let now = engine.now();
            let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
            exchange.upload.abandon(engine, pipes);
            exchange.persistent = exchange.persistent && exchange.framing == Framing::None;
            exchange.transaction.since = now;
            if exchange.transaction.phase == Phase::Asked {
                worker.receive_origin(key);
            }
            deliver::finish_if_done(worker, key);
        }
    }
}

/// The origin took so many bytes out of the upload's pipe, or will take none.
pub(crate) fn upload_spliced<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    result: Result<usize, Error>,
) {
    let count = match result {
        Ok(count) => count,
        Err(error) => return upload_sent(worker, key, Err(error)),
    };
    let Worker { engine, pipes, exchanges, origins, counters, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let slot = exchange.transaction.connection.expect("an upload has its origin connection");
    let origin = origins.connections.get_mut(slot).expect("held by the exchange");
    counters.bytes_spliced.add(count as u64);
    let sink = (&origin.fd, slot.token(millrace_event::Kind::Origin));
    if exchange.upload.drain((engine, pipes), count, sink) {
        upload(worker, key, false);
    } else {
        origin.sending = true;
    }
}

/// Reads the answer's head from what the origin has sent. Called when bytes have come, and when an
/// interim answer that was in the way has been taken by the client, or its turn has come.
pub(crate) fn answer<E: Engine>(worker: &mut Worker<E>, key: Key) {
    loop {
        let Worker { exchanges, origins, conns, engine, .. } = worker;
        let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
        let conn = exchange.conn.map(|conn| conns.get(conn).expect("it outlives the exchange"));
        if conn.is_some_and(|conn| !conn.may_go(key)) {
            return read_ahead(worker, key);
        }
        let Exchange { transaction, answer, snapshot, .. } = &mut **exchange;
        let slot = transaction.connection.expect("an answer comes on a connection");
        let origin = origins.connections.get_mut(slot).expect("held by the exchange");
        let input = &mut origin.input;
        let limits = &snapshot.as_ref().expect("set at its beginning").answer_limits;
        let length = match answer.parse(input.bytes(), &mut transaction.scan, limits) {
            Ok(Some(length)) => {
                input.consume(length);
                transaction.scan = HeadScan::default();
                length
            }
            Ok(None) if origin.ended => return origin_ended(worker, key),
            Ok(None) => return worker.receive_origin(key),
            Err(_) => return fail(worker, key, Reason::MalformedAnswer),
        };
        match status(exchange) {
            Ok(Status::Interim) => {
                let early_bytes = &mut exchange.transaction.early_bytes;
                *early_bytes = early_bytes.saturating_sub(length);
                pass_interim(worker, key);
            }
            Ok(Status::Final(framing)) => {
                exchange.transaction.framing = framing;
                exchange.transaction.phase = Phase::Answered;
                exchange.transaction.answered = Some(engine.now());
                let head =
                    exchange.answer.bytes().len() + std::mem::size_of_val(exchange.answer.fields());
                exchange.charges[1] = Some(engine.budget().charge(head));
                let id = exchange.transaction.origin.expect("picked before it was asked");
                origin::note_answer(worker, key, id);
                if keep::run(worker, key) == Kept::AskAgain {
                    return ask_again(worker, key);
                }
                flow::go(worker, key, Stage::Deliver);
                return flow::run(worker, key);
            }
            Err(reason) => return fail(worker, key, reason),
        }
    }
}

/// While an answer waits for its turn: a little of it is held, and the end of its connection is to
/// be seen, or the next request would be sent to nobody.
fn read_ahead<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let origin = worker.origin_of(key);
    if !origin.ended && origin.input.bytes().len() < RECEIVE_AHEAD_MAX {
        worker.receive_origin(key);
    }
}

/// What came says nothing of what is stored: the same again, without a word of that.
fn ask_again<E: Engine>(worker: &mut Worker<E>, key: Key) {
    match worker.exchange(key).transaction.framing {
        Framing::None | Framing::Length(0) => worker.release_origin(key),
        // Nobody wants its body.
        _ => worker.leave_origin(key),
    }
    let exchange = worker.exchange(key);
    (exchange.caching.object, exchange.caching.completes) = (None, None);
    exchange.caching.is_spare = false;
    exchange.upload = Default::default();
    exchange.transaction = origin::Transaction::default();
    flow::run(worker, key);
}

/// What an answer's head means for the exchange.
enum Status {
    Interim,
    Final(Framing),
}

fn status(exchange: &mut Exchange) -> Result<Status, Reason> {
    let Exchange { transaction, answer, request, .. } = exchange;
    let framing =
        answer_framing(answer, request.method()).map_err(|_| Reason::MalformedAnswerFraming)?;
    match answer.status() {
        101 if transaction.upgrade_sent && upgrade_accepted(request, answer) => {
            Ok(Status::Final(Framing::None))
        }
        101 => Err(Reason::UpgradeUnasked),
        100..=199 if transaction.interim >= INTERIM_MAX => Err(Reason::TooManyInterim),
        100..=199 => {
            transaction.interim += 1;
            Ok(Status::Interim)
        }
        _ => Ok(Status::Final(framing)),
    }
}

/// RFC 9110 section 15.2: an interim answer goes on to the client, unless it speaks HTTP/1.0, which
/// has none.
fn pass_interim<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Worker { engine, exchanges, conns, out, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    exchange.transaction.since = engine.now();
    if exchange.is_refresh() || exchange.request.version() == Version::Http10 {
        return;
    }
    out.clear();
    heads::write_interim(out, exchange);
    let slot = exchange.conn();
    let conn = conns.get_mut(slot).expect("an exchange has its connection");
    engine.send(&conn.fd, &[out], slot.token(millrace_event::Kind::Client));
    conn.sending = true;
}

/// The origin's stream ended, or broke, before the head of its answer did; unless that head is
/// there, and only waits for its turn.
pub(crate) fn origin_ended<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let conn = worker.exchange(key).conn;
    let waits = conn.is_some_and(|conn| !worker.conn(conn).may_go(key));
    let origin = worker.origin_of(key);
    origin.ended = true;
    if waits && !origin.input.is_empty() {
        return;
    }
    let exchange = worker.exchange(key);
    let may_repeat = may_repeat(exchange);
    let silent = exchange.transaction.interim == 0 && worker.origin_of(key).input.is_empty();
    // RFC 9110 section 9.2.2, RFC 9112 section 9.5: a kept connection may end at any time; a fresh
    // one that ends without a word is worth another origin, if there is one.
    let exchange = worker.exchange(key);
    if may_repeat && silent && (exchange.transaction.reused || has_other_origin(exchange)) {
        again(worker, key, Reason::OriginClosed);
    } else {
        fail(worker, key, Reason::OriginClosed);
    }
}

/// No connection came about. Nothing was sent, so any request may try elsewhere, or wait where it
/// is we who have no room.
pub(crate) fn connect_failed<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    if reason == Reason::Overloaded {
        let want = match worker.exchange(key).transaction.phase {
            Phase::Dialing => Want::Connection,
            _ => Want::Lookup,
        };
        worker.leave_origin(key);
        return origin::wait_for_room(worker, key, want);
    }
    let id = worker.exchange(key).transaction.origin;
    if let Some(counters) = id.and_then(|id| worker.origins.counters(id)) {
        counters.connect_errors.add(1);
    }
    if has_other_origin(worker.exchange(key)) {
        again(worker, key, reason);
    } else {
        fail(worker, key, reason);
    }
}

fn has_other_origin(exchange: &Exchange) -> bool {
    match exchange.plan {
        Plan::Route(index) => exchange.snapshot().route(exchange.service, index).origins.len() > 1,
        _ => false,
    }
}

/// The one backward move (see `flow.rs`): the fetch begins again, if tries are left.
fn again<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    let exchange = worker.exchange(key);
    let tries = exchange.snapshot().limits().retries;
    assert_eq!(exchange.stage, Stage::Fetch, "nothing has reached the client");
    if u64::from(exchange.transaction.tries) >= tries || exchange.upload.moved() > 0 {
        fail(worker, key, reason);
        return;
    }
    // A kept connection that had ended says nothing about its origin, and takes nothing of the
    // budget: it happens to a request once.
    let dials = exchange.transaction.reused;
    if !dials && !budget_grants(worker, key) {
        worker.counters.retries_refused.add(1);
        return fail(worker, key, reason);
    }
    origin::note_failure(worker, key, reason);
    worker.counters.retries.add(1);
    let transaction = &worker.exchange(key).transaction;
    let tried = transaction.origin.filter(|_| !dials);
    let tries = transaction.tries + 1;
    worker.leave_origin(key);
    let exchange = worker.exchange(key);
    exchange.upload = Default::default();
    exchange.transaction = origin::Transaction { tries, tried, dials, ..Default::default() };
    flow::run(worker, key);
}

/// Whether the route of the exchange may try one more request again.
fn budget_grants<E: Engine>(worker: &mut Worker<E>, key: Key) -> bool {
    let (now, workers) = (worker.engine.now(), worker.shared.counters.len() as u64);
    let exchange = worker.exchange(key);
    let Plan::Route(index) = exchange.plan else { return true };
    let snapshot = exchange.snapshot();
    let limits = snapshot.limits();
    let floor = limits.retries_per_second.div_ceil(workers);
    let share = Share { percent: limits.retry_percent, floor };
    let route = snapshot.route(exchange.service, index);
    route.budget.borrow_mut().grant(now, route.turn.get(), share)
}

/// The exchange cannot be served: an answer says why if one still can. An answer that was begun
/// ends in a reset, so that nobody takes what it got for the whole; one that was received to its
/// end stays good, and only the rest of its request is given up.
pub(crate) fn fail<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    origin::note_failure(worker, key, reason);
    if worker.exchange(key).tunnel {
        // An orderly end would make what the origin has got of the tunnel look whole.
        worker.break_origin(key);
    }
    worker.leave_origin(key);
    if worker.exchange(key).stage < Stage::Deliver && keep::serve_spare(worker, key) {
        flow::go(worker, key, Stage::Deliver);
        return flow::run(worker, key);
    }
    let exchange = worker.exchange(key);
    if exchange.download.source_is_done() && !exchange.tunnel {
        deliver::give_up_upload(worker, key);
    } else if exchange.stage < Stage::Deliver && reason.status() != 0 {
        deliver::refuse(worker, key, reason);
        flow::run(worker, key);
    } else {
        deliver::abort(worker, key, reason);
    }
}

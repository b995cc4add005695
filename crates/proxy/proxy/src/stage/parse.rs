//! Stage parse: bytes of a client become an exchange, or a precise refusal.

use millrace_engine::{Engine, Key};
use millrace_http1::{FramingError, HeadError, request_framing};

use crate::conn::{Standing, client, h1};
use crate::core::Core;
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, Step};
use crate::overload::capacity;

/// Handles an event of a connection: begins an exchange if a whole request header is there, and may
/// begin now. What is there may be the beginning of a request, or several pipelined ones.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, conn_key: Key, event: Event) -> Step {
    match event {
        Event::Due => time_out(core, conn_key),
        _ if may_begin(core, conn_key) => next(core, conn_key),
        _ => Step::Wait,
    }
}

/// Whether a further request may be read now: there is none under way, or only such as let others
/// pass and fewer than `pipelined`.
fn may_begin<E: Engine>(core: &Core<E>, conn_key: Key) -> bool {
    let Core { conns, exchanges, snapshot, .. } = core;
    let Some(conn) = conns.get(conn_key) else { return false };
    let Some(last) = conn.pipeline.last() else { return !conn.is_over() };
    conn.pipeline.len() < snapshot.limits().pipelined
        && exchanges.get(last).is_some_and(|last| h1::lets_others_pass(last))
        && capacity::has_room_ahead(core)
}

/// Begins an exchange if a whole request header, or the proof that it will never be one, is there.
#[inline(never)]
fn next<E: Engine>(core: &mut Core<E>, conn_key: Key) -> Step {
    let Core { engine, conns, snapshot, spare, .. } = core;
    let Some(conn) = conns.get_mut(conn_key) else { return Step::Wait };
    if conn.wire.input.is_empty() {
        return wait_for_more(core, conn_key);
    }
    let now = engine.now();
    let mut exchange = spare.take();
    let scan = &mut conn.pipeline.scan;
    match exchange.request.parse(conn.wire.input.bytes(), scan, &snapshot.request_limits) {
        Ok(None) => {
            if conn.is_idle() {
                conn.stand(Standing::Head, now);
            }
            spare.put(exchange);
            wait_for_more(core, conn_key)
        }
        Ok(Some(length)) => {
            conn.wire.input.consume(length);
            exchange.request_is_whole = true;
            begin(core, conn_key, exchange, None)
        }
        Err(error) => begin(core, conn_key, exchange, Some(reason_of_head(error))),
    }
}

/// Puts the exchange into the table and has it start, or be refused. One that may not be served
/// beside those before it waits until they are done.
fn begin<E: Engine>(
    core: &mut Core<E>,
    conn_key: Key,
    mut exchange: Box<Exchange>,
    refused: Option<Reason>,
) -> Step {
    let now = core.engine.now();
    let conn = core.conn(conn_key);
    exchange.conn = Some(conn_key);
    // The header may have come in pieces: its first byte was there when `Head` began.
    let started = if conn.standing == Standing::Head { conn.since } else { now };
    let listener = conn.listener;
    let (snapshot, service) = core.serving(listener);
    (exchange.snapshot, exchange.service) = (Some(snapshot.clone()), service);
    exchange.started = Some(started);
    let refused = refused.or_else(|| match request_framing(&exchange.request) {
        Ok(framing) => {
            exchange.framing = framing;
            exchange.persistent = h1::wants_persistence(&exchange);
            None
        }
        Err(FramingError::CodingUnsupported) => Some(Reason::CodingUnknown),
        Err(_) => Some(Reason::MalformedFraming),
    });
    let head = exchange.request.bytes().len() + size_of_val(exchange.request.fields());
    let budget = core.engine.budget();
    exchange.charges[0] = Some(budget.charge(size_of::<Exchange>() + head));
    let passes = h1::lets_others_pass(&exchange);
    let key = core.exchanges.insert(exchange).expect("there is room for one of each connection");
    let conn = core.conn(conn_key);
    let before = conn.pipeline.push(key);
    match before {
        Some(before) => core.exchange(before).next = Some(key),
        None => conn.stand(Standing::Busy, now),
    }
    match before.is_none() || passes || refused.is_some() {
        true => Step::Begin(refused),
        false => Step::Wait,
    }
}

/// Refuses what has come of a header, because its time is over. A client that has sent nothing
/// gets no response: it may be about to send a request, which a response now would seem to answer.
fn time_out<E: Engine>(core: &mut Core<E>, conn_key: Key) -> Step {
    if core.conn(conn_key).wire.input.is_empty() {
        client::close(core, conn_key);
        return Step::Wait;
    }
    let exchange = core.spare.take();
    begin(core, conn_key, exchange, Some(Reason::HeadTimedOut))
}

fn wait_for_more<E: Engine>(core: &mut Core<E>, conn_key: Key) -> Step {
    let listener = core.conn(conn_key).listener;
    let leaving = core.is_leaving(listener) && core.drain.idle_grace.is_zero();
    let Core { engine, conns, .. } = core;
    let Some(conn) = conns.get_mut(conn_key) else { return Step::Wait };
    if conn.standing == Standing::Busy {
        client::watch(engine, conn);
    } else if conn.wire.has_ended() || (leaving && conn.is_idle()) {
        client::close(core, conn_key);
    } else {
        client::receive(core, conn_key);
    }
    Step::Wait
}

fn reason_of_head(error: HeadError) -> Reason {
    match error {
        HeadError::BytesTooMany | HeadError::FieldsTooMany => Reason::HeadTooLarge,
        HeadError::TargetTooLong => Reason::TargetTooLong,
        HeadError::VersionUnsupported => Reason::VersionUnsupported,
        _ => Reason::MalformedHead,
    }
}

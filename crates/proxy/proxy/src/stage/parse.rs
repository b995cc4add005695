//! Stage parse: turns bytes from a client into an exchange, or into a refusal with the exact
//! reason.

use millrace_config::ServiceRole;
use millrace_engine::{Engine, Key};
use millrace_http1::{FramingError, HeadError, Scheme, request_framing};

use crate::conn::{ConnState, client, h1};
use crate::core::Core;
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep};
use crate::overload::capacity;

/// Handles an event of a connection. Begins an exchange if a whole request header has arrived and
/// another exchange may begin now. The receive buffer may hold the beginning of one request, or
/// several pipelined requests.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, conn_key: Key, event: Event) -> NextStep {
    match event {
        Event::TimedOut => refuse_overdue(core, conn_key),
        _ if may_begin(core, conn_key) => parse_request(core, conn_key),
        _ => NextStep::Wait,
    }
}

/// Returns whether a further request may be read now: no exchange is in progress, or all of them
/// allow pipelining and there are fewer than the limit `pipelined`.
fn may_begin<E: Engine>(core: &Core<E>, conn_key: Key) -> bool {
    let Core { conns, exchanges, snapshot, .. } = core;
    let Some(conn) = conns.get(conn_key) else { return false };
    let Some(last) = conn.pipeline.last() else { return !conn.is_closing() };
    conn.pipeline.len() < snapshot.limits().pipelined
        && exchanges.get(last).is_some_and(|last| h1::allows_pipelining(last))
        && capacity::has_pipelining_capacity(core)
}

/// Begins an exchange if the bytes received are a whole request header, or can never become one.
#[inline(never)]
fn parse_request<E: Engine>(core: &mut Core<E>, conn_key: Key) -> NextStep {
    let Core { engine, conns, snapshot, exchange_pool, .. } = core;
    let Some(conn) = conns.get_mut(conn_key) else { return NextStep::Wait };
    if conn.wire.recv_buffer.is_empty() {
        return wait_for_more(core, conn_key);
    }
    let now = engine.now();
    let mut exchange = exchange_pool.take();
    let scan = &mut conn.pipeline.scan;
    match exchange.request.parse(conn.wire.recv_buffer.bytes(), scan, &snapshot.request_limits) {
        Ok(None) => {
            if conn.is_idle() {
                conn.set_state(ConnState::RequestHeader, now);
            }
            exchange_pool.recycle(exchange);
            wait_for_more(core, conn_key)
        }
        Ok(Some(length)) => {
            conn.wire.recv_buffer.consume(length);
            exchange.has_request = true;
            begin(core, conn_key, exchange, None)
        }
        Err(error) => begin(core, conn_key, exchange, Some(refusal_of(error))),
    }
}

/// Inserts the exchange into the table, and starts or refuses it. If it must not overlap with
/// earlier exchanges of the connection, it waits until these have ended.
fn begin<E: Engine>(
    core: &mut Core<E>,
    conn_key: Key,
    mut exchange: Box<Exchange>,
    refused: Option<Reason>,
) -> NextStep {
    let now = core.engine.now();
    let conn = core.conn(conn_key);
    exchange.conn = Some(conn_key);
    // The header may have arrived in pieces. Its first byte arrived when `RequestHeader` began.
    let started = if conn.state == ConnState::RequestHeader { conn.since } else { now };
    let (listener, is_secure) = (conn.listener, conn.wire.tls().is_some());
    let (snapshot, service) = core.service_of_listener(listener);
    // The connection to a forward proxy says nothing about the target URI.
    if is_secure && matches!(snapshot.service(service).role, ServiceRole::Boost(_)) {
        exchange.sender.scheme = Scheme::Https;
        let tls = core.conns.get(conn_key).and_then(|conn| conn.wire.tls());
        exchange.sender.certificate = tls.and_then(|tls| tls.client().cloned());
    }
    (exchange.snapshot, exchange.service) = (Some(snapshot.clone()), service);
    exchange.started = Some(started);
    let refused = refused.or_else(|| match request_framing(&exchange.request) {
        Ok(framing) => {
            exchange.framing = framing;
            exchange.is_persistent = h1::wants_persistence(&exchange);
            None
        }
        Err(FramingError::CodingUnsupported) => Some(Reason::CodingUnknown),
        Err(_) => Some(Reason::MalformedFraming),
    });
    let header_bytes = exchange.request.bytes().len() + size_of_val(exchange.request.fields());
    let budget = core.engine.budget();
    exchange.charges[0] = Some(budget.charge(size_of::<Exchange>() + header_bytes));
    let can_overlap = h1::allows_pipelining(&exchange);
    let key = core
        .exchanges
        .insert(exchange)
        .expect("the table has a slot for an exchange of each connection");
    let conn = core.conn(conn_key);
    let before = conn.pipeline.push(key);
    match before {
        Some(before) => core.exchange(before).next_in_pipeline = Some(key),
        None => conn.set_state(ConnState::Busy, now),
    }
    match before.is_none() || can_overlap || refused.is_some() {
        true => NextStep::BeginExchange(refused),
        false => NextStep::Wait,
    }
}

/// Refuses a request header that took too long to arrive. If no byte of it has arrived, also on an
/// idle connection, the connection closes without a response: a client that is just sending a
/// request would take it for the response to that request.
fn refuse_overdue<E: Engine>(core: &mut Core<E>, conn_key: Key) -> NextStep {
    if !core.conn(conn_key).has_part_of_request() {
        client::finish(core, conn_key);
        return NextStep::Wait;
    }
    let exchange = core.exchange_pool.take();
    begin(core, conn_key, exchange, Some(Reason::HeadTimedOut))
}

fn wait_for_more<E: Engine>(core: &mut Core<E>, conn_key: Key) -> NextStep {
    let listener = core.conn(conn_key).listener;
    let leaving = core.must_close(listener) && core.drain.idle_grace.is_zero();
    let Core { engine, conns, .. } = core;
    let Some(conn) = conns.get_mut(conn_key) else { return NextStep::Wait };
    if conn.state == ConnState::Busy {
        client::receive_ahead(engine, conn);
    } else if conn.wire.has_ended() || (leaving && conn.is_idle()) {
        client::finish(core, conn_key);
    } else {
        client::receive(core, conn_key);
    }
    NextStep::Wait
}

fn refusal_of(error: HeadError) -> Reason {
    match error {
        HeadError::BytesTooMany | HeadError::FieldsTooMany => Reason::HeadTooLarge,
        HeadError::TargetTooLong => Reason::TargetTooLong,
        HeadError::VersionUnsupported => Reason::VersionUnsupported,
        _ => Reason::MalformedHead,
    }
}

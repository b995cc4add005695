//! Stage parse: bytes of a client become an exchange, or a precise refusal.

use millrace_engine::{Engine, Key};
use millrace_http1::{
    FramingError, HeadError, HeadScan, Method, connection_options, request_framing,
};

use crate::conn::Standing;
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::exchange::stage as flow;
use crate::stage::deliver;
use crate::worker::Worker;

/// Looks for the next request of a connection: what is there may be the beginning of one, or
/// several pipelined ones.
pub(crate) fn run<E: Engine>(worker: &mut Worker<E>, conn_key: Key) {
    while may_begin(worker, conn_key) && next(worker, conn_key) {}
}

/// Whether a further request may be read now: there is none under way, or only such as let others
/// pass and fewer than `pipelined`.
fn may_begin<E: Engine>(worker: &mut Worker<E>, conn_key: Key) -> bool {
    let Worker { conns, exchanges, snapshot, .. } = worker;
    let Some(conn) = conns.get(conn_key) else { return false };
    let Some(last) = conn.last else { return conn.standing != Standing::Lingering };
    let last = exchanges.get(last).expect("listed while under way");
    u64::from(conn.under_way) < snapshot.limits().pipelined
        && last.lets_others_pass()
        && worker.has_room_ahead()
}

/// Begins an exchange if a whole request head, or the proof that it will never be one, is there.
fn next<E: Engine>(worker: &mut Worker<E>, conn_key: Key) -> bool {
    if worker.conn(conn_key).input.is_empty() {
        wait_for_more(worker, conn_key);
        return false;
    }
    let now = worker.engine.now();
    let mut exchange = worker.new_exchange();
    let conn = worker.conns.get_mut(conn_key).expect("the caller's connection is open");
    let limits = &worker.snapshot.request_limits;
    match exchange.request.parse(conn.input.bytes(), &mut conn.scan, limits) {
        Ok(None) => {
            if conn.is_idle() {
                conn.stand(Standing::Head, now);
            }
            worker.spare(exchange);
            wait_for_more(worker, conn_key);
            false
        }
        Ok(Some(length)) => {
            conn.input.consume(length);
            exchange.request_is_whole = true;
            begin(worker, conn_key, exchange, None);
            true
        }
        Err(error) => {
            begin(worker, conn_key, exchange, Some(reason_of_head(error)));
            true
        }
    }
}

/// Puts the exchange into the table and starts it, or its refusal. One that may not be served
/// beside those before it stays where it is until they are done.
fn begin<E: Engine>(
    worker: &mut Worker<E>,
    conn_key: Key,
    mut exchange: Box<Exchange>,
    refused: Option<Reason>,
) {
    let now = worker.engine.now();
    let conn = worker.conns.get_mut(conn_key).expect("the caller's connection is open");
    conn.scan = HeadScan::default();
    exchange.conn = Some(conn_key);
    // The head may have come in pieces: its first byte was there when `Head` began.
    let started = if conn.standing == Standing::Head { conn.since } else { now };
    let listener = conn.listener;
    let (snapshot, service) = worker.serving(listener);
    (exchange.snapshot, exchange.service) = (Some(snapshot.clone()), service);
    exchange.started = Some(started);
    let refused = refused.or_else(|| match request_framing(&exchange.request) {
        Ok(framing) => {
            exchange.framing = framing;
            let options = connection_options(&exchange.request);
            // After CONNECT what follows was meant for a tunnel, whatever becomes of it.
            exchange.persistent = options.is_persistent(exchange.request.version())
                && exchange.request.method() != Method::Connect;
            None
        }
        Err(FramingError::CodingUnsupported) => Some(Reason::CodingUnknown),
        Err(_) => Some(Reason::MalformedFraming),
    });
    let head = exchange.request.bytes().len() + std::mem::size_of_val(exchange.request.fields());
    let budget = worker.engine.budget();
    exchange.charges[0] = Some(budget.charge(size_of::<Exchange>() + head));
    let passes = exchange.lets_others_pass();
    let key = worker.exchanges.insert(exchange).expect("there is room for one of each connection");
    let conn = worker.conns.get_mut(conn_key).expect("the caller's connection is open");
    let before = conn.last.replace(key);
    conn.under_way += 1;
    match before {
        Some(before) => worker.exchange(before).next = Some(key),
        None => {
            conn.first = Some(key);
            conn.stand(Standing::Busy, now);
        }
    }
    if let Some(reason) = refused {
        deliver::refuse(worker, key, reason);
    }
    if before.is_none() || passes || refused.is_some() {
        flow::run(worker, key);
    }
}

/// Refuses what has come of a head, because its time is over. A client that has sent nothing is
/// not told so: it may be about to send a request, which an answer now would seem to answer.
pub(crate) fn time_out<E: Engine>(worker: &mut Worker<E>, conn_key: Key) {
    if worker.conn(conn_key).input.is_empty() {
        worker.close_conn(conn_key);
        return;
    }
    let exchange = worker.new_exchange();
    begin(worker, conn_key, exchange, Some(Reason::HeadTimedOut));
}

fn wait_for_more<E: Engine>(worker: &mut Worker<E>, conn_key: Key) {
    let listener = worker.conn(conn_key).listener;
    let leaving = worker.is_leaving(listener) && worker.idle_grace.is_zero();
    let conn = worker.conn(conn_key);
    if conn.standing == Standing::Busy {
        worker.watch_client(conn_key);
    } else if conn.ended || (leaving && conn.is_idle()) {
        worker.close_conn(conn_key);
    } else {
        worker.receive_client(conn_key);
    }
}

fn reason_of_head(error: HeadError) -> Reason {
    match error {
        HeadError::BytesTooMany | HeadError::FieldsTooMany => Reason::HeadTooLarge,
        HeadError::TargetTooLong => Reason::TargetTooLong,
        HeadError::VersionUnsupported => Reason::VersionUnsupported,
        _ => Reason::MalformedHead,
    }
}

//! Stage log: an exchange has ended. It is recorded, its memory goes back, and its connection goes
//! on to the next request or ends.

use millrace_event::{Engine, Key};
use millrace_http::Name;

use crate::auth::Access;
use crate::caching::Answer;
use crate::exchange::Exchange;
use crate::origin::{Origins, Place};
use crate::reason::Reason;
use crate::record::{OriginAddress, Record, write_record};
use crate::tally::Tally;
use crate::worker::Worker;

pub(crate) fn run<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let exchange = worker.exchange(key);
    let conn = exchange.conn();
    let (persistent, aborted) = (exchange.persistent, exchange.aborted);
    // What follows a request that was refused may still be on its way, a tunnel's first bytes or
    // the rest of what was malformed: it must not turn the refusal into a reset.
    let refused = exchange.reason.is_some();
    let unread = !exchange.tunnel && (refused || !exchange.request_was_taken());
    finish(worker, key);
    if aborted {
        worker.reset_conn(conn);
    } else if persistent {
        worker.resume_conn(conn);
    } else if unread || !worker.conn(conn).input.is_empty() {
        worker.linger_conn(conn);
    } else {
        worker.close_conn(conn);
    }
}

/// Ends an exchange that was begun ahead of its turn, because its connection ends.
pub(crate) fn end<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    worker.exchange(key).reason.get_or_insert(reason);
    finish(worker, key);
}

/// Records the first exchange of a connection and takes it out.
fn finish<E: Engine>(worker: &mut Worker<E>, key: Key) {
    worker.leave_origin(key);
    worker.leave_cache(key);
    worker.counters.exchanges.add(1);
    let exchange = worker.exchanges.remove(key).expect("the caller's exchange is there");
    let conn = worker.conn(exchange.conn());
    assert_eq!(conn.first, Some(key), "exchanges end in the order of their requests");
    conn.first = exchange.next;
    conn.last = conn.last.filter(|_| exchange.next.is_some());
    conn.under_way -= 1;
    let tally = exchange.tally();
    worker.counters.bytes_copied.add(tally.copied);
    worker.counters.bytes_teed.add(tally.teed);
    worker.counters.transfer_calls.add(tally.calls);
    exchange.snapshot().count_request(exchange.service, worker.index, exchange.status);
    if let Some(reason) = exchange.reason
        && (exchange.aborted || exchange.status == 0)
    {
        worker.counters.exchanges_aborted.add(reason);
    }
    if exchange.snapshot().config.access_log.is_some() {
        record(worker, &exchange, tally);
    }
    worker.spare(exchange);
}

fn record<E: Engine>(worker: &mut Worker<E>, exchange: &Exchange, tally: Tally) {
    let Worker { conns, records, dates, engine, origins, .. } = worker;
    let conn = conns.get(exchange.conn());
    let request = &exchange.request;
    let whole = exchange.request_is_whole;
    let field = |name| request.find(name).filter(|_| whole).map(|field| request.value_of(field));
    let started = exchange.started.unwrap_or_default();
    let (method, target, version) = match whole {
        true => (request.method_bytes(), request.target(), request.version().as_str().as_bytes()),
        false => (&b""[..], &b""[..], &b""[..]),
    };
    let duration = engine.read_clock().since(started);
    let record = Record {
        client: conn.and_then(|conn| conn.client).map(|address| address.ip()),
        user: match &exchange.access {
            Access::Granted(user) => Some(user),
            Access::Unasked | Access::Waiting => None,
        },
        time_of_day: engine.time_of_day().saturating_sub(duration),
        method,
        target,
        version,
        status: exchange.status,
        bytes_from_client: exchange.upload.moved(),
        bytes_to_client: exchange.download.taken() + exchange.own_bytes,
        tally,
        bytes_kept: match exchange.caching.answer {
            Answer::Filled => exchange.download.taken(),
            Answer::Origin | Answer::Stored => 0,
        },
        host: field(Name::Host),
        referer: field(Name::Referer),
        user_agent: field(Name::UserAgent),
        duration,
        origin: origin_tried(origins, exchange),
        origin_first_byte: exchange.transaction.answered.map(|answered| answered.since(started)),
        client_path: conn.and_then(|conn| engine.path_estimate(&conn.fd)),
        cache: exchange.caching.word(),
        close_reason: exchange.reason.map_or("", |reason| reason.word()),
    };
    let format = exchange.snapshot().config.access_log.as_ref().map(|log| log.format);
    let format = format.expect("the caller has seen that there is a log");
    write_record(format, &record, dates, records);
}

/// The address that was tried last, or the configured origin if there was none to try. What clients
/// of a forward proxy asked for is in the target.
fn origin_tried<'a>(origins: &'a Origins, exchange: &Exchange) -> Option<OriginAddress<'a>> {
    let transaction = &exchange.transaction;
    if let Some(address) = transaction.address {
        return Some(OriginAddress::Tcp(address));
    }
    // The exchange holds the snapshot that names the origin: it is known.
    Some(match origins.place(transaction.configured?) {
        Place::Address(address) => OriginAddress::Tcp(*address),
        Place::Name(name, port) => OriginAddress::Name(name, *port),
        Place::Unix(path) => OriginAddress::Unix(path.as_os_str().as_encoded_bytes()),
    })
}

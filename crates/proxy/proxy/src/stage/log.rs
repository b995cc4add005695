//! Stage log: records an exchange that has ended and recycles its memory.

use millrace_engine::{Engine, Key};
use millrace_http1::FieldName;

use crate::auth::Access;
use crate::cached::{ResponseSource, waiting};
use crate::conn::{Conn, h1};
use crate::core::Core;
use crate::exchange::access_log::{LogBuffer, LoggedOrigin, LoggedTls, Record, write_record};
use crate::exchange::stage::{Event, NextStep};
use crate::exchange::{Exchange, Reason};
use crate::origin::{OriginAddress, Origins, release};
use crate::secure::failure::logged;
use crate::transfer::stats::TransferStats;

/// Records the first exchange of a connection and removes it.
#[inline(never)]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    if core.exchange(key).transaction.is_open() {
        release::abandon_transaction(core, key);
    }
    waiting::leave_cache(core, key);
    core.counters.exchanges.add(1);
    let mut exchange = core.exchanges.remove(key).expect("the driver's exchange is in the table");
    if let Event::End(reason) = event {
        // A pipelined exchange whose connection ended before its response could be sent.
        exchange.reason.get_or_insert(reason);
    }
    let conn_key = exchange.conn();
    let conn = core.conn(conn_key);
    conn.pipeline.pop(key, exchange.next_in_pipeline);
    let afterwards = h1::after_exchange(&exchange, conn.wire.may_receive_more());
    let transfers = exchange.transfer_stats();
    core.counters.copied_bytes.add(transfers.copied);
    core.counters.teed_bytes.add(transfers.teed);
    core.counters.transfer_syscalls.add(transfers.calls);
    exchange.snapshot().count_request(exchange.service, core.index, exchange.status);
    if let Some(reason) = exchange.reason
        && (exchange.abort.is_some() || exchange.status == 0)
    {
        core.counters.exchanges_aborted.add(reason);
    }
    if exchange.snapshot().config.access_log.is_some() {
        record(core, &exchange, transfers);
    }
    exchange.abandon_transfers(&mut core.engine, &mut core.pipes);
    core.exchange_pool.recycle(exchange);
    NextStep::Recorded(afterwards)
}

fn record<E: Engine>(core: &mut Core<E>, exchange: &Exchange, transfers: TransferStats) {
    let Core { conns, log, engine, origins, .. } = core;
    let LogBuffer { records, dates } = log;
    let conn = conns.get(exchange.conn());
    let request = exchange.client_request();
    let has_request = exchange.has_request;
    let field =
        |name| request.find(name).filter(|_| has_request).map(|field| request.value_of(field));
    let started = exchange.started.unwrap_or_default();
    let (method, target, version) = match has_request {
        true => (request.method_bytes(), request.target(), request.version().as_str().as_bytes()),
        false => (&b""[..], &b""[..], &b""[..]),
    };
    let duration = engine.read_clock().since(started);
    let record = Record {
        client: conn.and_then(|conn| conn.client_address).map(|address| address.ip()),
        user: match &exchange.access {
            Access::Granted(user) => Some(user),
            Access::Unchecked | Access::Verifying => None,
        },
        time_of_day: engine.time_of_day().saturating_sub(duration),
        method,
        target,
        version,
        status: exchange.status,
        bytes_from_client: exchange.body_bytes(),
        bytes_to_client: exchange.download.accepted(),
        transfers,
        bytes_to_cache: match exchange.caching.source {
            ResponseSource::Filled => exchange.download.accepted(),
            ResponseSource::Origin | ResponseSource::Stored => 0,
        },
        file: file_of(exchange),
        host: field(FieldName::Host),
        referer: field(FieldName::Referer),
        user_agent: field(FieldName::UserAgent),
        duration,
        origin: origin_tried(origins, exchange),
        origin_first_byte: exchange
            .transaction
            .responded_at
            .map(|responded| responded.since(started)),
        client_path: conn.and_then(|conn| conn.wire.path_estimate(engine)),
        tls: tls_of(exchange, conn),
        cache: exchange.caching.log_word(),
        close_reason: close_reason(exchange, conn),
    };
    let format = exchange.snapshot().config.access_log.as_ref().map(|log| log.format);
    let format = format.expect("the caller has checked that there is a log");
    write_record(format, &record, dates, records);
}

/// Returns the path of the folder, and below it that of the file or script that was the response.
fn file_of(exchange: &Exchange) -> Option<[&[u8]; 2]> {
    let context = exchange.file.as_ref()?;
    let path = match (&context.script, &context.served) {
        (Some(script), _) => &script.path[..],
        (None, Some(file)) if !file.is_listing() => &file.path[..],
        (None, _) => return None,
    };
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan)?;
    Some([route.folder.as_ref()?.path.as_os_str().as_encoded_bytes(), path])
}

/// Returns the word for the reason; empty if there is none. A failure of the client's session is
/// more precise than that the client closed the connection.
fn close_reason(exchange: &Exchange, conn: Option<&Conn>) -> &'static str {
    match (exchange.reason, conn.and_then(|conn| conn.wire.session_failure())) {
        (None, _) => "",
        (Some(Reason::ClientClosed), Some(error)) => error.kind.word(),
        (Some(reason), _) => reason.word(),
    }
}

/// Returns TLS of the client connection. The name in the ClientHello of a tunnel replaces that of
/// the connection to the proxy.
fn tls_of<'a>(exchange: &'a Exchange, conn: Option<&'a Conn>) -> Option<LoggedTls<'a>> {
    let outer = conn.and_then(|conn| conn.wire.tls()).map(logged);
    match &exchange.peek {
        Some(peek) => {
            Some(LoggedTls { server_name: peek.server_name(), ..outer.unwrap_or_default() })
        }
        None => outer,
    }
}

/// Returns the address that was tried last, or the configured origin if no address was tried.
/// `None` if a forward proxy tried no address. The logged target names the origin then.
fn origin_tried<'a>(origins: &'a Origins, exchange: &Exchange) -> Option<LoggedOrigin<'a>> {
    let transaction = &exchange.transaction;
    if let Some(address) = transaction.address {
        return Some(LoggedOrigin::Tcp(address));
    }
    // The exchange holds the snapshot that names the origin, so the origin is in the table.
    Some(match origins.address(transaction.configured_origin?) {
        OriginAddress::Address(address) => LoggedOrigin::Tcp(*address),
        OriginAddress::Name(name, port) => LoggedOrigin::Name(name, *port),
        OriginAddress::Unix(path) => LoggedOrigin::Unix(path.as_os_str().as_encoded_bytes()),
    })
}

//! TLS in the access log, and the record of a handshake that failed.

use millrace_engine::{Engine, Key};
use millrace_tls::TlsErrorKind;

use crate::core::Core;
use crate::exchange::access_log::{LogBuffer, LoggedTls, Record, write_record};
use crate::secure::layer::SecureLayer;

/// Returns the properties of a session for the access log.
pub(crate) fn logged(tls: &SecureLayer) -> LoggedTls<'_> {
    let hello = tls.hello.as_deref();
    let offered = || hello.and_then(|hello| hello.alpn.first()).map(Vec::as_slice);
    let handshake = tls.session().handshake();
    LoggedTls {
        handshake,
        server_name: hello.and_then(|hello| hello.server_name.as_deref()),
        alpn: if handshake.is_some() { tls.session().alpn() } else { offered() },
    }
}

/// Counts a TLS handshake that failed, and records it as a request without a request line.
#[inline(never)]
pub(crate) fn record<E: Engine>(core: &mut Core<E>, key: Key, kind: TlsErrorKind) {
    core.counters.tls_handshakes_failed.add(kind);
    let (snapshot, _) = core.service_of_listener(core.conns.get(key).map_or(0, |it| it.listener));
    let Some(format) = snapshot.config.access_log.as_ref().map(|log| log.format) else { return };
    let Core { conns, log, engine, .. } = core;
    let LogBuffer { records, dates } = log;
    let Some(conn) = conns.get(key) else { return };
    let duration = engine.read_clock().since(conn.since);
    let record = Record {
        client: conn.client_address.map(|address| address.ip()),
        time_of_day: engine.time_of_day().saturating_sub(duration),
        duration,
        client_path: conn.wire.path_estimate(engine),
        tls: Some(conn.wire.tls().map_or_else(LoggedTls::default, logged)),
        close_reason: kind.word(),
        ..Record::default()
    };
    write_record(format, &record, dates, records);
}

//! TLS in the access log, and the record of a handshake that failed.

use millrace_engine::{Engine, Key};
use millrace_tls::{ClientHello, TlsErrorKind};

use crate::core::Core;
use crate::exchange::access_log::{LogBuffer, LoggedTls, Record, write_record};
use crate::secure::layer::SecureLayer;

/// Returns the properties of a session for the access log.
pub(crate) fn logged(tls: &SecureLayer) -> LoggedTls<'_> {
    let requested = tls.hello.as_deref().map_or_else(LoggedTls::default, logged_hello);
    match tls.session().handshake() {
        None => requested,
        handshake => LoggedTls {
            handshake,
            alpn: tls.session().alpn(),
            client_certificate: tls.client().map(|client| client.fingerprint()),
            ..requested
        },
    }
}

/// Returns what a client asked for in its ClientHello.
fn logged_hello(hello: &ClientHello) -> LoggedTls<'_> {
    LoggedTls {
        handshake: None,
        server_name: hello.server_name.as_deref(),
        alpn: hello.alpn.first().map(Vec::as_slice),
        client_certificate: None,
    }
}

/// Counts a TLS handshake that failed, and records it as a request without a request line. `hello`
/// is the ClientHello, if it is complete and no session has it.
#[inline(never)]
pub(crate) fn record<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    kind: TlsErrorKind,
    hello: Option<&ClientHello>,
) {
    core.counters.tls_handshakes_failed.add(kind);
    let (snapshot, _) = core.service_of_listener(core.conns.get(key).map_or(0, |it| it.listener));
    let Some(format) = snapshot.config.access_log.as_ref().map(|log| log.format) else { return };
    let Core { conns, log, engine, .. } = core;
    let LogBuffer { records, dates } = log;
    let Some(conn) = conns.get(key) else { return };
    let requested = || hello.map_or_else(LoggedTls::default, logged_hello);
    let tls = conn.wire.tls().map_or_else(requested, logged);
    let duration = engine.read_clock().since(conn.since);
    let record = Record {
        client: conn.client_address.map(|address| address.ip()),
        time_of_day: engine.time_of_day().saturating_sub(duration),
        duration,
        client_path: conn.wire.path_estimate(engine),
        tls: Some(tls),
        close_reason: kind.word(),
        ..Record::default()
    };
    write_record(format, &record, dates, records);
}

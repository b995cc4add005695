//! Stage secure: the TLS handshake of a client connection, between accept and parse.
//!
//! The name in the ClientHello selects the certificate. Key exchange and signature take about 0.1
//! ms, with an RSA key 0.7 ms, so a worker continues only a few handshakes in a turn, and the other
//! clients wait in order.

use millrace_engine::{Engine, Key};
use millrace_tls::{ClientHello, Peek, TlsErrorKind, peek};

use crate::conn::{ConnState, client};
use crate::core::Core;
use crate::exchange::stage::{Event, NextStep};
use crate::secure::layer::SecureLayer;
use crate::secure::{challenges, failure};

/// Handles an event of a connection whose handshake is in progress.
#[cold]
#[inline(never)]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    if event == Event::TimedOut {
        return fail(core, key, TlsErrorKind::TimedOut, None);
    }
    if core.conn(key).wire.tls().is_none()
        && let Some(next) = begin(core, key)
    {
        return next;
    }
    let signs_by_rsa = core.conn(key).wire.tls().is_some_and(|tls| tls.session().signs_by_rsa());
    // After a HelloRetryRequest only the second ClientHello has the key share, and with TLS 1.2 or
    // a certificate the second flight is as expensive.
    match core.secure.try_compute(key, event, signs_by_rsa) {
        true => advance(core, key),
        false => NextStep::Wait,
    }
}

/// Begins the session once the ClientHello is complete. Computes nothing yet. Returns the next step
/// if there is no session.
fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> Option<NextStep> {
    let hello = match peek(core.conn(key).wire.recv_buffer.bytes()) {
        Peek::Incomplete => {
            client::receive(core, key);
            return Some(NextStep::Wait);
        }
        Peek::Hello(hello) => hello,
        Peek::Failed { error, alert } => {
            core.conn(key).wire.own_bytes().extend_from_slice(&alert);
            return Some(fail(core, key, error.kind, None));
        }
    };
    let kind = start_session(core, key, &hello).err()?;
    if kind == TlsErrorKind::UnknownName {
        core.conn(key).wire.own_bytes().extend_from_slice(UNRECOGNIZED_NAME);
    }
    Some(fail(core, key, kind, Some(&hello)))
}

fn start_session<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    hello: &ClientHello,
) -> Result<(), TlsErrorKind> {
    update_ticket_keys(core);
    core.secure.clock.set(core.engine.time_of_day());
    let challenges = &core.shared.challenges;
    let challenge = challenges.settings(hello, &core.shared.tls_provider, &core.secure.clock);
    let session = match challenge.map_err(|error| error.kind)? {
        Some(settings) => settings.accept(hello),
        None => {
            let listener = core.conn(key).listener;
            let (snapshot, service) = core.service_of_listener(listener);
            // A reload may have taken TLS from the listener since the connection was accepted.
            snapshot.tls(service).ok_or(TlsErrorKind::Internal)?.accept(hello)
        }
    };
    let session = session.map_err(|error| error.kind)?;
    let buffers = core.secure.buffers.clone();
    core.conn(key).wire.secure(session, buffers, Some(hello.clone()));
    Ok(())
}

/// Applies the ticket keys if the supervisor has changed them.
fn update_ticket_keys<E: Engine>(core: &mut Core<E>) {
    let version = core.shared.ticket_keys.version();
    if core.secure.ticket_version != version {
        core.secure.ticket_version = version;
        // Retired listeners continue with the keys of their last snapshot.
        core.snapshot.set_ticket_keys(&core.shared.ticket_keys.keys());
    }
}

/// Continues the handshake with the bytes that have arrived.
fn advance<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    // The certificate of the client is verified at this time.
    core.secure.clock.set(core.engine.time_of_day());
    let Core { engine, conns, .. } = core;
    let Some(conn) = conns.get_mut(key) else { return NextStep::Wait };
    let now = engine.now();
    match conn.wire.advance_handshake(engine) {
        Ok(true) => {
            conn.wire.identify_client(engine);
            conn.set_state(ConnState::New, now);
            let session = conn.wire.tls().map(SecureLayer::session);
            let handshake = session.and_then(|session| session.handshake());
            let is_challenge = challenges::is_challenge(session.and_then(|it| it.alpn()));
            core.secure.in_progress -= 1;
            core.counters.tls_handshakes.add(1);
            if handshake.is_some_and(|handshake| handshake.is_resumed) {
                core.counters.tls_handshakes_resumed.add(1);
            }
            if is_challenge {
                client::linger(core, key);
                return NextStep::Wait;
            }
            NextStep::Reenter
        }
        Ok(false) => {
            client::receive(core, key);
            NextStep::Wait
        }
        Err(error) => fail(core, key, error.kind, None),
    }
}

/// Ends a connection whose handshake failed, after the client got an alert or, if it speaks HTTP
/// without TLS, a response. `hello` is the ClientHello, if it is complete and no session has it.
fn fail<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    kind: TlsErrorKind,
    hello: Option<&ClientHello>,
) -> NextStep {
    failure::record(core, key, kind, hello);
    core.secure.in_progress -= 1;
    let now = core.engine.now();
    let conn = core.conn(key);
    // It no longer counts as a handshake, even if it closes without lingering.
    conn.set_state(ConnState::New, now);
    let wire = &mut conn.wire;
    wire.abandon_session();
    if kind == TlsErrorKind::PlainHttp {
        wire.own_bytes().extend_from_slice(PLAIN_HTTP_RESPONSE);
    }
    client::linger(core, key);
    NextStep::Wait
}

/// The fatal alert unrecognized_name in a record (RFC 8446 section 6.2).
const UNRECOGNIZED_NAME: &[u8] = &[21, 3, 3, 0, 2, 2, 112];

/// The response to a request without TLS.
const PLAIN_HTTP_RESPONSE: &[u8] = b"HTTP/1.1 400 Bad Request\r\n\
    Content-Type: text/plain; charset=utf-8\r\n\
    Content-Length: 55\r\n\
    Connection: close\r\n\
    \r\n\
    This port speaks HTTPS: use https:// instead of http://";

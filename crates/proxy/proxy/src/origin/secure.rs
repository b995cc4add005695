//! The TLS handshake with an origin, between opening a connection and sending the request.

use std::time::Duration;

use millrace_engine::Engine;
use millrace_engine::Key;
use millrace_tls::{TlsError, TlsErrorKind};

use crate::core::{Core, ExchangeParts};
use crate::exchange::Reason;
use crate::origin::{OriginId, Phase, events, state::OriginState};

/// Begins the handshake on the connection that was just opened for the exchange. Returns false if
/// connections to this origin are plain.
///
/// # Errors
/// The reason why no session could begin.
pub(crate) fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> Result<bool, Reason> {
    let id = core.exchange(key).transaction.origin.expect("the origin was picked");
    match core.origins.state(id).server_name {
        None => Ok(false),
        Some(_) => begin_session(core, key, id).map(|()| true),
    }
}

#[inline(never)]
fn begin_session<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId) -> Result<(), Reason> {
    core.secure.clock.set(core.engine.time_of_day());
    let OriginState { rules, server_name, .. } = core.origins.state(id);
    let server_name = server_name.as_ref().expect("the caller has checked that it has one");
    let settings = core.origins.rules.client_settings(*rules);
    let settings = settings.expect("the rules of an origin with a server name have TLS settings");
    let session = settings.connect(server_name.clone()).map_err(|error| reason_of(&error))?;
    let buffers = core.secure.buffers.clone();
    let ExchangeParts { engine, timers, exchange, origin: Some(origin), .. } = core.parts(key)
    else {
        unreachable!("the connection was just opened");
    };
    let connect = Duration::from_millis(exchange.snapshot().limits().connect_ms);
    timers.bring_forward(origin.timer, exchange.transaction.awaiting_since + connect);
    exchange.transaction.phase = Phase::Securing;
    origin.wire.secure(session, buffers, None);
    origin.wire.settle(engine);
    origin.wire.receive(engine, events::RECEIVE_MAX);
    Ok(())
}

/// Continues the handshake with the bytes that have arrived. Returns true once it is complete.
///
/// # Errors
/// The reason why it failed.
pub(crate) fn advance<E: Engine>(core: &mut Core<E>, key: Key) -> Result<bool, Reason> {
    core.secure.clock.set(core.engine.time_of_day());
    let ExchangeParts { engine, counters, origin: Some(origin), .. } = core.parts(key) else {
        unreachable!("a handshake needs a connection");
    };
    match origin.wire.advance_handshake(engine) {
        Ok(true) => {
            let handshake = origin.wire.tls().and_then(|tls| tls.session().handshake());
            counters.origin_tls_handshakes.add(1);
            if handshake.is_some_and(|handshake| handshake.is_resumed) {
                counters.origin_tls_handshakes_resumed.add(1);
            }
            Ok(true)
        }
        Ok(false) => {
            origin.wire.receive(engine, events::RECEIVE_MAX);
            Ok(false)
        }
        Err(error) => Err(reason_of(&error)),
    }
}

fn reason_of(error: &TlsError) -> Reason {
    match error.kind {
        TlsErrorKind::Certificate
        | TlsErrorKind::CertificateMissing
        | TlsErrorKind::CertificateRevoked
        | TlsErrorKind::RevocationUnknown
        | TlsErrorKind::CertificateTime
        | TlsErrorKind::UnknownIssuer
        | TlsErrorKind::WrongName => Reason::OriginCertificateInvalid,
        _ => Reason::OriginTlsFailed,
    }
}

//! Lets a request on whose sender is known, or has a password compared first.

use std::sync::Arc;

use millrace_engine::{Engine, Key};
use millrace_http1::{Framing, Method, Name, connection_options};

use crate::auth::Access;
use crate::conn::{Conn, client};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Event, EventTarget, Exchange, Reason};

/// Whether the sender of a request is known to the service's file of users: true if it is, false
/// while the verifier compares a password.
///
/// # Errors
/// The reason to refuse the request.
pub(crate) fn admit<E: Engine>(core: &mut Core<E>, key: Key) -> Result<bool, Reason> {
    let Core { exchanges, conns, engine, authenticator, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the driver's exchange is there");
    match exchange.access {
        Access::Unchecked => {}
        // It has become the first of its connection meanwhile.
        Access::Verifying => return Ok(false),
        Access::Granted(_) => return Ok(true),
    }
    let snapshot = exchange.snapshot().clone();
    let auth = snapshot.service(exchange.service).auth.as_ref();
    let users = auth.and_then(|auth| auth.users.as_ref()).ok_or(Reason::AuthRequired);
    let conn = conns.get_mut(exchange.conn()).expect("an exchange has its connection");
    let judged = users.and_then(|users| {
        let value = single_value(exchange).ok_or(Reason::AuthRequired)?;
        let client = conn.client_address.map(|address| address.ip());
        authenticator.check(engine, snapshot.limits(), users, value, client, key)
    });
    match judged {
        Ok(Some(user)) => {
            exchange.access = Access::Granted(user);
            Ok(true)
        }
        Ok(None) => {
            exchange.access = Access::Verifying;
            if exchange.request.method() == Method::Connect {
                // What follows it meanwhile is to be seen before it is refused.
                client::receive_ahead(engine, conn);
            }
            Ok(false)
        }
        Err(reason) => {
            keep_open_for_credentials(exchange, nothing_follows(engine, conn), reason);
            Err(reason)
        }
    }
}

/// The verifier compared the password of an exchange, or took too long: the event that this is, if
/// the exchange still waits for it.
pub(crate) fn handle_result<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    result: &Result<Arc<[u8]>, Reason>,
) -> Option<(EventTarget, Event)> {
    // Its client may have left.
    core.exchanges.get(key).filter(|exchange| matches!(exchange.access, Access::Verifying))?;
    let ExchangeParts { exchange, client, engine, .. } = core.parts_with_client(key);
    let result = match result {
        Ok(user) => {
            exchange.access = Access::Granted(user.clone());
            Ok(())
        }
        Err(reason) => {
            exchange.access = Access::Unchecked;
            keep_open_for_credentials(exchange, nothing_follows(engine, client), *reason);
            Err(*reason)
        }
    };
    Some((EventTarget::Exchange(key), Event::Verified(result)))
}

/// The one Proxy-Authorization field; two of them would let two readers see two users.
fn single_value(exchange: &Exchange) -> Option<&[u8]> {
    let mut values = exchange.request.values(Name::ProxyAuthorization);
    let value = values.next();
    value.filter(|_| values.next().is_none())
}

/// Whether no byte was received behind the request, nor announced by the engine. Bytes that arrive
/// later are the next request: a client may send it as soon as it has read the refusal, before
/// the engine reports that the refusal was sent.
fn nothing_follows<E: Engine>(engine: &E, conn: &Conn) -> bool {
    conn.wire.recv_buffer.is_empty() && !conn.wire.is_announced(engine)
}

/// RFC 9110 section 11.7.1: a client is expected to repeat the request with credentials, so it may
/// do so on the same connection. Any other refusal of a CONNECT ends the connection, because bytes
/// behind the request were meant for the tunnel. So does this one if bytes were received behind it.
fn keep_open_for_credentials(exchange: &mut Exchange, nothing_follows: bool, reason: Reason) {
    let is_connect = exchange.request.method() == Method::Connect;
    if is_connect && reason.status() == 407 && nothing_follows {
        let options = connection_options(&exchange.request);
        exchange.is_persistent =
            exchange.framing == Framing::None && options.is_persistent(exchange.request.version());
    }
}

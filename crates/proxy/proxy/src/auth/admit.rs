//! Authenticates requests, by the worker's cache or by a request to the verifier.

use std::sync::Arc;

use millrace_engine::{Engine, Key};
use millrace_http1::{FieldName, Framing, Method, connection_options};

use crate::auth::Access;
use crate::conn::{Conn, client};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Event, EventTarget, Exchange, Reason};

/// Authenticates a request against the file of users of its service. Returns true if the request is
/// authenticated, and false while the verifier compares a password.
///
/// # Errors
/// The reason to refuse the request.
pub(crate) fn admit<E: Engine>(core: &mut Core<E>, key: Key) -> Result<bool, Reason> {
    let Core { exchanges, conns, engine, authenticator, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the driver's exchange is there");
    match exchange.access {
        Access::Unchecked => {}
        // The exchange has become the first of its connection while it waited.
        Access::Verifying => return Ok(false),
        Access::Granted(_) => return Ok(true),
    }
    let snapshot = exchange.snapshot().clone();
    let auth = snapshot.service(exchange.service).auth.as_ref();
    let users = auth.and_then(|auth| auth.users.as_ref()).ok_or(Reason::AuthRequired);
    let conn = conns.get_mut(exchange.conn()).expect("an exchange has its connection");
    let result = users.and_then(|users| {
        let value = single_value(exchange).ok_or(Reason::AuthRequired)?;
        let client = conn.client_address.map(|address| address.ip());
        authenticator.check(engine, snapshot.limits(), users, value, client, key)
    });
    match result {
        Ok(Some(user)) => {
            exchange.access = Access::Granted(user);
            Ok(true)
        }
        Ok(None) => {
            exchange.access = Access::Verifying;
            if exchange.request.method() == Method::Connect {
                // A refusal keeps the connection open only if no bytes follow the request. A
                // receive is needed to detect such bytes.
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

/// Handles the result of the verifier, or the end of the wait for it. Returns the event for the
/// exchange, if that still waits for the result.
pub(crate) fn handle_result<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    result: &Result<Arc<[u8]>, Reason>,
) -> Option<(EventTarget, Event)> {
    // The client may have closed its connection in the meantime.
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

/// Returns the value of Proxy-Authorization if there is exactly one such field. With two of them,
/// two recipients could see two different users.
fn single_value(exchange: &Exchange) -> Option<&[u8]> {
    let mut values = exchange.request.values(FieldName::ProxyAuthorization);
    let value = values.next();
    value.filter(|_| values.next().is_none())
}

/// Returns whether no byte after the request was received, as far as the engine knows. Bytes that
/// arrive later are the next request: a client may send it as soon as it has read the refusal,
/// before the engine reports that the refusal was sent.
fn nothing_follows<E: Engine>(engine: &E, conn: &Conn) -> bool {
    conn.wire.recv_buffer.is_empty() && !conn.wire.is_recv_ready(engine)
}

/// Keeps the connection open after a 407 to a CONNECT, so that the client can repeat the request
/// with credentials on the same connection (RFC 9110 section 11.7.1). Any other refusal of a
/// CONNECT closes the connection, because bytes after the request were meant for the tunnel. A 407
/// closes it too if such bytes were received.
fn keep_open_for_credentials(exchange: &mut Exchange, nothing_follows: bool, reason: Reason) {
    let is_connect = exchange.request.method() == Method::Connect;
    if is_connect && reason.status() == 407 && nothing_follows {
        let options = connection_options(&exchange.request);
        exchange.is_persistent =
            exchange.framing == Framing::None && options.is_persistent(exchange.request.version());
    }
}

//! Pinned connections: connections to origins that began with a PROXY protocol header. The header
//! names one client connection, so only requests of that client connection may follow. A pinned
//! connection that becomes idle waits for its client connection, and is closed with it.

use millrace_engine::{Engine, Key};
use millrace_http1::ProxyHeader;

use crate::core::{Core, ExchangeParts};
use crate::exchange::Exchange;
use crate::origin::{Origins, close::close};
use millrace_config::SendProxy;

/// Returns the version of the PROXY header with which connections of the exchange's route begin.
fn send_proxy(exchange: &Exchange) -> SendProxy {
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    route.map_or(SendProxy::Off, |route| route.send_proxy)
}

/// Returns the client connection to which the origin connection of the exchange has to be pinned,
/// if any.
#[inline]
pub(crate) fn required_client(exchange: &Exchange) -> Option<Key> {
    let may_send = exchange.snapshot().sends_proxy;
    exchange.conn.filter(|_| may_send && requires_pinning(exchange))
}

/// Returns whether origin connections of the exchange are pinned to its client connection.
pub(crate) fn requires_pinning(exchange: &Exchange) -> bool {
    send_proxy(exchange) != SendProxy::Off
}

/// Writes the PROXY header to the connection that was just opened for the exchange, and pins the
/// connection, if the route requires it.
pub(crate) fn write_header<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { engine, exchange, client, origin, .. } = core.parts(key);
    let (Some(client), Some(origin)) = (client, origin) else { return };
    let write = match send_proxy(exchange) {
        SendProxy::Off => return,
        SendProxy::V1 => ProxyHeader::write_v1,
        SendProxy::V2 => ProxyHeader::write_v2,
    };
    let destination = client.destination(engine);
    write(&ProxyHeader { source: client.client_address, destination }, origin.wire.own_bytes());
    origin.pinned_to = exchange.conn;
}

/// Records an idle connection that is pinned to the client connection `client`.
pub(crate) fn note_idle(origins: &mut Origins, slot: Key, client: Key) {
    let Origins { pinned, connections, .. } = origins;
    let idle = pinned.entry(client).or_default();
    // Drop stale entries, so that a client connection that stays open for days has no more entries
    // than idle connections.
    idle.retain(|&other| other != slot && connections.get(other).is_some());
    idle.push(slot);
}

/// Closes the idle connections that are pinned to a client connection that ends.
pub(crate) fn close_pinned_to<E: Engine>(core: &mut Core<E>, conn: Key) {
    if core.origins.pinned.is_empty() {
        return;
    }
    for slot in core.origins.pinned.remove(&conn).unwrap_or_default() {
        let connection = core.origins.connections.get(slot);
        if connection.is_some_and(|it| it.is_idle() && it.pinned_to == Some(conn)) {
            close(core, slot);
        }
    }
}

//! Connections to origins that began with a PROXY protocol header. It names one client connection,
//! so only that one's requests may follow: such a connection is kept, if at all, for the client
//! connection that it was opened for, and ends with it.

use millrace_engine::{Engine, Key};
use millrace_http1::ProxyHeader;

use crate::core::{Core, ExchangeParts};
use crate::exchange::Exchange;
use crate::origin::{Origins, close::close};
use millrace_config::SendProxy;

/// The header that connections of the exchange's route begin with.
fn send_proxy(exchange: &Exchange) -> SendProxy {
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    route.map_or(SendProxy::Off, |route| route.send_proxy)
}

/// The client connection that a connection to an origin of the exchange has to be pinned to, if
/// any.
#[inline]
pub(crate) fn required_client(exchange: &Exchange) -> Option<Key> {
    let may_send = exchange.snapshot().sends_proxy;
    exchange.conn.filter(|_| may_send && requires_pinning(exchange))
}

/// Whether connections to origins are pinned to one client.
pub(crate) fn requires_pinning(exchange: &Exchange) -> bool {
    send_proxy(exchange) != SendProxy::Off
}

/// Begins a connection that was just opened for the exchange with the header, if its route asks for
/// one.
pub(crate) fn write_header<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { engine, exchange, client, origin, .. } = core.parts(key);
    let (Some(client), Some(origin)) = (client, origin) else { return };
    let write = match send_proxy(exchange) {
        SendProxy::Off => return,
        SendProxy::V1 => ProxyHeader::write_v1,
        SendProxy::V2 => ProxyHeader::write_v2,
    };
    let destination = client.destination.or_else(|| client.wire.local_address(engine));
    write(&ProxyHeader { source: client.client_address, destination }, origin.wire.own_bytes());
    origin.pinned_to = exchange.conn;
}

/// Notes that a connection is idle that is pinned to the client connection `owner`.
pub(crate) fn note_idle(origins: &mut Origins, slot: Key, owner: Key) {
    let Origins { pinned, connections, .. } = origins;
    let idle = pinned.entry(owner).or_default();
    // So a client that stays for days has no more entries than connections.
    idle.retain(|&other| other != slot && connections.get(other).is_some());
    idle.push(slot);
}

/// Closes what is idle and pinned to a client connection that ends.
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

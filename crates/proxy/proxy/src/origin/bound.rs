//! Connections to origins that began with a PROXY protocol header. It names one client connection,
//! so only that one's requests may follow: such a connection is kept, if at all, for the client
//! connection that it was opened for, and ends with it.

use std::collections::HashMap;

use millrace_config::{Role, SendProxy};
use millrace_engine::{Engine, Key};
use millrace_http1::ProxyHeader;

use crate::exchange::{Exchange, Plan};
use crate::origin::Use;
use crate::worker::Worker;

/// Kept connections by the client connection that they are bound to. An entry may be stale: its
/// connection in use again, or gone.
pub(crate) type Bound = HashMap<Key, Vec<Key>>;

/// The header that connections of the exchange's route begin with.
fn send_proxy(exchange: &Exchange) -> SendProxy {
    match (&exchange.snapshot().service(exchange.service).role, exchange.plan) {
        (Role::Boost(routes), Plan::Route(index)) => routes[index as usize].send_proxy,
        _ => SendProxy::Off,
    }
}

/// The client connection that a connection to an origin of the exchange has to be bound to, if any.
#[inline]
pub(crate) fn owner(exchange: &Exchange) -> Option<Key> {
    let may_send = exchange.snapshot().sends_proxy;
    (may_send && binds(exchange)).then(|| exchange.conn())
}

/// Whether connections to origins are bound to one client.
pub(crate) fn binds(exchange: &Exchange) -> bool {
    send_proxy(exchange) != SendProxy::Off
}

/// Begins `worker.out`, which is empty, with the header for a connection that was just opened for
/// the exchange, if its route asks for one.
pub(crate) fn write_header<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Worker { conns, engine, out, origins, exchanges, .. } = worker;
    let exchange = exchanges.get(key).expect("the caller's exchange is under way");
    let version = send_proxy(exchange);
    if version == SendProxy::Off {
        return;
    }
    let conn_key = exchange.conn();
    let conn = conns.get(conn_key).expect("an exchange has its connection");
    let destination = conn.reached.or_else(|| engine.address_reached(&conn.fd));
    let header = ProxyHeader { source: conn.client, destination };
    match version {
        SendProxy::V1 => header.write_v1(out),
        SendProxy::V2 => header.write_v2(out),
        SendProxy::Off => unreachable!("looked at above"),
    }
    let slot = exchange.transaction.connection.expect("it was just opened");
    origins.connections.get_mut(slot).expect("held by the exchange").owner = Some(conn_key);
}

/// Notes that a connection was kept that is bound to the client connection `owner`.
pub(crate) fn note_kept<E: Engine>(worker: &mut Worker<E>, slot: Key, owner: Key) {
    let Worker { bound, origins, .. } = worker;
    let connections = &origins.connections;
    let kept = bound.entry(owner).or_default();
    // So a client that stays for days has no more entries than connections.
    kept.retain(|&other| other != slot && connections.get(other).is_some());
    kept.push(slot);
}

/// Closes what was kept for a client connection that ends.
pub(crate) fn client_left<E: Engine>(worker: &mut Worker<E>, conn: Key) {
    if worker.bound.is_empty() {
        return;
    }
    for slot in worker.bound.remove(&conn).unwrap_or_default() {
        let connection = worker.origins.connections.get(slot);
        if connection.is_some_and(|it| it.used_for == Use::Idle && it.owner == Some(conn)) {
            worker.close_origin(slot);
        }
    }
}

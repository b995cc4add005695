//! Tunnels: CONNECT, and protocols switched to by Upgrade. Two transfers without framing, each
//! ended by the end of its source's stream, which is passed on as such: a half-closed tunnel goes
//! on in the other direction. It ends when both directions have, or when either side breaks.

use millrace_event::{Engine, HowToShut, Key, Kind};
use millrace_http::Framing;

use crate::stage::{deliver, fetch};
use crate::transfer::Waits;
use crate::worker::Worker;

/// Starts both directions, with the bytes already received on either side. The head in `worker.out`
/// goes to the client first.
pub(crate) fn begin<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    worker.counters.tunnels.add(1);
    let exchange = worker.exchange(key);
    exchange.tunnel = true;
    exchange.persistent = false;
    exchange.upload.start(Framing::UntilClose, false, now);
    exchange.download.start(Framing::UntilClose, false, now);
    deliver::download(worker, key, true);
    // Nothing above ends the exchange: both directions have only begun, and failures come later.
    fetch::upload(worker, key, false);
}

/// The client ended its direction.
pub(crate) fn client_ended<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Worker { engine, exchanges, origins, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let slot = exchange.transaction.connection.expect("a tunnel has both connections");
    let origin = origins.connections.get(slot).expect("held by the exchange");
    let sink = (&origin.fd, slot.token(Kind::Origin));
    let ended = exchange.upload.source_ended(engine, sink);
    assert_eq!(ended, Ok(Waits::Ended), "a tunnel's end needs no byte");
    engine.shutdown(&origin.fd, HowToShut::Write);
    deliver::finish_if_done(worker, key);
}

/// The origin ended its direction.
pub(crate) fn origin_ended<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Worker { engine, exchanges, conns, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let conn_key = exchange.conn();
    let conn = conns.get(conn_key).expect("an exchange has its connection");
    let ended = exchange.download.source_ended(engine, (&conn.fd, conn_key.token(Kind::Client)));
    assert_eq!(ended, Ok(Waits::Ended), "a tunnel's end needs no byte");
    engine.shutdown(&conn.fd, HowToShut::Write);
    deliver::finish_if_done(worker, key);
}

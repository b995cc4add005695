//! Stage accept: a listener's connection becomes a `Conn`, or is refused before it costs anything.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use millrace_event::{Engine, Error, Fd, Key, Kind};
use millrace_http::{HeadScan, parse_proxy_header};

use crate::clients::Client;
use crate::conn::{Conn, Standing};
use crate::input::Input;
use crate::letter::{HandedOver, Letter};
use crate::stage::parse;
use crate::worker::Worker;

/// What a listener gave; the slot of `key` is its number.
pub(crate) fn handle<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    accepted: Result<(Fd, Option<SocketAddr>), Error>,
) {
    match accepted {
        Ok((fd, peer)) => {
            worker.counters.connections_accepted.add(1);
            worker.accepting.came(key);
            let listener = key.slot as u16;
            if let Some(fd) = hand_over(worker, fd, peer, listener) {
                admit(worker, fd, peer, listener);
            }
        }
        Err(error) => {
            worker.accepting.disarmed(key);
            worker.pause_accepting(&format!("cannot accept: {error}"));
            if error == Error::OutOfDescriptors {
                worker.room.missed.descriptors = true;
            }
        }
    }
}

/// Takes a connection in: one that this worker accepted, or was handed.
pub(crate) fn admit<E: Engine>(
    worker: &mut Worker<E>,
    fd: Fd,
    peer: Option<SocketAddr>,
    listener: u16,
) {
    let now = worker.engine.now();
    let peer = peer.map(canonical);
    if !worker.knows_listener(listener) {
        // It left the configuration while the connection was on its way here.
        worker.counters.connections_refused.add(1);
        worker.engine.reset(fd);
        return;
    }
    let limits = worker.snapshot.limits();
    let per_client = limits.connections_per_client;
    let counted_as = peer.map(|peer| Client::of(peer.ip(), limits.client_ipv6_prefix));
    if !worker.clients.admit(counted_as, per_client) {
        worker.counters.connections_refused.add(1);
        worker.engine.reset(fd);
        return;
    }
    let Some(key) = worker.conns.next_key() else {
        // Accepting has paused before the table filled; what was accepted until then still comes.
        worker.clients.leave(counted_as);
        worker.counters.connections_refused.add(1);
        worker.engine.reset(fd);
        return;
    };
    let snapshot = worker.serving(listener).0.clone();
    let configured = snapshot.listener(listener).expect("it is served by this snapshot");
    if let Some(name) = snapshot.client_congestion(configured).of_accepted(peer) {
        worker.engine.set_congestion(&fd, name);
    }
    let timer = worker.timers.insert(key.token(Kind::Client), now + worker.snapshots.client_check);
    let proxied = configured.proxy_protocol;
    worker.snapshots.note_came(listener);
    worker.conns.insert(Conn {
        fd,
        input: Input::Empty,
        client: peer,
        reached: None,
        peer,
        counted_as,
        standing: if proxied { Standing::Greeting } else { Standing::Fresh },
        since: now,
        timer,
        scan: HeadScan::default(),
        first: None,
        last: None,
        under_way: 0,
        listener,
        receiving: false,
        sending: false,
        ended: false,
        broken: false,
    });
    worker.counters.connections.set(worker.conns.len() as u64);
    worker.receive_client(key);
    worker.make_room_for_clients();
}

/// Gives a connection to the worker with the fewest, where that is far below ours. Gives it back if
/// it stays here.
fn hand_over<E: Engine>(
    worker: &mut Worker<E>,
    fd: Fd,
    peer: Option<SocketAddr>,
    listener: u16,
) -> Option<Fd> {
    // Those on their way count as well: a worker that is slow to read its letters must not find
    // more of them than it has room for.
    let open = |index: usize| {
        let counters = &worker.shared.counters[index];
        counters.connections.get() as usize + counters.handed_over.load(Ordering::Relaxed)
    };
    let mine = worker.conns.len();
    let least = (0..worker.shared.counters.len()).min_by_key(|&index| open(index))?;
    let theirs = open(least);
    let most = worker.connections_max().min(worker.descriptors_for_clients());
    let is_even = mine < theirs * 5 / 4 + HAND_OVER_LEAD;
    if worker.draining || least == worker.index || is_even || theirs >= most {
        return Some(fd);
    }
    let socket = worker.engine.detach(fd);
    let snapshot = worker.snapshot.config.number;
    let counted = HandedOver::new(&worker.shared.counters[least]);
    let letter = Letter::Connection { socket, peer, listener, snapshot, counted };
    match worker.mail.send(least, letter) {
        Ok(()) => {
            worker.counters.connections_handed_over.add(1);
            None
        }
        Err(Letter::Connection { socket, .. }) => worker.engine.adopt(socket).ok(),
        Err(_) => unreachable!("the letter that comes back is the one that was sent"),
    }
}

/// Reads the PROXY protocol header that must come first. It is believed only from a trusted peer.
pub(crate) fn greet<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    let listener = worker.conn(key).listener;
    let (snapshot, service) = worker.serving(listener);
    let snapshot = snapshot.clone();
    let conn = worker.conn(key);
    let peer = conn.peer.map(|address| address.ip());
    let trusted = crate::admission::is_trusted(snapshot.service(service), peer);
    match parse_proxy_header(conn.input.bytes()) {
        Ok(Some((length, header))) if trusted => {
            conn.input.consume(length);
            if let Some(source) = header.source {
                (conn.client, conn.reached) = (Some(canonical(source)), header.destination);
            }
            conn.stand(Standing::Fresh, now);
            parse::run(worker, key);
        }
        Ok(None) if trusted => worker.receive_client(key),
        _ => {
            worker.counters.connections_refused.add(1);
            worker.close_conn(key);
        }
    }
}

/// The same address, where a listener of both families has an IPv4 client as an IPv6 address
/// (`::ffff:192.0.2.1`): origins, logs and limits know it as the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A worker hands a connection over when it has a quarter more than the least loaded one, and this
/// many beside: below, moving costs more than it evens out.
const HAND_OVER_LEAD: usize = 16;

//! Stage accept: a connection of a listener becomes a `Conn`, or is refused before it takes
//! resources.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use millrace_engine::{Engine, Error, Fd, Key, TokenKind};
use millrace_http1::parse_proxy_header;

use crate::conn::h1::Pipeline;
use crate::conn::wire::Wire;
use crate::conn::{Conn, ConnState, client};
use crate::core::Core;
use crate::exchange::stage::{Event, NextStep};
use crate::overload::capacity;
use crate::overload::per_client::ClientPrefix;
use crate::worker::message::{HandoverGuard, WorkerMessage};

/// Handles an event of a listener, or of a connection that has to begin with a PROXY protocol
/// header.
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match event {
        Event::Accepted => {
            handle_accepted(core, key);
            NextStep::Wait
        }
        Event::HandedOver => {
            if let Some(Ok((fd, peer))) = core.listeners.accepted.take() {
                admit(core, fd, peer, key.slot as u16);
            }
            NextStep::Wait
        }
        Event::TimedOut => {
            client::close(core, key);
            NextStep::Wait
        }
        _ => read_proxy_header(core, key),
    }
}

/// Handles the result of an accept: a connection, or the error that stopped the listener.
fn handle_accepted<E: Engine>(core: &mut Core<E>, key: Key) {
    match core.listeners.accepted.take() {
        Some(Ok((fd, peer))) => {
            core.counters.connections_accepted.add(1);
            core.listeners.note_accepted(key);
            let listener = key.slot as u16;
            if let Some(fd) = hand_over(core, fd, peer, listener) {
                admit(core, fd, peer, listener);
            }
        }
        Some(Err(error)) => {
            core.listeners.note_disarmed(key);
            capacity::pause_accepting(core, &format!("cannot accept: {error}"));
            if error == Error::OutOfDescriptors {
                core.overload.unmet.descriptors = true;
            }
        }
        None => {}
    }
}

/// Admits a connection that this worker accepted or received from another worker, or refuses it.
fn admit<E: Engine>(core: &mut Core<E>, fd: Fd, peer: Option<SocketAddr>, listener: u16) {
    let now = core.engine.now();
    let peer = peer.map(canonical);
    let limits = core.snapshot.limits();
    let per_client = limits.connections_per_client;
    let counted_as = peer.map(|peer| ClientPrefix::of(peer.ip(), limits.client_ipv6_prefix));
    // The listener may have left the configuration while the connection was handed over.
    let is_known =
        core.snapshot.listener(listener).is_some() || core.snapshots.is_removed(listener);
    let has_room = is_known && !(is_flooded(core) && core.is_secured(listener));
    if !has_room || !core.overload.clients.admit(counted_as, per_client) {
        return refuse(core, fd);
    }
    let Some(key) = core.conns.next_key() else {
        // Accepting pauses before the table is full, but the engine may have accepted more
        // connections before it learned of the pause.
        core.overload.clients.release(counted_as);
        return refuse(core, fd);
    };
    let snapshot = core.service_of_listener(listener).0.clone();
    let configured = snapshot.listener(listener).expect("this snapshot serves the listener");
    if let Some(name) = snapshot.client_congestion(configured).for_accepted(peer) {
        core.engine.set_congestion(&fd, name);
    }
    let token = key.token(TokenKind::Client);
    let timer = core.timers.insert(token, now + core.snapshots.client_timer_max);
    let (proxied, secured) = (configured.proxy_protocol, configured.tls);
    core.secure.in_progress += usize::from(secured && !proxied);
    core.snapshots.add_connection(listener);
    core.conns.insert(Conn {
        wire: Wire::new(fd, token),
        client_address: peer,
        destination: None,
        peer,
        counted_as,
        state: if proxied { ConnState::ProxyHeader } else { state_after_proxy_header(secured) },
        is_quiet: false,
        undelivered: 0,
        since: now,
        timer,
        pipeline: Pipeline::default(),
        listener,
    });
    core.counters.connections.set(core.conns.len() as u64);
    client::receive(core, key);
    capacity::prepare_for_next_client(core);
}

/// Returns the state of a connection that has no PROXY header, or whose PROXY header is read.
fn state_after_proxy_header(secured: bool) -> ConnState {
    if secured { ConnState::Handshake } else { ConnState::New }
}

/// Returns whether this worker has its share of handshakes in progress.
fn is_flooded<E: Engine>(core: &Core<E>) -> bool {
    let in_progress = core.secure.in_progress;
    let max = core.snapshot.limits().handshakes;
    in_progress > 0 && in_progress >= core.share_per_worker(max)
}

fn refuse<E: Engine>(core: &mut Core<E>, fd: Fd) {
    core.counters.connections_refused.add(1);
    core.engine.reset(fd);
}

/// Hands a connection over to the worker with the fewest connections, if that worker has far fewer
/// than this one. Returns the connection if it stays here.
fn hand_over<E: Engine>(
    core: &mut Core<E>,
    fd: Fd,
    peer: Option<SocketAddr>,
    listener: u16,
) -> Option<Fd> {
    // Connections in transit count as well. Otherwise a worker that is slow to read its messages
    // would be sent more connections than it can admit.
    let open = |index: usize| {
        let counters = &core.shared.counters[index];
        counters.connections.get() as usize + counters.handed_over.load(Ordering::Relaxed)
    };
    let mine = core.conns.len();
    let least = (0..core.shared.counters.len()).min_by_key(|&index| open(index))?;
    let theirs = open(least);
    let most = core.overload.connections_max.min(capacity::client_descriptors_max(core));
    let is_even = mine < theirs * 5 / 4 + HAND_OVER_LEAD;
    if core.drain.is_draining || least == core.index || is_even || theirs >= most {
        return Some(fd);
    }
    let socket = core.engine.detach(fd);
    let snapshot = core.snapshot.config.number;
    let counted = HandoverGuard::new(&core.shared.counters[least]);
    let message = WorkerMessage::Connection { socket, peer, listener, snapshot, counted };
    match core.mail.send(least, message) {
        Ok(()) => {
            core.counters.connections_handed_over.add(1);
            None
        }
        Err(WorkerMessage::Connection { socket, .. }) => core.engine.adopt(socket).ok(),
        Err(_) => unreachable!("the message that is returned is the one that was sent"),
    }
}

/// Reads the PROXY protocol header, which has to come first. Only a trusted peer may send one.
fn read_proxy_header<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let now = core.engine.now();
    let listener = core.conn(key).listener;
    let (snapshot, service) = core.service_of_listener(listener);
    let snapshot = snapshot.clone();
    let secured = snapshot.listener(listener).is_some_and(|listener| listener.tls);
    let is_flooded = secured && is_flooded(core);
    let conn = core.conn(key);
    let peer = conn.peer.map(|address| address.ip());
    let trusted = crate::admission::is_trusted(snapshot.service(service), peer);
    match parse_proxy_header(conn.wire.recv_buffer.bytes()) {
        Ok(Some((length, header))) if trusted && !is_flooded => {
            conn.wire.recv_buffer.consume(length);
            if let Some(source) = header.source {
                (conn.client_address, conn.destination) =
                    (Some(canonical(source)), header.destination.map(canonical).map(Box::new));
            }
            conn.set_state(state_after_proxy_header(secured), now);
            core.secure.in_progress += usize::from(secured);
            return NextStep::Reenter;
        }
        Ok(None) if trusted => client::receive(core, key),
        _ => {
            core.counters.connections_refused.add(1);
            client::close(core, key);
        }
    }
    NextStep::Wait
}

/// Returns an IPv4-mapped IPv6 address (`::ffff:192.0.2.1`) as the IPv4 address, and other
/// addresses unchanged. A dual-stack listener reports IPv4 clients as mapped addresses; origins,
/// logs and limits see the IPv4 address.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// A worker hands a connection over if it has a quarter more connections than the least loaded
/// worker, plus this many. Below that, moving a connection costs more than the better balance
/// saves.
const HAND_OVER_LEAD: usize = 16;

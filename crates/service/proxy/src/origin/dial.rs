//! Opening a connection to an origin: its addresses are raced (RFC 8305), each is admitted right
//! before it is connected to, and the first that answers is taken.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use millrace_event::{Address, Engine, Error, Fd, Instant, Key, Kind, TimerId};

use crate::admission::{self, Denied};
use crate::config::Role;
use crate::names::{Attempt as Next, Race};
use crate::origin::{OriginConn, Phase};
use crate::reason::Reason;
use crate::stage::fetch;
use crate::worker::Worker;

/// A connection being opened for an exchange.
#[derive(Debug)]
pub(crate) struct Dial {
    /// `None`: a Unix socket, which has one address.
    race: Option<Race>,
    port: u16,
    /// Attempts under way.
    attempts: Vec<Key>,
    started: Instant,
    /// Why the latest attempt failed.
    failure: Reason,
}

impl Dial {
    /// An attempt came to nothing.
    fn lose(&mut self, reason: Reason) {
        self.failure = reason;
        if let Some(race) = &mut self.race {
            race.failed();
        }
    }
}

/// One address being connected to.
#[derive(Debug)]
pub(crate) struct Attempt {
    fd: Fd,
    /// `None`: a Unix socket.
    address: Option<SocketAddr>,
    exchange: Key,
    timer: TimerId,
}

/// Starts to race `addresses` for the exchange.
pub(crate) fn race<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    addresses: Arc<[std::net::IpAddr]>,
    port: u16,
) {
    begin(worker, key, Some(Race::new(addresses)), port);
    next_attempts(worker, key);
}

/// Connects to the Unix socket at `path` for the exchange.
pub(crate) fn unix<E: Engine>(worker: &mut Worker<E>, key: Key, path: Arc<std::path::Path>) {
    begin(worker, key, None, 0);
    if let Err(error) = attempt(worker, key, &Address::Unix(path)) {
        failed(worker, key, reason_of(error));
    }
}

fn begin<E: Engine>(worker: &mut Worker<E>, key: Key, race: Option<Race>, port: u16) {
    let started = worker.engine.now();
    let transaction = &mut worker.exchange(key).transaction;
    transaction.phase = Phase::Dialing;
    transaction.dial = Some(Box::new(Dial {
        race,
        port,
        attempts: Vec::new(),
        started,
        failure: Reason::ConnectFailed,
    }));
}

/// Starts what the race asks for, until it says to wait or is lost.
fn next_attempts<E: Engine>(worker: &mut Worker<E>, key: Key) {
    loop {
        let now = worker.engine.now();
        let dial = worker.dial(key);
        let reason = dial.failure;
        let target = match dial.race.as_mut().map(|race| race.next_attempt(now)) {
            None | Some(Next::Exhausted) => return failed(worker, key, reason),
            Some(Next::WaitUntil(_) | Next::Wait) => return,
            Some(Next::Start(ip)) => SocketAddr::new(ip, dial.port),
        };
        let started = admit(worker, key, target)
            .and_then(|()| attempt(worker, key, &Address::Tcp(target)).map_err(reason_of));
        if let Err(reason) = started {
            worker.dial(key).lose(reason);
        }
    }
}

/// The last check before the address is connected to; nothing is resolved again after it.
fn admit<E: Engine>(worker: &mut Worker<E>, key: Key, target: SocketAddr) -> Result<(), Reason> {
    let exchange = worker.exchange(key);
    let snapshot = exchange.snapshot();
    match &snapshot.service(exchange.service).role {
        Role::Boost(_) => Ok(()),
        Role::Forward(rules) => {
            admission::may_reach(rules, &snapshot.own, target).map_err(|denied| match denied {
                Denied::Port => Reason::PortDenied,
                _ => Reason::TargetDenied,
            })
        }
    }
}

fn attempt<E: Engine>(worker: &mut Worker<E>, key: Key, address: &Address) -> Result<(), Error> {
    let now = worker.engine.now();
    let wait = connect_max(worker, key);
    if !has_room(worker) {
        return Err(Error::OutOfDescriptors);
    }
    let slot = worker.attempts.next_key().expect("there is room");
    let token = slot.token(Kind::Dial);
    let fd = worker.engine.connect(address, token)?;
    let exchange = worker.exchange(key);
    let (snapshot, service) = (exchange.snapshot().clone(), exchange.service);
    if let Some(name) = snapshot.origin_congestion(service).of_opened(address) {
        worker.engine.set_congestion(&fd, name);
    }
    let timer = worker.timers.insert(token, now + wait.min(Race::DELAY));
    let address = match address {
        Address::Tcp(address) | Address::Udp(address) => Some(*address),
        Address::Unix(_) => None,
    };
    worker.exchange(key).transaction.address = address;
    worker.attempts.insert(Attempt { fd, address, exchange: key, timer });
    worker.dial(key).attempts.push(slot);
    Ok(())
}

/// How long the exchange's connection may take to open.
fn connect_max<E: Engine>(worker: &mut Worker<E>, key: Key) -> Duration {
    Duration::from_millis(worker.exchange(key).snapshot().limits().connect_ms)
}

/// Makes room for one more connection by closing kept ones, the oldest first.
fn has_room<E: Engine>(worker: &mut Worker<E>) -> bool {
    while worker.room_for_origins() == 0 {
        let Some(oldest) = worker.origins.oldest_idle() else { return false };
        worker.close_origin(oldest);
    }
    true
}

/// The engine says how an attempt ended.
pub(crate) fn handle_connected<E: Engine>(
    worker: &mut Worker<E>,
    slot: Key,
    result: Result<(), Error>,
) {
    let now = worker.engine.now();
    let Some(attempt) = worker.attempts.remove(slot) else { return };
    worker.timers.remove(attempt.timer);
    let key = attempt.exchange;
    let (fd, address) = (attempt.fd, attempt.address);
    let dial = worker.dial(key);
    dial.attempts.retain(|&other| other != slot);
    if let Err(error) = result {
        dial.lose(reason_of(error));
        worker.engine.close(fd);
        next_attempts(worker, key);
        return;
    }
    abandon(worker, key);
    let origin = worker.exchange(key).transaction.origin.expect("picked before it was dialed");
    let slot = worker.origins.connections.next_key().expect("the attempt's room is now its own");
    let timer = worker.timers.insert(slot.token(Kind::Origin), now + worker.snapshots.origin_check);
    worker.origins.connections.insert(OriginConn::new(fd, origin, address, key, timer));
    worker.counters.origin_connections_opened.add(1);
    let transaction = &mut worker.exchange(key).transaction;
    (transaction.connection, transaction.reused) = (Some(slot), false);
    // What was noted for it is the connection's from now on.
    transaction.opens = false;
    fetch::connected(worker, key);
}

/// An attempt's timer is due: another address joins the race, or the time is over.
pub(crate) fn handle_deadline<E: Engine>(worker: &mut Worker<E>, slot: Key) {
    let now = worker.engine.now();
    let attempt = worker.attempts.get(slot).expect("a timer lives no longer than its attempt");
    let (key, timer) = (attempt.exchange, attempt.timer);
    let wait = connect_max(worker, key);
    let deadline = worker.dial(key).started + wait;
    if now >= deadline {
        failed(worker, key, Reason::ConnectTimedOut);
    } else {
        worker.timers.set(timer, deadline);
        if worker.dial(key).race.is_some() {
            next_attempts(worker, key);
        }
    }
}

fn failed<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    abandon(worker, key);
    fetch::connect_failed(worker, key, reason);
}

/// Ends every attempt of the exchange.
pub(crate) fn abandon<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Some(dial) = worker.exchange(key).transaction.dial.take() else { return };
    for slot in dial.attempts {
        let attempt = worker.attempts.remove(slot).expect("listed while under way");
        worker.timers.remove(attempt.timer);
        worker.engine.close(attempt.fd);
    }
}

fn reason_of(error: Error) -> Reason {
    match error {
        Error::TimedOut => Reason::ConnectTimedOut,
        Error::OutOfDescriptors | Error::OutOfMemory => Reason::Overloaded,
        Error::Unreachable => Reason::OriginUnreachable,
        _ => Reason::ConnectFailed,
    }
}

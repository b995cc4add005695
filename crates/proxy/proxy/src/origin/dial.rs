//! Opens connections to origins. The addresses of an origin are raced (RFC 8305), each one is
//! checked against the target rules right before connect(2), and the first connection wins.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Address, Engine, Error, Key, TokenKind};

use crate::admission::{self, Denied};
use crate::conn::wire::Wire;
use crate::core::Core;
use crate::exchange::{Event, EventTarget, Reason};
use crate::origin::attempt::{ConnectAttempt, Dial};
use crate::origin::{ConnectionUser, OriginConn, Phase, close::close, fastcgi};
use crate::overload::capacity;
use millrace_config::ServiceRole;
use millrace_dns::{NextAttempt, Race};

/// Starts to race `addresses` to open a connection for the exchange.
///
/// # Errors
/// The reason why no attempt could be started.
pub(crate) fn start_race<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    addresses: Arc<[IpAddr]>,
    port: u16,
) -> Result<(), Reason> {
    start_dial(core, key, Some(Race::new(addresses)), port);
    start_attempts(core, key)
}

/// Connects to the Unix socket at `path` for the exchange.
///
/// # Errors
/// The reason why the attempt could not be started.
pub(crate) fn start_unix<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    path: Arc<Path>,
) -> Result<(), Reason> {
    start_dial(core, key, None, 0);
    start_attempt(core, key, &Address::Unix(path)).map_err(reason_of)
}

fn start_dial<E: Engine>(core: &mut Core<E>, key: Key, race: Option<Race>, port: u16) {
    let started = core.engine.now();
    let transaction = &mut core.exchange(key).transaction;
    transaction.phase = Phase::Dialing;
    let (attempts, failure) = (Vec::new(), Reason::ConnectFailed);
    let dial = Dial { race, port, attempts, started, failure, pending_event: None };
    transaction.dial = Some(Box::new(dial));
}

/// Starts the attempts that the race requests, until it waits for one of them or has no address
/// left.
///
/// # Errors
/// The reason of the latest failure, if no address is left and no attempt is in progress.
fn start_attempts<E: Engine>(core: &mut Core<E>, key: Key) -> Result<(), Reason> {
    loop {
        let now = core.engine.now();
        let dial = core.dial(key);
        let target = match dial.race.as_mut().map(|race| race.next_attempt(now)) {
            None | Some(NextAttempt::Exhausted) => return Err(dial.failure),
            Some(NextAttempt::WaitUntil(_) | NextAttempt::Wait) => return Ok(()),
            Some(NextAttempt::Start(ip)) => SocketAddr::new(ip, dial.port),
        };
        let started = check_target(core, key, target)
            .and_then(|()| start_attempt(core, key, &Address::Tcp(target)).map_err(reason_of));
        if let Err(reason) = started {
            core.dial(key).record_failure(reason);
        }
    }
}

/// Checks the address against the target rules of the service. The caller passes this address to
/// connect(2), without another name lookup that could return a different one.
fn check_target<E: Engine>(core: &mut Core<E>, key: Key, target: SocketAddr) -> Result<(), Reason> {
    let exchange = core.exchange(key);
    let snapshot = exchange.snapshot();
    let ServiceRole::Forward(rules) = &snapshot.service(exchange.service).role else {
        return Ok(());
    };
    admission::may_reach(rules, &snapshot.own_addresses, target).map_err(|denied| match denied {
        Denied::Port => Reason::PortDenied,
        _ => Reason::TargetDenied,
    })
}

fn start_attempt<E: Engine>(core: &mut Core<E>, key: Key, address: &Address) -> Result<(), Error> {
    let now = core.engine.now();
    let wait = connect_timeout(core, key);
    if !free_descriptor(core) {
        return Err(Error::OutOfDescriptors);
    }
    let slot = core.origins.attempts.next_key().expect("a descriptor was freed for it");
    let token = slot.token(TokenKind::Dial);
    let fd = core.engine.connect(address, token)?;
    let exchange = core.exchange(key);
    let (snapshot, service) = (exchange.snapshot().clone(), exchange.service);
    if let Some(name) = snapshot.origin_congestion(service).for_origin(address) {
        core.engine.set_congestion(&fd, name);
    }
    let timer = core.timers.insert(token, now + wait.min(Race::DELAY));
    let address = match address {
        Address::Tcp(address) | Address::Udp(address) => Some(*address),
        Address::Unix(_) => None,
    };
    core.exchange(key).transaction.address = address;
    core.origins.attempts.insert(ConnectAttempt { fd, address, exchange: key, timer });
    core.dial(key).attempts.push(slot);
    Ok(())
}

/// Returns how long the connection may take to open.
fn connect_timeout<E: Engine>(core: &mut Core<E>, key: Key) -> Duration {
    Duration::from_millis(core.exchange(key).snapshot().limits().connect_ms)
}

/// Ensures that one more connection can be opened, by closing idle ones, the oldest first. Returns
/// false if none is left to close.
fn free_descriptor<E: Engine>(core: &mut Core<E>) -> bool {
    while capacity::origin_capacity(core) == 0 {
        let Some(oldest) = core.origins.oldest_idle() else { return false };
        close(core, oldest);
    }
    true
}

/// Records the event of an attempt: the attempt ended with the result in `ended`, or its timer
/// expired (`None`). Returns the event for the exchange, which then calls [`advance`].
pub(crate) fn record_attempt_event<E: Engine>(
    core: &mut Core<E>,
    slot: Key,
    ended: Option<Result<(), Error>>,
) -> Option<(EventTarget, Event)> {
    let key = core.origins.attempts.get(slot)?.exchange;
    core.dial(key).pending_event = Some((slot, ended));
    Some((EventTarget::Exchange(key), Event::DialProgress))
}

/// Handles the recorded event of an attempt. Returns true once the exchange has a connection.
///
/// # Errors
/// The reason why no connection could be opened.
pub(crate) fn advance<E: Engine>(core: &mut Core<E>, key: Key) -> Result<bool, Reason> {
    match core.dial(key).pending_event.take() {
        Some((slot, Some(result))) => handle_attempt_end(core, key, slot, result),
        Some((slot, None)) => handle_timer(core, key, slot).map(|()| false),
        None => Ok(false),
    }
}

fn handle_attempt_end<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    slot: Key,
    result: Result<(), Error>,
) -> Result<bool, Reason> {
    let now = core.engine.now();
    let Some(ConnectAttempt { fd, address, timer, .. }) = core.origins.attempts.remove(slot) else {
        return Ok(false);
    };
    core.timers.remove(timer);
    let dial = core.dial(key);
    let started = dial.started;
    dial.attempts.retain(|&other| other != slot);
    if let Err(error) = result {
        dial.record_failure(reason_of(error));
        core.engine.close(fd);
        return start_attempts(core, key).map(|()| false);
    }
    cancel(core, key);
    let Core { origins, exchanges, timers, snapshots, counters, .. } = core;
    let exchange = exchanges.get_mut(key).expect("an attempt has an exchange");
    let id = exchange.transaction.origin.expect("picked before it was dialed");
    let slot = origins.connections.next_key().expect("the attempt was counted as a connection");
    let token = slot.token(TokenKind::Origin);
    let timer = timers.insert(token, now + snapshots.origin_timer_max);
    origins.connections.insert(OriginConn::new(Wire::new(fd, token), id, address, timer));
    if fastcgi::is_used(exchange) {
        origins.note_opened(id, slot, exchange, now);
    }
    let transaction = &mut exchange.transaction;
    // A handshake may follow, whose deadline is that of the dial.
    transaction.awaiting_since = started;
    let connection = origins.connections.get_mut(slot).expect("inserted just now");
    let origin_use = connection.begin_use(slot, ConnectionUser::Exchange(key));
    transaction.use_connection(origin_use, address, false);
    // The open connection keeps the reservation from now on.
    transaction.has_reservation = false;
    counters.origin_connections_opened.add(1);
    Ok(true)
}

/// Handles the timer of an attempt: another address joins the race.
///
/// # Errors
/// [`Reason::ConnectTimedOut`] if the time for the whole dial is over; the reason of the latest
/// failure if no address is left and no attempt is in progress.
fn handle_timer<E: Engine>(core: &mut Core<E>, key: Key, slot: Key) -> Result<(), Reason> {
    let now = core.engine.now();
    let Some(timer) = core.origins.attempts.get(slot).map(|attempt| attempt.timer) else {
        return Ok(());
    };
    let wait = connect_timeout(core, key);
    let dial = core.dial(key);
    let (deadline, is_race) = (dial.started + wait, dial.race.is_some());
    if now >= deadline {
        return Err(Reason::ConnectTimedOut);
    }
    core.timers.set(timer, deadline);
    if is_race { start_attempts(core, key) } else { Ok(()) }
}

/// Cancels every attempt of the exchange.
pub(crate) fn cancel<E: Engine>(core: &mut Core<E>, key: Key) {
    let Some(dial) = core.exchange(key).transaction.dial.take() else { return };
    for slot in dial.attempts {
        let attempt = core.origins.attempts.remove(slot).expect("listed while in progress");
        core.timers.remove(attempt.timer);
        core.engine.close(attempt.fd);
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

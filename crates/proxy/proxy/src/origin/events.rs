//! Turns completions and timers of origin connections into events of exchanges and fills, and
//! receives on origin connections. `release.rs` ends the use of a connection. The counterpart for
//! client connections is `conn/client.rs`.

use std::time::Duration;

use millrace_engine::{Buffer, CompletionEvent as Completion, Engine, Error, Instant, Key, Table};

use crate::conn::{Conn, client, wire::ReceiveResult};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Event, EventTarget, Exchange, Reason, Stage};
use crate::origin::{ConnectionUser, Phase, close::close, pipeline};
use crate::overload::RECEIVE_AHEAD_MAX;
use crate::transfer::TransferState;
use millrace_config::limits::Limits;

/// Handles a completion of an origin connection. Returns the event for the exchange or fill that
/// waits for it, if any.
pub(crate) fn handle_completion<E: Engine>(
    core: &mut Core<E>,
    slot: Key,
    completion: Completion,
) -> Option<(EventTarget, Event)> {
    let Core { engine, origins, exchanges, .. } = core;
    let Some(connection) = origins.connections.get_mut(slot) else {
        if let Completion::Received(Ok(buffer)) = completion {
            engine.recycle(buffer);
        }
        return None;
    };
    let wire = &mut connection.wire;
    match (completion, connection.uses.first()) {
        (Completion::Received(result), user) => {
            match (wire.complete_receive(engine, result)?, user) {
                (received, Some(ConnectionUser::Exchange(key))) => {
                    let exchange = exchanges.get_mut(key)?;
                    let unread = wire.recv_buffer.bytes().len();
                    event_of_receive(exchange, received, unread)
                        .map(|event| (EventTarget::Exchange(key), event))
                }
                (received, Some(ConnectionUser::Fill(key))) => {
                    Some((EventTarget::Fill(key), event_of(received)))
                }
                // The origin closed an idle connection, or sent bytes that no request caused (RFC
                // 9112 section 9.5).
                (_, None) => {
                    pipeline::check_unread(core, slot);
                    close(core, slot);
                    None
                }
            }
        }
        (Completion::Readable, user) => {
            wire.complete_watch();
            match user? {
                ConnectionUser::Fill(key) => Some((EventTarget::Fill(key), Event::OriginReadable)),
                ConnectionUser::Exchange(key) => {
                    if exchanges.get(key)?.download.state() == TransferState::AwaitingSource {
                        return Some((EventTarget::Exchange(key), Event::OriginReadable));
                    }
                    receive(core, key);
                    None
                }
            }
        }
        (Completion::Sent(result), _) => handle_sent(core, slot, result),
        (Completion::Spliced(result), user) => match (user, wire.complete_send(result)) {
            (Some(ConnectionUser::Exchange(key)), Some(result)) => {
                let event = match result {
                    Ok(count) => Event::OriginSpliced(count as u32),
                    Err(error) => event_of_failure(exchanges.get(key)?, error),
                };
                Some((EventTarget::Exchange(key), event))
            }
            _ => None,
        },
        (other, _) => unreachable!("no origin connection requests {other:?}"),
    }
}

/// Handles the end of a send. Returns the event for the exchange, if any.
#[inline]
fn handle_sent<E: Engine>(
    core: &mut Core<E>,
    slot: Key,
    result: Result<(), Error>,
) -> Option<(EventTarget, Event)> {
    let Core { engine, origins, exchanges, conns, .. } = core;
    let connection = origins.connections.get_mut(slot)?;
    let of_exchange = connection.wire.complete_send(result);
    match (connection.uses.first(), of_exchange) {
        (Some(ConnectionUser::Exchange(key)), Some(result)) => {
            if let Err(error) = result {
                let event = event_of_failure(exchanges.get(key)?, error);
                return Some((EventTarget::Exchange(key), event));
            }
            let is_finished = try_finish_upload(engine, exchanges, conns, key);
            (!is_finished).then_some((EventTarget::Exchange(key), Event::OriginSent))
        }
        (Some(ConnectionUser::Exchange(key)), None) => {
            // A tunnel may wait until the announced end of its direction is sent.
            let exchange = exchanges.get(key)?;
            let awaits_end = exchange.is_tunnel && exchange.upload.has_ended();
            let event = match result {
                Ok(()) => Event::OriginSent,
                Err(error) => event_of_failure(exchange, error),
            };
            awaits_end.then_some((EventTarget::Exchange(key), event))
        }
        // A fill receives the response, which arrived before this report.
        (Some(_), _) => None,
        (None, _) => {
            if result.is_err() {
                close(core, slot);
            }
            None
        }
    }
}

/// Returns the event for a failed send. If the kernel of this machine ran out of memory, a tunnel
/// has to end at once: its origin may wait forever for the bytes that were not sent.
fn event_of_failure(exchange: &Exchange, error: Error) -> Event {
    match error {
        Error::OutOfMemory if exchange.is_tunnel => Event::End(Reason::Overloaded),
        _ => Event::OriginFailed,
    }
}

/// Finishes the upload if the last bytes of the request were sent and the response has not begun.
/// Returns true if it finished the upload. The driver need not run then, because the exchange only
/// waits for its origin.
fn try_finish_upload<E: Engine>(
    engine: &mut E,
    exchanges: &mut Table<Box<Exchange>>,
    conns: &mut Table<Conn>,
    key: Key,
) -> bool {
    let Some(exchange) = exchanges.get_mut(key) else { return false };
    if exchange.stage != Stage::Fetch || !exchange.upload.has_received_all() {
        return false;
    }
    let now = engine.now();
    exchange.upload.finish(now);
    exchange.transaction.awaiting_since = now;
    if let Some(conn) = exchange.conn.and_then(|conn| conns.get_mut(conn)) {
        client::receive_ahead(engine, conn);
    }
    true
}

fn event_of(received: ReceiveResult) -> Event {
    match received {
        ReceiveResult::Bytes => Event::OriginReadable,
        ReceiveResult::End => Event::OriginEnded,
        ReceiveResult::Broken => Event::OriginBroke,
    }
}

/// Returns the event of a receive for an exchange; `None` if the exchange reads the result later,
/// from the receive buffer. `unread` is the number of bytes in that buffer.
fn event_of_receive(
    exchange: &mut Exchange,
    received: ReceiveResult,
    unread: usize,
) -> Option<Event> {
    let download = &exchange.download;
    match (exchange.transaction.phase, received) {
        (Phase::Securing, received) => Some(event_of(received)),
        (Phase::Requesting, received) => {
            if received == ReceiveResult::Bytes && exchange.has_unsent_body() {
                exchange.transaction.early_bytes = unread;
            }
            Some(event_of(received))
        }
        // The download does not wait for bytes. Either the exchange waits for its turn in the
        // pipeline, or the response is whole. In the second case, the unread bytes keep the
        // connection from being reused.
        (Phase::Responding, ReceiveResult::Bytes)
            if download.state() != TransferState::AwaitingSource =>
        {
            None
        }
        // The stream ended while the client still has to take earlier bytes. The transfer finds the
        // end after it has sent these.
        (Phase::Responding, ReceiveResult::End | ReceiveResult::Broken)
            if download.state() == TransferState::AwaitingSink && !download.has_received_all() =>
        {
            None
        }
        (Phase::Responding, received) => Some(event_of(received)),
        (phase, received) => {
            unreachable!("{received:?} in {phase:?}, before there is a connection")
        }
    }
}

/// Receives bytes of a response header or, after the body, the end of the connection, unless a
/// receive is outstanding. While responses to earlier requests of the client come first, it
/// receives only a few bytes, because these are held in memory.
pub(crate) fn receive<E: Engine>(core: &mut Core<E>, key: Key) {
    let id = core.exchange(key).transaction.origin;
    let header_max = id.map_or(RECEIVE_AHEAD_MAX, |id| core.origins.header_receive_max(id));
    let ExchangeParts { engine, exchange, client, origin: Some(origin), .. } = core.parts(key)
    else {
        unreachable!("bytes are requested of an origin connection");
    };
    let is_first = client.is_none_or(|client| client.pipeline.is_first(key));
    let max = match exchange.transaction.phase {
        _ if !is_first => RECEIVE_AHEAD_MAX,
        Phase::Responding => RECEIVE_MAX,
        _ => header_max,
    };
    origin.wire.receive(engine, max);
}

/// Handles the timer of an origin connection. Returns the event for its user if the user's deadline
/// is over. Otherwise sets the timer again: it may have been set before the present wait began.
pub(crate) fn handle_timer<E: Engine>(
    core: &mut Core<E>,
    slot: Key,
) -> Option<(EventTarget, Event)> {
    pipeline::displace_overdue(core, slot);
    let Core { engine, exchanges, conns, origins, snapshot, snapshots, timers, fills, .. } = core;
    let now = engine.now();
    let connection = origins.connections.get(slot)?;
    let (deadline, event) = match connection.uses.first() {
        None => {
            let wait = Duration::from_millis(snapshot.limits().origin_idle_ms);
            (Some(connection.idle_since + wait), None)
        }
        Some(ConnectionUser::Exchange(key)) => {
            let exchange = exchanges.get(key)?;
            let wait = origin_deadline(exchange, exchange.snapshot().limits());
            // The deadline applies only while a receive or a send is outstanding; otherwise the
            // exchange waits for its client. The deadline does not apply either while bytes of the
            // response are in memory and earlier responses come first.
            let client = exchange.conn.and_then(|conn| conns.get(conn));
            let may_send = client.is_none_or(|client| client.may_send(key));
            let wire = &connection.wire;
            let is_ahead = !may_send && !wire.response_bytes().is_empty();
            let awaits_origin = (wire.is_receiving() && !is_ahead) || wire.is_sending();
            let (deadline, reason) = wait.filter(|_| awaits_origin).unzip();
            (deadline, reason.map(|reason| (EventTarget::Exchange(key), Event::End(reason))))
        }
        Some(ConnectionUser::Fill(key)) => {
            (fills.get(key)?.deadline(), Some((EventTarget::Fill(key), Event::TimedOut)))
        }
    };
    match deadline {
        Some(deadline) if deadline <= now => {
            if event.is_none() {
                close(core, slot);
            }
            event
        }
        deadline => {
            let check = now + snapshots.origin_timer_max;
            timers.set(connection.timer, deadline.map_or(check, |deadline| deadline.min(check)));
            None
        }
    }
}

/// Returns the deadline of the exchange at its origin, and the reason to end it then; `None` while
/// it waits for its client, which has deadlines of its own.
fn origin_deadline(exchange: &Exchange, limits: &Limits) -> Option<(Instant, Reason)> {
    let Exchange { upload, download, transaction, .. } = exchange;
    let first_byte = Duration::from_millis(limits.first_byte_ms);
    let response = Duration::from_millis(limits.response_ms);
    let has_response = transaction.phase == Phase::Responding;
    let connect = Duration::from_millis(limits.connect_ms);
    let late = if has_response { Reason::ResponseTimedOut } else { Reason::OriginTimedOut };
    match transaction.phase {
        Phase::Securing => Some((transaction.awaiting_since + connect, Reason::ConnectTimedOut)),
        _ if exchange.is_tunnel => None,
        _ if upload.state() == TransferState::AwaitingSink => {
            Some((upload.since() + first_byte, late))
        }
        Phase::Requesting
            if upload.state() != TransferState::AwaitingSource || exchange.awaits_continue() =>
        {
            Some((transaction.awaiting_since + first_byte, late))
        }
        Phase::Responding if download.state() == TransferState::AwaitingSource => {
            Some((download.since() + response, late))
        }
        _ => None,
    }
}

/// The most bytes to receive from an origin at once.
pub(crate) const RECEIVE_MAX: usize = Buffer::SIZE;

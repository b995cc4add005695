//! Turns completions and timers of client connections into events, and reads and closes client
//! connections. The counterpart for origin connections is `origin/events.rs`.

use std::time::Duration;

use millrace_engine::{Buffer, CompletionEvent as Completion, Engine, Error, Instant, Key};
use millrace_tls::TlsErrorKind;

use crate::conn::{Conn, ConnState, wire::ReceiveResult};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Event, EventTarget, Exchange, Reason};
use crate::origin::pinned;
use crate::secure::failure;
use crate::transfer::TransferState;
use crate::transfer::pace::meets_rate;

/// Handles a completion of a client connection. Returns the event for the object that waits for it,
/// if any does.
pub(crate) fn handle_completion<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    completion: Completion,
) -> Option<(EventTarget, Event)> {
    let Core { engine, conns, exchanges, .. } = core;
    let Some(conn) = conns.get_mut(key) else {
        if let Completion::Received(Ok(buffer)) = completion {
            engine.recycle(buffer);
        }
        return None;
    };
    let first = conn.pipeline.first();
    // Only the first exchange can be waiting for bytes: an exchange with a body never runs beside
    // others.
    let uploads = |&key: &Key| {
        exchanges
            .get(key)
            .is_some_and(|exchange| exchange.upload.state() == TransferState::AwaitingSource)
    };
    let uploading = || first.filter(uploads).map(EventTarget::Exchange);
    match completion {
        Completion::Received(result) => match conn.wire.complete_receive(engine, result)? {
            ReceiveResult::Bytes if conn.is_closing() => {
                conn.is_quiet = false;
                conn.wire.recv_buffer.consume(conn.wire.recv_buffer.bytes().len());
                receive(core, key);
                None
            }
            ReceiveResult::Bytes => {
                Some((uploading().unwrap_or(EventTarget::Conn(key)), Event::ClientReadable))
            }
            ReceiveResult::End if conn.state == ConnState::Busy => {
                // A client may end its direction once its request is whole, and wait for the
                // response.
                Some((uploading()?, Event::ClientEnded))
            }
            ReceiveResult::Broken if first.is_some() => {
                Some((EventTarget::Exchange(first?), Event::End(Reason::ClientClosed)))
            }
            ReceiveResult::End if conn.has_pending_end() => None,
            ReceiveResult::End | ReceiveResult::Broken => {
                close_by_client(core, key);
                None
            }
        },
        Completion::Readable => {
            conn.wire.complete_watch();
            let uploading = uploading();
            if uploading.is_none() {
                receive(core, key);
            }
            Some((uploading?, Event::ClientReadable))
        }
        Completion::Sent(result) => {
            let Some(of_exchange) = conn.wire.complete_send(result) else {
                continue_end(core, key, result);
                return None;
            };
            Some((EventTarget::Exchange(first?), sent_event(of_exchange)))
        }
        Completion::Spliced(result) => {
            let result = conn.wire.complete_send(result)?;
            let event = result.map_or(Event::ClientFailed, |it| Event::ClientSpliced(it as u32));
            Some((EventTarget::Exchange(first?), event))
        }
        other => unreachable!("no client connection requests {other:?}"),
    }
}

/// Returns the event of a send of an exchange.
#[inline]
fn sent_event(sent: Result<(), Error>) -> Event {
    match sent {
        Ok(()) => Event::ClientSent,
        Err(error) => failed_event(error),
    }
}

#[cold]
#[inline(never)]
fn failed_event(error: Error) -> Event {
    if error.is_of_file() { Event::End(Reason::FileFailed) } else { Event::ClientFailed }
}

/// Continues the end of a connection whose own bytes were sent.
fn continue_end<E: Engine>(core: &mut Core<E>, key: Key, sent: Result<(), Error>) {
    match sent {
        _ if core.conn(key).state != ConnState::Ending => {}
        Ok(()) => linger(core, key),
        Err(_) => close(core, key),
    }
}

/// Closes a connection that the client has closed.
fn close_by_client<E: Engine>(core: &mut Core<E>, key: Key) {
    if core.conn(key).state == ConnState::Handshake {
        failure::record(core, key, TlsErrorKind::Closed, None);
    }
    close(core, key);
}

/// Requests bytes from the client, unless a receive is outstanding.
pub(crate) fn receive<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, .. } = core;
    if let Some(conn) = conns.get_mut(key) {
        let max = if conn.is_closing() { Buffer::SIZE } else { RECEIVE_MAX };
        conn.wire.receive(engine, max);
    }
}

/// Receives ahead while a response is being sent, so that the end of the client's stream is noticed
/// and the next request is at hand. The connection holds less than twice `RECEIVE_MAX` bytes.
#[inline]
pub(crate) fn receive_ahead<E: Engine>(engine: &mut E, conn: &mut Conn) {
    if conn.wire.recv_buffer.bytes().len() < RECEIVE_MAX {
        conn.wire.receive(engine, RECEIVE_MAX);
    }
}

/// Handles the timer of a connection. Returns an event if a deadline has passed. The timer may have
/// been set before the present wait began; then it is set again.
pub(crate) fn handle_timer<E: Engine>(
    core: &mut Core<E>,
    key: Key,
) -> Option<(EventTarget, Event)> {
    let Core { engine, conns, snapshot, snapshots, timers, .. } = core;
    let (now, check) = (engine.now(), snapshots.client_timer_max);
    let conn = conns.get(key)?;
    if conn.state == ConnState::ResetPending {
        reset_or_wait(core, key);
        return None;
    }
    match conn.deadline(snapshot.limits()) {
        Some(deadline) if deadline <= now => {
            if conn.is_closing() {
                match conn.state {
                    ConnState::Ending => close_or_wait(core, key),
                    _ => close(core, key),
                }
                return None;
            }
            timers.set(conn.timer, now + check);
            Some((EventTarget::Conn(key), Event::TimedOut))
        }
        Some(deadline) => {
            timers.set(conn.timer, deadline.min(now + check));
            None
        }
        None => {
            timers.set(conn.timer, now + check);
            let first = conn.pipeline.first()?;
            let event = check_pace(core, first, now)?;
            Some((EventTarget::Exchange(first), event))
        }
    }
}

/// Checks whether an exchange has waited too long for its client or for a body in the cache, or has
/// been an idle tunnel for too long. If so, returns an event for it; otherwise sets the next timer.
fn check_pace<E: Engine>(core: &mut Core<E>, key: Key, now: Instant) -> Option<Event> {
    let latest = now + core.snapshots.client_timer_max;
    let ExchangeParts { engine, timers, exchange, client, .. } = core.parts_with_client(key);
    let limits = exchange.snapshot().limits();
    let rate = limits.rate_bytes_per_second;
    let [tunnel_idle, send, response] =
        [limits.tunnel_idle_ms, limits.send_ms, limits.response_ms].map(Duration::from_millis);
    let mut next = latest;
    if exchange.is_tunnel {
        let deadline = exchange.upload.since().max(exchange.download.since()) + tunnel_idle;
        let handshake = Duration::from_millis(limits.handshake_ms);
        let hello = exchange.peek.as_ref().and_then(|peek| peek.deadline(handshake));
        if hello.is_some_and(|hello| hello <= now) {
            return Some(Event::TimedOut);
        }
        if deadline <= now {
            let is_finished = exchange.is_finished_tunnel();
            return Some(if is_finished {
                Event::TimedOut
            } else {
                Event::End(Reason::TunnelIdle)
            });
        }
        timers.set(client.timer, deadline.min(hello.unwrap_or(latest)).min(latest));
        return None;
    }
    let unsent = client.wire.unsent(engine) + exchange.download.bytes_in_pipe();
    let awaits_disk = exchange.file.as_ref().is_some_and(|file| file.work.is_some());
    if exchange.upload.state() == TransferState::AwaitingSource && !exchange.awaits_continue() {
        match check_upload(exchange, awaits_disk, now) {
            Ok(deadline) => next = next.min(deadline),
            Err(reason) => return Some(Event::End(reason)),
        }
    }
    if exchange.download.state() == TransferState::AwaitingSink {
        if !exchange.download.check_pace(now, send, rate, unsent) {
            return Some(Event::End(Reason::ClientTimedOut));
        }
        next = next.min(exchange.download.deadline(send));
    } else if client.wire.is_sending() {
        // An interim response is being sent.
        let deadline = exchange.transaction.awaiting_since + send;
        if deadline <= now {
            return Some(Event::End(Reason::ClientTimedOut));
        }
        next = next.min(deadline);
    }
    if exchange.download.state() == TransferState::AwaitingSource
        && let Some(reader) = &mut exchange.caching.reader
    {
        let deadline = reader.stalled_since(now) + response;
        if deadline <= now {
            return Some(Event::TimedOut);
        }
        next = next.min(deadline);
    } else if awaits_disk && exchange.download.state() == TransferState::AwaitingSource {
        let deadline = exchange.download.since() + response;
        if deadline <= now {
            return Some(Event::End(Reason::FileTimedOut));
        }
        next = next.min(deadline);
    }
    timers.set(client.timer, next);
    None
}

/// Checks whether an exchange has waited too long for bytes of the request's body: from the client,
/// or with `awaits_disk` for a thread that writes or reads its file. Returns the time of the next
/// check, or the reason to end the exchange.
fn check_upload(
    exchange: &mut Exchange,
    awaits_disk: bool,
    now: Instant,
) -> Result<Instant, Reason> {
    let limits = exchange.snapshot().limits();
    let [body, response] = [limits.body_ms, limits.response_ms].map(Duration::from_millis);
    let rate = limits.rate_bytes_per_second;
    if awaits_disk {
        let deadline = exchange.upload.since() + response;
        return if deadline <= now { Err(Reason::FileTimedOut) } else { Ok(deadline) };
    }
    match exchange.upload.check_pace(now, body, rate, 0) {
        true => Ok(exchange.upload.deadline(body)),
        false => Err(Reason::BodyTimedOut),
    }
}

/// Stops sending, and discards received bytes until the client ends its stream, so that no reset
/// overtakes the response.
pub(crate) fn linger<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, timers, snapshot, .. } = core;
    let now = engine.now();
    let linger = Duration::from_millis(snapshot.limits().linger_ms);
    let Some(conn) = conns.get_mut(key) else { return };
    if conn.wire.tls().is_some() && !conn.wire.finish(engine) {
        return await_end(core, key);
    }
    if conn.wire.has_ended() || linger.is_zero() {
        return close(core, key);
    }
    conn.set_state(ConnState::Lingering, now);
    conn.wire.recv_buffer.clear(engine);
    if conn.wire.tls().is_none() {
        conn.wire.shutdown(engine);
    }
    timers.set(conn.timer, now + linger);
    receive(core, key);
}

/// Closes a connection that serves no exchange in order.
#[inline(never)]
pub(crate) fn finish<E: Engine>(core: &mut Core<E>, key: Key) {
    match core.conns.get(key).is_some_and(|conn| conn.wire.tls().is_some()) {
        true => finish_secured(core, key),
        false => close(core, key),
    }
}

/// Closes a secured connection once the kernel has taken its announced end.
#[inline(never)]
fn finish_secured<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, .. } = core;
    let Some(conn) = conns.get_mut(key) else { return };
    match conn.wire.finish(engine) {
        true => close(core, key),
        false => await_end(core, key),
    }
}

/// Waits until the kernel takes the announced end of a secured connection, which then lingers. The
/// client may have ended its stream.
fn await_end<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, timers, snapshot, .. } = core;
    let now = engine.now();
    let Some(conn) = conns.get_mut(key) else { return };
    conn.set_state(ConnState::Ending, now);
    conn.undelivered = conn.wire.undelivered(engine);
    conn.wire.recv_buffer.clear(engine);
    timers.set(conn.timer, now + Duration::from_millis(snapshot.limits().send_ms));
    receive(core, key);
}

/// Closes a connection whose client has not acknowledged bytes at the minimum rate over `send_ms`,
/// although its announced end waits for that.
fn close_or_wait<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, snapshot, timers, .. } = core;
    let (now, limits) = (engine.now(), snapshot.limits());
    let Some(conn) = conns.get_mut(key) else { return };
    let undelivered = conn.wire.undelivered(engine);
    let taken = conn.undelivered.saturating_sub(undelivered);
    if !meets_rate(taken.into(), now.since(conn.since), limits.rate_bytes_per_second) {
        return close(core, key);
    }
    (conn.undelivered, conn.since) = (undelivered, now);
    timers.set(conn.timer, now + Duration::from_millis(limits.send_ms));
}

/// Sends no further bytes, and resets the connection once the client has everything that was sent.
pub(crate) fn reset_when_delivered<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, .. } = core;
    let now = engine.now();
    let Some(conn) = conns.get_mut(key) else { return };
    conn.set_state(ConnState::ResetPending, now);
    conn.is_quiet = false;
    conn.undelivered = conn.wire.undelivered(engine);
    conn.wire.recv_buffer.clear(engine);
    reset_or_wait(core, key);
    receive(core, key);
}

/// Resets a connection once its client has acknowledged everything and has sent nothing for
/// `RESET_CHECK_INTERVAL`. A client that is still sending has probably not read the response yet.
/// It is reset at the latest `linger_ms` after it has acknowledged everything. A client that does
/// not acknowledge at the minimum rate over each `send_ms` is reset too.
fn reset_or_wait<E: Engine>(core: &mut Core<E>, key: Key) {
    let Core { engine, conns, snapshot, timers, .. } = core;
    let now = engine.now();
    let Some(conn) = conns.get_mut(key) else { return };
    let undelivered = conn.wire.undelivered(engine);
    if conn.is_quiet && undelivered == 0 && !conn.wire.is_sending() {
        return reset(core, key);
    }
    let is_delivered = undelivered == 0;
    if is_delivered && conn.undelivered > 0 {
        (conn.undelivered, conn.since) = (0, now);
    }
    let limits = snapshot.limits();
    let elapsed = now.since(conn.since);
    let limit = if is_delivered { limits.linger_ms } else { limits.send_ms };
    if elapsed >= Duration::from_millis(limit) {
        let taken = conn.undelivered.saturating_sub(undelivered);
        if is_delivered || !meets_rate(taken.into(), elapsed, limits.rate_bytes_per_second) {
            return reset(core, key);
        }
        (conn.undelivered, conn.since) = (undelivered, now);
    }
    conn.is_quiet = true;
    timers.set(conn.timer, now + RESET_CHECK_INTERVAL);
}

/// Closes a connection that serves no exchange. A connection with a pending reset is reset at once:
/// an orderly end would make its cut response look whole.
#[inline(never)]
pub(crate) fn close<E: Engine>(core: &mut Core<E>, key: Key) {
    let Some(conn) = remove(core, key) else { return };
    match conn.state {
        ConnState::ResetPending => conn.wire.reset(&mut core.engine),
        _ => conn.wire.close(&mut core.engine),
    }
}

/// Resets a connection that serves no exchange.
pub(crate) fn reset<E: Engine>(core: &mut Core<E>, key: Key) {
    if let Some(conn) = remove(core, key) {
        conn.wire.reset(&mut core.engine);
    }
}

#[inline(always)]
fn remove<E: Engine>(core: &mut Core<E>, key: Key) -> Option<Conn> {
    pinned::close_pinned_to(core, key);
    let conn = core.conns.remove(key)?;
    assert!(conn.pipeline.first().is_none(), "its exchanges have ended");
    core.secure.in_progress -= usize::from(conn.state == ConnState::Handshake);
    if let Some(error) = conn.wire.session_failure() {
        core.counters.tls_sessions_failed.add(error.kind);
    }
    core.timers.remove(conn.timer);
    core.snapshots.remove_connection(conn.listener);
    core.overload.clients.release(conn.counted_as);
    Some(conn)
}

/// How long a client has to be quiet before it is reset, and the interval of that check.
const RESET_CHECK_INTERVAL: Duration = Duration::from_millis(100);
/// The maximum number of bytes in one receive from a client.
const RECEIVE_MAX: usize = 16 * 1024;

//! Running a fill: moves bytes from the origin into the cache as far as the readers allow, until
//! the body is whole or cut.

use std::time::Duration;

use iolite::Aggregate;
use millrace_engine::{Buffer, Engine, Instant, Key, TokenKind};
use millrace_store::ObjectFiller;

use crate::cached::fill::{Fill, FillPause, FillSource, PART_AHEAD_BYTES, TURN_BYTES_MAX};
use crate::cached::{
    ResponseSource, fill::leader::Leader, fill::tee::TeePath, now_ms, reader::CachedReader,
};
use crate::core::{Core, ExchangeParts};
use crate::exchange::Event;
use crate::origin::{ConnectionUser, h1, pipeline, release};
use crate::transfer::{body_progress::BodyProgress, sink::TransferSink};

/// Begins a fill, which takes the origin connection over from the exchange. `tail` are stored
/// bytes that follow the received ones.
pub(crate) fn begin<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    filling: ObjectFiller,
    tail: Option<Aggregate>,
) {
    let body = filling.body().clone();
    let (waiter, now_ms) = (core.waiter(key, TokenKind::Exchange), now_ms(&core.engine));
    let mut fill = new_fill(core, key, filling, tail);
    let connection = core.origins.connections.get_mut(fill.origin_use.slot());
    let connection = connection.expect("the fill has its use");
    let (woken, has_memory) = fill.store_whole_body(&mut connection.wire.recv_buffer, now_ms);
    core.wake(woken);
    let rest = match fill.body.is_complete() {
        true => {
            finish(core, fill, true);
            None
        }
        false => Some(fill),
    };
    let ExchangeParts { engine, pipes, exchange, client, .. } = core.parts(key);
    // The origin may have responded before the engine reported that the whole request was sent.
    // Nothing waits for that report.
    exchange.upload.abandon(engine, pipes);
    // A refresh has no reader. A client gets its reader before more bytes arrive, since a fill
    // without readers may be cut.
    if let Some(client) = client {
        let mut reader = CachedReader::new(&body, None, waiter);
        reader.iter_mut().for_each(match client.wire.tls() {
            Some(_) => CachedReader::seal_in_steps,
            None => CachedReader::disable_zero_copy,
        });
        exchange.caching.reader = reader;
    }
    let Some(fill) = rest else { return };
    let slot = fill.origin_use.slot();
    let fill = core.fills.insert(fill);
    let fill = fill.expect("the table has a slot for a fill of each origin connection");
    if let Some(connection) = core.origins.connections.get_mut(slot) {
        connection.transfer_use(ConnectionUser::Fill(fill));
    }
    match has_memory {
        true => core.wakes.local.push_back(fill.token(TokenKind::Fill)),
        false => wait_for_memory(core, fill),
    }
}

/// Creates the fill that takes over an exchange's use of its origin connection.
fn new_fill<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    filling: ObjectFiller,
    tail: Option<Aggregate>,
) -> Fill {
    let since = core.engine.now();
    let thresholds = *core.pipes.thresholds();
    let ExchangeParts { exchange, client, .. } = core.parts(key);
    // A refresh has no client.
    let accepts_pipes = client.is_some_and(|client| TransferSink::<E>::accepts_pipes(&client.wire));
    let is_reusable = h1::is_persistent(exchange);
    let transaction = &mut exchange.transaction;
    let origin_use = transaction.connection.take().expect("a response arrives on a connection");
    let id = transaction.origin.take().expect("the origin is picked before its connection is used");
    let rest = BodyProgress::new(transaction.framing);
    let is_for_leader = exchange.caching.source == ResponseSource::Filled && accepts_pipes;
    let leader = is_for_leader.then(|| Leader::new(key, &rest, thresholds)).flatten();
    let snapshot = exchange.snapshot().clone();
    let finishes_fetch =
        snapshot.cache(exchange.service, exchange.plan).is_some_and(|it| it.finishes_fetch);
    let is_part = filling.object().meta().stored_range.is_some();
    let continues_unread = (finishes_fetch && !is_part) || exchange.is_refresh();
    let ahead_max = is_part.then_some(PART_AHEAD_BYTES);
    Fill {
        origin_use,
        id,
        filling,
        body: rest,
        is_reusable,
        continues_unread,
        ahead_max,
        since,
        is_blocked: false,
        starved_since: None,
        snapshot,
        bytes: 0,
        tail,
        leader,
    }
}

/// Handles an event of a fill.
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) {
    match event {
        Event::TimedOut | Event::End(_) => end(core, key, false),
        // After the origin's stream has ended or broken, the bytes at hand are stored first.
        Event::OriginBroke => run(core, key, true),
        _ => run(core, key, false),
    }
}

/// Moves bytes into the cache, and requests more unless the origin's stream broke (`is_broken`).
fn run<E: Engine>(core: &mut Core<E>, key: Key, is_broken: bool) {
    let waiter = core.waiter(key, TokenKind::Fill);
    let Some(fill) = core.fills.get_mut(key) else { return };
    let now_ms = now_ms(&core.engine);
    if std::mem::take(&mut fill.is_blocked) {
        // The wait for the origin begins anew. If the origin has ended its stream in the meantime,
        // this run finds the end.
        fill.since = core.engine.now();
    }
    let Core { engine, pipes, origins, exchanges, conns, .. } = core;
    let connection = origins.connections.get_mut(fill.origin_use.slot());
    let connection = connection.expect("the fill has its use");
    let (mut woken, before) = (Vec::new(), fill.bytes);
    let pause = loop {
        if let Some(pause) = fill.check_readers(waiter) {
            break pause;
        }
        let step = match fill.next_source(connection, exchanges, engine.now()) {
            _ if fill.body.is_complete() => Err(FillPause::Whole),
            FillSource::Buffered => fill.store_received(&mut connection.wire.recv_buffer, now_ms),
            FillSource::Direct if fill.bytes - before >= TURN_BYTES_MAX => {
                Err(FillPause::NeedsWatch)
            }
            FillSource::Direct => fill.receive_direct(engine, connection, now_ms),
            FillSource::Teed => {
                let path = TeePath { engine, pipes, connection, exchanges, conns };
                fill.tee(path, now_ms)
            }
            FillSource::AfterLeader => {
                // The leader's progress wakes the fill.
                fill.filling.lead_or_wait(0, waiter);
                Err(FillPause::NeedsReaders)
            }
            FillSource::ByReceive => Err(FillPause::NeedsReceive),
        };
        match step {
            Ok(count) => {
                fill.starved_since = None;
                if count > 0 {
                    woken.append(&mut fill.filling.advance(count, now_ms));
                }
            }
            Err(pause) => break pause,
        }
    };
    fill.is_blocked = matches!(pause, FillPause::NeedsReaders);
    core.wake(woken);
    match pause {
        FillPause::Whole => end(core, key, true),
        FillPause::Cut => end(core, key, false),
        FillPause::NeedsReceive | FillPause::NeedsWatch if is_broken => end_cut(core, key),
        FillPause::NeedsReceive => receive(core, key, false),
        FillPause::NeedsWatch => receive(core, key, true),
        FillPause::OriginEnded => handle_origin_end(core, key),
        FillPause::NeedsReaders => {}
        FillPause::NeedsMemory => wait_for_memory(core, key),
    }
}

/// Waits for memory, for at most `response_ms` as for an origin. The readers wait with the fill.
fn wait_for_memory<E: Engine>(core: &mut Core<E>, key: Key) {
    let now = core.engine.now();
    let Some(fill) = core.fills.get_mut(key) else { return };
    fill.is_blocked = true;
    let since = *fill.starved_since.get_or_insert(now);
    if now.since(since) >= Duration::from_millis(fill.snapshot.limits().response_ms) {
        return end(core, key, false);
    }
    // A reader's progress makes the fill try again as well.
    if !core.cached.starved.contains(&key) {
        core.cached.starved.push(key);
    }
}

/// Requests more from the origin: bytes, or with `watches` only a report of readability.
fn receive<E: Engine>(core: &mut Core<E>, key: Key, watches: bool) {
    let Core { engine, origins, fills, .. } = core;
    let Some(fill) = fills.get_mut(key) else { return };
    let Some(connection) = origins.connections.get_mut(fill.origin_use.slot()) else { return };
    if !connection.wire.is_receiving() {
        fill.since = engine.now();
    }
    if connection.wire.has_ended() {
        return handle_origin_end(core, key);
    }
    connection.wire.receive_body(engine, Buffer::SIZE, fill.body.expected_bytes(), watches);
}

/// Handles the end of the origin's stream, after all received bytes were stored.
fn handle_origin_end<E: Engine>(core: &mut Core<E>, key: Key) {
    let Some(fill) = core.fills.get_mut(key) else { return };
    fill.is_reusable = false;
    let connection = core.origins.connections.get(fill.origin_use.slot());
    let is_cut = connection.is_none_or(|connection| connection.wire.is_cut());
    match matches!(fill.body, BodyProgress::UntilClose) && !is_cut {
        true => end(core, key, true),
        false => end_cut(core, key),
    }
}

/// Ends a fill whose origin ended its stream within the body.
fn end_cut<E: Engine>(core: &mut Core<E>, key: Key) {
    if let Some(slot) = core.fills.get(key).map(|fill| fill.origin_use.slot()) {
        pipeline::note_cut_body(core, slot);
    }
    end(core, key, false);
}

/// Ends a fill. The body is whole, or its rest will never arrive.
fn end<E: Engine>(core: &mut Core<E>, key: Key, is_whole: bool) {
    if let Some(fill) = core.fills.remove(key) {
        finish(core, fill, is_whole);
    }
}

/// Ends a fill that was removed from the table or never entered it.
fn finish<E: Engine>(core: &mut Core<E>, fill: Fill, is_whole: bool) {
    let now_ms = now_ms(&core.engine);
    let Fill { origin_use, id, mut filling, is_reusable, bytes, tail, .. } = fill;
    core.origins.record_body_length(id, bytes);
    release::release(core, origin_use, id, is_whole && is_reusable);
    core.counters.cache_filled_bytes.add(bytes);
    if let Some(tail) = tail.filter(|_| is_whole) {
        core.wake(filling.append(tail));
    }
    core.wake(if is_whole { filling.finish(now_ms) } else { filling.cut() });
}

/// Makes all fills end once they have no reader, because the worker drains. Returns the fills to
/// wake.
pub(crate) fn stop_unread<E: Engine>(core: &mut Core<E>) -> Vec<Key> {
    let keys = core.fills.keys_where(|_| true);
    for (_, fill) in core.fills.iter_mut() {
        fill.continues_unread = false;
    }
    keys
}

/// Removes leaders that take their bytes too slowly, so that neither other readers nor the origin
/// have to wait for them. Returns the fills to wake.
pub(crate) fn drop_slow_leaders<E: Engine>(core: &mut Core<E>, now: Instant) -> Vec<Key> {
    let is_slow = |fill: &Fill| fill.leader.as_ref().is_some_and(|leader| leader.is_slow(now));
    let keys = core.fills.keys_where(is_slow);
    for key in &keys {
        if let Some(fill) = core.fills.get_mut(*key) {
            fill.leader = None;
        }
    }
    keys
}

//! Fills: bodies that are received from an origin into the cache. A fill has the origin's
//! connection from the answer's head on; the client that asked reads what it fills, like any other.
//!
//! ```text
//!            bytes, no room          room, or a reader
//!  Receiving ──────────────> Waiting ─────────────────> Receiving
//!      └── all, or cut ──> the connection is kept or closed; who reads is woken
//! ```
//!
//! A body that came with its head is whole before it is anywhere there. A large one goes to the
//! client that asked through a pipe, while that client keeps up ([`teed`]).

mod teed;

use std::rc::Rc;
use std::time::Duration;

use iolite::Aggregate;
use millrace_cache::{Filling, Waiter};
use millrace_event::{Buffer, Engine, Instant, Key, Kind, Table};

use crate::caching::{Answer, now_ms};
use crate::exchange::Exchange;
use crate::input::Input;
use crate::kept::Kept;
use crate::origin::{OriginConn, OriginId, Use};
use crate::rest::Rest;
use crate::snapshot::Snapshot;
use crate::stage::keep;
use crate::worker::Worker;
use teed::{Asker, Standing, Way};

/// A body on its way into the cache.
#[derive(Debug)]
pub(crate) struct Fill {
    /// The origin's connection.
    slot: Key,
    id: OriginId,
    filling: Filling,
    rest: Rest,
    /// Whether the connection may serve others after it.
    may_be_kept: bool,
    /// Whether it goes on when nobody reads.
    goes_on: bool,
    /// When the present wait for the origin began.
    pub(crate) since: Instant,
    /// Whether it waits for room instead of the origin.
    waits: bool,
    /// Since when there is no memory for it.
    starved: Option<Instant>,
    snapshot: Rc<Snapshot>,
    /// Bytes received.
    bytes: u64,
    /// What follows them, and is there already.
    after: Option<Aggregate>,
    /// Who asked, while it gets the body through a pipe.
    asker: Option<Asker>,
}

impl Fill {
    /// When the origin has been waited for long enough; `None` while it is not.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let wait = Duration::from_millis(self.snapshot.limits().answer_ms);
        (!self.waits).then_some(self.since + wait)
    }
}

impl Fill {
    /// Whether who reads, or that nobody does, keeps it from receiving more.
    fn heeds_readers(&mut self, waiter: Waiter) -> Option<Outcome> {
        let goes_on = self.goes_on && self.filling.is_kept();
        if goes_on || self.rest.is_over() {
            return None;
        }
        let most = self.snapshot.limits().fill_ahead_bytes;
        // Who is that far behind the fastest would keep all between the two in memory.
        self.filling.cut_behind(BEHIND * most);
        // It is told of each step of theirs, so that it hears when the last one leaves.
        match self.filling.ahead(0, waiter) {
            None => Some(Outcome::Cut),
            Some(ahead) if !self.filling.is_kept() && ahead >= most => Some(Outcome::Wait),
            Some(_) => None,
        }
    }
}

/// Takes the origin's connection over from an exchange whose answer is stored from now on.
/// `after`: bytes that are there already and follow what comes.
pub(crate) fn begin<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    filling: Filling,
    after: Option<Aggregate>,
) {
    let (slot, body) = (worker.exchange(key).transaction.connection, filling.body().clone());
    let slot = slot.expect("an answer came on a connection");
    let mut fill = of_exchange(worker, key, slot, filling, after);
    let connection = worker.origins.connections.get_mut(slot).expect("held by the exchange");
    let (woken, has_room) = fill.take_all(&mut connection.input, now_ms(&worker.engine));
    worker.wake(woken);
    keep::end_upload(worker, key);
    let rest = match fill.rest.is_over() {
        true => {
            finish(worker, fill, true);
            None
        }
        false => Some(fill),
    };
    // Nobody reads what a refresh brings.
    if !worker.exchange(key).is_refresh() {
        // Who asked has its place before more comes, or its answer were one that nobody reads.
        let waiter = worker.waiter(key, Kind::Exchange);
        let kept = Kept::new(&body, None, waiter).map(Kept::by_copy);
        worker.exchange(key).caching.kept = kept;
    }
    if let Some(fill) = rest {
        let fill = worker.fills.insert(fill);
        let fill = fill.expect("there is room for one of each origin connection");
        let connection = worker.origins.connections.get_mut(slot).expect("held by the fill");
        connection.used_for = Use::Filling(fill);
        match has_room {
            true => run(worker, fill),
            false => starve(worker, fill),
        }
    }
}

/// The exchange has the connection no more.
fn of_exchange<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    slot: Key,
    filling: Filling,
    after: Option<Aggregate>,
) -> Fill {
    let (may_be_kept, since) = (worker.lets_it_live(key), worker.engine.now());
    let thresholds = *worker.pipes.thresholds();
    let exchange = worker.exchange(key);
    exchange.transaction.connection = None;
    let id = exchange.transaction.origin.take().expect("picked before it was used");
    let rest = Rest::of(exchange.transaction.framing);
    let is_for_asker = exchange.caching.answer == Answer::Filled && !exchange.is_refresh();
    let asker = is_for_asker.then(|| Asker::new(key, &rest, thresholds)).flatten();
    let snapshot = exchange.snapshot().clone();
    let fills_on = snapshot.cache(exchange.service, exchange.plan).is_some_and(|it| it.fill_on);
    let goes_on = fills_on || exchange.is_refresh();
    Fill {
        slot,
        id,
        filling,
        rest,
        may_be_kept,
        goes_on,
        since,
        waits: false,
        starved: None,
        snapshot,
        bytes: 0,
        after,
        asker,
    }
}

/// Moves what is at hand into the cache, and asks for more.
pub(crate) fn run<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Some(fill) = worker.fills.get_mut(key) else { return };
    let waiter = Waiter { worker: worker.index as u16, token: key.token(Kind::Fill).to_bits() };
    let now_ms = now_ms(&worker.engine);
    if std::mem::take(&mut fill.waits) {
        // Where the origin has ended its stream meanwhile, that is the end of it now.
        fill.since = worker.engine.now();
    }
    let Worker { engine, pipes, origins, exchanges, conns, .. } = worker;
    let connection = origins.connections.get_mut(fill.slot).expect("held by the fill");
    let (mut woken, before) = (Vec::new(), fill.bytes);
    let outcome = loop {
        if let Some(outcome) = fill.heeds_readers(waiter) {
            break outcome;
        }
        let step = match fill.takes(connection, exchanges, engine.now()) {
            _ if fill.rest.is_over() => Err(Outcome::Whole),
            Takes::AtHand => fill.move_on(&mut connection.input, now_ms),
            Takes::Directly if fill.bytes - before >= AT_ONCE_BYTES => Err(Outcome::Watch),
            Takes::Directly => fill.take(engine, connection, now_ms),
            Takes::Teed => {
                let way = Way { engine, pipes, connection, exchanges, conns };
                fill.tee(way, now_ms)
            }
            Takes::AfterAsker => {
                // It is told of each step of its readers.
                fill.filling.ahead(0, waiter);
                Err(Outcome::Wait)
            }
            Takes::Received => Err(Outcome::Receive),
        };
        match step {
            Ok(count) => {
                fill.starved = None;
                if count > 0 {
                    woken.append(&mut fill.filling.advance(count, now_ms));
                }
            }
            Err(outcome) => break outcome,
        }
    };
    worker.wake(woken);
    match outcome {
        Outcome::Whole => end(worker, key, true),
        Outcome::Cut => end(worker, key, false),
        Outcome::Receive => receive(worker, key, false),
        Outcome::Watch => receive(worker, key, true),
        Outcome::Ended => ended(worker, key),
        Outcome::Wait => wait(worker, key),
        Outcome::NoRoom => starve(worker, key),
    }
}

/// Where the next bytes come from.
enum Takes {
    /// They were received already.
    AtHand,
    /// From the socket into the cache, without a buffer between.
    Directly,
    /// From the socket into the cache and to who asked.
    Teed,
    /// The same, once that client has taken what came before.
    AfterAsker,
    /// By a receive: few bytes, or lines between chunks.
    Received,
}

/// What a fill cannot go on without.
enum Outcome {
    /// Nothing: all is there.
    Whole,
    /// Nothing: the rest will never come, or nobody wants it.
    Cut,
    /// The origin ended its stream.
    Ended,
    Receive,
    Watch,
    /// A reader has to go on first.
    Wait,
    /// There is no memory just now.
    NoRoom,
}

impl Fill {
    fn takes(
        &mut self,
        connection: &OriginConn,
        exchanges: &Table<Box<Exchange>>,
        now: Instant,
    ) -> Takes {
        let is_free = !connection.receiving && !connection.ended && !connection.broken;
        let comes = self.rest.known().unwrap_or(DIRECT_BYTES);
        if !connection.input.is_empty() {
            return Takes::AtHand;
        }
        let direct_min = self.asker.as_ref().map_or(DIRECT_BYTES, Asker::direct_min);
        if !is_free || comes < direct_min {
            return Takes::Received;
        }
        match self.asker_stands(exchanges, comes, now) {
            Standing::Ready => Takes::Teed,
            Standing::Behind => Takes::AfterAsker,
            Standing::Apart => Takes::Directly,
        }
    }

    /// Takes a body that came with its head, as far as there is memory. Gives who is to be woken, and
    /// whether there was enough.
    fn take_all(&mut self, input: &mut Input, now_ms: u64) -> (Vec<Waiter>, bool) {
        let mut woken = Vec::new();
        if matches!(self.rest, Rest::Length(length) if length <= input.bytes().len() as u64) {
            while !self.rest.is_over() {
                let Ok(count) = self.move_on(input, now_ms) else { return (woken, false) };
                woken.append(&mut self.filling.advance(count, now_ms));
            }
        }
        (woken, true)
    }

    /// Moves bytes that were received; gives how many of the body those are.
    fn move_on(&mut self, input: &mut Input, now_ms: u64) -> Result<usize, Outcome> {
        let spare = self.filling.spare(now_ms).map_err(|_| Outcome::NoRoom)?;
        let bytes = input.bytes_mut();
        let part = bytes.len().min(spare.len());
        let taken = self.rest.take(&mut bytes[..part]);
        let (consumed, payload) = taken.map_err(|_| Outcome::Cut)?;
        let count = payload.len();
        spare[..count].copy_from_slice(&bytes[payload]);
        input.consume(consumed);
        self.bytes += count as u64;
        Ok(count)
    }

    /// Takes what the socket has; gives how many bytes of the body those are.
    fn take<E: Engine>(
        &mut self,
        engine: &mut E,
        connection: &mut OriginConn,
        now_ms: u64,
    ) -> Result<usize, Outcome> {
        let comes = usize::try_from(self.rest.known().unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
        let spare = self.filling.spare(now_ms).map_err(|_| Outcome::NoRoom)?;
        let most = spare.len().min(comes);
        match engine.take(&connection.fd, &mut spare[..most]) {
            None => Err(Outcome::Watch),
            Some(Ok(0)) => Err(Outcome::Ended),
            Some(Ok(count)) => {
                self.rest.skip(count as u64);
                self.bytes += count as u64;
                self.note_received(count);
                Ok(count)
            }
            Some(Err(_)) => {
                connection.broken = true;
                Err(Outcome::Cut)
            }
        }
    }
}

/// From so many bytes on that are certain to come of a body that is stored they are received into
/// the cache itself; below, a receive that the engine batches with others is cheaper.
pub const DIRECT_BYTES: u64 = 32 * 1024;
/// How many times `fill_ahead_bytes` a reader may be behind where the body is only passed on.
const BEHIND: u64 = 16;
/// Bytes that one fill takes before it queues behind others: no more than a pipe moves at once.
const AT_ONCE_BYTES: u64 = 256 * 1024;

fn wait<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let fill = worker.fills.get_mut(key).expect("the caller's fill is there");
    fill.waits = true;
}

/// There is no memory: it waits for some as long as for an origin, and its readers with it.
fn starve<E: Engine>(worker: &mut Worker<E>, key: Key) {
    wait(worker, key);
    let now = worker.engine.now();
    let fill = worker.fills.get_mut(key).expect("the caller's fill is there");
    let since = *fill.starved.get_or_insert(now);
    if now.since(since) >= Duration::from_millis(fill.snapshot.limits().answer_ms) {
        return end(worker, key, false);
    }
    // A reader that goes on has it try again as well.
    if !worker.starved.contains(&key) {
        worker.starved.push(key);
    }
}

/// Asks the origin for more: for bytes, or only for word that there are some.
fn receive<E: Engine>(worker: &mut Worker<E>, key: Key, watches: bool) {
    let Worker { engine, origins, fills, .. } = worker;
    let fill = fills.get_mut(key).expect("the caller's fill is there");
    let connection = origins.connections.get_mut(fill.slot).expect("held by the fill");
    if !connection.receiving {
        fill.since = engine.now();
    }
    if connection.ended {
        return ended(worker, key);
    }
    if !connection.receiving {
        connection.receiving = true;
        let token = fill.slot.token(Kind::Origin);
        engine.expect_bytes(&connection.fd, fill.rest.expected());
        if watches {
            engine.watch(&connection.fd, token);
        } else {
            engine.recv(&connection.fd, Buffer::SIZE, token);
        }
    }
}

/// The origin ended its stream.
pub(crate) fn ended<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let fill = worker.fills.get_mut(key).expect("its connection is held by it");
    if fill.waits {
        // What is at hand goes first.
        let connection = worker.origins.connections.get_mut(fill.slot).expect("held by the fill");
        connection.ended = true;
        return;
    }
    let is_whole = matches!(fill.rest, Rest::UntilClose);
    fill.may_be_kept = false;
    end(worker, key, is_whole);
}

/// Ends a fill: all of the body is there, or the rest will never come.
pub(crate) fn end<E: Engine>(worker: &mut Worker<E>, key: Key, is_whole: bool) {
    let fill = worker.fills.remove(key).expect("the caller's fill is there");
    finish(worker, fill, is_whole);
}

/// Ends one that is not, or not any more, among those of the worker.
fn finish<E: Engine>(worker: &mut Worker<E>, fill: Fill, is_whole: bool) {
    let now_ms = now_ms(&worker.engine);
    let Fill { slot, id, mut filling, may_be_kept, bytes, after, .. } = fill;
    worker.origins.note_body(id, bytes);
    worker.let_origin_go(slot, id, is_whole && may_be_kept);
    worker.counters.cache_bytes_filled.add(bytes);
    if let Some(after) = after.filter(|_| is_whole) {
        let woken = filling.append(after);
        worker.wake(woken);
    }
    let woken = if is_whole { filling.finish(now_ms) } else { filling.cut() };
    worker.wake(woken);
}

impl<E: Engine> Worker<E> {
    /// Tries again for those fills that found no memory, until one of them finds none: those after it
    /// would find none either, and each of them takes others out of the cache to find some. It is the
    /// last one the next time.
    pub(crate) fn feed_starved(&mut self) {
        let starved = std::mem::take(&mut self.starved);
        for (at, key) in starved.iter().enumerate() {
            run(self, *key);
            if self.starved.contains(key) {
                self.starved.splice(0..0, starved[at + 1..].iter().copied());
                return;
            }
        }
    }

    /// Breaks off what nobody reads: where all are leaving, nobody will.
    pub(crate) fn end_unread_fills(&mut self) {
        let keys: Vec<Key> = self.fills.iter().map(|(key, _)| key).collect();
        for key in keys {
            if let Some(fill) = self.fills.get_mut(key) {
                fill.goes_on = false;
            }
            run(self, key);
        }
    }

    /// Breaks every fill off.
    pub(crate) fn end_fills(&mut self) {
        let keys: Vec<Key> = self.fills.iter().map(|(key, _)| key).collect();
        for key in keys {
            end(self, key, false);
        }
    }
}

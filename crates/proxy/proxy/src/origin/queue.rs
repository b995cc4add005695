//! Lines of requests that wait for room at their own origin: it has as many connections as it may
//! have. Each origin has a line of its own, so that one that stalls holds up nobody else's
//! requests; the oldest of a line is the first to be sent, and each is given up in its time.
//!
//! Want of room at our own side, of descriptors say, is `waiting.rs`.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::exchange::Plan;
use crate::exchange::reason::Reason;
use crate::origin::{self, OriginId, Origins, Phase};
use crate::stage::fetch;
use crate::worker::Worker;

/// The exchange's origin, picked before, can have no further connection. It goes to another one of
/// its route that has room, or into the line, or is refused where that is full as well.
pub(crate) fn overflow<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let transaction = &worker.exchange(key).transaction;
    let mut id = transaction.origin.expect("picked before it was full");
    if let Some(other) = other_with_room(worker, key, id) {
        worker.leave_origin(key);
        worker.origins.note_picked(other);
        worker.exchange(key).transaction.origin = Some(other);
        id = other;
        let kept = worker.take_kept(key, id);
        if kept.is_some() || worker.make_origin_room(key, id) {
            return fetch::proceed(worker, key, id, kept);
        }
    }
    let now = worker.engine.now();
    let max = worker.share(worker.snapshot.limits().origin_queue);
    if worker.origins.line_length(id) >= max {
        worker.counters.origin_queue_refusals.add(1);
        return fetch::fail(worker, key, Reason::OriginBusy);
    }
    worker.origins.enqueue(id, key, now);
    worker.exchange(key).transaction.phase = Phase::Queued;
}

/// Another origin of the same route that is well and has room: of these the one with the fewest
/// requests under way.
fn other_with_room<E: Engine>(worker: &Worker<E>, key: Key, full: OriginId) -> Option<OriginId> {
    let exchange = worker.exchanges.get(key).expect("the caller's exchange is under way");
    let Plan::Route(index) = exchange.plan else { return None };
    let snapshot = exchange.snapshot();
    let route = snapshot.route(exchange.service, index);
    let max = worker.origin_connections_max(key);
    let origins = &worker.origins;
    let may = |&(index, &id): &(usize, &OriginId)| {
        id != full
            && exchange.transaction.tried != Some(id)
            && origins.health(id).is_well()
            && !route.check_fails(index)
            && origins.line_length(id) == 0
            && (origins.has_room(id, max) || origins.has_idle(id))
    };
    let others = route.origins.iter().enumerate().filter(may);
    others.map(|(_, &id)| id).min_by_key(|&id| origins.outstanding(id))
}

/// Sends those on that there is room for by now. Once a turn: what ended in it made room.
pub(crate) fn serve_lines<E: Engine>(worker: &mut Worker<E>) {
    while let Some(id) = worker.origins.next_ready() {
        // Each that is sent on takes a kept connection or the room for one, so this ends.
        while let Some(key) = worker.origins.first_in_line(id) {
            let kept = worker.take_kept(key, id);
            if kept.is_none() && !worker.make_origin_room(key, id) {
                break;
            }
            worker.origins.leave_line(id, key);
            worker.exchange(key).transaction.phase = Phase::Start;
            fetch::proceed(worker, key, id, kept);
        }
    }
}

/// Gives those up that have waited too long.
pub(crate) fn give_up_lines<E: Engine>(worker: &mut Worker<E>, now: Instant) {
    let Worker { origins, exchanges, .. } = worker;
    let is_over = |&(key, since): &(Key, Instant)| {
        let exchange = exchanges.get(key).expect("an exchange leaves the line before it ends");
        since + Duration::from_millis(exchange.snapshot().limits().queue_ms) <= now
    };
    let over: Vec<Key> = origins.in_lines().filter(is_over).map(|entry| entry.0).collect();
    for key in over {
        let exchange = worker.exchanges.get(key);
        if exchange.is_none_or(|exchange| exchange.transaction.phase != Phase::Queued) {
            continue; // It went with one before it.
        }
        worker.counters.origin_queue_refusals.add(1);
        fetch::fail(worker, key, Reason::OriginBusy);
    }
}

impl Origins {
    /// Exchanges in lines.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    pub(crate) fn line_length(&self, id: OriginId) -> usize {
        self.known(id).line.len()
    }

    /// Whether others wait for room at the origin, so that who comes now stands behind them.
    pub(crate) fn has_line(&self, id: OriginId) -> bool {
        self.queued > 0 && self.line_length(id) > 0
    }

    /// Puts an exchange, which has the origin picked, at the end of its line.
    pub(crate) fn enqueue(&mut self, id: OriginId, key: Key, now: Instant) {
        let line = &mut self.known_mut(id).line;
        line.push_back((key, now));
        if !self.lines.contains(&id) {
            self.lines.push(id);
        }
        self.queued += 1;
    }

    /// Takes an exchange out of the line of its origin.
    pub(crate) fn leave_line(&mut self, id: OriginId, key: Key) {
        let line = &mut self.known_mut(id).line;
        let place = line.iter().position(|entry| entry.0 == key).expect("it stands there");
        line.remove(place);
        self.queued -= 1;
        // If it was its turn, it is the turn of the next.
        self.note_room(id);
    }

    pub(crate) fn first_in_line(&self, id: OriginId) -> Option<Key> {
        self.known[id.0 as usize].as_ref()?.line.front().map(|entry| entry.0)
    }

    /// The exchanges of all lines, with the time since which each waits.
    pub(crate) fn in_lines(&mut self) -> impl Iterator<Item = (Key, Instant)> {
        let Self { known, lines, .. } = self;
        let line = |id: OriginId| known[id.0 as usize].as_ref().map(|known| &known.line);
        lines.retain(|&id| line(id).is_some_and(|line| !line.is_empty()));
        lines.iter().filter_map(move |&id| line(id)).flatten().copied()
    }

    /// An origin where room was made while it had a line.
    pub(crate) fn next_ready(&mut self) -> Option<OriginId> {
        self.ready.pop()
    }

    pub(super) fn note_room(&mut self, id: OriginId) {
        if self.has_line(id) && self.ready.last() != Some(&id) {
            self.ready.push(id);
        }
    }
}

impl<E: Engine> Worker<E> {
    /// This worker's share of what the process may have; of nothing nothing, else at least one.
    pub(crate) fn share(&self, of_process: u64) -> usize {
        of_process.div_ceil(self.shared.counters.len() as u64) as usize
    }

    /// Connections that this worker may have to the origin of an exchange. Without a limit a
    /// booster's origin has none, and the target of a forward proxy a quarter of the descriptors:
    /// whoever asks for it, no target takes them all.
    pub(crate) fn origin_connections_max(&self, key: Key) -> usize {
        let exchange = self.exchanges.get(key).expect("the caller's exchange is under way");
        match (exchange.snapshot().limits().origin_connections, exchange.plan) {
            (0, Plan::Route(_)) => usize::MAX,
            (0, _) => (self.descriptors() / 4).max(1),
            (limit, _) => self.share(limit),
        }
    }

    /// Takes a kept connection to the origin for the exchange, if it may have one.
    pub(crate) fn take_kept(&mut self, key: Key, id: OriginId) -> Option<Key> {
        let Self { origins, engine, exchanges, .. } = self;
        let exchange = exchanges.get(key).expect("the caller's exchange is under way");
        let owner = origin::owner(exchange);
        let dials = exchange.plan == Plan::Tunnel || exchange.transaction.dials;
        if dials { None } else { origins.take_idle(id, key, owner, |fd| engine.is_announced(fd)) }
    }

    /// Whether the origin may have a further connection; a kept one that the exchange cannot use
    /// is closed for it.
    pub(crate) fn make_origin_room(&mut self, key: Key, id: OriginId) -> bool {
        let max = self.origin_connections_max(key);
        if self.origins.has_room(id, max) {
            return true;
        }
        let Some(kept) = self.origins.surplus(id, 0, usize::MAX) else { return false };
        self.close_origin(kept);
        self.origins.has_room(id, max)
    }
}

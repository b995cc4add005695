//! Queues of requests that wait for room at their own origin: it has as many connections as it may
//! have. Each origin has a queue of its own, so that one that stalls holds up no other one's
//! requests; the oldest of a queue is the first to be sent, and each is given up in its time.
//!
//! Want of room at our own side, of descriptors say, is `overload/wait_list.rs`.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::core::Core;
use crate::exchange::{Reason, RequestPlan};
use crate::origin::{OriginId, OriginUse, Origins, Phase, close::close, pinned, side};

/// A way for a request to its origin.
#[derive(Debug)]
pub(crate) enum ConnectionSource {
    /// An idle connection.
    Idle(OriginUse),
    /// There is room for a new one.
    New,
}

/// A way to the origin for the exchange, if there is one now.
pub(crate) fn acquire<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    id: OriginId,
) -> Option<ConnectionSource> {
    match take_idle(core, key, id) {
        Some(idle) => Some(ConnectionSource::Idle(idle)),
        None => free_capacity(core, key, id).then_some(ConnectionSource::New),
    }
}

/// A way for the exchange past those that wait for its origin; only where none waits, or it was
/// its turn.
pub(crate) fn acquire_unless_queued<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    id: OriginId,
) -> Option<ConnectionSource> {
    if core.origins.has_queue(id) { None } else { acquire(core, key, id) }
}

/// The exchange's origin, picked before, can have no further connection. The exchange goes to
/// another one of its route that has room: the way there. Otherwise it is put into the queue.
///
/// # Errors
/// As many requests wait for the origin as may wait.
pub(crate) fn divert_or_enqueue<E: Engine>(
    core: &mut Core<E>,
    key: Key,
) -> Result<Option<ConnectionSource>, Reason> {
    let mut id = core.exchange(key).transaction.origin.expect("picked before it was full");
    if let Some(other) = alternative_origin(core, key, id) {
        side::abandon(core, key);
        core.origins.begin_request(other);
        core.exchange(key).transaction.origin = Some(other);
        id = other;
        if let Some(way) = acquire(core, key, id) {
            return Ok(Some(way));
        }
    }
    let now = core.engine.now();
    let max = core.share_per_worker(core.snapshot.limits().origin_queue);
    if core.origins.queue_length(id) >= max {
        core.counters.origin_queue_refusals.add(1);
        return Err(Reason::OriginBusy);
    }
    core.origins.enqueue(id, key, now);
    core.exchange(key).transaction.phase = Phase::Queued;
    Ok(None)
}

/// Another origin of the same route that is well and has room: of these the one with the fewest
/// requests under way.
fn alternative_origin<E: Engine>(core: &Core<E>, key: Key, full: OriginId) -> Option<OriginId> {
    let exchange = core.exchanges.get(key).expect("the caller's exchange is under way");
    let route = exchange.route_origins()?;
    let max = connections_max(core, key);
    let origins = &core.origins;
    let may = |&(index, &id): &(usize, &OriginId)| {
        id != full
            && exchange.transaction.failed_origin != Some(id)
            && origins.state(id).health.is_healthy()
            && !route.is_check_failing(index)
            && origins.queue_length(id) == 0
            && (origins.has_capacity(id, max) || !origins.state(id).idle.is_empty())
    };
    let others = route.origins.iter().enumerate().filter(may);
    others.map(|(_, &id)| id).min_by_key(|&id| origins.state(id).outstanding)
}

/// The exchanges that have waited too long.
pub(crate) fn overdue<E: Engine>(core: &mut Core<E>, now: Instant) -> Vec<Key> {
    let Core { origins, exchanges, .. } = core;
    let is_over = |&(key, since): &(Key, Instant)| {
        exchanges.get(key).is_some_and(|exchange| {
            since + Duration::from_millis(exchange.snapshot().limits().queue_ms) <= now
        })
    };
    origins.queued_exchanges().filter(is_over).map(|entry| entry.0).collect()
}

/// Whether the exchange still waits for its origin.
pub(crate) fn is_queued<E: Engine>(core: &Core<E>, key: Key) -> bool {
    core.exchanges.get(key).is_some_and(|it| it.transaction.phase == Phase::Queued)
}

/// Connections that this worker may have to the origin of an exchange. Without a limit a
/// booster's origin has none, and the target of a forward proxy a quarter of the descriptors:
/// whoever asks for it, no target takes them all.
fn connections_max<E: Engine>(core: &Core<E>, key: Key) -> usize {
    let Some(exchange) = core.exchanges.get(key) else { return 0 };
    match (exchange.snapshot().limits().origin_connections, exchange.plan) {
        (0, RequestPlan::Route(_)) => usize::MAX,
        (0, _) => (core.overload.descriptors_max / 4).max(1),
        (limit, _) => core.share_per_worker(limit),
    }
}

/// Takes an idle connection to the origin for the exchange, if it may have one.
fn take_idle<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId) -> Option<OriginUse> {
    let Core { origins, engine, exchanges, .. } = core;
    let exchange = exchanges.get(key)?;
    let owner = pinned::required_client(exchange);
    let dials = exchange.plan == RequestPlan::Tunnel || exchange.transaction.skips_idle;
    if dials { None } else { origins.take_idle(id, key, owner, |wire| wire.is_announced(engine)) }
}

/// Whether the origin may have a further connection; an idle one that the exchange cannot use
/// is closed for it.
fn free_capacity<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId) -> bool {
    let max = connections_max(core, key);
    if core.origins.has_capacity(id, max) {
        return true;
    }
    let Some(idle) = core.origins.surplus_idle(id, 0, usize::MAX) else { return false };
    close(core, idle);
    core.origins.has_capacity(id, max)
}

impl Origins {
    /// Exchanges in queues.
    pub(crate) fn queued_count(&self) -> usize {
        self.queued_count
    }

    pub(crate) fn queue_length(&self, id: OriginId) -> usize {
        self.state(id).queue.len()
    }

    /// Whether others wait for room at the origin, so that who comes now stands behind them.
    pub(crate) fn has_queue(&self, id: OriginId) -> bool {
        self.queued_count > 0 && self.queue_length(id) > 0
    }

    /// Puts an exchange, which has the origin picked, at the end of its queue.
    pub(crate) fn enqueue(&mut self, id: OriginId, key: Key, now: Instant) {
        let queue = &mut self.state_mut(id).queue;
        queue.push_back((key, now));
        if !self.queues.contains(&id) {
            self.queues.push(id);
        }
        self.queued_count += 1;
    }

    /// Takes an exchange out of the queue of its origin.
    pub(crate) fn leave_queue(&mut self, id: OriginId, key: Key) {
        let queue = &mut self.state_mut(id).queue;
        let place = queue.iter().position(|entry| entry.0 == key).expect("it stands there");
        queue.remove(place);
        self.queued_count -= 1;
        // If it was its turn, it is the turn of the next.
        self.note_capacity(id);
    }

    pub(crate) fn first_in_queue(&self, id: OriginId) -> Option<Key> {
        self.states[id.0 as usize].as_ref()?.queue.front().map(|entry| entry.0)
    }

    /// The exchanges of all queues, with the time since which each waits.
    pub(crate) fn queued_exchanges(&mut self) -> impl Iterator<Item = (Key, Instant)> {
        let Self { states: known, queues, .. } = self;
        let queue = |id: OriginId| known[id.0 as usize].as_ref().map(|known| &known.queue);
        queues.retain(|&id| queue(id).is_some_and(|queue| !queue.is_empty()));
        queues.iter().filter_map(move |&id| queue(id)).flatten().copied()
    }

    /// An origin where room was made while it had a queue.
    pub(crate) fn pop_with_capacity(&mut self) -> Option<OriginId> {
        self.with_capacity.pop()
    }

    pub(super) fn note_capacity(&mut self, id: OriginId) {
        if self.has_queue(id) && self.with_capacity.last() != Some(&id) {
            self.with_capacity.push(id);
        }
    }
}

//! Origin queues: requests that wait because their origin has as many connections as it may have.
//! Each origin has its own queue, so that a stalled origin delays no request to another one. The
//! oldest request of a queue is sent first. A request that has waited for `queue_ms` is refused.
//!
//! Requests that wait for resources of this process, such as descriptors, are in
//! `overload/wait_list.rs`.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::core::{Core, ExchangeParts};
use crate::exchange::{Reason, RequestPlan};
use crate::origin::{
    OriginId, OriginUse, Origins, Phase, UsableConnections, close::close, h1, pinned, pipeline,
    release,
};

/// The connection for a request to its origin.
#[derive(Debug)]
pub(crate) enum ConnectionSource {
    /// An idle connection.
    Idle(OriginUse),
    /// A connection that may be opened.
    New,
    /// A connection on which the responses to other requests come first.
    Shared(OriginUse),
}

/// Returns whether the exchange has to wait until the responses to earlier requests of its client
/// are delivered, because connections to origins are limited. With a connection it would wait for
/// those, and they might wait for that connection.
#[inline]
pub(crate) fn must_await_turn<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    if core.exchange(key).snapshot().limits().origin_connections == 0 {
        return false;
    }
    let ExchangeParts { client, .. } = core.parts(key);
    client.is_some_and(|client| !client.pipeline.is_first(key))
}

/// Acquires a connection to the origin for the exchange: the one with the fewest requests that have
/// no response yet. So it is an idle one, or else the permission to open one, or else a place
/// behind other requests. Returns `None` if the origin has as many connections as it may have, and
/// none has a place for the exchange.
pub(crate) fn acquire<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    id: OriginId,
) -> Option<ConnectionSource> {
    if let Some(idle) = take_idle(core, key, id) {
        return Some(ConnectionSource::Idle(idle));
    }
    if free_capacity(core, key, id) {
        return Some(ConnectionSource::New);
    }
    pipeline::take_place(core, key, id).map(ConnectionSource::Shared)
}

/// Like [`acquire`], but returns `None` if other requests wait for the origin.
pub(crate) fn acquire_unless_queued<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    id: OriginId,
) -> Option<ConnectionSource> {
    if core.origins.has_queue(id) { None } else { acquire(core, key, id) }
}

/// Handles an exchange whose origin may have no further connection. If another origin of the route
/// has capacity, the exchange moves there and the connection is returned. Otherwise the exchange
/// enters the queue of its origin.
///
/// # Errors
/// [`Reason::OriginBusy`] if the queue is full.
pub(crate) fn divert_or_enqueue<E: Engine>(
    core: &mut Core<E>,
    key: Key,
) -> Result<Option<ConnectionSource>, Reason> {
    let mut id = core.exchange(key).transaction.origin.expect("picked before it was full");
    if let Some(other) = alternative_origin(core, key, id) {
        release::abandon_transaction(core, key);
        core.origins.begin_request(other);
        core.exchange(key).transaction.origin = Some(other);
        id = other;
        if let Some(connection) = acquire(core, key, id) {
            return Ok(Some(connection));
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

/// Returns another origin of the same route that is healthy and has capacity. If there are several,
/// returns the one with the fewest outstanding requests.
fn alternative_origin<E: Engine>(core: &Core<E>, key: Key, full: OriginId) -> Option<OriginId> {
    let exchange = core.exchanges.get(key).expect("the caller's exchange is in the table");
    let route = exchange.route_origins()?;
    let max = connections_max(core, key);
    let origins = &core.origins;
    let is_candidate = |&(index, &id): &(usize, &OriginId)| {
        id != full
            && exchange.transaction.failed_origin != Some(id)
            && origins.state(id).health.is_healthy()
            && !route.is_check_failing(index)
            && origins.queue_length(id) == 0
            && (origins.has_capacity(id, max) || !origins.state(id).idle.is_empty())
    };
    let others = route.origins.iter().enumerate().filter(is_candidate);
    others.map(|(_, &id)| id).min_by_key(|&id| origins.state(id).outstanding)
}

/// Returns the queued exchanges that have waited for `queue_ms`.
pub(crate) fn overdue<E: Engine>(core: &mut Core<E>, now: Instant) -> Vec<Key> {
    let Core { origins, exchanges, .. } = core;
    let is_over = |&(key, since): &(Key, Instant)| {
        exchanges.get(key).is_some_and(|exchange| {
            since + Duration::from_millis(exchange.snapshot().limits().queue_ms) <= now
        })
    };
    origins.queued_exchanges().filter(is_over).map(|entry| entry.0).collect()
}

/// Returns whether the exchange is in the queue of its origin.
pub(crate) fn is_queued<E: Engine>(core: &Core<E>, key: Key) -> bool {
    core.exchanges.get(key).is_some_and(|exchange| exchange.transaction.phase == Phase::Queued)
}

/// Returns the number of connections that this worker may have to the origin of an exchange. If no
/// limit is configured, the origin of a route is not limited. A target of a forward proxy may have
/// a quarter of the descriptors, so that no client can make one target use them all.
#[inline(always)]
fn connections_max<E: Engine>(core: &Core<E>, key: Key) -> usize {
    let Some(exchange) = core.exchanges.get(key) else { return 0 };
    let snapshot = exchange.snapshot();
    let limits = snapshot.limits();
    let route = snapshot.route_of(exchange.service, exchange.plan);
    let configured = match (limits.origin_connections, route.and_then(|route| route.cgi.as_ref())) {
        (0, Some(_)) => limits.cgi_programs,
        (limit, Some(_)) => limit.min(limits.cgi_programs),
        (limit, None) => limit,
    };
    match (configured, exchange.plan) {
        (0, RequestPlan::Route(_)) => usize::MAX,
        (0, _) => (core.overload.descriptors_max / 4).max(1),
        (limit, _) => core.share_per_worker(limit),
    }
}

/// The time for which a connection to a program is idle before it takes a request that cannot be
/// sent again, while the program has not kept a connection yet. Some programs, such as uWSGI, close
/// each connection after its response, whatever was requested.
const KEPT_AFTER: Duration = Duration::from_secs(1);

/// Takes an idle connection to the origin, if there is one that the exchange may use. One that has
/// ended in this turn, or received bytes that cannot belong to the next request, is none.
fn take_idle<E: Engine>(core: &mut Core<E>, key: Key, id: OriginId) -> Option<OriginUse> {
    let Core { origins, engine, exchanges, .. } = core;
    let exchange = exchanges.get(key)?;
    let client = pinned::required_client(exchange);
    if exchange.plan == RequestPlan::Tunnel || exchange.transaction.usable == UsableConnections::New
    {
        return None;
    }
    let (now, may_end) = (engine.now(), origins.may_end_idle(id) && !h1::may_repeat(exchange));
    origins.take_idle(id, key, client, |connection| {
        connection.wire.is_recv_ready(engine)
            || (may_end && now < connection.idle_since + KEPT_AFTER)
    })
}

/// Returns whether the origin may have a further connection. At the limit, this first closes an
/// idle connection, if there is one. The caller has found out that the exchange cannot use it.
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
    /// Returns the number of exchanges in the queues of all origins.
    pub(crate) fn queued_count(&self) -> usize {
        self.queued_count
    }

    /// Returns the number of exchanges in the queue of an origin.
    pub(crate) fn queue_length(&self, id: OriginId) -> usize {
        self.state(id).queue.len()
    }

    /// Returns whether exchanges wait for the origin, so that a new one has to queue behind them.
    #[inline]
    pub(crate) fn has_queue(&self, id: OriginId) -> bool {
        self.queued_count > 0 && self.queue_length(id) > 0
    }

    /// Appends an exchange to the queue of the origin that it has picked.
    pub(crate) fn enqueue(&mut self, id: OriginId, key: Key, now: Instant) {
        let queue = &mut self.state_mut(id).queue;
        queue.push_back((key, now));
        if !self.queues.contains(&id) {
            self.queues.push(id);
        }
        self.queued_count += 1;
    }

    /// Removes an exchange from the queue of its origin.
    pub(crate) fn leave_queue(&mut self, id: OriginId, key: Key) {
        let queue = &mut self.state_mut(id).queue;
        let position =
            queue.iter().position(|entry| entry.0 == key).expect("the exchange is in the queue");
        queue.remove(position);
        self.queued_count -= 1;
        // If this exchange was about to get a connection, the next one gets it.
        self.note_capacity(id);
    }

    /// Returns the exchange that has waited longest for the origin.
    pub(crate) fn first_in_queue(&self, id: OriginId) -> Option<Key> {
        self.states[id.0 as usize].as_ref()?.queue.front().map(|entry| entry.0)
    }

    /// Returns the exchanges of all queues, each with the time at which it began to wait.
    pub(crate) fn queued_exchanges(&mut self) -> impl Iterator<Item = (Key, Instant)> {
        let Self { states, queues, .. } = self;
        let queue = |id: OriginId| states[id.0 as usize].as_ref().map(|state| &state.queue);
        queues.retain(|&id| queue(id).is_some_and(|queue| !queue.is_empty()));
        queues.iter().filter_map(move |&id| queue(id)).flatten().copied()
    }

    /// Takes an origin that gained capacity while it had a queue.
    pub(crate) fn pop_gained_capacity(&mut self) -> Option<OriginId> {
        self.gained_capacity.pop()
    }

    /// Records that the origin may have another connection, or has another idle one.
    #[inline]
    pub(super) fn note_capacity(&mut self, id: OriginId) {
        if self.has_queue(id) && self.gained_capacity.last() != Some(&id) {
            self.gained_capacity.push(id);
        }
    }
}

//! Load shedding: selects the clients to close when capacity runs short.
//!
//! A worker that is short of capacity closes the client connections that have been stalled longest,
//! and only as many as necessary. A client is stalled while its exchange waits for the client
//! rather than for the origin, or while its connection is idle. Slow attacks stall: a request
//! header arrives byte by byte, or a response is never read. So new clients displace stalled ones
//! long before a deadline is over. Clients whose requests and responses make progress keep their
//! connections. As long as there is capacity, no client is shed.
//!
//! A client is shed by an event of its exchange, which the worker delivers: see [`Shedding`].

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};
use millrace_tls::TlsErrorKind;

use crate::conn::{Conn, ConnState, client};
use crate::core::Core;
use crate::exchange::{Event, EventTarget, Exchange, Reason};
use crate::origin::close::close;
use crate::overload::capacity::{self, client_connections, descriptors_used, is_short_of_memory};
use crate::overload::{PATIENCE_SERVED, UnmetDemand};
use crate::secure::failure;
use crate::transfer::TransferState;
use crate::transfer::pace::meets_rate;

/// An iteration over the clients to shed, one after the other.
///
/// At least `shed_min` clients are shed. These free descriptors for requests that wait for one, or
/// make up for descriptors that the kernel refused. Then more are shed until a reserve of a 64th of
/// the capacity is free. Shedding more at once would delay all other clients. If only memory is
/// short, only clients that hold memory are shed.
#[derive(Debug)]
pub(crate) struct Shedding {
    /// The stalled clients in the order in which they are shed.
    stalled: std::vec::IntoIter<(ShedPriority, Key)>,
    /// The number of clients that are shed even if there is a reserve.
    shed_min: usize,
    /// The number of clients that will close soon: they have got their last response.
    leaving: usize,
    /// The client that was shed last, until the next call finds out whether it is closed.
    last_shed: Option<Key>,
}

impl Shedding {
    /// Begins to shed at least `shed_min` clients. If any have to be shed, an eighth of the idle
    /// origin connections is closed first.
    pub(crate) fn new<E: Engine>(core: &mut Core<E>, shed_min: usize) -> Self {
        let (stalled, leaving) = stalled_clients(core);
        let closed =
            if shed_min > 0 || lacks_reserve(core, leaving) { close_idle_origins(core) } else { 0 };
        // The connections that were just closed and the clients that are leaving count as shed.
        let shed_min = shed_min.saturating_sub(closed + leaving);
        Self { stalled: stalled.into_iter(), shed_min, leaving, last_shed: None }
    }

    /// Returns the event that sheds the next client. It has to be delivered before the next call.
    pub(crate) fn next<E: Engine>(&mut self, core: &mut Core<E>) -> Option<(EventTarget, Event)> {
        loop {
            // If the client that was shed last is still open, it is getting a refusal and closes
            // soon.
            let last_shed = self.last_shed.take();
            self.leaving +=
                usize::from(last_shed.is_some_and(|client| core.conns.get(client).is_some()));
            let (_, key) = self.stalled.next()?;
            if self.shed_min > 0 {
                self.shed_min -= 1;
            } else if !lacks_reserve(core, self.leaving) {
                if !is_short_of_memory(core) {
                    return None;
                }
                if !holds_memory(core, key) {
                    continue;
                }
            }
            self.last_shed = Some(key);
            if let Some(event) = shed(core, key) {
                return Some(event);
            }
        }
    }
}

/// Begins to shed clients for the demand of this turn that found no capacity; `None` if there was
/// none. Requests that have waited since an earlier turn do not count, because
/// [`shed_for_waiters`] sheds for them. If they counted, they would shed clients in each turn. A
/// shortage that shedding does not end, such as one of kernel memory, would then close all clients.
pub(crate) fn shed_for_unmet_demand<E: Engine>(core: &mut Core<E>) -> Option<Shedding> {
    let UnmetDemand { descriptors, requests } = std::mem::take(&mut core.overload.unmet);
    if !descriptors && requests == 0 {
        return None;
    }
    // Some of the requests may have found capacity since.
    let requests = requests.min(capacity::waiting_for_descriptors(core).count());
    // A 64th of the clients, like the reserve that is freed when the worker's own count is short.
    let clients = if descriptors { core.conns.len() / 64 + 1 } else { 0 };
    Some(Shedding::new(core, requests.max(clients)))
}

/// Begins to shed clients for a client that was accepted. Returns `None` from the second call of a
/// turn on, because no client becomes stalled within a turn.
pub(crate) fn shed_for_client<E: Engine>(core: &mut Core<E>) -> Option<Shedding> {
    let now = core.engine.now();
    let is_first = core.overload.last_client_shed.replace(now) != Some(now);
    is_first.then(|| Shedding::new(core, 0))
}

/// Begins to shed clients if there is a shortage, and adapts the grace. The maintenance calls this
/// periodically.
pub(crate) fn shed_for_waiters<E: Engine>(core: &mut Core<E>) -> Option<Shedding> {
    if !capacity::is_short(core) {
        core.overload.double_grace();
        return None;
    }
    core.overload.halve_grace();
    let waiting = capacity::waiting_for_descriptors(core).count();
    Some(Shedding::new(core, waiting))
}

/// Returns an event that sheds a client if the cache had no memory for a body since the last call.
/// It is the client that has been stalled longest among those that read a body that is no longer
/// stored. Only one is shed at a time, because its body may have taken most of the memory.
pub(crate) fn shed_cache_reader<E: Engine>(core: &mut Core<E>) -> Option<(EventTarget, Event)> {
    let misses = capacity::cache_memory_misses(core);
    if std::mem::replace(&mut core.overload.cache_memory_misses, misses) == misses {
        return None;
    }
    let (stalled, _) = stalled_clients(core);
    let (_, key) = stalled.into_iter().find(|(_, key)| holds_cache_memory(core, *key))?;
    shed(core, key)
}

/// Returns whether the free capacity is less than the reserve that shedding creates. The `leaving`
/// clients count as closed.
pub(crate) fn lacks_reserve<E: Engine>(core: &Core<E>, leaving: usize) -> bool {
    let connections_max = core.overload.connections_max;
    client_connections(core) - leaving >= connections_max - connections_max / 64
        || descriptors_used(core) - leaving >= core.overload.descriptors_max * 55 / 64
}

/// Sheds a client. Returns the event that ends its exchange; a connection without an exchange is
/// closed at once.
fn shed<E: Engine>(core: &mut Core<E>, key: Key) -> Option<(EventTarget, Event)> {
    core.counters.connections_shed.add(1);
    let Some(first) = core.conns.get(key).and_then(|conn| conn.pipeline.first()) else {
        if core.conns.get(key).is_some_and(|conn| conn.state == ConnState::Handshake) {
            failure::record(core, key, TlsErrorKind::Shed, None);
        }
        client::close(core, key);
        return None;
    };
    let exchange = core.exchange(first);
    let uploads = exchange.upload.state() == TransferState::AwaitingSource && !exchange.is_tunnel;
    let reason = if uploads { Reason::BodyTimedOut } else { Reason::Shed };
    Some((EventTarget::Exchange(first), Event::End(reason)))
}

/// Closes an eighth of the idle origin connections. Returns their number.
fn close_idle_origins<E: Engine>(core: &mut Core<E>) -> usize {
    let mut closed = 0;
    for _ in 0..core.origins.idle_count().div_ceil(8) {
        let Some(key) = core.origins.oldest_idle() else { break };
        close(core, key);
        closed += 1;
    }
    closed
}

/// Returns whether a part of the memory budget is charged for a client.
fn holds_memory<E: Engine>(core: &Core<E>, key: Key) -> bool {
    let holds = |conn: &Conn| {
        conn.pipeline.first().is_some()
            || !conn.wire.recv_buffer.is_empty()
            || conn.wire.part_since().is_some()
    };
    core.conns.get(key).is_some_and(holds)
}

/// Returns whether an exchange of the client, which may have several in its pipeline, keeps memory
/// of the cache that could be reused otherwise.
fn holds_cache_memory<E: Engine>(core: &Core<E>, key: Key) -> bool {
    let (Some(cache), Some(conn)) = (&core.shared.cache, core.conns.get(key)) else {
        return false;
    };
    let get = |key: Key| core.exchanges.get(key);
    let first = conn.pipeline.first().and_then(get);
    let mut all = std::iter::successors(first, |exchange| exchange.next_in_pipeline.and_then(get));
    all.any(|exchange| exchange.caching.reads_removed(cache))
}

/// Returns the clients that have been stalled for longer than the grace, in the order in which they
/// are shed, and the number of clients that are leaving. A leaving client has got its last
/// response, a refusal for example, and has the grace to read it. After that it is shed first,
/// because it loses nothing.
fn stalled_clients<E: Engine>(core: &Core<E>) -> (Vec<(ShedPriority, Key)>, usize) {
    let now = core.engine.now();
    let (mut stalled, mut leaving) = (Vec::new(), 0);
    for (key, conn) in core.conns.iter() {
        let first =
            conn.pipeline.first().and_then(|first| core.exchanges.get(first)).map(Box::as_ref);
        let unsent = match conn.state {
            ConnState::Ending => conn.wire.undelivered(&core.engine) as usize,
            _ => conn.wire.unsent(&core.engine),
        };
        let Some(stalled_time) = stalled_time(conn, first, unsent, now) else { continue };
        // A client whose end is not sent would take its response for cut.
        let is_closing = conn.is_closing() && conn.state != ConnState::Ending;
        if stalled_time >= core.overload.grace {
            stalled.push(((is_closing, stalled_time), key));
        } else {
            leaving += usize::from(is_closing);
        }
    }
    stalled.sort_unstable_by_key(|(order, _)| std::cmp::Reverse(*order));
    (stalled, leaving)
}

/// Returns how long a connection has been stalled, divided by its patience factor; `None` if it
/// does not wait for its client.
fn stalled_time(
    conn: &Conn,
    first: Option<&Exchange>,
    unsent: usize,
    now: Instant,
) -> Option<Duration> {
    let (stalled_time, patience) = match (conn.state, first) {
        (ConnState::Busy, Some(exchange)) if exchange.is_tunnel => {
            let since = exchange.upload.since().max(exchange.download.since());
            (now.since(since), PATIENCE_TUNNEL)
        }
        (ConnState::Busy, Some(exchange)) => {
            (stalled_exchange_time(exchange, unsent, now)?, PATIENCE_SERVED)
        }
        (ConnState::Busy, None) => return None,
        (ConnState::Ending, _) => (stalled_end_time(conn, unsent, now)?, PATIENCE_SERVED),
        (ConnState::New, _) => (now.since(conn.since), PATIENCE_SERVED),
        (ConnState::Idle, _) => (now.since(conn.since), PATIENCE_IDLE),
        _ => (now.since(conn.since), 1),
    };
    Some(stalled_time / patience)
}

/// Returns how long a client whose end of stream is not sent has been stalled; `None` if it keeps
/// `PACE`.
fn stalled_end_time(conn: &Conn, undelivered: usize, now: Instant) -> Option<Duration> {
    let elapsed = now.since(conn.since);
    let taken = (conn.undelivered as usize).saturating_sub(undelivered) as u64;
    (!meets_rate(taken, elapsed, PACE)).then_some(elapsed)
}

/// Returns how long an exchange has waited for its client; `None` while it waits for its origin.
fn stalled_exchange_time(exchange: &Exchange, unsent: usize, now: Instant) -> Option<Duration> {
    let (upload, download) = (&exchange.upload, &exchange.download);
    if download.state() == TransferState::AwaitingSink {
        return download.stalled_for(now, PACE, unsent + download.bytes_in_pipe());
    }
    let uploads = upload.state() == TransferState::AwaitingSource && !exchange.awaits_continue();
    uploads.then(|| upload.stalled_for(now, PACE, 0)).flatten()
}

/// The priority of a client for shedding, the greatest first: whether it has got its last response
/// and the end of its stream, and how long it has been stalled, divided by its patience factor.
type ShedPriority = (bool, Duration);

/// The patience factor of an idle client connection.
const PATIENCE_IDLE: u32 = 2;
/// The patience factor of a tunnel.
const PATIENCE_TUNNEL: u32 = 240;
/// A client that sends or receives this many bytes per second is not stalled.
const PACE: u64 = 1024;

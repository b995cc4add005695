//! Load shedding: which clients make room when it runs short.
//!
//! A worker that is short of room closes the client connections that have stood still longest, and
//! only as many as it needs. An attacker's weapon is standing still: a header that drips, a
//! response that is never read. So those who wait longest for no more than their own bytes make
//! room for those who come, long before any deadline is over; a client whose requests and responses
//! move is never the one that has stood still longest. While there is room, nobody is closed.
//!
//! A client is given up by an event of its exchange, which the worker delivers: see [`Shedding`].

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::conn::{Conn, ConnState, client};
use crate::core::Core;
use crate::exchange::{Event, EventTarget, Exchange, Reason};
use crate::origin::close::close;
use crate::overload::capacity::{self, client_connections, descriptors_used, is_short_of_memory};
use crate::overload::{PATIENCE_SERVED, UnmetDemand};
use crate::transfer::TransferState;

/// The client connections that make room, one after the other: `least`, for those whom the
/// kernel has no room for, and until a 64th of the room is free again beyond the mark at which
/// it was missed. To close more at once would keep everybody else waiting for it. For memory alone
/// only those go who hold some.
#[derive(Debug)]
pub(crate) struct Shedding {
    stalled: std::vec::IntoIter<(ShedPriority, Key)>,
    shed_min: usize,
    /// Clients that leave by themselves, or were told why they have to.
    leaving: usize,
    last_shed: Option<Key>,
}

impl Shedding {
    /// Begins to make room. An eighth of the idle origin connections goes first.
    pub(crate) fn new<E: Engine>(core: &mut Core<E>, least: usize) -> Self {
        let (still, leaving) = stalled_clients(core);
        let closed =
            if least > 0 || lacks_reserve(core, leaving) { close_idle_origins(core) } else { 0 };
        // Clients that are leaving and the connections closed here make room as well.
        let least = least.saturating_sub(closed + leaving);
        Self { stalled: still.into_iter(), shed_min: least, leaving, last_shed: None }
    }

    /// The event that gives the next client up. To be delivered before this is called again.
    pub(crate) fn next<E: Engine>(&mut self, core: &mut Core<E>) -> Option<(EventTarget, Event)> {
        loop {
            // One that gets a response goes a moment later.
            let given_up = self.last_shed.take();
            self.leaving += usize::from(given_up.is_some_and(|it| core.conns.get(it).is_some()));
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

/// Begins to make room for those who found none in this turn; `None`: there are none. For a request
/// that goes on waiting it is [`look_for_room`] that has others go: to close one for it in each
/// turn would close everybody where that does not help, as when the kernel has no memory.
pub(crate) fn shed_for_unmet_demand<E: Engine>(core: &mut Core<E>) -> Option<Shedding> {
    let UnmetDemand { descriptors, requests } = std::mem::take(&mut core.overload.unmet);
    if !descriptors && requests == 0 {
        return None;
    }
    // Some may have found room since.
    let requests = requests.min(capacity::waiting_for_descriptors(core).count());
    // As many go for clients as where it is we who count none.
    let clients = if descriptors { core.conns.len() / 64 + 1 } else { 0 };
    Some(Shedding::new(core, requests.max(clients)))
}

/// Begins to make room for a client that came, once a turn: a client that did not stand still a
/// moment ago does not now.
pub(crate) fn shed_for_client<E: Engine>(core: &mut Core<E>) -> Option<Shedding> {
    let now = core.engine.now();
    let is_first = core.overload.last_client_shed.replace(now) != Some(now);
    is_first.then(|| Shedding::new(core, 0))
}

/// Begins to make room for those who wait for some; `None`: nobody does. To be called now and then.
pub(crate) fn shed_for_waiters<E: Engine>(core: &mut Core<E>) -> Option<Shedding> {
    if !capacity::is_short(core) {
        core.overload.double_grace();
        return None;
    }
    core.overload.halve_grace();
    let helped = capacity::waiting_for_descriptors(core).count();
    Some(Shedding::new(core, helped))
}

/// Where a body has found no memory in the cache since this was asked last: the event that gives up
/// the client that has stood still longest of those that read what is not stored any more. One at a
/// time, as it may have had most of it.
pub(crate) fn shed_cache_reader<E: Engine>(core: &mut Core<E>) -> Option<(EventTarget, Event)> {
    let missed = capacity::cache_memory_misses(core);
    if std::mem::replace(&mut core.overload.cache_memory_misses, missed) == missed {
        return None;
    }
    let (still, _) = stalled_clients(core);
    let (_, key) = still.into_iter().find(|(_, key)| holds_cache_memory(core, *key))?;
    shed(core, key)
}

/// Whether less room is left than shedding makes, when so many `leaving` have gone.
pub(crate) fn lacks_reserve<E: Engine>(core: &Core<E>, leaving: usize) -> bool {
    let connections_max = core.overload.connections_max;
    client_connections(core) - leaving >= connections_max - connections_max / 64
        || descriptors_used(core) - leaving >= core.overload.descriptors_max * 55 / 64
}

/// The event that ends the exchange of a client that has stood still. Without an exchange its
/// connection is closed at once.
fn shed<E: Engine>(core: &mut Core<E>, key: Key) -> Option<(EventTarget, Event)> {
    core.counters.connections_shed.add(1);
    let Some(first) = core.conns.get(key).and_then(|conn| conn.pipeline.first()) else {
        client::close(core, key);
        return None;
    };
    let exchange = core.exchange(first);
    let uploads = exchange.upload.state() == TransferState::AwaitingSource && !exchange.is_tunnel;
    let reason = if uploads { Reason::BodyTimedOut } else { Reason::Shed };
    Some((EventTarget::Exchange(first), Event::End(reason)))
}

/// Closes an eighth of the idle origin connections. Returns how many that were.
fn close_idle_origins<E: Engine>(core: &mut Core<E>) -> usize {
    let mut closed = 0;
    for _ in 0..core.origins.idle_count().div_ceil(8) {
        let Some(key) = core.origins.oldest_idle() else { break };
        close(core, key);
        closed += 1;
    }
    closed
}

/// Whether any of the budget is charged for a client.
fn holds_memory<E: Engine>(core: &Core<E>, key: Key) -> bool {
    let holds = |conn: &Conn| conn.pipeline.first().is_some() || !conn.wire.recv_buffer.is_empty();
    core.conns.get(key).is_some_and(holds)
}

/// Whether a client, of whose requests several may be under way, keeps memory of the cache from
/// being used for others.
fn holds_cache_memory<E: Engine>(core: &Core<E>, key: Key) -> bool {
    let (Some(cache), Some(conn)) = (&core.shared.cache, core.conns.get(key)) else {
        return false;
    };
    let exchange = |key: Key| core.exchanges.get(key);
    let first = conn.pipeline.first().and_then(exchange);
    let mut all = std::iter::successors(first, |it| it.next_in_pipeline.and_then(exchange));
    all.any(|exchange| exchange.caching.reads_removed(cache))
}

/// The clients that have stood still for longer than is forgiven, in the order in which they
/// have to go; and how many are about to leave by themselves: they have got their last response,
/// as one has that was told to go, and are given a moment to read it. After that they are the
/// first to go, as they lose nothing.
fn stalled_clients<E: Engine>(core: &Core<E>) -> (Vec<(ShedPriority, Key)>, usize) {
    let now = core.engine.now();
    let (mut still, mut leaving) = (Vec::new(), 0);
    for (key, conn) in core.conns.iter() {
        let first =
            conn.pipeline.first().and_then(|first| core.exchanges.get(first)).map(Box::as_ref);
        let unsent = conn.wire.unsent(&core.engine);
        let Some(stood) = stalled_time(conn, first, unsent, now) else { continue };
        let is_over = conn.is_closing();
        if stood >= core.overload.grace {
            still.push(((is_over, stood), key));
        } else {
            leaving += usize::from(is_over);
        }
    }
    still.sort_unstable_by_key(|(order, _)| std::cmp::Reverse(*order));
    (still, leaving)
}

/// How long a connection has stood still for what it is, if that is its client's doing.
fn stalled_time(
    conn: &Conn,
    first: Option<&Exchange>,
    unsent: usize,
    now: Instant,
) -> Option<Duration> {
    let (stood, patience) = match (conn.state, first) {
        (ConnState::Busy, Some(exchange)) if exchange.is_tunnel => {
            let since = exchange.upload.since().max(exchange.download.since());
            (now.since(since), PATIENCE_TUNNEL)
        }
        (ConnState::Busy, Some(exchange)) => {
            (stalled_exchange_time(exchange, unsent, now)?, PATIENCE_SERVED)
        }
        (ConnState::Busy, None) => return None,
        (ConnState::New, _) => (now.since(conn.since), PATIENCE_SERVED),
        (ConnState::Idle, _) => (now.since(conn.since), PATIENCE_IDLE),
        _ => (now.since(conn.since), 1),
    };
    Some(stood / patience)
}

/// How long a client has kept its exchange waiting; `None` while that waits for its origin.
fn stalled_exchange_time(exchange: &Exchange, unsent: usize, now: Instant) -> Option<Duration> {
    let (upload, download) = (&exchange.upload, &exchange.download);
    if download.state() == TransferState::AwaitingSink {
        return download.stalled_for(now, PACE, unsent + download.bytes_in_pipe());
    }
    let uploads = upload.state() == TransferState::AwaitingSource && !exchange.awaits_continue();
    uploads.then(|| upload.stalled_for(now, PACE, 0)).flatten()
}

/// The first to go is the greatest: whether it has got its last response, and how long it has stood
/// still for what it is.
type ShedPriority = (bool, Duration);

const PATIENCE_IDLE: u32 = 2;
const PATIENCE_TUNNEL: u32 = 240;
/// A client that takes or sends so many bytes a second does not stand still.
const PACE: u64 = 1024;

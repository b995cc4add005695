//! What a worker has room for: client connections, origin connections, exchanges and memory.

use std::sync::atomic::Ordering;

use millrace_engine::Engine;

use crate::core::Core;
use crate::origin::close::close;
use crate::overload::{RECEIVE_AHEAD_MAX, WaitingExchange, WantedResource};

/// Whether an exchange may begin beside others of its connection. Those that begin alone always
/// have room: there is one for each connection even when this many were begun ahead. What
/// arrives for those ahead takes at most a quarter of the budget, or the ones before them could
/// not be received any more.
pub(crate) fn has_pipelining_capacity<E: Engine>(core: &Core<E>) -> bool {
    let budget = core.engine.budget();
    let count = core.exchanges.len() - core.cache_waits.refreshes;
    count < core.overload.connections_max
        && count < budget.max() / (8 * RECEIVE_AHEAD_MAX)
        && budget.used() < budget.max() / 2
}

/// Origin connections that may be opened beside all that is open. Idle ones can make room for
/// others.
pub(crate) fn origin_capacity<E: Engine>(core: &Core<E>) -> usize {
    let open = client_connections(core) + core.origins.connections.len() + core.attempts.len();
    core.overload.descriptors_max.saturating_sub(open)
}

/// Whether a further client may be accepted.
pub(crate) fn has_client_capacity<E: Engine>(core: &Core<E>) -> bool {
    client_connections(core) < core.overload.connections_max
        && descriptors_used(core) < client_descriptors_max(core)
}

/// The most descriptors that clients may take: the others are for origins.
pub(crate) fn client_descriptors_max<E: Engine>(core: &Core<E>) -> usize {
    core.overload.descriptors_max * 7 / 8
}

/// Client connections: the admitted ones, and those that other workers have handed over.
pub(crate) fn client_connections<E: Engine>(core: &Core<E>) -> usize {
    // Relaxed: a bound of admission, on which no other memory depends.
    core.conns.len() + core.counters.handed_over.load(Ordering::Relaxed)
}

/// Descriptors that clients have taken. Those who are served hold an origin connection each, or
/// soon will: they count twice. Idle origin connections make room for whoever comes.
pub(crate) fn descriptors_used<E: Engine>(core: &Core<E>) -> usize {
    let in_use = core.origins.connections.len() - core.origins.idle_count();
    client_connections(core) + in_use + core.attempts.len()
}

/// A client came: idle origin connections, and then clients that stand still, make room for the
/// next one.
pub(crate) fn prepare_for_next_client<E: Engine>(core: &mut Core<E>) {
    if origin_capacity(core) == 0
        && let Some(oldest) = core.origins.oldest_idle()
    {
        close(core, oldest);
    }
    core.overload.sheds_before_next |= !has_client_capacity(core);
}

/// Stops accepting until there is room again, and reports that once.
pub(crate) fn pause_accepting<E: Engine>(core: &mut Core<E>, why: &str) {
    if core.listeners.pause(&mut core.engine) {
        core.counters.accept_pauses.add(1);
    }
    // Pairs with itself: whichever worker comes first reports it.
    if !core.shared.pause_reported.swap(true, Ordering::Relaxed) {
        (core.shared.notify_operator)(&format!(
            "accepting pauses: {why}; connections that stand still are closed"
        ));
    }
}

/// Whether so much memory is held that clients that hold some and stand still are shed.
pub(crate) fn is_short_of_memory<E: Engine>(core: &Core<E>) -> bool {
    let budget = core.engine.budget();
    budget.used() > budget.max() / 8 * 7
}

/// The requests in the wait list for which a client that goes makes room. While as many lookups are
/// under way as may be, it is no descriptor that one more waits for.
pub(crate) fn waiting_for_descriptors<E: Engine>(
    core: &Core<E>,
) -> impl Iterator<Item = &WaitingExchange> {
    let is_full = core.names.is_full();
    core.overload
        .wait_list
        .iter()
        .filter(move |it| it.resource == WantedResource::Connection || !is_full)
}

/// Whether clients or requests wait for room, or memory is short.
pub(crate) fn is_short<E: Engine>(core: &Core<E>) -> bool {
    // One that drains accepts no more than it had to.
    let keeps_clients_waiting = core.listeners.is_paused() && !core.drain.is_draining;
    keeps_clients_waiting
        || waiting_for_descriptors(core).next().is_some()
        || is_short_of_memory(core)
        || cache_memory_misses(core) != core.overload.cache_memory_misses
}

/// Times that a body found no memory in the cache, in any worker.
pub(crate) fn cache_memory_misses<E: Engine>(core: &Core<E>) -> u64 {
    core.shared.cache.as_ref().map_or(0, |cache| cache.alloc_failures())
}

/// Accepts again where that was paused and there is room by now.
pub(crate) fn resume_accepting<E: Engine>(core: &mut Core<E>) {
    if core.listeners.is_paused() && !core.drain.is_draining && has_client_capacity(core) {
        core.listeners.resume(&mut core.engine);
    }
}

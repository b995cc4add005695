//! The free capacity of a worker: for client connections, origin connections, exchanges and memory.

use std::sync::atomic::Ordering;

use millrace_engine::Engine;

use crate::core::Core;
use crate::origin::close::close;
use crate::overload::{RECEIVE_AHEAD_MAX, WaitingExchange, WantedResource};

/// Returns whether a pipelined exchange may begin before the earlier ones of its connection ended.
///
/// The first exchange of a connection needs no such check, because the table has a slot for each
/// connection in addition to those counted here. Responses to pipelined requests that arrive early
/// are held in memory. They take at most a quarter of the budget, so that the responses before them
/// can still be received.
pub(crate) fn has_pipelining_capacity<E: Engine>(core: &Core<E>) -> bool {
    let budget = core.engine.budget();
    let count = core.exchanges.len() - core.cached.refreshes;
    count < core.overload.connections_max
        && count < budget.max() / (8 * RECEIVE_AHEAD_MAX)
        && budget.used() < budget.max() / 2
}

/// Returns the number of origin connections that may be opened without closing anything. The caller
/// may close idle ones to open more.
pub(crate) fn origin_capacity<E: Engine>(core: &Core<E>) -> usize {
    let open =
        client_connections(core) + core.origins.connections.len() + core.origins.attempts.len();
    core.overload.descriptors_max.saturating_sub(open)
}

/// Returns whether another client connection may be accepted.
pub(crate) fn has_client_capacity<E: Engine>(core: &Core<E>) -> bool {
    client_connections(core) < core.overload.connections_max
        && descriptors_used(core) < client_descriptors_max(core)
}

/// Returns the most descriptors that clients may use. The others are reserved for origins.
pub(crate) fn client_descriptors_max<E: Engine>(core: &Core<E>) -> usize {
    core.overload.descriptors_max * 7 / 8
}

/// Returns the number of client connections: those that were admitted, and those that other workers
/// have handed over.
pub(crate) fn client_connections<E: Engine>(core: &Core<E>) -> usize {
    // Relaxed: the number only bounds admission, and no other memory depends on it.
    core.conns.len() + core.counters.handed_over.load(Ordering::Relaxed)
}

/// Returns the number of descriptors that clients use. A client that is being served counts twice,
/// because it also uses an origin connection. Idle origin connections do not count, because they
/// can be closed for a new client.
pub(crate) fn descriptors_used<E: Engine>(core: &Core<E>) -> usize {
    let in_use = core.origins.connections.len() - core.origins.idle_count();
    client_connections(core) + in_use + core.origins.attempts.len()
}

/// Prepares for the next client after one was accepted. Closes an idle origin connection if there
/// is no descriptor left. If that does not suffice, sets `sheds_before_next`.
pub(crate) fn prepare_for_next_client<E: Engine>(core: &mut Core<E>) {
    if origin_capacity(core) == 0
        && let Some(oldest) = core.origins.oldest_idle()
    {
        close(core, oldest);
    }
    core.overload.sheds_before_next |= !has_client_capacity(core);
}

/// Stops accepting until there is capacity again. Informs the operator the first time.
pub(crate) fn pause_accepting<E: Engine>(core: &mut Core<E>, why: &str) {
    if core.listeners.pause(&mut core.engine) {
        core.counters.accept_pauses.add(1);
    }
    // The swap pairs with itself in the other workers: the first one reports.
    if !core.shared.pause_reported.swap(true, Ordering::Relaxed) {
        (core.shared.notify_operator)(&format!(
            "accepting pauses: {why}; stalled connections are closed"
        ));
    }
}

/// Returns whether more than seven eighths of the memory budget are used. In that case stalled
/// clients that hold memory are shed.
pub(crate) fn is_short_of_memory<E: Engine>(core: &Core<E>) -> bool {
    let budget = core.engine.budget();
    budget.used() > budget.max() / 8 * 7
}

/// Returns the requests in the wait list that would gain from a closed client connection. Requests
/// for a lookup do not, while the number of lookups is at its limit.
pub(crate) fn waiting_for_descriptors<E: Engine>(
    core: &Core<E>,
) -> impl Iterator<Item = &WaitingExchange> {
    let is_full = core.names.is_full();
    core.overload
        .wait_list
        .iter()
        .filter(move |waiting| waiting.resource == WantedResource::Connection || !is_full)
}

/// Returns whether there is a shortage: clients or requests wait for capacity, memory is short, or
/// the cache had no memory for a body.
pub(crate) fn is_short<E: Engine>(core: &Core<E>) -> bool {
    // A worker that drains does not accept, so no client waits for it.
    let clients_wait = core.listeners.is_paused() && !core.drain.is_draining;
    clients_wait
        || waiting_for_descriptors(core).next().is_some()
        || is_short_of_memory(core)
        || cache_memory_misses(core) != core.overload.cache_memory_misses
}

/// Returns how often the cache had no memory for a body, at all workers.
pub(crate) fn cache_memory_misses<E: Engine>(core: &Core<E>) -> u64 {
    core.shared.cache.as_ref().map_or(0, |cache| cache.alloc_failures())
}

/// Resumes accepting if that was paused and there is capacity by now.
pub(crate) fn resume_accepting<E: Engine>(core: &mut Core<E>) {
    if core.listeners.is_paused() && !core.drain.is_draining && has_client_capacity(core) {
        core.listeners.resume(&mut core.engine);
    }
}

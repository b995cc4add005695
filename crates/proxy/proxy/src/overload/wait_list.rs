//! The wait list: requests that could not be sent because this process had no descriptors, kernel
//! memory or name lookups left. The oldest request tries again first when there may be capacity. A
//! request is refused when it has waited for `connect_ms`.
//!
//! There is one list, but a request that waits for one resource does not delay later requests that
//! wait for another.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::core::Core;
use crate::origin::Phase;
use crate::overload::{SHORTAGE_CHECK_INTERVAL, WaitingExchange, capacity};

pub(crate) use crate::overload::WantedResource;

/// Inserts the exchange, which has left its origin, into the wait list. Its position depends on
/// when it entered the list for the first time. Returns false if it has waited too long.
/// [`overdue`] alone does not suffice for this, because it sees only exchanges in the list. An
/// exchange is not in the list while it tries again, which takes several turns if a name is looked
/// up.
pub(crate) fn enqueue<E: Engine>(core: &mut Core<E>, key: Key, resource: WantedResource) -> bool {
    let now = core.engine.now();
    let exchange = core.exchange(key);
    let connect_ms = exchange.snapshot().limits().connect_ms;
    let transaction = &mut exchange.transaction;
    assert_eq!(transaction.phase, Phase::Start, "the exchange has left its origin");
    let is_new = transaction.wait_listed_since.is_none();
    let since = *transaction.wait_listed_since.get_or_insert(now);
    if now >= since + Duration::from_millis(connect_ms) {
        return false;
    }
    transaction.phase = Phase::WaitListed;
    // A lookup that found no descriptor would fail again at once, possibly after a query to a name
    // server. Without a delay, it would send queries as fast as the server responds.
    let was_refused = resource == WantedResource::Lookup && !core.names.is_full();
    let retry_at = if was_refused { now + SHORTAGE_CHECK_INTERVAL } else { now };
    core.overload.unmet.requests += usize::from(is_new || was_refused);
    let waiting = &mut core.overload.wait_list;
    let position = match since == now {
        true => waiting.len(),
        false => waiting.partition_point(|other| other.since < since),
    };
    waiting.insert(position, WaitingExchange { key, since, resource, retry_at });
    true
}

/// A pass over the wait list, in which exchanges try again while there may be capacity. There is
/// one pass per turn, after the events that may have freed capacity. If a try finds no capacity,
/// later exchanges that wait for the same resource are skipped.
#[derive(Debug)]
pub(crate) struct WaitListPass {
    /// How many exchanges may still try.
    tries: usize,
    /// The index of the next exchange in the list.
    at: usize,
    /// The resource that a try did not get.
    lacking: Option<WantedResource>,
    /// The exchange that was returned last.
    tried: Option<Key>,
}

impl WaitListPass {
    /// Begins a pass at the oldest exchange.
    pub(crate) fn new<E: Engine>(core: &Core<E>) -> Self {
        let free = capacity::origin_capacity(core) + core.origins.idle_count();
        let tries = free.min(core.overload.wait_list.len());
        Self { tries, at: 0, lacking: None, tried: None }
    }

    /// Returns the next exchange to try again. It has to do so before the next call.
    pub(crate) fn next<E: Engine>(&mut self, core: &mut Core<E>) -> Option<Key> {
        let waiting = &mut core.overload.wait_list;
        if let Some(tried) = self.tried.take() {
            // The exchange is in the list again if it found no capacity.
            let back =
                waiting.get(self.at).filter(|entry| entry.key == tried).map(|entry| entry.resource);
            if back.is_some_and(|resource| self.lacking.is_some_and(|other| other != resource)) {
                return None; // Both resources are lacking.
            }
            if back.is_some() {
                self.lacking = back;
                self.at += 1;
            }
        }
        let now = core.engine.now();
        let may_try =
            |entry: &WaitingExchange| self.lacking != Some(entry.resource) && now >= entry.retry_at;
        while self.tries > 0 && waiting.get(self.at).is_some_and(|entry| !may_try(entry)) {
            self.at += 1;
        }
        self.tries = self.tries.checked_sub(1)?;
        let waiter = waiting.remove(self.at)?;
        core.exchange(waiter.key).transaction.phase = Phase::Start;
        self.tried = Some(waiter.key);
        self.tried
    }
}

/// Returns the exchanges that have waited too long, by the limits of their own snapshots.
pub(crate) fn overdue<E: Engine>(core: &Core<E>, now: Instant) -> Vec<Key> {
    let is_over = |waiter: &&WaitingExchange| {
        core.exchanges.get(waiter.key).is_some_and(|exchange| {
            now >= waiter.since + Duration::from_millis(exchange.snapshot().limits().connect_ms)
        })
    };
    core.overload.wait_list.iter().filter(is_over).map(|waiter| waiter.key).collect()
}

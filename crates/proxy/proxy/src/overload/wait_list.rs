//! Requests that wait for room at our side: descriptors, memory or lookups of names had run out
//! when they were to be sent. The oldest is the first to try again, whenever there may be room, and
//! each is given up when it has waited as long as a connection may take to open.
//!
//! There is one list for all, but one that waits for one thing never holds up another that waits
//! for another thing.

use std::time::Duration;

use millrace_engine::{Engine, Instant, Key};

use crate::core::Core;
use crate::origin::Phase;
use crate::overload::{SHORTAGE_CHECK_INTERVAL, WaitingExchange, capacity};

pub(crate) use crate::overload::WantedResource;

/// Puts the exchange, which holds nothing at any origin, into the list: at its end, or back before
/// those that came later. False if it has waited too long: one that finds room for the beginning of
/// a try only, a lookup say, may be out of the list whenever that is looked through.
pub(crate) fn enqueue<E: Engine>(core: &mut Core<E>, key: Key, want: WantedResource) -> bool {
    let now = core.engine.now();
    let exchange = core.exchange(key);
    let connect_ms = exchange.snapshot().limits().connect_ms;
    let transaction = &mut exchange.transaction;
    assert_eq!(transaction.phase, Phase::Start, "it has left its origin");
    let is_new = transaction.wait_listed_since.is_none();
    let since = *transaction.wait_listed_since.get_or_insert(now);
    if now >= since + Duration::from_millis(connect_ms) {
        return false;
    }
    transaction.phase = Phase::WaitListed;
    // A lookup that began and found no descriptor would find none at once again, after a question
    // or more to a name server: trying on would send those as fast as the server responds.
    let was_refused = want == WantedResource::Lookup && !core.names.is_full();
    let again = if was_refused { now + SHORTAGE_CHECK_INTERVAL } else { now };
    core.overload.unmet.requests += usize::from(is_new || was_refused);
    let waiting = &mut core.overload.wait_list;
    let place = match since == now {
        true => waiting.len(),
        false => waiting.partition_point(|other| other.since < since),
    };
    waiting.insert(place, WaitingExchange { key, since, resource: want, retry_at: again });
    true
}

/// Lets those try again that there may be room for. Once a turn: what ended in it made room. Where
/// one finds none, those behind it that want the same are not tried.
#[derive(Debug)]
pub(crate) struct WaitListPass {
    tries: usize,
    at: usize,
    lacking: Option<WantedResource>,
    tried: Option<Key>,
}

impl WaitListPass {
    /// Begins at the oldest.
    pub(crate) fn new<E: Engine>(core: &Core<E>) -> Self {
        let room = capacity::origin_capacity(core) + core.origins.idle_count();
        let tries = room.min(core.overload.wait_list.len());
        Self { tries, at: 0, lacking: None, tried: None }
    }

    /// The next exchange to try again. It has to do so before this is called again.
    pub(crate) fn next<E: Engine>(&mut self, core: &mut Core<E>) -> Option<Key> {
        let waiting = &mut core.overload.wait_list;
        if let Some(tried) = self.tried.take() {
            let back = waiting.get(self.at).filter(|it| it.key == tried).map(|it| it.resource);
            if back.is_some_and(|want| self.lacking.is_some_and(|other| other != want)) {
                return None; // There is neither.
            }
            if back.is_some() {
                self.lacking = back;
                self.at += 1;
            }
        }
        let now = core.engine.now();
        let may = |it: &WaitingExchange| self.lacking != Some(it.resource) && now >= it.retry_at;
        while self.tries > 0 && waiting.get(self.at).is_some_and(|it| !may(it)) {
            self.at += 1;
        }
        self.tries = self.tries.checked_sub(1)?;
        let waiter = waiting.remove(self.at)?;
        core.exchange(waiter.key).transaction.phase = Phase::Start;
        self.tried = Some(waiter.key);
        self.tried
    }
}

/// Those that have waited too long, each by the snapshot that it began with.
pub(crate) fn overdue<E: Engine>(core: &Core<E>, now: Instant) -> Vec<Key> {
    let is_over = |waiter: &&WaitingExchange| {
        core.exchanges.get(waiter.key).is_some_and(|exchange| {
            now >= waiter.since + Duration::from_millis(exchange.snapshot().limits().connect_ms)
        })
    };
    core.overload.wait_list.iter().filter(is_over).map(|waiter| waiter.key).collect()
}

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
use crate::overload::{LACKING, Waiter, capacity};

pub(crate) use crate::overload::Want;

/// Puts the exchange, which holds nothing at any origin, into the list: at its end, or back before
/// those that came later. False if it has waited too long: one that finds room for the beginning of
/// a try only, a lookup say, may be out of the list whenever that is looked through.
pub(crate) fn wait<E: Engine>(core: &mut Core<E>, key: Key, want: Want) -> bool {
    let now = core.engine.now();
    let exchange = core.exchange(key);
    let connect_ms = exchange.snapshot().limits().connect_ms;
    let transaction = &mut exchange.transaction;
    assert_eq!(transaction.phase, Phase::Start, "it has left its origin");
    let is_new = transaction.waiting_since.is_none();
    let since = *transaction.waiting_since.get_or_insert(now);
    if now >= since + Duration::from_millis(connect_ms) {
        return false;
    }
    transaction.phase = Phase::Waiting;
    // A lookup that began and found no descriptor would find none at once again, after a question
    // or more to a name server: trying on would send those as fast as the server responds.
    let was_refused = want == Want::Lookup && !core.names.is_full();
    let again = if was_refused { now + LACKING } else { now };
    core.overload.missed.requests += usize::from(is_new || was_refused);
    let waiting = &mut core.overload.waiting;
    let place = match since == now {
        true => waiting.len(),
        false => waiting.partition_point(|other| other.since < since),
    };
    waiting.insert(place, Waiter { key, since, want, again });
    true
}

/// Lets those try again that there may be room for. Once a turn: what ended in it made room. Where
/// one finds none, those behind it that want the same are not tried.
#[derive(Debug)]
pub(crate) struct Retries {
    tries: usize,
    at: usize,
    short: Option<Want>,
    tried: Option<Key>,
}

impl Retries {
    /// Begins at the oldest.
    pub(crate) fn new<E: Engine>(core: &Core<E>) -> Self {
        let room = capacity::room_for_origins(core) + core.origins.idle_count();
        let tries = room.min(core.overload.waiting.len());
        Self { tries, at: 0, short: None, tried: None }
    }

    /// The next exchange to try again. It has to do so before this is called again.
    pub(crate) fn next<E: Engine>(&mut self, core: &mut Core<E>) -> Option<Key> {
        let waiting = &mut core.overload.waiting;
        if let Some(tried) = self.tried.take() {
            let back = waiting.get(self.at).filter(|it| it.key == tried).map(|it| it.want);
            if back.is_some_and(|want| self.short.is_some_and(|other| other != want)) {
                return None; // There is neither.
            }
            if back.is_some() {
                self.short = back;
                self.at += 1;
            }
        }
        let now = core.engine.now();
        let may = |it: &Waiter| self.short != Some(it.want) && now >= it.again;
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
    let is_over = |waiter: &&Waiter| {
        core.exchanges.get(waiter.key).is_some_and(|exchange| {
            now >= waiter.since + Duration::from_millis(exchange.snapshot().limits().connect_ms)
        })
    };
    core.overload.waiting.iter().filter(is_over).map(|waiter| waiter.key).collect()
}

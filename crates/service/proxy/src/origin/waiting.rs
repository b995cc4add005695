//! Requests that wait for room at our side: descriptors, memory or lookups of names had run out
//! when they were to be sent. The oldest is the first to try again, whenever there may be room, and
//! each is given up when it has waited as long as a connection may take to open.
//!
//! There is one line for all, but who waits for one thing never holds up who waits for another.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_event::{Engine, Instant, Key};

use crate::flow;
use crate::house::LACKING;
use crate::origin::Phase;
use crate::reason::Reason;
use crate::stage::fetch;
use crate::worker::Worker;

/// What a request had no room for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Want {
    /// A descriptor, or memory of the kernel's, for a connection.
    Connection,
    /// The lookup of a name.
    Lookup,
}

/// An exchange in [`Phase::Waiting`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) key: Key,
    since: Instant,
    want: Want,
    /// When it may try again.
    again: Instant,
}

impl Waiter {
    /// Whether it is certain that a client who goes makes room for it.
    pub(crate) fn wants_connection(&self) -> bool {
        self.want == Want::Connection
    }
}

/// The line: each exchange once, in the order of the time since which it waits.
pub(crate) type Waiting = VecDeque<Waiter>;

/// Puts the exchange, which holds nothing at any origin, into the line: at its end, or back before
/// those that came later. One that has waited too long is given up instead: whoever finds room for
/// the beginning of a try only, a lookup say, may be out of the line whenever it is looked through.
pub(crate) fn wait_for_room<E: Engine>(worker: &mut Worker<E>, key: Key, want: Want) {
    let now = worker.engine.now();
    let transaction = &mut worker.exchange(key).transaction;
    assert_eq!(transaction.phase, Phase::Start, "it has left its origin");
    transaction.phase = Phase::Waiting;
    let is_new = transaction.waiting_since.is_none();
    let since = *transaction.waiting_since.get_or_insert(now);
    let limits = worker.exchange(key).snapshot().limits();
    if now >= since + Duration::from_millis(limits.connect_ms) {
        worker.exchange(key).transaction.phase = Phase::Start;
        fetch::fail(worker, key, Reason::Overloaded);
        return;
    }
    // A lookup that began and found no descriptor would find none at once again, after a question
    // or more to a name server: who goes on trying would ask as fast as that answers.
    let was_refused = want == Want::Lookup && !worker.names.is_full();
    let again = if was_refused { now + LACKING } else { now };
    worker.room.missed.requests += usize::from(is_new || was_refused);
    let waiter = Waiter { key, since, want, again };
    if since == now {
        worker.waiting.push_back(waiter);
    } else {
        let place = worker.waiting.partition_point(|other| other.since < since);
        worker.waiting.insert(place, waiter);
    }
}

/// Lets those try again that there may be room for. Once a turn: what ended in it made room. Where
/// one finds none, those behind it that want the same are not tried.
pub(crate) fn serve_waiting<E: Engine>(worker: &mut Worker<E>) {
    if worker.waiting.is_empty() {
        return;
    }
    let room = worker.room_for_origins() + worker.origins.idle_count();
    let mut tries = room.min(worker.waiting.len());
    let now = worker.engine.now();
    let (mut at, mut short) = (0, None);
    while tries > 0 && at < worker.waiting.len() {
        let waiter = worker.waiting[at];
        if short == Some(waiter.want) || now < waiter.again {
            at += 1;
            continue;
        }
        tries -= 1;
        worker.waiting.remove(at);
        worker.exchange(waiter.key).transaction.phase = Phase::Start;
        flow::run(worker, waiter.key);
        let back = worker.waiting.get(at).filter(|it| it.key == waiter.key).map(|it| it.want);
        if back.is_some_and(|want| short.is_some_and(|other| other != want)) {
            return; // There is neither.
        }
        if back.is_some() {
            short = back;
            at += 1;
        }
    }
}

/// Gives those up that have waited too long, each by the snapshot that it began with.
pub(crate) fn give_up_waiting<E: Engine>(worker: &mut Worker<E>, now: Instant) {
    let Worker { waiting, exchanges, .. } = worker;
    let is_over = |waiter: &&Waiter| {
        let exchange = exchanges.get(waiter.key);
        let exchange = exchange.expect("an exchange leaves the line before it ends");
        let wait = Duration::from_millis(exchange.snapshot().limits().connect_ms);
        now >= waiter.since + wait
    };
    let over: Vec<Key> = waiting.iter().filter(is_over).map(|waiter| waiter.key).collect();
    for key in over {
        fetch::fail(worker, key, Reason::Overloaded);
    }
}

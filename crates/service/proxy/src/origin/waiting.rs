//! Requests that wait for room: descriptors, memory or origin connections had run out when they
//! were to be sent. The oldest is the first to try again, whenever there may be room, and each is
//! given up when it has waited as long as a connection may take to open.

use std::collections::VecDeque;
use std::time::Duration;

use millrace_event::{Engine, Instant, Key};

use crate::flow;
use crate::origin::Phase;
use crate::reason::Reason;
use crate::stage::fetch;
use crate::worker::Worker;

/// The line: exchanges in [`Phase::Waiting`], each once, with the time since which it waits, in the
/// order of these.
pub(crate) type Waiting = VecDeque<(Key, Instant)>;

/// Puts the exchange, which holds nothing at any origin, into the line: at its end, or back before
/// those that came later.
pub(crate) fn wait_for_room<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    let transaction = &mut worker.exchange(key).transaction;
    assert_eq!(transaction.phase, Phase::Start, "it has left its origin");
    transaction.phase = Phase::Waiting;
    let since = *transaction.waiting_since.get_or_insert(now);
    if since == now {
        worker.waiting.push_back((key, since));
    } else {
        let place = worker.waiting.partition_point(|entry| entry.1 < since);
        worker.waiting.insert(place, (key, since));
    }
    worker.accepting.shed = true;
}

/// Lets those try again that there may be room for. Once a turn: what ended in it made room.
pub(crate) fn serve_waiting<E: Engine>(worker: &mut Worker<E>) {
    let room = worker.room_for_origins();
    for _ in 0..(room + worker.origins.idle_count()).min(worker.waiting.len()) {
        let entry = worker.waiting.pop_front().expect("counted just now");
        worker.exchange(entry.0).transaction.phase = Phase::Start;
        flow::run(worker, entry.0);
        if worker.waiting.front() == Some(&entry) {
            return; // There was none.
        }
    }
}

/// Gives those up that have waited too long, each by the snapshot that it began with.
pub(crate) fn give_up_waiting<E: Engine>(worker: &mut Worker<E>, now: Instant) {
    let Worker { waiting, exchanges, .. } = worker;
    let is_over = |&&(key, since): &&(Key, Instant)| {
        let exchange = exchanges.get(key).expect("an exchange leaves the line before it ends");
        let wait = Duration::from_millis(exchange.snapshot().limits().connect_ms);
        now >= since + wait
    };
    let over: Vec<Key> = waiting.iter().filter(is_over).map(|entry| entry.0).collect();
    for key in over {
        fetch::fail(worker, key, Reason::Overloaded);
    }
}

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

/// The line. Each entry is an exchange in [`Phase::Waiting`], each of these has one entry.
pub(crate) type Waiting = VecDeque<Key>;

/// Puts the exchange, which holds nothing at any origin, into the line: at its end, or back to the
/// front if it came from there.
pub(crate) fn wait_for_room<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    let transaction = &mut worker.exchange(key).transaction;
    assert_eq!(transaction.phase, Phase::Start, "it has left its origin");
    transaction.phase = Phase::Waiting;
    if transaction.waiting_since.is_some() {
        worker.waiting.push_front(key);
    } else {
        transaction.waiting_since = Some(now);
        worker.waiting.push_back(key);
    }
    worker.accepting.shed = true;
}

/// Lets those try again that there may be room for. Once a turn: what ended in it made room.
pub(crate) fn serve_waiting<E: Engine>(worker: &mut Worker<E>) {
    let room = worker.room_for_origins();
    for _ in 0..(room + worker.origins.idle_count()).min(worker.waiting.len()) {
        let key = worker.waiting.pop_front().expect("counted just now");
        worker.exchange(key).transaction.phase = Phase::Start;
        flow::run(worker, key);
        if worker.waiting.front() == Some(&key) {
            return; // There was none.
        }
    }
}

/// Gives those up that have waited too long. The line is in the order in which they came.
pub(crate) fn give_up_waiting<E: Engine>(worker: &mut Worker<E>, now: Instant) {
    let wait = Duration::from_millis(worker.snapshot.limits().connect_ms);
    while let Some(&key) = worker.waiting.front() {
        let since = worker.exchange(key).transaction.waiting_since.expect("set when it began to");
        if now < since + wait {
            return;
        }
        fetch::fail(worker, key, Reason::Overloaded);
    }
}

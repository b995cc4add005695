//! The life of an exchange: the stage table and its driver. Read this first.
//!
//! | stage | file | takes | gives | may wait for |
//! | --- | --- | --- | --- | --- |
//! | accept | `stage/accept.rs` | a listener's connection | a `Conn` | room in the table |
//! | parse | `stage/parse.rs` | received bytes | an `Exchange`, or a precise refusal | more bytes |
//! | route | `stage/route.rs` | a request head | a plan: where the answer comes from | |
//! | lookup | `stage/lookup.rs` | a plan | what is stored, or nothing | another's fetch, a disk |
//! | fetch | `stage/fetch.rs` | a plan | the head of an answer, its body's source | the origin |
//! | deliver | `stage/deliver.rs` | the answer | bytes at the client | room to write |
//! | log | `stage/log.rs` | an ended exchange | a record; the connection goes on or ends | |
//!
//! Accept and parse work on a connection, before there is an exchange; the driver here moves an
//! exchange through the rest. A stage is a plain function: it looks at its exchange and the
//! worker's tables, queues operations, and says where to go next. Completions find their way back
//! through `worker.rs`, which calls the function that waited.
//!
//! There is one backward move, and it is not a move of the driver: fetch itself may begin again
//! with another connection while nothing of the request's body has been read for an origin and
//! nothing of an answer has reached the client.

use millrace_event::{Engine, Key};

use crate::origin::Phase;
use crate::reason::Reason;
use crate::refresh;
use crate::stage;
use crate::transfer::Waits;
use crate::worker::Worker;

/// Where an exchange is. The order is that of its life: the driver refuses to go back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) enum Stage {
    #[default]
    Route,
    Lookup,
    Fetch,
    Deliver,
    Log,
}

/// What a stage says when it returns.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// On to a later stage.
    Go(Stage),
    /// An operation is outstanding, or a transfer runs: a completion takes it from here.
    Wait,
    /// The client gets this answer instead.
    Refuse(Reason),
}

/// Runs the stages of an exchange from where it stands until it has to wait or has ended. Before
/// each move it is checked that what the exchange waits for is really outstanding.
pub(crate) fn run<E: Engine>(worker: &mut Worker<E>, key: Key) {
    loop {
        check(worker, key);
        let exchange = worker.exchange(key);
        let (at, is_refresh) = (exchange.stage, exchange.is_refresh());
        let step = match at {
            Stage::Deliver | Stage::Log if is_refresh => return refresh::end(worker, key),
            Stage::Route => stage::route::run(worker, key),
            Stage::Lookup => stage::lookup::run(worker, key),
            Stage::Fetch => stage::fetch::run(worker, key),
            Stage::Deliver => stage::deliver::run(worker, key),
            Stage::Log => return stage::log::run(worker, key),
        };
        match step {
            Step::Wait => return,
            Step::Go(next) => go(worker, key, next),
            Step::Refuse(reason) => stage::deliver::refuse(worker, key, reason),
        }
    }
}

/// What holds of an exchange whenever it is about to move, unless that is to its end: one that
/// breaks off may leave anything behind.
fn check<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let Worker { exchanges, conns, origins, .. } = worker;
    let exchange = exchanges.get(key).expect("the caller's exchange is under way");
    if exchange.stage == Stage::Log {
        return;
    }
    let conn = exchange.conn.map(|conn| conns.get(conn).expect("it outlives the exchange"));
    let origin = exchange.transaction.connection.map(|slot| origins.connections.get(slot));
    assert!(exchange.download.waits() != Waits::Sink || conn.is_some_and(|conn| conn.sending));
    if let Some(origin) = origin {
        let origin = origin.expect("a connection is open as long as an exchange has it");
        assert!(exchange.upload.waits() != Waits::Sink || origin.sending);
    } else {
        assert!(exchange.transaction.phase != Phase::Asked);
    }
}

/// The exchange has become the first of its connection: if it waited for that, it goes on.
pub(crate) fn resume<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    let exchange = worker.exchange(key);
    match (exchange.stage, exchange.transaction.phase) {
        (Stage::Fetch, Phase::Asked) => {
            exchange.transaction.since = now;
            stage::fetch::answer(worker, key);
        }
        // Its turn changes nothing for one that waits for somebody else's fetch.
        (Stage::Lookup | Stage::Fetch, _) => {}
        _ => run(worker, key),
    }
}

/// Moves an exchange on to a later stage, without running it.
///
/// # Panics
/// When that is not forward: no exchange goes through a stage twice.
pub(crate) fn go<E: Engine>(worker: &mut Worker<E>, key: Key, next: Stage) {
    let exchange = worker.exchange(key);
    assert!(exchange.stage < next, "{:?} is not before {next:?}", exchange.stage);
    exchange.stage = next;
}

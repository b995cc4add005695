//! The driver: the only place that calls a stage. It hands an event to the stage of its object, and
//! moves the object on as the stage returns, until there is nothing to do but to wait.
//!
//! Nothing below calls back into it. Where a stage wants another object to go on, it queues a
//! wake-up, which the worker delivers at one point of its turn.

use millrace_engine::{Engine, Key};

use crate::cached::{fill, refresh};
use crate::conn::{Standing, client};
use crate::core::{Core, Parts};
use crate::exchange::end;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Afterwards, Event, Stage, Step, Subject};
use crate::origin::Phase;
use crate::stage::{accept, deliver, fetch, log, lookup, parse, route};
use crate::transfer::Waits;

/// Handles an event. One for an object that is gone is ignored.
pub(crate) fn drive<E: Engine>(core: &mut Core<E>, subject: Subject, event: Event) {
    let mut next = Some((subject, event));
    // The connection that looks for a further request once its exchange waits.
    let mut later = None;
    while let Some((subject, event)) = next.take().or_else(|| resume(&mut later)) {
        next = match subject {
            Subject::Exchange(key) => drive_exchange(core, key, event, &mut later),
            Subject::Conn(key) => drive_conn(core, key, event, &mut later),
            Subject::Fill(key) => {
                fill::run::on(core, key, event);
                None
            }
            Subject::Listener(key) => {
                accept::on(core, key, event);
                None
            }
        };
    }
}

fn resume(later: &mut Option<Key>) -> Option<(Subject, Event)> {
    later.take().map(|conn| (Subject::Conn(conn), Event::Enter))
}

/// Calls the stage that a connection is in. Returns the event that follows.
fn drive_conn<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    event: Event,
    later: &mut Option<Key>,
) -> Option<(Subject, Event)> {
    let standing = core.conns.get(key)?.standing;
    trace(core, || format!("connection {}.{} {standing:?} <- {event:?}", key.slot, key.generation));
    let step = match standing {
        Standing::Greeting => accept::on(core, key, event),
        _ => parse::on(core, key, event),
    };
    match step {
        Step::Wait => None,
        Step::Again => Some((Subject::Conn(key), Event::Enter)),
        Step::Begin(exchange, refused) => {
            *later = Some(key);
            let event = refused.map_or(Event::Enter, Event::End);
            Some((Subject::Exchange(exchange), event))
        }
        step => unreachable!("{step:?} is not a connection's"),
    }
}

/// Calls the stage that an exchange is in. Returns the event that follows.
fn drive_exchange<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    event: Event,
    later: &mut Option<Key>,
) -> Option<(Subject, Event)> {
    let stage = core.exchanges.get(key)?.stage;
    check(core, key, stage, &event);
    trace(core, || format!("exchange {}.{} {stage:?} <- {event:?}", key.slot, key.generation));
    let step = match stage {
        Stage::Route => route::on(core, key, event),
        Stage::Lookup => lookup::on(core, key, event),
        Stage::Fetch => fetch::on(core, key, event),
        Stage::Deliver => deliver::on(core, key, event),
        Stage::Log => log::on(core, key, event),
    };
    let step = match step {
        Step::End(reason) => end::end(core, key, reason),
        step => step,
    };
    trace(core, || format!("exchange {}.{} -> {step:?}", key.slot, key.generation));
    match step {
        Step::Wait => None,
        Step::Go(Stage::Deliver | Stage::Log) | Step::Drop if core.exchange(key).is_refresh() => {
            refresh::end(core, key);
            None
        }
        Step::Go(next) => {
            assert!(stage < next, "{stage:?} is not before {next:?}");
            core.exchange(key).stage = next;
            Some((Subject::Exchange(key), Event::Enter))
        }
        Step::Again => Some((Subject::Exchange(key), Event::Enter)),
        Step::Ended(conn, afterwards) => ended(core, conn, afterwards, later),
        step => unreachable!("{step:?} is not an exchange's"),
    }
}

/// The first exchange of a connection has ended: on to the one after it, or to the next request,
/// which may be there already; or the connection ends.
fn ended<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    afterwards: Afterwards,
    later: &mut Option<Key>,
) -> Option<(Subject, Event)> {
    *later = None;
    let now = core.engine.now();
    if afterwards == Afterwards::Next {
        *later = Some(key);
        let conn = core.conn(key);
        let Some(first) = conn.pipeline.first() else {
            conn.stand(Standing::Idle, now);
            return None;
        };
        return Some((Subject::Exchange(first), Event::Turn));
    }
    // Those that were begun ahead: nothing more can be delivered.
    while let Some(exchange) = core.conn(key).pipeline.first() {
        log::on(core, exchange, Event::End(Reason::ClientClosed));
    }
    match afterwards {
        Afterwards::Linger => client::linger(core, key),
        Afterwards::Close => client::close(core, key),
        Afterwards::Reset => client::reset(core, key),
        Afterwards::Next => unreachable!("looked at above"),
    }
    None
}

/// What holds of an exchange whenever it is about to move: what it waits for is outstanding. One
/// that breaks off may leave anything behind, and a completion ends what was outstanding.
fn check<E: Engine>(core: &mut Core<E>, key: Key, stage: Stage, event: &Event) {
    if stage == Stage::Log || !matches!(event, Event::Enter | Event::Turn | Event::Woken) {
        return;
    }
    let Parts { exchange, client, origin, .. } = core.parts(key);
    let is_sending = client.is_some_and(|client| client.wire.is_sending());
    assert!(exchange.download.waits() != Waits::Sink || is_sending);
    match origin {
        Some(origin) => {
            assert!(exchange.upload.waits() != Waits::Sink || origin.wire.is_sending());
        }
        None => assert!(exchange.transaction.phase != Phase::Asked),
    }
}

/// Reports a move, where moves are traced.
#[inline]
fn trace<E: Engine>(core: &Core<E>, line: impl FnOnce() -> String) {
    if cfg!(debug_assertions)
        && let Some(trace) = core.shared.trace
    {
        trace(format_args!("worker {}: {}", core.index, line()));
    }
}

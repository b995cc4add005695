//! The driver: the only place that calls a stage. It hands an event to the stage of its object, and
//! moves the object on as the stage returns, until there is nothing to do but to wait.
//!
//! Nothing below calls back into it. Where a stage wants another object to go on, it queues a
//! wake-up, which the worker delivers at one point of its turn.

use millrace_engine::{Engine, Key};

use crate::cached::{fill, refresh};
use crate::conn::{Standing, client};
use crate::core::Core;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Afterwards, Event, Stage, Step, Subject};
use crate::exchange::{Exchange, end};
use crate::origin::Phase;
use crate::stage::{accept, deliver, fetch, log, lookup, parse, route};

/// Handles an event, and what follows from it. An event for an object that is gone is ignored.
pub(crate) fn drive<E: Engine>(core: &mut Core<E>, mut subject: Subject, mut event: Event) {
    // The connection that looks for its next request once its exchange waits.
    let mut later = None;
    loop {
        let step = match subject {
            Subject::Exchange(key) => step_exchange(core, key, event),
            Subject::Conn(key) => step_conn(core, key, event),
            Subject::Fill(key) => {
                fill::run::on(core, key, event);
                Step::Wait
            }
            Subject::Listener(key) => accept::on(core, key, event),
        };
        event = Event::Enter;
        match step {
            Step::Again => {}
            Step::Begin(exchange, refused) => {
                if let Subject::Conn(conn) = subject {
                    later = Some(conn);
                }
                subject = Subject::Exchange(exchange);
                event = refused.map_or(Event::Enter, Event::End);
            }
            Step::Ended(conn, Afterwards::Next) => {
                later = None;
                subject = Subject::Conn(conn);
                if let Some(first) = next_in_turn(core, conn) {
                    (subject, event) = (Subject::Exchange(first), Event::Turn);
                    later = Some(conn);
                }
            }
            Step::Ended(conn, afterwards) => {
                close(core, conn, afterwards);
                return;
            }
            Step::Wait => match later.take() {
                Some(conn) => subject = Subject::Conn(conn),
                None => return,
            },
            step => unreachable!("{step:?} is taken by the exchange"),
        }
    }
}

/// Calls the stage that a connection is in.
#[inline]
fn step_conn<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> Step {
    let Some(conn) = core.conns.get(key) else { return Step::Wait };
    let standing = conn.standing;
    trace(core, || format!("connection {} {standing:?} <- {event:?}", key.slot));
    match standing {
        Standing::Greeting => accept::on(core, key, event),
        _ => parse::on(core, key, event),
    }
}

/// Calls the stages that an exchange is in and goes on to, until it has to wait or has ended.
#[inline]
fn step_exchange<E: Engine>(core: &mut Core<E>, key: Key, mut event: Event) -> Step {
    let Some(exchange) = core.exchanges.get(key) else { return Step::Wait };
    let mut stage = exchange.stage;
    check(core, exchange);
    loop {
        trace(core, || format!("exchange {} {stage:?} <- {event:?}", key.slot));
        let step = match stage {
            Stage::Route => route::on(core, key, event),
            Stage::Lookup => lookup::on(core, key, event),
            Stage::Fetch => fetch::on(core, key, event),
            Stage::Deliver => deliver::on(core, key, event),
            Stage::Log => log::on(core, key, event),
        };
        trace(core, || format!("exchange {} -> {step:?}", key.slot));
        let step = match step {
            Step::End(reason) => end::end(core, key, reason),
            step => step,
        };
        match step {
            Step::Again => {}
            Step::Go(next) => {
                assert!(stage < next, "{stage:?} is not before {next:?}");
                let exchange = core.exchange(key);
                (exchange.stage, stage) = (next, next);
                if next > Stage::Fetch && exchange.is_refresh() {
                    refresh::end(core, key);
                    return Step::Wait;
                }
            }
            Step::Drop => {
                refresh::end(core, key);
                return Step::Wait;
            }
            step => return step,
        }
        event = Event::Enter;
    }
}

/// The exchange whose turn it is on a connection that goes on; `None`: the connection is idle.
fn next_in_turn<E: Engine>(core: &mut Core<E>, key: Key) -> Option<Key> {
    let now = core.engine.now();
    let conn = core.conn(key);
    let first = conn.pipeline.first();
    if first.is_none() {
        conn.stand(Standing::Idle, now);
    }
    first
}

/// Ends a connection whose first exchange has ended, and those that were begun ahead: nothing more
/// can be delivered.
fn close<E: Engine>(core: &mut Core<E>, key: Key, afterwards: Afterwards) {
    while let Some(exchange) = core.conn(key).pipeline.first() {
        log::on(core, exchange, Event::End(Reason::ClientClosed));
    }
    match afterwards {
        Afterwards::Linger => client::linger(core, key),
        Afterwards::Reset => client::reset(core, key),
        Afterwards::Close | Afterwards::Next => client::close(core, key),
    }
}

/// What holds of an exchange between two events: what it waits for is outstanding, or has ended by
/// the event that is about to be handled.
#[inline]
fn check<E: Engine>(core: &Core<E>, exchange: &Exchange) {
    if exchange.transaction.phase == Phase::Asked {
        assert!(exchange.transaction.connection.is_some(), "a request is sent on a connection");
    }
    debug_assert!(exchange.conn.is_none_or(|conn| core.conns.get(conn).is_some()));
    debug_assert!(exchange.transaction.connection.as_ref().is_none_or(|it| {
        core.origins.connections.get(it.slot()).is_some_and(|it| !it.is_idle())
    }));
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

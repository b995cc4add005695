//! The driver: the only caller of the stages. It passes an event to the stage of the target object
//! and takes the step that the stage returns. It repeats this until the object has to wait.
//!
//! No stage calls the driver. A stage that lets another object continue queues a wake-up, which the
//! worker delivers at one point of its turn.

use millrace_engine::{Engine, Key};

use crate::cached::{fill, refresh};
use crate::conn::{ConnState, client};
use crate::core::Core;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{AfterExchange, Event, EventTarget, NextStep, Stage};
use crate::exchange::{Exchange, end};
use crate::origin::{OriginUse, Phase};
use crate::stage::{accept, deliver, fetch, file, log, lookup, parse, receive, route, secure};
use crate::transfer::TransferState;

/// Handles an event and everything that follows from it. Ignores an event whose target no longer
/// exists.
#[inline(always)]
pub(crate) fn drive<E: Engine>(core: &mut Core<E>, target: EventTarget, event: Event) {
    match target {
        EventTarget::Exchange(key) => {
            drive_exchange(core, key, event, Caller::Event);
        }
        EventTarget::Conn(key) => drive_conn(core, key, event),
        EventTarget::Fill(key) => fill::run::on(core, key, event),
        EventTarget::Listener(key) => {
            accept::on(core, key, event);
        }
    }
}

/// Moves a connection on: it begins exchanges until it has to wait.
fn drive_conn<E: Engine>(core: &mut Core<E>, key: Key, mut event: Event) {
    while let Some(conn) = core.conns.get(key) {
        let state = conn.state;
        trace(core, || format!("connection {} {state:?} <- {event:?}", key.slot));
        let step = match state {
            ConnState::ProxyHeader => accept::on(core, key, event),
            ConnState::Handshake => secure::on(core, key, event),
            _ => parse::on(core, key, event),
        };
        event = Event::Enter;
        match step {
            NextStep::Wait => return,
            NextStep::Reenter => {}
            NextStep::BeginExchange(refused) => {
                let Some(exchange) = core.conn(key).pipeline.last() else { return };
                let first = refused.map_or(Event::Enter, Event::End);
                if drive_exchange(core, exchange, first, Caller::Connection) {
                    drive_next(core, key);
                }
            }
            step => unreachable!("{step:?} is no step of a connection"),
        }
    }
}

/// Continues a connection whose first exchange has ended: the next exchange is the first now.
fn drive_next<E: Engine>(core: &mut Core<E>, key: Key) {
    while let Some(first) = core.conn(key).pipeline.first() {
        if !drive_exchange(core, first, Event::BecameFirst, Caller::Connection) {
            return;
        }
    }
    let now = core.engine.now();
    core.conn(key).set_state(ConnState::Idle, now);
}

/// The caller that drives an exchange.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// An event that targets the exchange.
    Event,
    /// The connection of the exchange, which continues by itself when the exchange has ended.
    Connection,
}

/// Moves an exchange on until it waits or has ended. Then moves its connection on, unless the
/// connection is the caller. Returns true if the exchange has ended and its connection stays open.
fn drive_exchange<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    mut event: Event,
    caller: Caller,
) -> bool {
    let Some(exchange) = core.exchanges.get(key) else { return false };
    let (mut stage, mut conn) = (exchange.stage, None);
    check_invariants(core, exchange, event);
    loop {
        trace(core, || format!("exchange {} {stage:?} <- {event:?}", key.slot));
        let step = match stage {
            Stage::Route => route::on(core, key, event),
            Stage::File => file::on(core, key, event),
            Stage::Lookup => lookup::on(core, key, event),
            Stage::Receive => receive::on(core, key, event),
            Stage::Fetch => fetch::on(core, key, event),
            Stage::Deliver => deliver::on(core, key, event),
            Stage::Log => log::on(core, key, event),
        };
        trace(core, || format!("exchange {} -> {step:?}", key.slot));
        let step = match step {
            NextStep::End(reason) => end::end(core, key, reason),
            step => step,
        };
        match step {
            NextStep::Wait => return false,
            NextStep::Reenter => {}
            NextStep::Advance(next) => {
                assert!(stage < next, "{stage:?} is not before {next:?}");
                let exchange = core.exchange(key);
                (exchange.stage, stage) = (next, next);
                conn = exchange.conn;
                if next > Stage::Fetch && conn.is_none() {
                    refresh::end(core, key);
                    return false;
                }
            }
            NextStep::Return(earlier) => {
                assert_eq!(stage, Stage::Fetch, "no byte of a response has reached the client");
                stage = earlier;
                core.exchange(key).stage = stage;
            }
            NextStep::EndRefresh => {
                refresh::end(core, key);
                return false;
            }
            NextStep::Recorded(afterwards) => {
                let conn = conn.expect("set when the exchange advanced to its last stage");
                if afterwards != AfterExchange::Continue {
                    end_connection(core, conn, afterwards);
                } else if caller == Caller::Event {
                    drive_next(core, conn);
                    drive_conn(core, conn, Event::Enter);
                }
                return afterwards == AfterExchange::Continue;
            }
            step => unreachable!("{step:?} is no step of an exchange"),
        }
        event = Event::Enter;
    }
}

/// Ends a connection whose first exchange has ended. Its pipelined exchanges end with it, because
/// no further response can be delivered.
#[inline(never)]
fn end_connection<E: Engine>(core: &mut Core<E>, key: Key, afterwards: AfterExchange) {
    while let Some(exchange) = core.conn(key).pipeline.first() {
        log::on(core, exchange, Event::End(Reason::ClientClosed));
    }
    match afterwards {
        AfterExchange::Linger => client::linger(core, key),
        AfterExchange::Reset => client::reset(core, key),
        AfterExchange::ResetWhenDelivered => client::reset_when_delivered(core, key),
        AfterExchange::Close | AfterExchange::Continue => client::finish(core, key),
    }
}

/// Asserts the invariant of an exchange between two events: the operation that it waits for is
/// outstanding, or `event` is its end. Compiled to nothing without debug assertions.
#[inline]
fn check_invariants<E: Engine>(core: &Core<E>, exchange: &Exchange, event: Event) {
    if !cfg!(debug_assertions) {
        return;
    }
    let client = exchange.conn.map(|conn| core.conns.get(conn));
    let client = client.map(|client| client.expect("a connection outlives its exchanges"));
    let origin = exchange.transaction.connection.as_ref().map(OriginUse::slot);
    let origin = origin.map(|slot| core.origins.connections.get(slot));
    let origin = origin.map(|origin| origin.expect("a connection is open while it is used"));
    assert!(origin.is_none_or(|origin| !origin.is_idle()));
    assert!(exchange.transaction.phase != Phase::Requesting || origin.is_some());
    use Event::{ClientFailed, ClientSent, ClientSpliced, OriginFailed, OriginSent, OriginSpliced};
    // A failed send of a file ends the exchange.
    let file_failed = Event::End(Reason::FileFailed);
    if !matches!(event, ClientSent | ClientSpliced(_) | ClientFailed) && event != file_failed {
        let is_sending = client.is_some_and(|client| client.wire.is_sending());
        assert!(exchange.download.state() != TransferState::AwaitingSink || is_sending);
    }
    // A failed send in a tunnel may end the exchange: see `event_of_failure` in `origin/events.rs`.
    let send_failed = Event::End(Reason::Overloaded);
    if !matches!(event, OriginSent | OriginSpliced(_) | OriginFailed) && event != send_failed {
        let is_sending = origin.is_some_and(|origin| origin.wire.is_sending());
        assert!(exchange.upload.state() != TransferState::AwaitingSink || is_sending);
    }
}

/// Reports an event or a step to the trace, if tracing is on.
#[inline]
fn trace<E: Engine>(core: &Core<E>, line: impl FnOnce() -> String) {
    if cfg!(debug_assertions)
        && let Some(trace) = core.shared.trace
    {
        trace(format_args!("worker {}: {}", core.index, line()));
    }
}

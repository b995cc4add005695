//! Stage deliver: a response's header goes to the client, and its body follows by the download, or
//! a tunnel begins. The stage ends when both transfers have.

use millrace_engine::{Engine, Key};
use millrace_http1::{Expectation, Framing, expectation};

use crate::cached::{self, Answer};
use crate::conn::h1;
use crate::core::{Core, Parts};
use crate::exchange::end;
use crate::exchange::headers;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, Stage, Step};
use crate::exchange::{Exchange, Own, Plan};
use crate::origin;
use crate::transfer::{Moved, Waits, download, tunnel, upload};

/// Handles an event of an exchange that is in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> Step {
    let moved = match event {
        Event::Enter | Event::Turn => return begin(core, key),
        Event::End(reason) => return Step::End(reason),
        Event::ClientFailed => return Step::End(Reason::ClientClosed),
        Event::ClientSent => match download::pump(core, key, false) {
            // An interim response was in the way.
            Moved::Nothing => return begin(core, key),
            moved => moved,
        },
        Event::ClientSpliced(count) => download::spliced(core, key, count),
        Event::OriginReadable | Event::Woken => match core.exchange(key).download.waits() {
            Waits::Source => download::pump(core, key, false),
            _ => Moved::Waiting,
        },
        Event::OriginEnded => download::origin_ended(core, key),
        Event::OriginBroke => Moved::Failed(Reason::AnswerCut),
        Event::OriginSent => upload::pump(core, key, false),
        Event::OriginSpliced(count) => upload::spliced(core, key, count),
        Event::OriginFailed => upload::failed(core, key),
        Event::ClientReadable => upload::pump(core, key, false),
        Event::ClientEnded => upload::client_ended(core, key),
        Event::Due => look_again(core, key),
        // It has found what it waited for.
        _ => Moved::Waiting,
    };
    step(core, key, moved)
}

fn step<E: Engine>(core: &mut Core<E>, key: Key, moved: Moved) -> Step {
    match moved {
        Moved::Waiting | Moved::Nothing => Step::Wait,
        Moved::Ended => finish(core, key),
        Moved::Failed(reason) => Step::End(reason),
    }
}

/// Writes the header of the response and starts what follows it. While an interim response is on
/// its way, or responses to earlier requests come first, an event comes when that is over.
#[inline(never)]
fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    let Parts { exchange, client, out, .. } = core.served(key);
    if !client.may_send(key) {
        return Step::Wait;
    }
    out.clear();
    let moved = match exchange.plan {
        Plan::Here(own) => send_own(core, key, own),
        Plan::Tunnel => {
            headers::write_connected(&mut h1::header(out), exchange);
            exchange.status = 200;
            tunnel::begin(core, key)
        }
        Plan::Route(_) | Plan::Target if exchange.caching.answer == Answer::Stored => {
            cached::serve::begin(core, key)
        }
        Plan::Route(_) | Plan::Target => send_response(core, key),
        Plan::Unrouted => unreachable!("the route stage comes first"),
    };
    step(core, key, moved)
}

fn send_own<E: Engine>(core: &mut Core<E>, key: Key, own: Own) -> Moved {
    let parts = core.served(key);
    let leaving = parts.is_last();
    let Parts { engine, out, log, exchange, counters, .. } = parts;
    let closes = matches!(own, Own::Refusal(reason) if reason.closes());
    exchange.persistent &= !closes && !leaving && exchange.request_was_taken();
    exchange.status = match own {
        Own::Refusal(reason) => reason.status(),
        Own::Options | Own::Trace => 200,
    };
    let date = log.dates.at(engine.time_of_day()).http_date();
    let out = &mut h1::header(out);
    let body = headers::write_own(out, exchange, own, date);
    exchange.download.start(Framing::Length(body.len() as u64), false, engine.now());
    if let Own::Refusal(reason) = own {
        counters.responses_own.add(reason);
    }
    download::send(core, key, &body)
}

fn send_response<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    let parts = core.served(key);
    let leaving = parts.is_last();
    let Parts { engine, out, log, exchange, .. } = parts;
    let is_filled = exchange.caching.answer == Answer::Filled;
    let framing = match exchange.transaction.framing {
        // Its chunks were taken off on its way into the cache.
        Framing::Chunked if is_filled => Framing::UntilClose,
        framing => framing,
    };
    let (chunked, ends_by_close) = h1::body_form(exchange, framing);
    exchange.persistent &= !ends_by_close && !leaving && exchange.request_was_taken();
    exchange.status = exchange.answer.status();
    let out = &mut h1::header(out);
    let (dates, now) = (&mut log.dates, engine.time_of_day());
    headers::write_answer(out, exchange, framing, chunked, dates, now);
    if exchange.status == 101 {
        return tunnel::begin(core, key);
    }
    exchange.download.start(framing, chunked, engine.now());
    download::pump(core, key, true)
}

/// Nothing has come of a body of the cache for as long as an origin may take. Its fill may have
/// ended without a wake-up: what is there decides.
#[inline(never)]
fn look_again<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    let moved = download::pump(core, key, false);
    let waits = core.exchange(key).download.waits();
    if moved == Moved::Waiting && waits == Waits::Source {
        return Moved::Failed(Reason::AnswerTimedOut);
    }
    moved
}

/// Ends the exchange if both of its transfers have.
#[inline(never)]
fn finish<E: Engine>(core: &mut Core<E>, key: Key) -> Step {
    download::finish_origin(core, key);
    let exchange = core.exchange(key);
    if !exchange.download.has_ended() {
        Step::Wait
    } else if exchange.upload_is_over() {
        Step::Go(Stage::Log)
    } else if !exchange.tunnel && upload_is_pointless(exchange) {
        end::keep(core, key)
    } else {
        Step::Wait
    }
}

/// After an early response the upload goes on only while its origin reads it. It does not when it
/// said that it closes (RFC 9112 section 9.6), nor when it refused what was only announced: then
/// the client may never send it (RFC 9110 section 10.1.1).
fn upload_is_pointless(exchange: &Exchange) -> bool {
    let is_announced = expectation(&exchange.request) == Expectation::Continue;
    origin::h1::says_close(exchange) || (is_announced && exchange.upload.moved() == 0)
}

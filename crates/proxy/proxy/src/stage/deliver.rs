//! Stage deliver: sends the header of a response to the client, then its body by the download; or
//! begins a tunnel. The stage ends when both transfers have ended.

use millrace_engine::{Engine, Key};
use millrace_http1::{Expectation, Framing, expectation};

use crate::cached::{self, ResponseSource};
use crate::coded::choice;
use crate::coded::coder::ResponseCoding;
use crate::conn::h1;
use crate::core::{Core, ExchangeParts};
use crate::exchange::end;
use crate::exchange::headers;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::exchange::{Exchange, OwnResponse, RequestPlan};
use crate::origin;
use crate::transfer::{TransferProgress, TransferState, download, tunnel, upload};

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    let progress = match event {
        Event::Enter | Event::BecameFirst => return begin(core, key),
        Event::ClientReadable | Event::ClientEnded | Event::OriginSent
            if core.exchange(key).is_peeking() =>
        {
            tunnel::peek(core, key)
        }
        Event::TimedOut if core.exchange(key).is_peeking() => tunnel::time_out_peek(core, key),
        Event::End(reason) => return NextStep::End(reason),
        Event::ClientFailed => return NextStep::End(Reason::ClientClosed),
        Event::ClientSent => match download::pump(core, key, false) {
            // The completed send was an interim response, for which the header had to wait.
            TransferProgress::NotStarted => return begin(core, key),
            progress => progress,
        },
        Event::ClientSpliced(count) => download::handle_spliced(core, key, count),
        Event::Woken if upload::awaits_disk(core, key) => upload::pump(core, key, false),
        Event::OriginReadable | Event::Woken => match core.exchange(key).download.state() {
            TransferState::AwaitingSource => download::pump(core, key, false),
            _ => TransferProgress::Waiting,
        },
        Event::OriginEnded => download::handle_origin_end(core, key),
        Event::OriginBroke => TransferProgress::Failed(Reason::ResponseCut),
        // The origin's kernel has taken the announced end of a tunnel's direction.
        Event::OriginSent if core.exchange(key).upload.has_ended() => TransferProgress::Ended,
        Event::OriginSent => upload::pump(core, key, false),
        Event::OriginSpliced(count) => upload::handle_spliced(core, key, count),
        Event::OriginFailed => upload::handle_origin_failure(core, key),
        Event::ClientReadable => upload::pump(core, key, false),
        Event::ClientEnded => upload::handle_client_end(core, key),
        Event::TimedOut if core.exchange(key).is_finished_tunnel() => {
            return NextStep::Advance(Stage::Log);
        }
        Event::TimedOut => check_overdue_body(core, key),
        // The exchange no longer waits for this event.
        _ => TransferProgress::Waiting,
    };
    next_step(core, key, progress)
}

fn next_step<E: Engine>(core: &mut Core<E>, key: Key, progress: TransferProgress) -> NextStep {
    match progress {
        TransferProgress::Waiting | TransferProgress::NotStarted => NextStep::Wait,
        TransferProgress::Ended => finish(core, key),
        TransferProgress::Failed(reason) => NextStep::End(reason),
    }
}

/// Writes the header of the response and starts the body. Returns without sending while an interim
/// response is being sent, or while earlier responses come first: an event follows when the
/// connection is free.
#[inline(never)]
fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { exchange, client, out, .. } = core.parts_with_client(key);
    if !client.may_send(key) {
        return NextStep::Wait;
    }
    out.clear();
    let progress = match exchange.plan {
        RequestPlan::Respond(own) => send_own(core, key, own),
        RequestPlan::Tunnel => {
            headers::write_connect_response(&mut h1::header(out), exchange);
            exchange.status = 200;
            tunnel::begin(core, key)
        }
        RequestPlan::Route(_) | RequestPlan::Target
            if exchange.caching.source == ResponseSource::Stored =>
        {
            cached::serve::begin(core, key)
        }
        RequestPlan::Route(_) | RequestPlan::Target => send_response(core, key),
        RequestPlan::Unrouted => unreachable!("the route stage comes first"),
    };
    next_step(core, key, progress)
}

fn send_own<E: Engine>(core: &mut Core<E>, key: Key, own: OwnResponse) -> TransferProgress {
    let parts = core.parts_with_client(key);
    let must_close = parts.must_close();
    let ExchangeParts { engine, out, log, exchange, counters, .. } = parts;
    let closes = matches!(own, OwnResponse::Refusal(reason) if reason.closes());
    exchange.is_persistent &= !closes && !must_close && exchange.has_received_request();
    exchange.status = own.status(exchange.request.method());
    let date = log.dates.at(engine.time_of_day()).http_date();
    let out = &mut h1::header(out);
    let body = headers::write_own_response(out, exchange, own, date);
    exchange.download.start(Framing::Length(body.len() as u64), false, engine.now());
    if let OwnResponse::Refusal(reason) = own {
        counters.responses_generated.add(reason);
    }
    download::send_from_memory(core, key, &body)
}

#[inline(never)]
fn send_response<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let mut parts = core.parts_with_client(key);
    let mut coding = ResponseCoding::default();
    if choice::rules(parts.exchange).is_some() {
        coding = choice::begin_response(core, key);
        parts = core.parts_with_client(key);
    }
    let must_close = parts.must_close();
    let ExchangeParts { engine, out, log, exchange, .. } = parts;
    let is_filled = exchange.caching.source == ResponseSource::Filled;
    let framing = match exchange.transaction.framing {
        // The fill removed the chunk framing.
        Framing::Chunked if is_filled => Framing::UntilClose,
        framing => framing,
    };
    let sent = if exchange.caching.coder.is_some() { Framing::Chunked } else { framing };
    let (chunked, ends_by_close) = h1::outgoing_framing(exchange, sent);
    exchange.is_persistent &= !ends_by_close && !must_close && exchange.has_received_request();
    exchange.status = exchange.response.status();
    let out = &mut h1::header(out);
    let (dates, now) = (&mut log.dates, engine.time_of_day());
    headers::write_response(out, exchange, (sent, chunked), coding, dates, now);
    if exchange.status == 101 {
        return tunnel::begin(core, key);
    }
    exchange.download.start(framing, chunked, engine.now());
    download::pump(core, key, true)
}

/// Handles the timeout of a cached body of which no byte has arrived for `response_ms`. The fill
/// may have ended without a wake-up, so the body is read once more before the exchange fails.
#[inline(never)]
fn check_overdue_body<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let progress = download::pump(core, key, false);
    let state = core.exchange(key).download.state();
    if progress == TransferProgress::Waiting && state == TransferState::AwaitingSource {
        return TransferProgress::Failed(Reason::ResponseTimedOut);
    }
    progress
}

/// Ends the exchange if both of its transfers have ended.
#[inline(never)]
fn finish<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    download::release_origin(core, key);
    let exchange = core.exchange(key);
    if !exchange.download.has_ended() {
        NextStep::Wait
    } else if exchange.has_finished_upload() {
        match !exchange.is_tunnel || has_ended_origin(core, key) {
            true => NextStep::Advance(Stage::Log),
            false => NextStep::Wait,
        }
    } else if !exchange.is_tunnel && is_upload_pointless(exchange) {
        end::complete(core, key)
    } else {
        NextStep::Wait
    }
}

/// Ends the stream of a tunnel to its origin. Returns whether the kernel has taken the announced
/// end. If a secured connection closed before, the origin would take the tunnel for cut.
#[inline(never)]
fn has_ended_origin<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    let ExchangeParts { engine, origin, .. } = core.parts(key);
    origin.is_none_or(|origin| origin.wire.tls().is_none() || origin.wire.finish(engine))
}

/// Returns whether the rest of the upload can be dropped after an early response. An origin that
/// announced that it closes reads no more of the request (RFC 9112 section 9.6). If the origin
/// refused a request with `Expect: 100-continue`, the client may never send the body (RFC 9110
/// section 10.1.1).
fn is_upload_pointless(exchange: &Exchange) -> bool {
    let expects_continue = expectation(&exchange.request) == Expectation::Continue;
    origin::h1::closes_after_response(exchange)
        || (expects_continue && exchange.upload.forwarded() == 0)
}

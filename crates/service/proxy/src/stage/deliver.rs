//! Stage deliver: an answer's head goes to the client, and its body follows by the download, or a
//! tunnel begins. Here the exchange also ends: when everything was taken, or by breaking off.

use millrace_event::{Engine, Error, Key, Kind};
use millrace_http::{Expectation, Framing, Version, connection_options, expectation};

use crate::caching::Answer;
use crate::exchange::{Exchange, Own, Plan};
use crate::flow::{self, Stage, Step};
use crate::heads::{self, AnswerForm};
use crate::origin::OriginConn;
use crate::reason::Reason;
use crate::stage::serve;
use crate::transfer::{Line, Waits};
use crate::tunnel;
use crate::worker::Worker;

/// Writes the head of the answer and starts what follows it.
pub(crate) fn run<E: Engine>(worker: &mut Worker<E>, key: Key) -> Step {
    let exchange = worker.exchange(key);
    let (plan, conn) = (exchange.plan, exchange.conn());
    let conn = worker.conn(conn);
    let is_first = conn.first == Some(key);
    if conn.sending || !is_first {
        // An interim answer is on its way, and `download_sent` comes back when the client has taken
        // it; or answers to earlier requests come first, and `flow::resume` comes back.
        return Step::Wait;
    }
    worker.out.clear();
    match plan {
        Plan::Here(own) => write_own(worker, key, own),
        Plan::Tunnel => {
            let Worker { out, exchanges, .. } = worker;
            let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
            heads::write_connected(out, exchange);
            exchange.status = 200;
            tunnel::begin(worker, key);
        }
        Plan::Route(_) | Plan::Target if worker.exchange(key).caching.answer == Answer::Stored => {
            serve::run(worker, key);
        }
        Plan::Route(_) | Plan::Target => write_answer(worker, key),
        Plan::Unrouted => unreachable!("the route stage comes first"),
    }
    Step::Wait
}

fn write_own<E: Engine>(worker: &mut Worker<E>, key: Key, own: Own) {
    let now = worker.engine.now();
    let leaving = is_leaving(worker, key);
    let Worker { out, exchanges, dates, engine, counters, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let closes = matches!(own, Own::Refusal(reason) if reason.closes());
    exchange.persistent &= !closes && !leaving && exchange.request_was_taken();
    exchange.status = match own {
        Own::Refusal(reason) => reason.status(),
        Own::Options | Own::Trace => 200,
    };
    let date = dates.at(engine.time_of_day()).http_date();
    exchange.own_bytes = heads::write_own(out, exchange, own, exchange.persistent, date);
    exchange.download.start(Framing::None, false, now);
    if let Own::Refusal(reason) = own {
        counters.responses_own.add(reason);
    }
    download(worker, key, true);
}

fn write_answer<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let now = worker.engine.now();
    let leaving = is_leaving(worker, key);
    let Worker { out, exchanges, dates, engine, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let is_filled = exchange.caching.answer == Answer::Filled;
    let framing = match exchange.transaction.framing {
        // Its chunks were taken off on its way into the cache.
        Framing::Chunked if is_filled => Framing::UntilClose,
        framing => framing,
    };
    let client_is_new = exchange.request.version() == Version::Http11;
    let chunked = client_is_new && matches!(framing, Framing::Chunked | Framing::UntilClose);
    // RFC 9112 section 6.3: without a length or chunks the end of the connection ends the body.
    let ends_by_close = !chunked && matches!(framing, Framing::Chunked | Framing::UntilClose);
    let persistent =
        exchange.persistent && !ends_by_close && !leaving && exchange.request_was_taken();
    exchange.persistent = persistent;
    exchange.status = exchange.answer.status();
    let form = AnswerForm { framing, chunked, persistent };
    heads::write_answer(out, exchange, form, dates, engine.time_of_day());
    if exchange.status == 101 {
        tunnel::begin(worker, key);
    } else {
        exchange.download.start(framing, chunked, now);
        download(worker, key, true);
    }
}

/// Whether the exchange is the last one of its connection whatever the client wants.
pub(super) fn is_leaving<E: Engine>(worker: &mut Worker<E>, key: Key) -> bool {
    let conn = worker.exchange(key).conn();
    let listener = worker.conn(conn).listener;
    worker.is_leaving(listener)
}

/// Moves the answer on: `with_head`, the head in `worker.out` goes first.
pub(crate) fn download<E: Engine>(worker: &mut Worker<E>, key: Key, with_head: bool) {
    if worker.exchange(key).caching.kept.is_some() {
        return download_kept(worker, key, with_head);
    }
    let Worker { engine, pipes, exchanges, conns, origins, out, counters, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let conn_key = exchange.conn();
    let conn = conns.get_mut(conn_key).expect("an exchange has its connection");
    let origin = exchange.transaction.connection.and_then(|slot| origins.connections.get_mut(slot));
    let mut nothing = Default::default();
    let (source, line) = match origin {
        Some(OriginConn { fd, input, broken, receiving, ended, .. }) => {
            let may_fill = !*receiving && !*ended && !*broken;
            (input, may_fill.then_some(Line { fd, broken }))
        }
        None => (&mut nothing, None),
    };
    let head = if with_head { &out[..] } else { &[] };
    let sink = (&conn.fd, conn_key.token(Kind::Client));
    let result = exchange.download.pump((engine, pipes), source, line, sink, head);
    counters.bytes_downloaded.add(exchange.download.newly_taken());
    match result {
        Ok(Waits::Sink) => {
            conn.sending = true;
            finish_origin(worker, key);
        }
        Ok(Waits::Source) => worker.receive_origin(key),
        Ok(Waits::Off | Waits::Ended) => finish_if_done(worker, key),
        Err(_) if with_head => {
            // Nothing of the answer was sent: its very first chunk breaks the grammar.
            worker.leave_origin(key);
            let own = Own::Refusal(Reason::MalformedAnswerBody);
            let Worker { engine, pipes, exchanges, .. } = worker;
            let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
            // Nobody is left who would take what is missing of the request.
            exchange.upload.abandon(engine, pipes);
            exchange.reason = Some(Reason::MalformedAnswerBody);
            exchange.plan = Plan::Here(own);
            worker.out.clear();
            write_own(worker, key, own);
        }
        Err(_) => abort(worker, key, Reason::AnswerCut),
    }
}

/// The same for an answer that the cache has.
fn download_kept<E: Engine>(worker: &mut Worker<E>, key: Key, with_head: bool) {
    let Worker { engine, exchanges, conns, out, counters, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let conn_key = exchange.conn();
    let conn = conns.get_mut(conn_key).expect("an exchange has its connection");
    let kept = exchange.caching.kept.as_mut().expect("the caller has seen it");
    let head = if with_head { &out[..] } else { &[] };
    let sink = (&conn.fd, conn_key.token(Kind::Client));
    let result = exchange.download.pump_kept(engine, kept, sink, head);
    let woken = kept.take_woken();
    counters.bytes_downloaded.add(exchange.download.newly_taken());
    if let Ok(Waits::Sink) = result {
        conn.sending = true;
    }
    worker.wake(woken);
    match result {
        Ok(Waits::Sink | Waits::Source) => {}
        Ok(Waits::Off | Waits::Ended) => finish_if_done(worker, key),
        Err(_) => abort(worker, key, Reason::AnswerCut),
    }
}

/// Nothing has come of a body of the cache for as long as an origin may take. Whoever fills it may
/// have ended without a word: what is there decides.
pub(crate) fn look_again<E: Engine>(worker: &mut Worker<E>, key: Key) {
    download(worker, key, false);
    let exchange = worker.exchanges.get(key);
    if exchange.is_some_and(|exchange| exchange.download.waits() == Waits::Source) {
        abort(worker, key, Reason::AnswerTimedOut);
    }
}

/// The origin's connection broke while its answer's body, or a tunnel, is read from it.
pub(crate) fn origin_broke<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let exchange = worker.exchange(key);
    if exchange.download.source_is_done() && !exchange.tunnel {
        give_up_upload(worker, key);
    } else {
        abort(worker, key, Reason::AnswerCut);
    }
}

/// The origin's stream ended while its answer's body, or a tunnel, is read from it.
pub(crate) fn origin_ended<E: Engine>(worker: &mut Worker<E>, key: Key) {
    if worker.exchange(key).tunnel {
        tunnel::origin_ended(worker, key);
        return;
    }
    let Worker { engine, pipes, exchanges, conns, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    if exchange.download.source_is_done() {
        // The answer is whole; the request is not, and nobody is left to take the rest of it.
        give_up_upload(worker, key);
        return;
    }
    let conn_key = exchange.conn();
    let conn = conns.get_mut(conn_key).expect("an exchange has its connection");
    match exchange.download.source_ended(engine, (&conn.fd, conn_key.token(Kind::Client))) {
        Ok(waits) => {
            conn.sending = waits == Waits::Sink;
            exchange.upload.abandon(engine, pipes);
            worker.leave_origin(key);
            finish_if_done(worker, key);
        }
        Err(_) => abort(worker, key, Reason::AnswerCut),
    }
}

/// The client took what was sent, or will not.
pub(crate) fn download_sent<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    result: Result<(), Error>,
) {
    let exchange = worker.exchange(key);
    match result {
        Err(_) => abort(worker, key, Reason::ClientClosed),
        Ok(()) if exchange.stage == Stage::Fetch => super::fetch::answer(worker, key),
        Ok(()) if exchange.download.waits() == Waits::Off => flow::run(worker, key),
        Ok(()) => download(worker, key, false),
    }
}

/// The client took so many bytes out of the download's pipe, or will take none.
pub(crate) fn download_spliced<E: Engine>(
    worker: &mut Worker<E>,
    key: Key,
    result: Result<usize, Error>,
) {
    let Ok(count) = result else {
        return abort(worker, key, Reason::ClientClosed);
    };
    let Worker { engine, pipes, exchanges, conns, counters, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let conn_key = exchange.conn();
    let conn = conns.get_mut(conn_key).expect("an exchange has its connection");
    counters.bytes_spliced.add(count as u64);
    let sink = (&conn.fd, conn_key.token(Kind::Client));
    let is_empty = exchange.download.drain((engine, pipes), count, sink);
    counters.bytes_downloaded.add(exchange.download.newly_taken());
    if is_empty {
        download(worker, key, false);
    } else {
        conn.sending = true;
    }
}

/// The origin's part is over once the answer was received and the request was sent: its connection
/// serves others while the client is still being served.
fn finish_origin<E: Engine>(worker: &mut Worker<E>, key: Key) {
    let exchange = worker.exchange(key);
    if exchange.tunnel || !exchange.download.source_is_done() {
        return;
    }
    if upload_is_over(exchange) {
        worker.release_origin(key);
    } else if exchange.transaction.connection.is_some() {
        worker.receive_origin(key);
    }
}

fn upload_is_over(exchange: &Exchange) -> bool {
    matches!(exchange.upload.waits(), Waits::Off | Waits::Ended)
}

/// Ends the exchange if both of its transfers have.
pub(crate) fn finish_if_done<E: Engine>(worker: &mut Worker<E>, key: Key) {
    finish_origin(worker, key);
    let exchange = worker.exchange(key);
    if !exchange.download.has_ended() {
        return;
    }
    if upload_is_over(exchange) {
        flow::go(worker, key, Stage::Log);
        flow::run(worker, key);
    } else if !exchange.tunnel && upload_is_pointless(exchange) {
        give_up_upload(worker, key);
    }
}

/// After an early answer the upload goes on only while its origin reads it. It does not when it
/// said that it closes (RFC 9112 section 9.6), nor when it refused what was only announced: then
/// the client may never send it (RFC 9110 section 10.1.1).
fn upload_is_pointless(exchange: &Exchange) -> bool {
    let answer = &exchange.answer;
    let closes = !connection_options(answer).is_persistent(answer.version());
    let is_announced = expectation(&exchange.request) == Expectation::Continue;
    closes || (is_announced && exchange.upload.moved() == 0)
}

/// The answer was delivered; what is missing of the request is not waited for any longer.
pub(super) fn give_up_upload<E: Engine>(worker: &mut Worker<E>, key: Key) {
    worker.leave_origin(key);
    let Worker { engine, pipes, exchanges, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    exchange.upload.abandon(engine, pipes);
    exchange.persistent = false;
    finish_if_done(worker, key);
}

/// The client gets an answer of our own instead of what it asked for. Leaves the exchange before
/// the deliver stage's run.
pub(crate) fn refuse<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    worker.leave_origin(key);
    worker.leave_cache(key);
    let Worker { engine, pipes, exchanges, .. } = worker;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    exchange.plan = Plan::Here(Own::Refusal(reason));
    exchange.reason = Some(reason);
    // Known before the answer is written: behind a reason that closes nothing is read as a request.
    exchange.persistent &= exchange.request_was_taken() && !reason.closes();
    exchange.upload.abandon(engine, pipes);
    flow::go(worker, key, Stage::Deliver);
}

/// Breaks off: what the client has got is not the whole, and it has to see that.
pub(crate) fn abort<E: Engine>(worker: &mut Worker<E>, key: Key, reason: Reason) {
    if worker.exchange(key).tunnel {
        worker.break_origin(key);
    }
    worker.leave_origin(key);
    let Worker { engine, exchanges, conns, counters, .. } = worker;
    counters.answers_aborted.add(1);
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is there");
    let conn = conns.get(exchange.conn()).expect("an exchange has its connection");
    if conn.sending {
        exchange.download.note_unsent(engine.unsent(&conn.fd));
        counters.bytes_downloaded.add(exchange.download.newly_taken());
    }
    exchange.reason.get_or_insert(reason);
    exchange.persistent = false;
    exchange.aborted = true;
    if exchange.stage < Stage::Log {
        flow::go(worker, key, Stage::Log);
    }
    flow::run(worker, key);
}

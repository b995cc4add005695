//! The download of an exchange: a response's body, or what an origin sends into a tunnel, goes to
//! the client.

use millrace_engine::{Engine, Key};

use crate::core::{Core, Parts};
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::origin::side;
use crate::transfer::source::Source;
use crate::transfer::{Moved, Waits};

/// Moves the response on. `with_head`: the header in `core.out` goes first.
#[inline(never)]
pub(crate) fn pump<E: Engine>(core: &mut Core<E>, key: Key, with_head: bool) -> Moved {
    let Parts { engine, pipes, counters, out, exchange, client, mut origin, .. } = core.served(key);
    let Exchange { download, caching, status, .. } = exchange;
    if download.waits() == Waits::Off {
        return Moved::Nothing;
    }
    let source = match (&mut caching.reader, &mut origin) {
        (Some(reader), _) => Source::Cached(reader),
        (None, Some(origin)) => Source::Wire(&mut origin.wire),
        (None, None) => Source::Memory(&[]),
    };
    let head = if with_head { &out[..] } else { &[] };
    let result = download.pump((engine, pipes), source, &mut client.wire, head);
    counters.bytes_downloaded.add(download.newly_taken());
    if let Some(reader) = &mut caching.reader {
        let woken = reader.take_woken();
        if woken.is_some() {
            core.wake(woken);
        }
        return match result {
            Ok(Waits::Sink | Waits::Source) => Moved::Waiting,
            Ok(Waits::Off | Waits::Ended) => Moved::Ended,
            Err(_) if with_head => {
                // The fill broke before the turn of this response came.
                core.exchange(key).status = 0;
                Moved::Failed(Reason::AnswerIncomplete)
            }
            Err(_) => Moved::Failed(Reason::AnswerCut),
        };
    }
    match result {
        Ok(Waits::Sink) => {
            finish_origin(core, key);
            Moved::Waiting
        }
        Ok(Waits::Source) => {
            let Some(origin) = origin else { unreachable!("what is in memory is at hand") };
            if origin.wire.has_ended() {
                return origin_ended(core, key);
            }
            let (expected, watches) = (download.expected(), download.watches());
            origin.wire.receive_body(engine, side::RECEIVE_MAX, expected, watches);
            Moved::Waiting
        }
        Ok(Waits::Off | Waits::Ended) => Moved::Ended,
        Err(_) if with_head => {
            // Nothing of the response was sent: its very first chunk breaks the grammar.
            *status = 0;
            Moved::Failed(Reason::MalformedAnswerBody)
        }
        Err(_) => Moved::Failed(Reason::AnswerCut),
    }
}

/// Sends the header in `core.out` with a body that is in memory.
pub(crate) fn send<E: Engine>(core: &mut Core<E>, key: Key, body: &[u8]) -> Moved {
    let Parts { engine, pipes, counters, out, exchange, client, .. } = core.served(key);
    let source = Source::Memory(body);
    let sent = exchange.download.pump((engine, pipes), source, &mut client.wire, out);
    assert_eq!(sent, Ok(Waits::Sink), "there is a header to send");
    counters.bytes_downloaded.add(exchange.download.newly_taken());
    Moved::Waiting
}

/// The client took so many bytes out of the download's pipe.
#[inline(never)]
pub(crate) fn spliced<E: Engine>(core: &mut Core<E>, key: Key, count: u32) -> Moved {
    let Parts { engine, pipes, counters, exchange, client, .. } = core.served(key);
    counters.bytes_spliced.add(count.into());
    let is_empty = exchange.download.drain((engine, pipes), count as usize, &mut client.wire);
    counters.bytes_downloaded.add(exchange.download.newly_taken());
    if is_empty { pump(core, key, false) } else { Moved::Waiting }
}

/// The origin's stream ended while its response's body, or a tunnel, is read from it.
#[inline(never)]
pub(crate) fn origin_ended<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    let Parts { engine, pipes, exchange, client, .. } = core.served(key);
    if exchange.tunnel {
        return half_close(core, key);
    }
    if exchange.download.source_is_done() {
        // The response is whole; the request is not, and nothing is left to take the rest of it.
        return Moved::Failed(Reason::AnswerCut);
    }
    match exchange.download.source_ended(engine, &mut client.wire) {
        Ok(_) => {
            exchange.upload.abandon(engine, pipes);
            side::leave(core, key);
            Moved::Ended
        }
        Err(_) => Moved::Failed(Reason::AnswerCut),
    }
}

/// The origin ended its direction of a tunnel: the end is passed on.
fn half_close<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    let Parts { engine, exchange, client, .. } = core.served(key);
    let ended = exchange.download.source_ended(engine, &mut client.wire);
    assert_eq!(ended, Ok(Waits::Ended), "a tunnel's end needs no byte");
    client.wire.shutdown(engine);
    Moved::Ended
}

/// The origin's part is over once the response was received and the request was sent: its
/// connection serves others while the client is still being served.
pub(crate) fn finish_origin<E: Engine>(core: &mut Core<E>, key: Key) {
    let exchange = core.exchange(key);
    let has_connection = exchange.transaction.connection.is_some();
    if !has_connection || exchange.tunnel || !exchange.download.source_is_done() {
        return;
    }
    if exchange.upload_is_over() {
        side::finish(core, key);
    } else {
        side::receive(core, key);
    }
}

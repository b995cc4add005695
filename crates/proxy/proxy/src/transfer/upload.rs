//! The upload of an exchange: its request's body, or what a client sends into a tunnel, goes to the
//! origin.

use millrace_engine::{Buffer, Engine, Key};
use millrace_http1::Framing;

use crate::conn::client;
use crate::core::{Core, Parts};
use crate::exchange::reason::Reason;
use crate::origin::{Phase, side};
use crate::transfer::source::Source;
use crate::transfer::{Moved, Waits};

/// Moves the request on. `with_head`: the header in `core.out` goes first.
#[inline(never)]
pub(crate) fn pump<E: Engine>(core: &mut Core<E>, key: Key, with_head: bool) -> Moved {
    let Parts { engine, pipes, counters, out, exchange, client, origin, .. } = core.parts(key);
    // A refresh has no client, and sends nothing but its header.
    let (Some(client), Some(origin)) = (client, origin) else { return Moved::Waiting };
    let head = if with_head { &out[..] } else { &[] };
    let before = exchange.upload.moved();
    let source = Source::Wire(&mut client.wire);
    let result = exchange.upload.pump((engine, pipes), source, &mut origin.wire, head);
    counters.bytes_uploaded.add(exchange.upload.moved() - before);
    match result {
        Ok(Waits::Sink) => Moved::Waiting,
        Ok(Waits::Source) if client.wire.has_ended() => client_ended(core, key),
        Ok(Waits::Source) => {
            let (expected, watches) = (exchange.upload.expected(), exchange.upload.watches());
            client.wire.receive_body(engine, Buffer::SIZE, expected, watches);
            Moved::Waiting
        }
        Ok(Waits::Off | Waits::Ended) => {
            exchange.transaction.since = engine.now();
            client::watch(engine, client);
            Moved::Ended
        }
        Err(_) => Moved::Failed(Reason::MalformedBody),
    }
}

/// The client ended its stream while its request's body, or a tunnel, is read from it.
#[inline(never)]
pub(crate) fn client_ended<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    if core.exchange(key).tunnel { half_close(core, key) } else { Moved::Failed(Reason::BodyCut) }
}

/// The client ended its direction of a tunnel: the end is passed on.
fn half_close<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    let Parts { engine, exchange, origin: Some(origin), .. } = core.parts(key) else {
        unreachable!("a tunnel has both connections");
    };
    let ended = exchange.upload.source_ended(engine, &mut origin.wire);
    assert_eq!(ended, Ok(Waits::Ended), "a tunnel's end needs no byte");
    origin.wire.shutdown(engine);
    Moved::Ended
}

/// The origin will take nothing more.
#[inline(never)]
pub(crate) fn failed<E: Engine>(core: &mut Core<E>, key: Key) -> Moved {
    let Parts { engine, pipes, exchange, .. } = core.parts(key);
    // It may have responded before it stopped reading (RFC 9112 section 9.5): what is in the
    // receive queue decides. Nothing more is sent, and neither side is used again.
    exchange.upload.abandon(engine, pipes);
    if exchange.tunnel && exchange.download.has_ended() {
        // What the client sent is lost, which an orderly end would hide.
        return Moved::Failed(Reason::AnswerCut);
    }
    if exchange.tunnel {
        return Moved::Ended;
    }
    exchange.persistent = exchange.persistent && exchange.framing == Framing::None;
    exchange.transaction.since = engine.now();
    if exchange.transaction.phase == Phase::Asked {
        side::receive(core, key);
    }
    Moved::Ended
}

/// The origin took so many bytes out of the upload's pipe.
#[inline(never)]
pub(crate) fn spliced<E: Engine>(core: &mut Core<E>, key: Key, count: u32) -> Moved {
    let Parts { engine, pipes, counters, exchange, origin, .. } = core.parts(key);
    counters.bytes_spliced.add(count.into());
    let Some(origin) = origin else { return Moved::Waiting };
    if exchange.upload.drain((engine, pipes), count as usize, &mut origin.wire) {
        pump(core, key, false)
    } else {
        Moved::Waiting
    }
}

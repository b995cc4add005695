//! Stage receive: receives the body of a request for a program into memory. So a slow client does
//! not occupy the program, and the program gets the length of a chunked body.

use millrace_engine::{Buffer, Engine, HeldBytes, Key};
use millrace_http1::{Expectation, Framing, HeaderWriter, Version, expectation};

use crate::conn::h1;
use crate::core::{Core, ExchangeParts};
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::origin::fastcgi;
use crate::transfer::sink::TransferSink;

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match event {
        Event::Enter => begin(core, key),
        Event::ClientReadable => collect(core, key),
        Event::ClientEnded => NextStep::End(Reason::BodyCut),
        Event::ClientFailed => NextStep::End(Reason::ClientClosed),
        Event::End(reason) => NextStep::End(reason),
        _ => NextStep::Wait,
    }
}

fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { engine, exchange, client, out, .. } = core.parts_with_client(key);
    exchange.upload.start(exchange.framing, false, engine.now());
    exchange.file_mut().body = Some(HeldBytes::copy(engine.budget(), &[]));
    let expects_continue = expectation(&exchange.request) == Expectation::Continue;
    if expects_continue && exchange.request.version() == Version::Http11 && client.may_send(key) {
        out.clear();
        let mut header = h1::header(out);
        header.response(100, b"Continue");
        header.end();
        client.wire.send(engine, &[out]);
    }
    collect(core, key)
}

/// Moves the received bytes of the body to the exchange.
fn collect<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { engine, exchange, client, .. } = core.parts_with_client(key);
    let most = fastcgi::buffer_bytes(exchange);
    let file = exchange.file.as_mut().expect("created when the stage begins");
    let body = file.body.as_mut().expect("created when the stage begins");
    let Ok(is_whole) = exchange.upload.collect(&mut client.wire, body, engine.now()) else {
        return NextStep::End(Reason::MalformedBody);
    };
    let length = body.len() as u64;
    if length > most {
        return NextStep::End(Reason::BodyTooLong);
    }
    if is_whole {
        exchange.framing = Framing::Length(length);
        return NextStep::Advance(Stage::Fetch);
    }
    if client.wire.has_ended() {
        return NextStep::End(Reason::BodyCut);
    }
    client.wire.receive_body(engine, Buffer::SIZE, exchange.upload.expected_bytes(), false);
    NextStep::Wait
}

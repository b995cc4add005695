//! The upload of an exchange: moves the request body, or the client's direction of a tunnel, to the
//! origin.

use millrace_engine::{Buffer, Engine, Key};
use millrace_http1::Framing;

use crate::conn::client;
use crate::core::{Core, ExchangeParts};
use crate::exchange::reason::Reason;
use crate::files::FileBody;
use crate::origin::{Phase, events};
use crate::transfer::source::TransferSource;
use crate::transfer::{TransferProgress, TransferState, file_wait};

/// Moves bytes of the request to the origin. With `with_header`, the header in `core.out` is sent
/// first.
#[inline(never)]
pub(crate) fn pump<E: Engine>(core: &mut Core<E>, key: Key, with_header: bool) -> TransferProgress {
    if is_from_file(core, key) {
        return pump_file(core, key, with_header);
    }
    let ExchangeParts { engine, pipes, counters, out, exchange, client, origin, .. } =
        core.parts(key);
    // A refresh has no client, and sends only its header.
    let (Some(client), Some(origin)) = (client, origin) else { return TransferProgress::Waiting };
    let header = if with_header { &out[..] } else { &[] };
    let before = exchange.upload.forwarded();
    let body = exchange.file.as_ref().filter(|_| with_header).and_then(|file| file.body.as_ref());
    let source = match body {
        Some(body) => TransferSource::Memory(body),
        None => TransferSource::Wire(&mut client.wire),
    };
    let result = exchange.upload.pump((engine, pipes), source, &mut origin.wire, header);
    counters.uploaded_bytes.add(exchange.upload.forwarded() - before);
    match result {
        Ok(TransferState::AwaitingSink) => TransferProgress::Waiting,
        Ok(TransferState::AwaitingSource) if client.wire.has_ended() => {
            handle_client_end(core, key)
        }
        Ok(TransferState::AwaitingSource) => {
            let (expected, watches) =
                (exchange.upload.expected_bytes(), exchange.upload.is_watching());
            client.wire.receive_body(engine, Buffer::SIZE, expected, watches);
            TransferProgress::Waiting
        }
        Ok(TransferState::Off | TransferState::Ended) => {
            exchange.transaction.awaiting_since = engine.now();
            client::receive_ahead(engine, client);
            TransferProgress::Ended
        }
        Err(_) => TransferProgress::Failed(Reason::MalformedBody),
    }
}

/// Returns whether bytes of a body in a file are being read from a disk.
#[inline]
pub(crate) fn awaits_disk<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    core.exchange(key).file.as_ref().is_some_and(|file| file.upload_waits())
}

/// Returns whether the body comes from a file.
#[inline]
fn is_from_file<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    core.exchange(key).file.as_ref().is_some_and(|file| file.upload.is_some())
}

/// Moves bytes of a stored body to the origin. Bytes that are no longer in the page cache are read
/// by a thread first.
#[inline(never)]
fn pump_file<E: Engine>(core: &mut Core<E>, key: Key, with_header: bool) -> TransferProgress {
    let ExchangeParts { engine, pipes, counters, out, exchange, client, origin, .. } =
        core.parts_with_client(key);
    let Some(origin) = origin else { return TransferProgress::Waiting };
    let file = exchange.file.as_mut().expect("the caller has checked it");
    let Some(read) = file.take_read() else { return TransferProgress::Waiting };
    let reader = file.upload.as_mut().expect("the caller has checked it");
    if read.is_err() {
        reader.fail();
    }
    let header = if with_header { &out[..] } else { &[] };
    let (before, source) = (exchange.upload.forwarded(), TransferSource::File(reader));
    let result = exchange.upload.pump((engine, pipes), source, &mut origin.wire, header);
    counters.uploaded_bytes.add(exchange.upload.forwarded() - before);
    match result {
        Ok(TransferState::AwaitingSink) => TransferProgress::Waiting,
        Ok(TransferState::AwaitingSource) => file_wait::begin(core, key, FileBody::Request),
        Ok(TransferState::Off | TransferState::Ended) => {
            exchange.transaction.awaiting_since = engine.now();
            client::receive_ahead(engine, client);
            TransferProgress::Ended
        }
        Err(_) => TransferProgress::Failed(Reason::UploadFailed),
    }
}

/// Handles the end of the client's stream during a request body or a tunnel. That of a tunnel is
/// passed on to the origin.
#[inline(never)]
pub(crate) fn handle_client_end<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let ExchangeParts { engine, exchange, client, origin, .. } = core.parts_with_client(key);
    if !exchange.is_tunnel {
        return match exchange.has_received_request() {
            true => TransferProgress::Waiting,
            false => TransferProgress::Failed(Reason::BodyCut),
        };
    }
    if client.wire.is_cut() {
        return TransferProgress::Failed(Reason::ClientClosed);
    }
    let origin = origin.expect("a tunnel has both connections");
    let ended = exchange.upload.handle_source_end(engine, &mut origin.wire, &[]);
    assert_eq!(ended, Ok(TransferState::Ended), "a tunnel ends without a last chunk");
    origin.wire.shutdown(engine);
    TransferProgress::Ended
}

/// Handles a failed send to the origin.
#[inline(never)]
pub(crate) fn handle_origin_failure<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let ExchangeParts { engine, pipes, exchange, .. } = core.parts(key);
    // The origin may have responded before it stopped reading (RFC 9112 section 9.5), so its
    // received bytes are still parsed. Nothing more is sent, and neither connection is used again.
    exchange.upload.abandon(engine, pipes);
    if exchange.is_tunnel && exchange.download.has_ended() {
        // Bytes of the client are lost; closing in order would hide that.
        return TransferProgress::Failed(Reason::ResponseCut);
    }
    if exchange.is_tunnel {
        return TransferProgress::Ended;
    }
    exchange.is_persistent = exchange.is_persistent && exchange.framing == Framing::None;
    exchange.transaction.awaiting_since = engine.now();
    if exchange.transaction.phase == Phase::Requesting {
        events::receive(core, key);
    }
    TransferProgress::Ended
}

/// Handles the report that the origin's socket took `count` bytes from the upload's pipe.
#[inline(never)]
pub(crate) fn handle_spliced<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    count: u32,
) -> TransferProgress {
    let ExchangeParts { engine, pipes, counters, exchange, origin, .. } = core.parts(key);
    counters.spliced_bytes.add(count.into());
    let Some(origin) = origin else { return TransferProgress::Waiting };
    if exchange.upload.continue_pipe((engine, pipes), count as usize, &mut origin.wire) {
        pump(core, key, false)
    } else {
        TransferProgress::Waiting
    }
}

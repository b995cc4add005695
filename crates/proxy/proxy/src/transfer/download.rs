//! The download of an exchange: moves the body of a response, or the origin's direction of a
//! tunnel, to the client.

use millrace_engine::{Engine, Key};

use crate::coded::coder;
use crate::conn::Conn;
use crate::core::{Core, ExchangeParts};
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::files::FileBody;
use crate::origin::{events, release};
use crate::transfer::source::TransferSource;
use crate::transfer::{TransferProgress, TransferState, file_wait};

/// Moves bytes of the response to the client. With `with_header`, the header in `core.out` is sent
/// first.
#[inline(never)]
pub(crate) fn pump<E: Engine>(core: &mut Core<E>, key: Key, with_header: bool) -> TransferProgress {
    let ExchangeParts { engine, pipes, counters, out, exchange, client, mut origin, .. } =
        core.parts_with_client(key);
    let Exchange { download, caching, status, file, .. } = exchange;
    if download.state() == TransferState::Off {
        return TransferProgress::NotStarted;
    }
    if file.as_ref().is_some_and(|file| file.reader.is_some()) {
        return pump_file(core, key, with_header);
    }
    let source = match (&mut caching.reader, &mut origin) {
        (Some(reader), _) => TransferSource::Cached(reader),
        (None, Some(origin)) => TransferSource::Wire(&mut origin.wire),
        (None, None) => TransferSource::Memory(&[]),
    };
    let header = if with_header { &out[..] } else { &[] };
    let (coder, sink) = (&mut caching.coder, &mut client.wire);
    let result = match coder.is_some() {
        true => download.pump_compressed(engine, source, coder, sink, header),
        false => download.pump((engine, pipes), source, sink, header),
    };
    counters.downloaded_bytes.add(download.take_newly_accepted());
    if let Some(reader) = &mut caching.reader {
        let woken = reader.take_fill_waiter();
        if woken.is_some() {
            core.wake(woken);
        }
        return match result {
            Ok(TransferState::AwaitingSink | TransferState::AwaitingSource) => {
                TransferProgress::Waiting
            }
            Ok(TransferState::Off | TransferState::Ended) => TransferProgress::Ended,
            Err(_) if with_header => {
                // The fill broke off before this response had its turn.
                core.exchange(key).status = 0;
                TransferProgress::Failed(Reason::ResponseIncomplete)
            }
            Err(_) => TransferProgress::Failed(Reason::ResponseCut),
        };
    }
    match result {
        Ok(TransferState::AwaitingSink) => {
            release_origin(core, key);
            TransferProgress::Waiting
        }
        Ok(TransferState::AwaitingSource) => {
            let Some(origin) = origin else { unreachable!("a body in memory is never waited for") };
            if origin.wire.has_ended() {
                return handle_origin_end(core, key);
            }
            let (expected, watches) = (download.expected_bytes(), download.is_watching());
            origin.wire.receive_body(engine, events::RECEIVE_MAX, expected, watches);
            TransferProgress::Waiting
        }
        Ok(TransferState::Off | TransferState::Ended) => TransferProgress::Ended,
        Err(_) if with_header => {
            // Nothing of the response was sent: its first chunk breaks the grammar.
            *status = 0;
            TransferProgress::Failed(Reason::MalformedResponseBody)
        }
        Err(_) => TransferProgress::Failed(Reason::ResponseCut),
    }
}

/// Moves bytes of a file to the client. Bytes that are not in the page cache are read by a thread
/// first.
#[inline(never)]
fn pump_file<E: Engine>(core: &mut Core<E>, key: Key, with_header: bool) -> TransferProgress {
    let ExchangeParts { engine, pipes, counters, out, exchange, client, .. } =
        core.parts_with_client(key);
    let Exchange { download, file, .. } = exchange;
    let file = file.as_mut().expect("the caller has checked it");
    let Some(read) = file.take_read() else { return TransferProgress::Waiting };
    let reader = file.reader.as_mut().expect("the caller has checked it");
    if read.is_err() {
        reader.fail();
    }
    let header = if with_header { &out[..] } else { &[] };
    let source = TransferSource::File(reader);
    let result = download.pump((engine, pipes), source, &mut client.wire, header);
    counters.downloaded_bytes.add(download.take_newly_accepted());
    match result {
        Ok(TransferState::AwaitingSink) => TransferProgress::Waiting,
        Ok(TransferState::AwaitingSource) => file_wait::begin(core, key, FileBody::Response),
        Ok(TransferState::Off | TransferState::Ended) => TransferProgress::Ended,
        Err(_) => {
            if with_header {
                // Nothing was sent.
                exchange.status = 0;
            }
            TransferProgress::Failed(Reason::FileFailed)
        }
    }
}

/// Sends the header in `core.out` with a body in memory.
pub(crate) fn send_from_memory<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    body: &[u8],
) -> TransferProgress {
    let ExchangeParts { engine, pipes, counters, out, exchange, client, .. } =
        core.parts_with_client(key);
    let source = TransferSource::Memory(body);
    let sent = exchange.download.pump((engine, pipes), source, &mut client.wire, out);
    assert_eq!(sent, Ok(TransferState::AwaitingSink), "there is a header to send");
    counters.downloaded_bytes.add(exchange.download.take_newly_accepted());
    TransferProgress::Waiting
}

/// Handles the report that the client's socket took `count` bytes from the download's pipe.
#[inline(never)]
pub(crate) fn handle_spliced<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    count: u32,
) -> TransferProgress {
    let ExchangeParts { engine, pipes, counters, exchange, client, .. } =
        core.parts_with_client(key);
    counters.spliced_bytes.add(count.into());
    let is_empty =
        exchange.download.continue_pipe((engine, pipes), count as usize, &mut client.wire);
    counters.downloaded_bytes.add(exchange.download.take_newly_accepted());
    if is_empty { pump(core, key, false) } else { TransferProgress::Waiting }
}

/// Handles the end of the origin's stream during a response body or a tunnel.
#[inline(never)]
pub(crate) fn handle_origin_end<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let ExchangeParts { engine, pipes, exchange, client, origin, .. } = core.parts_with_client(key);
    let is_cut = origin.is_some_and(|origin| origin.wire.is_cut());
    if is_cut && exchange.download.is_delimited_by_end() {
        return TransferProgress::Failed(Reason::ResponseCut);
    }
    if exchange.is_tunnel {
        return half_close(engine, exchange, client);
    }
    if exchange.download.has_received_all() {
        // The response was received whole, but the rest of the request can no longer be sent.
        return TransferProgress::Failed(Reason::ResponseCut);
    }
    let Exchange { download, caching, .. } = exchange;
    let last = coder::finish(&mut caching.coder);
    match download.handle_source_end(engine, &mut client.wire, &last) {
        Ok(_) => {
            exchange.upload.abandon(engine, pipes);
            release::abandon_transaction(core, key);
            TransferProgress::Ended
        }
        Err(_) => TransferProgress::Failed(Reason::ResponseCut),
    }
}

/// Passes the end of the origin's direction of a tunnel on to the client.
fn half_close<E: Engine>(
    engine: &mut E,
    exchange: &mut Exchange,
    client: &mut Conn,
) -> TransferProgress {
    let ended = exchange.download.handle_source_end(engine, &mut client.wire, &[]);
    assert_eq!(ended, Ok(TransferState::Ended), "a tunnel ends without a last chunk");
    client.wire.shutdown(engine);
    TransferProgress::Ended
}

/// Releases the origin connection once the response is received and the request is sent. The
/// connection can serve other requests while the client still receives the response.
pub(crate) fn release_origin<E: Engine>(core: &mut Core<E>, key: Key) {
    let exchange = core.exchange(key);
    let has_connection = exchange.transaction.connection.is_some();
    if !has_connection || exchange.is_tunnel || !exchange.download.has_received_all() {
        return;
    }
    if exchange.has_finished_upload() {
        release::finish_transaction(core, key);
    } else {
        events::receive(core, key);
    }
}

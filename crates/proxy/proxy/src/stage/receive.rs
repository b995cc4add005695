//! Stage receive: receives the body of a request for a program, into memory or, if it is long, into
//! a file. So a slow client does not occupy the program, and the program gets the length of a
//! chunked body. Threads write the file; meanwhile nothing is received. A body for a copy-free
//! program may be received where the program reads it ([`program::allocate_body`]).

use std::sync::Arc;

use millrace_engine::{Buffer, Engine, HeldBytes, Key, TokenKind};
use millrace_files::{Errno, JobKind};
use millrace_http1::Framing;

use crate::cached::waiting;
use crate::core::{Core, ExchangeParts};
use crate::exchange::Exchange;
use crate::exchange::reason::Reason;
use crate::exchange::stage::{Event, NextStep, Stage};
use crate::files::FileWork;
use crate::origin::{fastcgi, program};

/// The bytes that are written to a file at once. Memory for one such piece is enough for a body of
/// any length.
const WRITE_BYTES: u64 = 256 * 1024;

/// The bytes that are received into a pool before other connections have their turn.
const TURN_BYTES: usize = 256 * 1024;

/// Handles an event of an exchange in this stage.
#[inline]
pub(crate) fn on<E: Engine>(core: &mut Core<E>, key: Key, event: Event) -> NextStep {
    match event {
        Event::Enter => begin(core, key),
        Event::ClientReadable | Event::ClientEnded if is_writing(core, key) => NextStep::Wait,
        Event::ClientReadable => collect(core, key),
        Event::Woken if is_writing(core, key) => finish_write(core, key),
        Event::TimedOut => {
            waiting::end_wait(core, key);
            NextStep::End(Reason::FileTimedOut)
        }
        Event::ClientEnded => NextStep::End(Reason::BodyCut),
        Event::ClientFailed => NextStep::End(Reason::ClientClosed),
        Event::End(reason) => NextStep::End(reason),
        _ => NextStep::Wait,
    }
}

fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { engine, exchange, .. } = core.parts_with_client(key);
    if program::is_used(exchange)
        && matches!(exchange.framing, Framing::Length(length) if length > fastcgi::buffer_bytes(exchange))
    {
        return NextStep::End(Reason::BodyTooLarge);
    }
    exchange.upload.start(exchange.framing, false, engine.now());
    fastcgi::send_continue(core, key);
    program::allocate_body(core, key);
    collect(core, key)
}

/// Returns whether a thread writes received bytes to a file.
fn is_writing<E: Engine>(core: &mut Core<E>, key: Key) -> bool {
    core.exchange(key).file_mut().work.is_some()
}

/// Moves the received bytes of the body to the exchange, and from there to a file if they are many.
fn collect<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { engine, exchange, client, shared, .. } = core.parts_with_client(key);
    let has_folders = shared.uploads.get().is_some();
    let in_memory = fastcgi::buffer_bytes(exchange);
    let most = fastcgi::received_bytes_max(exchange, has_folders);
    let file = exchange.file.get_or_insert_default();
    if file.pooled.is_some() {
        return collect_into_pool(core, key);
    }
    let body = file.body.get_or_insert_with(|| HeldBytes::copy(engine.budget(), &[]));
    let append = |bytes: &[u8]| body.append(bytes);
    let Ok(is_whole) = exchange.upload.collect(&mut client.wire, append, engine.now()) else {
        return NextStep::End(Reason::MalformedBody);
    };
    let (length, received) = (exchange.upload.forwarded(), body.len() as u64);
    if length > most {
        return NextStep::End(match program::is_used(exchange) {
            true => Reason::BodyTooLarge,
            false => Reason::BodyTooLong,
        });
    }
    let is_long = matches!(exchange.framing, Framing::Length(whole) if whole > in_memory);
    let is_stored = is_long || length > in_memory || file.receiving.is_some();
    if is_stored && received > 0 && (is_whole || received >= WRITE_BYTES) {
        return write(core, key);
    }
    if is_whole {
        if let Some(receiving) = file.receiving.take() {
            (file.body, file.stored) = (None, Some(Arc::new(receiving)));
        }
        exchange.framing = Framing::Length(length);
        return NextStep::Advance(Stage::Fetch);
    }
    if client.wire.has_ended() {
        return NextStep::End(Reason::BodyCut);
    }
    client.wire.receive_body(engine, Buffer::SIZE, exchange.upload.expected_bytes(), false);
    NextStep::Wait
}

/// Receives the body into the pool of its program. Only bytes that came with the header are copied.
fn collect_into_pool<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let ExchangeParts { engine, exchange, client, .. } = core.parts_with_client(key);
    let Exchange { file, upload, .. } = exchange;
    let pooled = file.as_deref_mut().and_then(|file| file.pooled.as_mut());
    let buffer = pooled.expect("the caller has checked it");
    let append = |bytes: &[u8]| {
        buffer.write(bytes);
    };
    let Ok(mut is_whole) = upload.collect(&mut client.wire, append, engine.now()) else {
        return NextStep::End(Reason::MalformedBody);
    };
    let first = buffer.len();
    while !is_whole {
        if client.wire.has_ended() {
            return NextStep::End(Reason::BodyCut);
        }
        if client.wire.is_receiving() {
            return NextStep::Wait;
        }
        let left = upload.expected_bytes();
        if buffer.len() - first >= TURN_BYTES {
            // Other connections have their turn.
            client.wire.receive_body(engine, Buffer::SIZE, left, true);
            return NextStep::Wait;
        }
        let memory = &mut buffer.unfilled()[..left as usize];
        let received;
        (received, is_whole) = upload.collect_into(engine, &mut client.wire, memory);
        match received {
            Some(Ok(count)) => buffer.advance(count),
            Some(Err(_)) => return NextStep::End(Reason::ClientClosed),
            None => client.wire.receive_body(engine, Buffer::SIZE, left, true),
        }
    }
    NextStep::Advance(Stage::Fetch)
}

/// Has a thread write the received bytes to the file of the body.
fn write<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let ExchangeParts { engine, exchange, shared, .. } = core.parts_with_client(key);
    let all_max = exchange.snapshot().limits().upload_disk_bytes;
    let folders = shared.uploads.get().expect("without folders, no body is as long");
    let file = exchange.file_mut();
    let mut receiving = file.receiving.take().unwrap_or_else(|| folders.begin());
    let bytes = file.body.take().expect("there are bytes to write").into_vec();
    let charge = engine.budget().charge(bytes.capacity());
    let work = move || receiving.append(&bytes, all_max).map(|()| receiving);
    match shared.files.run(JobKind::Io, waiter, work) {
        Ok(pending) => waiting::wait_for_file(core, key, FileWork::Store(pending, charge)),
        Err(_) => NextStep::End(Reason::Overloaded),
    }
}

/// Continues with the client when a thread has written the bytes.
fn finish_write<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let now = core.engine.now();
    let exchange = core.exchange(key);
    let file = exchange.file_mut();
    let Some(FileWork::Store(work, charge)) = file.work.take() else {
        unreachable!("the stage waits for no other work")
    };
    let Some(written) = work.take() else {
        file.work = Some(FileWork::Store(work, charge));
        return NextStep::Wait;
    };
    match written {
        Ok(receiving) => file.receiving = Some(receiving),
        Err(error) => {
            waiting::end_wait(core, key);
            return NextStep::End(reason_of(error));
        }
    }
    exchange.upload.skip_wait(now);
    waiting::end_wait(core, key);
    collect(core, key)
}

fn reason_of(error: Errno) -> Reason {
    match error {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Reason::UploadDiskFull,
        Errno::MFILE | Errno::NFILE => Reason::Overloaded,
        _ => Reason::UploadFailed,
    }
}

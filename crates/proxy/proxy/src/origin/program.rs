//! Requests to programs that hand over their responses without a copy (docs/design/programs.md). A
//! worker has one connection to each program, a channel of iolite, which carries all requests at a
//! time. Responses arrive in any order.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use iolite::{Aggregate, ChannelError, ProgramResponse};
use millrace_config::{Origin, OriginProtocol};
use millrace_engine::{Engine, Key, TokenKind};
use millrace_fastcgi::{HeaderForm, convert_header, header_length};
use millrace_http1::format::write_number;
use millrace_http1::{Framing, HeadScan, Method};
use millrace_store::Body;

use crate::cached::{reader::CachedReader, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Exchange, Reason};
use crate::files::{FileContext, ProgramUse};
use crate::origin::h1::{self, HeaderOutcome};
use crate::origin::{OriginAddress, Phase, fastcgi, program_events};

/// Returns whether a program responds to the requests of the exchange's route.
#[inline]
pub(crate) fn is_used(exchange: &Exchange) -> bool {
    exchange.snapshot().origin_protocol(exchange.service, exchange.plan) == OriginProtocol::Program
}

/// Allocates memory for the body of a request in the pool of its program, before the body is
/// received. Short bodies, those above 2 MB or of unknown length, and those over TLS, which has to
/// decrypt them first, are copied into the pool later, and so are all if there is no memory.
pub(crate) fn allocate_body<E: Engine>(core: &mut Core<E>, key: Key) {
    let ExchangeParts { exchange, client, .. } = core.parts_with_client(key);
    let Framing::Length(length) = exchange.framing else { return };
    if length < DIRECT_BYTES_MIN || client.wire.tls().is_some() || !is_used(exchange) {
        return;
    }
    let path = path_of(exchange);
    // Without a program, the request fails when it is sent.
    let Ok(slot) = program_events::connect(core, &path) else { return };
    let connection = core.origins.programs.get_mut(slot).expect("connected just now");
    let pooled = connection.channel.allocate(length as usize);
    core.exchange(key).file.get_or_insert_default().pooled = pooled;
}

/// Bodies of at least this length are received directly. A shorter one mostly arrives with the
/// header.
const DIRECT_BYTES_MIN: u64 = 4096;

/// Sends the request to its program, or lets it wait for room. `has_waited`: it has, and now is its
/// turn.
///
/// # Errors
/// The reason why the program cannot have it.
pub(crate) fn send_request<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    has_waited: bool,
) -> Result<(), Reason> {
    let path = path_of(core.exchange(key));
    let slot = program_events::connect(core, &path)?;
    if !has_waited {
        let first_byte_ms = core.exchange(key).snapshot().limits().first_byte_ms;
        waiting::begin_wait(core, key, Duration::from_millis(first_byte_ms));
    }
    let connection = core.origins.programs.get_mut(slot).expect("connected just now");
    let (has_responded, is_first) =
        (connection.has_responded, has_waited || connection.waiting.is_empty());
    let exchange = core.exchange(key);
    exchange.file_mut().program = Some(ProgramUse { slot, is_sent: false });
    let transaction = &mut exchange.transaction;
    (transaction.phase, transaction.is_reused) = (Phase::AtProgram, has_responded);
    let sent = if is_first { try_send(core, key, slot, &path) } else { Ok(false) };
    match sent {
        Ok(true) => {
            core.exchange(key).file_mut().program = Some(ProgramUse { slot, is_sent: true });
            core.origins.programs.note_sent(slot);
            Ok(())
        }
        Ok(false) => {
            let connection = core.origins.programs.get_mut(slot).expect("connected just now");
            connection.enqueue(key, has_waited);
            core.origins.programs.note_sent(slot);
            Ok(())
        }
        Err(ChannelError::NoMemory(_)) => Err(Reason::Overloaded),
        Err(error) => {
            program_events::fail(core, slot, error);
            Err(Reason::OriginClosed)
        }
    }
}

fn path_of(exchange: &Exchange) -> Arc<Path> {
    let route = exchange.snapshot().route_of(exchange.service, exchange.plan);
    match route.and_then(|route| route.origins.first()) {
        Some(Origin::Unix(path)) => path.clone(),
        _ => unreachable!("a program has the path of a Unix socket"),
    }
}

/// Composes the request and sends it if there is room for it.
fn try_send<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    slot: Key,
    path: &Arc<Path>,
) -> Result<bool, ChannelError> {
    let Core { engine, exchanges, origins, conns, .. } = core;
    let connection = origins.programs.get_mut(slot).expect("connected just now");
    if !connection.channel.check_room()? {
        return Ok(false);
    }
    let exchange = exchanges.get_mut(key).expect("the driver's exchange is in the table");
    let client = exchange.conn.and_then(|conn| conns.get_mut(conn));
    let peer = client.as_ref().and_then(|client| client.client_address);
    let local = client.and_then(|client| client.destination(engine));
    let origin = OriginAddress::Unix(path.clone());
    let environment = &mut origins.environment;
    fastcgi::set_environment(environment, exchange, (&origin, 80), [peer, local]);
    let body = match exchange.file.as_deref() {
        Some(FileContext { pooled: Some(pooled), .. }) => pooled.slice(0..pooled.len()).into(),
        Some(FileContext { body: Some(body), .. }) if !body.is_empty() => {
            connection.channel.share(body)?
        }
        _ => Aggregate::new(),
    };
    let id = key.token(TokenKind::Exchange).to_bits();
    connection.channel.try_send(id, environment.variables(), &body)
}

/// Takes the response that the program has sent, and makes it that of the exchange. Returns the
/// framing of its body; `None` if there is no response yet.
///
/// # Errors
/// The reason why there is no response, or none that can be used.
pub(crate) fn take_response<E: Engine>(
    core: &mut Core<E>,
    key: Key,
) -> Result<Option<Framing>, Reason> {
    let file = core.exchange(key).file_mut();
    let Some(response) = file.response.take() else {
        let at = file.program.expect("the request was sent or waits for room");
        let connection = core.origins.programs.get_mut(at.slot).ok_or(Reason::OriginClosed)?;
        return match !at.is_sent && connection.take_turn(key) {
            true => send_request(core, key, true).map(|()| None),
            false => Ok(None),
        };
    };
    file.program = None;
    waiting::end_wait(core, key);
    let waiter = core.waiter(key, TokenKind::Exchange);
    let ExchangeParts { exchange, client, out, .. } = core.parts(key);
    out.clear();
    let body = write_header(out, exchange, response)?;
    let snapshot = exchange.snapshot().clone();
    let limits = &snapshot.response_limits;
    match exchange.response.parse_lenient(out, &mut HeadScan::default(), limits) {
        Ok(Some(length)) if length == out.len() => {}
        _ => return Err(Reason::MalformedResponse),
    }
    let HeaderOutcome::Final(framing) = h1::classify_header(exchange)? else {
        return Err(Reason::MalformedResponse);
    };
    if !body.is_empty() {
        let body = Arc::new(Body::whole(body));
        let mut reader = CachedReader::new(&body, None, waiter).expect("the body is whole");
        if client.is_some_and(|client| client.wire.tls().is_some()) {
            reader.seal_in_steps();
        }
        exchange.caching.reader = Some(reader);
    }
    // The request is not sent once more.
    exchange.file_mut().pooled = None;
    Ok(Some(framing))
}

/// Writes the header of a program's response as that of HTTP/1.1, with the length of the body.
/// Returns the body.
fn write_header(
    out: &mut Vec<u8>,
    exchange: &mut Exchange,
    response: ProgramResponse,
) -> Result<Aggregate, Reason> {
    // It ends with an empty line, and nothing follows.
    if header_length(&response.header, &mut 0) != Some(response.header.len()) {
        return Err(Reason::MalformedResponse);
    }
    let announced = match convert_header(&response.header, out) {
        Ok(HeaderForm::Document { content_length }) => content_length,
        Ok(HeaderForm::LocalRedirect) => {
            exchange.transaction.is_local_redirect = true;
            return Ok(Aggregate::new());
        }
        Err(_) => return Err(Reason::MalformedResponse),
    };
    let length = response.body.len();
    let is_head = exchange.request.method() == Method::Head;
    let has_no_body = matches!(&out[9..12], b"204" | b"304");
    if announced.is_none() && !has_no_body && !(is_head && length == 0) {
        out.truncate(out.len() - 2);
        out.extend_from_slice(b"Content-Length: ");
        write_number(out, length);
        out.extend_from_slice(b"\r\n\r\n");
    }
    if is_head || has_no_body {
        return Ok(Aggregate::new());
    }
    match announced.is_none_or(|announced| announced == length) {
        true => Ok(response.body),
        false => Err(Reason::MalformedResponse),
    }
}

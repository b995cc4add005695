//! Heads as they leave: what of a received head goes on, in its order, and what is added.
//! Hop-by-hop fields never go on; the framing is always written here, in one form.

use std::borrow::Cow;
use std::sync::Arc;

use millrace_http_cache::write_validation;
use millrace_http1::text::{write_ip_host, write_number, write_port};
use millrace_http1::{
    Framing, Method, Name, NameSet, OriginRequest, RequestHead, Version, decimal, declared_length,
    destination, forwarded_runs, upgrade_protocols,
};
use millrace_store::Object;

use crate::auth;
use crate::exchange::access_log::Dates;
use crate::exchange::reason::{Reason, phrase};
use crate::exchange::{Exchange, Own, Plan};
use crate::origin::Place;
use crate::snapshot::Snapshot;
use millrace_config::HostSent;

/// Writes the request for the origin at `place`. Gives whether an Upgrade goes with it.
pub(crate) fn write_request(out: &mut Vec<u8>, exchange: &mut Exchange, place: &Place) -> bool {
    let sent = exchange.origin_request();
    let request = sent.head();
    let snapshot = exchange.snapshot();
    let destination = destination(request).expect("the route stage has read it");
    let boosting = matches!(exchange.plan, Plan::Route(_));
    let stored = exchange.caching.object.clone().filter(|_| request.method() == Method::Get);
    out.extend_from_slice(request.method_bytes());
    out.push(b' ');
    out.extend_from_slice(destination.path_and_query);
    out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
    match (host_sent(exchange, snapshot), destination.authority) {
        (HostSent::Client, Some(authority)) => OriginRequest::write_host(out, &authority),
        _ => write_place(out, place),
    }
    out.extend_from_slice(b"\r\n");
    // A booster has what others wait for whole, whatever this client has of it already.
    let is_whole = stored.is_some() || (boosting && exchange.caching.claim.is_some());
    let counts_hops = matches!(request.method(), Method::Options | Method::Trace);
    let mut left_out = NameSet::default();
    if is_whole {
        left_out = left_out.with(&CONDITIONS);
    }
    if counts_hops {
        left_out = left_out.with(&NameSet::of(&[Name::MaxForwards]));
    }
    sent.lines(left_out).for_each(|run| run.write(out));
    if let Some(hops) = request.find(Name::MaxForwards).filter(|_| counts_hops) {
        let left = decimal(request.value_of(hops)).map_or(0, |count| count.saturating_sub(1));
        write_number_field(out, b"Max-Forwards: ", left);
    }
    sent.write_added(out, destination.authority.as_ref());
    let rest = exchange.caching.completes.as_ref();
    if let Some(rest) = rest {
        write_field(out, b"Range", &rest.range);
        write_field(out, b"If-Range", &rest.if_range);
    }
    let asks = |stored: Arc<Object>| write_validation(out, &[stored.view()]);
    let validates = rest.is_none() && stored.is_some_and(asks);
    write_via(out, request.version(), snapshot);
    write_framing(out, exchange.framing, exchange.framing == Framing::Chunked);
    let upgrade = upgrade_to_send(exchange);
    match (upgrade, sent.takes_trailers()) {
        (true, _) => write_upgrade(out, request),
        (false, true) => out.extend_from_slice(b"TE: trailers\r\nConnection: TE\r\n"),
        (false, false) => {}
    }
    out.extend_from_slice(b"\r\n");
    exchange.caching.validates = validates;
    exchange.caching.asks_for_all = is_whole;
    upgrade
}

/// Fields by which a request asks for less than all.
const CONDITIONS: NameSet =
    NameSet::of(&[Name::IfNoneMatch, Name::IfModifiedSince, Name::IfRange, Name::Range]);

fn host_sent(exchange: &Exchange, snapshot: &Snapshot) -> HostSent {
    let route = snapshot.route_of(exchange.service, exchange.plan);
    route.map_or(HostSent::Client, |route| route.host_sent)
}

fn write_place(out: &mut Vec<u8>, place: &Place) {
    match place {
        Place::Unix(_) => out.extend_from_slice(b"localhost"),
        Place::Name(name, 80) => out.extend_from_slice(name),
        Place::Name(name, port) => {
            out.extend_from_slice(name);
            write_port(out, *port);
        }
        Place::Address(address) => {
            write_ip_host(out, address.ip());
            if address.port() != 80 {
                write_port(out, address.port());
            }
        }
    }
}

/// Whether an Upgrade goes on. Not one with a body, which the origin could read as the other
/// protocol; and not to h2, h2c or another HTTP, whose requests would pass unseen (RFC 9113 section
/// 3.1).
fn upgrade_to_send(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    let mut protocols = upgrade_protocols(request).peekable();
    exchange.framing == Framing::None
        && request.version() == Version::Http11
        && protocols.peek().is_some()
        && protocols.all(|protocol| {
            let is = |prefix: &[u8]| {
                protocol.len() >= prefix.len()
                    && protocol[..prefix.len()].eq_ignore_ascii_case(prefix)
            };
            !is(b"h2") && !is(b"HTTP") && !is(b"TLS")
        })
}

/// RFC 9110 section 7.8: the protocols offered, or the ones switched to.
fn write_upgrade(out: &mut Vec<u8>, fields: &millrace_http1::Fields) {
    out.extend_from_slice(b"Connection: Upgrade\r\nUpgrade: ");
    for (index, protocol) in upgrade_protocols(fields).enumerate() {
        out.extend_from_slice(if index > 0 { b", " } else { b"" });
        out.extend_from_slice(protocol);
    }
    out.extend_from_slice(b"\r\n");
}

/// What the head of an answer says beside what the origin said.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct AnswerForm {
    /// How the body leaves.
    pub(crate) framing: Framing,
    /// Whether it leaves in chunks.
    pub(crate) chunked: bool,
    /// Whether the client's connection goes on.
    pub(crate) persistent: bool,
}

/// Writes the final answer of an origin, or a 101 that was asked for.
pub(crate) fn write_answer(
    out: &mut Vec<u8>,
    exchange: &Exchange,
    form: AnswerForm,
    dates: &mut Dates,
    now: std::time::Duration,
) {
    let answer = &exchange.answer;
    write_status(out, answer.status(), answer.reason());
    forwarded_runs(answer, |_| true).for_each(|run| run.write(out));
    if answer.find(Name::Date).is_none() {
        write_field(out, b"Date", dates.at(now).http_date());
    }
    let snapshot = exchange.snapshot();
    write_via(out, answer.version(), snapshot);
    if snapshot.tells_status(exchange.service) {
        // RFC 9209 section 2: the last member of the list is who is closest to the client.
        write_number_field(
            out,
            b"Proxy-Status: millrace; received-status=",
            answer.status().into(),
        );
    }
    if snapshot.cache(exchange.service, exchange.plan).is_some_and(|it| it.tells_status) {
        out.extend_from_slice(b"Cache-Status: ");
        exchange.caching.status().write(out, "millrace");
        out.extend_from_slice(b"\r\n");
    }
    match form.framing {
        Framing::None if answer.status() >= 200 && answer.status() != 204 => {
            // HEAD and 304 may say how long the body would be.
            if let Ok(Some(length)) = declared_length(answer) {
                write_number_field(out, b"Content-Length: ", length);
            }
        }
        Framing::None => {}
        framing => write_framing(out, framing, form.chunked),
    }
    if answer.status() == 101 {
        write_upgrade(out, answer);
    } else {
        if answer.status() == 426 && upgrade_protocols(answer).next().is_some() {
            // RFC 9110 section 15.5.22: it says which protocol is required.
            write_upgrade(out, answer);
        }
        write_persistence(out, exchange.request.version(), form.persistent);
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes an interim answer (RFC 9110 section 15.2).
pub(crate) fn write_interim(out: &mut Vec<u8>, exchange: &Exchange) {
    let answer = &exchange.answer;
    write_status(out, answer.status(), answer.reason());
    forwarded_runs(answer, |_| true).for_each(|run| run.write(out));
    out.extend_from_slice(b"\r\n");
}

/// Writes the answer to CONNECT.
pub(crate) fn write_connected(out: &mut Vec<u8>, exchange: &Exchange) {
    write_status(out, 200, b"OK");
    write_via(out, Version::Http11, exchange.snapshot());
    out.extend_from_slice(b"\r\n");
}

/// Writes the header of a response that millrace makes itself. Returns the body.
pub(crate) fn write_own(
    out: &mut Vec<u8>,
    exchange: &Exchange,
    own: Own,
    persistent: bool,
    date: &[u8],
) -> Cow<'static, [u8]> {
    let (status, kind) = match own {
        Own::Refusal(reason) => (reason.status(), &b"text/plain; charset=utf-8"[..]),
        Own::Options => (200, &b""[..]),
        Own::Trace => (200, &b"message/http"[..]),
    };
    write_status(out, status, phrase(status).as_bytes());
    write_field(out, b"Server", b"millrace");
    write_field(out, b"Date", date);
    if let Own::Options = own {
        write_field(out, b"Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE");
    }
    if let Own::Refusal(Reason::ConnectRefused) = own {
        write_field(out, b"Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE");
    }
    if let Own::Refusal(reason) = own {
        write_refusal_status(out, reason);
        auth::write_challenges(out, exchange, reason);
    }
    if !kind.is_empty() {
        write_field(out, b"Content-Type", kind);
    }
    write_persistence(out, exchange.request.version(), persistent);
    let body = match own {
        Own::Refusal(reason) => Cow::Owned(format!("{}\n", reason.text()).into_bytes()),
        Own::Options => Cow::Borrowed(&b""[..]),
        Own::Trace => Cow::Owned(traced(&exchange.request)),
    };
    write_number_field(out, b"Content-Length: ", body.len() as u64);
    out.extend_from_slice(b"\r\n");
    let is_head = exchange.request_is_whole && exchange.request.method() == Method::Head;
    if is_head { Cow::Borrowed(b"") } else { body }
}

/// RFC 9209: why there is no answer of the origin's. Only our own words: neither the address of a
/// next hop nor what it said is a client's to know.
fn write_refusal_status(out: &mut Vec<u8>, reason: Reason) {
    out.extend_from_slice(b"Proxy-Status: millrace; error=");
    out.extend_from_slice(reason.error_type().as_bytes());
    out.extend_from_slice(b"; details=\"");
    out.extend_from_slice(reason.word().as_bytes());
    out.extend_from_slice(b"\"\r\n");
}

/// RFC 9110 section 9.3.8: the request as it came, without what is secret.
fn traced(request: &RequestHead) -> Vec<u8> {
    let mut echo = Vec::with_capacity(request.bytes().len());
    echo.extend_from_slice(request.method_bytes());
    echo.push(b' ');
    echo.extend_from_slice(request.target());
    echo.push(b' ');
    echo.extend_from_slice(request.version().as_str().as_bytes());
    echo.extend_from_slice(b"\r\n");
    for field in request.fields() {
        let is_secret =
            matches!(field.known, Name::Authorization | Name::Cookie | Name::ProxyAuthorization);
        if !is_secret {
            write_field(&mut echo, request.name_of(field), request.value_of(field));
        }
    }
    echo.extend_from_slice(b"\r\n");
    echo
}

fn write_status(out: &mut Vec<u8>, status: u16, reason: &[u8]) {
    out.extend_from_slice(b"HTTP/1.1 ");
    write_number(out, status.into());
    out.push(b' ');
    out.extend_from_slice(reason);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn write_field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// `name` with its colon and blank.
pub(crate) fn write_number_field(out: &mut Vec<u8>, name: &[u8], number: u64) {
    out.extend_from_slice(name);
    write_number(out, number);
    out.extend_from_slice(b"\r\n");
}

pub(crate) fn write_via(out: &mut Vec<u8>, received: Version, snapshot: &Snapshot) {
    out.extend_from_slice(match received {
        Version::Http10 => &snapshot.via[0],
        Version::Http11 => &snapshot.via[1],
    });
}

pub(crate) fn write_framing(out: &mut Vec<u8>, framing: Framing, chunked: bool) {
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    } else if let Framing::Length(length) = framing {
        write_number_field(out, b"Content-Length: ", length);
    }
}

pub(crate) fn write_persistence(out: &mut Vec<u8>, client: Version, persistent: bool) {
    match (client, persistent) {
        (_, false) => out.extend_from_slice(b"Connection: close\r\n"),
        (Version::Http10, true) => out.extend_from_slice(b"Connection: keep-alive\r\n"),
        (Version::Http11, true) => {}
    }
}

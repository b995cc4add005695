//! Writes headers: the fields of a received header that are forwarded, in their order, and the
//! fields that are added. Hop-by-hop fields are never forwarded. The framing is always written
//! here, in one form. Only the [`HeaderWriter`] knows how a header is encoded.

use std::borrow::Cow;
use std::sync::Arc;

use millrace_files::{Coding, RequestPath};
use millrace_http_cache::{Etag, write_validation};
use millrace_http1::format::{write_ip_host, write_normalised_authority, write_number, write_port};
use millrace_http1::{
    Authority, FieldLine, FieldName, FieldRun, Framing, HeaderWriter, Http1Header, Method, NameSet,
    RequestHead, ResponseHead, Scheme, Version, declared_length, destination, forwarded_runs,
    parse_decimal, path, upgrade_protocols,
};
use millrace_store::Object;

use crate::auth;
use crate::coded::coder::ResponseCoding;
use crate::exchange::{
    Exchange, OwnResponse, Reason, RequestPlan, access_log::Dates, reason::phrase,
};
use crate::origin::OriginAddress;
use crate::snapshot::Snapshot;
use millrace_config::HostHeader;

/// Writes the request for the origin at `address`, the default port of whose scheme is
/// `default_port`. Returns whether it has an Upgrade field.
pub(crate) fn write_request(
    out: &mut impl HeaderWriter,
    exchange: &mut Exchange,
    (address, default_port): (&OriginAddress, u16),
) -> bool {
    let sent = exchange.origin_request();
    let request = sent.head();
    let snapshot = exchange.snapshot();
    let route = snapshot.route_of(exchange.service, exchange.plan);
    let destination = destination(request).expect("the route stage has checked the destination");
    let is_reverse = matches!(exchange.plan, RequestPlan::Route(_));
    let stored = exchange.caching.object.clone().filter(|_| request.method() == Method::Get);
    let host_sent = route.map_or(HostHeader::Client, |route| route.host_header);
    out.request(request.method_bytes(), destination.path_and_query, |host| {
        match (host_sent, destination.authority) {
            (HostHeader::Client, Some(authority)) => sent.write_host(host, &authority),
            _ => write_host(host, address, default_port),
        }
    });
    // A reverse proxy fetches the whole response for the requests that wait, even if this client
    // has it already.
    let omits_conditions = stored.is_some() || (is_reverse && exchange.caching.lease.is_some());
    let counts_hops = matches!(request.method(), Method::Options | Method::Trace);
    let mut omitted = NameSet::default();
    if omits_conditions {
        omitted = omitted.union(&CONDITIONS);
        if exchange.is_refresh() || request.find(FieldName::Range).is_none() {
            // If-Range means nothing without Range. A refresh has no client that needs it.
            omitted = omitted.union(&NameSet::new(&[FieldName::IfRange]));
        }
    }
    if counts_hops {
        omitted = omitted.union(&NameSet::new(&[FieldName::MaxForwards]));
    }
    sent.lines(omitted).for_each(|run| out.field_run(run));
    if let Some(hops) = request.find(FieldName::MaxForwards).filter(|_| counts_hops) {
        let left = parse_decimal(request.value_of(hops)).map_or(0, |count| count.saturating_sub(1));
        out.number(b"Max-Forwards", left);
    }
    sent.write_forwarding(out, destination.authority.as_ref());
    let rest = exchange.caching.remainder.as_ref();
    if let Some(rest) = rest {
        out.field(b"Range", &rest.range);
        out.field(b"If-Range", &rest.if_range);
    }
    let validate = |stored: Arc<Object>| write_validation(out, request, &stored.stored);
    let is_validating = rest.is_none() && stored.is_some_and(validate);
    write_via(out, request.version(), snapshot);
    out.framing(exchange.framing, exchange.framing == Framing::Chunked);
    let upgrade = upgrade_to_send(exchange);
    match (upgrade, sent.accepts_trailers()) {
        (true, _) => out.upgrade(upgrade_protocols(request)),
        (false, true) => out.accepts_trailers(),
        (false, false) => {}
    }
    out.end();
    exchange.caching.is_validating = is_validating;
    exchange.caching.omits_client_conditions = omits_conditions;
    upgrade
}

/// Returns whether the request that was written last had conditions, of the client or of the cache.
pub(crate) fn has_sent_conditions(exchange: &Exchange) -> bool {
    let Exchange { caching, request, .. } = exchange;
    let has_own = || CONDITIONAL.iter().any(|&name| request.find(name).is_some());
    caching.is_validating || (!caching.omits_client_conditions && has_own())
}

/// Conditions of a client that has the response already. `Range` is always forwarded, so that the
/// origin sends no more than the client requests.
const CONDITIONS: NameSet = NameSet::new(&CONDITIONAL);
const CONDITIONAL: [FieldName; 2] = [FieldName::IfNoneMatch, FieldName::IfModifiedSince];

fn write_host(host: &mut Vec<u8>, address: &OriginAddress, default_port: u16) {
    match address {
        OriginAddress::Unix(_) => host.extend_from_slice(b"localhost"),
        OriginAddress::Name(name, port) => {
            host.extend_from_slice(name);
            if *port != default_port {
                write_port(host, *port);
            }
        }
        OriginAddress::Address(address) => {
            write_ip_host(host, address.ip());
            if address.port() != default_port {
                write_port(host, address.port());
            }
        }
    }
}

/// Returns whether the Upgrade field is forwarded. It is not forwarded with a body, which the
/// origin could read as the other protocol. It is not forwarded if it offers h2, h2c, another
/// version of HTTP, or TLS (RFC 2817): requests after such a switch would bypass the proxy's rules.
#[inline]
fn upgrade_to_send(exchange: &Exchange) -> bool {
    let request = &exchange.request;
    request.find(FieldName::Upgrade).is_some()
        && exchange.framing == Framing::None
        && request.version() == Version::Http11
        && offers_permitted_upgrade(request)
}

#[inline(never)]
fn offers_permitted_upgrade(request: &RequestHead) -> bool {
    let mut protocols = upgrade_protocols(request).peekable();
    protocols.peek().is_some()
        && protocols.all(|protocol| {
            let is = |prefix: &[u8]| {
                protocol.get(..prefix.len()).is_some_and(|it| it.eq_ignore_ascii_case(prefix))
            };
            !is(b"h2") && !is(b"HTTP") && !is(b"TLS")
        })
}

/// Writes the final response of an origin, or a 101 to a forwarded Upgrade. `framing` delimits the
/// body as it is received. With `chunked`, the body is sent in chunks.
pub(crate) fn write_response(
    out: &mut impl HeaderWriter,
    exchange: &Exchange,
    (framing, chunked): (Framing, bool),
    coding: ResponseCoding,
    dates: &mut Dates,
    now: std::time::Duration,
) {
    let response = &exchange.response;
    out.response(response.status(), response.reason());
    let hsts_s = hsts_s(exchange);
    if hsts_s.is_none() && coding == ResponseCoding::default() {
        forwarded_runs(response, |_| true).for_each(|run| out.field_run(run));
    } else {
        let is_kept = |field: &FieldLine| match field.known {
            FieldName::StrictTransportSecurity => hsts_s.is_none(),
            FieldName::Etag => !coding.weakens_tag,
            FieldName::AcceptRanges => coding.coding.is_none(),
            _ => true,
        };
        forwarded_runs(response, is_kept).for_each(|run| out.field_run(run));
        write_coding(out, response, coding);
    }
    if response.find(FieldName::Date).is_none() {
        out.field(b"Date", dates.at(now).http_date());
    }
    let snapshot = exchange.snapshot();
    write_via(out, response.version(), snapshot);
    write_hsts(out, hsts_s);
    if snapshot.sends_proxy_status(exchange.service) {
        // RFC 9209 section 2: the last member of the list is the one closest to the client.
        out.field_with(b"Proxy-Status", |value| {
            value.extend_from_slice(b"millrace; received-status=");
            write_number(value, response.status().into());
        });
    }
    if snapshot.cache(exchange.service, exchange.plan).is_some_and(|it| it.adds_cache_status) {
        let status = exchange.caching.report.status();
        out.field_with(b"Cache-Status", |value| status.write(value, "millrace"));
    }
    match framing {
        Framing::None if coding.coding.is_some() => {}
        Framing::None if response.status() >= 200 && response.status() != 204 => {
            // Responses to HEAD and 304 may have the length of the omitted body.
            if let Ok(Some(length)) = declared_length(response) {
                out.number(b"Content-Length", length);
            }
        }
        Framing::None => {}
        framing => out.framing(framing, chunked),
    }
    // RFC 9110 section 15.5.22: a 426 names the required protocol.
    let requires = || response.status() == 426 && upgrade_protocols(response).next().is_some();
    if response.status() == 101 || requires() {
        out.upgrade(upgrade_protocols(response));
    }
    if response.status() != 101 {
        out.persistence(exchange.request.version(), exchange.is_persistent);
    }
    out.end();
}

/// Writes the fields of a response that may be compressed while it passes. Its entity tag becomes
/// weak, because compressing it again may give other bytes. A malformed tag is left out.
#[cold]
#[inline(never)]
fn write_coding(out: &mut impl HeaderWriter, response: &ResponseHead, coding: ResponseCoding) {
    if let Some(name) = coding.coding.map(Coding::name) {
        out.field(b"Content-Encoding", name.as_bytes());
    }
    if coding.weakens_tag {
        let tags = response.values(FieldName::Etag);
        for tag in tags.filter(|tag| !Etag::parse(tag).is_malformed()) {
            out.field_with(b"ETag", |value| Etag::write_weak(value, tag));
        }
    }
    if coding.adds_vary {
        out.field(b"Vary", b"Accept-Encoding");
    }
}

/// Writes an interim response (RFC 9110 section 15.2).
pub(crate) fn write_interim(out: &mut impl HeaderWriter, exchange: &Exchange) {
    let response = &exchange.response;
    out.response(response.status(), response.reason());
    forwarded_runs(response, |_| true).for_each(|run| out.field_run(run));
    out.end();
}

/// Writes the successful response to CONNECT.
pub(crate) fn write_connect_response(out: &mut impl HeaderWriter, exchange: &Exchange) {
    out.response(200, b"OK");
    write_via(out, Version::Http11, exchange.snapshot());
    out.end();
}

/// Writes the header of a response that millrace makes itself. Returns the body.
pub(crate) fn write_own_response(
    out: &mut impl HeaderWriter,
    exchange: &Exchange,
    own: OwnResponse,
    date: &[u8],
) -> Cow<'static, [u8]> {
    let status = own.status(exchange.request.method());
    let kind = match own {
        OwnResponse::Refusal(_) | OwnResponse::HttpsRedirect | OwnResponse::FolderRedirect => {
            &b"text/plain; charset=utf-8"[..]
        }
        OwnResponse::Options | OwnResponse::FileOptions => b"",
        OwnResponse::Trace => b"message/http",
    };
    out.response(status, phrase(status).as_bytes());
    out.field(b"Server", b"millrace");
    out.field(b"Date", date);
    if let OwnResponse::Options | OwnResponse::Refusal(Reason::ConnectRefused) = own {
        out.field(b"Allow", b"GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS, TRACE");
    }
    if let OwnResponse::FileOptions | OwnResponse::Refusal(Reason::MethodNotAllowed) = own {
        out.field(b"Allow", b"GET, HEAD, OPTIONS");
    }
    write_hsts(out, hsts_s(exchange));
    if own == OwnResponse::FolderRedirect {
        out.field(b"Location", &folder_location(exchange));
    }
    if own == OwnResponse::HttpsRedirect {
        let port = exchange.snapshot().service(exchange.service).redirect_port;
        let port = port.expect("only a service with a port redirects");
        out.field_with(b"Location", |value| write_https_url(value, &exchange.request, port));
    }
    if let OwnResponse::Refusal(reason) = own {
        if !reason.is_of_folder() {
            write_proxy_status(out, reason);
        }
        auth::write_challenges(out, exchange, reason);
    }
    if !kind.is_empty() {
        out.field(b"Content-Type", kind);
    }
    out.persistence(exchange.request.version(), exchange.is_persistent);
    let body = match own {
        OwnResponse::Refusal(reason) => Cow::Owned(format!("{}\n", reason.text()).into_bytes()),
        OwnResponse::HttpsRedirect => Cow::Borrowed(&b"This site uses https.\n"[..]),
        OwnResponse::FolderRedirect => Cow::Borrowed(&b"This is a folder.\n"[..]),
        OwnResponse::Options | OwnResponse::FileOptions => Cow::Borrowed(&b""[..]),
        OwnResponse::Trace => Cow::Owned(trace_body(&exchange.request)),
    };
    out.number(b"Content-Length", body.len() as u64);
    out.end();
    let is_head = exchange.has_request && exchange.request.method() == Method::Head;
    if is_head { Cow::Borrowed(b"") } else { body }
}

/// Writes why there is no response from the origin (RFC 9209). It contains only our own words:
/// clients must learn neither the address of the next hop nor what it sent.
fn write_proxy_status(out: &mut impl HeaderWriter, reason: Reason) {
    let [error, details] = [reason.error_type(), reason.word()];
    out.field_with(b"Proxy-Status", |value| {
        for part in ["millrace; error=", error, "; details=\"", details, "\""] {
            value.extend_from_slice(part.as_bytes());
        }
    });
}

/// Returns the `max-age` of Strict-Transport-Security in seconds, if the response replaces the
/// field of the origin. A plain response must not have the field (RFC 6797 section 7.2).
pub(crate) fn hsts_s(exchange: &Exchange) -> Option<u32> {
    match exchange.sender.scheme {
        Scheme::Https => exchange.snapshot().service(exchange.service).hsts_s,
        Scheme::Http => None,
    }
}

/// Writes Strict-Transport-Security (RFC 6797 section 6.1).
#[inline]
pub(crate) fn write_hsts(out: &mut impl HeaderWriter, hsts_s: Option<u32>) {
    if let Some(seconds) = hsts_s {
        out.field_with(b"Strict-Transport-Security", |value| {
            value.extend_from_slice(b"max-age=");
            write_number(value, seconds.into());
        });
    }
}

/// Appends the URL of a request with the scheme `https` and this port.
fn write_https_url(url: &mut Vec<u8>, request: &RequestHead, port: u16) {
    let destination = destination(request).expect("the route stage has checked the destination");
    let authority = destination.authority.expect("the route stage has checked the authority");
    url.extend_from_slice(b"https://");
    let authority = Authority { port: Some(port), ..authority };
    write_normalised_authority(url, &authority, Scheme::Https.port());
    if destination.path_and_query.starts_with(b"/") {
        url.extend_from_slice(destination.path_and_query);
    }
}

/// Returns the path of the request with a slash at its end, relative to the request. After a local
/// redirect the client has requested another path, and the result is absolute.
fn folder_location(exchange: &Exchange) -> Vec<u8> {
    let destination = destination(&exchange.request).expect("the route stage has checked it");
    let (path, query) = path::split_query(destination.path_and_query);
    let normal = path::normalise(path);
    if exchange.sender.redirected.is_some() {
        let end = normal.iter().position(|&byte| byte != b'/').unwrap_or(normal.len());
        // Two slashes would begin the name of a host.
        return [b"/", &normal[end..], b"/", query].concat();
    }
    let decoded = RequestPath::decode(&normal);
    let location = decoded.ok().and_then(|path| path.folder_location(query));
    location.expect("the file stage has found the folder by this path")
}

/// Returns the received request without its secret fields (RFC 9110 section 9.3.8).
fn trace_body(request: &RequestHead) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(request.bytes().len());
    let mut echo = Http1Header::new(&mut bytes);
    echo.request_line(request.method_bytes(), request.target(), request.version());
    for field in request.fields() {
        let is_secret = matches!(
            field.known,
            FieldName::Authorization | FieldName::Cookie | FieldName::ProxyAuthorization
        );
        if !is_secret {
            echo.field(request.name_of(field), request.value_of(field));
        }
    }
    echo.end();
    bytes
}

pub(crate) fn write_via(out: &mut impl HeaderWriter, received: Version, snapshot: &Snapshot) {
    out.field_run(FieldRun::Lines(match received {
        Version::Http10 => &snapshot.via[0],
        Version::Http11 => &snapshot.via[1],
    }));
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::time::Duration;

    use millrace_config::from_arguments;
    use millrace_engine::Instant;
    use millrace_http_cache::Forward;
    use millrace_http1::{FieldList, HeadLimits, HeadScan};
    use millrace_splice::Thresholds;

    use super::*;
    use crate::exchange::Sender;
    use crate::origin::Origins;
    use crate::shared::SharedState;

    const LIMITS: HeadLimits =
        HeadLimits { bytes_max: 4096, fields_max: 40, target_bytes_max: 1024 };

    /// An exchange of a reverse proxy that adds Cache-Status and Proxy-Status.
    fn exchange(request: &str, response: &str) -> Exchange {
        let words = ["boost", "--origin=http://origin", "--cache-status=on", "--proxy-status=on"];
        let shared = SharedState::new(1, "test".to_owned(), None, None, |_| {}, None);
        let mut origins = Origins::new(10, &Thresholds::FIXED);
        let config = Arc::new(from_arguments(words).unwrap());
        let snapshot =
            Snapshot::new(config, Instant::default(), &mut origins, &shared, &Default::default());
        let mut exchange = Exchange {
            snapshot: Some(Rc::new(snapshot)),
            plan: RequestPlan::Route(0),
            sender: Sender { client: Some([192, 0, 2, 1].into()), ..Sender::default() },
            has_request: true,
            ..Exchange::default()
        };
        exchange.caching.report.forward = Some(Forward::Miss);
        let scan = &mut HeadScan::default();
        exchange.request.parse(request.as_bytes(), scan, &LIMITS).unwrap().unwrap();
        let scan = &mut HeadScan::default();
        exchange.response.parse(response.as_bytes(), scan, &LIMITS).unwrap().unwrap();
        exchange
    }

    const REQUEST: &str = "GET /a?b HTTP/1.1\r\nHost: Shop\r\nAccept:*/*\r\nTE: trailers\r\n\
                           Connection: TE\r\n\r\n";
    const RESPONSE: &str = "HTTP/1.1 200 Fine\r\nETag: \"a\"\r\nServer:s\r\nConnection: close\r\n\
                          Transfer-Encoding: chunked\r\n\r\n";

    /// Returns the header that `http1` writes as text, and the fields that `other` writes to a
    /// list.
    fn both(
        http1: impl FnOnce(&mut Http1Header<'_>),
        other: impl FnOnce(&mut FieldList),
    ) -> (String, Vec<String>) {
        let (mut text, mut list) = (Vec::new(), FieldList::default());
        http1(&mut Http1Header::new(&mut text));
        other(&mut list);
        assert!(list.has_ended());
        let fields = list.fields().iter().map(|(name, value)| format!("{name}={value}"));
        (String::from_utf8(text).unwrap(), fields.collect())
    }

    #[test]
    fn a_request_is_written_in_any_encoding() {
        fn write(out: &mut impl HeaderWriter) {
            let address = OriginAddress::Name(b"origin"[..].into(), 80);
            assert!(!write_request(out, &mut exchange(REQUEST, RESPONSE), (&address, 80)));
        }
        let (text, list) = both(|out| write(out), write);
        let expected = "GET /a?b HTTP/1.1\r\nHost: shop\r\nAccept: */*\r\n\
                        X-Forwarded-For: 192.0.2.1\r\n\
                        Forwarded: for=192.0.2.1;proto=http;host=\"shop\"\r\n\
                        X-Forwarded-Proto: http\r\nX-Forwarded-Host: shop\r\nVia: 1.1 test\r\n\
                        TE: trailers\r\nConnection: TE\r\n\r\n";
        assert_eq!(text, expected);
        let expected = [
            ":method=GET",
            ":path=/a?b",
            ":authority=shop",
            "accept=*/*",
            "x-forwarded-for=192.0.2.1",
            "forwarded=for=192.0.2.1;proto=http;host=\"shop\"",
            "x-forwarded-proto=http",
            "x-forwarded-host=shop",
            "via=1.1 test",
            "te=trailers",
        ];
        assert_eq!(list, expected);
    }

    #[test]
    fn a_forwarded_response_is_written_in_any_encoding() {
        fn write(out: &mut impl HeaderWriter) {
            let (exchange, dates) = (&exchange(REQUEST, RESPONSE), &mut Dates::default());
            let (framing, coding) = ((Framing::Chunked, true), ResponseCoding::default());
            write_response(out, exchange, framing, coding, dates, Duration::ZERO);
        }
        let (text, list) = both(|out| write(out), write);
        let expected = "HTTP/1.1 200 Fine\r\nETag: \"a\"\r\nServer: s\r\n\
                        Date: Thu, 01 Jan 1970 00:00:00 GMT\r\nVia: 1.1 test\r\n\
                        Proxy-Status: millrace; received-status=200\r\nCache-Status: millrace; fwd=miss\r\n\
                        Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
        assert_eq!(text, expected);
        let expected = [
            ":status=200",
            "etag=\"a\"",
            "server=s",
            "date=Thu, 01 Jan 1970 00:00:00 GMT",
            "via=1.1 test",
            "proxy-status=millrace; received-status=200",
            "cache-status=millrace; fwd=miss",
        ];
        assert_eq!(list, expected);
    }

    #[test]
    fn a_generated_response_is_written_in_any_encoding() {
        fn write(out: &mut impl HeaderWriter) {
            let own = OwnResponse::Refusal(Reason::ConnectRefused);
            let body = write_own_response(out, &exchange(REQUEST, RESPONSE), own, b"today");
            assert!(!body.is_empty());
        }
        let (text, list) = both(|out| write(out), write);
        assert!(text.starts_with("HTTP/1.1 405 Method Not Allowed\r\nServer: millrace\r\n"));
        assert!(text.ends_with("\r\n\r\n"));
        assert_eq!(list[..3], [":status=405", "server=millrace", "date=today"]);
        assert!(list.last().unwrap().starts_with("content-length="), "{list:?}");
    }
}

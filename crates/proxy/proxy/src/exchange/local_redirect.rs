//! Local redirects (RFC 3875 section 6.2.2): a program responds with the path of this server from
//! which the client gets the response. The client does not see that. The request for the new path
//! has the client's fields and passes all stages, so every rule of the service applies to it.

use std::rc::Rc;

use millrace_engine::{Engine, Key};
use millrace_http1::{
    FieldName, HeadLimits, HeadScan, HeaderWriter, Http1Header, Method, NameSet, RequestHead,
    destination,
};

use crate::cached::{CacheContext, waiting};
use crate::core::{Core, ExchangeParts};
use crate::exchange::plan::ClientRequest;
use crate::exchange::{Exchange, NextStep, Reason, RequestPlan, Stage};
use crate::origin::{Transaction, release};

/// The most local redirects of one request, as of nginx and Apache httpd. The next one ends the
/// exchange with [`Reason::TooManyRedirects`].
pub(crate) const LOCAL_REDIRECTS_MAX: u32 = 10;

/// Fields about the body, which the new request does not have (RFC 9110 section 15.4), and `Host`,
/// which is written anew: an absolute target has precedence over it.
const OMITTED: NameSet = NameSet::new(&[
    FieldName::Host,
    FieldName::ContentLength,
    FieldName::TransferEncoding,
    FieldName::Expect,
    FieldName::Trailer,
    FieldName::ContentType,
    FieldName::ContentEncoding,
    FieldName::ContentLanguage,
    FieldName::ContentLocation,
    FieldName::ContentRange,
    FieldName::LastModified,
]);

/// Makes the path in the response of the program the target of the exchange, which begins anew.
pub(crate) fn follow<E: Engine>(core: &mut Core<E>, key: Key) -> NextStep {
    let is_complete = core.exchange(key).has_received_request();
    release::finish_transaction(core, key);
    if core.exchange(key).is_refresh() {
        return NextStep::EndRefresh;
    }
    waiting::leave_cache(core, key);
    let ExchangeParts { engine, pipes, exchange, .. } = core.parts(key);
    exchange.upload.abandon(engine, pipes);
    let count = exchange.sender.redirected.as_ref().map_or(0, |client| client.redirects);
    if count == LOCAL_REDIRECTS_MAX {
        return NextStep::End(Reason::TooManyRedirects);
    }
    let location = exchange.response.find(FieldName::Location);
    let location = location.expect("the record layer has written it");
    let target = exchange.response.value_of(location);
    let limits = exchange.snapshot().request_limits;
    let Some(request) = redirected(&exchange.request, target, &limits) else {
        return NextStep::End(Reason::MalformedResponse);
    };
    let bytes = memory_bytes(&request);
    begin_anew(exchange, request, is_complete);
    let bytes = size_of::<Exchange>() + bytes + memory_bytes(exchange.client_request());
    exchange.charges = [Some(engine.budget().charge(bytes)), None];
    NextStep::Return(Stage::Route)
}

/// Returns a request for `target` with the fields of another request, or `None` if a client could
/// not send it.
fn redirected(from: &RequestHead, target: &[u8], limits: &HeadLimits) -> Option<RequestHead> {
    // It would end the request line.
    if target.iter().any(|byte| byte.is_ascii_control() || *byte == b' ') {
        return None;
    }
    let method = match from.method() {
        Method::Head => "HEAD",
        _ => "GET",
    };
    let mut bytes = Vec::with_capacity(from.bytes().len() + target.len());
    let mut out = Http1Header::new(&mut bytes);
    out.request_line(method.as_bytes(), target, from.version());
    let host = destination(from).ok()?.authority_bytes;
    if !host.is_empty() {
        out.field(b"Host", host);
    }
    for field in from.fields().iter().filter(|field| !OMITTED.contains(field.known)) {
        out.field(from.name_of(field), from.value_of(field));
    }
    out.end();
    let mut request = RequestHead::default();
    let parsed = request.parse(&bytes, &mut HeadScan::default(), limits);
    (parsed == Ok(Some(bytes.len()))).then_some(request)
}

/// Resets everything that a request begins with, but the connection and the client.
fn begin_anew(exchange: &mut Exchange, request: RequestHead, is_complete: bool) {
    let before = std::mem::replace(&mut exchange.request, request);
    match &mut exchange.sender.redirected {
        Some(client) => Rc::make_mut(client).redirects += 1,
        none => {
            *none = Some(Rc::new(ClientRequest {
                head: before,
                redirects: 1,
                body_bytes: exchange.upload.forwarded(),
                body_stats: exchange.upload.stats(),
                has_unread_body: !is_complete,
            }));
        }
    }
    // The rest of the body would be taken for the next request.
    exchange.is_persistent &= is_complete;
    exchange.response.clear();
    exchange.transaction = Transaction::default();
    exchange.upload = Default::default();
    exchange.caching = CacheContext::default();
    exchange.file = None;
    (exchange.plan, exchange.framing) = (RequestPlan::Unrouted, Default::default());
}

fn memory_bytes(request: &RequestHead) -> usize {
    request.bytes().len() + size_of_val(request.fields())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: HeadLimits =
        HeadLimits { bytes_max: 1000, fields_max: 20, target_bytes_max: 100 };

    fn request(head: &str) -> RequestHead {
        let mut request = RequestHead::default();
        let parsed = request.parse(head.as_bytes(), &mut HeadScan::default(), &LIMITS);
        assert_eq!(parsed, Ok(Some(head.len())));
        request
    }

    #[test]
    fn the_new_request_has_the_fields_and_no_body() {
        let from = request(
            "POST /a HTTP/1.1\r\nHost: b\r\nCookie: c\r\nContent-Length: 3\r\n\
             Content-Type: x/y\r\nExpect: 100-continue\r\nCookie:d\r\n\r\n",
        );
        let to = redirected(&from, b"/e?f", &LIMITS).unwrap();
        let expected = "GET /e?f HTTP/1.1\r\nHost: b\r\nCookie: c\r\nCookie: d\r\n\r\n";
        assert_eq!(
            to.bytes().escape_ascii().to_string(),
            expected.as_bytes().escape_ascii().to_string()
        );
        let from = request("HEAD http://b:81/a HTTP/1.1\r\nHost: c\r\n\r\n");
        let to = redirected(&from, b"/", &LIMITS).unwrap();
        assert_eq!(to.bytes(), b"HEAD / HTTP/1.1\r\nHost: b:81\r\n\r\n");
        let from = request("GET / HTTP/1.0\r\n\r\n");
        assert_eq!(redirected(&from, b"/", &LIMITS).unwrap().bytes(), b"GET / HTTP/1.0\r\n\r\n");
    }

    #[test]
    fn a_path_that_no_client_could_send_is_refused() {
        let from = request("GET / HTTP/1.1\r\nHost: b\r\n\r\n");
        let long = [b'/'; 101];
        for target in [&b"/a b"[..], b"/a\tb", b"/a HTTP/1.1\r\nX: y", b"/\"", &long] {
            assert!(redirected(&from, target, &LIMITS).is_none(), "{}", target.escape_ascii());
        }
    }
}

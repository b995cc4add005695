//! The choice whether and how a response is compressed.

use std::sync::Arc;

use millrace_engine::{Engine, Key, TokenKind};
use millrace_files::{AcceptedCodings, Coding, Compression, CompressionLevel, JobKind};
use millrace_http_cache::{CachedHeader, Key as CacheKey, is_not_modified};
use millrace_http1::{
    FieldName, Framing, Method, RequestHead, ResponseHead, Version, declared_length, has_token,
};
use millrace_store::{Object, WaiterId};

use crate::cached::now_ms;
use crate::coded::coder::{BodyCoder, ResponseCoding};
use crate::coded::derived;
use crate::core::Core;
use crate::exchange::Exchange;

/// Returns how the responses of the exchange's origins are compressed; `None` if they are not.
#[inline]
pub(crate) fn rules(exchange: &Exchange) -> Option<&Compression> {
    exchange.snapshot().compression(exchange.service, exchange.plan)
}

/// Returns the coding for the response of an origin, and sets the coder of its body. The header of
/// the response is about to be sent.
#[inline(never)]
pub(crate) fn begin_response<E: Engine>(core: &mut Core<E>, key: Key) -> ResponseCoding {
    let Core { exchanges, cached, .. } = core;
    let exchange = exchanges.get_mut(key).expect("the caller's exchange is in the table");
    let rules = rules(exchange).expect("the caller has checked it");
    let response = &exchange.response;
    let length = match exchange.transaction.framing {
        Framing::Length(length) => Some(length),
        // A response to HEAD.
        Framing::None => declared_length(response).ok().flatten(),
        Framing::Chunked | Framing::UntilClose => None,
    };
    let fields = || {
        let fields = response.fields().iter();
        fields.map(|field| (field.known, response.name_of(field), response.value_of(field)))
    };
    if matches!(response.status(), 206 | 304) {
        return coding_of_part(&exchange.request, response.status(), fields());
    }
    let fields = fields();
    let Some(found) = compressible(rules, response.status(), length, fields) else {
        return Default::default();
    };
    let mut coding = passing_coding(&exchange.request);
    if coding.is_some() && exchange.transaction.framing != Framing::None {
        let coder = cached.coders.acquire(rules.level);
        coding = coding.filter(|_| coder.is_some());
        exchange.caching.coder = coder;
    }
    ResponseCoding { coding, weakens_tag: coding.is_some(), adds_vary: found.adds_vary }
}

/// Returns how a 206 or a 304 is sent. It has no bytes to compress, but its fields fit those of the
/// whole response (RFC 9110 section 15.4.5), which another client may have got compressed.
fn coding_of_part<'a>(
    request: &RequestHead,
    status: u16,
    mut fields: impl Iterator<Item = (FieldName, &'a [u8], &'a [u8])>,
) -> ResponseCoding {
    let mut adds_vary = true;
    let is_fixed = fields.any(|(known, name, value)| {
        adds_vary &= !varies(known, value);
        known != FieldName::ContentRange && forbids_coding(known, name, value)
    });
    if is_fixed {
        return ResponseCoding::default();
    }
    let weakens_tag = status == 304 && passing_coding(request).is_some();
    ResponseCoding { coding: None, weakens_tag, adds_vary }
}

/// Returns whether a field says that the response varies with `Accept-Encoding`.
fn varies(known: FieldName, value: &[u8]) -> bool {
    known == FieldName::Vary && (has_token(value, b"accept-encoding") || has_token(value, b"*"))
}

/// The form in which a stored response is sent on a route that compresses.
#[derive(Default)]
pub(crate) struct StoredForm {
    /// Whether the response has to say that it varies with `Accept-Encoding`.
    pub(crate) adds_vary: bool,
    /// The header, if it is not that of the object.
    pub(crate) header: Option<CachedHeader>,
    /// The object with the compressed body.
    pub(crate) derived: Option<Arc<Object>>,
    /// Whether the header is that of a body that is compressed while it passes.
    pub(crate) is_passing: bool,
    /// The coder of that body. `None` if it is not sent.
    pub(crate) coder: Option<Box<BodyCoder>>,
}

/// Returns the form in which a stored response is sent; `None` if it is that of the object. A form
/// that does not exist yet is being made for later requests.
#[inline(never)]
pub(crate) fn stored_form<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    object: &Arc<Object>,
) -> Option<Box<StoredForm>> {
    let exchange = core.exchange(key);
    let rules = rules(exchange).expect("the caller has checked it");
    let (request, level, meta) = (&exchange.request, rules.level, object.meta());
    let fields = object.stored.lines().map(|line| (line.known, line.name, line.value));
    let found = compressible(rules, meta.status, object.length(), fields);
    let found = found.filter(|_| meta.stored_range.is_none())?;
    let plain = Box::new(StoredForm { adds_vary: found.adds_vary, ..StoredForm::default() });
    let Some(coding) = accepted(request).preferred().next() else { return Some(plain) };
    let (is_get, passing) = (request.method() == Method::Get, passing_coding(request));
    if is_not_modified(request, &object.stored) {
        let header = passing.map(|coding| object.stored.in_passing_coding(coding.name()));
        return Some(Box::new(StoredForm { is_passing: header.is_some(), header, ..*plain }));
    }
    let waiter = core.waiter(key, TokenKind::Exchange);
    if let Some((derived_key, derived)) = find_kept(core, waiter, object, (coding, level)) {
        core.exchange(key).caching.key = Some(derived_key);
        let has_header = derived::has_header_of(&derived, object);
        let header = if has_header { &derived.stored } else { &object.stored };
        let header = (!has_header).then(|| derived::coded_header(header, (coding, level)));
        return Some(Box::new(StoredForm { header, derived: Some(derived), ..*plain }));
    }
    let Some(coding) = passing else { return Some(plain) };
    let coder = is_get.then(|| core.cached.coders.acquire(level)).flatten();
    if coder.is_none() && is_get {
        return Some(plain);
    }
    let header = Some(object.stored.in_passing_coding(coding.name()));
    Some(Box::new(StoredForm { header, coder, is_passing: true, ..*plain }))
}

/// Returns the compressed form of a stored response, and its key. If there is none, a thread begins
/// to make it.
fn find_kept<E: Engine>(
    core: &mut Core<E>,
    waiter: WaiterId,
    object: &Arc<Object>,
    (coding, level): (Coding, CompressionLevel),
) -> Option<(CacheKey, Arc<Object>)> {
    let cache = core.cache().clone();
    let key = derived::key_of(cache.hash(), object, (coding, level))?;
    if let Some(found) = cache.find(key) {
        return Some((key, found));
    }
    if core.cached.derived.begin(key) {
        let (object, now_ms) = (object.clone(), now_ms(&core.engine));
        let make = move || derived::make(&cache, key, &object, (coding, level), now_ms);
        // If the threads have too much work, a later request begins.
        if let Ok(running) = core.shared.files.run(JobKind::Compression, waiter, make) {
            core.cached.derived.set_running(key, running);
        }
    }
    None
}

/// Returns the coding in which a body is compressed while it passes, if the client accepts it.
/// HTTP/1.0 would delimit the body by the end of the connection.
fn passing_coding(request: &RequestHead) -> Option<Coding> {
    let is_accepted = request.version() != Version::Http10
        && accepted(request).preferred().any(|coding| coding == Coding::Gzip);
    is_accepted.then_some(Coding::Gzip)
}

fn accepted(request: &RequestHead) -> AcceptedCodings {
    // RFC 9111 section 5.2.1.6.
    if request.values(FieldName::CacheControl).any(|value| has_token(value, b"no-transform")) {
        return AcceptedCodings::NONE;
    }
    AcceptedCodings::parse(request.values(FieldName::AcceptEncoding))
}

/// A response that may be compressed.
struct Compressible {
    adds_vary: bool,
}

/// Returns whether a response with these fields may be compressed. A known `length` is that of its
/// body in bytes.
fn compressible<'a>(
    rules: &Compression,
    status: u16,
    length: Option<u64>,
    fields: impl Iterator<Item = (FieldName, &'a [u8], &'a [u8])>,
) -> Option<Compressible> {
    if matches!(status, 0..=199 | 204 | 205 | 206 | 304) || length == Some(0) {
        return None;
    }
    let (mut kind, mut adds_vary) = (None, true);
    for (known, name, value) in fields {
        adds_vary &= !varies(known, value);
        match known {
            FieldName::ContentType => kind = Some(value),
            _ if forbids_coding(known, name, value) => return None,
            _ => {}
        }
    }
    let kind = std::str::from_utf8(kind?).ok()?;
    let is_event_stream = kind.get(..EVENT_STREAM.len());
    let is_event_stream = is_event_stream.is_some_and(|it| it.eq_ignore_ascii_case(EVENT_STREAM));
    let applies = !is_event_stream && rules.applies_to(kind, length.unwrap_or(u64::MAX));
    applies.then_some(Compressible { adds_vary })
}

/// Returns whether a response with this field must not be coded.
fn forbids_coding(known: FieldName, name: &[u8], value: &[u8]) -> bool {
    match known {
        FieldName::ContentEncoding | FieldName::ContentRange => true,
        FieldName::CacheControl => has_token(value, b"no-transform"),
        FieldName::Other => DIGESTS.iter().any(|it| name.eq_ignore_ascii_case(it)),
        _ => false,
    }
}

/// Returns whether a file may be sent in a coding with the fields of the response that names it.
pub(crate) fn permits_coded_file(response: &ResponseHead, rules: Option<&Compression>) -> bool {
    let fields = response.fields().iter();
    let mut fields =
        fields.map(|field| (field.known, response.name_of(field), response.value_of(field)));
    fields.all(|(known, name, value)| match known {
        // The length is that of the file, and is checked there.
        FieldName::ContentType => rules.is_none_or(|rules| {
            str::from_utf8(value).is_ok_and(|kind| rules.applies_to(kind, u64::MAX))
        }),
        _ => !forbids_coding(known, name, value),
    })
}

/// Its events would wait for each other in the buffers of clients.
const EVENT_STREAM: &str = "text/event-stream";

/// Fields with a digest of the bytes (RFC 9530, RFC 3230, RFC 1864).
const DIGESTS: [&[u8]; 4] = [b"content-digest", b"repr-digest", b"digest", b"content-md5"];

#[cfg(test)]
mod tests {
    use super::*;

    fn found(status: u16, length: Option<u64>, fields: &str) -> Option<bool> {
        let fields = fields.split('\n').map(|line| {
            let (name, value) = line.split_once(':').unwrap();
            (FieldName::from_bytes(name.as_bytes()), name.as_bytes(), value.as_bytes())
        });
        compressible(&Compression::default(), status, length, fields).map(|it| it.adds_vary)
    }

    #[test]
    fn text_without_a_coding_or_a_digest_is_compressed() {
        let html = "Content-Type:text/html; charset=utf-8";
        assert_eq!(found(200, Some(1024), html), Some(true));
        assert_eq!(found(404, None, html), Some(true));
        for status in [101, 204, 206, 304] {
            assert_eq!(found(status, Some(5000), html), None, "{status}");
        }
        for length in [0, 1023] {
            assert_eq!(found(200, Some(length), html), None, "{length}");
        }
        for other in [
            "Content-Encoding:br",
            "Content-Range:bytes 0-1/2",
            "Cache-Control:public, No-Transform",
            "content-md5:x",
            "Repr-Digest:sha-256=:x:",
            "Content-Type:text/event-stream; charset=utf-8",
            "Content-Type:image/png",
        ] {
            assert_eq!(found(200, None, &format!("{html}\n{other}")), None, "{other}");
        }
        for (vary, adds_vary) in [
            ("Cookie", true),
            ("Accept-Encoding", false),
            ("a, accept-encoding", false),
            ("*", false),
        ] {
            assert_eq!(
                found(200, None, &format!("{html}\nVary:{vary}")),
                Some(adds_vary),
                "{vary}"
            );
        }
        assert_eq!(found(200, Some(5000), "Server:a"), None);
    }
}

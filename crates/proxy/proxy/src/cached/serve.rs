//! The part of stage deliver for stored responses and files: writes the header in the form that the
//! request needs, and chooses the source of the body.

use std::borrow::Cow;
use std::collections::VecDeque;

use millrace_engine::{Engine, Key, TokenKind};
use millrace_http_cache::{
    ByteRange, CachedHeader, Flags, HashKey, Multipart, SINGLE_CLIENT_FIELDS, Selection,
    StoredFieldLine, StoredRange, field_lines, is_not_modified, select_ranges, write_not_modified,
};
use millrace_http1::{FieldName, FieldRun, Framing, HeaderWriter, Method, Version, forwarded_runs};
use millrace_store::{Cache, Object, WaiterId};

use crate::cached::now_ms;
use crate::cached::reader::{CachedReader, ResponsePart};
use crate::coded::choice::{self, StoredForm};
use crate::conn::{Conn, h1};
use crate::core::{Core, ExchangeParts};
use crate::exchange::{Exchange, Reason, headers};
use crate::files::reader::FileReader;
use crate::transfer::{TransferProgress, download};

/// The form in which a stored response is sent.
enum ResponseForm {
    /// A 304 without a body.
    NotModified,
    /// The header of the whole response without its body, for HEAD.
    Head,
    Whole,
    Part(ByteRange),
    /// A multipart body, and its length.
    Parts(VecDeque<ResponsePart>, u64),
    Unsatisfiable,
}

/// The response of which a form is sent.
struct SentResponse<'a> {
    header: &'a CachedHeader,
    /// The length of the body, if it is known.
    length: Option<u64>,
    /// Whether the whole body is at hand.
    is_whole: bool,
    /// Whether this is a file, and the proxy is its origin server.
    is_file: bool,
    /// Whether the response may be compressed for other clients, and does not say so.
    adds_vary: bool,
}

/// Writes the header and starts the body.
#[inline(never)]
pub(crate) fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let parts = core.parts_with_client(key);
    let exchange = &*parts.exchange;
    if exchange.file.as_ref().is_some_and(|file| file.served.is_some()) {
        return begin_file(core, key);
    }
    if choice::rules(exchange).is_some() {
        return begin_coded(core, key);
    }
    let object = exchange.caching.object.clone();
    let object = object.expect("the response is set before it is served");
    let started = start_stored(parts, waiter, &object, None);
    send(core, key, started)
}

/// Sends a stored response on a route that compresses.
#[inline(never)]
fn begin_coded<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let object = core.exchange(key).caching.object.clone();
    let object = object.expect("the response is set before it is served");
    let mut coded = choice::stored_form(core, key, &object);
    let derived = coded.as_mut().and_then(|coded| coded.derived.take());
    core.exchange(key).caching.coder = coded.as_mut().and_then(|coded| coded.coder.take());
    let waiter = core.waiter(key, TokenKind::Exchange);
    let parts = core.parts_with_client(key);
    let started = start_stored(parts, waiter, &derived.unwrap_or(object), coded.as_deref());
    send(core, key, started)
}

/// Writes the header of a stored response, in a coding if `coded` says so, and starts the body.
/// Returns the waiter to wake.
///
/// # Errors
/// If the beginning of the body was discarded.
#[inline(always)]
fn start_stored<E: Engine>(
    mut parts: ExchangeParts<'_, E, &mut Conn>,
    waiter: WaiterId,
    object: &Object,
    coded: Option<&StoredForm>,
) -> Result<Option<WaiterId>, Reason> {
    let is_passing = coded.is_some_and(|coded| coded.is_passing);
    let response = SentResponse {
        header: coded.and_then(|coded| coded.header.as_ref()).unwrap_or(&object.stored),
        length: object.length().filter(|_| !is_passing),
        is_whole: object.body.bytes().is_some(),
        is_file: false,
        adds_vary: coded.is_some_and(|coded| coded.adds_vary),
    };
    let cache = parts.shared.cache.as_deref();
    let hash = cache.expect("a stored response is in the cache").hash();
    let (form, framing, chunked) = write_header(&mut parts, response, hash);
    let ExchangeParts { engine, exchange, client, .. } = parts;
    let received = match exchange.caching.coder {
        Some(_) => object.length().map_or(Framing::UntilClose, Framing::Length),
        None => framing,
    };
    exchange.download.start(received, chunked, engine.now());
    let is_secured = client.wire.tls().is_some();
    start_object(exchange, object, (form, framing), (cache, waiter, is_secured))
}

/// Sends the header and the first bytes of the body that was started.
#[inline(always)]
fn send<E: Engine>(
    core: &mut Core<E>,
    key: Key,
    started: Result<Option<WaiterId>, Reason>,
) -> TransferProgress {
    match started {
        Ok(None) => download::pump(core, key, true),
        Ok(woken) => {
            core.wake(woken);
            download::pump(core, key, true)
        }
        Err(reason) => {
            core.exchange(key).status = 0;
            TransferProgress::Failed(reason)
        }
    }
}

/// Sends a file, whose bytes may be in the cache.
#[inline(never)]
fn begin_file<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let hash = match &core.shared.cache {
        Some(cache) => *cache.hash(),
        None => core.files.hash(&mut core.engine),
    };
    let mut parts = core.parts_with_client(key);
    let exchange = &mut *parts.exchange;
    let object = exchange.caching.object.clone();
    let file = exchange.file_mut().served.clone().expect("the caller has checked it");
    let response = SentResponse {
        header: &file.header,
        length: object.as_ref().map_or(Some(file.length), |object| object.length()),
        is_whole: true,
        is_file: true,
        adds_vary: false,
    };
    let (form, framing, chunked) = write_header(&mut parts, response, &hash);
    let ExchangeParts { engine, exchange, client, shared, .. } = parts;
    exchange.download.start(framing, chunked, engine.now());
    let is_secured = client.wire.tls().is_some();
    if let Some(object) = object {
        let cache = shared.cache.as_deref();
        let started = start_object(exchange, &object, (form, framing), (cache, waiter, is_secured));
        core.wake(started.expect("the whole body is in the cache"));
    } else {
        let context = exchange.file_mut();
        context.reader = file_parts(file.length, form).map(|parts| {
            let source = context.source.as_ref().expect("set unless the cache has the bytes");
            let copies = is_secured || file.is_copied();
            Box::new(FileReader::new(source.reader(), parts, copies))
        });
    }
    download::pump(core, key, true)
}

/// Writes the header of a response in the form that the request needs. Returns that form, the
/// framing of its body, and whether the body is sent in chunks.
#[inline(always)]
fn write_header<E: Engine>(
    parts: &mut ExchangeParts<'_, E, &mut Conn>,
    response: SentResponse<'_>,
    hash: &HashKey,
) -> (ResponseForm, Framing, bool) {
    let must_close = parts.must_close();
    let ExchangeParts { engine, out, log, exchange, .. } = parts;
    let is_file = response.is_file;
    let mut header = StoredHeaderWriter { out: h1::header(out), response, now_ms: now_ms(*engine) };
    let random = || u128::from(engine.random()) << 64 | u128::from(engine.random());
    let form = header.form(exchange, hash, random);
    let framing = header.write_stored_fields(exchange, &form);
    let (chunked, ends_by_close) = h1::outgoing_framing(exchange, framing);
    exchange.is_persistent &= !ends_by_close && !must_close && exchange.has_received_request();
    match is_file {
        true => {
            header.write_server_fields(exchange, log.dates.at(engine.time_of_day()).http_date())
        }
        false => header.write_proxy_fields(exchange),
    }
    header.write_framing(exchange, framing, chunked);
    (form, framing, chunked)
}

/// Starts the body of a stored response. Returns the waiter to wake.
///
/// # Errors
/// If its beginning was discarded.
#[inline(always)]
fn start_object(
    exchange: &mut Exchange,
    object: &Object,
    (form, framing): (ResponseForm, Framing),
    (cache, waiter, is_secured): (Option<&Cache>, WaiterId, bool),
) -> Result<Option<WaiterId>, Reason> {
    let is_hot_copy = match (framing, &form, cache) {
        (Framing::Length(bytes), ResponseForm::Whole, Some(cache)) => {
            cache.note_sent(&object.body, bytes)
        }
        _ => false,
    };
    let reader = object_reader(object, form, waiter);
    if reader.is_none() && framing != Framing::None {
        // The body was only passed on, and its beginning was discarded while earlier responses were
        // sent.
        return Err(Reason::ResponseIncomplete);
    }
    let before = std::mem::take(&mut exchange.caching.reader);
    exchange.caching.reader = reader;
    if (is_hot_copy || before.is_some() || is_secured)
        && let Some(reader) = &mut exchange.caching.reader
    {
        match is_secured {
            true => reader.seal_in_steps(),
            false => reader.disable_zero_copy(),
        }
    }
    Ok(before.and_then(CachedReader::close))
}

/// Returns a reader of the bytes of a stored response that this form has; `None` if it has none.
#[inline(always)]
fn object_reader(object: &Object, form: ResponseForm, waiter: WaiterId) -> Option<CachedReader> {
    match form {
        ResponseForm::NotModified | ResponseForm::Head | ResponseForm::Unsatisfiable => None,
        ResponseForm::Whole => CachedReader::new(&object.body, None, waiter),
        ResponseForm::Part(range) => {
            let first = object.meta().stored_range.map_or(0, |extent| extent.first);
            let (first, last) = (range.first - first, range.last - first);
            CachedReader::new(&object.body, Some(ByteRange { first, last }), waiter)
        }
        ResponseForm::Parts(parts, _) => CachedReader::of_parts(&object.body, parts, waiter),
    }
}

/// Returns the stored header without Strict-Transport-Security.
#[inline(never)]
fn header_without_hsts(stored: &CachedHeader) -> Cow<'_, [u8]> {
    let head = &stored.head;
    if stored.lines().all(|line| !is_hsts(&line)) {
        return Cow::Borrowed(head);
    }
    let (start, lines) = head.split_at(stored.meta.lines_at as usize);
    let mut kept = start.to_vec();
    for line in field_lines(lines).filter(|line| !is_hsts(line)) {
        kept.extend_from_slice(line.bytes);
    }
    Cow::Owned(kept)
}

fn is_hsts(line: &StoredFieldLine<'_>) -> bool {
    line.known == FieldName::StrictTransportSecurity
}

/// The writer of a stored response's header.
struct StoredHeaderWriter<'a, W> {
    out: W,
    response: SentResponse<'a>,
    now_ms: u64,
}

impl<W: HeaderWriter> StoredHeaderWriter<'_, W> {
    /// Returns the form that the request needs.
    #[inline(always)]
    fn form(
        &self,
        exchange: &Exchange,
        hash: &HashKey,
        random: impl FnOnce() -> u128,
    ) -> ResponseForm {
        let (request, stored) = (&exchange.request, self.response.header);
        // A file that an origin names is the response to any method.
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        if is_not_modified(request, stored) && is_read {
            return ResponseForm::NotModified;
        }
        if request.method() == Method::Head {
            return ResponseForm::Head;
        }
        let (meta, length) = (&stored.meta, self.response.length);
        let selection = match (request.find(FieldName::Range), length, meta.stored_range) {
            (Some(_), Some(length), _) => select_ranges(request, stored, length, hash),
            (Some(_), None, Some(_)) => select_ranges(request, stored, 0, hash),
            _ => Selection::Whole,
        };
        match selection {
            Selection::Part(range) => ResponseForm::Part(range),
            Selection::Parts(ranges) if self.response.is_whole => {
                let kind = stored
                    .lines()
                    .find(|line| line.known == FieldName::ContentType)
                    .map_or(&b""[..], |line| line.value);
                let complete = meta.stored_range.map_or(length, |extent| extent.complete);
                let parts = Multipart::new(&ranges, complete, kind, random());
                let first = meta.stored_range.map_or(0, |extent| extent.first);
                ResponseForm::Parts(
                    response_parts(&parts, ranges.as_slice(), first),
                    parts.length(),
                )
            }
            Selection::Unsatisfiable => ResponseForm::Unsatisfiable,
            Selection::Whole | Selection::Parts(_) | Selection::Absent => match meta.stored_range {
                None => ResponseForm::Whole,
                // A stored part is always sent as a 206.
                Some(StoredRange { first, last, .. }) => {
                    ResponseForm::Part(ByteRange { first, last })
                }
            },
        }
    }

    /// Writes the status and the stored fields. Returns the framing of the body.
    #[inline(always)]
    fn write_stored_fields(&mut self, exchange: &mut Exchange, form: &ResponseForm) -> Framing {
        let (meta, length) = (&self.response.header.meta, self.response.length);
        let replaces_hsts = headers::hsts_s(exchange).is_some();
        let without_hsts = replaces_hsts.then(|| header_without_hsts(self.response.header));
        let head = without_hsts.as_deref().unwrap_or(&self.response.header.head);
        let lines = &head[meta.lines_at as usize..];
        let out = &mut self.out;
        let (status, framing) = match form {
            ResponseForm::NotModified => (304, Framing::None),
            ResponseForm::Head => (meta.status, Framing::None),
            ResponseForm::Whole if matches!(meta.status, 204 | 304) => (meta.status, Framing::None),
            ResponseForm::Whole => {
                (meta.status, length.map_or(Framing::UntilClose, Framing::Length))
            }
            ResponseForm::Part(range) => (206, Framing::Length(range.length())),
            ResponseForm::Parts(_, length) => (206, Framing::Length(*length)),
            ResponseForm::Unsatisfiable => (416, Framing::None),
        };
        exchange.status = status;
        match form {
            ResponseForm::NotModified => {
                write_not_modified(out, self.response.header, |line| {
                    !(replaces_hsts && is_hsts(line))
                });
            }
            ResponseForm::Head | ResponseForm::Whole => {
                out.stored_response(meta.status, head, meta.lines_at as usize);
            }
            ResponseForm::Part(range) => {
                out.response(206, b"Partial Content");
                out.field_run(FieldRun::Lines(lines));
                let complete = meta.stored_range.map_or(length, |extent| extent.complete);
                let content_range = range.content_range(complete);
                out.field(b"Content-Range", content_range.as_bytes());
            }
            ResponseForm::Parts(parts, _) => {
                out.response(206, b"Partial Content");
                let Some(ResponsePart::Text(first)) = parts.front() else {
                    unreachable!("a multipart body begins with text")
                };
                for line in field_lines(lines).filter(|line| line.known != FieldName::ContentType) {
                    out.field_run(FieldRun::Lines(line.bytes));
                }
                out.field_with(b"Content-Type", |value| {
                    value.extend_from_slice(b"multipart/byteranges; boundary=");
                    value.extend_from_slice(&first[2..2 + BOUNDARY_BYTES]);
                });
            }
            ResponseForm::Unsatisfiable => {
                out.response(416, b"Range Not Satisfiable");
                let content_range = format!("bytes */{}", length.unwrap_or(0));
                out.field(b"Content-Range", content_range.as_bytes());
            }
        }
        framing
    }

    /// Writes the fields that a proxy adds to a response of an origin.
    #[inline(always)]
    fn write_proxy_fields(&mut self, exchange: &Exchange) {
        let meta = &self.response.header.meta;
        let caching = &exchange.caching;
        let snapshot = exchange.snapshot();
        let age_s = meta.age_s(self.now_ms);
        let out = &mut self.out;
        headers::write_hsts(out, headers::hsts_s(exchange));
        if self.response.adds_vary {
            out.field(b"Vary", b"Accept-Encoding");
        }
        if caching.report.forward.is_none() || age_s > 0 {
            out.number(b"Age", age_s.into());
        }
        if caching.adds_client_fields {
            forwarded_runs(&exchange.response, |field| SINGLE_CLIENT_FIELDS.contains(field.known))
                .for_each(|run| out.field_run(run));
        }
        let received = match meta.flags.contains(Flags::RECEIVED_AS_HTTP10) {
            true => Version::Http10,
            false => Version::Http11,
        };
        headers::write_via(out, received, snapshot);
        if snapshot.cache(exchange.service, exchange.plan).is_some_and(|it| it.adds_cache_status) {
            let mut status = caching.report.status();
            status.ttl_s = status.is_hit.then(|| meta.ttl_s(self.now_ms));
            status.detail = (status.is_hit && caching.report.is_from_disk).then_some("disk");
            out.field_with(b"Cache-Status", |value| status.write(value, "millrace"));
        }
    }

    /// Writes the fields that an origin server adds.
    #[inline(never)]
    fn write_server_fields(&mut self, exchange: &Exchange, date: &[u8]) {
        self.out.field(b"Server", b"millrace");
        self.out.field(b"Date", date);
        headers::write_hsts(&mut self.out, headers::hsts_s(exchange));
    }

    /// Writes how the body is delimited, and ends the header.
    #[inline(always)]
    fn write_framing(&mut self, exchange: &Exchange, framing: Framing, chunked: bool) {
        let out = &mut self.out;
        let has_length = !matches!(exchange.status, 204 | 304);
        match framing {
            Framing::None if exchange.status == 416 => out.number(b"Content-Length", 0),
            Framing::None => {
                if let Some(length) = self.response.length.filter(|_| has_length) {
                    out.number(b"Content-Length", length);
                }
            }
            framing => out.framing(framing, chunked),
        }
        out.persistence(exchange.request.version(), exchange.is_persistent);
        out.end();
    }
}

/// Returns the parts of a file with `length` bytes that this form of its response has; `None` if
/// the form has no body.
fn file_parts(length: u64, form: ResponseForm) -> Option<VecDeque<ResponsePart>> {
    let range = match form {
        ResponseForm::NotModified | ResponseForm::Head | ResponseForm::Unsatisfiable => {
            return None;
        }
        ResponseForm::Parts(parts, _) => return Some(parts),
        ResponseForm::Whole if length == 0 => return None,
        ResponseForm::Whole => ByteRange { first: 0, last: length - 1 },
        ResponseForm::Part(range) => range,
    };
    Some(VecDeque::from([ResponsePart::Range(range)]))
}

/// Returns the parts of a multipart response. Byte `first` of the representation is the first byte
/// of the stored body.
fn response_parts(
    multipart: &Multipart,
    ranges: &[ByteRange],
    first: u64,
) -> VecDeque<ResponsePart> {
    let mut parts = VecDeque::new();
    for (at, range) in ranges.iter().enumerate() {
        let mut text = Vec::new();
        multipart.write_part_head(&mut text, at);
        parts.push_back(ResponsePart::Text(text));
        let (first, last) = (range.first - first, range.last - first);
        parts.push_back(ResponsePart::Range(ByteRange { first, last }));
    }
    let mut end = Vec::new();
    multipart.write_end(&mut end);
    parts.push_back(ResponsePart::Text(end));
    parts
}

/// The length of the boundary of a [`Multipart`], without the two dashes before it.
const BOUNDARY_BYTES: usize = 32;

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
use crate::conn::h1;
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

/// Writes the header and starts the body.
pub(crate) fn begin<E: Engine>(core: &mut Core<E>, key: Key) -> TransferProgress {
    let waiter = core.waiter(key, TokenKind::Exchange);
    let hash = match &core.shared.cache {
        Some(cache) => *cache.hash(),
        None => core.files.hash(&mut core.engine),
    };
    let exchange = core.exchange(key);
    let object = exchange.caching.object.clone();
    let file = exchange.file.as_ref().and_then(|file| file.served.clone());
    let mut coded = match (&file, &object) {
        (None, Some(object)) if choice::rules(exchange).is_some() => {
            choice::stored_form(core, key, object)
        }
        _ => None,
    };
    let object = coded.as_mut().and_then(|coded| coded.derived.take()).or(object);
    let parts = core.parts_with_client(key);
    let must_close = parts.must_close();
    let ExchangeParts { engine, out, log, exchange, client, shared, .. } = parts;
    let is_secured = client.wire.tls().is_some();
    let (now, now_ms) = (engine.now(), now_ms(engine));
    let (stored, length, is_whole) = match (&file, &object) {
        (Some(file), Some(object)) => (&file.header, object.length(), true),
        (Some(file), None) => (&file.header, Some(file.length), true),
        (None, Some(object)) => coded_header(object, coded.as_deref()),
        (None, None) => unreachable!("the response is set before it is served"),
    };
    let adds_vary = coded.as_ref().is_some_and(|coded| coded.adds_vary);
    let mut header =
        StoredHeaderWriter { out: h1::header(out), stored, length, is_whole, now_ms, adds_vary };
    let random = || u128::from(engine.random()) << 64 | u128::from(engine.random());
    let form = header.form(exchange, &hash, random);
    let framing = header.write_stored_fields(exchange, &form);
    let (chunked, ends_by_close) = h1::outgoing_framing(exchange, framing);
    exchange.is_persistent &= !ends_by_close && !must_close && exchange.has_received_request();
    match file.is_some() {
        true => {
            header.write_server_fields(exchange, log.dates.at(engine.time_of_day()).http_date())
        }
        false => header.write_proxy_fields(exchange),
    }
    header.write_framing(exchange, framing, chunked);
    exchange.download.start(framing, chunked, now);
    if let (Some(file), None) = (&file, &object) {
        let context = exchange.file_mut();
        context.reader = file_parts(file.length, form).map(|parts| {
            let source = context.source.as_ref().expect("set unless the cache has the bytes");
            let copies = is_secured || file.is_copied();
            Box::new(FileReader::new(source.reader(), parts, copies))
        });
        return download::pump(core, key, true);
    }
    let object = object.expect("the body is in the cache or in a file");
    if let Some(coder) = coded.and_then(|coded| coded.coder) {
        let framing = object.length().map_or(Framing::UntilClose, Framing::Length);
        exchange.download.start(framing, chunked, now);
        exchange.download.compress(coder);
    }
    let cache = shared.cache.as_deref();
    match start_object(exchange, &object, (form, framing), (cache, waiter, is_secured)) {
        Ok(woken) => {
            core.wake(woken);
            download::pump(core, key, true)
        }
        Err(reason) => {
            exchange.status = 0;
            TransferProgress::Failed(reason)
        }
    }
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

/// Returns the header of a stored response, the length of its body if it is sent, and whether the
/// whole body is at hand.
#[inline]
fn coded_header<'a>(
    object: &'a Object,
    coded: Option<&'a StoredForm>,
) -> (&'a CachedHeader, Option<u64>, bool) {
    let header = coded.and_then(|coded| coded.header.as_ref()).unwrap_or(&object.stored);
    let is_passing = coded.is_some_and(|coded| coded.is_passing);
    (header, object.length().filter(|_| !is_passing), object.body.bytes().is_some())
}

/// Returns a reader of the bytes of a stored response that this form has; `None` if it has none.
#[inline]
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
    stored: &'a CachedHeader,
    /// The length of the body, if it is known.
    length: Option<u64>,
    /// Whether the whole body is at hand.
    is_whole: bool,
    now_ms: u64,
    /// Whether the response may be compressed for other clients, and does not say so.
    adds_vary: bool,
}

impl<W: HeaderWriter> StoredHeaderWriter<'_, W> {
    fn form(
        &self,
        exchange: &Exchange,
        hash: &HashKey,
        random: impl FnOnce() -> u128,
    ) -> ResponseForm {
        let (request, stored) = (&exchange.request, self.stored);
        // A file that an origin names is the response to any method.
        let is_read = matches!(request.method(), Method::Get | Method::Head);
        if is_not_modified(request, stored) && is_read {
            return ResponseForm::NotModified;
        }
        if request.method() == Method::Head {
            return ResponseForm::Head;
        }
        let (meta, length) = (&stored.meta, self.length);
        let selection = match (request.find(FieldName::Range), length, meta.stored_range) {
            (Some(_), Some(length), _) => select_ranges(request, stored, length, hash),
            (Some(_), None, Some(_)) => select_ranges(request, stored, 0, hash),
            _ => Selection::Whole,
        };
        match selection {
            Selection::Part(range) => ResponseForm::Part(range),
            Selection::Parts(ranges) if self.is_whole => {
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
    fn write_stored_fields(&mut self, exchange: &mut Exchange, form: &ResponseForm) -> Framing {
        let (meta, length) = (&self.stored.meta, self.length);
        let replaces_hsts = headers::hsts_s(exchange).is_some();
        let without_hsts = replaces_hsts.then(|| header_without_hsts(self.stored));
        let head = without_hsts.as_deref().unwrap_or(&self.stored.head);
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
                write_not_modified(out, self.stored, |line| !(replaces_hsts && is_hsts(line)));
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
    #[inline]
    fn write_proxy_fields(&mut self, exchange: &Exchange) {
        let meta = &self.stored.meta;
        let caching = &exchange.caching;
        let snapshot = exchange.snapshot();
        let age_s = meta.age_s(self.now_ms);
        let out = &mut self.out;
        headers::write_hsts(out, headers::hsts_s(exchange));
        if self.adds_vary {
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
    #[inline]
    fn write_framing(&mut self, exchange: &Exchange, framing: Framing, chunked: bool) {
        let out = &mut self.out;
        let has_length = !matches!(exchange.status, 204 | 304);
        match framing {
            Framing::None if exchange.status == 416 => out.number(b"Content-Length", 0),
            Framing::None => {
                if let Some(length) = self.length.filter(|_| has_length) {
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

//! A complete cache made of the rules alone: a map in memory, an origin that is a function, and a
//! clock that the test sets. It shows the order in which the rules are applied.

use std::collections::HashMap;

use millrace_http_cache::{
    ByteRange, CachePolicy, CacheStatus, CachedHeader, Forward, Freshened, HashKey, Key, KeyParts,
    Multipart, NotStored, Receipt, ReceivedResponse, RequestDirectives, Reuse, Scheme, Selection,
    StoredRange, UriOrigin, VariantKey, bypass, combine, field_lines, finish, freshen,
    freshen_by_head, invalidated_paths, is_failure, is_not_modified, remainder, reuse,
    select_ranges, store, write_not_modified, write_validation,
};
use millrace_http1::{
    FieldName, HeadLimits, HeadScan, HeaderWriter, Http1Header, Method, OriginRequest, RequestHead,
    ResponseHead, destination, forwarded_runs,
};

/// The response of an origin: a head, and the received part of the body.
#[derive(Clone)]
pub(crate) struct OriginResponse {
    pub(crate) head: ResponseHead,
    pub(crate) body: Vec<u8>,
    /// Whether the body is complete.
    pub(crate) is_whole: bool,
}

/// The response that the client receives.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    /// The head with its empty line.
    pub(crate) head: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

/// An origin: receives the bytes of a request head, and returns `None` if it cannot be reached.
pub(crate) type Origin<'a> = dyn FnMut(&[u8]) -> Option<OriginResponse> + 'a;

struct Variant {
    stored: CachedHeader,
    key: Option<VariantKey>,
    body: Vec<u8>,
}

/// The cache.
pub(crate) struct Model {
    pub(crate) policy: CachePolicy,
    pub(crate) now_ms: u64,
    variants: HashMap<Key, Vec<Variant>>,
}

const HASH: HashKey = HashKey::new([3; 16]);
const LIMITS: HeadLimits =
    HeadLimits { bytes_max: 65_536, fields_max: 100, target_bytes_max: 8192 };

/// Parses a complete request head.
pub(crate) fn request(bytes: &[u8]) -> RequestHead {
    let mut head = RequestHead::default();
    let used = head.parse(bytes, &mut HeadScan::default(), &LIMITS);
    assert_eq!(used, Ok(Some(bytes.len())), "{}", bytes.escape_ascii());
    head
}

/// Parses a complete response head.
pub(crate) fn response_head(bytes: &[u8]) -> ResponseHead {
    let mut head = ResponseHead::default();
    let used = head.parse(bytes, &mut HeadScan::default(), &LIMITS);
    assert_eq!(used, Ok(Some(bytes.len())), "{}", bytes.escape_ascii());
    head
}

impl Model {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self { policy: CachePolicy::default(), now_ms, variants: HashMap::new() }
    }

    /// Handles one request.
    pub(crate) fn exchange(&mut self, request: &RequestHead, origin: &mut Origin<'_>) -> Reply {
        let destination = destination(request).unwrap();
        let authority = destination.authority.unwrap();
        let site = UriOrigin { scheme: Scheme::Http, authority };
        let key = self.key(&site, destination.path_and_query, request);
        if bypass(request, &self.policy).is_some() {
            let reply = self.fetch(request, key, Forward::Method, origin);
            return reply.unwrap_or_else(|| own(502, "fwd=method"));
        }
        let directives = match self.policy.applies_request_directives {
            true => RequestDirectives::parse(request),
            false => RequestDirectives::default(),
        };
        let Some(at) = self.find(key, request) else {
            if directives.only_if_cached {
                return own(504, "only-if-cached");
            }
            let reply = self.fetch(request, key, Forward::UriMiss, origin);
            return reply.unwrap_or_else(|| own(502, "no origin"));
        };
        let meta = self.variants[&key][at].stored.meta;
        match reuse(&meta, &directives, self.now_ms) {
            Reuse::Fresh { .. } | Reuse::Stale { .. } => self.serve(key, at, request, origin),
            Reuse::StaleWhileRevalidate { .. } => {
                let reply = self.serve(key, at, request, origin);
                self.validate(request, key, at, origin);
                reply
            }
            Reuse::Validate { is_stale_fallback, .. } => {
                let reply = self.validate(request, key, at, origin);
                match reply {
                    Some((status, _)) if is_stale_fallback && is_failure(status) => {
                        self.serve(key, at, request, origin)
                    }
                    Some((_, reply)) => reply,
                    None if is_stale_fallback => self.serve(key, at, request, origin),
                    None => own(504, "no origin"),
                }
            }
            Reuse::OnlyIfCached => own(504, "only-if-cached"),
        }
    }

    fn key(&self, site: &UriOrigin<'_>, path: &[u8], request: &RequestHead) -> Key {
        let request = &OriginRequest::as_received(request);
        Key::from_request(&HASH, site, path, request, &KeyParts::default())
    }

    /// Returns the matching variant; a complete one before a range.
    fn find(&self, key: Key, request: &RequestHead) -> Option<usize> {
        let variants = self.variants.get(&key)?;
        let fits = |variant: &Variant| match (&variant.stored.vary, variant.key) {
            (Some(names), Some(stored)) => {
                stored.matches(&names.key(&HASH, &OriginRequest::as_received(request)))
            }
            _ => true,
        };
        let whole = |variant: &Variant| variant.stored.meta.stored_range.is_none() && fits(variant);
        variants.iter().rposition(whole).or_else(|| variants.iter().rposition(fits))
    }

    /// Responds from the stored variant.
    fn serve(
        &mut self,
        key: Key,
        at: usize,
        request: &RequestHead,
        origin: &mut Origin<'_>,
    ) -> Reply {
        let variant = &self.variants[&key][at];
        let (meta, head) = (&variant.stored.meta, &variant.stored.head);
        let hit = CacheStatus {
            is_hit: true,
            ttl_s: Some(meta.ttl_s(self.now_ms)),
            ..CacheStatus::default()
        };
        let age = format!("Age: {}\r\n", meta.age_s(self.now_ms)).into_bytes();
        let mut out = Vec::new();
        if is_not_modified(request, &variant.stored) {
            write_not_modified(&mut Http1Header::new(&mut out), &variant.stored, |_| true);
            return close([out, age].concat(), &hit, Vec::new(), None);
        }
        let length = variant.body.len() as u64;
        let lines = head[meta.lines_at as usize..].to_vec();
        let is_head = request.method() == Method::Head;
        let status = |text: &str| format!("HTTP/1.1 {text}\r\n").into_bytes();
        match select_ranges(request, &variant.stored, length, &HASH) {
            Selection::Whole => {
                let body = if is_head { Vec::new() } else { variant.body.clone() };
                close([head.clone(), age].concat(), &hit, body, Some(length))
            }
            Selection::Part(range) => {
                let extent = meta.stored_range;
                let complete = extent.map_or(Some(length), |extent| extent.complete);
                let place = format!("Content-Range: {}\r\n", range.content_range(complete));
                let body = bytes_of(&variant.body, extent, range).to_vec();
                let length = body.len() as u64;
                let head = [status("206 Partial Content"), lines, place.into_bytes(), age];
                close(head.concat(), &hit, body, Some(length))
            }
            Selection::Parts(ranges) => {
                let extent = meta.stored_range;
                let complete = extent.map_or(Some(length), |extent| extent.complete);
                let parts = Multipart::new(&ranges, complete, b"text/plain", 1);
                let mut body = Vec::new();
                for (at, range) in ranges.as_slice().iter().enumerate() {
                    parts.write_part_head(&mut body, at);
                    body.extend_from_slice(bytes_of(&variant.body, extent, *range));
                }
                parts.write_end(&mut body);
                let kind = [b"Content-Type: ", &parts.content_type()[..], b"\r\n"].concat();
                let head = [status("206 Partial Content"), kind, age].concat();
                close(head, &hit, body, Some(parts.length()))
            }
            Selection::Unsatisfiable => own(416, "range"),
            Selection::Absent => self.complete(request, key, at, origin),
        }
    }

    /// Completes a stored range, or fetches the complete representation.
    fn complete(
        &mut self,
        request: &RequestHead,
        key: Key,
        at: usize,
        origin: &mut Origin<'_>,
    ) -> Reply {
        let variant = &self.variants[&key][at];
        let rest = remainder(&variant.stored).filter(|_| request.find(FieldName::Range).is_none());
        let Some(rest) = rest else {
            let reply = self.fetch(request, key, Forward::Partial, origin);
            return reply.unwrap_or_else(|| own(502, "no origin"));
        };
        let extra =
            [b"Range: ", &rest.range[..], b"\r\nIf-Range: ", &rest.if_range[..], b"\r\n"].concat();
        let head = forwarded(request, &extra, false);
        let Some(response) = origin(&head) else { return own(502, "no origin") };
        let receipt = self.receipt();
        if response.head.status() == 206 {
            let joined =
                combine(&self.received(request, &response.head, &receipt), &variant.stored);
            if let Ok(stored) = joined {
                let body =
                    join(&variant.body, variant.stored.meta.stored_range.unwrap(), &response);
                self.variants.get_mut(&key).unwrap()[at] = Variant { stored, key: None, body };
                return self.serve(key, at, request, origin);
            }
            let reply = self.fetch(request, key, Forward::Partial, origin);
            return reply.unwrap_or_else(|| own(502, "no origin"));
        }
        self.take(request, key, Forward::Partial, response).1
    }

    /// Validates a stored variant with the origin. Returns the received status and the reply. The
    /// status is 0 if the variant does not satisfy the request's `Range`, so that the request was
    /// forwarded instead.
    fn validate(
        &mut self,
        request: &RequestHead,
        key: Key,
        at: usize,
        origin: &mut Origin<'_>,
    ) -> Option<(u16, Reply)> {
        let mut conditions = Vec::new();
        let previous = &self.variants[&key][at].stored;
        let is_head = request.method() == Method::Head;
        let out = &mut Http1Header::new(&mut conditions);
        let selection = select_ranges(request, previous, 0, &HASH);
        if request.find(FieldName::Range).is_some() && !is_head && selection == Selection::Absent {
            return Some((0, self.fetch(request, key, Forward::Partial, origin)?));
        }
        let has_conditions = !is_head && write_validation(out, request, previous);
        let head = forwarded(request, &conditions, !has_conditions);
        let response = origin(&head)?;
        if response.head.status() != 304 || !has_conditions {
            return Some(self.take(request, key, Forward::Stale, response));
        }
        let receipt = self.receipt();
        let received = self.received(request, &response.head, &receipt);
        let freshened = freshen(&received, &self.variants[&key][at].stored);
        let variant = &mut self.variants.get_mut(&key).unwrap()[at];
        match freshened {
            Ok(stored) => variant.stored = stored,
            Err(refusal) if refusal.drops_stored(variant.stored.meta.status) => {
                variant.stored.meta.invalidate();
            }
            Err(_) => {}
        }
        Some((304, self.serve(key, at, request, origin)))
    }

    /// Forwards a request and handles the response.
    fn fetch(
        &mut self,
        request: &RequestHead,
        key: Key,
        why: Forward,
        origin: &mut Origin<'_>,
    ) -> Option<Reply> {
        let response = origin(&forwarded(request, &[], true))?;
        Some(self.take(request, key, why, response).1)
    }

    /// Stores a response if permitted, invalidates others, and forwards the response.
    fn take(
        &mut self,
        request: &RequestHead,
        key: Key,
        why: Forward,
        response: OriginResponse,
    ) -> (u16, Reply) {
        let destination = destination(request).unwrap();
        let site = UriOrigin { scheme: Scheme::Http, authority: destination.authority.unwrap() };
        for path in invalidated_paths(request, &response.head, &site) {
            let key = self.key(&site, &path, request);
            let variants = self.variants.get_mut(&key);
            variants.into_iter().flatten().for_each(|variant| variant.stored.meta.invalidate());
        }
        if request.method() == Method::Head {
            self.update_by_head(request, key, &response.head);
        }
        let is_stored = self.keep(request, key, &response);
        let status = CacheStatus { forward: Some(why), is_stored, ..CacheStatus::default() };
        let mut head = Vec::new();
        let mut out = Http1Header::new(&mut head);
        out.response(response.head.status(), response.head.reason());
        forwarded_runs(&response.head, |_| true).for_each(|run| out.field_run(run));
        let length = response.body.len() as u64;
        (response.head.status(), close(head, &status, response.body, Some(length)))
    }

    fn update_by_head(&mut self, request: &RequestHead, key: Key, response: &ResponseHead) {
        let Some(at) = self.find(key, request) else { return };
        let receipt = self.receipt();
        let variant = &self.variants[&key][at];
        let received = self.received(request, response, &receipt);
        let freshened = freshen_by_head(&received, &variant.stored, variant.body.len() as u64);
        let variant = &mut self.variants.get_mut(&key).unwrap()[at];
        match freshened {
            Freshened::Updated(stored) => variant.stored = stored,
            Freshened::Stale => variant.stored.meta.invalidate(),
            Freshened::Unchanged => {}
        }
    }

    fn keep(&mut self, request: &RequestHead, key: Key, response: &OriginResponse) -> bool {
        let mut stored = match store(&self.received(request, &response.head, &self.receipt())) {
            Ok(stored) => stored,
            Err(refusal) => {
                if refusal.drops_stored(response.head.status()) {
                    self.variants.remove(&key);
                }
                return false;
            }
        };
        let length = response.body.len() as u64;
        let ended: Result<(), NotStored> =
            finish(&mut stored.meta, length, response.is_whole, None);
        if ended.is_err() {
            return false;
        }
        let variant_key = stored.vary.as_ref().map(|names| {
            names.response_key(&HASH, &OriginRequest::as_received(request), &response.head)
        });
        let variants = self.variants.entry(key).or_default();
        let is_part = stored.meta.stored_range.is_some();
        variants.retain(|old| {
            old.key != variant_key
                || old.stored.vary != stored.vary
                || old.stored.meta.stored_range.is_none() && is_part
        });
        variants.push(Variant { stored, key: variant_key, body: response.body.clone() });
        true
    }

    fn received<'a>(
        &'a self,
        request: &'a RequestHead,
        response: &'a ResponseHead,
        receipt: &'a Receipt,
    ) -> ReceivedResponse<'a> {
        ReceivedResponse { request, response, receipt, policy: &self.policy }
    }

    fn receipt(&self) -> Receipt {
        let Self { now_ms, .. } = *self;
        Receipt {
            request_ms: now_ms,
            response_ms: now_ms,
            scheme: Scheme::Http,
            hash: HASH,
            has_client_certificate: false,
        }
    }
}

/// Returns the request as forwarded to the origin, with its range if it has one.
fn forwarded(request: &RequestHead, extra: &[u8], keeps_conditions: bool) -> Vec<u8> {
    let target = destination(request).unwrap().path_and_query;
    let mut head = [request.method_bytes(), b" ", target, b" HTTP/1.1\r\n"].concat();
    forwarded_runs(request, |field| match field.known {
        FieldName::IfNoneMatch | FieldName::IfModifiedSince => keeps_conditions,
        _ => true,
    })
    .for_each(|run| Http1Header::new(&mut head).field_run(run));
    head.extend_from_slice(extra);
    head.extend_from_slice(b"\r\n");
    head
}

fn bytes_of(body: &[u8], extent: Option<StoredRange>, range: ByteRange) -> &[u8] {
    let first = extent.map_or(0, |extent| extent.first);
    &body[(range.first - first) as usize..=(range.last - first) as usize]
}

/// Joins the bytes of two adjacent parts.
fn join(body: &[u8], extent: StoredRange, response: &OriginResponse) -> Vec<u8> {
    let value = response.head.values(FieldName::ContentRange).next().unwrap();
    let value = std::str::from_utf8(value).unwrap().strip_prefix("bytes ").unwrap();
    let first: u64 = value.split('-').next().unwrap().parse().unwrap();
    let start = first.min(extent.first);
    let mut joined = Vec::new();
    for (at, bytes) in [(first, &response.body[..]), (extent.first, body)] {
        let at = (at - start) as usize;
        joined.resize(joined.len().max(at + bytes.len()), 0);
        joined[at..at + bytes.len()].copy_from_slice(bytes);
    }
    joined
}

fn close(mut head: Vec<u8>, status: &CacheStatus<'_>, body: Vec<u8>, length: Option<u64>) -> Reply {
    head.extend_from_slice(b"Cache-Status: ");
    status.write(&mut head, "model");
    head.extend_from_slice(b"\r\n");
    let has_none = head.starts_with(b"HTTP/1.1 204") || head.starts_with(b"HTTP/1.1 304");
    if let Some(length) = length.filter(|_| !has_none) {
        head.extend_from_slice(format!("Content-Length: {length}\r\n").as_bytes());
    }
    head.extend_from_slice(b"\r\n");
    Reply { head, body }
}

fn own(status: u16, why: &str) -> Reply {
    let head = format!("HTTP/1.1 {status} Own\r\nContent-Length: {}\r\n\r\n", why.len());
    Reply { head: head.into_bytes(), body: why.as_bytes().to_vec() }
}

impl Reply {
    /// Returns the status.
    pub(crate) fn status(&self) -> u16 {
        response_head(&self.head).status()
    }

    /// Returns the first value of a field.
    pub(crate) fn field(&self, name: &str) -> Option<String> {
        let start = self.head.iter().position(|&byte| byte == b'\n').unwrap() + 1;
        let mut lines = field_lines(&self.head[start..self.head.len() - 2]);
        let line = lines.find(|line| line.name.eq_ignore_ascii_case(name.as_bytes()))?;
        Some(String::from_utf8(line.value.to_vec()).unwrap())
    }
}

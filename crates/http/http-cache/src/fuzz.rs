//! Fuzzing of all rules.

use millrace_http1::{
    FieldName, HeadLimits, HeadScan, Http1Header, Method, NameSet, OriginRequest, RequestHead,
    ResponseHead, destination,
};

use super::{
    CachePolicy, CacheStatus, CachedHeader, Features, HashKey, Key, KeyParts, Meta, Multipart,
    Receipt, ReceivedResponse, RequestDirectives, Reuse, Scheme, Selection, UriOrigin, bypass,
    combine, finish, freshen, freshen_by_head, group_invalidations, invalidated_paths,
    is_not_modified, remainder, reuse, select_ranges, store, tags, write_not_modified,
    write_validation,
};

/// Parses the bytes as a request head, its response head and a later response head, and applies the
/// rules to them. It checks, for any bytes, that:
///
/// * a stored header is parsed again to the same meaning and has no hop-by-hop fields
/// * a selected range is inside the stored body
/// * a response matches the request that it was stored for
/// * a key is the hash of its text
/// * metadata is decoded as it was encoded
/// * an invalidated path is a valid path
/// * a stored response is stored again by the same rules
///
/// # Panics
/// Panics if one of these properties is violated.
pub fn fuzz_rules(data: &[u8]) {
    let limits = HeadLimits { bytes_max: 4096, fields_max: 32, target_bytes_max: 1024 };
    let mut request = RequestHead::default();
    let Ok(Some(used)) = request.parse(data, &mut HeadScan::default(), &limits) else { return };
    let data = &data[used..];
    let mut response = ResponseHead::default();
    let Ok(Some(used)) = response.parse(data, &mut HeadScan::default(), &limits) else { return };
    let mut later = ResponseHead::default();
    let has_later = later.parse(&data[used..], &mut HeadScan::default(), &limits);
    let later = if matches!(has_later, Ok(Some(_))) { &later } else { &response };
    fuzz_site(&request, &response);
    let policy = CachePolicy { stale_if_error_s: 5, ..CachePolicy::default() };
    let (now, later_on) = (receipt(0), receipt(2000));
    tags(&response).iter().for_each(|tag| assert!((1..=256).contains(&tag.as_bytes().len())));
    let received =
        ReceivedResponse { request: &request, response: &response, receipt: &now, policy: &policy };
    let Ok(stored) = store(&received) else { return };
    assert!(matches!(request.method(), Method::Get | Method::Post));
    let meta = Meta::from_bytes(&stored.meta.to_bytes(), stored.head.len());
    assert_eq!(meta, Some(stored.meta));
    fuzz_stored(&received, &stored);
    fuzz_variant(&received, &stored);
    fuzz_use(&request, &stored);
    fuzz_later(&ReceivedResponse { response: later, receipt: &later_on, ..received }, &stored);
}

fn receipt(after_ms: u64) -> Receipt {
    let now_ms = 1_795_256_160_000 + after_ms;
    Receipt {
        request_ms: now_ms,
        response_ms: now_ms,
        scheme: Scheme::Http,
        hash: HASH,
        has_client_certificate: false,
    }
}

const HASH: HashKey = HashKey::new([5; 16]);

fn fuzz_site(request: &RequestHead, response: &ResponseHead) {
    let Ok(destination) = destination(request) else { return };
    let Some(authority) = destination.authority else { return };
    let site = UriOrigin { scheme: Scheme::Http, authority };
    let ignored_parameters = vec![(*b"a*").into(), (*b"b").into()];
    let fields = vec![(*b"cookie").into()];
    let cookies = ignored_parameters.clone();
    let is_any = Features { fields: Vec::new(), cookies: cookies.clone() }.is_any_in(request);
    assert!(!is_any || request.find(FieldName::Cookie).is_some());
    let parts = KeyParts { ignored_parameters, fields, cookies, ..KeyParts::default() };
    for parts in [&KeyParts::default(), &parts] {
        let mut text = Vec::new();
        let request = &OriginRequest::as_received(request);
        Key::write(&mut text, &site, destination.path_and_query, request, parts);
        let key = Key::from_request(&HASH, &site, destination.path_and_query, request, parts);
        assert_eq!(key, Key::from_text(&HASH, &text));
    }
    for path in invalidated_paths(request, response, &site) {
        assert!(path.starts_with(b"/") || path == b"*", "{}", path.escape_ascii());
    }
    assert!(!request.method().is_safe() || group_invalidations(request, response).is_empty());
}

/// Checks that a stored header is parsed again, and that storing it again yields the same bytes.
fn fuzz_stored(received: &ReceivedResponse<'_>, stored: &CachedHeader) {
    const NEVER: NameSet = NameSet::new(&[
        FieldName::Age,
        FieldName::Connection,
        FieldName::ContentLength,
        FieldName::KeepAlive,
        FieldName::ProxyAuthenticate,
        FieldName::Te,
        FieldName::Trailer,
        FieldName::TransferEncoding,
        FieldName::Upgrade,
    ]);
    let head = [&stored.head[..], b"\r\n"].concat();
    let limits = HeadLimits { bytes_max: head.len(), fields_max: 64, target_bytes_max: 0 };
    let mut again = ResponseHead::default();
    let used = again.parse(&head, &mut HeadScan::default(), &limits);
    assert_eq!(used, Ok(Some(head.len())), "{}", head.escape_ascii());
    assert_eq!(again.status(), stored.meta.status);
    assert!(again.fields().iter().all(|field| !NEVER.contains(field.known)));
    for (line, field) in stored.lines().zip(again.fields()) {
        assert_eq!((line.name, line.value), (again.name_of(field), again.value_of(field)));
    }
    if stored.meta.status != 206
        && let Ok(twice) = store(&ReceivedResponse { response: &again, ..*received })
    {
        assert_eq!(twice.head, stored.head);
        assert_eq!(twice.vary, stored.vary);
    }
}

fn fuzz_variant(received: &ReceivedResponse<'_>, stored: &CachedHeader) {
    let Some(names) = &stored.vary else { return };
    let request = OriginRequest::as_received(received.request);
    let key = names.response_key(&HASH, &request, received.response);
    assert!(key.matches(&names.key(&HASH, &request)));
}

/// Checks that a response made from a stored body of ten bytes uses only these.
fn fuzz_use(request: &RequestHead, stored: &CachedHeader) {
    let meta = &stored.meta;
    let now_ms = meta.response_ms + 1000;
    let reused = reuse(meta, &RequestDirectives::parse(request), now_ms);
    if let Reuse::Fresh { age_s } = reused {
        assert!(meta.is_fresh(now_ms) && age_s < meta.lifetime_s);
    }
    let is_lookup = bypass(request, &CachePolicy::default()).is_none();
    is_not_modified(request, stored);
    write_not_modified(&mut Http1Header::new(&mut Vec::new()), stored, |_| true);
    let status = CacheStatus { ttl_s: Some(meta.ttl_s(now_ms)), ..CacheStatus::default() };
    status.write(&mut Vec::new(), "fuzz");
    let (start, end) = match meta.stored_range {
        Some(extent) => (extent.first, extent.last),
        None => (0, 9),
    };
    match select_ranges(request, stored, 10, &HASH) {
        Selection::Part(range) => {
            assert!(is_lookup || request.method() == Method::Get);
            assert!(start <= range.first && range.first <= range.last && range.last <= end);
        }
        Selection::Parts(ranges) => {
            let parts = ranges.as_slice();
            assert!((2..=16).contains(&parts.len()));
            let is_inside = |range: &super::ByteRange| start <= range.first && range.last <= end;
            assert!(parts.iter().all(is_inside));
            let sent: u64 = parts.iter().map(super::ByteRange::length).sum();
            let multipart = Multipart::new(&ranges, Some(10), b"a/b", 7);
            assert!(multipart.length() > sent);
        }
        Selection::Absent => assert!(meta.stored_range.is_some()),
        Selection::Whole | Selection::Unsatisfiable => assert!(meta.stored_range.is_none()),
    }
    let mut stored = stored.clone();
    if finish(&mut stored.meta, 4, false, Some(10)).is_ok() {
        let extent = stored.meta.stored_range.expect("four bytes are a part");
        assert_eq!(extent.last - extent.first, 3);
        if let Some(rest) = remainder(&stored) {
            assert!(stored.meta.has_strong_validator() && rest.range.starts_with(b"bytes="));
        }
    }
}

fn fuzz_later(received: &ReceivedResponse<'_>, stored: &CachedHeader) {
    let mut fields = Vec::new();
    let request = received.request;
    let has_conditions = write_validation(&mut Http1Header::new(&mut fields), request, stored);
    let is_whole = stored.meta.stored_range.is_none();
    let may_validate = is_whole || request.find(FieldName::Range).is_some();
    assert_eq!(has_conditions, stored.meta.has_validator() && may_validate);
    if let Ok(freshened) = freshen(received, stored) {
        assert_eq!(freshened.meta.status, stored.meta.status);
        let tag = |stored: &CachedHeader| stored.etag_bytes().map(<[u8]>::to_vec);
        assert_eq!(tag(&freshened), tag(stored), "a later response does not change the tag");
    }
    let _ = freshen_by_head(received, stored, 10);
    if let Ok(joined) = combine(received, stored) {
        let extent = stored.meta.stored_range.expect("only parts are joined");
        match joined.meta.stored_range {
            Some(all) => assert!(all.first <= extent.first && extent.last <= all.last),
            None => assert_eq!(joined.meta.status, 200),
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_http1::corpus;

    use super::fuzz_rules;

    #[test]
    fn the_corpus_keeps_the_invariants() {
        corpus::run("cache_rules", 100, corpus::mutate_lines, fuzz_rules);
    }
}

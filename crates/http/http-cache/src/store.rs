//! Whether a response is stored, and which part of it (RFC 9111 section 3).

use millrace_http1::{
    FieldName, HeaderWriter, Http1Header, Method, OriginRequest, Version, destination,
};

use super::cached_header::CachedHeader;
use super::content_range::requested_range;
use super::directives::{RequestDirectives, ResponseDirectives};
use super::field_lines::write_lines;
use super::freshness::{self, Lifetime};
use super::key::UriOrigin;
use super::lookup::{has_body, is_unkeyed};
use super::meta::{Flags, Meta};
use super::not_stored::NotStored;
use super::policy::CachePolicy;
use super::ranges::range_tag;
use super::received::ReceivedResponse;
use super::status;
use super::uri;
use super::vary::VaryNames;

/// Returns the header to store for a response, if the response may be stored. The key is that of a
/// GET request for the same URI, and the variant key that of [`VaryNames::response_key`].
///
/// The body may not have arrived yet: call [`finish`](super::finish) when it ended.
///
/// # Errors
/// Returns the first reason against storing.
pub fn store(received: &ReceivedResponse<'_>) -> Result<CachedHeader, NotStored> {
    let ReceivedResponse { request, response, receipt, .. } = received;
    let directives = received.directives();
    check_method(received, &directives)?;
    check_request(received, &directives)?;
    let mut stored = build_stored(received, &directives)?;
    if response.status() == 206 {
        stored.meta.stored_range = Some(requested_range(request, response)?);
        stored.meta.range_tag = range_tag(&receipt.hash, request);
    }
    Ok(stored)
}

/// Checks the method. RFC 9111 section 3: responses to GET are stored. RFC 9110 section 9.3.3:
/// responses to POST are stored if they state that they are the representation for a GET of the
/// same URI, and have an explicit lifetime. Responses to HEAD have no body for a GET;
/// [`freshen_by_head`](super::freshen_by_head) uses them.
fn check_method(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Result<(), NotStored> {
    let request = received.request;
    match request.method() {
        Method::Get if has_body(request) => Err(NotStored::RequestBody),
        Method::Get => Ok(()),
        Method::Post => {
            let is_explicit = freshness::lifetime(received, directives).is_explicit();
            let is_whole = received.response.status() == 200;
            let is_located = is_located_at_target(received);
            if is_explicit && is_whole && is_located { Ok(()) } else { Err(NotStored::Method) }
        }
        _ => Err(NotStored::Method),
    }
}

fn is_located_at_target(
    &ReceivedResponse { request, response, receipt, .. }: &ReceivedResponse<'_>,
) -> bool {
    let Ok(destination) = destination(request) else { return false };
    let Some(authority) = destination.authority else { return false };
    let mut locations = response.values(FieldName::ContentLocation);
    let (Some(location), None) = (locations.next(), locations.next()) else { return false };
    let target = destination.path_and_query;
    let site = UriOrigin { scheme: receipt.scheme, authority };
    uri::resolve(location, &site, target).is_some_and(|path| path == target)
}

/// Returns whether the response to a request is likely to be stored, judged by the request alone,
/// so that other requests for the same key may wait for it. Requests with credentials do not
/// collapse, because few responses permit storing for them. `directives` are those of the request,
/// or the default if the route does not apply them.
pub fn may_collapse(
    request: &OriginRequest<'_>,
    directives: &RequestDirectives,
    policy: &CachePolicy,
) -> bool {
    !directives.no_store
        && !policy.has_unkeyed(request.head())
        && request.head().find(FieldName::Authorization).is_none()
        && request.certificate().is_none()
}

/// Returns whether a response is for one client only: it is `private` or `no-store`, and its
/// request has credentials. Such a response does not affect stored responses; if it did, any client
/// could evict a shared response by sending a cookie.
pub fn is_personal(received: &ReceivedResponse<'_>) -> bool {
    if !received.is_authorized() && received.request.find(FieldName::Cookie).is_none() {
        return false;
    }
    let directives = received.directives();
    directives.private || directives.no_store
}

/// Checks the request, independent of its method.
pub(super) fn check_request(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Result<(), NotStored> {
    let &ReceivedResponse { request, policy, .. } = received;
    if is_unkeyed(request, policy) {
        return Err(NotStored::RequestField);
    }
    if policy.applies_request_directives && RequestDirectives::parse(request).no_store {
        return Err(NotStored::RequestNoStore);
    }
    // RFC 9111 section 3.5.
    let is_allowed =
        directives.must_revalidate || directives.public || directives.s_maxage_s.is_some();
    if received.is_authorized() && !is_allowed {
        return Err(NotStored::Authorization);
    }
    Ok(())
}

/// Builds the stored header of a response, independent of its request.
pub(super) fn build_stored(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Result<CachedHeader, NotStored> {
    let response = received.response;
    check_response(received, directives)?;
    let vary = VaryNames::parse(response)?;
    let lifetime = freshness::lifetime(received, directives);
    let is_kept = |name: &FieldName| {
        response.find(*name).is_some() && !directives.omits(name.as_str().as_bytes())
    };
    let has_cookie = [FieldName::SetCookie, FieldName::SetCookie2].iter().any(is_kept);
    if has_cookie && !freshness::allows_cookie(received, directives) {
        return Err(NotStored::SetCookie);
    }
    let mut head = Vec::with_capacity(response.bytes().len() + 64);
    Http1Header::new(&mut head).response(response.status(), response.reason());
    let lines_at = head.len();
    let etag = write_lines(&mut Http1Header::new(&mut head), received, directives);
    let mut meta = build_meta(received, directives, lifetime);
    meta.lines_at = lines_at as u32;
    meta.etag = etag;
    meta.flags = meta.flags.set_if(Flags::VARIES, vary.is_some());
    if !is_usable(&meta, lifetime, directives) {
        return Err(NotStored::Useless);
    }
    Ok(CachedHeader { meta, head, vary })
}

/// Checks the response (RFC 9111 section 3). Section 5.2.2.3: a cache that understands the status
/// of a response with `must-understand` ignores its `no-store`.
fn check_response(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Result<(), NotStored> {
    let status = received.response.status();
    let is_refused = status::needs_operator(status) && received.policy.named_ttl(status).is_none();
    if is_refused || !status::is_of_resource(status) {
        return Err(NotStored::Status);
    }
    if directives.must_understand && !status::is_understood(status) {
        return Err(NotStored::MustUnderstand);
    }
    if directives.no_store && !directives.must_understand {
        return Err(NotStored::NoStore);
    }
    if directives.private {
        return Err(NotStored::Private);
    }
    Ok(())
}

/// Returns whether a response can be used. RFC 9111 section 3, last item: it needs a permission to
/// be stored. A response that can never be used would only occupy space.
fn is_usable(meta: &Meta, lifetime: Lifetime, directives: &ResponseDirectives) -> bool {
    let is_allowed =
        lifetime.is_explicit() || directives.public || status::is_heuristic(meta.status);
    let is_fresh = meta.lifetime_s > meta.initial_age_s && !meta.flags.contains(Flags::NO_CACHE);
    let has_window = meta.stale_while_revalidate_s > 0 || meta.stale_if_error_s > 0;
    is_allowed && (is_fresh || has_window || meta.has_validator())
}

fn build_meta(
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
    lifetime: Lifetime,
) -> Meta {
    let response = received.response;
    let date_s = freshness::date_s(received);
    let last_modified_s =
        freshness::last_modified_s(received).filter(|_| !directives.omits(b"last-modified"));
    let age_s = freshness::initial_age_s(received, date_s);
    let lifetime_s = match lifetime {
        Lifetime::Operator(seconds) => seconds.saturating_add(age_s),
        Lifetime::Explicit(seconds) | Lifetime::Heuristic(seconds) => seconds,
        Lifetime::Unknown => 0,
    };
    let windows = windows(directives, received.policy);
    let is_strong =
        |modified_s| response.find(FieldName::Date).is_some() && date_s >= modified_s + 60;
    let flags = Flags::default()
        .set_if(Flags::NO_CACHE, directives.no_cache)
        .set_if(Flags::NO_STALE, forbids_stale(directives))
        .set_if(Flags::IMMUTABLE, directives.immutable)
        .set_if(Flags::RECEIVED_AS_HTTP10, response.version() == Version::Http10)
        .set_if(Flags::MODIFIED_IS_STRONG, last_modified_s.is_some_and(is_strong));
    Meta {
        response_ms: received.receipt.response_ms,
        date_s,
        last_modified_s,
        lifetime_s,
        initial_age_s: age_s,
        stale_while_revalidate_s: windows.0,
        stale_if_error_s: windows.1,
        etag: None,
        status: response.status(),
        flags,
        lines_at: 0,
        stored_range: None,
        range_tag: 0,
    }
}

/// Returns whether stale use is forbidden (RFC 9111 section 4.2.4).
fn forbids_stale(directives: &ResponseDirectives) -> bool {
    directives.must_revalidate
        || directives.proxy_revalidate
        || directives.no_cache
        || directives.s_maxage_s.is_some()
}

/// Returns the seconds for which a stale response may be used while it is validated, and after a
/// failure of the origin.
///
/// RFC 9111 section 5.2.2.10: `s-maxage` includes the meaning of `proxy-revalidate`, which forbids
/// stale use. If the origin sends `stale-while-revalidate` or `stale-if-error` with `s-maxage`, it
/// permits stale use explicitly, and its times apply. `must-revalidate`, `proxy-revalidate` and
/// `no-cache` forbid stale use even then. The operator's times apply only if none of the four is
/// present.
fn windows(directives: &ResponseDirectives, policy: &CachePolicy) -> (u32, u32) {
    if directives.must_revalidate || directives.proxy_revalidate || directives.no_cache {
        return (0, 0);
    }
    let is_free = !forbids_stale(directives);
    let or_policy = |origin_s: Option<u32>, policy_s| match origin_s {
        Some(seconds) => seconds,
        None if is_free => policy_s,
        None => 0,
    };
    let while_revalidate =
        or_policy(directives.stale_while_revalidate_s, policy.stale_while_revalidate_s);
    (while_revalidate, or_policy(directives.stale_if_error_s, policy.stale_if_error_s))
}

#[cfg(test)]
mod tests {
    use millrace_http1::{ClientCertificate, Forwarding, RequestHead, Scheme};

    use super::super::policy::{SetCookie, StatusTtl, Ttl, UnkeyedFields};
    use super::super::received::Receipt;
    use super::super::test_messages::{
        DATE, NOW_MS, RECEIPT, get, request, response, store_by, stored,
    };
    use super::*;

    const FRESH: &str = "Cache-Control: max-age=60\r\n";

    fn to(request: &RequestHead, status: u16, fields: &str) -> Option<NotStored> {
        store_by(&CachePolicy::default(), request, &response(status, fields)).err()
    }

    fn refusal(fields: &str) -> Option<NotStored> {
        stored(fields).err()
    }

    #[test]
    fn an_omitted_last_modified_is_no_validator() {
        let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        assert!(stored(&format!("{FRESH}{modified}")).unwrap().meta.has_validator());
        let without = format!("{FRESH}Cache-Control: private=\"last-modified\"\r\n{modified}");
        assert!(!stored(&without).unwrap().meta.has_validator());
    }

    #[test]
    fn explicit_freshness_is_enough_for_any_final_status_section_3() {
        for status in [
            200, 203, 204, 299, 301, 302, 303, 307, 308, 403, 404, 410, 499, 500, 502, 503, 504,
            599,
        ] {
            assert_eq!(to(&get(""), status, FRESH), None, "{status}");
        }
        assert_eq!(to(&get(""), 302, "ETag: \"a\"\r\n"), Some(NotStored::Useless));
        assert_eq!(to(&get(""), 200, "ETag: \"a\"\r\n"), None);
        assert_eq!(to(&get(""), 599, "ETag: \"a\"\r\nCache-Control: public\r\n"), None);
        for status in [304, 400, 401, 407, 412, 416, 417, 429, 431] {
            assert_eq!(to(&get(""), status, FRESH), Some(NotStored::Status));
        }
    }

    #[test]
    fn statuses_about_one_request_are_stored_if_the_operator_names_them() {
        for status in [400, 401, 429] {
            let ttl = Ttl::Default(10);
            let named = StatusTtl { statuses: (status, status), ttl };
            let policy = CachePolicy { status_ttls: vec![named], ..CachePolicy::default() };
            assert!(store_by(&policy, &get(""), &response(status, FRESH)).is_ok());
            assert!(store_by(&policy, &get(""), &response(status, "")).is_ok());
        }
    }

    #[test]
    fn responses_to_get_are_stored_section_3() {
        for (line, fields, expected) in [
            ("GET / HTTP/1.1", "", None),
            ("HEAD / HTTP/1.1", "", Some(NotStored::Method)),
            ("PUT / HTTP/1.1", "", Some(NotStored::Method)),
            ("OPTIONS / HTTP/1.1", "", Some(NotStored::Method)),
            ("POST / HTTP/1.1", "", Some(NotStored::Method)),
            ("GET / HTTP/1.1", "Content-Length: 5\r\n", Some(NotStored::RequestBody)),
        ] {
            assert_eq!(to(&request(line, fields), 200, FRESH), expected, "{line} {fields}");
        }
    }

    #[test]
    fn a_post_is_stored_where_it_is_the_resource_rfc_9110_section_9_3_3() {
        let post = request("POST /a/b HTTP/1.1", "Content-Length: 5\r\n");
        let located = |at: &str, fresh: &str| {
            to(&post, 200, &format!("{fresh}Content-Location: {at}\r\n")).is_none()
        };
        assert!(located("/a/b", FRESH) && located("http://EXAMPLE.com:80/a/b", FRESH));
        assert!(located("b", FRESH) && located("", FRESH));
        assert!(
            !located("/a/b?", FRESH) && !located("/a/c", FRESH) && !located("//other/a/b", FRESH)
        );
        assert!(!located("/a/b", "ETag: \"a\"\r\n"));
        assert!(to(&post, 201, &format!("{FRESH}Content-Location: /a/b\r\n")).is_some());
    }

    #[test]
    fn directives_forbid_sections_5_2_2_5_and_5_2_2_7() {
        assert_eq!(refusal("Cache-Control: No-StOrE\r\n"), Some(NotStored::NoStore));
        assert_eq!(
            refusal(&format!("{FRESH}Cache-Control: no-store\r\n")),
            Some(NotStored::NoStore)
        );
        assert_eq!(
            refusal(&format!("{FRESH}Cache-Control: private\r\n")),
            Some(NotStored::Private)
        );
        assert_eq!(refusal(&format!("{FRESH}Cache-Control: private=\"a\"\r\n")), None);
        let request_head = get("Cache-Control: no-store\r\n");
        assert_eq!(
            to(&request_head, 200, FRESH),
            Some(NotStored::RequestNoStore),
            "section 5.2.1.5"
        );
        let deaf = CachePolicy { applies_request_directives: false, ..CachePolicy::default() };
        assert!(store_by(&deaf, &request_head, &response(200, FRESH)).is_ok());
    }

    #[test]
    fn must_understand_needs_a_known_status_section_5_2_2_3() {
        let fields = "Cache-Control: max-age=3600, must-understand, no-store\r\n";
        assert_eq!(to(&get(""), 599, fields), Some(NotStored::MustUnderstand));
        assert_eq!(
            to(&get(""), 200, fields),
            None,
            "no-store is for caches that do not understand it"
        );
    }

    #[test]
    fn credentials_need_permission_section_3_5() {
        let request_head = get("Authorization: FOO\r\n");
        let with =
            |directives: &str| to(&request_head, 200, &format!("Cache-Control: {directives}\r\n"));
        assert_eq!(with("max-age=60"), Some(NotStored::Authorization));
        for allowing in ["max-age=60, public", "max-age=60, must-revalidate", "s-maxage=60"] {
            assert_eq!(with(allowing), None, "{allowing}");
        }
    }

    #[test]
    fn a_client_certificate_needs_the_same_permission_section_3_5() {
        let receipt = &Receipt { has_client_certificate: true, ..RECEIPT };
        let with = |directives: &str| {
            let response = &response(200, &format!("{DATE}Cache-Control: {directives}\r\n"));
            let (request, policy) = (&get(""), &CachePolicy::default());
            let received = ReceivedResponse { request, response, receipt, policy };
            (store(&received).err(), is_personal(&received))
        };
        assert_eq!(with("max-age=60"), (Some(NotStored::Authorization), false));
        assert_eq!(with("private"), (Some(NotStored::Authorization), true));
        for allowing in ["max-age=60, public", "max-age=60, must-revalidate", "s-maxage=60"] {
            assert_eq!(with(allowing), (None, false), "{allowing}");
        }
    }

    #[test]
    fn requests_with_credentials_do_not_collapse() {
        let certificate = ClientCertificate {
            certificate: (*b":AA==:").into(),
            chain: None,
            digests: [(*b"a").into(), (*b"").into()],
        };
        let gateway =
            Forwarding::Gateway { client: None, is_trusted: false, always_forwarded: &[] };
        let collapses = |fields: &str, certificate| {
            let head = get(fields);
            let request = OriginRequest::new(&head, Scheme::Https, gateway);
            let request = request.with_certificate(certificate);
            may_collapse(&request, &RequestDirectives::default(), &CachePolicy::default())
        };
        assert!(collapses("", None));
        assert!(!collapses("Authorization: a\r\n", None));
        assert!(!collapses("", Some(&certificate)));
    }

    #[test]
    fn cookies_are_stored_by_policy_section_7_3() {
        let cookie = |fields: &str, set_cookie| {
            let policy = CachePolicy { set_cookie, ..CachePolicy::default() };
            let response = response(200, &format!("{DATE}Set-Cookie: a=b\r\n{fields}"));
            store_by(&policy, &get(""), &response).is_ok()
        };
        let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let shared = "Cache-Control: s-maxage=60\r\n";
        assert!(cookie(FRESH, SetCookie::Explicit) && !cookie(modified, SetCookie::Explicit));
        assert!(cookie(shared, SetCookie::Shared) && !cookie(FRESH, SetCookie::Shared));
        assert!(!cookie(shared, SetCookie::Never));
        let without = "Cache-Control: s-maxage=60, no-cache=\"Set-Cookie\"\r\n";
        assert!(cookie(without, SetCookie::Never), "the cookie is not stored");
    }

    #[test]
    fn an_operators_lifetime_does_not_apply_to_cookies_section_7_3() {
        for (fields, is_kept) in [
            ("", false),
            ("Cache-Control: max-age=0\r\n", false),
            ("Expires: 0\r\n", false),
            ("Cache-Control: max-age=5\r\n", true),
        ] {
            let response =
                response(200, &format!("{DATE}ETag: \"a\"\r\nSet-Cookie: a=b\r\n{fields}"));
            let set_cookie = SetCookie::Explicit;
            let policy =
                CachePolicy { ttl: Ttl::Override(60), set_cookie, ..CachePolicy::default() };
            let stored = store_by(&policy, &get(""), &response);
            assert_eq!(stored.is_ok(), is_kept, "{fields}");
        }
        let cookie2 = format!("{FRESH}Set-Cookie2: a=b\r\n");
        assert_eq!(refusal(&cookie2), Some(NotStored::SetCookie));
    }

    #[test]
    fn requests_for_the_origin_are_not_stored() {
        for fields in ["Connection: upgrade\r\nUpgrade: x\r\n", "If-Match: *\r\n"] {
            assert_eq!(to(&get(fields), 200, FRESH), Some(NotStored::RequestField), "{fields}");
        }
        assert_eq!(to(&get("Upgrade: x\r\n"), 200, FRESH), None, "not forwarded");
    }

    #[test]
    fn vary_any_is_not_stored_section_4_1() {
        assert_eq!(refusal(&format!("{FRESH}Vary: a, *\r\n")), Some(NotStored::VaryAny));
    }

    #[test]
    fn responses_to_unkeyed_fields_are_not_stored() {
        let request_head = get("X-Method-Override: PUT\r\n");
        assert_eq!(to(&request_head, 200, FRESH), Some(NotStored::RequestField));
        let request_head = get("X-Forwarded-Host: evil\r\n");
        assert_eq!(to(&request_head, 200, FRESH), None);
        let strict =
            CachePolicy { unkeyed: UnkeyedFields::of_forward_proxy(&[]), ..CachePolicy::default() };
        let refused = store_by(&strict, &request_head, &response(200, FRESH));
        assert_eq!(refused.err(), Some(NotStored::RequestField));
    }

    #[test]
    fn unusable_responses_are_not_stored() {
        for fields in [
            "",
            "Cache-Control: max-age=0\r\n",
            "Cache-Control: max-age=60, no-cache\r\n",
            "Cache-Control: max-age=60\r\nAge: 60\r\n",
        ] {
            assert_eq!(refusal(fields), Some(NotStored::Useless), "{fields}");
            assert_eq!(refusal(&format!("{fields}ETag: \"a\"\r\n")), None, "{fields}");
        }
        assert_eq!(refusal("Cache-Control: max-age=0, stale-if-error=60\r\n"), None);
    }

    #[test]
    fn an_age_that_cannot_be_read_changes_nothing_section_5_1() {
        let fields = "Cache-Control: max-age=60, stale-while-revalidate=60\r\nETag: \"a\"\r\n";
        let meta = stored(&format!("{fields}Age: abc\r\n")).unwrap().meta;
        assert!(meta.is_fresh(NOW_MS) && !meta.flags.contains(Flags::NO_STALE));
        assert_eq!(meta.stale_while_revalidate_s, 60);
    }

    #[test]
    fn stale_windows_yield_to_directives_section_4_2_4() {
        let windows = |directives: &str| {
            let policy = CachePolicy { stale_if_error_s: 9, ..CachePolicy::default() };
            let fields = format!("ETag: \"a\"\r\nCache-Control: max-age=1, {directives}\r\n");
            let meta = store_by(&policy, &get(""), &response(200, &fields)).unwrap().meta;
            let is_forbidden = meta.flags.contains(Flags::NO_STALE);
            (meta.stale_while_revalidate_s, meta.stale_if_error_s, is_forbidden)
        };
        assert_eq!(windows("public"), (0, 9, false));
        assert_eq!(windows("stale-while-revalidate=5, stale-if-error=6"), (5, 6, false));
        assert_eq!(windows("s-maxage=2"), (0, 0, true));
        assert_eq!(windows("s-maxage=2, stale-while-revalidate=5"), (5, 0, true));
        for word in ["must-revalidate", "proxy-revalidate", "no-cache"] {
            let both = windows(&format!("{word}, stale-while-revalidate=5, stale-if-error=5"));
            assert_eq!(both, (0, 0, true), "{word}");
        }
    }

    #[test]
    fn an_operators_lifetime_does_not_override_prohibitions() {
        let policy = CachePolicy { ttl: Ttl::Override(60), ..CachePolicy::default() };
        let with = |fields: &str| store_by(&policy, &get(""), &response(200, fields));
        assert_eq!(with("Cache-Control: max-age=0\r\n").unwrap().meta.lifetime_s, 60);
        let old = with("Cache-Control: max-age=0\r\nAge: 100\r\n").unwrap().meta;
        assert_eq!((old.ttl_s(NOW_MS), old.age_s(NOW_MS)), (60, 100), "counted from now");
        assert_eq!(with("Age: x\r\n").unwrap().meta.ttl_s(NOW_MS), 60);
        assert_eq!(with("Cache-Control: no-store\r\n").err(), Some(NotStored::NoStore));
        assert_eq!(with("Cache-Control: private\r\n").err(), Some(NotStored::Private));
    }

    #[test]
    fn a_modification_time_is_strong_after_a_minute_rfc_9110_section_8_8_2_2() {
        let strong = |modified: &str| {
            let fields = format!("{DATE}{FRESH}Last-Modified: Sat, 21 Nov 2026 {modified} GMT\r\n");
            stored(&fields).unwrap().meta.has_strong_validator()
        };
        assert!(strong("10:15:00") && !strong("10:15:01") && !strong("10:17:00"));
        let dateless = format!("{FRESH}Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n");
        assert!(!stored(&dateless).unwrap().meta.has_strong_validator());
    }
}

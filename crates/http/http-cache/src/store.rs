//! Whether an answer is stored, and what is kept of it, RFC 9111 section 3.

use millrace_http1::{
    AnswerHead, HeaderWriter, Http1Header, Method, Name, NameSet, RequestHead, Version, destination,
};

use super::content_range::extent;
use super::directives::{AnswerDirectives, RequestDirectives};
use super::freshness::{self, Lifetime};
use super::key::Site;
use super::lookup::{has_body, is_unkeyed};
use super::meta::{Flags, Meta};
use super::policy::Policy;
use super::ranges::range_tag;
use super::received::Received;
use super::refusal::Refusal;
use super::status;
use super::stored::Stored;
use super::stored_head::write_lines;
use super::uri;
use super::vary::VaryNames;

/// Says whether an answer to this request is stored, and gives what is kept of it. The key is that
/// of a GET of the same URI, and the variant that of [`VaryNames::key_of_answer`].
///
/// The body may still be on its way: [`finish`](super::finish) says what its end means.
///
/// # Errors
/// The first reason against it.
pub fn store(received: &Received<'_>) -> Result<Stored, Refusal> {
    let Received { request, answer, receipt, .. } = received;
    let directives = received.directives();
    check_method(received, &directives)?;
    check_request(received, &directives)?;
    let mut stored = keep(received, &directives)?;
    if answer.status() == 206 {
        stored.meta.extent = Some(extent(request, answer)?);
        stored.meta.range_tag = range_tag(&receipt.hash, request);
    }
    Ok(stored)
}

/// RFC 9111 section 3: answers to GET; RFC 9110 section 9.3.3: to POST, where the answer says that
/// it is what a GET of the same URI would get, and for how long. Those to HEAD have no body that a
/// GET could be answered with; what they are good for does
/// [`freshen_by_head`](super::freshen_by_head).
fn check_method(received: &Received<'_>, directives: &AnswerDirectives) -> Result<(), Refusal> {
    let request = received.request;
    match request.method() {
        Method::Get if has_body(request) => Err(Refusal::RequestBody),
        Method::Get => Ok(()),
        Method::Post => {
            let is_explicit = freshness::lifetime(received, directives).is_explicit();
            let is_whole = received.answer.status() == 200;
            let is_located = is_located_at_target(received);
            if is_explicit && is_whole && is_located { Ok(()) } else { Err(Refusal::Method) }
        }
        _ => Err(Refusal::Method),
    }
}

fn is_located_at_target(&Received { request, answer, receipt, .. }: &Received<'_>) -> bool {
    let Ok(destination) = destination(request) else { return false };
    let Some(authority) = destination.authority else { return false };
    let mut locations = answer.values(Name::ContentLocation);
    let (Some(location), None) = (locations.next(), locations.next()) else { return false };
    let target = destination.path_and_query;
    let site = Site { scheme: receipt.scheme, authority };
    uri::resolve(location, &site, target).is_some_and(|path| path == target)
}

/// Whether the answer to a request may well be stored, as far as the request says: others that ask
/// for the same may wait for it. With credentials that is for the answer to say, and most do not.
/// `asked`: what it asks of caches, as far as that is heeded.
pub fn may_claim(request: &RequestHead, asked: &RequestDirectives, policy: &Policy) -> bool {
    !asked.no_store && !policy.has_unkeyed(request) && request.find(Name::Authorization).is_none()
}

/// Whether a response is for that client alone, and does not affect what is stored for others: it
/// is `private` or `no-store`, for a request with credentials. Otherwise any client could evict a
/// shared response.
pub fn is_personal(request: &RequestHead, response: &AnswerHead, policy: &Policy) -> bool {
    const CREDENTIALS: NameSet = NameSet::of(&[Name::Authorization, Name::Cookie]);
    if !request.has_any(&CREDENTIALS) {
        return false;
    }
    let directives = AnswerDirectives::of(response, &policy.targets);
    directives.private || directives.no_store
}

/// What a request may have against it, whatever its method.
pub(super) fn check_request(
    &Received { request, policy, .. }: &Received<'_>,
    directives: &AnswerDirectives,
) -> Result<(), Refusal> {
    if is_unkeyed(request, policy) {
        return Err(Refusal::RequestField);
    }
    if policy.heeds_requests && RequestDirectives::of(request).no_store {
        return Err(Refusal::RequestNoStore);
    }
    // RFC 9111 section 3.5.
    let is_allowed =
        directives.must_revalidate || directives.public || directives.s_maxage_s.is_some();
    if request.find(Name::Authorization).is_some() && !is_allowed {
        return Err(Refusal::Authorization);
    }
    Ok(())
}

/// What of an answer is kept, whatever it answers.
pub(super) fn keep(
    received: &Received<'_>,
    directives: &AnswerDirectives,
) -> Result<Stored, Refusal> {
    let answer = received.answer;
    check_answer(received, directives)?;
    let vary = VaryNames::of(answer)?;
    let lifetime = freshness::lifetime(received, directives);
    let is_kept =
        |name: &Name| answer.find(*name).is_some() && !directives.omits(name.as_str().as_bytes());
    let has_cookie = [Name::SetCookie, Name::SetCookie2].iter().any(is_kept);
    if has_cookie && !freshness::allows_cookie(received, directives) {
        return Err(Refusal::SetCookie);
    }
    let mut head = Vec::with_capacity(answer.bytes().len() + 64);
    Http1Header::new(&mut head).response(answer.status(), answer.reason());
    let lines_at = head.len();
    let etag = write_lines(&mut Http1Header::new(&mut head), received, directives);
    let mut meta = meta(received, directives, lifetime);
    meta.lines_at = lines_at as u32;
    meta.etag = etag;
    meta.flags = meta.flags.with(Flags::VARIES, vary.is_some());
    if !may_be_used(&meta, lifetime, directives) {
        return Err(Refusal::Useless);
    }
    Ok(Stored { meta, head, vary })
}

/// RFC 9111 section 3, what an answer itself may have against it. Section 5.2.2.3: a cache that
/// understands the status of an answer with `must-understand` does not heed its `no-store`.
fn check_answer(received: &Received<'_>, directives: &AnswerDirectives) -> Result<(), Refusal> {
    let status = received.answer.status();
    let is_refused = status::needs_operator(status) && received.policy.named_ttl(status).is_none();
    if is_refused || !status::is_of_resource(status) {
        return Err(Refusal::Status);
    }
    if directives.must_understand && !status::is_understood(status) {
        return Err(Refusal::MustUnderstand);
    }
    if directives.no_store && !directives.must_understand {
        return Err(Refusal::NoStore);
    }
    if directives.private {
        return Err(Refusal::Private);
    }
    Ok(())
}

/// RFC 9111 section 3, last item: something has to allow that an answer is stored; and what could
/// never be used would only take room.
fn may_be_used(meta: &Meta, lifetime: Lifetime, directives: &AnswerDirectives) -> bool {
    let is_allowed =
        lifetime.is_explicit() || directives.public || status::is_heuristic(meta.status);
    let is_fresh = meta.lifetime_s > meta.initial_age_s && !meta.flags.has(Flags::NO_CACHE);
    let has_window = meta.stale_while_revalidate_s > 0 || meta.stale_if_error_s > 0;
    is_allowed && (is_fresh || has_window || meta.has_validator())
}

fn meta(received: &Received<'_>, directives: &AnswerDirectives, lifetime: Lifetime) -> Meta {
    let answer = received.answer;
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
    let is_strong = |modified_s| answer.find(Name::Date).is_some() && date_s >= modified_s + 60;
    let flags = Flags::default()
        .with(Flags::NO_CACHE, directives.no_cache)
        .with(Flags::NO_STALE, forbids_stale(directives))
        .with(Flags::IMMUTABLE, directives.immutable)
        .with(Flags::RECEIVED_AS_HTTP10, answer.version() == Version::Http10)
        .with(Flags::MODIFIED_IS_STRONG, last_modified_s.is_some_and(is_strong));
    Meta {
        response_ms: received.receipt.response_ms,
        date_s,
        last_modified_s,
        lifetime_s,
        initial_age_s: age_s,
        stale_while_revalidate_s: windows.0,
        stale_if_error_s: windows.1,
        etag: None,
        status: answer.status(),
        flags,
        lines_at: 0,
        extent: None,
        range_tag: 0,
    }
}

/// RFC 9111 section 4.2.4.
fn forbids_stale(directives: &AnswerDirectives) -> bool {
    directives.must_revalidate
        || directives.proxy_revalidate
        || directives.no_cache
        || directives.s_maxage_s.is_some()
}

/// For how long an answer may be used stale while it is validated, and when the origin fails.
///
/// RFC 9111 section 5.2.2.10 has `s-maxage` mean `proxy-revalidate` too, which forbids stale use.
/// An origin that writes a window of RFC 5861 beside it speaks to the same caches and says the
/// opposite in words, so the window counts. `must-revalidate`, `proxy-revalidate` and `no-cache`
/// are words as well, and forbid it. What only the operator wants is forbidden by any of the four.
fn windows(directives: &AnswerDirectives, policy: &Policy) -> (u32, u32) {
    if directives.must_revalidate || directives.proxy_revalidate || directives.no_cache {
        return (0, 0);
    }
    let is_free = !forbids_stale(directives);
    let or_policy = |said: Option<u32>, policy_s| match said {
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
    use super::super::policy::{SetCookie, StatusTtl, Ttl, Unkeyed};
    use super::super::samples::{DATE, NOW_MS, answer, get, request, store_by, stored};
    use super::*;

    const FRESH: &str = "Cache-Control: max-age=60\r\n";

    fn to(request: &RequestHead, status: u16, fields: &str) -> Option<Refusal> {
        store_by(&Policy::default(), request, &answer(status, fields)).err()
    }

    fn refusal(fields: &str) -> Option<Refusal> {
        stored(fields).err()
    }

    #[test]
    fn a_validator_that_is_not_stored_is_none() {
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
        assert_eq!(to(&get(""), 302, "ETag: \"a\"\r\n"), Some(Refusal::Useless));
        assert_eq!(to(&get(""), 200, "ETag: \"a\"\r\n"), None);
        assert_eq!(to(&get(""), 599, "ETag: \"a\"\r\nCache-Control: public\r\n"), None);
        for status in [304, 400, 401, 407, 412, 416, 417, 429, 431] {
            assert_eq!(to(&get(""), status, FRESH), Some(Refusal::Status));
        }
    }

    #[test]
    fn statuses_about_one_request_are_stored_if_the_operator_names_them() {
        for status in [400, 401, 429] {
            let ttl = Ttl::Default(10);
            let named = StatusTtl { statuses: (status, status), ttl };
            let policy = Policy { status_ttls: vec![named], ..Policy::default() };
            assert!(store_by(&policy, &get(""), &answer(status, FRESH)).is_ok());
            assert!(store_by(&policy, &get(""), &answer(status, "")).is_ok());
        }
    }

    #[test]
    fn answers_to_get_are_stored_section_3() {
        for (line, fields, expected) in [
            ("GET / HTTP/1.1", "", None),
            ("HEAD / HTTP/1.1", "", Some(Refusal::Method)),
            ("PUT / HTTP/1.1", "", Some(Refusal::Method)),
            ("OPTIONS / HTTP/1.1", "", Some(Refusal::Method)),
            ("POST / HTTP/1.1", "", Some(Refusal::Method)),
            ("GET / HTTP/1.1", "Content-Length: 5\r\n", Some(Refusal::RequestBody)),
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
        assert_eq!(refusal("Cache-Control: No-StOrE\r\n"), Some(Refusal::NoStore));
        assert_eq!(refusal(&format!("{FRESH}Cache-Control: no-store\r\n")), Some(Refusal::NoStore));
        assert_eq!(refusal(&format!("{FRESH}Cache-Control: private\r\n")), Some(Refusal::Private));
        assert_eq!(refusal(&format!("{FRESH}Cache-Control: private=\"a\"\r\n")), None);
        let asked = get("Cache-Control: no-store\r\n");
        assert_eq!(to(&asked, 200, FRESH), Some(Refusal::RequestNoStore), "section 5.2.1.5");
        let deaf = Policy { heeds_requests: false, ..Policy::default() };
        assert!(store_by(&deaf, &asked, &answer(200, FRESH)).is_ok());
    }

    #[test]
    fn must_understand_needs_a_known_status_section_5_2_2_3() {
        let fields = "Cache-Control: max-age=3600, must-understand, no-store\r\n";
        assert_eq!(to(&get(""), 599, fields), Some(Refusal::MustUnderstand));
        assert_eq!(to(&get(""), 200, fields), None, "no-store is for those that do not know it");
    }

    #[test]
    fn credentials_need_permission_section_3_5() {
        let asked = get("Authorization: FOO\r\n");
        let with = |directives: &str| to(&asked, 200, &format!("Cache-Control: {directives}\r\n"));
        assert_eq!(with("max-age=60"), Some(Refusal::Authorization));
        for allowing in ["max-age=60, public", "max-age=60, must-revalidate", "s-maxage=60"] {
            assert_eq!(with(allowing), None, "{allowing}");
        }
    }

    #[test]
    fn cookies_are_kept_as_the_operator_says_section_7_3() {
        let cookie = |fields: &str, set_cookie| {
            let policy = Policy { set_cookie, ..Policy::default() };
            let answer = answer(200, &format!("{DATE}Set-Cookie: a=b\r\n{fields}"));
            store_by(&policy, &get(""), &answer).is_ok()
        };
        let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let shared = "Cache-Control: s-maxage=60\r\n";
        assert!(cookie(FRESH, SetCookie::Explicit) && !cookie(modified, SetCookie::Explicit));
        assert!(cookie(shared, SetCookie::Shared) && !cookie(FRESH, SetCookie::Shared));
        assert!(!cookie(shared, SetCookie::Never));
        let without = "Cache-Control: s-maxage=60, no-cache=\"Set-Cookie\"\r\n";
        assert!(cookie(without, SetCookie::Never), "then it is not stored with it");
    }

    #[test]
    fn an_operators_lifetime_is_not_about_cookies_section_7_3() {
        for (fields, is_kept) in [
            ("", false),
            ("Cache-Control: max-age=0\r\n", false),
            ("Expires: 0\r\n", false),
            ("Cache-Control: max-age=5\r\n", true),
        ] {
            let answer = answer(200, &format!("{DATE}ETag: \"a\"\r\nSet-Cookie: a=b\r\n{fields}"));
            let set_cookie = SetCookie::Explicit;
            let policy = Policy { ttl: Ttl::Override(60), set_cookie, ..Policy::default() };
            let stored = store_by(&policy, &get(""), &answer);
            assert_eq!(stored.is_ok(), is_kept, "{fields}");
        }
        let cookie2 = format!("{FRESH}Set-Cookie2: a=b\r\n");
        assert_eq!(refusal(&cookie2), Some(Refusal::SetCookie));
    }

    #[test]
    fn what_only_the_origin_can_do_is_in_no_key() {
        for fields in ["Connection: upgrade\r\nUpgrade: x\r\n", "If-Match: *\r\n"] {
            assert_eq!(to(&get(fields), 200, FRESH), Some(Refusal::RequestField), "{fields}");
        }
        assert_eq!(to(&get("Upgrade: x\r\n"), 200, FRESH), None, "not forwarded");
    }

    #[test]
    fn what_depends_on_anything_is_not_stored_section_4_1() {
        assert_eq!(refusal(&format!("{FRESH}Vary: a, *\r\n")), Some(Refusal::VaryAny));
    }

    #[test]
    fn unkeyed_fields_keep_an_answer_from_others() {
        let asked = get("X-Method-Override: PUT\r\n");
        assert_eq!(to(&asked, 200, FRESH), Some(Refusal::RequestField));
        let asked = get("X-Forwarded-Host: evil\r\n");
        assert_eq!(to(&asked, 200, FRESH), None);
        let strict = Policy { unkeyed: Unkeyed::of_forward_proxy(&[]), ..Policy::default() };
        let refused = store_by(&strict, &asked, &answer(200, FRESH));
        assert_eq!(refused.err(), Some(Refusal::RequestField));
    }

    #[test]
    fn what_could_not_be_used_is_not_stored() {
        for fields in [
            "",
            "Cache-Control: max-age=0\r\n",
            "Cache-Control: max-age=60, no-cache\r\n",
            "Cache-Control: max-age=60\r\nAge: 60\r\n",
        ] {
            assert_eq!(refusal(fields), Some(Refusal::Useless), "{fields}");
            assert_eq!(refusal(&format!("{fields}ETag: \"a\"\r\n")), None, "{fields}");
        }
        assert_eq!(refusal("Cache-Control: max-age=0, stale-if-error=60\r\n"), None);
    }

    #[test]
    fn an_age_that_cannot_be_read_changes_nothing_section_5_1() {
        let fields = "Cache-Control: max-age=60, stale-while-revalidate=60\r\nETag: \"a\"\r\n";
        let meta = stored(&format!("{fields}Age: abc\r\n")).unwrap().meta;
        assert!(meta.is_fresh(NOW_MS) && !meta.flags.has(Flags::NO_STALE));
        assert_eq!(meta.stale_while_revalidate_s, 60);
    }

    #[test]
    fn stale_windows_give_way_to_words_section_4_2_4() {
        let windows = |directives: &str| {
            let policy = Policy { stale_if_error_s: 9, ..Policy::default() };
            let fields = format!("ETag: \"a\"\r\nCache-Control: max-age=1, {directives}\r\n");
            let meta = store_by(&policy, &get(""), &answer(200, &fields)).unwrap().meta;
            let is_forbidden = meta.flags.has(Flags::NO_STALE);
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
    fn an_operators_lifetime_forbids_nothing_less() {
        let policy = Policy { ttl: Ttl::Override(60), ..Policy::default() };
        let with = |fields: &str| store_by(&policy, &get(""), &answer(200, fields));
        assert_eq!(with("Cache-Control: max-age=0\r\n").unwrap().meta.lifetime_s, 60);
        let old = with("Cache-Control: max-age=0\r\nAge: 100\r\n").unwrap().meta;
        assert_eq!((old.ttl_s(NOW_MS), old.age_s(NOW_MS)), (60, 100), "counted from now");
        assert_eq!(with("Age: x\r\n").unwrap().meta.ttl_s(NOW_MS), 60);
        assert_eq!(with("Cache-Control: no-store\r\n").err(), Some(Refusal::NoStore));
        assert_eq!(with("Cache-Control: private\r\n").err(), Some(Refusal::Private));
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

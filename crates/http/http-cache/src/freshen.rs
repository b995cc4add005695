//! Updating stored responses from later responses of the origin (RFC 9111 sections 3.2, 4.3.4 and
//! 4.3.5).

use millrace_http1::{
    FieldName, FieldRun, HeaderWriter, Http1Header, NameSet, ResponseHead, declared_length,
    forwarded_fields,
};

use super::cached_header::CachedHeader;
use super::field_lines::reparse_lines;
use super::field_names::FieldNames;
use super::freshness::last_modified_s;
use super::meta::Flags;
use super::not_stored::NotStored;
use super::policy::{CachePolicy, SetCookie};
use super::received::ReceivedResponse;
use super::store::{build_stored, check_request, is_personal};

/// The effect of a response to HEAD on a stored response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Freshened {
    /// The stored response is still valid, and this is its new header.
    Updated(CachedHeader),
    /// The stored response is not valid any longer: [`Meta::invalidate`](super::Meta::invalidate).
    Stale,
    /// The stored response does not change.
    Unchanged,
}

/// Returns the header of a stored response after a 304 response validated it. `received.request` is
/// the request of the client.
///
/// # Errors
/// Returns the same errors as [`store`](super::store()), if the later response forbids storing. The
/// stored response may still be sent once, because it was validated for this request.
pub fn freshen(
    received: &ReceivedResponse<'_>,
    previous: &CachedHeader,
) -> Result<CachedHeader, NotStored> {
    let mut stored = build_merged(received, false, previous, previous.meta.status)?;
    stored.meta.stored_range = previous.meta.stored_range;
    stored.meta.range_tag = previous.meta.range_tag;
    Ok(stored)
}

/// Determines the effect of a response to HEAD on the stored response to GET (RFC 9111 section
/// 4.3.5). `length` is the length of the stored body.
///
/// Only fields that set the freshness are updated, because any client can send a HEAD request at
/// any time, and the origin's response may depend on fields that are in no key. With
/// [`SetCookie::Explicit`], [`SINGLE_CLIENT_FIELDS`] are updated too.
pub fn freshen_by_head(
    received: &ReceivedResponse<'_>,
    previous: &CachedHeader,
    length: u64,
) -> Freshened {
    let response = received.response;
    let is_other = response.status() != 200 || previous.meta.status != 200;
    if is_other || previous.meta.stored_range.is_some() || is_personal(received) {
        return Freshened::Unchanged;
    }
    // A request whose response is never stored must not invalidate anything either, so it is
    // checked before the validators are compared.
    if check_request(received, &received.directives()).is_err() {
        return Freshened::Unchanged;
    }
    let is_same_length = match declared_length(response) {
        Ok(declared) => declared.is_none_or(|declared| declared == length),
        Err(_) => false,
    };
    let mut tags = response.values(FieldName::Etag);
    let is_same_tag = tags.all(|tag| previous.etag_bytes() == Some(tag));
    let is_same_date = response.find(FieldName::LastModified).is_none()
        || last_modified_s(received) == previous.meta.last_modified_s;
    if !(is_same_length && is_same_tag && is_same_date) {
        return Freshened::Stale;
    }
    match build_merged(received, true, previous, 200) {
        Ok(stored) => Freshened::Updated(stored),
        Err(refusal) if refusal.drops_stored(200) => Freshened::Stale,
        Err(_) => Freshened::Unchanged,
    }
}

/// Builds the header of a stored response, with this status, from the stored fields and those of a
/// later response. The merged fields determine whether it may be stored. `is_to_head`: the later
/// response is to a HEAD request.
pub(super) fn build_merged(
    received: &ReceivedResponse<'_>,
    is_to_head: bool,
    previous: &CachedHeader,
    status: u16,
) -> Result<CachedHeader, NotStored> {
    let is_updated =
        |known: FieldName, name: &[u8]| is_updated(is_to_head, received.policy, known, name);
    let merged = &merge(previous, received.response, status, is_updated);
    let merged = ReceivedResponse { response: merged, ..*received };
    let directives = merged.directives();
    check_request(&merged, &directives)?;
    let mut stored = build_stored(&merged, &directives)?;
    // The stored header always has HTTP/1.1, so the received version is taken from the old
    // metadata.
    let is_http10 = previous.meta.flags.contains(Flags::RECEIVED_AS_HTTP10);
    stored.meta.flags = stored.meta.flags.set_if(Flags::RECEIVED_AS_HTTP10, is_http10);
    Ok(stored)
}

/// Merges the fields of a later response into a stored header (RFC 9111 section 3.2): for each
/// field name in the later response, its lines replace all stored ones. `Age` and `Date` are always
/// those of the later response, since they determine its time of generation.
fn merge(
    previous: &CachedHeader,
    response: &ResponseHead,
    status: u16,
    is_updated: impl Fn(FieldName, &[u8]) -> bool,
) -> ResponseHead {
    let mut bytes = Vec::with_capacity(previous.head.len() + response.bytes().len());
    let status_line = &previous.head[..previous.meta.lines_at as usize];
    let mut header = Http1Header::new(&mut bytes);
    if status == previous.meta.status {
        header.stored_response(status, status_line, status_line.len());
    } else {
        header.response(status, b"OK");
    }
    let names = forwarded_fields(response).map(|field| (field.known, response.name_of(field)));
    let updates =
        FieldNames::new(names.filter(|&(known, name)| is_updated(known, name)).map(|it| it.1));
    for line in previous.lines() {
        if line.known != FieldName::Date && !updates.contains(line.name) {
            header.field_run(FieldRun::Lines(line.bytes));
        }
    }
    for field in forwarded_fields(response) {
        if is_updated(field.known, response.name_of(field)) {
            header.field(response.name_of(field), response.value_of(field));
        }
    }
    reparse_lines(&bytes)
}

/// Returns whether a later response replaces a stored field (RFC 9111 section 3.2). Fields that
/// describe or protect the stored bytes stay, and so does the entity tag that was validated.
/// `Content-Type` is replaced, because the cache does not interpret the body.
///
/// [`SINGLE_CLIENT_FIELDS`] enter a stored response only with [`SetCookie::Explicit`]. Of the other
/// fields, a response to HEAD replaces only those that set the freshness.
fn is_updated(is_to_head: bool, policy: &CachePolicy, known: FieldName, name: &[u8]) -> bool {
    match known {
        _ if SINGLE_CLIENT_FIELDS.contains(known) => policy.set_cookie == SetCookie::Explicit,
        _ if is_to_head => {
            let mut targets = policy.targets.iter();
            FRESHNESS_FIELDS.contains(known)
                || targets.any(|target| name.eq_ignore_ascii_case(target))
        }
        FieldName::ContentEncoding
        | FieldName::ContentLength
        | FieldName::ContentRange
        | FieldName::Etag
        | FieldName::Trailer => false,
        FieldName::Other => !name.eq_ignore_ascii_case(b"content-md5"),
        _ => true,
    }
}

/// Fields that set the freshness of a response, besides those of [`CachePolicy::targets`].
const FRESHNESS_FIELDS: NameSet = NameSet::new(&[
    FieldName::Age,
    FieldName::CacheControl,
    FieldName::Date,
    FieldName::Expires,
    FieldName::Pragma,
]);

/// Response fields that are meant only for the client that caused the response.
pub const SINGLE_CLIENT_FIELDS: NameSet =
    NameSet::new(&[FieldName::SetCookie, FieldName::SetCookie2, FieldName::ClearSiteData]);

#[cfg(test)]
mod tests {
    use super::super::received::Receipt;
    use super::super::test_messages::{
        DATE, NOW_MS, RECEIPT, get, request, response, stored_response,
    };
    use super::*;

    const LATER: Receipt = Receipt {
        request_ms: NOW_MS + 3_600_000,
        response_ms: NOW_MS + 3_600_000,
        scheme: RECEIPT.scheme,
        hash: RECEIPT.hash,
        has_client_certificate: false,
    };
    const LATER_DATE: &str = "Date: Sat, 21 Nov 2026 11:16:00 GMT\r\n";
    const TAGGED: &str = "Cache-Control: max-age=2\r\nETag: \"a\"\r\n";

    fn freshened(stored: &str, fields: &str) -> Result<CachedHeader, NotStored> {
        let previous = stored_response(&format!("{DATE}{stored}"));
        freshen_by(&CachePolicy::default(), &previous, fields)
    }

    fn freshen_by(
        policy: &CachePolicy,
        previous: &CachedHeader,
        fields: &str,
    ) -> Result<CachedHeader, NotStored> {
        let (request, response) = (&get(""), &response(304, fields));
        freshen(&ReceivedResponse { request, response, receipt: &LATER, policy }, previous)
    }

    fn text(stored: CachedHeader) -> String {
        String::from_utf8(stored.head).unwrap()
    }

    #[test]
    fn a_304_replaces_fields_by_name_section_3_2() {
        let stored = format!("{TAGGED}Test: A\r\ntest: B\r\nKept: C\r\n");
        let fields =
            format!("{LATER_DATE}TEST: D\r\nCache-Control: max-age=9\r\nAge: 4\r\nNew: E\r\n");
        let stored = freshened(&stored, &fields).unwrap();
        assert_eq!((stored.meta.lifetime_s, stored.meta.initial_age_s), (9, 4));
        assert_eq!((stored.meta.status, stored.meta.response_ms), (200, LATER.response_ms));
        assert_eq!(stored.etag_bytes(), Some(&b"\"a\""[..]));
        let expected = format!(
            "HTTP/1.1 200 Reason\r\nETag: \"a\"\r\nKept: C\r\n{LATER_DATE}TEST: D\r\n\
             Cache-Control: max-age=9\r\nNew: E\r\n"
        );
        assert_eq!(text(stored), expected);
    }

    #[test]
    fn fields_that_describe_the_body_stay_section_3_2() {
        for (name, old, new) in [
            ("Content-Encoding", "a", "b"),
            ("Content-MD5", "a", "b"),
            ("Content-Range", "a", "b"),
            ("ETag", "\"a\"", "\"b\""),
        ] {
            let stored = format!("Cache-Control: max-age=2\r\n{name}: {old}\r\n");
            let stored = freshened(&stored, &format!("{LATER_DATE}{name}: {new}\r\n")).unwrap();
            assert!(stored.meta.is_fresh(LATER.response_ms));
            let text = text(stored);
            assert!(text.contains(&format!("{name}: {old}\r\n")), "{text}");
            assert!(!text.contains(new), "{text}");
        }
    }

    #[test]
    fn other_fields_are_replaced_section_3_2() {
        for name in [
            "Content-Type",
            "Content-Location",
            "Expires",
            "X-Frame-Options",
            "Content-Security-Policy",
            "Content-Foo",
        ] {
            let stored = freshened(&format!("{TAGGED}{name}: A\r\n"), &format!("{name}: B\r\n"));
            let text = text(stored.unwrap());
            assert!(text.contains(&format!("{name}: B\r\n")) && !text.contains(": A"), "{text}");
        }
    }

    #[test]
    fn fields_for_one_client_are_stored_only_where_cookies_are_shared() {
        for name in ["Set-Cookie", "Set-Cookie2", "Clear-Site-Data"] {
            let update = format!("{name}: B\r\n");
            let text = text(freshened(TAGGED, &update).unwrap());
            assert!(!text.contains(name), "{text}");
            let previous = stored_response(&format!("{DATE}{TAGGED}"));
            let policy = CachePolicy { set_cookie: SetCookie::Explicit, ..CachePolicy::default() };
            let shared = freshen_by(&policy, &previous, &update);
            assert!(super::tests::text(shared.unwrap()).contains(&update));
        }
    }

    #[test]
    fn hop_by_hop_fields_change_nothing_section_3_2() {
        let fields = "Connection: kept\r\nKept: B\r\nKeep-Alive: x\r\nContent-Length: 7\r\n";
        let text = text(freshened(&format!("{TAGGED}Kept: A\r\n"), fields).unwrap());
        assert!(text.contains("Kept: A\r\n") && !text.contains("Content-Length"), "{text}");
    }

    #[test]
    fn a_304_is_for_the_response_that_was_validated_section_4_3_4() {
        for tag in ["ETag: \"other\"\r\n", ""] {
            assert!(text(freshened(TAGGED, tag).unwrap()).contains("ETag: \"a\"\r\n"));
        }
    }

    #[test]
    fn a_304_without_date_is_dated_now_rfc_9110_section_6_6_1() {
        let stored = freshened(TAGGED, "").unwrap();
        assert_eq!(stored.meta.age_s(LATER.response_ms), 0);
        assert!(text(stored).ends_with(LATER_DATE));
    }

    #[test]
    fn a_304_may_forbid_storing_section_5_2_2_5() {
        let refused = freshened(TAGGED, "Cache-Control: no-store\r\n").err();
        assert_eq!(refused, Some(NotStored::NoStore));
        assert!(refused.is_some_and(|refusal| refusal.drops_stored(200)));
    }

    fn by_head(status: u16, fields: &str) -> Freshened {
        let modified = "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let previous = stored_response(&format!("{DATE}{TAGGED}{modified}A: 1\r\n"));
        freshened_by_head("", &previous, &response(status, fields))
    }

    fn freshened_by_head(
        request_fields: &str,
        previous: &CachedHeader,
        response: &ResponseHead,
    ) -> Freshened {
        let (request, policy) =
            (&request("HEAD / HTTP/1.1", request_fields), &CachePolicy::default());
        freshen_by_head(
            &ReceivedResponse { request, response, receipt: &LATER, policy },
            previous,
            5,
        )
    }

    #[test]
    fn a_head_updates_the_same_representation_section_4_3_5() {
        for fields in [
            "",
            "ETag: \"a\"\r\nContent-Length: 5\r\n",
            "Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
        ] {
            let fields = format!("A: 2\r\nLink: x\r\nCache-Control: max-age=9\r\n{fields}");
            let Freshened::Updated(stored) = by_head(200, &fields) else { panic!("{fields}") };
            assert!(stored.meta.is_fresh(LATER.response_ms));
            assert_eq!(stored.meta.lifetime_s, 9);
            let text = text(stored);
            assert!(text.contains("A: 1\r\n") && !text.contains("Link"), "{text}");
            assert!(text.contains("Cache-Control: max-age=9\r\n"), "{text}");
        }
    }

    #[test]
    fn a_head_of_another_representation_invalidates_section_4_3_5() {
        for fields in [
            "ETag: \"b\"\r\n",
            "ETag: W/\"a\"\r\n",
            "Content-Length: 6\r\n",
            "Last-Modified: Thu, 01 Jan 2026 00:00:01 GMT\r\n",
            "Last-Modified: x\r\n",
            "Cache-Control: no-store\r\n",
        ] {
            assert_eq!(by_head(200, fields), Freshened::Stale, "{fields}");
        }
        assert_eq!(by_head(404, "ETag: \"b\"\r\n"), Freshened::Unchanged);
    }

    #[test]
    fn a_personal_head_does_not_affect_the_shared_response() {
        let previous = stored_response(&format!("{DATE}{TAGGED}"));
        let private = response(200, "Cache-Control: private\r\nETag: \"b\"\r\n");
        let of = |fields: &str| freshened_by_head(fields, &previous, &private);
        assert_eq!(of("Cookie: sid=1\r\n"), Freshened::Unchanged);
        assert_eq!(of(""), Freshened::Stale);
    }
}

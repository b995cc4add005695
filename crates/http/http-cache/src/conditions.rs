//! Conditional requests that a cache handles itself (RFC 9111 section 4.3.2), or an origin server.

use millrace_http1::{FieldName, FieldRun, HeaderWriter, RequestHead};

use super::cached_header::CachedHeader;
use super::date::http_date;
use super::field_lines::StoredFieldLine;
use super::meta::{Flags, Meta};

/// Evaluates the conditions of a GET or HEAD request against a stored response that may be reused,
/// in the order of RFC 9110 section 13.2.2.
///
/// Returns whether the response is a 304. Otherwise the stored response is sent: the request has no
/// condition, or its condition holds. Conditions apply to successful responses only (section
/// 13.2.1).
pub fn is_not_modified(request: &RequestHead, stored: &CachedHeader) -> bool {
    let is_met = match request.find(FieldName::IfNoneMatch) {
        Some(_) => is_none_match(request, stored),
        None => is_modified(request, &stored.meta),
    };
    !is_met && (200..300).contains(&stored.meta.status)
}

/// Evaluates the preconditions of a GET or HEAD request that only an origin server may evaluate:
/// `If-Match`, or else `If-Unmodified-Since` (RFC 9110 section 13.2.2). Returns false if the
/// response is a 412.
pub fn is_precondition_met(request: &RequestHead, stored: &CachedHeader) -> bool {
    if request.find(FieldName::IfMatch).is_some() {
        let etag = stored.etag();
        let is_matched =
            |list: &[u8]| list == b"*" || etag.is_some_and(|etag| etag.is_strongly_in(list));
        return request.values(FieldName::IfMatch).any(is_matched);
    }
    let mut values = request.values(FieldName::IfUnmodifiedSince);
    let (Some(value), None) = (values.next(), values.next()) else { return true };
    let since_s = http_date(value, stored.meta.response_ms / 1000);
    // A condition that is malformed, or on a response without a modification time, is ignored.
    since_s.zip(stored.meta.last_modified_s).is_none_or(|(since_s, changed_s)| changed_s <= since_s)
}

/// Evaluates `If-None-Match` (RFC 9110 section 13.1.2) by weak comparison; `*` matches any
/// response.
fn is_none_match(request: &RequestHead, stored: &CachedHeader) -> bool {
    let etag = stored.etag();
    let is_matched = |list: &[u8]| list == b"*" || etag.is_some_and(|etag| etag.is_in(list));
    !request.values(FieldName::IfNoneMatch).any(is_matched)
}

/// Evaluates `If-Modified-Since` (RFC 9110 section 13.1.3). A received response without
/// `Last-Modified` counts as modified at its `Date` (RFC 9111 section 4.3.2). A condition is
/// ignored if it is malformed, occurs twice, or applies to an own response without a modification
/// time.
fn is_modified(request: &RequestHead, meta: &Meta) -> bool {
    let mut values = request.values(FieldName::IfModifiedSince);
    let (Some(value), None) = (values.next(), values.next()) else { return true };
    let Some(since_s) = http_date(value, meta.response_ms / 1000) else { return true };
    let date_s = (!meta.flags.contains(Flags::IS_OWN)).then_some(meta.date_s);
    meta.last_modified_s.or(date_s).is_none_or(|modified_s| modified_s > since_s)
}

/// Writes the status and the fields of a 304 response for a stored response. RFC 9110 section
/// 15.4.5: metadata of the body, which is not sent, is left out, and so is `Last-Modified` if there
/// is an entity tag. Fields for which `keep` is false are left out too.
pub fn write_not_modified(
    out: &mut impl HeaderWriter,
    stored: &CachedHeader,
    keep: impl Fn(&StoredFieldLine<'_>) -> bool,
) {
    out.response(304, b"Not Modified");
    for line in stored.lines() {
        let is_omitted = match line.known {
            FieldName::ContentType
            | FieldName::ContentEncoding
            | FieldName::ContentLanguage
            | FieldName::ContentRange
            | FieldName::AcceptRanges => true,
            FieldName::LastModified => stored.meta.etag.is_some(),
            FieldName::Other => line.name.eq_ignore_ascii_case(b"content-md5"),
            _ => false,
        };
        if !is_omitted && keep(&line) {
            out.field_run(FieldRun::Lines(line.bytes));
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_http1::{FieldList, Http1Header};

    use super::super::policy::CachePolicy;
    use super::super::test_messages::{DATE, get, response, store_by};
    use super::*;

    fn stored_header(status: u16, fields: &str) -> CachedHeader {
        let response = response(status, &format!("{DATE}Cache-Control: max-age=60\r\n{fields}"));
        store_by(&CachePolicy::default(), &get(""), &response).unwrap()
    }

    fn is_304(fields: &str, request_fields: &str) -> bool {
        let stored = stored_header(200, fields);
        is_not_modified(&get(request_fields), &stored)
    }

    const TAG: &str = "ETag: \"abcdef\"\r\n";
    const MODIFIED: &str = "Last-Modified: Sat, 21 Nov 2026 09:00:00 GMT\r\n";

    #[test]
    fn if_none_match_compares_weakly_rfc_9110_section_13_1_2() {
        for tags in [
            "\"abcdef\"",
            "W/\"abcdef\"",
            "*",
            "\"1234\", \"abcdef\", \"5678\"",
            "\"1234\"\r\nIf-None-Match: \"abcdef\"",
        ] {
            assert!(is_304(TAG, &format!("If-None-Match: {tags}\r\n")), "{tags}");
        }
        assert!(is_304("ETag: W/\"abcdef\"\r\n", "If-None-Match: W/\"abcdef\"\r\n"));
        assert!(!is_304(TAG, "If-None-Match: \"abc\"\r\n"));
        assert!(!is_304(TAG, "If-None-Match: abcdef\r\n"));
        assert!(!is_304("", "If-None-Match: \"abcdef\"\r\n") && is_304("", "If-None-Match: *\r\n"));
        assert!(!is_304(TAG, ""));
    }

    #[test]
    fn if_none_match_goes_before_if_modified_since_rfc_9110_section_13_2_2() {
        let both = format!("{TAG}{MODIFIED}");
        let since = |date: &str| format!("If-Modified-Since: Sat, 21 Nov 2026 {date} GMT\r\n");
        let early = since("08:00:00");
        assert!(is_304(&both, &format!("If-None-Match: \"abcdef\"\r\n{early}")));
        let late = since("10:00:00");
        assert!(!is_304(&both, &format!("If-None-Match: \"x\"\r\n{late}")));
    }

    #[test]
    fn if_match_compares_strongly_rfc_9110_section_13_1_1() {
        let is_met = |fields: &str, tags: &str| {
            let request = get(&format!("If-Match: {tags}\r\n"));
            is_precondition_met(&request, &stored_header(200, fields))
        };
        assert!(is_met(TAG, "\"abcdef\"") && is_met(TAG, "\"x\", \"abcdef\"") && is_met("", "*"));
        assert!(is_met(TAG, "\"x\"\r\nIf-Match: \"abcdef\""));
        assert!(!is_met(TAG, "W/\"abcdef\"") && !is_met(TAG, "\"abc\"") && !is_met("", "\"a\""));
        assert!(!is_met("ETag: W/\"abcdef\"\r\n", "W/\"abcdef\""));
    }

    #[test]
    fn if_unmodified_since_compares_times_rfc_9110_section_13_1_4() {
        let is_met = |fields: &str, conditions: &str| {
            is_precondition_met(&get(conditions), &stored_header(200, fields))
        };
        let since = |time: &str| format!("If-Unmodified-Since: Sat, 21 Nov 2026 {time} GMT\r\n");
        assert!(is_met(MODIFIED, &since("09:00:00")) && !is_met(MODIFIED, &since("08:59:59")));
        assert!(is_met("", &since("08:00:00")) && is_met(MODIFIED, ""));
        assert!(is_met(MODIFIED, "If-Unmodified-Since: yesterday\r\n"));
        let both = format!("{}If-Match: *\r\n", since("08:00:00"));
        assert!(is_met(MODIFIED, &both), "If-Match goes first");
    }

    #[test]
    fn if_modified_since_compares_times_rfc_9110_section_13_1_3() {
        let since =
            |fields: &str, date: &str| is_304(fields, &format!("If-Modified-Since: {date}\r\n"));
        assert!(since(MODIFIED, "Sat, 21 Nov 2026 09:00:00 GMT"));
        assert!(since(MODIFIED, "Saturday, 21-Nov-26 09:00:00 GMT"));
        assert!(since(MODIFIED, "Sat, 21 Nov 2026 09:30:00 GMT"));
        assert!(!since(MODIFIED, "Sat, 21 Nov 2026 08:59:59 GMT"));
        assert!(!since(MODIFIED, "yesterday"));
        let twice =
            "Sat, 21 Nov 2026 09:00:00 GMT\r\nIf-Modified-Since: Sat, 21 Nov 2026 09:00:00 GMT";
        assert!(!since(MODIFIED, twice));
    }

    #[test]
    fn without_a_modification_time_the_date_counts_rfc_9111_section_4_3_2() {
        let since = |date: &str| is_304("", &format!("If-Modified-Since: {date}\r\n"));
        assert!(since("Sat, 21 Nov 2026 10:16:00 GMT"));
        assert!(!since("Sat, 21 Nov 2026 10:15:59 GMT"));
    }

    #[test]
    fn errors_have_no_conditions_rfc_9110_section_13_2_1() {
        let stored = stored_header(404, TAG);
        let request = get("If-None-Match: *\r\n");
        assert!(!is_not_modified(&request, &stored));
    }

    #[test]
    fn a_304_has_no_metadata_of_the_body_rfc_9110_section_15_4_5() {
        let stored = stored_header(
            200,
            &format!(
                "{TAG}{MODIFIED}Vary: Foo\r\nContent-Type: text/plain\r\nContent-Encoding: gzip\r\n\
             Content-Location: /a\r\nContent-MD5: x\r\nContent-Security-Policy: x\r\nTest: 1\r\n"
            ),
        );
        let mut head = Vec::new();
        write_not_modified(&mut Http1Header::new(&mut head), &stored, |_| true);
        let expected = format!(
            "HTTP/1.1 304 Not Modified\r\n{DATE}Cache-Control: max-age=60\r\n{TAG}Vary: Foo\r\n\
             Content-Location: /a\r\nContent-Security-Policy: x\r\nTest: 1\r\n"
        );
        assert_eq!(String::from_utf8(head).unwrap(), expected);
        let mut list = FieldList::default();
        write_not_modified(&mut list, &stored, |_| true);
        let names: Vec<_> = list.fields().iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names[..3], [":status", "date", "cache-control"]);
        assert_eq!(names[3..6], ["etag", "vary", "content-location"]);
        let stored = stored_header(200, MODIFIED);
        let mut head = Vec::new();
        write_not_modified(&mut Http1Header::new(&mut head), &stored, |_| true);
        assert!(String::from_utf8(head).unwrap().contains("Last-Modified"));
    }
}

//! Validating a stored response with the origin (RFC 9111 section 4.3).

use millrace_http1::{FieldName, HeaderWriter, RequestHead};

use super::cached_header::CachedHeader;

/// Writes the conditional fields that validate a stored response. Returns whether there are any.
/// `If-None-Match` and `If-Modified-Since` of the client must then not be forwarded, because its
/// response is made from the stored one.
///
/// RFC 9111 section 4.3.1: both the entity tag and the time of modification are sent, since some
/// origins use only the latter. A stored range is validated only if the request has a `Range` that
/// the stored range satisfies, which the caller checks. Other requests need the complete
/// representation. `Range` and `If-Range` of the request are forwarded with these fields. RFC 9110
/// section 13.2.2: the origin evaluates these conditions first, and if its representation changed,
/// it sends the range of the new one.
///
/// Section 4.3.4: a 304 response confirms this stored response, whatever fields it has, because the
/// origin compared the validators that were sent. An entity tag in the 304 does not contradict
/// that, and is not stored ([`freshen`](super::freshen())).
pub fn write_validation(
    out: &mut impl HeaderWriter,
    request: &RequestHead,
    stored: &CachedHeader,
) -> bool {
    if stored.meta.stored_range.is_some() && request.find(FieldName::Range).is_none() {
        return false;
    }
    let (tag, date) = (stored.etag_bytes(), stored.last_modified());
    if let Some(tag) = tag {
        out.field(b"If-None-Match", tag);
    }
    if let Some(date) = date {
        out.field(b"If-Modified-Since", date);
    }
    tag.is_some() || date.is_some()
}

#[cfg(test)]
mod tests {
    use millrace_http1::Http1Header;

    use super::super::policy::CachePolicy;
    use super::super::test_messages::{get, response, store_by, stored_response};
    use super::*;

    const MODIFIED: &str = "Last-Modified: Thursday, 01-Jan-26 00:00:00 GMT\r\n";

    fn validation(fields: &str) -> (String, bool) {
        let stored = stored_response(&format!("Cache-Control: max-age=60\r\n{fields}"));
        let mut out = Vec::new();
        let has_conditions = write_validation(&mut Http1Header::new(&mut out), &get(""), &stored);
        (String::from_utf8(out).unwrap(), has_conditions)
    }

    #[test]
    fn validators_are_sent_as_received_section_4_3_1() {
        let tag = validation("ETag: W/\"a\"\r\n");
        assert_eq!(tag, ("If-None-Match: W/\"a\"\r\n".to_owned(), true));
        let date = validation(MODIFIED).0;
        assert_eq!(date, "If-Modified-Since: Thursday, 01-Jan-26 00:00:00 GMT\r\n");
        let both = validation(&format!("{MODIFIED}ETag: \"a\"\r\n")).0;
        assert!(both.starts_with("If-None-Match: \"a\"\r\nIf-Modified-Since: Thu"), "{both}");
        assert_eq!(validation("Last-Modified: x\r\n"), (String::new(), false));
    }

    #[test]
    fn a_part_is_validated_for_a_range_section_4_3_1() {
        let range = get("Range: bytes=0-4\r\n");
        for (field, expected) in [
            ("ETag: W/\"a\"", "If-None-Match: W/\"a\"\r\n"),
            ("ETag: \"a\"", "If-None-Match: \"a\"\r\n"),
            (MODIFIED.trim_end(), "If-Modified-Since: Thursday, 01-Jan-26 00:00:00 GMT\r\n"),
        ] {
            let fields =
                format!("Cache-Control: no-cache\r\nContent-Range: bytes 0-4/9\r\n{field}\r\n");
            let part = store_by(&CachePolicy::default(), &range, &response(206, &fields)).unwrap();
            let mut out = Vec::new();
            assert!(write_validation(&mut Http1Header::new(&mut out), &range, &part));
            assert_eq!(String::from_utf8(out).unwrap(), expected);
            let mut out = Vec::new();
            assert!(!write_validation(&mut Http1Header::new(&mut out), &get(""), &part));
            assert!(out.is_empty());
        }
    }
}

//! Responses that this server makes itself, in the form of stored ones.

use millrace_http1::{FieldName, HeaderWriter, Http1Header, split_tokens};

use super::cached_header::CachedHeader;
use super::date::format_date;
use super::etag::Etag;
use super::meta::{EtagSpan, Flags, Meta};
use super::vary::VaryNames;

/// A successful response (200) that this server makes itself, such as that for a file. Conditions
/// and ranges are then evaluated as for a stored response.
#[derive(Clone, Copy, Debug)]
pub struct OwnResponse<'a> {
    /// The end-to-end fields in order, without the five below and without the framing. Names and
    /// values are valid.
    pub fields: &'a [(&'a str, &'a [u8])],
    /// The entity tag with its quotes.
    pub etag: Option<&'a [u8]>,
    /// Time of modification, seconds since 1970.
    pub last_modified_s: Option<u64>,
    /// The value of `Vary`: distinct names in alphabetical order, separated by commas; empty for
    /// none.
    pub vary: &'a [u8],
    /// The current time, milliseconds since 1970.
    pub now_ms: u64,
    /// Freshness lifetime in seconds.
    pub lifetime_s: u32,
}

impl OwnResponse<'_> {
    /// Returns the header. It has no `Date`: an origin server writes the time at which it sends
    /// the response (RFC 9110 section 6.6.1). `Last-Modified` is never later than now (section
    /// 8.8.2.1).
    ///
    /// # Panics
    /// Panics if a value has a line end, which would begin another field.
    pub fn header(&self) -> CachedHeader {
        let now_s = self.now_ms / 1000;
        let last_modified_s = self.last_modified_s.map(|second| second.min(now_s));
        let mut head = Vec::with_capacity(256);
        Http1Header::new(&mut head).response(200, b"OK");
        let lines_at = head.len() as u32;
        let etag = self.write_lines(&mut Http1Header::new(&mut head), last_modified_s);
        let vary = VaryNames::from_bytes(&self.vary.to_ascii_lowercase());
        // RFC 9110 section 8.8.2.2: the representation cannot have changed twice in that second.
        let is_strong = last_modified_s.is_some_and(|modified_s| now_s >= modified_s + 60);
        let meta = Meta {
            response_ms: self.now_ms,
            date_s: now_s,
            last_modified_s,
            lifetime_s: self.lifetime_s,
            initial_age_s: 0,
            stale_while_revalidate_s: 0,
            stale_if_error_s: 0,
            etag,
            status: 200,
            flags: Flags::default()
                .set_if(Flags::MODIFIED_IS_STRONG, is_strong)
                .set_if(Flags::VARIES, vary.is_some())
                .set_if(Flags::IS_OWN, true),
            lines_at,
            stored_range: None,
            range_tag: 0,
        };
        CachedHeader { meta, head, vary }
    }

    fn write_lines(
        &self,
        out: &mut Http1Header<'_>,
        last_modified_s: Option<u64>,
    ) -> Option<EtagSpan> {
        for (name, value) in self.fields {
            debug_assert!(!is_written_here(name), "{name}");
            assert!(!value.iter().any(|byte| b"\r\n\0".contains(byte)), "{name}");
            out.field(name.as_bytes(), value);
        }
        if let Some(second) = last_modified_s {
            out.field(b"Last-Modified", format_date(second).as_bytes());
        }
        if split_tokens(self.vary).next().is_some() {
            out.field(b"Vary", self.vary);
        }
        let etag = self.etag?;
        let start = out.field_with(b"ETag", |head| {
            let start = head.len() as u32;
            head.extend_from_slice(etag);
            start
        });
        let is_strong = Etag::parse(etag).is_strong();
        Some(EtagSpan { start, len: etag.len() as u32, is_strong })
    }
}

/// Returns whether a field is written by [`OwnResponse::header`] or with the framing.
fn is_written_here(name: &str) -> bool {
    matches!(
        FieldName::from_bytes(name.as_bytes()),
        FieldName::Etag
            | FieldName::LastModified
            | FieldName::Vary
            | FieldName::Date
            | FieldName::Age
            | FieldName::ContentLength
            | FieldName::TransferEncoding
    )
}

#[cfg(test)]
mod tests {
    use super::super::conditions::is_not_modified;
    use super::super::field_lines::reparse_lines;
    use super::super::test_messages::{NOW_MS, NOW_S, get};
    use super::*;

    fn own(last_modified_s: u64, etag: &str) -> CachedHeader {
        OwnResponse {
            fields: &[("Content-Type", b"text/plain"), ("Cache-Control", b"max-age=9")],
            etag: Some(etag.as_bytes()),
            last_modified_s: Some(last_modified_s),
            vary: b"Accept-Encoding",
            now_ms: NOW_MS,
            lifetime_s: 0,
        }
        .header()
    }

    #[test]
    fn the_header_is_that_of_a_stored_response() {
        let header = own(784_111_777, "\"a-1\"");
        let text = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nCache-Control: max-age=9\r\n\
                    Last-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nVary: Accept-Encoding\r\n\
                    ETag: \"a-1\"\r\n";
        assert_eq!(String::from_utf8(header.head.clone()).unwrap(), text);
        assert_eq!(reparse_lines(&header.head).status(), 200);
        assert_eq!(header.etag_bytes(), Some(&b"\"a-1\""[..]));
        assert_eq!(header.vary.as_ref().unwrap().as_bytes(), b"accept-encoding");
        assert!(header.meta.has_strong_validator() && header.meta.flags.contains(Flags::VARIES));
        assert_eq!(header.lines().count(), 5);
        assert!(is_not_modified(&get("If-None-Match: \"a-1\"\r\n"), &header));
        let since = "If-Modified-Since: Sun, 06 Nov 1994 08:49:37 GMT\r\n";
        assert!(is_not_modified(&get(since), &header));
        assert!(!is_not_modified(&get(&since.replace("37 GMT", "36 GMT")), &header));
    }

    #[test]
    fn a_recent_date_is_weak_and_a_future_one_is_now_rfc_9110_section_8_8_2() {
        let strong = |second| own(second, "W/\"a\"").meta.flags.contains(Flags::MODIFIED_IS_STRONG);
        assert!(strong(NOW_S - 60) && !strong(NOW_S - 59));
        assert!(!own(NOW_S, "W/\"a\"").meta.has_strong_validator());
        assert_eq!(own(u64::MAX, "\"a\"").meta.last_modified_s, Some(NOW_S));
    }

    #[test]
    fn a_header_may_have_no_validator() {
        let own = OwnResponse {
            fields: &[],
            etag: None,
            last_modified_s: None,
            vary: b"",
            now_ms: u64::MAX,
            lifetime_s: 1,
        };
        let header = own.header();
        assert_eq!((&header.head[..], &header.vary), (&b"HTTP/1.1 200 OK\r\n"[..], &None));
        assert!(!header.meta.has_validator());
        let late = OwnResponse { last_modified_s: Some(u64::MAX), ..own }.header();
        assert!(late.head.ends_with(b"9999 23:59:59 GMT\r\n"));
    }

    #[test]
    fn without_a_modification_time_if_modified_since_is_ignored_rfc_9110_section_13_1_3() {
        let (etag, last_modified_s) = (None, None);
        let own = OwnResponse {
            fields: &[],
            etag,
            last_modified_s,
            vary: b"",
            now_ms: NOW_MS,
            lifetime_s: 0,
        };
        let request = get("If-Modified-Since: Fri, 31 Dec 9999 23:59:59 GMT\r\n");
        assert!(!is_not_modified(&request, &own.header()));
        let dated = OwnResponse { last_modified_s: Some(NOW_S), ..own };
        assert!(is_not_modified(&request, &dated.header()));
    }

    #[test]
    #[should_panic = "X"]
    fn a_value_with_a_line_end_is_our_bug() {
        let fields: &[(&str, &[u8])] = &[("X", b"a\r\nSet-Cookie: b")];
        let own = OwnResponse {
            fields,
            etag: None,
            last_modified_s: None,
            vary: b"",
            now_ms: 0,
            lifetime_s: 0,
        };
        own.header();
    }
}

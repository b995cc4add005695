//! The field lines of a stored header: end-to-end fields in canonical form, ready to be sent. The
//! empty line, `Content-Length` and `Age` are not stored; they are written with each response,
//! together with `Cache-Status` and `Via`.

use memchr::{memchr, memmem};
use millrace_http1::{
    FieldName, HeadLimits, HeadScan, HeaderWriter, Http1Header, ResponseHead, forwarded_fields,
};

use super::date::format_date;
use super::directives::ResponseDirectives;
use super::etag::Etag;
use super::meta::EtagSpan;
use super::received::ReceivedResponse;

/// A field line of a stored header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredFieldLine<'a> {
    /// The line with its line end.
    pub bytes: &'a [u8],
    /// The name as received.
    pub name: &'a [u8],
    /// The value as received, without surrounding white space.
    pub value: &'a [u8],
    /// The name as a [`FieldName`].
    pub known: FieldName,
}

/// Splits the field lines of a stored header, which begin at
/// [`Meta::lines_at`](super::Meta::lines_at).
pub fn field_lines(lines: &[u8]) -> impl Iterator<Item = StoredFieldLine<'_>> {
    let mut rest = lines;
    std::iter::from_fn(move || {
        let end = memmem::find(rest, b"\r\n")? + 2;
        let (bytes, after) = rest.split_at(end);
        rest = after;
        let colon = memchr(b':', bytes)?;
        let name = &bytes[..colon];
        let value = bytes[colon + 1..].trim_ascii();
        Some(StoredFieldLine { bytes, name, value, known: FieldName::from_bytes(name) })
    })
}

/// Writes the fields of a response that are stored. Hop-by-hop fields and those that `Connection`
/// names are left out (RFC 9111 section 3.1). A response without `Date` gets its time of receipt
/// (RFC 9110 section 6.6.1).
///
/// `Age`, `Trailer`, the `Content-Range` of a 206 response and the fields that the directives
/// exclude are left out too. `Age` is written with each use, and the range is stored as
/// [`StoredRange`](super::StoredRange).
///
/// Returns the position of the entity tag; `None` if there is none, or more than one.
pub(super) fn write_lines(
    out: &mut Http1Header<'_>,
    received: &ReceivedResponse<'_>,
    directives: &ResponseDirectives,
) -> Option<EtagSpan> {
    let response = received.response;
    let (mut etag, mut etags) = (None, 0);
    for field in forwarded_fields(response) {
        let name = response.name_of(field);
        let is_stored = match field.known {
            FieldName::Age | FieldName::Trailer => false,
            FieldName::ContentRange => response.status() != 206,
            _ => !directives.omits(name),
        };
        if !is_stored {
            continue;
        }
        let value = response.value_of(field);
        let start = out.field_with(name, |stored| {
            let start = stored.len() as u32;
            stored.extend_from_slice(value);
            start
        });
        if field.known == FieldName::Etag && !value.is_empty() {
            let is_strong = Etag::parse(value).is_strong();
            etag = Some(EtagSpan { start, len: value.len() as u32, is_strong });
            etags += 1;
        }
    }
    if response.find(FieldName::Date).is_none() {
        out.field(b"Date", format_date(received.time_s()).as_bytes());
    }
    etag.filter(|_| etags == 1)
}

/// Parses a stored header, or one made from stored lines, without the empty line.
pub(super) fn reparse_lines(lines: &[u8]) -> ResponseHead {
    let bytes = [lines, b"\r\n"].concat();
    let limits =
        HeadLimits { bytes_max: bytes.len(), fields_max: bytes.len(), target_bytes_max: 0 };
    let mut head = ResponseHead::default();
    let used = head.parse(&bytes, &mut HeadScan::default(), &limits);
    assert_eq!(used, Ok(Some(bytes.len())), "stored lines are valid");
    head
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{DATE, stored_response};

    fn head(fields: &str) -> String {
        String::from_utf8(
            stored_response(&format!("{DATE}Cache-Control: max-age=9\r\n{fields}")).head,
        )
        .unwrap()
    }

    #[test]
    fn end_to_end_fields_are_stored_section_3_1() {
        let fields = "Test: 1\r\nContent-Type: text/plain\r\nLink: a=b\r\n\
                      Content-Range: x\r\nContent-MD5:x\r\nETag:  \"a\" \r\n\
                      Link: c=d\r\nEmpty:\r\n";
        let expected = format!(
            "HTTP/1.1 200 Reason\r\n{DATE}Cache-Control: max-age=9\r\nTest: 1\r\n\
             Content-Type: text/plain\r\nLink: a=b\r\nContent-Range: x\r\nContent-MD5: x\r\n\
             ETag: \"a\"\r\nLink: c=d\r\nEmpty: \r\n"
        );
        assert_eq!(head(fields), expected);
    }

    #[test]
    fn hop_by_hop_fields_are_not_stored_section_3_1() {
        let fields = "Connection: a, B\r\nA: 1\r\nb: 2\r\nC: 3\r\nKeep-Alive: x\r\n\
                      Proxy-Authenticate: x\r\nProxy-Authentication-Info: x\r\nTE: x\r\n\
                      Proxy-Authorization: x\r\nProxy-Connection: x\r\nUpgrade: x\r\nAge: 0\r\n\
                      Transfer-Encoding: chunked\r\nTrailer: x\r\n";
        let expected = format!("HTTP/1.1 200 Reason\r\n{DATE}Cache-Control: max-age=9\r\nC: 3\r\n");
        assert_eq!(head(fields), expected);
    }

    #[test]
    fn fields_that_directives_name_are_not_stored_section_5_2_2_4() {
        let stored = head(
            "Cache-Control: no-cache=\"a, b\", private=\"set-cookie\"\r\nA: 1\r\n\
                           b: 2\r\nC: 3\r\nSet-Cookie: x\r\n",
        );
        assert!(stored.ends_with("\r\nC: 3\r\n"), "{stored}");
        assert!(!stored.contains("\r\nA:") && !stored.contains("\r\nb:"), "{stored}");
    }

    #[test]
    fn a_head_without_date_gets_one_rfc_9110_section_6_6_1() {
        let stored = stored_response("Cache-Control: max-age=9\r\n");
        assert!(String::from_utf8(stored.head).unwrap().ends_with(&format!("\r\n{DATE}")));
    }

    #[test]
    fn the_entity_tag_is_located() {
        let stored = stored_response("Cache-Control: max-age=9\r\nETag:W/\"a\"\r\nX: y\r\n");
        assert_eq!(stored.etag_bytes(), Some(&b"W/\"a\""[..]));
        assert!(!stored.meta.has_strong_validator());
        let strong = stored_response("ETag: \"a\"\r\n");
        assert_eq!(strong.etag_bytes(), Some(&b"\"a\""[..]));
        assert!(strong.meta.has_strong_validator());
        let two = stored_response("Cache-Control: max-age=9\r\nETag: \"a\"\r\nETag: \"b\"\r\n");
        assert_eq!(two.meta.etag, None);
    }
}

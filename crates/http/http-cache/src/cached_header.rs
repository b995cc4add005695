//! The stored header of a response.

use millrace_http1::{FieldName, HeaderWriter, Http1Header};

use super::etag::Etag;
use super::field_lines::{StoredFieldLine, field_lines};
use super::meta::{EtagSpan, Flags, Meta};
use super::vary::VaryNames;

/// The stored part of a response besides its body.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachedHeader {
    /// The metadata that determines its reuse.
    pub meta: Meta,
    /// The status line and the end-to-end fields, each line with its line end, without the empty
    /// line.
    pub head: Vec<u8>,
    /// The request fields that it depends on.
    pub vary: Option<VaryNames>,
}

impl CachedHeader {
    /// Returns the field lines.
    pub fn lines(&self) -> impl Iterator<Item = StoredFieldLine<'_>> {
        field_lines(&self.head[self.meta.lines_at as usize..])
    }

    /// Returns the entity tag.
    pub fn etag(&self) -> Option<Etag<'_>> {
        self.etag_bytes().map(Etag::parse)
    }

    /// Returns the entity tag as received.
    pub fn etag_bytes(&self) -> Option<&[u8]> {
        let at = self.meta.etag?;
        self.head.get(at.start as usize..)?.get(..at.len as usize)
    }

    /// Returns the header of the same response in a content coding, for bytes that are kept. Its
    /// entity tag gets a dash and a suffix, because the bytes are others (RFC 9110 section
    /// 8.8.3.3). It has no entity tag if there are several, or a malformed one. The response has no
    /// content coding yet.
    #[must_use]
    pub fn in_coding(&self, coding: &str, tag_suffix: &str) -> Self {
        let write_tag = |head: &mut Vec<u8>, tag: &[u8]| {
            let opaque = tag.strip_suffix(b"\"").unwrap_or(tag);
            for part in [opaque, b"-", tag_suffix.as_bytes(), b"\""] {
                head.extend_from_slice(part);
            }
        };
        self.coded(coding, |_| true, write_tag)
    }

    /// Returns the header of the same response in a content coding, for bytes that are coded while
    /// they pass. Its entity tag is weak, because they may be others the next time, and it accepts
    /// no ranges. A malformed tag is left out.
    #[must_use]
    pub fn in_passing_coding(&self, coding: &str) -> Self {
        self.coded(coding, |name| name != FieldName::AcceptRanges, Etag::write_weak)
    }

    /// Returns the header in a coding. `Last-Modified` is no strong validator, because it is that
    /// of all forms.
    fn coded(
        &self,
        coding: &str,
        keeps: impl Fn(FieldName) -> bool,
        write_tag: impl Fn(&mut Vec<u8>, &[u8]),
    ) -> Self {
        let mut head = self.head[..self.meta.lines_at as usize].to_vec();
        let mut etag = None;
        for line in self.lines() {
            if line.known != FieldName::Etag {
                if keeps(line.known) {
                    head.extend_from_slice(line.bytes);
                }
            } else if self.meta.etag.is_some() && !Etag::parse(line.value).is_malformed() {
                head.extend_from_slice(b"ETag: ");
                let start = head.len();
                write_tag(&mut head, line.value);
                let is_strong = Etag::parse(&head[start..]).is_strong();
                let (start, len) = (start as u32, (head.len() - start) as u32);
                etag = Some(EtagSpan { start, len, is_strong });
                head.extend_from_slice(b"\r\n");
            }
        }
        Http1Header::new(&mut head).field(b"Content-Encoding", coding.as_bytes());
        let flags = self.meta.flags.without(Flags::MODIFIED_IS_STRONG);
        Self { meta: Meta { etag, flags, ..self.meta }, head, vary: self.vary.clone() }
    }

    /// Returns the header with these fields before its own ones, some of which they replace.
    #[must_use]
    pub fn with_fields(
        &self,
        fields: &[(FieldName, &[u8], &[u8])],
        replaced: impl Fn(FieldName) -> bool,
    ) -> Self {
        let mut head = self.head[..self.meta.lines_at as usize].to_vec();
        for (_, name, value) in fields {
            Http1Header::new(&mut head).field(name, value);
        }
        let mut etag = None;
        for line in self.lines() {
            if replaced(line.known) && fields.iter().any(|(known, ..)| *known == line.known) {
                continue;
            }
            if line.known == FieldName::Etag
                && let Some(span) = self.meta.etag
            {
                // The value ends before the line end.
                let start = head.len() + line.bytes.len() - 2 - line.value.len();
                etag = Some(EtagSpan { start: start as u32, ..span });
            }
            head.extend_from_slice(line.bytes);
        }
        Self { meta: Meta { etag, ..self.meta }, head, vary: self.vary.clone() }
    }

    /// Returns the value of `Last-Modified` as received.
    pub(super) fn last_modified(&self) -> Option<&[u8]> {
        self.meta.last_modified_s?;
        self.lines().find(|line| line.known == FieldName::LastModified).map(|line| line.value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::own_response::OwnResponse;
    use super::super::test_messages::NOW_MS;
    use super::*;

    fn header(etag: Option<&[u8]>) -> CachedHeader {
        OwnResponse {
            fields: &[("Content-Type", b"text/plain")],
            etag,
            last_modified_s: Some(1_000_000),
            vary: b"",
            now_ms: NOW_MS,
            lifetime_s: 0,
        }
        .header()
    }

    #[test]
    fn a_coded_response_has_a_tag_of_its_own() {
        for (etag, expected) in [("\"a\"", "\"a-br\""), ("W/\"a\"", "W/\"a-br\"")] {
            let plain = header(Some(etag.as_bytes()));
            let coded = plain.in_coding("br", "br");
            assert_eq!(coded.etag_bytes(), Some(expected.as_bytes()));
            assert_eq!(coded.etag().unwrap().is_strong(), plain.etag().unwrap().is_strong());
            let text = String::from_utf8(coded.head.clone()).unwrap();
            assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n"), "{text}");
            assert!(text.ends_with("\r\nContent-Encoding: br\r\n"), "{text}");
        }
        let passing = header(Some(b"\"a\"")).in_passing_coding("gzip");
        assert_eq!(passing.etag_bytes(), Some(&b"W/\"a\""[..]));
        assert!(!passing.etag().unwrap().is_strong());
        let (plain, coded) = (header(None), header(None).in_coding("gzip", "gzip"));
        assert!(plain.meta.flags.contains(Flags::MODIFIED_IS_STRONG));
        assert!(!coded.meta.flags.contains(Flags::MODIFIED_IS_STRONG));
        assert_eq!(coded.etag_bytes(), None);
    }

    #[test]
    fn a_coded_response_has_no_malformed_tag() {
        for etag in ["abc", "W/abc", "\"abc", "abc\"", "\"a\"b\""] {
            let plain = header(Some(etag.as_bytes()));
            for coded in [plain.in_coding("br", "br"), plain.in_passing_coding("br")] {
                assert_eq!(coded.etag_bytes(), None, "{etag}");
                assert!(coded.lines().all(|line| line.known != FieldName::Etag), "{etag}");
            }
        }
    }
}

//! Asking the origin whether a stored answer still holds, RFC 9111 section 4.3.

use millrace_http1::HeaderWriter;

use super::stored::Stored;

/// Writes the fields that make a request ask whether a stored answer still holds; gives whether
/// there are any. The client's own conditions must not go with them: its answer is made from what
/// is stored then.
///
/// RFC 9111 section 4.3.1: the entity tag, and the time of modification for origins that know
/// nothing else. What is a part is not asked about: the whole is what is wanted.
///
/// Section 4.3.4: a 304 to these fields is about this answer, whatever the 304 has: the origin has
/// compared what was sent, and a tag of its own in the 304 does not unsay it (such a tag is not
/// taken over, [`freshen`](super::freshen())).
pub fn write_validation(out: &mut impl HeaderWriter, stored: &Stored) -> bool {
    if stored.meta.extent.is_some() {
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

    use super::super::samples::kept;
    use super::*;

    const MODIFIED: &str = "Last-Modified: Thursday, 01-Jan-26 00:00:00 GMT\r\n";

    fn asked(fields: &str) -> (String, bool) {
        let stored = kept(&format!("Cache-Control: max-age=60\r\n{fields}"));
        let mut out = Vec::new();
        let is_asked = write_validation(&mut Http1Header::new(&mut out), &stored);
        (String::from_utf8(out).unwrap(), is_asked)
    }

    #[test]
    fn validators_are_sent_as_they_came_section_4_3_1() {
        let tag = asked("ETag: W/\"a\"\r\n");
        assert_eq!(tag, ("If-None-Match: W/\"a\"\r\n".to_owned(), true));
        let date = asked(MODIFIED).0;
        assert_eq!(date, "If-Modified-Since: Thursday, 01-Jan-26 00:00:00 GMT\r\n");
        let both = asked(&format!("{MODIFIED}ETag: \"a\"\r\n")).0;
        assert!(both.starts_with("If-None-Match: \"a\"\r\nIf-Modified-Since: Thu"), "{both}");
        assert_eq!(asked("Last-Modified: x\r\n"), (String::new(), false));
    }
}

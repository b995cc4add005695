//! Asking the origin whether stored answers still hold, RFC 9111 section 4.3.

use millrace_http1::{AnswerHead, HeaderWriter, Name};

use super::date::http_date;
use super::etag::Etag;
use super::meta::Meta;
use super::stored_head::lines;

/// A stored answer as it lies in the cache.
#[derive(Clone, Copy, Debug)]
pub struct StoredView<'a> {
    /// Its numbers.
    pub meta: &'a Meta,
    /// The head that they were made with.
    pub head: &'a [u8],
}

impl<'a> StoredView<'a> {
    /// The value of its `Last-Modified` as it was received.
    fn last_modified(&self) -> Option<&'a [u8]> {
        self.meta.last_modified_s?;
        let mut lines = lines(&self.head[self.meta.lines_at as usize..]);
        lines.find(|line| line.known == Name::LastModified).map(|line| line.value)
    }
}

/// Writes the fields that make a request ask whether these stored answers of one key still hold;
/// gives whether there are any. The client's own conditions must not go with them: its answer is
/// made from what is stored then.
///
/// RFC 9111 section 4.3.1: all entity tags, so that the origin may choose one; and the time of
/// modification where there is one answer only, for origins that know nothing else. What is a part
/// is not asked about: the whole is what is wanted.
pub fn write_validation(out: &mut impl HeaderWriter, kept: &[StoredView<'_>]) -> bool {
    let whole = || kept.iter().filter(|kept| kept.meta.extent.is_none());
    let mut tags = whole().filter_map(|kept| kept.meta.etag_bytes(kept.head));
    let first = tags.next();
    if let Some(first) = first {
        out.field_with(b"If-None-Match", |value| {
            value.extend_from_slice(first);
            for tag in tags {
                value.extend_from_slice(b", ");
                value.extend_from_slice(tag);
            }
        });
    }
    let only = whole().next().filter(|_| whole().count() == 1);
    let date = only.and_then(StoredView::last_modified);
    if let Some(date) = date {
        out.field(b"If-Modified-Since", date);
    }
    first.is_some() || date.is_some()
}

/// Which of the stored answers that [`write_validation`] asked about a 304 says to hold, RFC 9111
/// section 4.3.4; `None`: none, and the origin has to be asked again without conditions.
///
/// By its entity tag, strong or weak, or its time of modification. Where one answer only was asked
/// about, it is that one, whatever the 304 has: the origin has compared what was sent, and a tag of
/// its own in the 304 does not unsay it (such a tag is not taken over,
/// [`freshen`](super::freshen())).
pub fn selected(answer: &AnswerHead, kept: &[StoredView<'_>]) -> Option<usize> {
    if let [only] = kept {
        return (only.meta.has_validator() && only.meta.extent.is_none()).then_some(0);
    }
    let position = |is_meant: &dyn Fn(&StoredView<'_>) -> bool| {
        kept.iter().position(|kept| kept.meta.extent.is_none() && is_meant(kept))
    };
    if let Some(tag) = answer.values(Name::Etag).next().map(Etag::of) {
        let is_meant = |kept: &StoredView<'_>| match kept.meta.etag_in(kept.head) {
            Some(own) if tag.is_strong() => own.matches_strongly(tag),
            Some(own) => own.matches_weakly(tag),
            None => false,
        };
        return position(&is_meant);
    }
    let modified = answer.values(Name::LastModified).next()?;
    position(&|kept| {
        let date_s = http_date(modified, kept.meta.response_ms / 1000);
        date_s.is_some() && date_s == kept.meta.last_modified_s
    })
}

#[cfg(test)]
mod tests {
    use millrace_http1::Http1Header;

    use super::super::samples::{answer, kept};
    use super::super::store::Stored;
    use super::*;

    const MODIFIED: &str = "Last-Modified: Thursday, 01-Jan-26 00:00:00 GMT\r\n";

    fn stored(fields: &str) -> Stored {
        kept(&format!("Cache-Control: max-age=60\r\n{fields}"))
    }

    fn all(stored: &[Stored]) -> Vec<StoredView<'_>> {
        stored.iter().map(|one| StoredView { meta: &one.meta, head: &one.head }).collect()
    }

    fn asked(fields: &[&str]) -> (String, bool) {
        let stored: Vec<_> = fields.iter().map(|fields| stored(fields)).collect();
        let mut out = Vec::new();
        let is_asked = write_validation(&mut Http1Header::new(&mut out), &all(&stored));
        (String::from_utf8(out).unwrap(), is_asked)
    }

    #[test]
    fn validators_are_sent_as_they_came_section_4_3_1() {
        let tag = asked(&["ETag: W/\"a\"\r\n"]);
        assert_eq!(tag, ("If-None-Match: W/\"a\"\r\n".to_owned(), true));
        let date = asked(&[MODIFIED]).0;
        assert_eq!(date, "If-Modified-Since: Thursday, 01-Jan-26 00:00:00 GMT\r\n");
        let both = asked(&[&format!("{MODIFIED}ETag: \"a\"\r\n")]).0;
        assert!(both.starts_with("If-None-Match: \"a\"\r\nIf-Modified-Since: Thu"), "{both}");
        assert_eq!(asked(&["Last-Modified: x\r\n"]), (String::new(), false));
        assert_eq!(asked(&[]), (String::new(), false));
    }

    #[test]
    fn several_answers_are_asked_about_at_once_section_4_3_1() {
        let fields = ["ETag: \"a\"\r\n", MODIFIED, "ETag: W/\"b\"\r\n"];
        assert_eq!(asked(&fields), ("If-None-Match: \"a\", W/\"b\"\r\n".to_owned(), true));
    }

    #[test]
    fn a_304_says_which_one_holds_section_4_3_4() {
        let fields = ["ETag: \"a\"\r\n", "ETag: W/\"b\"\r\n", MODIFIED];
        let stored: Vec<_> = fields.iter().map(|fields| stored(fields)).collect();
        let which = |fields: &str| selected(&answer(304, fields), &all(&stored));
        assert_eq!(which("ETag: \"a\"\r\n"), Some(0));
        assert_eq!(which("ETag: W/\"a\"\r\n"), Some(0));
        assert_eq!(which("ETag: W/\"b\"\r\n"), Some(1));
        assert_eq!(which("ETag: \"b\"\r\n"), None, "a strong one selects strongly");
        assert_eq!(which("ETag: \"c\"\r\n"), None);
        assert_eq!(which("Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n"), Some(2));
        assert_eq!(which(""), None);
    }

    #[test]
    fn the_only_one_that_was_asked_about_is_meant_section_4_3_4() {
        let stored = [stored("ETag: \"a\"\r\n")];
        for fields in ["", "ETag: \"a\"\r\n", "ETag: \"other\"\r\n"] {
            assert_eq!(selected(&answer(304, fields), &all(&stored)), Some(0), "{fields}");
        }
    }
}

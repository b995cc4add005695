//! Entity tags (RFC 9110 section 8.8.3).

use millrace_http1::split_list;

/// An entity tag. A malformed one is compared by its bytes, and never strongly: origins that omit
/// the quotes compare in that way too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Etag<'a> {
    /// The tag with its quotes, without `W/`.
    opaque: &'a [u8],
    is_weak: bool,
}

impl<'a> Etag<'a> {
    /// Parses an entity tag. Malformed tags are accepted.
    pub fn parse(value: &'a [u8]) -> Self {
        let (opaque, is_weak) = match value {
            [b'W', b'/', opaque @ ..] => (opaque, true),
            opaque => (opaque, false),
        };
        Self { opaque, is_weak: is_weak || !is_quoted(opaque) }
    }

    /// Returns whether the tag is malformed.
    pub fn is_malformed(self) -> bool {
        !is_quoted(self.opaque)
    }

    /// Appends an entity tag as a weak one.
    pub fn write_weak(out: &mut Vec<u8>, value: &[u8]) {
        if !value.starts_with(b"W/") {
            out.extend_from_slice(b"W/");
        }
        out.extend_from_slice(value);
    }

    /// Returns whether two representations with this tag are equal byte for byte.
    pub fn is_strong(self) -> bool {
        !self.is_weak
    }

    /// Compares two tags weakly, as for `If-None-Match` (section 8.8.3.2).
    pub fn matches_weakly(self, other: Self) -> bool {
        self.opaque == other.opaque
    }

    /// Compares two tags strongly, as for `If-Range` (section 8.8.3.2).
    pub fn matches_strongly(self, other: Self) -> bool {
        self.is_strong() && other.is_strong() && self.opaque == other.opaque
    }

    /// Returns whether the tag is in the list of an `If-None-Match` field, by weak comparison. `*`
    /// is not handled here.
    pub fn is_in(self, list: &[u8]) -> bool {
        split_list(list).any(|item| self.matches_weakly(Etag::parse(item)))
    }

    /// Like [`Etag::is_in`], for `If-Match` and by strong comparison.
    pub fn is_strongly_in(self, list: &[u8]) -> bool {
        split_list(list).any(|item| self.matches_strongly(Etag::parse(item)))
    }
}

fn is_quoted(opaque: &[u8]) -> bool {
    matches!(opaque, [b'"', inner @ .., b'"'] if !inner.contains(&b'"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_in_two_ways_rfc_9110_section_8_8_3_2() {
        let [weak_1, weak_2, strong_1] = [&b"W/\"1\""[..], b"W/\"2\"", b"\"1\""].map(Etag::parse);
        assert!(!weak_1.is_malformed() && !strong_1.is_malformed());
        assert!(weak_1.matches_weakly(weak_1) && !weak_1.matches_strongly(weak_1));
        assert!(!weak_1.matches_weakly(weak_2) && !weak_1.matches_strongly(weak_2));
        assert!(weak_1.matches_weakly(strong_1) && !weak_1.matches_strongly(strong_1));
        assert!(strong_1.matches_weakly(strong_1) && strong_1.matches_strongly(strong_1));
    }

    #[test]
    fn malformed_tags_are_only_equal_to_themselves() {
        for odd in ["abc", "w/\"abc\"", "\"abc", "abc\"", "\"a\"b\"", "", "\"", "W\"abc\""] {
            let odd = Etag::parse(odd.as_bytes());
            assert!(odd.matches_weakly(odd) && !odd.is_strong() && odd.is_malformed());
            assert!(!odd.matches_weakly(Etag::parse(b"\"abc\"")));
        }
    }

    #[test]
    fn lists_are_searched_rfc_9110_section_13_1_2() {
        let tag = Etag::parse(b"\"a,b\"");
        for list in ["\"a,b\"", "\"x\", W/\"a,b\"", "\"x\",,\"a,b\" , \"y\""] {
            assert!(tag.is_in(list.as_bytes()), "{list}");
        }
        for list in ["", "*", "\"x\"", "a,b", "\"a\", \"b\""] {
            assert!(!tag.is_in(list.as_bytes()), "{list}");
        }
        assert!(Etag::parse("\"abcdef\u{fc}\"".as_bytes()).is_in("\"abcdef\u{fc}\"".as_bytes()));
    }
}

//! Entity tags, RFC 9110 section 8.8.3.

use millrace_http1::split_list;

/// An entity tag as it is written. What is malformed is compared as it stands, and never strongly:
/// origins that leave out the quotes compare like that too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Etag<'a> {
    /// With its quotes, without the `W/`.
    opaque: &'a [u8],
    is_weak: bool,
}

impl<'a> Etag<'a> {
    /// Reads one.
    pub fn parse(value: &'a [u8]) -> Self {
        let (opaque, is_weak) = match value {
            [b'W', b'/', opaque @ ..] => (opaque, true),
            opaque => (opaque, false),
        };
        let is_quoted = matches!(opaque, [b'"', inner @ .., b'"'] if !inner.contains(&b'"'));
        Self { opaque, is_weak: is_weak || !is_quoted }
    }

    /// Whether two representations with it are the same byte for byte.
    pub fn is_strong(self) -> bool {
        !self.is_weak
    }

    /// The comparison of `If-None-Match`, section 8.8.3.2.
    pub fn matches_weakly(self, other: Self) -> bool {
        self.opaque == other.opaque
    }

    /// The comparison of `If-Range`, section 8.8.3.2.
    pub fn matches_strongly(self, other: Self) -> bool {
        self.is_strong() && other.is_strong() && self.opaque == other.opaque
    }

    /// Whether it is in a list as `If-None-Match` has, by the weak comparison. `*` is not looked
    /// for.
    pub fn is_in(self, list: &[u8]) -> bool {
        split_list(list).any(|item| self.matches_weakly(Etag::parse(item)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_compared_in_two_ways_rfc_9110_section_8_8_3_2() {
        let [weak_1, weak_2, strong_1] = [&b"W/\"1\""[..], b"W/\"2\"", b"\"1\""].map(Etag::parse);
        assert!(weak_1.matches_weakly(weak_1) && !weak_1.matches_strongly(weak_1));
        assert!(!weak_1.matches_weakly(weak_2) && !weak_1.matches_strongly(weak_2));
        assert!(weak_1.matches_weakly(strong_1) && !weak_1.matches_strongly(strong_1));
        assert!(strong_1.matches_weakly(strong_1) && strong_1.matches_strongly(strong_1));
    }

    #[test]
    fn malformed_tags_are_only_equal_to_themselves() {
        for odd in ["abc", "w/\"abc\"", "\"abc", "abc\"", "\"a\"b\"", "", "\"", "W\"abc\""] {
            let odd = Etag::parse(odd.as_bytes());
            assert!(odd.matches_weakly(odd) && !odd.is_strong());
            assert!(!odd.matches_weakly(Etag::parse(b"\"abc\"")));
        }
    }

    #[test]
    fn lists_are_looked_through_rfc_9110_section_13_1_2() {
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

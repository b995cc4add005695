//! Patterns of file names.

/// A pattern for one name: `*` stands for any bytes, `?` for one byte, everything else for itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NamePattern(Box<[u8]>);

impl NamePattern {
    /// Creates a pattern. A pattern with `/` matches no name.
    pub fn new(pattern: &[u8]) -> Self {
        Self(pattern.into())
    }

    /// Returns the pattern, as it was given.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether a name matches. Takes at most the product of both lengths in steps.
    pub fn matches(&self, name: &[u8]) -> bool {
        self.matches_by(name, |pattern, byte| pattern == byte)
    }

    /// Like [`NamePattern::matches`], ignoring ASCII case.
    pub(super) fn matches_in_any_case(&self, name: &[u8]) -> bool {
        self.matches_by(name, |pattern, byte| pattern.eq_ignore_ascii_case(&byte))
    }

    fn matches_by(&self, name: &[u8], is_same: impl Fn(u8, u8) -> bool) -> bool {
        let (mut at, mut in_name) = (0, 0);
        // The last `*`, and the place in the name at which the bytes that it stands for end.
        let mut star: Option<(usize, usize)> = None;
        while let Some(&byte) = name.get(in_name) {
            match (self.0.get(at), star) {
                (Some(b'*'), _) => {
                    star = Some((at, in_name));
                    at += 1;
                }
                (Some(&expected), _) if expected == b'?' || is_same(expected, byte) => {
                    (at, in_name) = (at + 1, in_name + 1);
                }
                (_, Some((star_at, end))) => {
                    star = Some((star_at, end + 1));
                    (at, in_name) = (star_at + 1, end + 1);
                }
                (_, None) => return false,
            }
        }
        self.0[at..].iter().all(|&byte| byte == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_matches_a_whole_name() {
        for (pattern, names, others) in [
            ("a", &["a"][..], &["", "b", "aa"][..]),
            ("", &[""], &["a"]),
            ("*", &["", "a", ".b"], &[]),
            ("*.bak", &[".bak", "a.bak", "a.bak.bak"], &["a.bak1", "bak"]),
            ("a*b*c", &["abc", "aXbYc", "abbcbc"], &["ab", "abcd", "acb"]),
            ("?b", &["ab", "bb"], &["b", "abb"]),
            ("*?", &["a", "ab"], &[""]),
            ("a**", &["a", "abc"], &["b"]),
        ] {
            let pattern = NamePattern::new(pattern.as_bytes());
            for name in names {
                assert!(pattern.matches(name.as_bytes()), "{pattern:?} {name}");
            }
            for name in others {
                assert!(!pattern.matches(name.as_bytes()), "{pattern:?} {name}");
            }
        }
        assert!(NamePattern::new(b".PhP*").matches_in_any_case(b".pHp5"));
        assert!(!NamePattern::new(b"A").matches(b"a"));
    }

    #[test]
    fn a_long_name_takes_no_exponential_time() {
        let pattern = NamePattern::new(&b"*a".repeat(100));
        assert!(!pattern.matches(&[&b"a".repeat(255)[..], b"b"].concat()));
    }
}

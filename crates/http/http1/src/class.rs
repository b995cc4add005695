//! What each byte may be part of, as one table.

/// A set of byte classes, one bit each.
#[derive(Clone, Copy)]
pub(crate) struct Class(u8);

/// RFC 9110 section 5.6.2: methods, field names, list members.
pub(crate) const TOKEN: Class = Class(1);
/// RFC 9110 section 5.5: field values and reason phrases. Bytes above 127 are opaque data.
pub(crate) const VALUE: Class = Class(2);
/// A request target before its first `?`; see [`crate::target`] for the choice.
pub(crate) const PATH: Class = Class(4);
/// A request target after its first `?`.
pub(crate) const QUERY: Class = Class(8);
/// A host that is a name.
pub(crate) const HOST: Class = Class(16);
/// The bytes of a token that servers with CGI variables keep in names (letters and digits), and
/// `-`.
pub(crate) const PLAIN: Class = Class(32);

static CLASSES: [u8; 256] = classes();

impl Class {
    /// Whether the byte is in the class.
    #[inline]
    pub(crate) fn has(self, byte: u8) -> bool {
        CLASSES[byte as usize] & self.0 != 0
    }

    /// How many bytes there are before the first that is not.
    #[inline]
    pub(crate) fn span(self, bytes: &[u8]) -> usize {
        let has_eight = |eight: &&[u8; 8]| {
            let common = eight.iter().fold(u8::MAX, |all, &byte| all & CLASSES[byte as usize]);
            common & self.0 != 0
        };
        let at = bytes.as_chunks().0.iter().take_while(has_eight).count() * 8;
        at + bytes[at..].iter().take_while(|&&byte| self.has(byte)).count()
    }

    /// Whether all bytes are.
    #[inline]
    pub(crate) fn has_all(self, bytes: &[u8]) -> bool {
        self.span(bytes) == bytes.len()
    }
}

/// Whether the bytes are a token: at least one, all in [`TOKEN`].
#[inline(always)]
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && TOKEN.has_all(bytes)
}

/// The bytes without leading and trailing spaces and tabs, the only ones that RFC 9110
/// section 5.6.3 calls white space. Others, and bytes above 127, stay.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

const fn classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte: u8 = b'!';
    while byte <= b'~' {
        let alphanumeric = byte.is_ascii_alphanumeric();
        let mut class = VALUE.0;
        if alphanumeric || in_set(byte, b"!#$%&'*+-.^_`|~") {
            class |= TOKEN.0;
        }
        // RFC 3986 characters without `#` and `?`, and what browsers send raw.
        if alphanumeric || in_set(byte, b"-._~:/@!$&'()*+,;=%[]{}|^`") {
            class |= PATH.0 | QUERY.0;
        }
        if in_set(byte, b"?\\") {
            class |= QUERY.0;
        }
        if alphanumeric || in_set(byte, b"-._") {
            class |= HOST.0;
        }
        if alphanumeric || byte == b'-' {
            class |= PLAIN.0;
        }
        table[byte as usize] = class;
        byte += 1;
    }
    table[b' ' as usize] = VALUE.0;
    table[b'\t' as usize] = VALUE.0;
    let mut high = 128;
    while high < 256 {
        table[high] = VALUE.0;
        high += 1;
    }
    table
}

const fn in_set(byte: u8, set: &[u8]) -> bool {
    let mut at = 0;
    while at < set.len() {
        if set[at] == byte {
            return true;
        }
        at += 1;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_class_holds_what_its_grammar_says() {
        let count = |class: Class| (0..=255).filter(|&byte| class.has(byte)).count();
        assert_eq!(count(TOKEN), 62 + 15);
        assert_eq!(count(VALUE), 95 + 1 + 128);
        assert_eq!(count(HOST), 62 + 3);
        for byte in [b'\r', b'\n', 0, 0x7f, 0x0b] {
            assert!(!VALUE.has(byte) && !QUERY.has(byte) && !TOKEN.has(byte));
        }
        assert!(!PATH.has(b'?') && !PATH.has(b'\\') && QUERY.has(b'\\') && !QUERY.has(b'#'));
        assert!(!QUERY.has(b'"') && !QUERY.has(b'<') && !QUERY.has(b' ') && !QUERY.has(0x80));
    }

    #[test]
    fn a_span_ends_at_the_first_other_byte() {
        for len in 0..20 {
            let bytes = [&vec![b'a'; len][..], b" a"].concat();
            assert_eq!((TOKEN.span(&bytes), HOST.span(&bytes[..len])), (len, len));
            assert_eq!((VALUE.span(&bytes), VALUE.has_all(&bytes)), (len + 2, true));
            assert!(!TOKEN.has_all(&bytes));
        }
    }

    #[test]
    fn only_spaces_and_tabs_are_trimmed() {
        assert_eq!(trim(b" \ta b\t "), b"a b");
        assert_eq!(trim(b"\xa0a\x85 "), b"\xa0a\x85");
        assert_eq!(trim(b" \t"), b"");
    }
}

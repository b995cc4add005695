//! Byte classes of the HTTP grammar, in one lookup table.

/// A set of byte classes, one bit each.
#[derive(Clone, Copy)]
pub(crate) struct ByteClass(u8);

/// RFC 9110 section 5.6.2: bytes of a token, such as a method, a field name or a list member.
pub(crate) const TOKEN: ByteClass = ByteClass(1);
/// RFC 9110 section 5.5: bytes of field values and reason phrases. Bytes above 127 are opaque data.
pub(crate) const VALUE: ByteClass = ByteClass(2);
/// Bytes of a request target before its first `?`. The module [`crate::target`] explains which
/// bytes are accepted.
pub(crate) const PATH: ByteClass = ByteClass(4);
/// Bytes of a request target after its first `?`.
pub(crate) const QUERY: ByteClass = ByteClass(8);
/// Bytes of a host name.
pub(crate) const HOST: ByteClass = ByteClass(16);
/// Alphanumeric bytes and `-`. In field names, CGI programs may read every other token byte as `-`.
pub(crate) const ALNUM_OR_HYPHEN: ByteClass = ByteClass(32);

static CLASSES: [u8; 256] = build_classes();

impl ByteClass {
    /// Returns whether the byte is in the class.
    #[inline]
    pub(crate) fn contains(self, byte: u8) -> bool {
        CLASSES[byte as usize] & self.0 != 0
    }

    /// Returns the length of the longest prefix whose bytes are all in the class.
    #[inline]
    pub(crate) fn prefix_len(self, bytes: &[u8]) -> usize {
        let has_eight = |eight: &&[u8; 8]| {
            let common = eight.iter().fold(u8::MAX, |all, &byte| all & CLASSES[byte as usize]);
            common & self.0 != 0
        };
        let at = bytes.as_chunks().0.iter().take_while(has_eight).count() * 8;
        at + bytes[at..].iter().take_while(|&&byte| self.contains(byte)).count()
    }

    /// Returns whether all bytes are in the class.
    #[inline]
    pub(crate) fn contains_all(self, bytes: &[u8]) -> bool {
        self.prefix_len(bytes) == bytes.len()
    }
}

/// Returns whether the bytes are a token: at least one byte, all in [`TOKEN`].
#[inline(always)]
pub(crate) fn is_token(bytes: &[u8]) -> bool {
    !bytes.is_empty() && TOKEN.contains_all(bytes)
}

/// Removes leading and trailing spaces and tabs, the only bytes that RFC 9110 section 5.6.3 defines
/// as white space. Bytes above 127 stay.
pub(crate) fn trim(mut bytes: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = bytes {
        bytes = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = bytes {
        bytes = rest;
    }
    bytes
}

const fn build_classes() -> [u8; 256] {
    let mut table = [0; 256];
    let mut byte: u8 = b'!';
    while byte <= b'~' {
        let alphanumeric = byte.is_ascii_alphanumeric();
        let mut class = VALUE.0;
        if alphanumeric || in_set(byte, b"!#$%&'*+-.^_`|~") {
            class |= TOKEN.0;
        }
        // All characters of RFC 3986 without `#` and `?`, then others that browsers do not encode.
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
            class |= ALNUM_OR_HYPHEN.0;
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
    fn each_class_has_the_bytes_of_its_grammar() {
        let count = |class: ByteClass| (0..=255).filter(|&byte| class.contains(byte)).count();
        assert_eq!(count(TOKEN), 62 + 15);
        assert_eq!(count(VALUE), 95 + 1 + 128);
        assert_eq!(count(HOST), 62 + 3);
        for byte in [b'\r', b'\n', 0, 0x7f, 0x0b] {
            assert!(!VALUE.contains(byte) && !QUERY.contains(byte) && !TOKEN.contains(byte));
        }
        assert!(
            !PATH.contains(b'?')
                && !PATH.contains(b'\\')
                && QUERY.contains(b'\\')
                && !QUERY.contains(b'#')
        );
        assert!(
            !QUERY.contains(b'"')
                && !QUERY.contains(b'<')
                && !QUERY.contains(b' ')
                && !QUERY.contains(0x80)
        );
    }

    #[test]
    fn a_prefix_ends_at_the_first_other_byte() {
        for len in 0..20 {
            let bytes = [&vec![b'a'; len][..], b" a"].concat();
            assert_eq!((TOKEN.prefix_len(&bytes), HOST.prefix_len(&bytes[..len])), (len, len));
            assert_eq!((VALUE.prefix_len(&bytes), VALUE.contains_all(&bytes)), (len + 2, true));
            assert!(!TOKEN.contains_all(&bytes));
        }
    }

    #[test]
    fn only_spaces_and_tabs_are_trimmed() {
        assert_eq!(trim(b" \ta b\t "), b"a b");
        assert_eq!(trim(b"\xa0a\x85 "), b"\xa0a\x85");
        assert_eq!(trim(b" \t"), b"");
    }
}

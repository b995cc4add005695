//! Comma-separated lists in field values, and decimal numbers.

use memchr::memchr3;

use crate::byte_class::trim;

/// Splits a comma-separated list of tokens (RFC 9110 section 5.6.1). Returns its members without
/// surrounding white space, and leaves out empty ones. For fields whose members may contain quoted
/// strings, use [`split_list`].
pub fn split_tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split_members(value).filter(|member| !member.is_empty())
}

/// Splits a comma-separated list of tokens. Returns all members without surrounding white space,
/// empty ones included.
pub(crate) fn split_members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// Splits a comma-separated list whose members may contain quoted strings (RFC 9110 section 5.6.1).
/// Returns its members without surrounding white space, and leaves out empty ones. A comma in a
/// quoted string does not end a member; an unclosed string extends to the end of the value.
pub fn split_list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(value);
    std::iter::from_fn(move || {
        let value = rest?;
        let end = member_end(value);
        rest = value.get(end + 1..);
        Some(trim(&value[..end]))
    })
    .filter(|member| !member.is_empty())
}

/// Returns the offset of the comma that ends the first member, or the length of the value.
fn member_end(value: &[u8]) -> usize {
    let mut is_quoted = false;
    let mut at = 0;
    while let Some(found) = value.get(at..).and_then(|rest| memchr3(b',', b'"', b'\\', rest)) {
        at += found;
        match value[at] {
            b'"' => is_quoted = !is_quoted,
            b'\\' if is_quoted => at += 1,
            b',' if !is_quoted => return at,
            _ => {}
        }
        at += 1;
    }
    value.len()
}

/// Returns whether a list of tokens contains `token`, ignoring ASCII case.
pub fn has_token(value: &[u8], token: &[u8]) -> bool {
    split_tokens(value).any(|member| member.eq_ignore_ascii_case(token))
}

/// Parses plain decimal digits, leading zeros included. Returns `None` for anything else, such as a
/// sign or a space, and on overflow.
pub fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    // 19 digits cannot overflow, and longer numbers are rare.
    let (head, tail) = digits.split_at(digits.len().min(19));
    let value = head.iter().try_fold(0, |value, byte| Some(value * 10 + digit(*byte)?))?;
    tail.iter()
        .try_fold(value, |value: u64, byte| value.checked_mul(10)?.checked_add(digit(*byte)?))
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// The number of further members that a list may have.
pub(crate) struct MemberBound {
    pub(crate) left: usize,
    pub(crate) left_empty: usize,
}

impl MemberBound {
    /// Counts a member. Returns `None` if it exceeds the limit.
    pub(crate) fn count(&mut self, member: &[u8]) -> Option<()> {
        let left = if member.is_empty() { &mut self.left_empty } else { &mut self.left };
        *left = left.checked_sub(1)?;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_split_at_commas_outside_quotes() {
        let split = |value| split_tokens(value).collect::<Vec<_>>();
        assert_eq!(split(b" a ,, b\t,"), [b"a", b"b"]);
        assert!(split(b", ,").is_empty() && split(b"").is_empty());
        let split = |value| split_list(value).collect::<Vec<_>>();
        assert_eq!(split(b"a=\"x,y\", b"), [&b"a=\"x,y\""[..], b"b"]);
        assert_eq!(split(br#""\",", c,,"#), [&br#""\",""#[..], b"c"]);
        assert_eq!(split(b"\"open, d"), [b"\"open, d"]);
        assert_eq!(split(b"a\\,b"), [&b"a\\"[..], b"b"]);
        assert!(has_token(b"x, Close", b"close") && !has_token(b"closed", b"close"));
    }

    #[test]
    fn decimal_is_digits_only() {
        assert_eq!(parse_decimal(b"18446744073709551615"), Some(u64::MAX));
        assert_eq!(parse_decimal(b"9999999999999999999"), Some(9_999_999_999_999_999_999));
        assert_eq!(parse_decimal(b"0000000000000000000042"), Some(42));
        for bytes in [&b"18446744073709551616"[..], b"", b"+1", b"-1", b" 1", b"1 ", b"0x1", b"1_0"]
        {
            assert_eq!(parse_decimal(bytes), None);
        }
    }
}

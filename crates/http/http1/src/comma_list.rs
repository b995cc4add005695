//! Lists in values of fields, and numbers.

use memchr::memchr3;

use crate::byte_class::trim;

/// The members of a comma-separated list of tokens, trimmed, without the empty ones (RFC 9110
/// section 5.6.1). For fields whose members may be quoted there is [`items`].
pub fn split_tokens(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    split_members(value).filter(|member| !member.is_empty())
}

/// The members of a comma-separated list of tokens, trimmed, with the empty ones.
pub(crate) fn split_members(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&byte| byte == b',').map(trim)
}

/// The members of a comma-separated list, trimmed, without the empty ones. A comma in a quoted
/// string ends nothing; a string that is not closed reaches to the end of the value.
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

/// Where the comma is that ends the first member, or the length.
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

/// Whether a list of tokens has this one, in whatever case.
pub fn has_token(value: &[u8], token: &[u8]) -> bool {
    split_tokens(value).any(|member| member.eq_ignore_ascii_case(token))
}

/// Reads plain decimal digits: no sign, no space; `None` for anything else and for overflow.
/// Leading zeros are read.
pub fn parse_decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() {
        return None;
    }
    // So many digits always fit, and are nearly all that is ever read.
    let (head, tail) = digits.split_at(digits.len().min(19));
    let value = head.iter().try_fold(0, |value, byte| Some(value * 10 + digit(*byte)?))?;
    tail.iter()
        .try_fold(value, |value: u64, byte| value.checked_mul(10)?.checked_add(digit(*byte)?))
}

fn digit(byte: u8) -> Option<u64> {
    byte.is_ascii_digit().then(|| u64::from(byte - b'0'))
}

/// How many more members a list may have.
pub(crate) struct MemberBound {
    pub(crate) left: usize,
    pub(crate) left_empty: usize,
}

impl MemberBound {
    /// Counts a member; `None`: it is one too many.
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

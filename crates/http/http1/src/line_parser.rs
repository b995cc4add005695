//! Parsers for the lines of a header.
//!
//! Each kind of line has two parsers. The fast one accepts only complete lines of the usual form,
//! which nearly all lines have. The careful one accepts all valid lines, and returns the errors of
//! others. A line that the fast parser accepts has the same result in the careful one.

use memchr::memchr;

use crate::byte_class::{TOKEN, VALUE, trim};
use crate::byte_search;
use crate::error::HeadError;
use crate::field::{FieldLine, Span};
use crate::method::Version;
use crate::name::FieldName;

/// Parses the field line at offset `start` of a header in one pass, if it is complete, valid and
/// without tabs, and has no white space around its value except one optional space before it.
/// Returns the field and the offset of the next line.
#[inline]
pub(crate) fn parse_plain_field(head: &[u8], start: usize) -> Option<(FieldLine, usize)> {
    let line = head.get(start..)?;
    // The empty line ends the header. The bytes after it may be a long body, which must not be
    // searched for a colon.
    if line.first() == Some(&b'\r') {
        return None;
    }
    let name_len = byte_search::find(line, b':');
    let (name, after_name) = line.split_at(name_len);
    let known = FieldName::from_token(name)?;
    let [_, rest @ ..] = after_name else { return None };
    let is_canonical = rest.starts_with(b" ");
    let rest = if is_canonical { &rest[1..] } else { rest };
    let value_len = byte_search::find_control(rest);
    let (value, after) = rest.split_at(value_len);
    if !after.starts_with(b"\r\n") || value.starts_with(b" ") || value.ends_with(b" ") {
        return None;
    }
    let value_start = start + name_len + 1 + usize::from(is_canonical);
    let field = FieldLine {
        name: Span { start: start as u32, len: name_len as u32 },
        value: Span { start: value_start as u32, len: value_len as u32 },
        known,
        is_canonical,
        is_nominated: false,
    };
    Some((field, value_start + value_len + 2))
}

/// Parses one field line (RFC 9112 section 5). `offset` is the offset of the line in its header.
pub(crate) fn parse_field(line: &[u8], offset: usize) -> Result<FieldLine, HeadError> {
    // RFC 9112 section 5.2 permits refusing a folded line, and section 2.2 refusing white space
    // before the first field.
    if matches!(line[0], b' ' | b'\t') {
        return Err(HeadError::FoldedLine);
    }
    let colon = memchr(b':', line).ok_or_else(|| bare_cr_or(line, HeadError::ColonMissing))?;
    let name = &line[..colon];
    if name.is_empty() {
        return Err(HeadError::NameEmpty);
    }
    if !TOKEN.contains_all(name) {
        let is_space = matches!(name[colon - 1], b' ' | b'\t') && TOKEN.contains_all(trim(name));
        let error = if is_space { HeadError::SpaceBeforeColon } else { HeadError::NameInvalid };
        return Err(bare_cr_or(name, error));
    }
    let rest = &line[colon + 1..];
    let value = trim(rest);
    if !VALUE.contains_all(value) {
        return Err(bare_cr_or(value, HeadError::ValueInvalid));
    }
    let leading = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    let value_start = offset + colon + 1 + leading;
    Ok(FieldLine {
        name: Span::new(offset..offset + colon),
        value: Span::new(value_start..value_start + value.len()),
        known: FieldName::from_bytes(name),
        is_canonical: rest.starts_with(b" ") && value.len() + 1 == rest.len(),
        is_nominated: false,
    })
}

/// Returns [`HeadError::BareCr`] if the invalid bytes contain a CR, otherwise `error`. A CR is the
/// more precise reason.
pub(crate) fn bare_cr_or(bytes: &[u8], error: HeadError) -> HeadError {
    if memchr(b'\r', bytes).is_some() { HeadError::BareCr } else { error }
}

/// Parses `HTTP/1.0` or `HTTP/1.1` (RFC 9112 section 2.3), which is case-sensitive. Other minor
/// versions of 1 are refused as well: clients do not send them, and origins treat them differently.
pub(crate) fn parse_version(bytes: &[u8]) -> Result<Version, HeadError> {
    match bytes {
        b"HTTP/1.1" => Ok(Version::Http11),
        b"HTTP/1.0" => Ok(Version::Http10),
        [b'H', b'T', b'T', b'P', b'/', b'0'..=b'9', b'.', b'0'..=b'9'] => {
            Err(HeadError::VersionUnsupported)
        }
        _ => Err(bare_cr_or(bytes, HeadError::VersionInvalid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus::Random;

    /// Returns the expected result for a plain line: searches for the line end, then calls the
    /// careful parser.
    fn parse_carefully(head: &[u8], start: usize) -> Option<(FieldLine, usize)> {
        let line_feed = start + head[start..].iter().position(|&byte| byte == b'\n')?;
        let line = head[start..line_feed].strip_suffix(b"\r").filter(|line| !line.is_empty())?;
        Some((parse_field(line, start).ok()?, line_feed + 1))
    }

    #[test]
    fn both_parsers_return_the_same_fields() {
        const NAMES: [&str; 6] = ["Host", "x-own", "Content-Length", "CONNECTION", "te", "x_own"];
        const VALUES: [&str; 5] = ["", "1", "chunked", "a, b", "longer than sixteen bytes: yes"];
        const ODD: &[u8] = b"\r\n\0\t \x1f\x7f\x80\xff:_-(/a";
        let mut random = Random::from_clock();
        let mut read = 0;
        for _ in 0..200_000 {
            let name = NAMES[random.below(NAMES.len())];
            let value = VALUES[random.below(VALUES.len())];
            let mut head = format!("{name}: {value}\r\nnext: line\r\n\r\n").into_bytes();
            for _ in 0..random.below(4) {
                let at = random.below(head.len());
                match random.below(3) {
                    0 => head[at] = ODD[random.below(ODD.len())],
                    1 => head.insert(at, ODD[random.below(ODD.len())]),
                    _ => drop(head.remove(at)),
                }
            }
            head.truncate(head.len() - random.below(8));
            let start = random.below(2);
            let (field, slowly) = (parse_plain_field(&head, start), parse_carefully(&head, start));
            let is_plain = |&(field, end): &(FieldLine, usize)| {
                let rest = &head[(field.name.start + field.name.len) as usize + 1..end - 2];
                let value = rest.strip_prefix(b" ").unwrap_or(rest);
                value == trim(value) && !value.contains(&b'\t')
            };
            let expected = slowly.filter(is_plain);
            assert_eq!(field, expected, "{} {start}", head.escape_ascii());
            read += usize::from(field.is_some());
        }
        assert!((50_000..150_000).contains(&read), "some are fields, some are not: {read}");
    }
}

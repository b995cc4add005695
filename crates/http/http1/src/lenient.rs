//! Lenient parsing of response headers.
//!
//! Some origins send headers that violate the grammar. Such a header is rewritten to its strict
//! form, which the strict parser then parses. Everything that a client receives was therefore
//! checked by the same parser. Requests are never parsed leniently.
//!
//! The following are rewritten:
//!
//! * LF line ends, if all lines of the header have them, from the status line to the empty line
//!   (RFC 9112 section 2.2). A mixture with CR LF is refused, because an injected line can cause
//!   one.
//! * White space between a field name and its colon, which is removed (RFC 9112 section 5.1).
//! * Folded values: each fold becomes one space (RFC 9112 section 5.2). A fold without text is
//!   refused, because some implementations read it as the end of the header. A fold before the
//!   first field is refused, because some implementations drop the line (section 2.2).
//!
//! The last two are refused in fields that determine where the message or its connection ends: an
//! implementation that does not accept the form would not see these fields.
//!
//! The header ends at its first empty line, which has the same line end as the other lines. Each
//! header is parsed on its own: an interim response may have other line ends than the final one,
//! because a gateway may send the first and a program behind it the second.

use memchr::memchr;

use crate::byte_class::trim;
use crate::error::HeadError;
use crate::head::{HeadLimits, HeadScan, ParseMode};
use crate::name::{FieldName, NameSet};
use crate::response::ResponseHead;

/// Fields whose lines may have neither a fold nor white space before the colon.
const STRICT_FIELDS: NameSet =
    NameSet::new(&[FieldName::ContentLength, FieldName::TransferEncoding, FieldName::Connection]);

impl ResponseHead {
    /// Parses a response header like [`parse`](Self::parse), but also accepts headers that can be
    /// rewritten to the strict form. [`bytes`](crate::Fields::bytes) and all ranges then refer to
    /// the strict form. If [`HeadScan::is_ambiguous`] then returns true, a cache must not store the
    /// response.
    ///
    /// Rewriting allocates one copy of the header for the duration of the call. The strict form can
    /// be one byte longer for each line. The limits apply both to the received bytes and to the
    /// strict form.
    ///
    /// # Errors
    /// Returns the same errors as `parse`. After a line that has to be rewritten, most errors are
    /// returned when the header is complete.
    #[inline]
    pub fn parse_lenient(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        if scan.mode == ParseMode::Strict {
            match self.parse(input, scan, limits) {
                Err(HeadError::BareLf | HeadError::SpaceBeforeColon | HeadError::FoldedLine) => {}
                parsed => return parsed,
            }
        }
        self.parse_rewritten(input, scan, limits)
    }

    /// Parses the strict form of a header, once the header is complete.
    #[cold]
    #[inline(never)]
    fn parse_rewritten(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<Option<usize>, HeadError> {
        if scan.mode == ParseMode::Strict {
            let line = memchr(b'\n', input).map_or(&[][..], |line_feed| &input[..line_feed]);
            let mode = if line.ends_with(b"\r") {
                ParseMode::RewriteCrLf
            } else {
                ParseMode::RewriteBareLf
            };
            *scan = HeadScan { mode, ..HeadScan::default() };
        }
        let Some(end) = find_header_end(input, scan, limits)? else { return Ok(None) };
        let (strict, has_folds) = rewrite_strict(&input[..end])?;
        let used = self.parse(&strict, &mut HeadScan::default(), limits)?;
        assert_eq!(used, Some(strict.len()), "the strict form ends at its only empty line");
        scan.is_ambiguous = has_folds || scan.mode == ParseMode::RewriteBareLf;
        Ok(Some(end))
    }
}

/// Returns the end of the header, or `None` if its empty line has not arrived. Each byte is scanned
/// once, however the header arrives.
fn find_header_end(
    input: &[u8],
    scan: &mut HeadScan,
    limits: &HeadLimits,
) -> Result<Option<usize>, HeadError> {
    let line_end: &[u8] = if scan.mode == ParseMode::RewriteBareLf { b"" } else { b"\r" };
    loop {
        let Some(found) = memchr(b'\n', &input[scan.scanned as usize..]) else {
            scan.scanned = input.len() as u32;
            let is_too_long = input.len() > limits.bytes_max;
            return if is_too_long { Err(HeadError::BytesTooMany) } else { Ok(None) };
        };
        let line_feed = scan.scanned as usize + found;
        if line_feed >= limits.bytes_max {
            return Err(HeadError::BytesTooMany);
        }
        let line = &input[scan.line as usize..line_feed];
        if line.ends_with(b"\r") != (scan.mode == ParseMode::RewriteCrLf) {
            return Err(HeadError::BareLf);
        }
        scan.advance_to(line_feed + 1);
        if line == line_end {
            return Ok(Some(line_feed + 1));
        }
    }
}

/// Returns the strict form of a complete header, and whether a value was folded. Other violations
/// stay in it, and the strict parser refuses them.
fn rewrite_strict(head: &[u8]) -> Result<(Vec<u8>, bool), HeadError> {
    let mut strict = Vec::with_capacity(head.len() + 64);
    let mut lines = head.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").expect("the last line is the empty one");
        line.strip_suffix(b"\r").unwrap_or(line)
    });
    strict.extend_from_slice(lines.next().expect("a header has a status line"));
    // Whether the next line may continue the field before it; false before the first field.
    let mut may_fold = false;
    let mut has_folds = false;
    for line in lines {
        if let [b' ' | b'\t', ..] = line {
            let text = trim(line);
            if !may_fold || text.is_empty() {
                return Err(HeadError::FoldedLine);
            }
            has_folds = true;
            strict.truncate(trim(&strict[..]).len());
            strict.push(b' ');
            strict.extend_from_slice(text);
            continue;
        }
        strict.extend_from_slice(b"\r\n");
        // A line without a colon is copied. The strict parser refuses it, unless it is the empty
        // line.
        let (name, value) = line.split_at(memchr(b':', line).unwrap_or(0));
        let trimmed = trim(name);
        may_fold = !name.is_empty() && !STRICT_FIELDS.contains(FieldName::from_bytes(trimmed));
        if trimmed.len() != name.len() && !may_fold {
            return Err(HeadError::SpaceBeforeColon);
        }
        strict.extend_from_slice(trimmed);
        strict.extend_from_slice(value);
    }
    strict.extend_from_slice(b"\r\n");
    Ok((strict, has_folds))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_heads::LIMITS;

    /// Returns the strict form, and whether the header is ambiguous.
    fn read(head: &str) -> Result<(String, bool), HeadError> {
        let (mut response, mut scan) = (ResponseHead::default(), HeadScan::default());
        let input = [head.as_bytes(), b"\r\n\n: body"].concat();
        let used = response.parse_lenient(&input, &mut scan, &LIMITS)?;
        assert_eq!(used, Some(head.len()));
        Ok((String::from_utf8(response.bytes().to_vec()).unwrap(), scan.is_ambiguous()))
    }

    #[test]
    fn nonconforming_headers_of_origins_are_rewritten() {
        let is = |head: &str, strict: &str, is_ambiguous| {
            assert_eq!(read(head), Ok((strict.to_owned(), is_ambiguous)), "{head:?}");
        };
        let strict = "HTTP/1.1 200 OK\r\nA: b\r\nC:\td \r\n\r\n";
        is(strict, strict, false);
        is(&strict.replace("\r\n", "\n"), strict, true);
        is("HTTP/1.0 200\n\n", "HTTP/1.0 200\r\n\r\n", true);
        is(
            "HTTP/1.1 200 OK\r\nA : b\r\nC \t:d\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b\r\nC:d\r\n\r\n",
            false,
        );
        is(
            "HTTP/1.1 200 OK\r\nA: b \t\r\n \t c\r\n\td  \r\nE:\r\n f:g\r\n\r\n",
            "HTTP/1.1 200 OK\r\nA: b c d\r\nE: f:g\r\n\r\n",
            true,
        );
        is("HTTP/1.1 200 OK\nA : b\n c\n\n", "HTTP/1.1 200 OK\r\nA: b c\r\n\r\n", true);
    }

    #[test]
    fn ambiguous_headers_are_refused() {
        use HeadError::*;
        for (head, error) in [
            // A mixture of line ends, in each position.
            ("HTTP/1.1 200 OK\nA: b\r\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA : b\nC: d\r\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\r\n\n", BareLf),
            ("HTTP/1.1 200 OK\nA: b\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\nA: b\nC: d\r\n\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\n\r\n", BareLf),
            // A fold before the first field, without text, or in a framing field.
            ("HTTP/1.1 200 OK\r\n A: b\r\n\r\n", FoldedLine),
            ("HTTP/1.1 200 OK\n\tA: b\n\n", FoldedLine),
            ("HTTP/1.1 200 OK\r\nA: b\r\n \r\n\r\n", FoldedLine),
            ("HTTP/1.1 200 OK\nA: b\n\t\n\n", FoldedLine),
            ("HTTP/1.1 200 OK\r\nContent-Length:\r\n 5\r\n\r\n", FoldedLine),
            ("HTTP/1.1 200 OK\nContent-Length: 1\n 5\n\n", FoldedLine),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: a,\r\n\tchunked\r\n\r\n", FoldedLine),
            ("HTTP/1.1 200 OK\r\nconnection: a\r\n close\r\n\r\n", FoldedLine),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\r\nConnection: a\r\n close\r\n\r\n", FoldedLine),
            ("HTTP/1.1 200 OK\nA\n : b\n\n", FoldedLine),
            ("HTTP/1.1 200 OK\r\nA\r\n : b\r\n\r\n", ColonMissing),
            ("HTTP/1.1 200 OK\r\nContent-Length : 5\r\n\r\n", SpaceBeforeColon),
            ("HTTP/1.1 200 OK\ntransfer-encoding\t: chunked\n\n", SpaceBeforeColon),
            ("HTTP/1.1 200 OK\r\nConnection : close\r\n\r\n", SpaceBeforeColon),
            // Other violations are not rewritten.
            ("HTTP/1.1 200 OK\r\nA : b\r\nC\r\n\r\n", ColonMissing),
            ("HTTP/1.1 200 OK\r\nA : b\r\n: c\r\n\r\n", NameEmpty),
            ("HTTP/1.1 200 OK\r\nA b : c\r\n\r\n", NameInvalid),
            ("HTTP/1.1 200 OK\nA: b\rc: d\n\n", BareCr),
            ("HTTP/1.1 200 OK\r\nA : b\r\r\n\r\n", BareCr),
            ("HTTP/1.1 200 OK\nA: \0\n\n", ValueInvalid),
            ("HTTP/1.1 200 OK\r\nA: b\r\n \x0b\r\n\r\n", ValueInvalid),
            ("HTTP/1.1 2x0 OK\n\n", StatusInvalid),
            ("HTTP/2.0 200 OK\n\n", VersionUnsupported),
            ("\nHTTP/1.1 200 OK\n\n", VersionInvalid),
        ] {
            assert_eq!(read(head), Err(error), "{head:?}");
        }
    }

    #[test]
    fn limits_apply_to_the_received_and_the_strict_form() {
        let parse = |head: &str, limits| {
            ResponseHead::default().parse_lenient(
                head.as_bytes(),
                &mut HeadScan::default(),
                &limits,
            )
        };
        let head = "HTTP/1.1 200 OK\nA : b\nC: d\n\n";
        let limits = HeadLimits { bytes_max: 31, fields_max: 2, target_bytes_max: 0 };
        assert_eq!(parse(head, limits), Ok(Some(28)));
        let parse_less = |limits| parse(head, limits).unwrap_err();
        assert_eq!(parse_less(HeadLimits { bytes_max: 30, ..limits }), HeadError::BytesTooMany);
        assert_eq!(parse_less(HeadLimits { bytes_max: 27, ..limits }), HeadError::BytesTooMany);
        assert_eq!(parse_less(HeadLimits { fields_max: 1, ..limits }), HeadError::FieldsTooMany);
        let endless = "HTTP/1.1 200 OK\nA: bbbbbbbbbbbbbbbbbbb";
        assert_eq!(parse(endless, limits), Err(HeadError::BytesTooMany));
        assert_eq!(parse(&endless[..31], limits), Ok(None));
    }
}

//! Response headers that break the grammar in a way that origins do: they are rewritten in the
//! strict form, and that is parsed. So there is one parser, and it has checked whatever a client
//! receives. Requests are never read like this.
//!
//! Rewritten are:
//!
//! * LF line ends, if each line of the header ends so, from the status line to the empty line (RFC
//!   9112 section 2.2). A mixture with CR LF is what an injected line looks like: it is refused.
//! * White space between a field's name and its colon, which is removed (RFC 9112 section 5.1).
//! * Folded values, each fold of which becomes one space (RFC 9112 section 5.2). A fold without
//!   text, or before the first field, is refused: to some readers it ends the header.
//!
//! The latter two are refused in the fields that decide where the message or its connection ends:
//! a reader that does not know the form would not see them.
//!
//! The header ends at its first empty line, which ends as all its lines do. Each header is judged
//! by itself: an interim response may end its lines otherwise than the final one, since a gateway
//! sends the first and a program behind it the second.

use memchr::memchr;

use crate::byte_class::trim;
use crate::error::HeadError;
use crate::head::{HeadLimits, HeadScan, ParseMode};
use crate::name::{FieldName, NameSet};
use crate::response::ResponseHead;

/// The fields whose lines have to be strict.
const STRICT_FIELDS: NameSet =
    NameSet::new(&[FieldName::ContentLength, FieldName::TransferEncoding, FieldName::Connection]);

impl ResponseHead {
    /// Like [`parse`](Self::parse), but also reads headers that can be rewritten in the strict
    /// form. [`bytes`](crate::Fields::bytes) and all ranges are those of the strict form then, and
    /// [`HeadScan::is_ambiguous`] says whether a cache may rely on it.
    ///
    /// A header that has to be rewritten costs one copy for the time of the call, of at most
    /// [`HeadLimits::bytes_max`] bytes and one for each line. The limits apply to the bytes
    /// received and to the strict form.
    ///
    /// # Errors
    /// As of `parse`. Once a line was seen that has to be rewritten, most errors come when the
    /// header is whole.
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

    /// Parses the strict form of a header, once all of it is there.
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
            let reading = if line.ends_with(b"\r") {
                ParseMode::RewriteCrLf
            } else {
                ParseMode::RewriteBareLf
            };
            *scan = HeadScan { mode: reading, ..HeadScan::default() };
        }
        let Some(end) = find_header_end(input, scan, limits)? else { return Ok(None) };
        let (strict, has_folds) = rewrite_strict(&input[..end])?;
        let used = self.parse(&strict, &mut HeadScan::default(), limits)?;
        assert_eq!(used, Some(strict.len()), "the strict form ends at its only empty line");
        scan.is_ambiguous = has_folds || scan.mode == ParseMode::RewriteBareLf;
        Ok(Some(end))
    }
}

/// Where the header ends, or `None` if its empty line has not come. Each byte is looked at once,
/// however the header arrives.
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

/// Returns the strict form of a whole header, and whether a value was folded. Other faults of the
/// header stay in it, and the strict parser refuses them.
fn rewrite_strict(head: &[u8]) -> Result<(Vec<u8>, bool), HeadError> {
    let mut strict = Vec::with_capacity(head.len() + 64);
    let mut lines = head.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let line = line.strip_suffix(b"\n").expect("the last line is the empty one");
        line.strip_suffix(b"\r").unwrap_or(line)
    });
    strict.extend_from_slice(lines.next().expect("a header has a status line"));
    // Whether the line at hand may continue the field before it. Before the first field it may not.
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
        // A line without a colon is copied: the strict parser refuses it, but for the empty line.
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

    /// The strict form, and whether the header is ambiguous.
    fn read(head: &str) -> Result<(String, bool), HeadError> {
        let (mut response, mut scan) = (ResponseHead::default(), HeadScan::default());
        let input = [head.as_bytes(), b"\r\n\n: body"].concat();
        let used = response.parse_lenient(&input, &mut scan, &LIMITS)?;
        assert_eq!(used, Some(head.len()));
        Ok((String::from_utf8(response.bytes().to_vec()).unwrap(), scan.is_ambiguous()))
    }

    #[test]
    fn what_origins_send_becomes_the_strict_form() {
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
    fn what_could_be_read_in_two_ways_is_refused() {
        use HeadError::*;
        for (head, error) in [
            // A mixture, in each place.
            ("HTTP/1.1 200 OK\nA: b\r\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\nC: d\r\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA : b\nC: d\r\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\r\n\n", BareLf),
            ("HTTP/1.1 200 OK\nA: b\n\r\n", BareLf),
            ("HTTP/1.1 200 OK\nA: b\nC: d\r\n\n", BareLf),
            ("HTTP/1.1 200 OK\r\nA: b\r\n c\n\r\n", BareLf),
            // A fold before the first field, without text, or in what frames.
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
            // What is not rewritten stays wrong.
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
    fn the_limits_count_what_came_and_what_it_becomes() {
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

//! Response headers: the status line and the fields after it.

use crate::byte_class::VALUE;
use crate::byte_search;
use crate::error::HeadError;
use crate::field::Span;
use crate::head::{Fields, Head, HeadLimits, HeadScan, StartLine};
use crate::line_parser::{bare_cr_or, parse_version};
use crate::method::Version;

/// The header of a response: a status line (RFC 9112 section 4) and field lines.
///
/// It is parsed as strictly as a request header, and no empty line may come before it. One form
/// beyond the grammar of RFC 9112 section 4 is accepted, because origins send it and it has one
/// interpretation only: a status line that ends after the status code, without the space. Status
/// codes below 100 and above 599 are refused, although the grammar allows them.
pub type ResponseHead = Head<StatusLine>;

/// The parsed status line of a response.
#[derive(Clone, Debug, Default)]
pub struct StatusLine {
    version: Version,
    /// `100..=599` once a header was parsed; 0 before.
    status: u16,
    reason: Span,
}

impl StatusLine {
    /// Parses the status line at the start of a header if it is complete, valid and without tabs.
    /// Returns the offset of the first field line.
    fn parse_plain_line(&mut self, head: &[u8]) -> Option<usize> {
        let (start, rest) = head.split_first_chunk::<13>()?;
        let [version @ .., b' ', a, b, c, b' '] = start else { return None };
        self.version = match version {
            b"HTTP/1.1" => Version::Http11,
            b"HTTP/1.0" => Version::Http10,
            _ => return None,
        };
        self.status = parse_status(&[*a, *b, *c]).ok()?;
        let reason_len = byte_search::find_control(rest);
        self.reason = Span::new(start.len()..start.len() + reason_len);
        let is_whole = rest[reason_len..].starts_with(b"\r\n");
        is_whole.then_some(start.len() + reason_len + 2)
    }

    /// Parses a complete status line (RFC 9112 section 4).
    fn parse_status_line(&mut self, line: &[u8]) -> Result<(), HeadError> {
        let version_len = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
        let (version_bytes, rest) = line.split_at(version_len);
        self.version = parse_version(version_bytes)?;
        let (digits, rest) = match rest {
            [b' ', digits @ ..] if digits.len() == 3 => (digits, &[][..]),
            [b' ', a, b, c, b' ', ..] if [a, b, c].iter().all(|byte| byte.is_ascii_digit()) => {
                (&rest[1..4], &rest[5..])
            }
            _ => return Err(bare_cr_or(rest, HeadError::StatusInvalid)),
        };
        self.status = parse_status(digits)?;
        if !VALUE.contains_all(rest) {
            return Err(bare_cr_or(rest, HeadError::ReasonInvalid));
        }
        self.reason = Span::new(line.len() - rest.len()..line.len());
        Ok(())
    }
}

impl ResponseHead {
    /// Returns the version in the status line.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// Returns the status code, `100..=599`.
    pub fn status(&self) -> u16 {
        self.line.status
    }

    /// Returns the reason phrase as received. It may be empty and has no control bytes except tabs.
    pub fn reason(&self) -> &[u8] {
        self.line.reason.slice(&self.fields.bytes)
    }
}

impl StartLine for StatusLine {
    fn parse(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<bool, HeadError> {
        if let Some(input) = scan.unscanned(input, limits)
            && let Some(len) = self.parse_plain_line(input)
        {
            scan.advance_to(len);
            return Ok(true);
        }
        // Input that does not begin with `HTTP/` is another protocol, which may never send a line
        // end.
        if input.iter().zip(b"HTTP/").any(|(seen, wanted)| seen != wanted) {
            return Err(HeadError::VersionInvalid);
        }
        let Some(line) = scan.next_line(input, limits)? else { return Ok(false) };
        self.parse_status_line(&input[line])?;
        Ok(true)
    }

    fn finish(&mut self, _fields: &mut Fields) {}
}

/// Parses a status code: three digits from 100 to 599. By RFC 9110 section 15 other codes are
/// invalid, and clients interpret them differently.
fn parse_status(digits: &[u8]) -> Result<u16, HeadError> {
    match digits {
        [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9'] => {
            let digit = |byte: &u8| u16::from(byte - b'0');
            Ok(digit(a) * 100 + digit(b) * 10 + digit(c))
        }
        _ => Err(bare_cr_or(digits, HeadError::StatusInvalid)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;
    use crate::fuzz::fuzz_response_head;
    use crate::test_heads::{LIMITS, response};

    #[test]
    fn a_status_line_has_version_status_and_reason() {
        let head = response("HTTP/1.0 404 Not  Found \r\nServer: x\r\n\r\nrest").unwrap();
        assert_eq!((head.version(), head.status()), (Version::Http10, 404));
        assert_eq!(head.reason(), b"Not  Found ");
        assert_eq!(head.bytes(), b"HTTP/1.0 404 Not  Found \r\nServer: x\r\n\r\n");
        for reason in ["", " ", " \u{e9}\t"] {
            let head = response(format!("HTTP/1.1 599{reason}\r\n\r\n")).unwrap();
            assert_eq!(head.reason(), reason.strip_prefix(' ').unwrap_or("").as_bytes());
        }
    }

    #[test]
    fn malformed_status_lines_are_refused() {
        use HeadError::*;
        for (line, error) in [
            ("HTTP/1.1 99 x\r\n", StatusInvalid),
            ("HTTP/1.1 000 x\r\n", StatusInvalid),
            ("HTTP/1.1 099 x\r\n", StatusInvalid),
            ("HTTP/1.1 600 x\r\n", StatusInvalid),
            ("HTTP/1.1 999 x\r\n", StatusInvalid),
            ("HTTP/1.1 1000 x\r\n", StatusInvalid),
            ("HTTP/1.1 +20 x\r\n", StatusInvalid),
            ("HTTP/1.1 2 0 x\r\n", StatusInvalid),
            ("HTTP/1.1  200 x\r\n", StatusInvalid),
            ("HTTP/1.1 200\tx\r\n", StatusInvalid),
            ("HTTP/1.1 200x\r\n", StatusInvalid),
            ("HTTP/1.1 \r\n", StatusInvalid),
            ("HTTP/1.1\r\n", StatusInvalid),
            ("HTTP/1.1\t200 x\r\n", VersionInvalid),
            ("HTTP/1.1 200 a\0b\r\n", ReasonInvalid),
            ("HTTP/1.1 200 a\x7f\r\n", ReasonInvalid),
            ("HTTP/1.1 200 a\rb\r\n", BareCr),
            ("HTTP/1.1 200\r\r\n", BareCr),
            ("HTTP/1.1 200 x\n", BareLf),
            ("HTTP/2.0 200 x\r\n", VersionUnsupported),
            ("HTTP/1.2 200 x\r\n", VersionUnsupported),
            ("HTTP/1.10 200 x\r\n", VersionInvalid),
            ("HTTP/1 200 x\r\n", VersionInvalid),
            ("http/1.1 200 x\r\n", VersionInvalid),
            ("ICY 200 OK\r\n", VersionInvalid),
            (" HTTP/1.1 200 x\r\n", VersionInvalid),
            ("\r\nHTTP/1.1 200 x\r\n", VersionInvalid),
            ("\nHTTP/1.1 200 x\r\n", VersionInvalid),
        ] {
            assert_eq!(response(format!("{line}\r\n")).err(), Some(error), "{line:?}");
        }
    }

    #[test]
    fn another_protocol_is_refused_at_its_first_byte() {
        let mut head = ResponseHead::default();
        let mut scan = HeadScan::default();
        assert_eq!(head.parse(b"HTTP", &mut scan, &LIMITS), Ok(None));
        assert_eq!(head.parse(b"HTTPS", &mut scan, &LIMITS), Err(HeadError::VersionInvalid));
    }

    #[test]
    fn the_corpus_keeps_the_invariants() {
        corpus::run("response_head", 40, corpus::mutate_bytes, fuzz_response_head);
    }
}

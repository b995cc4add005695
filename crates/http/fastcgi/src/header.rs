//! The header that a program writes (RFC 3875 section 6.2), and its form in HTTP/1.1.

use std::ops::Range;

use memchr::{memchr, memchr_iter};
use millrace_http1::format::write_number;
use millrace_http1::{FieldName, parse_decimal};

use crate::error::HeaderError;
use crate::limits::HEADER_LINES_MAX;

/// The form of a response, by its header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum HeaderForm {
    /// A response for the client.
    Document {
        /// The length of the body, by the first field `Content-Length` that has a number.
        content_length: Option<u64>,
    },
    /// The server has to respond as to a request for another path and query (RFC 3875 section
    /// 6.2.2): those of the field `Location`. The rest of the output has no meaning.
    LocalRedirect,
}

/// Returns the length of the header at the beginning of a program's output, with the empty line
/// that ends it; `None` if it has not arrived whole. Lines end with LF or CR LF.
///
/// `scanned` is 0 in the first call. Each call continues where the last one ended, with the same
/// output and more.
pub fn header_length(output: &[u8], scanned: &mut usize) -> Option<usize> {
    // Up to three bytes before may begin the empty line.
    let from = scanned.saturating_sub(3);
    *scanned = output.len();
    for start in ["\n", "\r\n"] {
        if from == 0 && output.starts_with(start.as_bytes()) {
            return Some(start.len());
        }
    }
    memchr_iter(b'\n', &output[from..]).find_map(|at| {
        let end = from + at + 1;
        match &output[end..] {
            [b'\n', ..] => Some(end + 1),
            [b'\r', b'\n', ..] => Some(end + 2),
            _ => None,
        }
    })
}

/// Appends a program's header as that of an HTTP/1.1 response. `header` ends with its empty line.
/// The status is that of the field `Status`, otherwise 302 with `Location` and 200 without. Fields
/// about the connection are left out. [`millrace_http1::ResponseHead`] checks names and values.
///
/// A header whose status is 200 and whose `Location` is a path is a local redirect, whatever other
/// fields it has, as Apache httpd treats it. Only a client can apply a fragment (RFC 3875 section
/// 6.2.2), so a path with one is for the client. `out` gets a 302 to the path.
///
/// # Errors
/// If the header is malformed. `out` may have a part of it then.
pub fn convert_header(header: &[u8], out: &mut Vec<u8>) -> Result<HeaderForm, HeaderError> {
    let (mut status, mut location) = (None, None);
    for line in lines(header)? {
        let Field { known, name, value } = Field::parse(header, line)?;
        let (place, error) = match known {
            FieldName::Location => (&mut location, HeaderError::Location),
            _ if is_status(&header[name]) => (&mut status, HeaderError::Status),
            _ => continue,
        };
        if place.replace(value).is_some() {
            return Err(error);
        }
    }
    let is_local = |value: &Range<usize>| {
        let value = &header[value.clone()];
        value.starts_with(b"/") && !value.starts_with(b"//") && !value.contains(&b'#')
    };
    let status = status.map(|value| parse_status(&header[value])).transpose()?;
    let is_ok = status.is_none_or(|(number, _)| number == 200);
    if let Some(path) = location.clone().filter(|value| is_ok && is_local(value)) {
        append(out, &[b"HTTP/1.1 302 Found\r\nLocation: ", &header[path]]);
        out.extend_from_slice(b"\r\nContent-Length: 0\r\n\r\n");
        return Ok(HeaderForm::LocalRedirect);
    }
    // RFC 9110 section 8.6: no Content-Length in a 204.
    let has_no_content = status.is_some_and(|(number, _)| number == 204);
    match status {
        Some((number, reason)) => {
            out.extend_from_slice(b"HTTP/1.1 ");
            write_number(out, number.into());
            append(out, &[b" ", reason, b"\r\n"]);
        }
        None if location.is_some() => out.extend_from_slice(b"HTTP/1.1 302 Found\r\n"),
        None => out.extend_from_slice(b"HTTP/1.1 200 OK\r\n"),
    }
    let mut content_length = None;
    for line in lines(header)? {
        let Field { known, name, value } = Field::parse(header, line)?;
        let [name, value] = [name, value].map(|range| &header[range]);
        if known == FieldName::ContentLength {
            if has_no_content {
                continue;
            }
            content_length = content_length.or_else(|| parse_decimal(value));
        }
        if !is_left_out(known) && !is_status(name) {
            append(out, &[name, b": ", value, b"\r\n"]);
        }
    }
    out.extend_from_slice(b"\r\n");
    Ok(HeaderForm::Document { content_length })
}

/// Returns the lines before the empty one, without their ends.
fn lines(header: &[u8]) -> Result<impl Iterator<Item = Range<usize>>, HeaderError> {
    if memchr_iter(b'\n', header).count() > HEADER_LINES_MAX + 1 {
        return Err(HeaderError::TooManyLines);
    }
    let mut start = 0;
    let ends = memchr_iter(b'\n', header).map(move |end| {
        let line = start..end - usize::from(end > start && header[end - 1] == b'\r');
        start = end + 1;
        line
    });
    Ok(ends.take_while(|line| !line.is_empty()))
}

/// A field of the header.
struct Field {
    known: FieldName,
    name: Range<usize>,
    /// Without white space around it.
    value: Range<usize>,
}

impl Field {
    fn parse(header: &[u8], line: Range<usize>) -> Result<Self, HeaderError> {
        let length = memchr(b':', &header[line.clone()]).ok_or(HeaderError::Line)?;
        let name = line.start..line.start + length;
        let is_valid = !header[name.clone()].iter().any(u8::is_ascii_whitespace);
        if name.is_empty() || !is_valid {
            return Err(HeaderError::Line);
        }
        let rest = &header[name.end + 1..line.end];
        let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t');
        let start = rest.iter().position(is_text).unwrap_or(rest.len());
        let end = rest.iter().rposition(is_text).map_or(start, |last| last + 1);
        let value = name.end + 1 + start..name.end + 1 + end;
        Ok(Self { known: FieldName::from_bytes(&header[name.clone()]), name, value })
    }
}

/// Parses a value of `Status`: a status, and a reason phrase.
fn parse_status(value: &[u8]) -> Result<(u16, &[u8]), HeaderError> {
    let (digits, reason) = value.split_first_chunk::<3>().ok_or(HeaderError::Status)?;
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<u16>().ok());
    let number = number.filter(|number| (200..600).contains(number)).ok_or(HeaderError::Status)?;
    match reason {
        [] => Ok((number, reason)),
        [b' ', reason @ ..] => Ok((number, reason)),
        _ => Err(HeaderError::Status),
    }
}

fn append(out: &mut Vec<u8>, parts: &[&[u8]]) {
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// Returns whether a name is that of the status, which is no field of HTTP.
fn is_status(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"status")
}

/// Returns whether a field is about the connection, which is not the program's.
fn is_left_out(known: FieldName) -> bool {
    matches!(
        known,
        FieldName::Connection
            | FieldName::KeepAlive
            | FieldName::ProxyConnection
            | FieldName::Te
            | FieldName::Trailer
            | FieldName::TransferEncoding
            | FieldName::Upgrade
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(header: &str) -> Result<(HeaderForm, String), HeaderError> {
        let mut out = Vec::new();
        let form = convert_header(header.as_bytes(), &mut out)?;
        Ok((form, String::from_utf8(out).unwrap()))
    }

    #[test]
    fn the_status_is_that_of_the_field() {
        for (header, expected) in [
            (
                "Content-Type: text/html\r\n\r\n",
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n",
            ),
            ("Status: 404 Not Found\nA:b\n\n", "HTTP/1.1 404 Not Found\r\nA: b\r\n\r\n"),
            ("Status: 204\n\n", "HTTP/1.1 204 \r\n\r\n"),
            ("Location: http://b/\n\n", "HTTP/1.1 302 Found\r\nLocation: http://b/\r\n\r\n"),
            ("Location: //b/\n\n", "HTTP/1.1 302 Found\r\nLocation: //b/\r\n\r\n"),
            ("Location: /a\nStatus: 301 Moved\n\n", "HTTP/1.1 301 Moved\r\nLocation: /a\r\n\r\n"),
            ("Location: /a#b\n\n", "HTTP/1.1 302 Found\r\nLocation: /a#b\r\n\r\n"),
            ("\n", "HTTP/1.1 200 OK\r\n\r\n"),
            ("A: \t \n\n", "HTTP/1.1 200 OK\r\nA: \r\n\r\n"),
        ] {
            let form = HeaderForm::Document { content_length: None };
            let expected = Ok((form, expected.to_owned()));
            assert_eq!(converted(header), expected, "{header:?}");
        }
    }

    #[test]
    fn the_length_of_the_body_is_that_of_the_first_field_with_a_number() {
        for (header, expected) in [
            ("content-length: 12\n\n", Some(12)),
            ("Content-Length: a\nContent-Length: 3 \nContent-Length: 4\n\n", Some(3)),
            ("Status: 204\nContent-Length: 3\n\n", None),
            ("Content-Length: -1\n\n", None),
        ] {
            let form = converted(header).unwrap().0;
            assert_eq!(form, HeaderForm::Document { content_length: expected }, "{header:?}");
        }
    }

    #[test]
    fn a_path_with_status_200_is_a_local_redirect() {
        for header in [
            "Location:  /a?b \r\n\r\n",
            "Status: 200 OK\nLocation: /a?b\n\n",
            "Content-Type: text/html\nLocation: /a?b\nSet-Cookie: a=b\n\n",
        ] {
            let expected = "HTTP/1.1 302 Found\r\nLocation: /a?b\r\nContent-Length: 0\r\n\r\n";
            assert_eq!(converted(header), Ok((HeaderForm::LocalRedirect, expected.to_owned())));
        }
    }

    #[test]
    fn fields_about_the_connection_are_left_out() {
        let header = "Transfer-Encoding: chunked\nCONNECTION: close\nKeep-Alive: 1\nA: 1\n\n";
        assert_eq!(converted(header).unwrap().1, "HTTP/1.1 200 OK\r\nA: 1\r\n\r\n");
    }

    #[test]
    fn malformed_headers_are_refused() {
        for (header, expected) in [
            ("no colon\n\n", HeaderError::Line),
            (": a\n\n", HeaderError::Line),
            ("a b: c\n\n", HeaderError::Line),
            (" a: c\n\n", HeaderError::Line),
            ("Status: 100 Continue\n\n", HeaderError::Status),
            ("Status: 2000\n\n", HeaderError::Status),
            ("Status: +20\n\n", HeaderError::Status),
            ("Status: 20\n\n", HeaderError::Status),
            ("Status: 200 OK\nStatus: 200 OK\n\n", HeaderError::Status),
            ("Location: /a\nLocation: /b\n\n", HeaderError::Location),
        ] {
            assert_eq!(converted(header), Err(expected), "{header:?}");
        }
        let many = format!("{}\n", "a: b\n".repeat(HEADER_LINES_MAX));
        assert!(converted(&many).is_ok());
        assert_eq!(converted(&format!("a: b\n{many}")), Err(HeaderError::TooManyLines));
    }

    #[test]
    fn a_header_ends_with_its_first_empty_line() {
        for (output, expected) in [
            ("a: b\n\nc", Some(6)),
            ("a: b\r\n\r\nc", Some(8)),
            ("a: b\n\r\nc", Some(7)),
            ("\nc", Some(1)),
            ("\r\nc", Some(2)),
            ("a: b\n", None),
            ("a: b\n\r", None),
            ("a: b\r\rc\n", None),
        ] {
            assert_eq!(header_length(output.as_bytes(), &mut 0), expected, "{output:?}");
            let mut scanned = 0;
            let length = (0..=output.len())
                .find_map(|end| header_length(&output.as_bytes()[..end], &mut scanned));
            assert_eq!(length, expected, "{output:?} byte by byte");
        }
    }
}

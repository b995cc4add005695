//! The parser on both sides of the proxy: it accepts an HTTP/1.1 message only if every other parser
//! would read it in the same way.
//!
//! It shares no code with the proxy, so that a mistake there is not repeated here. It is far
//! narrower than RFC 9112 and accepts only one spelling of each item. Everything that the RFC
//! leaves to the recipient (bare LF, folded lines, leading zeros, chunk extensions) is ambiguous.
//! It never repairs a message. It restarts from the first byte at each call, which is fast enough
//! for tests.

mod body;
mod fields;
mod target;

use std::fmt;

/// Why a message is ambiguous, in one sentence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ambiguity(pub String);

impl fmt::Display for Ambiguity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One field line: the name as written, the value without surrounding white space.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// A token.
    pub name: String,
    /// Tabs, visible characters, spaces and high bytes; may be empty.
    pub value: Vec<u8>,
}

impl Field {
    /// Returns whether the field has this name, ignoring case.
    pub fn is(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }
}

/// How the end of a message is determined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framing {
    /// The message ends with its header.
    None,
    /// This number of bytes follows the header.
    Length(u64),
    /// Chunks, the last one empty, then trailers.
    Chunked,
    /// The end of the connection; only for responses.
    UntilClose,
}

/// The first line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartLine {
    /// The first line of a request.
    Request {
        /// A token, case kept.
        method: String,
        /// Origin-form, or the asterisk of OPTIONS.
        target: String,
    },
    /// The first line of a response.
    Response {
        /// 100 to 599.
        status: u16,
        /// May be empty.
        reason: Vec<u8>,
    },
}

/// A message with one meaning.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// The first line.
    pub start: StartLine,
    /// The fields in their order, including those for framing.
    pub fields: Vec<Field>,
    /// The framing.
    pub framing: Framing,
    /// The content, with its chunks joined.
    pub body: Vec<u8>,
    /// The fields after the last chunk.
    pub trailers: Vec<Field>,
    /// The message's length in the input, `> 0`.
    pub bytes: usize,
}

impl Message {
    /// Returns the method of a request; empty for a response.
    pub fn method(&self) -> &str {
        match &self.start {
            StartLine::Request { method, .. } => method,
            StartLine::Response { .. } => "",
        }
    }

    /// Returns the target of a request; empty for a response.
    pub fn target(&self) -> &str {
        match &self.start {
            StartLine::Request { target, .. } => target,
            StartLine::Response { .. } => "",
        }
    }

    /// Returns the status of a response; 0 for a request.
    pub fn status(&self) -> u16 {
        match self.start {
            StartLine::Request { .. } => 0,
            StartLine::Response { status, .. } => status,
        }
    }

    /// Returns whether a response is interim: another response to the same request follows.
    pub fn interim(&self) -> bool {
        (100..200).contains(&self.status()) && self.status() != 101
    }

    /// Returns whether the sender announces that this is the last message of the connection.
    pub fn closes(&self) -> bool {
        fields::tokens(&self.fields, "connection").any(|token| token == "close")
    }
}

/// The request that belongs to a response. It decides the framing of the response.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RequestContext {
    /// The request's method.
    pub method: String,
    /// Whether the request was HTTP/1.0, whose clients do not support chunks.
    pub old: bool,
}

impl RequestContext {
    /// Returns an HTTP/1.1 request with this method.
    pub fn with(method: &str) -> Self {
        Self { method: method.to_owned(), old: false }
    }
}

/// Parses the request at the beginning of `input`.
///
/// Returns `None` if more bytes are needed and nothing so far is ambiguous.
///
/// # Errors
/// Returns what another parser could read differently.
pub fn request(input: &[u8]) -> Result<Option<Message>, Ambiguity> {
    let Some((line, rest)) = line(input, 0)? else { return Ok(None) };
    let line = text(line)?;
    let mut parts = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return ambiguous("a request line that is not three words with single spaces");
    };
    if !fields::is_token(method) {
        return ambiguous("a method that is not a token");
    }
    if version != "HTTP/1.1" {
        return ambiguous("a version other than HTTP/1.1");
    }
    target::check(method, target)?;
    let Some((fields, after)) = fields::section(input, rest)? else { return Ok(None) };
    fields::check_request(&fields)?;
    let framing = body::framing(&fields)?.unwrap_or(Framing::None);
    // Every parser reads a length of zero as no body.
    if method == "TRACE" && !matches!(framing, Framing::None | Framing::Length(0)) {
        return ambiguous("a TRACE with a body");
    }
    let start = StartLine::Request { method: method.to_owned(), target: target.to_owned() };
    finish(input, start, fields, framing, after, false)
}

/// Parses the response to `context` at the beginning of `input`; `ended` says that no more bytes
/// follow.
///
/// Returns `None` if more bytes are needed and nothing so far is ambiguous.
///
/// # Errors
/// Returns what another parser could read differently.
pub fn response(
    input: &[u8],
    context: &RequestContext,
    ended: bool,
) -> Result<Option<Message>, Ambiguity> {
    let Some((line, rest)) = line(input, 0)? else { return Ok(None) };
    let Some(after_version) = line.strip_prefix(b"HTTP/1.1 ") else {
        return ambiguous("a status line that does not begin with HTTP/1.1 and one space");
    };
    let [a @ b'1'..=b'5', b @ b'0'..=b'9', c @ b'0'..=b'9', b' ', reason @ ..] = after_version
    else {
        return ambiguous("a status that is not three digits from 100 to 599 and one space");
    };
    let status = [a, b, c].iter().fold(0, |sum, digit| sum * 10 + u16::from(**digit - b'0'));
    let Some((fields, after)) = fields::section(input, rest)? else { return Ok(None) };
    fields::check_response(&fields, status)?;
    let declared = body::framing(&fields)?;
    // RFC 9110 section 9.3.6: a successful response begins the tunnel.
    let tunnel = context.method == "CONNECT" && (200..300).contains(&status);
    let bodiless = status < 200 || status == 204 || tunnel;
    if bodiless && declared.is_some() {
        return ambiguous("a response without a body that declares a framing");
    }
    if context.old && declared == Some(Framing::Chunked) {
        return ambiguous("chunks for a client of HTTP/1.0");
    }
    let framing = if bodiless || status == 304 || context.method == "HEAD" {
        Framing::None
    } else {
        declared.unwrap_or(Framing::UntilClose)
    };
    let start = StartLine::Response { status, reason: reason.to_owned() };
    let message = finish(input, start, fields, framing, after, ended)?;
    // RFC 9112 section 9.6: a sender whose message ends with the connection announces the close.
    // Otherwise the recipient could take the end for a truncation.
    match message {
        Some(message) if framing == Framing::UntilClose && !message.closes() => {
            ambiguous("a response until close that does not announce the close")
        }
        message => Ok(message),
    }
}

fn finish(
    input: &[u8],
    start: StartLine,
    fields: Vec<Field>,
    framing: Framing,
    after: usize,
    ended: bool,
) -> Result<Option<Message>, Ambiguity> {
    let Some(content) = body::take(input, after, framing, ended)? else { return Ok(None) };
    let body::Content { body, trailers, end } = content;
    Ok(Some(Message { start, fields, framing, body, trailers, bytes: end }))
}

/// Returns the line from `at` without its CR LF, and the position of the next one.
fn line(input: &[u8], at: usize) -> Result<Option<(&[u8], usize)>, Ambiguity> {
    for (offset, byte) in input[at..].iter().enumerate() {
        let here = at + offset;
        match byte {
            b'\r' => match input.get(here + 1) {
                Some(b'\n') => return Ok(Some((&input[at..here], here + 2))),
                Some(_) => return ambiguous("a CR that no LF follows"),
                None => return Ok(None),
            },
            b'\n' => return ambiguous("a LF without a CR before it"),
            b'\t' | b' '..=b'~' | 0x80..=0xff => {}
            _ => return ambiguous("a control character"),
        }
    }
    Ok(None)
}

fn text(line: &[u8]) -> Result<&str, Ambiguity> {
    match std::str::from_utf8(line) {
        Ok(text) if text.is_ascii() => Ok(text),
        _ => ambiguous("high bytes in a request line"),
    }
}

fn ambiguous<T>(why: &str) -> Result<T, Ambiguity> {
    Err(Ambiguity(why.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: &str = "Host: a.test\r\n";

    fn whole(input: &str) -> Message {
        request(input.as_bytes()).expect(input).expect(input)
    }

    fn assert_ambiguous(input: &str) {
        assert!(request(input.as_bytes()).is_err(), "accepted: {}", input.escape_debug());
    }

    fn parse_response(
        input: &str,
        method: &str,
        ended: bool,
    ) -> Result<Option<Message>, Ambiguity> {
        response(input.as_bytes(), &RequestContext::with(method), ended)
    }

    #[test]
    fn a_request_is_complete_at_its_last_byte_and_not_before() {
        let input = format!("POST /a?b HTTP/1.1\r\n{HOST}Content-Length: 3\r\n\r\nabcGET");
        for end in 0..input.len() - 3 {
            assert_eq!(request(&input.as_bytes()[..end]), Ok(None), "{end}");
        }
        let message = whole(&input);
        assert_eq!(message.bytes, input.len() - 3);
        assert_eq!((message.method(), message.target()), ("POST", "/a?b"));
        assert_eq!(message.body, b"abc");
    }

    #[test]
    fn first_lines_have_one_spelling() {
        for line in [
            "GET  / HTTP/1.1",
            "GET /  HTTP/1.1",
            "GET\t/ HTTP/1.1",
            " GET / HTTP/1.1",
            "GET / HTTP/1.1 ",
            "GET / HTTP/1.0",
            "GET / http/1.1",
            "GET / HTTP/1.10",
            "GET /",
            "G@T / HTTP/1.1",
            " / HTTP/1.1",
            "",
        ] {
            assert_ambiguous(&format!("{line}\r\n{HOST}\r\n"));
        }
        assert_ambiguous(&format!("GET / HTTP/1.1\n{HOST}\r\n"));
        assert_ambiguous(&format!("GET / HTTP/1.1\r{HOST}\r\n"));
        assert_ambiguous("GET /\0 HTTP");
        assert_ambiguous("\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n");
    }

    #[test]
    fn framing_is_declared_once() {
        for fields in [
            "Content-Length: 1\r\nContent-Length: 1\r\n",
            "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n",
            "Content-Length: 1, 1\r\n",
            "Content-Length: 01\r\n",
            "Content-Length: +1\r\n",
            "Content-Length: \r\n",
            "Content-Length: 18446744073709551616\r\n",
            "Transfer-Encoding: Chunked\r\n",
            "Transfer-Encoding: gzip, chunked\r\n",
            "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        ] {
            assert_ambiguous(&format!("POST / HTTP/1.1\r\n{HOST}{fields}\r\n"));
        }
        assert_ambiguous(&format!("TRACE / HTTP/1.1\r\n{HOST}Content-Length: 1\r\n\r\na"));
    }

    #[test]
    fn the_request_decides_the_framing_of_its_response() {
        let ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok";
        assert!(parse_response(ok, "CONNECT", false).is_err());
        assert!(parse_response("HTTP/1.1 200 OK\r\n\r\n", "CONNECT", false).unwrap().is_some());
        assert_eq!(parse_response(ok, "GET", false).unwrap().unwrap().body, b"ok");
        assert_eq!(parse_response(ok, "HEAD", false).unwrap().unwrap().bytes, ok.len() - 2);
        let open = "HTTP/1.1 200 \r\nConnection: close\r\n\r\nso far";
        assert_eq!(parse_response(open, "GET", false), Ok(None));
        assert_eq!(parse_response(open, "GET", true).unwrap().unwrap().body, b"so far");
        assert!(parse_response("HTTP/1.1 200 OK\r\n\r\nso far", "GET", true).is_err());
        let not_modified = "HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n";
        assert!(parse_response(not_modified, "GET", false).unwrap().unwrap().body.is_empty());
        let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
        assert!(parse_response(chunked, "GET", false).unwrap().is_some());
        let old = RequestContext { method: "GET".to_owned(), old: true };
        assert!(response(chunked.as_bytes(), &old, false).is_err());
    }

    #[test]
    fn ambiguous_responses_are_refused() {
        for input in [
            "HTTP/1.0 200 OK\r\n\r\n",
            "HTTP/1.1  200 OK\r\n\r\n",
            "HTTP/1.1 200\r\n\r\n",
            "HTTP/1.1 099 No\r\n\r\n",
            "HTTP/1.1 600 No\r\n\r\n",
            "HTTP/1.1 1000 No\r\n\r\n",
            "HTTP/1.1 200 O\x01K\r\n\r\n",
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
            "HTTP/1.1 100 Continue\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
            "HTTP/1.1 101 Switching Protocols\r\n\r\n",
        ] {
            assert!(parse_response(input, "GET", true).is_err(), "{}", input.escape_debug());
        }
    }
}

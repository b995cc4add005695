//! Request headers: the request line and the fields after it.

use std::borrow::Cow;

use memchr::{memchr, memchr2};

use crate::byte_class::{ByteClass, PATH, QUERY, TOKEN};
use crate::error::HeadError;
use crate::field::Span;
use crate::head::{Fields, Head, HeadLimits, HeadScan, StartLine};
use crate::limits::METHOD_BYTES_MAX;
use crate::line_parser::{bare_cr_or, parse_version};
use crate::method::{Method, Version};
use crate::path;
use crate::target::{
    self, Authority, AuthoritySpan, Destination, DestinationSpans, Host, HostSpan, TargetError,
    TargetForm,
};

/// The header of a request: a request line (RFC 9112 section 3) and field lines.
///
/// The following are refused although the RFCs allow them, because origins disagree about them or
/// because they exceed a limit of this crate:
///
/// | refused | allowed by |
/// | --- | --- |
/// | more than one empty line before the request | RFC 9112 section 2.2 |
/// | lines that end in LF; repeated spaces in the request line | RFC 9112 sections 2.2 and 3 |
/// | minor versions above 1 | RFC 9110 section 2.5: to be processed as 1.1 |
/// | folded values | RFC 9112 section 5.2, but a proxy may refuse them |
/// | methods above 32 bytes, more than 32 connection options | RFC 9110 sections 9.1, 7.6.1 |
/// | more than 8 upgrade protocols, more than 32 empty members | RFC 9110 sections 7.8, 5.6.1 |
pub type RequestHead = Head<RequestLine>;

/// The parsed request line.
#[derive(Clone, Debug)]
pub struct RequestLine {
    method: Method,
    version: Version,
    form: TargetForm,
    method_span: Span,
    /// A range of the bytes of the header. If `is_raw`, it is after the received bytes once the
    /// header is complete.
    target_span: Span,
    /// Whether the target has non-ASCII bytes, which are percent-encoded when the header is
    /// complete.
    is_raw: bool,
    /// Determined when the header is complete, from the target and the `Host` field.
    destination: Result<DestinationSpans, TargetError>,
}

impl RequestLine {
    /// Parses the request line at the start of a header, if it is complete, valid and all ASCII.
    /// Returns the offset of the first field line.
    fn parse_plain_line(&mut self, head: &[u8], limits: &HeadLimits) -> Option<usize> {
        let method_len = TOKEN.prefix_len(&head[..head.len().min(METHOD_BYTES_MAX)]);
        let [b' ', rest @ ..] = &head[method_len..] else { return None };
        let mut target_len = PATH.prefix_len(rest);
        if rest[target_len..].starts_with(b"?") {
            target_len += QUERY.prefix_len(&rest[target_len..]);
        }
        let (target, rest) = rest.split_at(target_len);
        let version = match rest.first_chunk()? {
            b" HTTP/1.1\r\n" => Version::Http11,
            b" HTTP/1.0\r\n" => Version::Http10,
            _ => return None,
        };
        if method_len == 0 || target.is_empty() || target.len() > limits.target_bytes_max {
            return None;
        }
        self.set_line(&head[..method_len], target, version);
        Some(method_len + 1 + target_len + b" HTTP/1.1\r\n".len())
    }

    /// Parses a complete request line (RFC 9112 section 3): method, target and version with one
    /// space between them.
    fn parse_request_line(&mut self, line: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
        let method_end = memchr(b' ', line).ok_or(HeadError::MethodInvalid)?;
        let rest = &line[method_end + 1..];
        let target_len = memchr2(b' ', b'\t', rest).unwrap_or(rest.len());
        let (target, rest) = rest.split_at(target_len);
        if target.len() > limits.target_bytes_max {
            return Err(HeadError::TargetTooLong);
        }
        match rest {
            [] if target.is_empty() => return Err(HeadError::TargetInvalid),
            [] => return Err(bare_cr_or(target, HeadError::VersionMissing)),
            _ if target.is_empty() => return Err(HeadError::RequestLineSpaces),
            [b'\t', ..] | [b' ', b' ' | b'\t', ..] | [.., b' ' | b'\t'] => {
                return Err(HeadError::RequestLineSpaces);
            }
            _ => {}
        }
        let version = parse_version(&rest[1..])?;
        check_target(target)?;
        let raw = target.iter().filter(|byte| !byte.is_ascii()).count();
        if target.len() + 2 * raw > limits.target_bytes_max {
            return Err(HeadError::TargetTooLong);
        }
        self.set_line(&line[..method_end], target, version);
        self.is_raw = raw > 0;
        Ok(())
    }

    /// Appends the target to the bytes of the header, with non-ASCII bytes percent-encoded.
    #[cold]
    fn encode_target(&mut self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        for at in self.target_span.range() {
            let byte = bytes[at];
            target::push_encoded(bytes, byte);
        }
        self.target_span = Span::new(start..bytes.len());
    }

    fn set_line(&mut self, method: &[u8], target: &[u8], version: Version) {
        self.version = version;
        self.is_raw = false;
        self.method = Method::from_bytes(method);
        self.form = target::target_form(self.method, target);
        self.method_span = Span::new(0..method.len());
        self.target_span = Span::new(method.len() + 1..method.len() + 1 + target.len());
    }
}

impl RequestHead {
    /// Returns the method.
    pub fn method(&self) -> Method {
        self.line.method
    }

    /// Returns the method as received: a token of 1 to 32 bytes.
    pub fn method_bytes(&self) -> &[u8] {
        self.line.method_span.slice(&self.fields.bytes)
    }

    /// Returns the target as received, with non-ASCII bytes percent-encoded. It is not empty, and
    /// has only the bytes that [`target`] lists. The destination is derived from this form.
    pub fn target(&self) -> &[u8] {
        self.line.target_span.slice(&self.fields.bytes)
    }

    /// Returns the form of the target. [`destination`](crate::destination()) checks whether the
    /// method allows it.
    pub fn form(&self) -> TargetForm {
        self.line.form
    }

    /// Returns the version.
    pub fn version(&self) -> Version {
        self.line.version
    }

    /// Replaces the path of the destination with its normal form ([`path::normalise`]). The query
    /// stays as it is, and [`target`](Self::target) still returns the target as received.
    pub fn normalise_path(&mut self) {
        let Ok(located) = &mut self.line.destination else { return };
        let target = located.path_and_query.slice(&self.fields.bytes);
        let (path, query) = path::split_query(target);
        if path.starts_with(b"/")
            && let Cow::Owned(normal) = path::normalise(path)
        {
            let target = [&normal, query].concat();
            let start = self.fields.bytes.len();
            self.fields.bytes.extend_from_slice(&target);
            located.path_and_query = Span::new(start..self.fields.bytes.len());
        }
    }
}

/// Returns the destination of a request (RFC 9112 section 3.2).
///
/// An absolute target takes precedence over `Host` (section 3.2.2), but `Host` has to be valid too,
/// because the next server may use it. The destination was determined when the header was parsed,
/// so calls are cheap.
///
/// # Errors
/// Returns a [`TargetError`] if the method does not allow the form of the target, if the scheme is
/// neither `http` nor `https`, or if the host is missing, invalid or ambiguous.
pub fn destination(head: &RequestHead) -> Result<Destination<'_>, TargetError> {
    let DestinationSpans { scheme, authority, path_and_query } = head.line.destination?;
    let view = |span: Span| span.slice(&head.fields.bytes);
    let authority_bytes = authority.map_or(&[][..], |at| view(at.span));
    let authority = authority.map(|AuthoritySpan { span, host, port }| {
        let host = match host {
            HostSpan::Name(len) => Host::Name(view(Span { len, ..span })),
            HostSpan::V4(address) => Host::V4(address),
            HostSpan::V6(address) => Host::V6(address),
        };
        Authority { host, port }
    });
    let path_and_query = view(path_and_query);
    Ok(Destination { scheme, authority, authority_bytes, path_and_query })
}

impl Default for RequestLine {
    fn default() -> Self {
        Self {
            method: Method::default(),
            version: Version::default(),
            form: TargetForm::default(),
            method_span: Span::default(),
            target_span: Span::default(),
            is_raw: false,
            destination: Err(TargetError::HostMissing),
        }
    }
}

impl StartLine for RequestLine {
    fn parse(
        &mut self,
        input: &[u8],
        scan: &mut HeadScan,
        limits: &HeadLimits,
    ) -> Result<bool, HeadError> {
        if !skip_empty_line(input, scan)? {
            return Ok(false);
        }
        let begin = scan.begin as usize;
        if let Some(input) = scan.unscanned(input, limits)
            && let Some(len) = self.parse_plain_line(&input[begin..], limits)
        {
            scan.advance_to(begin + len);
            return Ok(true);
        }
        check_beginning(&input[begin..], limits)?;
        let Some(line) = scan.next_line(input, limits)? else { return Ok(false) };
        self.parse_request_line(&input[line], limits)?;
        Ok(true)
    }

    #[inline]
    fn finish(&mut self, fields: &mut Fields) {
        if self.is_raw {
            self.encode_target(&mut fields.bytes);
        }
        let line = (self.method, self.form, self.version);
        self.destination = target::locate_destination(fields, line, self.target_span);
    }
}

/// Sets the offset of the header. Returns `false` if more input is needed to determine it.
fn skip_empty_line(input: &[u8], scan: &mut HeadScan) -> Result<bool, HeadError> {
    let begin = match input {
        [] | [b'\r'] | [b'\r', b'\n'] => return Ok(false),
        [b'\r', b'\n', b'\r' | b'\n', ..] => return Err(HeadError::EmptyLine),
        [b'\r', b'\n', ..] => 2,
        [b'\r', ..] => return Err(HeadError::BareCr),
        [b'\n', ..] => return Err(HeadError::BareLf),
        _ => 0,
    };
    scan.begin = begin;
    scan.line = begin;
    scan.scanned = scan.scanned.max(begin);
    Ok(true)
}

/// Refuses input that cannot become a request line: bytes of another protocol, or a line that is
/// too long. It is called for each piece that arrives, so it reads few bytes.
fn check_beginning(line: &[u8], limits: &HeadLimits) -> Result<(), HeadError> {
    let seen = &line[..line.len().min(METHOD_BYTES_MAX + 1)];
    match seen.iter().position(|&byte| !TOKEN.contains(byte)) {
        Some(end) if seen[end] != b' ' || end == 0 => return Err(HeadError::MethodInvalid),
        None if seen.len() > METHOD_BYTES_MAX => return Err(HeadError::MethodTooLong),
        _ => {}
    }
    // A method, a target, a version, two spaces and the CR.
    let line_max = (METHOD_BYTES_MAX + limits.target_bytes_max + 11).min(limits.bytes_max);
    if line.len() > line_max && memchr(b'\n', &line[..=line_max]).is_none() {
        return Err(HeadError::TargetTooLong);
    }
    Ok(())
}

fn check_target(target: &[u8]) -> Result<(), HeadError> {
    let query = memchr(b'?', target).unwrap_or(target.len());
    // Non-ASCII bytes are valid here, because they are percent-encoded later. An authority that
    // contains them is refused when it is parsed, because a host has no percent-encoding.
    let has_only = |class: ByteClass, bytes: &[u8]| {
        bytes.iter().all(|&byte| class.contains(byte) || !byte.is_ascii())
    };
    if has_only(PATH, &target[..query]) && has_only(QUERY, &target[query..]) {
        return Ok(());
    }
    Err(bare_cr_or(target, HeadError::TargetInvalid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::corpus;
    use crate::fuzz::fuzz_request_head;
    use crate::test_heads::{LIMITS, request};

    #[test]
    fn a_head_has_its_parts_and_its_length() {
        let bytes = b"\r\nPOST /a?b HTTP/1.0\r\nHost:\t a \r\nX:\r\nx-Y: \xff\tz\r\n\r\nbody";
        let mut head = RequestHead::default();
        let used = head.parse(bytes, &mut HeadScan::default(), &LIMITS);
        assert_eq!(used, Ok(Some(bytes.len() - 4)));
        assert_eq!((head.method(), head.method_bytes()), (Method::Post, &b"POST"[..]));
        assert_eq!((head.target(), head.form()), (&b"/a?b"[..], TargetForm::Origin));
        assert_eq!(head.version(), Version::Http10);
        let fields: Vec<_> =
            head.fields().iter().map(|it| (head.name_of(it), head.value_of(it))).collect();
        let expected = [(&b"Host"[..], &b"a"[..]), (b"X", b""), (b"x-Y", b"\xff\tz")];
        assert_eq!(fields, expected);
        assert_eq!(head.bytes(), &bytes[2..bytes.len() - 4]);
        assert_eq!(head.find(crate::FieldName::Host).map(|it| head.value_of(it)), Some(&b"a"[..]));
    }

    #[test]
    fn any_token_is_a_method() {
        let head = request("M-SEARCH!#$%&'*+.^_`|~ * HTTP/1.1\r\n\r\n").unwrap();
        assert_eq!((head.method(), head.method_bytes().len()), (Method::Other, 22));
        assert_eq!(request("get / HTTP/1.1\r\n\r\n").unwrap().method(), Method::Other);
    }

    #[test]
    fn malformed_request_lines_are_refused() {
        use HeadError::*;
        for (line, error) in [
            ("GET /\r\n", VersionMissing),
            ("GET\r\n", MethodInvalid),
            (" GET / HTTP/1.1\r\n", MethodInvalid),
            ("G\tET / HTTP/1.1\r\n", MethodInvalid),
            ("GET\t/ HTTP/1.1\r\n", MethodInvalid),
            ("G(T / HTTP/1.1\r\n", MethodInvalid),
            ("G\u{e9} / HTTP/1.1\r\n", MethodInvalid),
            ("\0GET / HTTP/1.1\r\n", MethodInvalid),
            ("GET  / HTTP/1.1\r\n", RequestLineSpaces),
            ("GET /  HTTP/1.1\r\n", RequestLineSpaces),
            ("GET /\tHTTP/1.1\r\n", RequestLineSpaces),
            ("GET / \tHTTP/1.1\r\n", RequestLineSpaces),
            ("GET / HTTP/1.1 \r\n", RequestLineSpaces),
            ("GET / \r\n", RequestLineSpaces),
            ("GET \r\n", TargetInvalid),
            ("GET /a b HTTP/1.1\r\n", VersionInvalid),
            ("GET / HTTP/1.1\n", BareLf),
            ("GET / HTTP/1.1\r\r\n", BareCr),
            ("GET /\rHTTP/1.1\r\n", BareCr),
            ("GET /\r HTTP/1.1\r\n", BareCr),
            ("\rGET / HTTP/1.1\r\n", BareCr),
            ("\nGET / HTTP/1.1\r\n", BareLf),
            ("\r\n\r\nGET / HTTP/1.1\r\n", EmptyLine),
            ("\r\n\nGET / HTTP/1.1\r\n", EmptyLine),
            ("GET / HTTP/1.2\r\n", VersionUnsupported),
            ("GET / HTTP/2.0\r\n", VersionUnsupported),
            ("PRI * HTTP/2.0\r\n", VersionUnsupported),
            ("GET / HTTP/0.9\r\n", VersionUnsupported),
            ("GET / HTTP/1.10\r\n", VersionInvalid),
            ("GET / HTTP/1.01\r\n", VersionInvalid),
            ("GET / HTTP/1,1\r\n", VersionInvalid),
            ("GET / HTTP/1\r\n", VersionInvalid),
            ("GET / HTTP/+1.1\r\n", VersionInvalid),
            ("GET / http/1.1\r\n", VersionInvalid),
            ("GET / XHTTP/1.1\r\n", VersionInvalid),
            ("GET / HTTPS/1.1\r\n", VersionInvalid),
            ("GET / HTTP/1.1x\r\n", VersionInvalid),
            ("GET / HTTP /1.1\r\n", VersionInvalid),
            ("GET /a#b HTTP/1.1\r\n", TargetInvalid),
            ("GET /\0 HTTP/1.1\r\n", TargetInvalid),
            ("GET /\u{e9}\x7f HTTP/1.1\r\n", TargetInvalid),
            ("GET /\u{e9}#a HTTP/1.1\r\n", TargetInvalid),
        ] {
            assert_eq!(request(format!("{line}Host: a\r\n\r\n")).err(), Some(error), "{line:?}");
        }
    }

    #[test]
    fn raw_bytes_of_a_target_are_encoded() {
        let encoded = |line: &str, target: &str, path: &str| {
            let bytes = format!("{line} HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\n");
            let head = request(&bytes).unwrap();
            assert_eq!((head.bytes(), head.target()), (bytes.as_bytes(), target.as_bytes()));
            assert_eq!(destination(&head).unwrap().path_and_query, path.as_bytes());
            assert_eq!(
                head.find(crate::FieldName::Host).map(|it| head.value_of(it)),
                Some(&b"a"[..])
            );
        };
        encoded("GET /\u{fc}?\u{20ac}=\\", "/%C3%BC?%E2%82%AC=\\", "/%C3%BC?%E2%82%AC=\\");
        encoded("GET http://b/\u{fc}", "http://b/%C3%BC", "/%C3%BC");
        encoded("GET http://b?\u{fc}", "http://b?%C3%BC", "/?%C3%BC");
        let latin1 = request(b"GET /\xfc\x80\xff HTTP/1.1\r\nHost: a\r\n\r\n").unwrap();
        assert_eq!(latin1.target(), b"/%FC%80%FF");
        for line in ["GET http://\u{fc}/", "CONNECT \u{fc}:1", "GET \u{fc}", "GET h\u{fc}://a/"] {
            let head = request(format!("{line} HTTP/1.1\r\nHost: a\r\n\r\n")).unwrap();
            assert!(destination(&head).is_err(), "{line}");
        }
        // The limit applies to the encoded form.
        let of_length = |raw: usize, plain: usize| {
            let target = ["\u{fc}".repeat(raw), "a".repeat(plain)].concat();
            request(format!("GET /{target} HTTP/1.1\r\nHost: a\r\n\r\n")).err()
        };
        assert_eq!(of_length(170, 3), None);
        assert_eq!(of_length(170, 4), Some(HeadError::TargetTooLong));
        assert_eq!(of_length(511, 0), Some(HeadError::TargetTooLong));
    }

    #[test]
    fn malformed_field_lines_are_refused() {
        use HeadError::*;
        for (line, error) in [
            ("A : b\r\n", SpaceBeforeColon),
            ("A\t: b\r\n", SpaceBeforeColon),
            (" A: b\r\n", FoldedLine),
            ("\tA: b\r\n", FoldedLine),
            ("A: b\r\n c\r\n", FoldedLine),
            ("A: b\r\n\t\r\n", FoldedLine),
            (" \r\n", FoldedLine),
            (": b\r\n", NameEmpty),
            ("A\r\n", ColonMissing),
            ("A b: c\r\n", NameInvalid),
            ("A\0: b\r\n", NameInvalid),
            ("A\u{b}: b\r\n", NameInvalid),
            ("\u{b}A: b\r\n", NameInvalid),
            ("A\u{e9}: b\r\n", NameInvalid),
            ("A\u{b} : b\r\n", NameInvalid),
            ("(A): b\r\n", NameInvalid),
            ("\"A\": b\r\n", NameInvalid),
            ("A\r: b\r\n", BareCr),
            ("A\rB\r\n", BareCr),
            ("A: b\0c\r\n", ValueInvalid),
            ("A: \u{b}c\r\n", ValueInvalid),
            ("A: \u{7f}\r\n", ValueInvalid),
            ("A: b\u{1b}[0m\r\n", ValueInvalid),
            ("A: b\rc: d\r\n", BareCr),
            ("A: b\r\r\n", BareCr),
            ("A:\r\r\n", BareCr),
            ("\rA: b\r\n", BareCr),
            ("A: b\nC: d\r\n", BareLf),
            ("A: b\n", BareLf),
            ("\n", BareLf),
            ("\r\r\n", BareCr),
        ] {
            let head = format!("GET / HTTP/1.1\r\nHost: a\r\n{line}\r\n");
            assert_eq!(request(head).err(), Some(error), "{line:?}");
        }
    }

    #[test]
    fn every_limit_is_exact() {
        let parse = |bytes: &[u8], limits: HeadLimits| {
            RequestHead::default().parse(bytes, &mut HeadScan::default(), &limits)
        };
        let bytes = b"GET /23456789 HTTP/1.1\r\nA: b\r\nC: d\r\n\r\n";
        let exact = HeadLimits { bytes_max: bytes.len(), fields_max: 2, target_bytes_max: 9 };
        let empty_line_first = [b"\r\n", &bytes[..]].concat();
        assert_eq!(parse(bytes, exact), Ok(Some(bytes.len())));
        assert_eq!(parse(&empty_line_first, exact), Ok(Some(bytes.len() + 2)));
        let limits = HeadLimits { bytes_max: bytes.len() - 1, ..exact };
        assert_eq!(parse(bytes, limits), Err(HeadError::BytesTooMany));
        assert_eq!(parse(&bytes[..bytes.len() - 1], limits), Ok(None));
        let limits = HeadLimits { fields_max: 1, ..exact };
        assert_eq!(parse(bytes, limits), Err(HeadError::FieldsTooMany));
        let limits = HeadLimits { target_bytes_max: 8, ..exact };
        assert_eq!(parse(bytes, limits), Err(HeadError::TargetTooLong));
    }

    #[test]
    fn lines_without_end_are_refused_before_their_end() {
        let parse =
            |bytes: &[u8]| RequestHead::default().parse(bytes, &mut HeadScan::default(), &LIMITS);
        let long_target = [b"GET /", &[b'a'; 1024 + 64][..]].concat();
        assert_eq!(parse(&long_target), Err(HeadError::TargetTooLong));
        assert_eq!(parse(&[b'A'; 33]), Err(HeadError::MethodTooLong));
        let long_method = [&[b'A'; 33][..], b" / HTTP/1.1\r\nHost: a\r\n\r\n"].concat();
        assert_eq!(parse(&long_method), Err(HeadError::MethodTooLong));
        assert_eq!(parse(&[b'A'; 32]), Ok(None));
        assert_eq!(parse(b"\x16\x03\x01"), Err(HeadError::MethodInvalid));
        let long_value = [b"GET / HTTP/1.1\r\nA: ", &[b'a'; 4096][..]].concat();
        assert_eq!(parse(&long_value), Err(HeadError::BytesTooMany));
        let early = b"GET / HTTP/1.1\r\nA : b\r\nrest is not needed";
        assert_eq!(parse(early), Err(HeadError::SpaceBeforeColon));
    }

    #[test]
    fn connection_options_are_bounded() {
        let head = |count| format!("GET / HTTP/1.1\r\nConnection: {}\r\n\r\n", "a,".repeat(count));
        assert!(request(head(32)).is_ok());
        assert_eq!(request(head(33)).err(), Some(HeadError::ConnectionOptionsTooMany));
        let empty = |count| format!("GET / HTTP/1.1\r\nConnection: a{}\r\n\r\n", ",".repeat(count));
        assert!(request(empty(32)).is_ok());
        assert_eq!(request(empty(33)).err(), Some(HeadError::ConnectionOptionsTooMany));
    }

    #[test]
    fn upgrade_protocols_are_bounded_where_they_apply() {
        let head = |connection: &str, list: String| {
            request(format!(
                "GET / HTTP/1.1\r\nConnection: {connection}\r\nUpgrade: {list}\r\n\r\n"
            ))
        };
        assert!(head("upgrade", "a,".repeat(8)).is_ok());
        let refused = Some(HeadError::UpgradeProtocolsTooMany);
        assert_eq!(head("upgrade", "a,".repeat(9)).err(), refused);
        assert_eq!(head("upgrade", format!("a{}", ",".repeat(33))).err(), refused);
        assert!(head("close", "a,".repeat(9)).is_ok());
    }

    #[test]
    fn a_head_in_pieces_is_scanned_twice_at_most() {
        let bytes = [b"GET / HTTP/1.1\r\nA: ", &[b'a'; 3000][..], b"\r\n\r\n"].concat();
        let mut scan = HeadScan::default();
        for end in 0..bytes.len() {
            let parsed = RequestHead::default().parse(&bytes[..end], &mut scan, &LIMITS);
            assert_eq!(parsed, Ok(None));
            let line = if end < 16 { 0 } else { 16 };
            let line = if end < bytes.len() - 2 { line } else { bytes.len() - 2 };
            assert_eq!((scan.line as usize, scan.scanned as usize), (line, end.max(line)));
        }
        let parsed = RequestHead::default().parse(&bytes, &mut scan, &LIMITS);
        assert_eq!(parsed, Ok(Some(bytes.len())));
    }

    #[test]
    fn a_head_that_failed_is_empty() {
        let mut head = request("HEAD /a HTTP/1.0\r\nHost: a\r\n\r\n").unwrap();
        for bytes in [&b"POST /b HTTP/1.0\r\nA\r\n\r\n"[..], b"POST /b HTTP/1.0\r\nA: b\r\n"] {
            let parsed = head.parse(bytes, &mut HeadScan::default(), &LIMITS);
            assert!(!matches!(parsed, Ok(Some(_))));
            assert_eq!((head.method(), head.version()), (Method::Get, Version::Http11));
            assert!(head.method_bytes().is_empty() && head.target().is_empty());
            assert!(head.fields().is_empty() && head.bytes().is_empty());
        }
    }

    #[test]
    fn the_corpus_keeps_the_invariants() {
        corpus::run("request_head", 40, corpus::mutate_bytes, fuzz_request_head);
    }
}

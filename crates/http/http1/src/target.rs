//! Request targets and hosts: the destination of a request. Nothing is resolved or normalised here.
//!
//! A target may have the characters of RFC 3986 except `#`, also `[` and `]` in paths and queries.
//! Browsers send other characters too, of which ``| ^ ` { }`` are accepted anywhere. `\` is
//! accepted only after the first `?`, because some origins read it as `/` in a path. Control bytes,
//! spaces and `" < > #` are refused. Non-ASCII bytes are percent-encoded before anything else uses
//! the target. A host that contains them is refused.
//!
//! This module keeps percent-encoding as received, even if it is malformed (`%zz`, a `%` at the
//! end) or hides a `/`. It also keeps empty segments and dot segments. The module [`crate::path`]
//! describes how origins interpret such paths, and
//! [`RequestHead::normalise_path`](crate::RequestHead::normalise_path) replaces them.
//!
//! Hosts are parsed strictly, because an access rule, a resolver and an origin must agree on the
//! host. The following are valid by RFC 3986 but are refused:
//!
//! * user information
//! * percent-encoding, sub-delimiters and `~` in a name
//! * empty names and labels, names of more than 253 bytes, and labels of more than 63
//! * addresses of future IP versions, and zone identifiers
//! * an empty port, port 0, and leading zeros in a port
//! * hosts whose last label is a number, other than dotted quads: resolvers read hosts such as
//!   `127.1`, `0x7f.1` and `017700000001` as different addresses, or as names

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::Range;

use memchr::memchr2;

use crate::byte_class::HOST;
use crate::field::Span;
use crate::head::Fields;
use crate::limits::{HOST_BYTES_MAX, LABEL_BYTES_MAX};
use crate::method::{Method, Version};
use crate::name::FieldName;
use crate::scheme::Scheme;

/// The form of a request target (RFC 9112 section 3.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum TargetForm {
    /// Origin form: `/path?query`.
    #[default]
    Origin,
    /// Absolute form: `scheme://host/path?query`.
    Absolute,
    /// Authority form: `host:port`.
    Authority,
    /// Asterisk form: `*`.
    Asterisk,
}

/// A host with an optional port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Authority<'a> {
    /// The host.
    pub host: Host<'a>,
    /// The port, 1 to 65535; `None` if it is absent.
    pub port: Option<u16>,
}

/// A host that every resolver reads alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Host<'a> {
    /// A name as received, in any case: labels of 1 to 63 alphanumeric bytes, `-` and `_`, at most
    /// 253 bytes, with an optional final dot. It is not an address in any notation.
    Name(&'a [u8]),
    /// An IPv4 address, written as a dotted quad.
    V4(Ipv4Addr),
    /// An IPv6 address, written in brackets.
    V6(Ipv6Addr),
}

/// The destination of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Destination<'a> {
    /// The scheme of an absolute target; `None` if the target has another form.
    pub scheme: Option<Scheme>,
    /// The authority of the target, or of `Host` if the target has none. `None` only for an
    /// HTTP/1.0 request without `Host`. The port is always present for CONNECT.
    pub authority: Option<Authority<'a>>,
    /// The authority as received: the host, and the port if it is present. Empty if there is no
    /// authority.
    pub authority_bytes: &'a [u8],
    /// The target for the origin's request line: begins with `/`, or is `*`; empty for CONNECT.
    pub path_and_query: &'a [u8],
}

/// The ranges of a header from which a [`Destination`] is built.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestinationSpans {
    pub(crate) scheme: Option<Scheme>,
    pub(crate) authority: Option<AuthoritySpan>,
    /// A range of the bytes of the header; it may be after the received bytes.
    pub(crate) path_and_query: Span,
}

/// The range of a header from which an [`Authority`] is built, and the parsed values.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AuthoritySpan {
    /// The authority as received.
    pub(crate) span: Span,
    pub(crate) host: HostSpan,
    pub(crate) port: Option<u16>,
}

/// The host at the start of an authority.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostSpan {
    /// A name, with its length in bytes.
    Name(u32),
    V4(Ipv4Addr),
    V6(Ipv6Addr),
}

/// The reason why a target or host is refused. The client caused each of these errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TargetError {
    /// The method does not allow the form of the target: `*` without OPTIONS, `host:port` without
    /// CONNECT, or another form with CONNECT. Or the target has none of the four forms.
    FormInvalid,
    /// An absolute target has a scheme other than `http` and `https`.
    SchemeUnsupported,
    /// An HTTP/1.1 request has no `Host`.
    HostMissing,
    /// The request has more than one `Host`.
    HostDuplicate,
    /// The host is empty.
    HostEmpty,
    /// The host is neither a valid name nor an address in its standard notation.
    HostInvalid,
    /// User information precedes the host.
    UserInformation,
    /// The port is not 1 to 65535 in plain decimal.
    PortInvalid,
    /// The target of a CONNECT request has no port.
    PortMissing,
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FormInvalid => "the request target's form does not fit the method",
            Self::SchemeUnsupported => "the request target's scheme is neither http nor https",
            Self::HostMissing => "the request has no Host field",
            Self::HostDuplicate => "the request has more than one Host field",
            Self::HostEmpty => "the host is empty",
            Self::HostInvalid => "the host is neither a name nor an address",
            Self::UserInformation => "the host has user information before it",
            Self::PortInvalid => "the port is not a number from 1 to 65535",
            Self::PortMissing => "the CONNECT target has no port",
        })
    }
}

impl std::error::Error for TargetError {}

impl<'a> Authority<'a> {
    /// Parses `host` or `host:port` (RFC 3986 section 3.2), without user information.
    ///
    /// # Errors
    /// Returns a [`TargetError`] for the forms that the [module](crate::target) lists.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, TargetError> {
        // No part may contain an `@`, so the search for it is only needed to select the error.
        Self::parse_parts(bytes).map_err(|error| match bytes.contains(&b'@') {
            true => TargetError::UserInformation,
            false => error,
        })
    }

    fn parse_parts(bytes: &'a [u8]) -> Result<Self, TargetError> {
        let (host, rest) = match bytes {
            [b'[', inner @ ..] => {
                let end = inner.iter().position(|&byte| byte == b']');
                let end = end.ok_or(TargetError::HostInvalid)?;
                (parse_v6(&inner[..end])?, &inner[end + 1..])
            }
            _ => {
                let (host, rest) = bytes.split_at(HOST.prefix_len(bytes));
                if !matches!(rest, [] | [b':', ..]) {
                    return Err(TargetError::HostInvalid);
                }
                (parse_name_or_v4(host)?, rest)
            }
        };
        let port = match rest {
            [] => None,
            [b':', digits @ ..] => Some(parse_port(digits)?),
            _ => return Err(TargetError::HostInvalid),
        };
        Ok(Self { host, port })
    }
}

/// Formats the authority as in a `Host` field or a URI, with IPv6 in brackets.
impl fmt::Display for Authority<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.host)?;
        self.port.map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

impl fmt::Display for Host<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => name.iter().try_for_each(|&byte| write!(f, "{}", byte as char)),
            Self::V4(address) => write!(f, "{address}"),
            Self::V6(address) => write!(f, "[{address}]"),
        }
    }
}

/// Appends a byte of a path or query in the form that request targets have: a non-ASCII byte is
/// percent-encoded (RFC 3986 section 2.1). A URL from another source, such as `Location`, has to be
/// converted by this function before it is compared with a target.
pub fn push_encoded(out: &mut Vec<u8>, byte: u8) {
    if byte.is_ascii() {
        out.push(byte);
    } else {
        push_escape(out, byte);
    }
}

/// Appends a byte as an escape.
pub fn push_escape(out: &mut Vec<u8>, byte: u8) {
    let digit = |nibble: u8| b"0123456789ABCDEF"[usize::from(nibble)];
    out.extend([b'%', digit(byte >> 4), digit(byte & 15)]);
}

/// Determines the result of [`destination`](crate::destination()) once a header is complete. It may
/// append a path to the bytes of the header.
#[inline(always)]
pub(crate) fn locate_destination(
    fields: &mut Fields,
    (method, form, version): (Method, TargetForm, Version),
    target: Span,
) -> Result<DestinationSpans, TargetError> {
    let host = parse_host_field(fields, version)?;
    let is_connect = method == Method::Connect;
    match form {
        TargetForm::Authority if is_connect => {
            let authority = parse_authority(fields, target, host)?;
            authority.port.ok_or(TargetError::PortMissing)?;
            let (authority, path_and_query) = (Some(authority), Span::default());
            Ok(DestinationSpans { scheme: None, authority, path_and_query })
        }
        TargetForm::Authority => Err(TargetError::FormInvalid),
        _ if is_connect => Err(TargetError::FormInvalid),
        TargetForm::Asterisk if method != Method::Options => Err(TargetError::FormInvalid),
        TargetForm::Origin | TargetForm::Asterisk => {
            Ok(DestinationSpans { scheme: None, authority: host, path_and_query: target })
        }
        TargetForm::Absolute => {
            let (name, authority) = split_absolute(target.slice(&fields.bytes));
            let scheme = Scheme::from_name(name).ok_or(TargetError::SchemeUnsupported)?;
            let start = target.start as usize + name.len() + "://".len();
            let path = start + authority.len()..(target.start + target.len) as usize;
            let authority = parse_authority(fields, Span::new(start..path.start), host)?;
            let path_and_query = locate_path(method, path, &mut fields.bytes);
            let authority = Some(authority);
            Ok(DestinationSpans { scheme: Some(scheme), authority, path_and_query })
        }
    }
}

/// Parses the `Host` field. RFC 9112 section 3.2: exactly one is required in HTTP/1.1, and it has
/// to be valid.
fn parse_host_field(
    fields: &Fields,
    version: Version,
) -> Result<Option<AuthoritySpan>, TargetError> {
    let mut hosts = fields.fields_of(FieldName::Host);
    match (hosts.next(), hosts.next()) {
        (Some(_), Some(_)) => Err(TargetError::HostDuplicate),
        (Some(host), None) => parse_authority(fields, host.value, None).map(Some),
        (None, _) if version == Version::Http10 => Ok(None),
        (None, _) => Err(TargetError::HostMissing),
    }
}

/// Parses an authority. If it has the same bytes as `other`, the values of `other` are returned.
fn parse_authority(
    fields: &Fields,
    span: Span,
    other: Option<AuthoritySpan>,
) -> Result<AuthoritySpan, TargetError> {
    let bytes = span.slice(&fields.bytes);
    if let Some(other) = other
        && other.span.slice(&fields.bytes) == bytes
    {
        return Ok(AuthoritySpan { span, ..other });
    }
    let Authority { host, port } = Authority::parse(bytes)?;
    let host = match host {
        Host::Name(name) => HostSpan::Name(name.len() as u32),
        Host::V4(address) => HostSpan::V4(address),
        Host::V6(address) => HostSpan::V6(address),
    };
    Ok(AuthoritySpan { span, host, port })
}

/// Returns the form of a target. With CONNECT, a target that begins with a scheme is read as an
/// authority, because CONNECT allows no other form.
pub(crate) fn target_form(method: Method, target: &[u8]) -> TargetForm {
    match target {
        b"*" => TargetForm::Asterisk,
        [b'/', ..] => TargetForm::Origin,
        _ if method == Method::Connect => TargetForm::Authority,
        _ if is_absolute(target) => TargetForm::Absolute,
        _ => TargetForm::Authority,
    }
}

/// Returns whether the target begins with a scheme (RFC 3986 section 3.1: an alphabetic byte, then
/// alphanumeric bytes, `+`, `-` and `.`) and `://`.
fn is_absolute(target: &[u8]) -> bool {
    let scheme_len = target
        .iter()
        .position(|byte| !(byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-' | b'.')))
        .unwrap_or(target.len());
    target[0].is_ascii_alphabetic() && target[scheme_len..].starts_with(b"://")
}

/// Splits an absolute target into its scheme and its authority.
#[inline(always)]
fn split_absolute(target: &[u8]) -> (&[u8], &[u8]) {
    let scheme_len =
        target.iter().position(|&byte| byte == b':').expect("an absolute target has a colon");
    let rest = &target[scheme_len + "://".len()..];
    (&target[..scheme_len], &rest[..memchr2(b'/', b'?', rest).unwrap_or(rest.len())])
}

/// Returns the range of the path and query of an absolute target in the bytes of a header. An empty
/// path is sent as `/` (RFC 9112 section 3.2.1). With OPTIONS and no query, it is sent as `*`,
/// which means the whole server (section 3.2.4). Such a path is appended to the received bytes.
fn locate_path(method: Method, range: Range<usize>, bytes: &mut Vec<u8>) -> Span {
    let start = bytes.len();
    match bytes[range.clone()].first() {
        None => bytes.push(if method == Method::Options { b'*' } else { b'/' }),
        Some(b'?') => {
            bytes.push(b'/');
            bytes.extend_from_within(range);
        }
        Some(_) => return Span::new(range),
    }
    Span::new(start..bytes.len())
}

fn parse_v6(bytes: &[u8]) -> Result<Host<'static>, TargetError> {
    let text = std::str::from_utf8(bytes).map_err(|_| TargetError::HostInvalid)?;
    text.parse().map(Host::V6).map_err(|_| TargetError::HostInvalid)
}

/// Parses a host whose bytes are all in [`HOST`].
fn parse_name_or_v4(bytes: &[u8]) -> Result<Host<'_>, TargetError> {
    if bytes.is_empty() {
        return Err(TargetError::HostEmpty);
    }
    if let Some(address) = parse_v4(bytes) {
        return Ok(Host::V4(address));
    }
    let labels = bytes.strip_suffix(b".").unwrap_or(bytes);
    // Length of the current label; 0 before its first byte.
    let mut len = 0;
    for &byte in labels {
        len = match (byte, len) {
            (b'.', 1..) => 0,
            (b'.', _) | (_, LABEL_BYTES_MAX) => return Err(TargetError::HostInvalid),
            _ => len + 1,
        };
    }
    let is_name =
        len > 0 && labels.len() <= HOST_BYTES_MAX && !is_number(&labels[labels.len() - len..]);
    if is_name { Ok(Host::Name(bytes)) } else { Err(TargetError::HostInvalid) }
}

/// Parses a dotted quad: four numbers up to 255 without leading zeros.
fn parse_v4(bytes: &[u8]) -> Option<Ipv4Addr> {
    let mut before = 0;
    let mut dots = 0;
    // Value of the current number; `None` before its first digit.
    let mut number = None;
    for &byte in bytes {
        match (byte, number) {
            (b'0'..=b'9', None) => number = Some(u32::from(byte - b'0')),
            (b'0'..=b'9', Some(value @ 1..=25)) => {
                number = Some(value * 10 + u32::from(byte - b'0'));
            }
            (b'.', Some(value @ 0..=255)) if dots < 3 => {
                before = before << 8 | value;
                dots += 1;
                number = None;
            }
            _ => return None,
        }
    }
    let last = number.filter(|&value| value <= 255 && dots == 3)?;
    Some(Ipv4Addr::from_bits(before << 8 | last))
}

/// Returns whether a resolver may take the label for the last part of an address: decimal, octal or
/// hexadecimal.
fn is_number(label: &[u8]) -> bool {
    match label {
        [b'0', b'x' | b'X', digits @ ..] => digits.iter().all(u8::is_ascii_hexdigit),
        _ => label.iter().all(u8::is_ascii_digit),
    }
}

fn parse_port(digits: &[u8]) -> Result<u16, TargetError> {
    let is_plain = matches!(digits, [b'1'..=b'9', ..]) && digits.len() <= 5;
    if !(is_plain && digits.iter().all(u8::is_ascii_digit)) {
        return Err(TargetError::PortInvalid);
    }
    let value = digits.iter().fold(0, |value, digit| value * 10 + u32::from(digit - b'0'));
    u16::try_from(value).map_err(|_| TargetError::PortInvalid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::HeadError;
    use crate::request::destination;
    use crate::test_heads::request;

    /// Parses a request line and the fields after it. Returns the authority and path of the
    /// request, or the error.
    fn resolve(line: &str, fields: &str) -> Result<(String, String), TargetError> {
        let head = request(format!("{line}\r\n{fields}\r\n")).unwrap();
        let destination = destination(&head)?;
        let authority = destination.authority.map_or(String::new(), |it| it.to_string());
        Ok((authority, String::from_utf8_lossy(destination.path_and_query).into_owned()))
    }

    fn get(target: &str) -> Result<(String, String), TargetError> {
        resolve(&format!("GET {target} HTTP/1.1"), "Host: h\r\n")
    }

    fn reaches(authority: &str, path: &str) -> Result<(String, String), TargetError> {
        Ok((authority.to_owned(), path.to_owned()))
    }

    #[test]
    fn every_form_has_its_destination() {
        assert_eq!(get("/a?b=c"), reaches("h", "/a?b=c"));
        assert_eq!(get("//a"), reaches("h", "//a"));
        assert_eq!(get("http://x:81/a?b"), reaches("x:81", "/a?b"));
        assert_eq!(get("HTTP://x"), reaches("x", "/"));
        assert_eq!(get("http://x?q/r?s"), reaches("x", "/?q/r?s"));
        assert_eq!(get("http://[::1]:8080/"), reaches("[::1]:8080", "/"));
        let options = |target| resolve(&format!("OPTIONS {target} HTTP/1.1"), "Host: h\r\n");
        assert_eq!(options("*"), reaches("h", "*"));
        assert_eq!(options("http://x:1"), reaches("x:1", "*"));
        assert_eq!(options("http://x:1/"), reaches("x:1", "/"));
        assert_eq!(resolve("CONNECT x:443 HTTP/1.1", "Host: x\r\n"), reaches("x:443", ""));
        assert_eq!(resolve("GET / HTTP/1.0", ""), reaches("", "/"));
    }

    #[test]
    fn an_added_slash_leaves_the_received_bytes_unchanged() {
        let line = "GET http://x?q HTTP/1.1\r\nHost: x\r\n\r\n";
        let head = request(line).unwrap();
        assert_eq!((head.bytes(), head.target()), (line.as_bytes(), &b"http://x?q"[..]));
    }

    #[test]
    fn forms_have_to_fit_the_method() {
        for line in [
            "GET *",
            "POST h:80",
            "GET h",
            "GET http:/x",
            "GET http:x",
            "GET ?a",
            "GET %2f",
            "OPTIONS **",
            "CONNECT /",
            "CONNECT *",
            "GET 1http://x/",
            "GET ://x/",
            "OPTIONS h:1",
        ] {
            let resolved = resolve(&format!("{line} HTTP/1.1"), "Host: h\r\n");
            assert_eq!(resolved, Err(TargetError::FormInvalid), "{line}");
        }
        let scheme = |target: &str| {
            let head = request(format!("GET {target} HTTP/1.1\r\nHost: h\r\n\r\n")).unwrap();
            destination(&head).map(|destination| destination.scheme)
        };
        assert_eq!(scheme("HTTPS://x/"), Ok(Some(Scheme::Https)));
        assert_eq!(scheme("http://x/"), Ok(Some(Scheme::Http)));
        assert_eq!(scheme("/https://x/"), Ok(None));
        assert_eq!(get("httpss://x/"), Err(TargetError::SchemeUnsupported));
        assert_eq!(get("ftp://x/"), Err(TargetError::SchemeUnsupported));
        let connect = |target| resolve(&format!("CONNECT {target} HTTP/1.1"), "Host: h\r\n");
        assert_eq!(connect("x"), Err(TargetError::PortMissing));
        assert_eq!(connect("x:0"), Err(TargetError::PortInvalid));
        assert_eq!(connect("a@x:1"), Err(TargetError::UserInformation));
        assert_eq!(connect("http://x:1"), Err(TargetError::PortInvalid));
    }

    #[test]
    fn absolute_targets_have_a_valid_authority() {
        assert_eq!(get("http://user@x/"), Err(TargetError::UserInformation));
        assert_eq!(get("http://user:a@x/"), Err(TargetError::UserInformation));
        assert_eq!(get("http:///a"), Err(TargetError::HostEmpty));
        assert_eq!(get("http://:80/a"), Err(TargetError::HostEmpty));
        assert_eq!(get("http://x:/"), Err(TargetError::PortInvalid));
        assert_eq!(get("http://x%2ey/"), Err(TargetError::HostInvalid));
        assert_eq!(get("http://a?@b/"), reaches("a", "/?@b/"));
    }

    #[test]
    fn host_is_single_and_valid_even_if_not_needed() {
        for line in ["GET / HTTP/1.1", "GET http://x/ HTTP/1.1", "CONNECT x:1 HTTP/1.1"] {
            assert_eq!(resolve(line, ""), Err(TargetError::HostMissing));
            assert_eq!(resolve(line, "Host: a\r\nhost: a\r\n"), Err(TargetError::HostDuplicate));
            assert_eq!(resolve(line, "Host:\r\n"), Err(TargetError::HostEmpty));
            assert_eq!(resolve(line, "Host: a b\r\n"), Err(TargetError::HostInvalid));
            assert_eq!(resolve(line, "Host: a,b\r\n"), Err(TargetError::HostInvalid));
            assert_eq!(resolve(line, "Host: a/b\r\n"), Err(TargetError::HostInvalid));
            assert_eq!(resolve(line, "Host: u@b\r\n"), Err(TargetError::UserInformation));
            assert_eq!(resolve(line, "Host: http://a\r\n"), Err(TargetError::PortInvalid));
        }
        let twice = "Host: a\r\nHost: a\r\n";
        assert_eq!(resolve("GET / HTTP/1.0", twice), Err(TargetError::HostDuplicate));
    }

    #[test]
    fn valid_hosts_are_accepted() {
        let good = [
            "example.com",
            "EXAMPLE.com.",
            "a-b_c.d1",
            "1.2.3.4",
            "0.0.0.0",
            "1.2.3.x4",
            "0x7g",
            "1a",
            "xn--nxasmq6b",
            "[::]",
            "[2001:db8::1]",
            "[::ffff:1.2.3.4]",
            "a:1",
            "a:65535",
            "x.0y",
        ];
        for host in good {
            assert!(Authority::parse(host.as_bytes()).is_ok(), "{host}");
        }
        assert!(Authority::parse(format!("{0}.{0}", "a".repeat(63)).as_bytes()).is_ok());
    }

    #[test]
    fn ambiguous_hosts_are_refused() {
        let long_label = "a".repeat(64);
        let long_name = "a.".repeat(127) + "b";
        let bad = [
            "",
            ".",
            "a..b",
            ".a",
            "a b",
            "127.1",
            "0x7f.1",
            "017700000001",
            "2130706433",
            "1.2.3.4.",
            "1.2.3.256",
            "01.2.3.4",
            "1.2.3.4.5",
            "0x7f000001",
            "0X",
            "a.0x1",
            "a.1",
            "a%41",
            "\u{e9}",
            "a/b",
            "a?b",
            "a#b",
            "a\\b",
            "[::1",
            "::1",
            "[::1]a",
            "[::1%25lo]",
            "[fe80::1%lo]",
            "[v1.x]",
            "[1.2.3.4]",
            "[]",
            "a:b",
            "a:",
            "a:0",
            "a:00080",
            "a:080",
            "a:65536",
            "a:+1",
            "a:1:2",
            "a: 1",
            "a:99999999999999999999",
            "a!",
            "a$",
            "(a)",
            "a;b",
            &long_label,
            &format!("{long_label}.a"),
            &long_name,
            "a@b",
            "[[::1]]",
        ];
        for host in bad {
            assert!(Authority::parse(host.as_bytes()).is_err(), "{host}");
        }
    }

    #[test]
    fn dotted_quads_are_those_of_the_standard_library() {
        const PIECES: [&str; 10] = ["0", "1", "25", "255", "9", "99", "256", "01", ".", ""];
        let mut random = crate::corpus::Random::from_clock();
        let mut read = 0;
        for _ in 0..50_000 {
            let mut text = String::new();
            for index in 0..6 + random.below(3) {
                let is_dot = index % 2 == 1 && random.below(9) > 0;
                text += if is_dot { "." } else { PIECES[random.below(PIECES.len())] };
            }
            assert_eq!(parse_v4(text.as_bytes()), text.parse().ok(), "{text}");
            read += usize::from(parse_v4(text.as_bytes()).is_some());
        }
        assert!((500..40_000).contains(&read), "some are addresses, some are not: {read}");
    }

    #[test]
    fn targets_keep_harmless_unusual_bytes_and_no_others() {
        for target in ["/|[]{}^`", "/%zz%", "/a?b\\c?d", "/..//./", "/a%2fb%00", "/;a=b,c'()*!$&+"]
        {
            assert_eq!(get(target), reaches("h", target));
        }
        for byte in (0..=b' ').chain(*b"\"<>#\x7f") {
            let line = [b"GET /a", &[byte][..], b"b HTTP/1.1\r\nHost: h\r\n\r\n"].concat();
            assert!(request(&line).is_err(), "{byte}");
        }
        let path = request("GET /a\\b HTTP/1.1\r\nHost: h\r\n\r\n");
        assert_eq!(path.err(), Some(HeadError::TargetInvalid));
    }
}

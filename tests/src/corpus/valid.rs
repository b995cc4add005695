//! The requests that a client may send: the grammar of RFC 9110, 9112 and 3986 for senders, neither
//! narrower nor wider.
//!
//! The strict parser decides what may leave a proxy. This parser decides what a proxy must not
//! refuse without a reason. It shares no code with the strict parser or the proxy. The RFCs leave
//! some requests to the choice of the proxy: other versions, expectations, CONNECT, bodies with two
//! framings. They do not count as valid here, so a test draws no conclusion from them.

use super::literal::Role;

/// A request that a client may send, as the origin has to receive it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ValidRequest {
    /// A token.
    pub method: String,
    /// In origin-form, or the asterisk.
    pub target: String,
    /// The content, chunks joined.
    pub body: Vec<u8>,
    /// Whether it is of a kind that docs/refused.md lists: an unusual host, a number that parsers
    /// read differently, or an item or a number of items above a limit.
    pub odd: bool,
}

/// The valid requests at the beginning of the client's bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ValidRequests {
    /// In the order in which they were sent.
    pub requests: Vec<ValidRequest>,
    /// Whether they use all bytes.
    pub all: bool,
}

/// Reads requests until one is invalid or incomplete.
pub fn read(sent: &[u8], role: Role) -> ValidRequests {
    let mut reading = ValidRequests::default();
    let mut rest = sent;
    // RFC 9112 section 2.2: an empty line before a request is ignored.
    while !rest.is_empty() {
        rest = rest.strip_prefix(b"\r\n").unwrap_or(rest);
        let Some((request, after)) = request(rest, role) else { return reading };
        reading.requests.push(request);
        rest = after;
    }
    reading.all = true;
    reading
}

/// A field: its name in lower case, and its value.
type Field = (String, String);

fn request(input: &[u8], role: Role) -> Option<(ValidRequest, &[u8])> {
    let (line, mut rest) = line(input)?;
    let line = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split(' ').collect();
    let [method, target, version @ ("HTTP/1.1" | "HTTP/1.0")] = words[..] else { return None };
    let old = version == "HTTP/1.0";
    let fields = fields(&mut rest)?;
    let (authority, target) = split_target(method, target, role)?;
    if !is_token(method) || method == "CONNECT" || !is_target(method, &target) {
        return None;
    }
    check_host(&fields, authority, old)?;
    check_fields(method, &fields)?;
    // An HTTP/1.0 client need not repeat the host of the target in Host.
    let mut odd = is_odd(method, &fields) || authority.is_some_and(is_odd_host);
    let body = body(&fields, old, &mut rest, &mut odd)?;
    if method == "TRACE" && !body.is_empty() {
        return None;
    }
    Some((ValidRequest { method: method.to_owned(), target, body, odd }, rest))
}

/// Returns whether a header is of a kind that docs/refused.md lists.
fn is_odd(method: &str, fields: &[Field]) -> bool {
    let options = fields.iter().filter(|(name, _)| name == "connection");
    let options: usize = options.map(|(_, options)| options.split(',').count()).sum();
    let odd = |(name, value): &Field| match name.as_str() {
        "host" => is_odd_host(value),
        "content-length" => value.len() > 1 && value.starts_with('0') || value.len() > 18,
        _ => false,
    };
    method.len() > 32 || options > 32 || fields.iter().any(odd)
}

/// Returns whether a host is one that resolvers reject or read differently.
fn is_odd_host(host: &str) -> bool {
    let (name, port) = match host.rfind(':') {
        Some(colon) if !host.ends_with(']') => host.split_at(colon),
        _ => (host, ":1"),
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let labels = name.strip_suffix('.').unwrap_or(name).split('.');
    let last = labels.clone().next_back().unwrap_or_default();
    let numeric = last.starts_with(|first: char| first.is_ascii_digit());
    let odd_port = !matches!(port[1..].parse::<u16>(), Ok(1..)) || port.starts_with(":0");
    odd_port
        || !name.starts_with('[')
            && (!name.bytes().all(plain)
                || name.len() > 253
                || labels.clone().any(|label| label.is_empty() || label.len() > 63)
                || numeric && name.parse::<std::net::Ipv4Addr>().is_err())
}

/// Returns a line without its CR LF, and the rest.
fn line(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = input.windows(2).position(|two| two == b"\r\n")?;
    Some((&input[..end], &input[end + 2..]))
}

fn fields(rest: &mut &[u8]) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    loop {
        let (line, after) = line(rest)?;
        *rest = after;
        if line.is_empty() {
            return Some(fields);
        }
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = std::str::from_utf8(&line[..colon]).ok().filter(|name| is_token(name))?;
        let value = &line[colon + 1..];
        if value.iter().any(|byte| matches!(byte, 0..=8 | 10..=31 | 127)) {
            return None;
        }
        // High bytes are opaque. One character for each is enough for comparisons.
        let value: String = value.iter().map(|byte| char::from(*byte)).collect();
        fields.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
    }
}

fn is_token(word: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    !word.is_empty() && word.bytes().all(plain)
}

/// Returns the authority of a target, if it has one, and the target as the origin receives it.
fn split_target<'a>(
    method: &str,
    target: &'a str,
    role: Role,
) -> Option<(Option<&'a str>, String)> {
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let Some(scheme) = scheme else {
        return (role == Role::Boost).then(|| (None, target.to_owned()));
    };
    let rest = &target[scheme.len()..];
    let end = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    let path = match path {
        "" if method == "OPTIONS" => "*".to_owned(),
        path if path.starts_with('/') => path.to_owned(),
        path => format!("/{path}"),
    };
    Some((Some(authority), path))
}

fn is_target(method: &str, target: &str) -> bool {
    if target == "*" {
        return method == "OPTIONS";
    }
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    path.starts_with('/') && is_encoded(path, b":@/") && is_encoded(query, b":@/?")
}

/// RFC 3986 section 2: unreserved characters, sub-delimiters, complete escapes, and the characters
/// in `also`.
fn is_encoded(text: &str, also: &[u8]) -> bool {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_hexdigit);
    bytes.iter().enumerate().all(|(at, byte)| match byte {
        b'%' => hex(at + 1) && hex(at + 2),
        byte => {
            byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=".contains(byte) || also.contains(byte)
        }
    })
}

/// RFC 9112 section 3.2: one Host, which equals the authority of the target if it has one.
fn check_host(fields: &[Field], authority: Option<&str>, old: bool) -> Option<()> {
    let mut hosts = fields.iter().filter(|(name, _)| name == "host").map(|(_, host)| &host[..]);
    let host = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host,
        (None, None) if old => authority.unwrap_or("a"),
        _ => return None,
    };
    if authority.is_some_and(|authority| authority != host) {
        return None;
    }
    let (name, port) = match host.rfind(':') {
        Some(colon) if !host.ends_with(']') => host.split_at(colon),
        _ => (host, ""),
    };
    let literal = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let sound = match literal {
        Some(inner) => inner.parse::<std::net::Ipv6Addr>().is_ok(),
        None => !name.is_empty() && is_encoded(name, b""),
    };
    let port = port.strip_prefix(':').unwrap_or(port);
    (sound && port.bytes().all(|byte| byte.is_ascii_digit())).then_some(())
}

/// Rejects fields that a client may not send, and fields that a proxy need not support.
fn check_fields(method: &str, fields: &[Field]) -> Option<()> {
    /// RFC 9110 section 7.6.1: fields for every recipient may not be connection options.
    const FOR_ALL: [&str; 12] = [
        "authorization",
        "cache-control",
        "content-length",
        "content-type",
        "cookie",
        "expect",
        "host",
        "max-forwards",
        "transfer-encoding",
        "via",
        "forwarded",
        "connection",
    ];
    let traced = matches!(method, "OPTIONS" | "TRACE");
    let refused = |(name, value): &Field| match name.as_str() {
        "connection" => value.split(',').any(|option| {
            let option = option.trim_matches([' ', '\t']).to_ascii_lowercase();
            !is_token(&option) || FOR_ALL.contains(&&option[..])
        }),
        "expect" => !value.eq_ignore_ascii_case("100-continue"),
        "max-forwards" => traced,
        _ => false,
    };
    (!fields.iter().any(refused)).then_some(())
}

fn body(fields: &[Field], old: bool, rest: &mut &[u8], odd: &mut bool) -> Option<Vec<u8>> {
    let values = |wanted: &str| -> Vec<&str> {
        fields.iter().filter(|(name, _)| name == wanted).map(|(_, value)| &value[..]).collect()
    };
    match (&values("content-length")[..], &values("transfer-encoding")[..]) {
        ([], []) => Some(Vec::new()),
        ([length], []) => {
            let digits = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
            let length = length.parse::<usize>().ok().filter(|_| digits)?;
            take(rest, length).map(<[u8]>::to_owned)
        }
        ([], [coding]) if coding.eq_ignore_ascii_case("chunked") && !old => chunks(rest, odd),
        _ => None,
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let taken = rest.get(..length)?;
    *rest = &rest[length..];
    Some(taken)
}

fn chunks(rest: &mut &[u8], odd: &mut bool) -> Option<Vec<u8>> {
    /// The fields of RFC 9110 section 6.5.1 that no reasonable sender puts into trailers.
    const BEFORE_THE_BODY: [&str; 8] = [
        "authorization",
        "content-length",
        "content-type",
        "cookie",
        "host",
        "te",
        "trailer",
        "transfer-encoding",
    ];
    let mut body = Vec::new();
    let mut extensions = 0;
    loop {
        let (head, after) = line(rest)?;
        *rest = after;
        let digits = head.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        let size = std::str::from_utf8(&head[..digits]).ok()?;
        let size = usize::from_str_radix(size, 16).ok()?;
        if !are_extensions(&head[digits..]) {
            return None;
        }
        let blanks = head.iter().any(|byte| matches!(byte, b' ' | b'\t'));
        extensions += head.len() - digits;
        *odd |= blanks || digits > 16 || head.len() - digits > 256 || extensions > 16 * 1024;
        if size == 0 {
            let trailers = fields(rest)?;
            let bytes: usize = trailers.iter().map(|(name, value)| name.len() + value.len()).sum();
            *odd |= trailers.len() > 64 || bytes + 4 * trailers.len() > 8 * 1024;
            let misplaced = |name: &str| BEFORE_THE_BODY.contains(&name);
            return (!trailers.iter().any(|(name, _)| misplaced(name))).then_some(body);
        }
        body.extend_from_slice(take(rest, size)?);
        take(rest, 2).filter(|end| end == b"\r\n")?;
    }
}

/// RFC 9112 section 7.1.1: `*( BWS ";" BWS name [ BWS "=" BWS ( token / quoted-string ) ] )`.
fn are_extensions(text: &[u8]) -> bool {
    let mut rest = after_blanks(text);
    if rest.is_empty() {
        return text.is_empty();
    }
    while let [b';', after @ ..] = rest {
        let Some(after) = after_token(after_blanks(after)) else { return false };
        rest = after_blanks(after);
        if let [b'=', value @ ..] = rest {
            let value = after_blanks(value);
            let after = match value {
                [b'"', quoted @ ..] => after_quoted(quoted),
                token => after_token(token),
            };
            let Some(after) = after else { return false };
            rest = after_blanks(after);
        }
        if rest.is_empty() {
            return !text.ends_with(b" ") && !text.ends_with(b"\t");
        }
    }
    false
}

/// Returns the text after leading spaces and tabs.
fn after_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    &text[blanks..]
}

fn after_token(text: &[u8]) -> Option<&[u8]> {
    let end = text.iter().position(|byte| b" \t;=".contains(byte)).unwrap_or(text.len());
    let token = std::str::from_utf8(&text[..end]).ok()?;
    is_token(token).then(|| &text[end..])
}

fn after_quoted(text: &[u8]) -> Option<&[u8]> {
    let mut at = 0;
    loop {
        match text.get(at)? {
            b'"' => return Some(&text[at + 1..]),
            b'\\' => {
                text.get(at + 1).filter(|byte| !matches!(byte, 0..=8 | 10..=31 | 127))?;
                at += 2;
            }
            0..=8 | 10..=31 | 127 => return None,
            _ => at += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through_reverse_proxy(text: &str) -> ValidRequests {
        read(text.as_bytes(), Role::Boost)
    }

    #[test]
    fn valid_requests_are_read() {
        for text in [
            "GET / HTTP/1.1\r\nHost: a\r\n\r\n",
            "\r\nGET /a%20b?c HTTP/1.1\r\nHOST:a:80 \r\nX:\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.0\r\n\r\n",
            "OPTIONS * HTTP/1.1\r\nHost: [::1]:8\r\nConnection: close, x\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 003\r\n\r\nabc",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: Chunked\r\n\r\n\
             3;a; b = \"\\\"\"\r\nabc\r\n00\r\nX: 1\r\n\r\n",
        ] {
            let reading = through_reverse_proxy(text);
            assert!(reading.all && reading.requests.len() == 1, "{}", text.escape_debug());
            let two = through_reverse_proxy(&format!("{text}{text}"));
            assert!(two.all && two.requests.len() == 2, "twice {}", text.escape_debug());
        }
        let body = |text: &str| through_reverse_proxy(text).requests[0].body.clone();
        let head = "POST / HTTP/1.1\r\nHost: a\r\n";
        assert_eq!(body(&format!("{head}Content-Length: 2\r\n\r\nab")), b"ab");
        let chunks = "Transfer-Encoding: chunked\r\n\r\n1\r\na\r\nA\r\n0123456789\r\n0\r\n\r\n";
        assert_eq!(body(&format!("{head}{chunks}")), b"a0123456789");
    }

    #[test]
    fn odd_requests_are_those_of_docs_refused() {
        let odd = |text: &str| through_reverse_proxy(text).requests[0].odd;
        for host in ["a", "a.b.", "1.2.3.4:80", "[::1]:8000", "a_b", "1.a"] {
            assert!(!odd(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), "{host}");
        }
        for host in ["a*b", "a..b", ".", "a:", "a:080", "127.1", "0x7f.1", "1.2.3.04", "a%41"] {
            assert!(odd(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")), "{host}");
        }
        assert!(odd("GET http://127.1/ HTTP/1.0\r\n\r\n"));
        let post = "POST / HTTP/1.1\r\nHost: a\r\n";
        assert!(odd(&format!("{post}Content-Length: 02\r\n\r\nab")));
        assert!(!odd(&format!("{post}Content-Length: 2\r\n\r\nab")));
        let chunked = format!("{post}Transfer-Encoding: chunked\r\n\r\n");
        assert!(!odd(&format!("{chunked}1;a=b\r\na\r\n0\r\n\r\n")));
        assert!(odd(&format!("{chunked}1 ;a\r\na\r\n0\r\n\r\n")));
        assert!(odd(&format!("{chunked}00000000000000001\r\na\r\n0\r\n\r\n")));
    }

    #[test]
    fn invalid_requests_are_not_read() {
        for text in [
            "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /# HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET /%2 HTTP/1.1\r\nHost: a\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
            "GET http://a/ HTTP/1.1\r\nHost: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\nX: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\n X: b\r\n\r\n",
            "GET / HTTP/1.1\r\nHost : a\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: a\r\nConnection: host\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: +3\r\n\r\nabc",
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nabc",
            "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0 \r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0;a=\"\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0;\na\r\n\r\n",
            "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
        ] {
            assert_eq!(through_reverse_proxy(text).requests, [], "{}", text.escape_debug());
        }
        assert_eq!(read(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", Role::Forward).requests, []);
    }
}

//! Field lines, and the fields that may be in a message behind a proxy.

use super::{Ambiguity, Field, ambiguous, line, target};

/// Returns whether `word` is a token of RFC 9110 section 5.6.2.
pub(super) fn is_token(word: &str) -> bool {
    !word.is_empty()
        && word
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

/// Returns the elements of all fields called `name`, in lower case.
pub(super) fn tokens<'a>(
    fields: &'a [Field],
    name: &'a str,
) -> impl Iterator<Item = String> + use<'a> {
    fields.iter().filter(move |field| field.is(name)).flat_map(|field| {
        let value = String::from_utf8_lossy(&field.value).to_ascii_lowercase();
        value.split(',').map(|token| token.trim().to_owned()).collect::<Vec<_>>()
    })
}

/// Returns the field lines from `at` to the empty line, and where the content begins.
pub(super) fn section(
    input: &[u8],
    mut at: usize,
) -> Result<Option<(Vec<Field>, usize)>, Ambiguity> {
    let mut fields = Vec::new();
    while let Some((bytes, next)) = line(input, at)? {
        if bytes.is_empty() {
            return Ok(Some((fields, next)));
        }
        fields.push(field(bytes)?);
        at = next;
    }
    Ok(None)
}

fn field(bytes: &[u8]) -> Result<Field, Ambiguity> {
    let Some(colon) = bytes.iter().position(|byte| *byte == b':') else {
        return ambiguous("a field line without a colon");
    };
    let name = String::from_utf8_lossy(&bytes[..colon]).into_owned();
    if !is_token(&name) {
        return ambiguous("a field name that is not a token");
    }
    let value = match &bytes[colon + 1..] {
        [] => &[],
        [b' ', value @ ..] => value,
        _ => return ambiguous("a value that does not follow one space"),
    };
    if value.trim_ascii() != value {
        return ambiguous("white space around a value");
    }
    Ok(Field { name, value: value.to_owned() })
}

/// Checks the fields of a request at an origin.
pub(super) fn check_request(fields: &[Field]) -> Result<(), Ambiguity> {
    let hosts: Vec<_> = fields.iter().filter(|field| field.is("host")).collect();
    let [host] = hosts[..] else { return ambiguous("not exactly one Host") };
    target::check_authority(&String::from_utf8_lossy(&host.value))?;
    if fields.iter().any(|field| field.is("proxy-authorization") || field.is("http2-settings")) {
        return ambiguous("a field that was meant for the proxy");
    }
    if tokens(fields, "expect").any(|token| token != "100-continue") {
        return ambiguous("an expectation other than 100-continue");
    }
    check_hops(fields)?;
    // RFC 9113 section 3.1: `h2c` is HTTP/2 in clear text. Some clients send `h2`, which is only
    // for TLS. Drafts appended numbers.
    let http = |token: String| {
        token == "h2" || ["h2c", "h2-", "http", "tls"].iter().any(|start| token.starts_with(start))
    };
    if tokens(fields, "upgrade").any(http) {
        return ambiguous("an upgrade to a protocol that carries HTTP");
    }
    Ok(())
}

/// Checks the fields of a response at a client.
pub(super) fn check_response(fields: &[Field], status: u16) -> Result<(), Ambiguity> {
    check_hops(fields)?;
    if status == 101 && !fields.iter().any(|field| field.is("upgrade")) {
        return ambiguous("a switch to no protocol");
    }
    Ok(())
}

/// RFC 9110 section 7.6.1: Connection names only fields for this connection, and it names all of
/// them.
fn check_hops(fields: &[Field]) -> Result<(), Ambiguity> {
    let mut options = tokens(fields, "connection");
    if options.any(|option| !matches!(option.as_str(), "close" | "keep-alive" | "upgrade" | "te")) {
        return ambiguous("a connection option that another hop could act upon");
    }
    for (name, option) in [("upgrade", "upgrade"), ("te", "te"), ("keep-alive", "keep-alive")] {
        let named = tokens(fields, "connection").any(|token| token == option);
        if fields.iter().any(|field| field.is(name)) && !named {
            return ambiguous("a hop-by-hop field that Connection does not name");
        }
    }
    if fields.iter().any(|field| field.is("proxy-connection")) {
        return ambiguous("a Proxy-Connection field");
    }
    Ok(())
}

/// RFC 9110 section 6.5.1: fields for framing, routing, authentication or control must not be
/// trailers.
pub(super) fn check_trailers(trailers: &[Field]) -> Result<(), Ambiguity> {
    const NEVER: [&str; 22] = [
        "authorization",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-range",
        "content-type",
        "cookie",
        "expect",
        "forwarded",
        "host",
        "keep-alive",
        "max-forwards",
        "proxy-authorization",
        "proxy-connection",
        "range",
        "set-cookie",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        "x-forwarded-for",
    ];
    match trailers.iter().find(|field| NEVER.iter().any(|name| field.is(name))) {
        Some(field) => ambiguous(&format!("a trailer called {}", field.name)),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::request;

    fn accepted(fields: &str) -> bool {
        request(format!("GET / HTTP/1.1\r\n{fields}\r\n").as_bytes()).is_ok_and(|it| it.is_some())
    }

    #[test]
    fn plain_fields_pass() {
        assert!(accepted("Host: a\r\nX: \r\nY:\r\nZ: a\tb \x7e\r\n"));
        assert!(accepted("Host: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n"));
        assert!(request(b"GET / HTTP/1.1\r\nHost: a\r\nX: \xe9\xff\r\n\r\n").unwrap().is_some());
    }

    #[test]
    fn field_lines_have_one_spelling() {
        for fields in [
            "Host: a\r\n X: folded\r\n",
            "Host: a\r\n\tX: folded\r\n",
            "Host : a\r\n",
            "Host:a\r\n",
            "Host:  a\r\n",
            "Host: a \r\n",
            "Host: a\r\nX\r\n",
            "Host: a\r\n: x\r\n",
            "Host: a\r\nX: a\0b\r\n",
            "Host: a\r\nX: a\rb\r\n",
            "Host: a\r\nX: a\nb\r\n",
            "Host: a\r\nX\x7f: b\r\n",
            "Host: a\r\nX: \x7f\r\n",
        ] {
            assert!(!accepted(fields), "{}", fields.escape_debug());
        }
        assert!(request(b"GET / HTTP/1.1\r\nHost: a\r\nX\xe9: b\r\n\r\n").is_err());
    }

    #[test]
    fn a_request_has_one_host() {
        for fields in
            ["", "Host: a\r\nHost: a\r\n", "Host: \r\n", "Host: a, b\r\n", "Host: a/b\r\n"]
        {
            assert!(!accepted(fields), "{}", fields.escape_debug());
        }
    }

    #[test]
    fn hop_by_hop_fields_do_not_reach_the_next_hop() {
        for fields in [
            "Connection: host",
            "Connection: close, x-forwarded-for",
            "Connection: upgrade\r\nUpgrade: h2c",
            "Connection: upgrade\r\nUpgrade: websocket, h2",
            "Connection: upgrade\r\nUpgrade: TLS/1.0",
            "Upgrade: websocket",
            "TE: trailers",
            "Keep-Alive: timeout=5",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic Og==",
            "HTTP2-Settings: AAMAAABkAAQAAP__",
            "Expect: 200-ok",
        ] {
            assert!(!accepted(&format!("Host: a\r\n{fields}\r\n")), "{fields}");
        }
    }
}

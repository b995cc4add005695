//! URLs that operators enter to select stored responses.

use memchr::memchr;
use millrace_http1::target::push_encoded;
use millrace_http1::{Authority, Scheme};

use super::key::UriOrigin;

/// Returns the first line of the keys of a URL: the scheme, the host in lower case, the port unless
/// it is the default, and the path and query, in which bytes from 0x80 are percent-encoded. The
/// default scheme is `http`. Returns `None` if the text is not a URL with a host.
pub fn normalise_url(text: &[u8]) -> Option<Vec<u8>> {
    let (site, local) = split_url(text)?;
    let mut url = Vec::new();
    site.put(&mut url);
    if !local.starts_with(b"/") {
        url.push(b'/');
    }
    local.iter().for_each(|&byte| push_encoded(&mut url, byte));
    Some(url)
}

/// Returns the origin of a URL, of which only the host is required; `None` if it is malformed.
pub fn parse_uri_origin(text: &[u8]) -> Option<UriOrigin<'_>> {
    split_url(text).map(|(site, _)| site)
}

impl<'a> UriOrigin<'a> {
    /// Returns the origin at the beginning of a key's text; `None` if it is no such text.
    pub fn from_key_text(text: &'a [u8]) -> Option<Self> {
        parse_uri_origin(&text[..memchr(b'\n', text).unwrap_or(text.len())])
    }
}

/// Splits a URL into its origin, and its path and query as written, without a fragment.
fn split_url(text: &[u8]) -> Option<(UriOrigin<'_>, &[u8])> {
    if text.iter().any(|byte| byte.is_ascii_control() || *byte == b' ') {
        return None;
    }
    let (scheme, rest) = Scheme::split_off(text).unwrap_or((Scheme::Http, text));
    let length = rest.iter().position(|byte| b"/?#".contains(byte)).unwrap_or(rest.len());
    let (authority, local) = rest.split_at(length);
    let length = local.iter().position(|byte| *byte == b'#').unwrap_or(local.len());
    let authority = Authority::parse(authority).ok()?;
    Some((UriOrigin { scheme, authority }, &local[..length]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> Option<String> {
        normalise_url(text.as_bytes()).map(|url| String::from_utf8(url).unwrap())
    }

    #[test]
    fn urls_are_normalised_like_keys() {
        for (text, expected) in [
            ("http://Example.com:80/A?b=C#d", "http://example.com/A?b=C"),
            ("HTTPS://example.com:443", "https://example.com/"),
            ("https://example.com:80?x", "https://example.com:80/?x"),
            ("example.com/a", "http://example.com/a"),
            ("localhost:8080", "http://localhost:8080/"),
            ("[::FFFF:0:1]:8080/a/../b", "http://[::ffff:0.0.0.1]:8080/a/../b"),
            ("a/\u{fc}%fc?\u{20ac}#\u{fc}", "http://a/%C3%BC%fc?%E2%82%AC"),
        ] {
            assert_eq!(url(text).as_deref(), Some(expected), "{text}");
        }
        for text in
            ["", "/a", "http://", "http:///a", "ftp://a/", "http://a b/", "http://a/\n", "\u{fc}/"]
        {
            assert_eq!(url(text), None, "{text:?}");
        }
        assert!(
            parse_uri_origin(b"a").unwrap().is_same(&parse_uri_origin(b"http://A:80/x").unwrap())
        );
    }
}

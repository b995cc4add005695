//! Cache keys (RFC 9111 section 2): the request's target as text for operators and the disk, and as
//! a hash for the index.
//!
//! A key contains byte for byte what the origin receives: the path and query, fields from which
//! origins build URLs ([`OriginRequest::for_each_key_field`]), and additions of the operator. RFC
//! 3986 section 6.2.2 would permit treating `%7E` and `~` as equal, and resolving `..`. An origin
//! may distinguish them, however, so the response to one must not be used for the other. Only the
//! authority is normalised: the case of the host, the notation of an address, and the default port.
//! The origin receives it in the same form.

use std::fmt::{self, Write};
use std::hash::Hasher;

use memchr::{memchr, memrchr};
use millrace_http1::{Authority, FieldName, Host, OriginRequest, Scheme};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::features::put_cookies;
use super::key_sink::KeySink;

/// The secret with which keys are hashed, by SipHash-1-3 with 128 bits. It is random, so that an
/// attacker cannot prepare two keys with the same hash. Variants and ranges are identified only by
/// their hashes, so a cache that outlives its process also stores this secret. Only the user of the
/// process may read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HashKey([u8; 16]);

impl HashKey {
    /// Creates a hash key from 16 random bytes.
    pub const fn new(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes of the hash key.
    pub const fn bytes(&self) -> [u8; 16] {
        self.0
    }

    pub(super) fn hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_key(&self.0)
    }
}

/// The hash of a cache key. Two requests with the same hash are treated as equal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Key(pub u128);

/// A hasher for maps whose keys contain a [`Key`]. Keys are already hashes with a secret, so half
/// of one serves as its hash.
#[derive(Debug, Default)]
pub struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a key is one number");
    }

    fn write_u128(&mut self, number: u128) {
        self.0 = self.0.rotate_left(23) ^ (number as u64);
    }
}

/// The origin of a URI (RFC 9110 section 4.3.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct UriOrigin<'a> {
    /// The scheme.
    pub scheme: Scheme,
    /// The host, and the port if it was written.
    pub authority: Authority<'a>,
}

impl UriOrigin<'_> {
    /// Returns whether two URIs have the same origin (RFC 9110 section 4.3.1).
    pub fn is_same(&self, other: &UriOrigin<'_>) -> bool {
        let port = |site: &UriOrigin<'_>| site.authority.port.unwrap_or(site.scheme.port());
        let is_same_host = match (self.authority.host, other.authority.host) {
            (Host::Name(name), Host::Name(other)) => name.eq_ignore_ascii_case(other),
            (host, other) => host == other,
        };
        is_same_host && self.scheme == other.scheme && port(self) == port(other)
    }

    pub(super) fn put(&self, sink: &mut impl KeySink) {
        let scheme: &[u8] = match self.scheme {
            Scheme::Http => b"http://",
            Scheme::Https => b"https://",
        };
        match self.authority.host {
            Host::Name(name) => put_lower(sink, scheme, name),
            address => {
                sink.put(scheme);
                write!(KeyText(sink), "{address}").expect("a sink takes everything");
            }
        }
        let is_default = |port: &u16| *port == self.scheme.port();
        if let Some(port) = self.authority.port.filter(|port| !is_default(port)) {
            write!(KeyText(sink), ":{port}").expect("a sink takes everything");
        }
    }
}

/// Additions to the keys of a route, and omissions, by the operator. The default changes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct KeyParts {
    /// Query parameters that are left out: names, or prefixes of names followed by `*`.
    pub ignored_parameters: Vec<Box<[u8]>>,
    /// Whether the whole query is left out.
    pub ignores_query: bool,
    /// Lower-case names of request fields whose values are added.
    pub fields: Vec<Box<[u8]>>,
    /// Cookies whose values are added: names, or prefixes of names followed by `*`. A `Cookie` line
    /// that parsers may read differently is added as a whole.
    pub cookies: Vec<Box<[u8]>>,
    /// Whether `http` and `https` share responses: the key has the scheme `http` for both.
    pub shares_schemes: bool,
    /// The key space of the service.
    pub space: Space,
}

impl KeyParts {
    /// Returns the origin that the keys of requests to `site` have.
    pub fn keyed_site<'a>(&self, site: UriOrigin<'a>) -> UriOrigin<'a> {
        let port = site.authority.port.filter(|port| *port != site.scheme.port());
        // Port 80 is the default port of `http` only. The origin receives it in the Host of an
        // `https` request, so that request shares no response.
        if !self.shares_schemes || port == Some(Scheme::Http.port()) {
            return site;
        }
        UriOrigin { scheme: Scheme::Http, authority: Authority { port, ..site.authority } }
    }
}

/// The key space of a service. The default is for a single service. Two services may use different
/// origins for the same URL, or serve different clients, so neither may receive a response that the
/// other stored.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Space(Box<[u8]>);

impl Space {
    /// Returns the space at the end of a key's text.
    pub fn from_key_text(text: &[u8]) -> Self {
        Self(Self::line_in(text).into())
    }

    pub(super) fn put(&self, sink: &mut impl KeySink) {
        if !self.0.is_empty() {
            sink.put(&self.0);
        }
    }

    /// Returns the space with this name, which contains no line end.
    pub fn named(name: &str) -> Self {
        // The bytes as they are written in a key. A field name never contains an `@`.
        Self(format!("\n@{name}").into_bytes().into())
    }

    /// Returns the line of the space at the end of a key's text; empty for the default space.
    fn line_in(text: &[u8]) -> &[u8] {
        let line = memrchr(b'\n', text).map_or(&b""[..], |at| &text[at..]);
        if line.starts_with(b"\n@") { line } else { b"" }
    }

    /// Returns the tag of the space; 0 for the default space.
    pub fn tag(&self) -> SpaceTag {
        Self::tag_from_key_text(&self.0)
    }

    /// Returns the tag of the space at the end of a key's text, which [`Key::write`] wrote.
    pub fn tag_from_key_text(text: &[u8]) -> SpaceTag {
        match Self::line_in(text) {
            [] => SpaceTag::default(),
            line => SpaceTag(crc32c::crc32c(&line[2..]).max(1)),
        }
    }
}

/// A short checksum of the name of a space. Disks count stored responses by it. Two names may have
/// the same tag, so responses are never selected by it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct SpaceTag(pub u32);

impl Key {
    /// Returns the key of a GET request for this path and query. Only the fields of `request` are
    /// used. Allocates nothing unless a trusted peer describes the client's request.
    pub fn from_request(
        hash: &HashKey,
        site: &UriOrigin<'_>,
        path_and_query: &[u8],
        request: &OriginRequest<'_>,
        parts: &KeyParts,
    ) -> Self {
        let mut sink = hash.hasher();
        put(&mut sink, site, path_and_query, request, parts);
        Self(sink.finish128().as_u128())
    }

    /// Returns the key of a text that [`Key::write`] wrote.
    pub fn from_text(hash: &HashKey, text: &[u8]) -> Self {
        let mut sink = hash.hasher();
        sink.put(text);
        Self(sink.finish128().as_u128())
    }

    /// Appends the text of a key: the URI, followed by one line for each added value.
    /// [`Key::from_text`] returns its hash.
    pub fn write(
        out: &mut Vec<u8>,
        site: &UriOrigin<'_>,
        path_and_query: &[u8],
        request: &OriginRequest<'_>,
        parts: &KeyParts,
    ) {
        put(out, site, path_and_query, request, parts);
    }
}

struct KeyText<'a, S>(&'a mut S);

impl<S: KeySink> Write for KeyText<'_, S> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.0.put(text.as_bytes());
        Ok(())
    }
}

/// Writes a short prefix and bytes in lower case, in as few parts as possible: each part costs a
/// hasher as much as twenty bytes. `beginning` has at most 16 bytes.
pub(super) fn put_lower(sink: &mut impl KeySink, beginning: &[u8], bytes: &[u8]) {
    let mut piece = [0; PIECE_BYTES];
    piece[..beginning.len()].copy_from_slice(beginning);
    let first_len = bytes.len().min(PIECE_BYTES - beginning.len());
    let (first, rest) = bytes.split_at(first_len);
    let end = beginning.len() + first_len;
    piece[beginning.len()..end].copy_from_slice(first);
    piece[beginning.len()..end].make_ascii_lowercase();
    sink.put(&piece[..end]);
    if !rest.is_empty() {
        put_lower(sink, b"", rest);
    }
}

const PIECE_BYTES: usize = 64;

fn put(
    sink: &mut impl KeySink,
    site: &UriOrigin<'_>,
    path_and_query: &[u8],
    request: &OriginRequest<'_>,
    parts: &KeyParts,
) {
    match parts.shares_schemes {
        true => parts.keyed_site(*site).put(sink),
        false => site.put(sink),
    }
    if parts.ignores_query || !parts.ignored_parameters.is_empty() {
        let query_at = memchr(b'?', path_and_query).unwrap_or(path_and_query.len());
        sink.put(&path_and_query[..query_at]);
        if let Some(query) = path_and_query.get(query_at + 1..).filter(|_| !parts.ignores_query) {
            put_query(sink, query, &parts.ignored_parameters);
        }
    } else {
        sink.put(path_and_query);
    }
    for name in &parts.fields {
        let known = FieldName::from_bytes(name);
        request.generated_value(known, |value| put_field(sink, name, value));
        request.values(known, name).for_each(|value| put_field(sink, name, value));
    }
    request.for_each_key_field(|name, value| put_field(sink, name, value));
    if !parts.cookies.is_empty() {
        put_cookies(sink, request.head(), &parts.cookies);
    }
    parts.space.put(sink);
}

/// Writes a field as a line. Values contain no line end, so one value cannot look like two.
fn put_field(sink: &mut impl KeySink, name: &[u8], value: &[u8]) {
    sink.put(b"\n");
    put_lower(sink, b"", name);
    sink.put(b":");
    sink.put(value);
}

fn put_query(sink: &mut impl KeySink, query: &[u8], ignored: &[Box<[u8]>]) {
    let kept_parameters =
        query.split(|&byte| byte == b'&').filter(|part| !is_ignored(part, ignored));
    for (at, parameter) in kept_parameters.enumerate() {
        sink.put(if at == 0 { b"?" } else { b"&" });
        sink.put(parameter);
    }
}

/// Returns whether a parameter is left out. A parameter with a `;` never is, because some origins
/// end the parameter there and use the rest as another one (parameter cloaking).
fn is_ignored(parameter: &[u8], ignored: &[Box<[u8]>]) -> bool {
    let name_len = memchr(b'=', parameter).unwrap_or(parameter.len());
    let name = &parameter[..name_len];
    let is_named = |pattern: &[u8]| match pattern {
        [beginning @ .., b'*'] => name.starts_with(beginning),
        pattern => name == pattern,
    };
    memchr(b';', parameter).is_none() && ignored.iter().any(|pattern| is_named(pattern))
}

#[cfg(test)]
mod tests {
    use millrace_http1::Forwarding;

    use super::super::test_messages::{HASH, get};
    use super::*;

    fn site(scheme: Scheme, authority: &str) -> UriOrigin<'_> {
        UriOrigin { scheme, authority: Authority::parse(authority.as_bytes()).unwrap() }
    }

    fn text(scheme: Scheme, authority: &str, path: &str, parts: &KeyParts) -> String {
        let request = get("X-Kind: a\r\nx-kind: b\r\n");
        let request = OriginRequest::as_received(&request);
        let site = site(scheme, authority);
        let mut text = Vec::new();
        Key::write(&mut text, &site, path.as_bytes(), &request, parts);
        let key = Key::from_request(&HASH, &site, path.as_bytes(), &request, parts);
        assert_eq!(key, Key::from_text(&HASH, &text));
        String::from_utf8(text).unwrap()
    }

    fn plain(authority: &str, path: &str) -> String {
        text(Scheme::Http, authority, path, &KeyParts::default())
    }

    #[test]
    fn a_key_is_the_target_uri_section_2() {
        assert_eq!(plain("Example.COM:80", "/a?b"), "http://example.com/a?b");
        assert_eq!(plain("example.com:443", "/"), "http://example.com:443/");
        let secure = text(Scheme::Https, "example.com:443", "/", &KeyParts::default());
        assert_eq!(secure, "https://example.com/");
        assert_eq!(plain("[::FFFF:0:1]:8080", "/"), "http://[::ffff:0.0.0.1]:8080/");
        assert_eq!(plain("127.0.0.1", "/"), "http://127.0.0.1/");
        let long = "a".repeat(63);
        let host = format!("{long}.{}.example", long.to_uppercase());
        assert_eq!(plain(&host, "/"), format!("http://{long}.{long}.example/"));
    }

    #[test]
    fn an_operator_may_share_responses_between_schemes() {
        let parts = KeyParts { shares_schemes: true, ..KeyParts::default() };
        let of = |scheme, authority| text(scheme, authority, "/a", &parts);
        for authority in ["a", "A:443"] {
            assert_eq!(of(Scheme::Https, authority), "http://a/a", "{authority}");
        }
        assert_eq!(of(Scheme::Http, "a:80"), "http://a/a");
        assert_eq!(of(Scheme::Http, "a:443"), "http://a:443/a");
        assert_eq!(of(Scheme::Https, "a:8443"), "http://a:8443/a");
        assert_eq!(of(Scheme::Https, "a:80"), "https://a:80/a");
    }

    #[test]
    fn the_path_is_part_of_the_key_as_sent() {
        for path in ["/a/../b", "/%7ea", "/%7Ea", "/~a", "//a", "/a/", "/a?", "/a?x&y", "/a?y&x"] {
            assert_eq!(plain("a", path), format!("http://a{path}"));
        }
    }

    #[test]
    fn an_operator_may_leave_out_parameters() {
        let ignored = |path: &str| {
            let ignored_parameters = vec![(*b"utm_*").into(), (*b"fbclid").into()];
            let parts = KeyParts { ignored_parameters, ..KeyParts::default() };
            text(Scheme::Http, "a", path, &parts)
        };
        assert_eq!(ignored("/?utm_a=1&b=2&fbclid&c"), "http://a/?b=2&c");
        assert_eq!(ignored("/?utm_a=1&utm_b"), "http://a/");
        assert_eq!(ignored("/?fbclid2=1"), "http://a/?fbclid2=1");
        assert_eq!(ignored("/?utm_a=1;b=2"), "http://a/?utm_a=1;b=2", "cloaking");
        let parts = KeyParts { ignores_query: true, ..KeyParts::default() };
        assert_eq!(text(Scheme::Http, "a", "/b?c", &parts), "http://a/b");
    }

    #[test]
    fn an_operator_may_add_fields() {
        let parts = KeyParts { fields: vec![(*b"x-kind").into()], ..KeyParts::default() };
        assert_eq!(text(Scheme::Http, "a", "/", &parts), "http://a/\nx-kind:a\nx-kind:b");
    }

    #[test]
    fn a_field_counts_as_the_origin_receives_it() {
        let parts =
            KeyParts { fields: vec![(*b"x-forwarded-proto").into()], ..KeyParts::default() };
        let of = |is_trusted, parts: &KeyParts| {
            let head = get("X-Forwarded-Proto: https\r\nX-Host: B\r\n");
            let forwarding =
                Forwarding::Gateway { client: None, is_trusted, always_forwarded: &[] };
            let request = OriginRequest::new(&head, Scheme::Http, forwarding);
            let mut text = Vec::new();
            Key::write(&mut text, &site(Scheme::Http, "a"), b"/", &request, parts);
            String::from_utf8(text).unwrap()
        };
        assert_eq!(of(false, &KeyParts::default()), "http://a/");
        assert_eq!(of(false, &parts), "http://a/\nx-forwarded-proto:http");
        let keyed = "http://a/\nx-forwarded-proto:https\nx-host:B";
        assert_eq!(of(true, &KeyParts::default()), keyed);
    }

    #[test]
    fn two_services_have_keys_of_their_own() {
        let of = |space| {
            let parts = KeyParts { space, ..KeyParts::default() };
            text(Scheme::Http, "a", "/b?c", &parts)
        };
        assert_eq!(of(Space::named("x:1")), "http://a/b?c\n@x:1");
        assert_eq!(of(Space::named("x:2")), "http://a/b?c\n@x:2");
        assert_eq!(of(Space::default()), "http://a/b?c");
        for space in [Space::named("x:1"), Space::default()] {
            assert_eq!(Space::from_key_text(of(space.clone()).as_bytes()), space);
        }
        for space in [Space::named("x:1"), Space::named("x:2"), Space::default()] {
            assert_eq!(Space::tag_from_key_text(of(space.clone()).as_bytes()), space.tag());
        }
        assert_ne!(Space::named("x:1").tag(), Space::named("x:2").tag());
        assert_eq!(Space::default().tag(), SpaceTag::default());
        assert_eq!(Space::tag_from_key_text(b"http://a/\nfield:@x:1"), SpaceTag::default());
    }

    #[test]
    fn an_operator_may_add_cookies() {
        let head = get("Cookie: a=1; lang=de\r\n");
        let request = OriginRequest::as_received(&head);
        let parts = KeyParts { cookies: vec![(*b"lang").into()], ..KeyParts::default() };
        let site = site(Scheme::Http, "a");
        let mut text = Vec::new();
        Key::write(&mut text, &site, b"/", &request, &parts);
        assert_eq!(text, b"http://a/\ncookie;lang=de");
        assert_eq!(
            Key::from_request(&HASH, &site, b"/", &request, &parts),
            Key::from_text(&HASH, &text)
        );
    }

    #[test]
    fn hashes_differ_by_key_and_text() {
        let key = |hash: [u8; 16], text: &[u8]| Key::from_text(&HashKey::new(hash), text);
        assert_ne!(key([0; 16], b"a"), key([0; 16], b"b"));
        assert_ne!(key([0; 16], b"a"), key([1; 16], b"a"));
        assert_eq!(key([1; 16], b"a"), key([1; 16], b"a"));
    }

    #[test]
    fn origins_are_compared_rfc_9110_section_4_3_1() {
        let http = |authority| site(Scheme::Http, authority);
        assert!(http("A.example").is_same(&http("a.EXAMPLE:80")));
        assert!(!http("a:81").is_same(&http("a")));
        assert!(!http("a").is_same(&http("b")));
        assert!(!http("a").is_same(&site(Scheme::Https, "a:80")));
        assert!(http("[::1]").is_same(&http("[0:0::1]")));
        let keyed = text(Scheme::Https, "a:444", "/b", &KeyParts::default()) + "\nx-kind:a b";
        let origin = UriOrigin::from_key_text(keyed.as_bytes()).unwrap();
        assert!(origin.is_same(&site(Scheme::Https, "a:444")) && !origin.is_same(&http("a:444")));
    }
}

//! Field names that have a meaning to a proxy or a cache.
//!
//! Each field of each header is looked up by [`FieldName::from_bytes`]. The lookup is a perfect
//! hash over the first and last eight bytes, as two numbers: one multiplication yields the only
//! candidate, and one comparison confirms it.

use crate::byte_class::{ALNUM_OR_HYPHEN, TOKEN};

/// Declares [`FieldName`] and its table from one list.
macro_rules! names {
    ($($variant:ident = $text:literal,)*) => {
        /// A field name with a known meaning, or a category of other names.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        #[expect(missing_docs, reason = "the names are the fields")]
        pub enum FieldName {
            $($variant,)*
            /// A name with a separator other than `-`, such as `_` or `.`. If a recipient read it
            /// as `-`, the name would be a known one or belong to `Gateway`. CGI (RFC 3875)
            /// replaces `-` with `_`, and some servers replace every other separator too. A
            /// recipient could therefore confuse the field with one that was checked or removed
            /// here.
            Disguised,
            /// Any other name that begins with `x-forward`, `x-original-` or `x-rewrite-`. Gateways
            /// describe the client's request by such fields, and origins build URLs from them.
            Gateway,
            /// Any other token.
            #[default]
            Other,
        }

        const TABLE: &[(&str, FieldName)] = &[$(($text, FieldName::$variant),)*];
    };
}

names! {
    Te = "te",
    Age = "age",
    Via = "via",
    Date = "date",
    Etag = "etag",
    From = "from",
    Host = "host",
    Vary = "vary",
    Allow = "allow",
    Proxy = "proxy",
    Range = "range",
    Accept = "accept",
    Cookie = "cookie",
    Expect = "expect",
    XHost = "x-host",
    Origin = "origin",
    Pragma = "pragma",
    Prefer = "prefer",
    Server = "server",
    Expires = "expires",
    Referer = "referer",
    Trailer = "trailer",
    Upgrade = "upgrade",
    Warning = "warning",
    CdnLoop = "cdn-loop",
    IfMatch = "if-match",
    IfRange = "if-range",
    Location = "location",
    XScheme = "x-scheme",
    CacheTag = "cache-tag",
    Forwarded = "forwarded",
    XRealIp = "x-real-ip",
    ClientIp = "client-ip",
    Connection = "connection",
    KeepAlive = "keep-alive",
    SetCookie = "set-cookie",
    UserAgent = "user-agent",
    ClientCert = "client-cert",
    SetCookie2 = "set-cookie2",
    RetryAfter = "retry-after",
    XSendfile = "x-sendfile",
    XClientIp = "x-client-ip",
    CacheGroups = "cache-groups",
    CacheStatus = "cache-status",
    ContentType = "content-type",
    MaxForwards = "max-forwards",
    XUrlScheme = "x-url-scheme",
    AcceptRanges = "accept-ranges",
    Authorization = "authorization",
    CacheControl = "cache-control",
    ContentRange = "content-range",
    XHttpMethod = "x-http-method",
    IfNoneMatch = "if-none-match",
    LastModified = "last-modified",
    SurrogateKey = "surrogate-key",
    XScriptName = "x-script-name",
    ContentLength = "content-length",
    TrueClientIp = "true-client-ip",
    AcceptCharset = "accept-charset",
    Http2Settings = "http2-settings",
    AcceptEncoding = "accept-encoding",
    AcceptLanguage = "accept-language",
    ClearSiteData = "clear-site-data",
    XForwardedFor = "x-forwarded-for",
    ContentEncoding = "content-encoding",
    ContentLanguage = "content-language",
    ContentLocation = "content-location",
    ProxyConnection = "proxy-connection",
    FrontEndHttps = "front-end-https",
    WwwAuthenticate = "www-authenticate",
    XForwardedHost = "x-forwarded-host",
    XAccelRedirect = "x-accel-redirect",
    CfConnectingIp = "cf-connecting-ip",
    FastlyClientIp = "fastly-client-ip",
    IfModifiedSince = "if-modified-since",
    ClientCertChain = "client-cert-chain",
    SecWebsocketKey = "sec-websocket-key",
    TransferEncoding = "transfer-encoding",
    CdnCacheControl = "cdn-cache-control",
    XForwardedProto = "x-forwarded-proto",
    ProxyAuthenticate = "proxy-authenticate",
    AuthenticationInfo = "authentication-info",
    XMethodOverride = "x-method-override",
    IfUnmodifiedSince = "if-unmodified-since",
    ProxyAuthorization = "proxy-authorization",
    XClusterClientIp = "x-cluster-client-ip",
    SecWebsocketAccept = "sec-websocket-accept",
    XHttpHostOverride = "x-http-host-override",
    SecWebsocketVersion = "sec-websocket-version",
    SecWebsocketProtocol = "sec-websocket-protocol",
    XHttpMethodOverride = "x-http-method-override",
    SecWebsocketExtensions = "sec-websocket-extensions",
    CacheGroupInvalidation = "cache-group-invalidation",
    ProxyAuthenticationInfo = "proxy-authentication-info",
    StrictTransportSecurity = "strict-transport-security",
}

impl FieldName {
    /// Returns the field name of these bytes, ignoring ASCII case; [`FieldName::Other`] if they are
    /// not a token.
    #[inline]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::from_token(bytes).unwrap_or(Self::Other)
    }

    /// Returns the field name of these bytes, ignoring ASCII case; `None` if they are not a token.
    #[inline]
    pub(crate) fn from_token(bytes: &[u8]) -> Option<Self> {
        let key = NameKey::of(bytes);
        let row = SLOTS[key.slot(MULTIPLIER)] as usize;
        if key.is_same(&KEYS[row]) && is_same_middle(TABLE[row].0.as_bytes(), bytes) {
            return Some(TABLE[row].1);
        }
        if !ALNUM_OR_HYPHEN.contains_all(bytes) {
            return Self::from_separated(bytes);
        }
        match bytes {
            [] => None,
            [b'x' | b'X', b'-', ..] if is_gateway(bytes) => Some(Self::Gateway),
            _ => Some(Self::Other),
        }
    }

    /// Like [`FieldName::from_token`], for bytes that are not all alphanumeric or `-`.
    fn from_separated(bytes: &[u8]) -> Option<Self> {
        if !TOKEN.contains_all(bytes) {
            return None;
        }
        let is_disguise = |(text, _): &(&str, FieldName)| {
            text.len() == bytes.len() && text.bytes().zip(bytes).all(is_same_in_cgi)
        };
        let is_disguised = TABLE.iter().any(is_disguise) || is_gateway(bytes);
        Some(if is_disguised { Self::Disguised } else { Self::Other })
    }

    /// Returns all known names in lower case.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        TABLE.iter().map(|(text, _)| *text)
    }

    /// Returns whether the value stands for a category of names ([`FieldName::Disguised`],
    /// [`FieldName::Gateway`] or [`FieldName::Other`]), so that names have to be compared by their
    /// bytes.
    pub fn is_category(self) -> bool {
        matches!(self, Self::Disguised | Self::Gateway | Self::Other)
    }

    /// Returns the name in lower case; an empty string for a category of names
    /// ([`is_category`](Self::is_category)).
    pub fn as_str(self) -> &'static str {
        TABLE.get(self as usize).map_or("", |(text, _)| text)
    }
}

/// A set of field names.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NameSet {
    /// One bit for each name, indexed by its discriminant.
    bits: [u64; 2],
}

impl NameSet {
    /// Creates a set of these names.
    pub const fn new(names: &[FieldName]) -> Self {
        let mut set = Self { bits: [0; 2] };
        let mut at = 0;
        while at < names.len() {
            set.insert(names[at]);
            at += 1;
        }
        set
    }

    /// Returns whether the set contains the name.
    #[inline]
    pub const fn contains(&self, name: FieldName) -> bool {
        self.bits[name as usize / 64] >> (name as usize % 64) & 1 != 0
    }

    /// Returns whether the two sets have a name in common.
    #[inline]
    pub const fn intersects(&self, other: &Self) -> bool {
        self.bits[0] & other.bits[0] | self.bits[1] & other.bits[1] != 0
    }

    /// Returns the union of two sets.
    pub const fn union(self, other: &Self) -> Self {
        Self { bits: [self.bits[0] | other.bits[0], self.bits[1] | other.bits[1]] }
    }

    /// Adds a name to the set.
    #[inline]
    pub(crate) const fn insert(&mut self, name: FieldName) {
        self.bits[name as usize / 64] |= 1 << (name as usize % 64);
    }
}

const _: () = assert!((FieldName::Other as usize) < 128, "each name has a bit");

/// Returns whether a token begins like the names of [`FieldName::Gateway`], if other separators are
/// read as `-`.
#[cold]
fn is_gateway(bytes: &[u8]) -> bool {
    const FAMILIES: [&str; 3] = ["x-forward", "x-original-", "x-rewrite-"];
    let begins_like = |family: &&str| {
        bytes.len() >= family.len() && family.bytes().zip(bytes).all(is_same_in_cgi)
    };
    FAMILIES.iter().any(begins_like)
}

/// Returns whether a byte of a token and a byte of a known name are the same to a CGI program.
fn is_same_in_cgi((known, &byte): (u8, &u8)) -> bool {
    known == if ALNUM_OR_HYPHEN.contains(byte) { byte.to_ascii_lowercase() } else { b'-' }
}

/// The lookup key of a name. Names of up to 16 bytes are equal if their keys are.
#[derive(Clone, Copy)]
struct NameKey {
    /// The first eight bytes, the first one least significant. A shorter name is padded with zeros.
    first: u64,
    /// The last eight bytes; of a shorter name, the same as `first`.
    last: u64,
    len: usize,
}

impl NameKey {
    #[inline]
    const fn of(bytes: &[u8]) -> Self {
        let (first, last) = match (bytes.first_chunk(), bytes.last_chunk()) {
            (Some(&first), Some(&last)) => (u64::from_le_bytes(first), u64::from_le_bytes(last)),
            _ => {
                let word = short_word(bytes);
                (word, word)
            }
        };
        Self { first, last, len: bytes.len() }
    }

    /// Returns the slot of the key in [`SLOTS`]. It does not depend on the bit in which upper and
    /// lower case differ. Some other bytes also differ only in this bit, such as `-` and CR. Names
    /// that differ only in such bytes have the same slot, which costs one failed comparison.
    #[inline]
    const fn slot(&self, multiplier: u64) -> usize {
        const CASE: u64 = u64::from_ne_bytes([0x20; 8]);
        let mixed = (self.first | CASE).rotate_left(29) ^ (self.last | CASE);
        (mixed.wrapping_mul(multiplier) >> (u64::BITS - SLOT_BITS)) as usize
    }

    /// Returns whether this is the key of the `known` name, ignoring ASCII case.
    #[inline]
    const fn is_same(&self, known: &Self) -> bool {
        self.len == known.len
            && is_same_word(self.first, known.first)
            && is_same_word(self.last, known.last)
    }
}

/// Returns up to seven bytes as one number: the bitwise OR of two or three parts of them. The parts
/// may overlap, because bits that overlap are equal.
#[inline]
const fn short_word(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    match (bytes.first_chunk(), bytes.last_chunk()) {
        (Some(&low), Some(&high)) => {
            let high = u32::from_le_bytes(high) as u64;
            u32::from_le_bytes(low) as u64 | high << (8 * (len - 4))
        }
        _ if len == 0 => 0,
        _ => {
            let middle = (bytes[len / 2] as u64) << (8 * (len / 2));
            bytes[0] as u64 | middle | (bytes[len - 1] as u64) << (8 * (len - 1))
        }
    }
}

/// Returns whether eight bytes are those of a known name, ignoring ASCII case. A known name has
/// only alphanumeric bytes and `-` (see [`keys`]). Of these, only the alphabetic ones have bit 6
/// set, and bit 5 is their case.
#[inline]
const fn is_same_word(word: u64, known: u64) -> bool {
    const LETTER: u64 = u64::from_ne_bytes([0x40; 8]);
    (word ^ known) & !((known & LETTER) >> 1) == 0
}

/// Returns whether the bytes between the first and last eight are equal, for names with equal keys.
#[inline]
fn is_same_middle(known: &[u8], bytes: &[u8]) -> bool {
    known.len() <= 16 || known.eq_ignore_ascii_case(bytes)
}

static KEYS: [NameKey; TABLE.len()] = keys();

const fn keys() -> [NameKey; TABLE.len()] {
    let mut keys = [NameKey { first: 0, last: 0, len: 0 }; TABLE.len()];
    let mut row = 0;
    while row < TABLE.len() {
        let text = TABLE[row].0.as_bytes();
        let mut at = 0;
        while at < text.len() {
            let is_known = matches!(text[at], b'a'..=b'z' | b'0'..=b'9' | b'-');
            assert!(is_known, "a known name has only lower-case alphanumeric bytes and hyphens");
            at += 1;
        }
        assert!(!text.is_empty(), "a name is not empty");
        keys[row] = NameKey::of(text);
        row += 1;
    }
    keys
}

/// Bits of a slot's index. There are at least eight slots for each name, so that the search for a
/// multiplier without collisions needs few attempts.
const SLOT_BITS: u32 = (TABLE.len() * 8).next_power_of_two().ilog2();

/// The multiplier that gives each name a slot of its own.
const MULTIPLIER: u64 = multiplier();

/// The row of [`TABLE`] whose name has this slot; any row if none has it.
static SLOTS: [u8; 1 << SLOT_BITS] = {
    let mut slots = [0; 1 << SLOT_BITS];
    let keys = keys();
    let mut row = 0;
    while row < keys.len() {
        slots[keys[row].slot(MULTIPLIER)] = row as u8;
        row += 1;
    }
    assert!(TABLE.len() <= 256, "a row fits a byte");
    slots
};

const fn multiplier() -> u64 {
    let keys = keys();
    // The search may start at any odd number with well-distributed bits, such as 2^64 divided by
    // the golden ratio.
    let mut multiplier = 0x9e37_79b9_7f4a_7c15;
    while !has_no_collision(multiplier, &keys) {
        multiplier = (multiplier ^ multiplier >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) | 1;
    }
    multiplier
}

const fn has_no_collision(multiplier: u64, keys: &[NameKey]) -> bool {
    let mut taken = [false; 1 << SLOT_BITS];
    let mut row = 0;
    while row < keys.len() {
        let slot = keys[row].slot(multiplier);
        if taken[slot] {
            return false;
        }
        taken[slot] = true;
        row += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::byte_class::is_token;

    #[test]
    fn every_name_is_found_in_any_case_and_disguised() {
        for (row, (text, name)) in TABLE.iter().enumerate() {
            assert_eq!(*name as usize, row);
            assert_eq!(name.as_str(), *text);
            assert_eq!(FieldName::from_bytes(text.as_bytes()), *name);
            assert_eq!(FieldName::from_bytes(text.to_uppercase().as_bytes()), *name);
            for separator in ["_", ".", "~", "!"] {
                let disguised = text.replacen('-', separator, 1);
                let expected = if disguised == *text { *name } else { FieldName::Disguised };
                assert_eq!(FieldName::from_bytes(disguised.as_bytes()), expected);
            }
        }
        assert_eq!(FieldName::from_bytes(b"TRANSFER_ENCODING"), FieldName::Disguised);
    }

    /// Compares the lookup with a linear search, for bytes that differ from a known name in one
    /// byte or in length.
    #[test]
    fn the_lookup_equals_a_linear_search() {
        let searched = |bytes: &[u8]| {
            let same = |(text, _): &&(&str, FieldName)| bytes.eq_ignore_ascii_case(text.as_bytes());
            let disguised = |(text, _): &(&str, FieldName)| {
                is_token(bytes)
                    && text.len() == bytes.len()
                    && text.bytes().zip(bytes).all(is_same_in_cgi)
            };
            let text = String::from_utf8_lossy(bytes).to_ascii_lowercase();
            let separators = "!#$%&'*+.^_`|~";
            let is_gateway = is_token(bytes)
                && ["x-forward", "x-original-", "x-rewrite-"].iter().any(|family| {
                    text.replace(|it| separators.contains(it), "-").starts_with(family)
                });
            let other = match text.contains(|it| separators.contains(it)) {
                true if TABLE.iter().any(disguised) || is_gateway => FieldName::Disguised,
                false if is_gateway => FieldName::Gateway,
                _ => FieldName::Other,
            };
            TABLE.iter().find(same).map_or(other, |(_, name)| *name)
        };
        for (text, _) in TABLE {
            for at in 0..text.len() {
                for byte in 0..=u8::MAX {
                    let mut bytes = text.as_bytes().to_vec();
                    bytes[at] = byte;
                    assert_eq!(
                        FieldName::from_bytes(&bytes),
                        searched(&bytes),
                        "{}",
                        bytes.escape_ascii()
                    );
                    bytes.insert(at, byte);
                    assert_eq!(
                        FieldName::from_bytes(&bytes),
                        searched(&bytes),
                        "{}",
                        bytes.escape_ascii()
                    );
                }
                assert_eq!(
                    FieldName::from_bytes(&text.as_bytes()[..at]),
                    searched(&text.as_bytes()[..at])
                );
            }
        }
    }

    #[test]
    fn fields_of_gateways_are_recognised_by_prefix() {
        for name in ["X-Forwarded-Scheme", "x-original-url", "X-REWRITE-URL", "x-forwarded-a_b"] {
            let expected =
                if name.contains('_') { FieldName::Disguised } else { FieldName::Gateway };
            assert_eq!(FieldName::from_bytes(name.as_bytes()), expected, "{name}");
            let disguised = name.replace('-', "_");
            assert_eq!(FieldName::from_bytes(disguised.as_bytes()), FieldName::Disguised);
        }
        for name in ["X-Forwarded", "X-Forwarded-", "X-Forward-Proto"] {
            assert_eq!(FieldName::from_bytes(name.as_bytes()), FieldName::Gateway, "{name}");
        }
        for name in ["X-Forwar", "X-Originals", "Y-Original-URL", "x-forwarded-\r"] {
            assert_eq!(FieldName::from_bytes(name.as_bytes()), FieldName::Other, "{name}");
        }
        assert_eq!(FieldName::from_bytes(b"X-Forwarded-Host"), FieldName::XForwardedHost);
    }

    #[test]
    fn similar_bytes_are_other_names() {
        for bytes in [&b""[..], b"hos", b"hosts", b"content-length\x0b", b"x_custom", &[b'a'; 99]] {
            assert_eq!(FieldName::from_bytes(bytes), FieldName::Other);
            assert_eq!(FieldName::from_bytes(bytes).as_str(), "");
        }
    }
}

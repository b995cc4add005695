//! The field names that the proxy recognises.

/// Declares [`Name`] and the table behind it from one list, which is ordered by length.
macro_rules! names {
    ($($variant:ident = $text:literal,)*) => {
        /// A field name by its meaning.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
        #[expect(missing_docs, reason = "the names are the fields")]
        pub enum Name {
            $($variant,)*
            /// Becomes a known name when `_` is read as `-`. Gateways in the manner of CGI cannot
            /// tell the two apart, so it could pass for a field that was checked or removed here.
            Disguised,
            /// Any other token.
            #[default]
            Other,
        }

        const TABLE: &[(&str, Name)] = &[$(($text, Name::$variant),)*];
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
    Range = "range",
    Accept = "accept",
    Cookie = "cookie",
    Expect = "expect",
    Origin = "origin",
    Pragma = "pragma",
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
    Forwarded = "forwarded",
    XRealIp = "x-real-ip",
    Connection = "connection",
    KeepAlive = "keep-alive",
    SetCookie = "set-cookie",
    UserAgent = "user-agent",
    RetryAfter = "retry-after",
    CacheStatus = "cache-status",
    ContentType = "content-type",
    MaxForwards = "max-forwards",
    AcceptRanges = "accept-ranges",
    Authorization = "authorization",
    CacheControl = "cache-control",
    ContentRange = "content-range",
    IfNoneMatch = "if-none-match",
    LastModified = "last-modified",
    XRewriteUrl = "x-rewrite-url",
    ContentLength = "content-length",
    Http2Settings = "http2-settings",
    XOriginalUrl = "x-original-url",
    AcceptEncoding = "accept-encoding",
    AcceptLanguage = "accept-language",
    XForwardedFor = "x-forwarded-for",
    ContentEncoding = "content-encoding",
    ContentLanguage = "content-language",
    ContentLocation = "content-location",
    ProxyConnection = "proxy-connection",
    WwwAuthenticate = "www-authenticate",
    XForwardedHost = "x-forwarded-host",
    XForwardedPort = "x-forwarded-port",
    IfModifiedSince = "if-modified-since",
    SecWebsocketKey = "sec-websocket-key",
    TransferEncoding = "transfer-encoding",
    XForwardedProto = "x-forwarded-proto",
    ProxyAuthenticate = "proxy-authenticate",
    XForwardedPrefix = "x-forwarded-prefix",
    XForwardedServer = "x-forwarded-server",
    AuthenticationInfo = "authentication-info",
    IfUnmodifiedSince = "if-unmodified-since",
    ProxyAuthorization = "proxy-authorization",
    SecWebsocketAccept = "sec-websocket-accept",
    SecWebsocketVersion = "sec-websocket-version",
    SecWebsocketProtocol = "sec-websocket-protocol",
    XHttpMethodOverride = "x-http-method-override",
    SecWebsocketExtensions = "sec-websocket-extensions",
    ProxyAuthenticationInfo = "proxy-authentication-info",
}

impl Name {
    /// The name that these bytes are, in whatever case.
    pub fn of(bytes: &[u8]) -> Self {
        if bytes.len() > LENGTH_MAX {
            return Self::Other;
        }
        let rows = &TABLE[STARTS[bytes.len()] as usize..STARTS[bytes.len() + 1] as usize];
        for (text, name) in rows {
            if bytes.eq_ignore_ascii_case(text.as_bytes()) {
                return *name;
            }
        }
        let is_disguised = bytes.contains(&b'_')
            && rows.iter().any(|(text, _)| text.bytes().zip(bytes).all(is_same_to_cgi));
        if is_disguised { Self::Disguised } else { Self::Other }
    }

    /// In lower case; empty for [`Name::Disguised`] and [`Name::Other`], which are many.
    pub fn as_str(self) -> &'static str {
        TABLE.get(self as usize).map_or("", |(text, _)| text)
    }
}

fn is_same_to_cgi((known, &byte): (u8, &u8)) -> bool {
    known == if byte == b'_' { b'-' } else { byte.to_ascii_lowercase() }
}

/// The length of the longest name in [`TABLE`].
const LENGTH_MAX: usize = TABLE[TABLE.len() - 1].0.len();

/// Where in [`TABLE`] the names of a length begin; those of length `n` end where `n + 1` begin.
static STARTS: [u8; LENGTH_MAX + 2] = starts();

const fn starts() -> [u8; LENGTH_MAX + 2] {
    let mut starts = [0; LENGTH_MAX + 2];
    let mut row = 0;
    let mut length = 0;
    while length < starts.len() {
        while row < TABLE.len() && TABLE[row].0.len() < length {
            row += 1;
            assert!(
                row == TABLE.len() || TABLE[row - 1].0.len() <= TABLE[row].0.len(),
                "the table is ordered by length"
            );
        }
        starts[length] = row as u8;
        length += 1;
    }
    assert!(TABLE.len() <= u8::MAX as usize);
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case_and_disguised() {
        for (row, (text, name)) in TABLE.iter().enumerate() {
            assert_eq!(*name as usize, row);
            assert_eq!(name.as_str(), *text);
            assert_eq!(Name::of(text.as_bytes()), *name);
            assert_eq!(Name::of(text.to_uppercase().as_bytes()), *name);
            if text.contains('-') {
                assert_eq!(Name::of(text.replacen('-', "_", 1).as_bytes()), Name::Disguised);
            }
        }
        assert_eq!(Name::of(b"TRANSFER_ENCODING"), Name::Disguised);
    }

    #[test]
    fn what_is_nearly_a_name_is_another_one() {
        for bytes in [&b""[..], b"hos", b"hosts", b"content-length\x0b", b"x_custom", &[b'a'; 99]] {
            assert_eq!(Name::of(bytes), Name::Other);
            assert_eq!(Name::of(bytes).as_str(), "");
        }
    }
}

//! The `Cache-Status` field (RFC 9211): how the cache handled a request.

use millrace_http1::format::write_number;

/// The reason why a request was forwarded to the origin (RFC 9211 section 2.2).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[expect(missing_docs, reason = "the names are the values of section 2.2")]
pub enum Forward {
    Bypass,
    Method,
    UriMiss,
    VaryMiss,
    Miss,
    Request,
    Stale,
    Partial,
}

impl Forward {
    /// Returns the parameter value of section 2.2.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Bypass => "bypass",
            Self::Method => "method",
            Self::UriMiss => "uri-miss",
            Self::VaryMiss => "vary-miss",
            Self::Miss => "miss",
            Self::Request => "request",
            Self::Stale => "stale",
            Self::Partial => "partial",
        }
    }
}

/// How a cache handled a request. The default has no parameters, only the name of the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStatus<'a> {
    /// Whether the origin was not contacted (section 2.1). Excludes [`CacheStatus::forward`].
    pub is_hit: bool,
    /// Why the request was forwarded to the origin, if it was (section 2.2).
    pub forward: Option<Forward>,
    /// The status of the origin's response, if the client received another one (section 2.3).
    pub forward_status: Option<u16>,
    /// Seconds for which the response stays fresh; negative if it is stale (section 2.4).
    pub ttl_s: Option<i64>,
    /// Whether the response was stored (section 2.5).
    pub is_stored: bool,
    /// Set if the request waited for the fetch of another request: `true` if it received that
    /// response, `false` if it was forwarded after all (section 2.6). Ignored if
    /// [`CacheStatus::is_hit`] is true.
    pub collapsed: Option<bool>,
    /// The cache key, for clients that may see it (section 2.7).
    pub key: Option<&'a [u8]>,
    /// A token with more detail (section 2.8).
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// Appends the list member of this cache. `name` is the name of the cache, a token. The
    /// function allocates nothing, because it runs for each hit.
    pub fn write(&self, out: &mut Vec<u8>, name: &str) {
        out.extend_from_slice(name.as_bytes());
        if self.is_hit {
            out.extend_from_slice(b"; hit");
        } else if let Some(forward) = self.forward {
            put(out, "; fwd=", forward.as_str().as_bytes());
        }
        if let Some(status) = self.forward_status {
            put_number(out, "; fwd-status=", i64::from(status));
        }
        if let Some(ttl_s) = self.ttl_s {
            put_number(out, "; ttl=", ttl_s);
        }
        if self.is_stored {
            out.extend_from_slice(b"; stored");
        }
        match self.collapsed.filter(|_| !self.is_hit) {
            Some(true) => out.extend_from_slice(b"; collapsed"),
            Some(false) => out.extend_from_slice(b"; collapsed=?0"),
            None => {}
        }
        if let Some(key) = self.key {
            out.extend_from_slice(b"; key=");
            put_string(out, key);
        }
        if let Some(detail) = self.detail {
            put(out, "; detail=", detail.as_bytes());
        }
    }
}

fn put(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(value);
}

fn put_number(out: &mut Vec<u8>, name: &str, number: i64) {
    out.extend_from_slice(name.as_bytes());
    if number < 0 {
        out.push(b'-');
    }
    write_number(out, number.unsigned_abs());
}

/// Appends a string (RFC 9651 section 3.3.3). Bytes that a string cannot contain become `?`.
fn put_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for &byte in text {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => out.push(b'?'),
        }
    }
    out.push(b'"');
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(status: CacheStatus<'_>) -> String {
        let mut out = Vec::new();
        status.write(&mut out, "millrace");
        let mut parser = sfparse::Parser::new(&out);
        assert!(parser.parse_list().unwrap().is_some());
        while parser.parse_param().unwrap().is_some() {}
        assert!(parser.parse_list().unwrap().is_none());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn a_hit_has_its_ttl_rfc_9211_section_2() {
        let hit = CacheStatus { is_hit: true, ttl_s: Some(376), ..CacheStatus::default() };
        assert_eq!(written(hit), "millrace; hit; ttl=376");
        let stale = CacheStatus { is_hit: true, ttl_s: Some(-412), ..CacheStatus::default() };
        assert_eq!(written(stale), "millrace; hit; ttl=-412");
        assert_eq!(written(CacheStatus::default()), "millrace");
    }

    #[test]
    fn a_miss_has_its_reason_and_result_rfc_9211_section_2() {
        let miss = CacheStatus {
            forward: Some(Forward::Stale),
            forward_status: Some(304),
            is_stored: true,
            collapsed: Some(true),
            ttl_s: Some(i64::MIN),
            detail: Some("no-store"),
            key: Some(b"http://a/\"\\\n"),
            ..CacheStatus::default()
        };
        let mut out = Vec::new();
        miss.write(&mut out, "m");
        let expected = "m; fwd=stale; fwd-status=304; ttl=-9223372036854775808; stored; collapsed; \
                        key=\"http://a/\\\"\\\\?\"; detail=no-store";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        let both = CacheStatus { is_hit: true, ..miss };
        assert!(
            written(CacheStatus { ttl_s: None, ..both }).starts_with("millrace; hit; fwd-status")
        );
    }

    #[test]
    fn a_collapsed_request_is_no_hit_rfc_9211_section_2_6() {
        let forward = Some(Forward::UriMiss);
        let waited = |collapsed| CacheStatus { forward, collapsed, ..CacheStatus::default() };
        assert_eq!(written(waited(Some(true))), "millrace; fwd=uri-miss; collapsed");
        assert_eq!(written(waited(Some(false))), "millrace; fwd=uri-miss; collapsed=?0");
        let hit = CacheStatus { is_hit: true, ..waited(Some(false)) };
        assert_eq!(written(hit), "millrace; hit");
    }

    #[test]
    fn reasons_are_tokens_rfc_9211_section_2_2() {
        for (forward, text) in [
            (Forward::Bypass, "bypass"),
            (Forward::Method, "method"),
            (Forward::UriMiss, "uri-miss"),
            (Forward::VaryMiss, "vary-miss"),
            (Forward::Miss, "miss"),
            (Forward::Request, "request"),
            (Forward::Partial, "partial"),
        ] {
            let status = CacheStatus { forward: Some(forward), ..CacheStatus::default() };
            assert_eq!(written(status), format!("millrace; fwd={text}"));
        }
    }
}

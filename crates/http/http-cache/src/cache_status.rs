//! The `Cache-Status` field, RFC 9211: what the cache did with a request.

use millrace_http1::format::write_number;

/// Why a request was sent to the origin, RFC 9211 section 2.2.
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
    /// As it is written.
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

/// What a cache did with a request. The default is a cache that says nothing of itself but its
/// name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CacheStatus<'a> {
    /// The origin was not asked, section 2.1. It goes without [`CacheStatus::forward`].
    pub is_hit: bool,
    /// The origin was asked, and why, section 2.2.
    pub forward: Option<Forward>,
    /// The status that it answered with, where the client got another one, section 2.3.
    pub forward_status: Option<u16>,
    /// For how many seconds the response stays fresh; negative where it is stale, section 2.4.
    pub ttl_s: Option<i64>,
    /// The response was stored, section 2.5.
    pub is_stored: bool,
    /// The request waited for what another one fetched: whether that was its response, or the origin
    /// was asked once more, section 2.6. It goes with [`CacheStatus::forward`], why there was
    /// anything to wait for; without one it says nothing.
    pub collapsed: Option<bool>,
    /// The key, for those that may see it, section 2.7.
    pub key: Option<&'a [u8]>,
    /// More in words, section 2.8: a token.
    pub detail: Option<&'a str>,
}

impl CacheStatus<'_> {
    /// Appends the member of the list that stands for this cache. `name` is the cache's, a token.
    /// Writes by hand and allocates nothing: it is on the way of each hit.
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

/// A string of RFC 9651 section 3.3.3; bytes that it cannot have become `?`.
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
    fn a_hit_says_how_long_it_stays_one_rfc_9211_section_2() {
        let hit = CacheStatus { is_hit: true, ttl_s: Some(376), ..CacheStatus::default() };
        assert_eq!(written(hit), "millrace; hit; ttl=376");
        let stale = CacheStatus { is_hit: true, ttl_s: Some(-412), ..CacheStatus::default() };
        assert_eq!(written(stale), "millrace; hit; ttl=-412");
        assert_eq!(written(CacheStatus::default()), "millrace");
    }

    #[test]
    fn a_miss_says_why_and_what_became_of_it_rfc_9211_section_2() {
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

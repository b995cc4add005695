//! Whether a request uses the cache.

use millrace_http1::{FieldName, Method, NameSet, RequestHead, connection_options};

use super::policy::CachePolicy;

/// The reason why a request bypasses the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bypass {
    /// The method is neither GET nor HEAD (RFC 9111 section 4).
    Method,
    /// The request has a body, on which the response may depend.
    Body,
    /// The request upgrades to another protocol, which only the origin can do.
    Upgrade,
    /// The request has a field that may change the response and is in no key:
    /// [`CachePolicy::unkeyed`].
    Unkeyed,
    /// The request has `If-Match` or `If-Unmodified-Since`, which are for the origin and not for
    /// caches (RFC 9111 section 4.3.2).
    Precondition,
}

/// Returns why a request bypasses the cache, or `None` if a stored response may be used. For HEAD,
/// the response is used without its body (RFC 9110 section 9.3.2). Whether the origin's response is
/// stored is decided by [`store`](super::store()).
///
/// RFC 9111 section 4.3.2 defines `If-Match` and `If-Unmodified-Since` as not applicable to caches.
/// A cache could then respond with 200 where the origin would respond with 412, so such a request
/// is forwarded.
pub fn bypass(request: &RequestHead, policy: &CachePolicy) -> Option<Bypass> {
    if !matches!(request.method(), Method::Get | Method::Head) {
        Some(Bypass::Method)
    } else if has_body(request) {
        Some(Bypass::Body)
    } else if policy.has_unkeyed(request) {
        Some(Bypass::Unkeyed)
    } else if is_upgrade(request) {
        Some(Bypass::Upgrade)
    } else if request.has_any(&PRECONDITIONS) {
        Some(Bypass::Precondition)
    } else {
        None
    }
}

/// Returns whether the response depends on something that is in no key. Such a response is for this
/// request only, and no stored response is for this request.
pub(super) fn is_unkeyed(request: &RequestHead, policy: &CachePolicy) -> bool {
    policy.has_unkeyed(request) || is_upgrade(request) || request.has_any(&PRECONDITIONS)
}

fn is_upgrade(request: &RequestHead) -> bool {
    request.find(FieldName::Upgrade).is_some() && connection_options(request).upgrade
}

/// Conditions that only the origin can evaluate.
const PRECONDITIONS: NameSet = NameSet::new(&[FieldName::IfMatch, FieldName::IfUnmodifiedSince]);

/// Returns whether a request declares a body. `Content-Length: 0` declares none.
pub(super) fn has_body(request: &RequestHead) -> bool {
    request.find(FieldName::TransferEncoding).is_some()
        || request.values(FieldName::ContentLength).any(|value| value != b"0")
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::{get, request};
    use super::*;

    #[test]
    fn only_get_and_head_use_the_cache_section_4() {
        for (method, expected) in [
            ("GET", None),
            ("HEAD", None),
            ("POST", Some(Bypass::Method)),
            ("OPTIONS", Some(Bypass::Method)),
            ("M-SEARCH", Some(Bypass::Method)),
            ("get", Some(Bypass::Method)),
        ] {
            assert_eq!(
                bypass(&request(&format!("{method} / HTTP/1.1"), ""), &CachePolicy::default()),
                expected
            );
        }
    }

    #[test]
    fn unkeyed_requests_bypass_the_cache() {
        for (fields, expected) in [
            ("Content-Length: 0\r\n", None),
            ("Content-Length: 1\r\n", Some(Bypass::Body)),
            ("Transfer-Encoding: chunked\r\n", Some(Bypass::Body)),
            ("X-HTTP-Method-Override: PUT\r\n", Some(Bypass::Unkeyed)),
            ("X-HTTP-Method: PUT\r\n", Some(Bypass::Unkeyed)),
            ("X-Method-Override: PUT\r\n", Some(Bypass::Unkeyed)),
            ("Upgrade: a\r\nConnection: upgrade\r\n", Some(Bypass::Upgrade)),
            ("Upgrade: a\r\n", None),
            ("Range: bytes=0-1\r\nCookie: a\r\nIf-None-Match: *\r\n", None),
        ] {
            assert_eq!(bypass(&get(fields), &CachePolicy::default()), expected, "{fields}");
        }
    }

    #[test]
    fn preconditions_of_the_origin_bypass_the_cache_section_4_3_2() {
        for field in ["If-Match: *\r\n", "If-Unmodified-Since: x\r\n"] {
            assert_eq!(bypass(&get(field), &CachePolicy::default()), Some(Bypass::Precondition));
        }
    }
}

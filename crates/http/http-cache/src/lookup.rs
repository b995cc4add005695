//! Whether the cache is asked at all.

use millrace_http1::{Method, Name, NameSet, RequestHead, connection_options};

use super::policy::Policy;

/// What to do with a request before anything is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lookup {
    /// A stored answer may do; for HEAD without its body (RFC 9110 section 9.3.2).
    Cache,
    /// It goes to the origin. Whether its answer is stored is [`store`](super::store())'s decision.
    Origin(Bypass),
}

/// Why a request is not answered from the cache.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Bypass {
    /// Neither GET nor HEAD, RFC 9111 section 4.
    Method,
    /// It has a body, which might be a part of what it asks for.
    Body,
    /// It wants to switch to another protocol, which only the origin can.
    Upgrade,
    /// A field that may change the response and is in no key: [`Policy::unkeyed`].
    Unkeyed,
    /// `If-Match` or `If-Unmodified-Since`: for the origin, and not for caches (RFC 9111 section
    /// 4.3.2).
    Precondition,
}

/// Says whether a request may be answered from the cache.
///
/// RFC 9111 section 4.3.2 calls `If-Match` and `If-Unmodified-Since` not applicable to caches,
/// which would let one answer 200 where the origin would say 412: such a request is sent on.
pub fn lookup(request: &RequestHead, policy: &Policy) -> Lookup {
    if !matches!(request.method(), Method::Get | Method::Head) {
        return Lookup::Origin(Bypass::Method);
    }
    if has_body(request) {
        return Lookup::Origin(Bypass::Body);
    }
    if policy.has_unkeyed(request) {
        return Lookup::Origin(Bypass::Unkeyed);
    }
    if is_upgrade(request) {
        return Lookup::Origin(Bypass::Upgrade);
    }
    if request.has_any(&PRECONDITIONS) {
        return Lookup::Origin(Bypass::Precondition);
    }
    Lookup::Cache
}

/// Whether what the request asks for is in no key: its response is for no other request, and no
/// stored response is for it.
pub(super) fn is_unkeyed(request: &RequestHead, policy: &Policy) -> bool {
    policy.has_unkeyed(request) || is_upgrade(request) || request.has_any(&PRECONDITIONS)
}

fn is_upgrade(request: &RequestHead) -> bool {
    request.find(Name::Upgrade).is_some() && connection_options(request).upgrade
}

/// Conditions that only the origin can judge.
const PRECONDITIONS: NameSet = NameSet::of(&[Name::IfMatch, Name::IfUnmodifiedSince]);

/// Whether a request announces a body. `Content-Length: 0` announces none.
pub(super) fn has_body(request: &RequestHead) -> bool {
    request.find(Name::TransferEncoding).is_some()
        || request.values(Name::ContentLength).any(|value| value != b"0")
}

#[cfg(test)]
mod tests {
    use super::super::samples::{get, request};
    use super::*;

    #[test]
    fn only_get_and_head_are_answered_section_4() {
        for (method, expected) in [
            ("GET", Lookup::Cache),
            ("HEAD", Lookup::Cache),
            ("POST", Lookup::Origin(Bypass::Method)),
            ("OPTIONS", Lookup::Origin(Bypass::Method)),
            ("M-SEARCH", Lookup::Origin(Bypass::Method)),
            ("get", Lookup::Origin(Bypass::Method)),
        ] {
            assert_eq!(
                lookup(&request(&format!("{method} / HTTP/1.1"), ""), &Policy::default()),
                expected
            );
        }
    }

    #[test]
    fn what_no_key_has_is_for_the_origin() {
        for (fields, expected) in [
            ("Content-Length: 0\r\n", Lookup::Cache),
            ("Content-Length: 1\r\n", Lookup::Origin(Bypass::Body)),
            ("Transfer-Encoding: chunked\r\n", Lookup::Origin(Bypass::Body)),
            ("X-HTTP-Method-Override: PUT\r\n", Lookup::Origin(Bypass::Unkeyed)),
            ("X-HTTP-Method: PUT\r\n", Lookup::Origin(Bypass::Unkeyed)),
            ("X-Method-Override: PUT\r\n", Lookup::Origin(Bypass::Unkeyed)),
            ("Upgrade: a\r\nConnection: upgrade\r\n", Lookup::Origin(Bypass::Upgrade)),
            ("Upgrade: a\r\n", Lookup::Cache),
            ("Range: bytes=0-1\r\nCookie: a\r\nIf-None-Match: *\r\n", Lookup::Cache),
        ] {
            assert_eq!(lookup(&get(fields), &Policy::default()), expected, "{fields}");
        }
    }

    #[test]
    fn preconditions_of_the_origin_are_not_ours_section_4_3_2() {
        for field in ["If-Match: *\r\n", "If-Unmodified-Since: x\r\n"] {
            assert_eq!(
                lookup(&get(field), &Policy::default()),
                Lookup::Origin(Bypass::Precondition)
            );
        }
    }
}

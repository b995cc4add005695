//! The configuration of a route by the operator. The defaults are those of RFC 9111.

use millrace_http1::{FORWARDING_FIELDS, FieldLine, METHOD_OVERRIDES, NameSet, RequestHead};

/// How the responses of a route are stored and reused. Made when a configuration is loaded, and
/// shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachePolicy {
    /// Lower-case names of the targeted fields that control this cache with priority over
    /// `Cache-Control` (RFC 9213 section 2.2). The first that is present and valid applies.
    pub targets: Vec<Box<[u8]>>,
    /// The source of the lifetime of responses whose status is heuristically cacheable (RFC 9110
    /// section 15.1). For other statuses it is the origin, so that a lifetime for pages does not
    /// apply to failures. Two exceptions: `status_ttls` may name the status, and [`Ttl::Default`]
    /// applies to a response with `public` but without a lifetime.
    pub ttl: Ttl,
    /// The source of the lifetime for statuses that the operator names. The first entry that
    /// matches applies.
    pub status_ttls: Vec<StatusTtl>,
    /// Maximum lifetime in seconds. It does not limit [`Ttl::Override`].
    pub ttl_s_max: u32,
    /// The heuristic lifetime as a percentage of the time since the modification (RFC 9111 section
    /// 4.2.2): 0 to 100. 0 disables heuristics.
    pub heuristic_percent: u8,
    /// Maximum heuristic lifetime in seconds.
    pub heuristic_s_max: u32,
    /// Seconds for which a stale response may replace a failure of the origin, if the origin did
    /// not set a time (RFC 5861 section 4). 0: never (RFC 9111 section 4.2.4).
    pub stale_if_error_s: u32,
    /// Seconds for which a stale response may be used while it is validated, if the origin did not
    /// set a time (RFC 5861 section 3).
    pub stale_while_revalidate_s: u32,
    /// Which responses with `Set-Cookie` are stored.
    pub set_cookie: SetCookie,
    /// Whether `Cache-Control` and `Pragma` of requests are applied (RFC 9111 section 5.2.1).
    pub applies_request_directives: bool,
    /// Request fields with which a request bypasses the cache, and its response is not stored.
    pub unkeyed: UnkeyedFields,
}

/// The source of a response's lifetime. A lifetime of the operator begins when the response is
/// received, whatever its age.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ttl {
    /// The origin; heuristics if it sets none.
    #[default]
    Origin,
    /// The origin; this number of seconds instead of heuristics if it sets none.
    Default(u32),
    /// This number of seconds, even if the origin sets another lifetime. Responses that must not be
    /// stored are still not stored, and those that must be validated before each use still are.
    Override(u32),
}

/// The source of the lifetime for a range of statuses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusTtl {
    /// The first and the last status.
    pub statuses: (u16, u16),
    /// The source.
    pub ttl: Ttl,
}

/// Which responses with `Set-Cookie` may be stored. RFC 9111 section 7.3: the field does not
/// prevent storing, and each client that receives the stored response receives another client's
/// cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetCookie {
    /// Responses in which the origin sets a lifetime. Heuristics and a lifetime of the operator do
    /// not suffice: an origin that sets none may not have considered caches.
    Explicit,
    /// Responses that address shared caches: by `public`, `s-maxage` or a targeted field.
    Shared,
    /// None.
    #[default]
    Never,
}

/// Request fields that may change a response and are in no key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnkeyedFields {
    names: NameSet,
    /// Lower-case names that the operator added to the key. A method override stays unkeyed: a key
    /// does not turn the response to a DELETE into a response to a GET.
    keyed: Vec<Box<[u8]>>,
}

impl UnkeyedFields {
    #[cold]
    fn is_any_in(&self, request: &RequestHead) -> bool {
        request.fields().iter().any(|field: &FieldLine| {
            let name = request.name_of(field);
            let is_keyed = || self.keyed.iter().any(|key| name.eq_ignore_ascii_case(key));
            self.names.contains(field.known)
                && (METHOD_OVERRIDES.contains(field.known) || !is_keyed())
        })
    }

    /// Returns the unkeyed fields of a gateway: only method overrides. A gateway removes all other
    /// fields that describe the client's request, or adds them to the key.
    pub fn of_gateway() -> Self {
        Self { names: METHOD_OVERRIDES, keyed: Vec::new() }
    }

    /// Returns the unkeyed fields of a forward proxy, which forwards the client's description of
    /// its request. `keyed` are the [`KeyParts::fields`](super::KeyParts::fields).
    pub fn of_forward_proxy(keyed: &[Box<[u8]>]) -> Self {
        Self { names: METHOD_OVERRIDES.union(&FORWARDING_FIELDS), keyed: keyed.to_vec() }
    }
}

impl CachePolicy {
    /// Returns whether a request has a field of [`CachePolicy::unkeyed`]. If it has none, the cost
    /// is one bit test.
    #[inline]
    pub fn has_unkeyed(&self, request: &RequestHead) -> bool {
        request.has_any(&self.unkeyed.names) && self.unkeyed.is_any_in(request)
    }

    /// Returns the source of the lifetime for a status, if the operator names the status.
    pub(super) fn named_ttl(&self, status: u16) -> Option<Ttl> {
        let is_of = |named: &&StatusTtl| (named.statuses.0..=named.statuses.1).contains(&status);
        self.status_ttls.iter().find(is_of).map(|named| named.ttl)
    }
}

impl Default for CachePolicy {
    fn default() -> Self {
        Self {
            targets: vec![(*b"cdn-cache-control").into()],
            ttl: Ttl::Origin,
            status_ttls: Vec::new(),
            ttl_s_max: u32::MAX,
            heuristic_percent: 10,
            heuristic_s_max: 86_400,
            stale_if_error_s: 0,
            stale_while_revalidate_s: 0,
            set_cookie: SetCookie::Never,
            applies_request_directives: true,
            unkeyed: UnkeyedFields::of_gateway(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_messages::get;
    use super::*;

    #[test]
    fn a_field_in_the_key_does_not_count_as_unkeyed() {
        let has = |unkeyed: UnkeyedFields, field: &str| {
            let policy = CachePolicy { unkeyed, ..CachePolicy::default() };
            policy.has_unkeyed(&get(&format!("{field}: a\r\n")))
        };
        for field in ["X-HTTP-Method-Override", "X-Http-Method", "X-Method-Override"] {
            assert!(has(UnkeyedFields::of_gateway(), field), "{field}");
        }
        for field in ["X-Forwarded-Host", "X-Forwarded-For", "Forwarded", "X-Host", "X-Real-Ip"] {
            assert!(!has(UnkeyedFields::of_gateway(), field), "{field}: removed, or in the key");
            assert!(has(UnkeyedFields::of_forward_proxy(&[]), field), "{field}");
        }
        let keyed = [(*b"x-forwarded-tenant").into()];
        let unkeyed = UnkeyedFields::of_forward_proxy(&keyed);
        assert!(!has(unkeyed.clone(), "X-Forwarded-Tenant"));
        assert!(has(unkeyed, "X-Forwarded-Scheme"));
    }

    #[test]
    fn a_method_override_bypasses_the_cache_even_if_it_is_in_the_key() {
        let keyed = [(*b"x-http-method-override").into(), (*b"x-http-method").into()];
        let policy = CachePolicy {
            unkeyed: UnkeyedFields::of_forward_proxy(&keyed),
            ..CachePolicy::default()
        };
        for field in ["X-HTTP-Method-Override", "X-HTTP-Method"] {
            assert!(policy.has_unkeyed(&get(&format!("{field}: DELETE\r\n"))), "{field}");
        }
    }
}

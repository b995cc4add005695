//! What an operator may decide for a route. The defaults are those of RFC 9111.

use millrace_http1::{FORWARDING_FIELDS, FieldLine, METHOD_OVERRIDES, NameSet, RequestHead};

/// How a route's responses are kept and reused. Made when a configuration is read, and shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CachePolicy {
    /// Fields that control this cache before `Cache-Control`, RFC 9213 section 2.2: names in lower
    /// case, the first that is there and can be read counts.
    pub targets: Vec<Box<[u8]>>,
    /// Whether the origin says how long a response is fresh whose status may be cached without being
    /// asked for (RFC 9110 section 15.1). For all others it does: a lifetime for pages is none for
    /// failures.
    pub ttl: Ttl,
    /// The same for statuses that the operator names, whichever they are; the first that fits
    /// counts.
    pub status_ttls: Vec<StatusTtl>,
    /// The most that any response is fresh, in seconds.
    pub ttl_s_max: u32,
    /// Of the time since it was modified, how much a response that says nothing is fresh, RFC 9111
    /// section 4.2.2: 0 to 100; 0 turns heuristics off.
    pub heuristic_percent: u8,
    /// The most that a response is fresh by heuristics, in seconds.
    pub heuristic_s_max: u32,
    /// For how many seconds a stale response may stand in for an origin that fails, where the origin
    /// did not say itself (RFC 5861 section 4). 0: never, RFC 9111 section 4.2.4.
    pub stale_if_error_s: u32,
    /// For how many seconds a stale response may be used while it is validated, where the origin did
    /// not say itself (RFC 5861 section 3).
    pub stale_while_revalidate_s: u32,
    /// Which responses with `Set-Cookie` are kept.
    pub set_cookie: SetCookie,
    /// Whether the `Cache-Control` and `Pragma` of requests count, RFC 9111 section 5.2.1.
    pub applies_request_directives: bool,
    /// Request fields with which a request is not answered from the cache, nor its response stored.
    pub unkeyed: UnkeyedFields,
}

/// Who says how long a response is fresh. What the operator says is counted from when the response was
/// received, however old it was then.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Ttl {
    /// The origin; where it says nothing, heuristics.
    #[default]
    Origin,
    /// The origin; where it says nothing, so many seconds instead of heuristics.
    Default(u32),
    /// So many seconds, whatever the origin says. What must not be stored is not stored all the
    /// same, and what must be validated at each use is.
    Override(u32),
}

/// Who says how long responses of a few statuses are fresh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusTtl {
    /// The first and the last of them.
    pub statuses: (u16, u16),
    /// Who says it.
    pub ttl: Ttl,
}

/// Which responses with `Set-Cookie` may be kept. RFC 9111 section 7.3 says that the field does not
/// forbid it, and whoever gets a stored response gets the cookie of somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SetCookie {
    /// Those that say for how long. Never by heuristics or by the operator's word alone: an origin
    /// that does not speak of caches did not think of them either.
    Explicit,
    /// Those that speak to shared caches: `public`, `s-maxage`, or a targeted field.
    Shared,
    /// None.
    #[default]
    Never,
}

/// Request fields that may change a response and are in no key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnkeyedFields {
    names: NameSet,
    /// Names in lower case that are in the key by the operator's choice. A method override
    /// stays unkeyed: a key does not turn the response to a DELETE into one to a GET.
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

    /// Behind a gateway: what else describes the request is removed, or it is in the key.
    pub fn of_gateway() -> Self {
        Self { names: METHOD_OVERRIDES, keyed: Vec::new() }
    }

    /// Behind a forward proxy, which passes on what any client says of its request. `keyed` are the
    /// [`KeyParts::fields`](super::KeyParts::fields).
    pub fn of_forward_proxy(keyed: &[Box<[u8]>]) -> Self {
        Self { names: METHOD_OVERRIDES.union(&FORWARDING_FIELDS), keyed: keyed.to_vec() }
    }
}

impl CachePolicy {
    /// Whether a request has a field of [`Policy::unkeyed`]. One without costs one test.
    #[inline]
    pub fn has_unkeyed(&self, request: &RequestHead) -> bool {
        request.has_any(&self.unkeyed.names) && self.unkeyed.is_any_in(request)
    }

    /// Who says how long responses of a status are fresh, if the operator names it.
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

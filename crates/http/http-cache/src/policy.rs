//! What an operator may decide for a route. The defaults are those of RFC 9111.

use millrace_http1::{DESCRIPTIONS, Field, METHOD_OVERRIDES, NameSet, RequestHead};

/// How a route's answers are kept and reused. Made when a configuration is read, and shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Fields that control this cache before `Cache-Control`, RFC 9213 section 2.2: names in lower
    /// case, the first that is there and can be read counts.
    pub targets: Vec<Box<[u8]>>,
    /// Whether the origin says how long an answer is fresh whose status may be cached without being
    /// asked for (RFC 9110 section 15.1). For all others it does: a lifetime for pages is none for
    /// failures.
    pub ttl: Ttl,
    /// The same for statuses that the operator names, whichever they are; the first that fits
    /// counts.
    pub status_ttls: Vec<StatusTtl>,
    /// The most that any answer is fresh, in seconds.
    pub ttl_s_max: u32,
    /// Of the time since it was modified, how much an answer that says nothing is fresh, RFC 9111
    /// section 4.2.2: 0 to 100; 0 turns heuristics off.
    pub heuristic_percent: u8,
    /// The most that an answer is fresh by heuristics, in seconds.
    pub heuristic_s_max: u32,
    /// For how many seconds a stale answer may stand in for an origin that fails, where the origin
    /// did not say itself (RFC 5861 section 4). 0: never, RFC 9111 section 4.2.4.
    pub stale_if_error_s: u32,
    /// For how many seconds a stale answer may be used while it is validated, where the origin did
    /// not say itself (RFC 5861 section 3).
    pub stale_while_revalidate_s: u32,
    /// Which answers with `Set-Cookie` are kept.
    pub set_cookie: SetCookie,
    /// Whether the `Cache-Control` and `Pragma` of requests count, RFC 9111 section 5.2.1.
    pub heeds_requests: bool,
    /// Request fields with which a request is not answered from the cache, nor its response stored.
    pub unkeyed: Unkeyed,
}

/// Who says how long an answer is fresh. What the operator says is counted from when the answer was
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

/// Who says how long answers of a few statuses are fresh.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StatusTtl {
    /// The first and the last of them.
    pub statuses: (u16, u16),
    /// Who says it.
    pub ttl: Ttl,
}

/// Which answers with `Set-Cookie` may be kept. RFC 9111 section 7.3 says that the field does not
/// forbid it, and whoever gets a stored answer gets the cookie of somebody else.
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
pub struct Unkeyed {
    names: NameSet,
    /// Names in lower case that are in the key by the operator's choice. A method override
    /// stays unkeyed: a key does not turn the response to a DELETE into one to a GET.
    keyed: Vec<Box<[u8]>>,
}

impl Unkeyed {
    #[cold]
    fn is_any_in(&self, request: &RequestHead) -> bool {
        request.fields().iter().any(|field: &Field| {
            let name = request.name_of(field);
            let is_keyed = || self.keyed.iter().any(|key| name.eq_ignore_ascii_case(key));
            self.names.has(field.known) && (METHOD_OVERRIDES.has(field.known) || !is_keyed())
        })
    }

    /// Behind a gateway: what else describes the request is removed, or it is in the key.
    pub fn of_gateway() -> Self {
        Self { names: METHOD_OVERRIDES, keyed: Vec::new() }
    }

    /// Behind a forward proxy, which passes on what any client says of its request. `keyed` are the
    /// [`KeyParts::fields`](super::KeyParts::fields).
    pub fn of_forward_proxy(keyed: &[Box<[u8]>]) -> Self {
        Self { names: METHOD_OVERRIDES.with(&DESCRIPTIONS), keyed: keyed.to_vec() }
    }
}

impl Policy {
    /// Whether a request has a field of [`Policy::unkeyed`]. One without costs one test.
    #[inline]
    pub fn has_unkeyed(&self, request: &RequestHead) -> bool {
        request.has_any(&self.unkeyed.names) && self.unkeyed.is_any_in(request)
    }

    /// Who says how long answers of a status are fresh, if the operator names it.
    pub(super) fn named_ttl(&self, status: u16) -> Option<Ttl> {
        let is_of = |named: &&StatusTtl| (named.statuses.0..=named.statuses.1).contains(&status);
        self.status_ttls.iter().find(is_of).map(|named| named.ttl)
    }
}

impl Default for Policy {
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
            heeds_requests: true,
            unkeyed: Unkeyed::of_gateway(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::get;
    use super::*;

    #[test]
    fn a_field_in_the_key_does_not_count_as_unkeyed() {
        let has = |unkeyed: Unkeyed, field: &str| {
            let policy = Policy { unkeyed, ..Policy::default() };
            policy.has_unkeyed(&get(&format!("{field}: a\r\n")))
        };
        for field in ["X-HTTP-Method-Override", "X-Http-Method", "X-Method-Override"] {
            assert!(has(Unkeyed::of_gateway(), field), "{field}");
        }
        for field in ["X-Forwarded-Host", "X-Forwarded-For", "Forwarded", "X-Host", "X-Real-Ip"] {
            assert!(!has(Unkeyed::of_gateway(), field), "{field}: removed, or in the key");
            assert!(has(Unkeyed::of_forward_proxy(&[]), field), "{field}");
        }
        let keyed = [(*b"x-forwarded-tenant").into()];
        let unkeyed = Unkeyed::of_forward_proxy(&keyed);
        assert!(!has(unkeyed.clone(), "X-Forwarded-Tenant"));
        assert!(has(unkeyed, "X-Forwarded-Scheme"));
    }

    #[test]
    fn a_method_override_bypasses_the_cache_even_if_it_is_in_the_key() {
        let keyed = [(*b"x-http-method-override").into(), (*b"x-http-method").into()];
        let policy = Policy { unkeyed: Unkeyed::of_forward_proxy(&keyed), ..Policy::default() };
        for field in ["X-HTTP-Method-Override", "X-HTTP-Method"] {
            assert!(policy.has_unkeyed(&get(&format!("{field}: DELETE\r\n"))), "{field}");
        }
    }
}

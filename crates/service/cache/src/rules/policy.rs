//! What an operator may decide for a route. The defaults are those of RFC 9111.

use millrace_http::{Name, NameSet};

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
    /// Request fields that make an answer unfit for others: the origin may have used them, and they
    /// are in no key.
    pub unkeyed: NameSet,
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
    #[default]
    Explicit,
    /// Those that speak to shared caches: `public`, `s-maxage`, or a targeted field.
    Shared,
    /// None.
    Never,
}

/// Fields that some origins take for a part of the request line.
pub(super) const OVERRIDES: [Name; 3] =
    [Name::XHttpMethodOverride, Name::XOriginalUrl, Name::XRewriteUrl];

impl Policy {
    /// What to refuse in [`Policy::unkeyed`] where `X-Forwarded-*` come from anybody, as in a
    /// forward proxy: origins build links from them.
    pub const UNKEYED_UNTRUSTED: NameSet = NameSet::of(&[
        Name::XHttpMethodOverride,
        Name::XOriginalUrl,
        Name::XRewriteUrl,
        Name::XForwardedHost,
        Name::XForwardedPort,
        Name::XForwardedPrefix,
        Name::XForwardedProto,
        Name::XForwardedServer,
    ]);

    /// Who says how long answers of a status are fresh, if the operator names it.
    pub(super) fn named_ttl(&self, status: u16) -> Option<Ttl> {
        let is_of = |named: &&StatusTtl| (named.statuses.0..=named.statuses.1).contains(&status);
        self.status_ttls.iter().find(is_of).map(|named| named.ttl)
    }

    /// [`Policy::UNKEYED_UNTRUSTED`], but for what the keys of a route have: what is in the key
    /// keeps answers apart, and they may be kept. `sent` are those that origins get as anybody
    /// wrote them, `keyed` the [`KeyParts::fields`](super::KeyParts::fields).
    pub fn unkeyed(sent: &[Name], keyed: &[Box<[u8]>]) -> NameSet {
        let is_keyed = |name: &&Name| keyed.iter().any(|key| **key == *name.as_str().as_bytes());
        let sent = sent.iter().filter(|name| !is_keyed(name));
        NameSet::of(&OVERRIDES.iter().chain(sent).copied().collect::<Vec<_>>())
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
            set_cookie: SetCookie::Explicit,
            heeds_requests: true,
            unkeyed: NameSet::of(&OVERRIDES),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_the_key_is_not_refused() {
        let sent = [
            Name::XForwardedHost,
            Name::XForwardedPort,
            Name::XForwardedPrefix,
            Name::XForwardedProto,
            Name::XForwardedServer,
        ];
        assert_eq!(Policy::unkeyed(&sent, &[]), Policy::UNKEYED_UNTRUSTED);
        assert_eq!(Policy::unkeyed(&[], &[]), Policy::default().unkeyed);
        let keyed = Policy::unkeyed(&sent, &[(*b"x-forwarded-host").into()]);
        assert!(!keyed.has(Name::XForwardedHost) && keyed.has(Name::XForwardedProto));
    }
}

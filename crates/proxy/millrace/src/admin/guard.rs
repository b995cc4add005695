//! Who may ask the admin address for what. Every refusal is an answer that says why.
//!
//! | | over TCP | over a Unix socket |
//! | --- | --- | --- |
//! | to be told (GET) | Host is an address or a name of ours | whoever can open the file |
//! | to change, or be told URLs | also no other site's page, and the token | the same user, or root |

use std::net::{IpAddr, SocketAddr};

use millrace_sys::Peer;

use super::answer::Answer;
use super::request::Request;
use super::token::Token;

/// What the rules go by.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// What changes over TCP need; `None`: there are none.
    pub(crate) token: Option<Token>,
    /// A host name by which TCP addresses are asked, in lower case.
    pub(crate) name: Option<String>,
}

/// Where a request came in, and who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Asked {
    /// At a TCP address.
    Tcp(SocketAddr),
    /// At a Unix socket, by a process; `None`: the kernel does not say which.
    Unix(Option<Peer>),
}

impl std::fmt::Display for Asked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(_) => f.write_str("a client with the token"),
            Self::Unix(None) => f.write_str("an unknown process"),
            Self::Unix(Some(peer)) => write!(f, "process {} of user {}", peer.process, peer.user),
        }
    }
}

impl Guard {
    /// Whether the request may be answered at all.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn may_ask(&self, request: &Request<'_>, asked: Asked) -> Result<(), Answer> {
        match (asked, request.host) {
            (Asked::Tcp(own), Some(host)) if !self.is_ours(host, own) => Err(Answer::text(
                "421 Misdirected Request",
                "Host has to be the address with the port of the admin address, or localhost \
                 with it, or the name that admin-name gives; a name that points here is not enough",
            )),
            _ => Ok(()),
        }
    }

    /// Whether the request may change something, or be told what clients asked for.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn may_change(&self, request: &Request<'_>, asked: Asked) -> Result<(), Answer> {
        match asked {
            Asked::Unix(Some(peer)) if is_trusted(peer) => return Ok(()),
            Asked::Unix(..) => {
                return Err(Answer::text(
                    "403 Forbidden",
                    "only the same user and root may do this",
                ));
            }
            Asked::Tcp(_) => {}
        }
        if is_from_another_site(request) {
            return Err(Answer::text("403 Forbidden", "a page of another site may not do this"));
        }
        let Some(token) = &self.token else {
            return Err(Answer::text(
                "403 Forbidden",
                "over TCP this needs a token, and none is configured: give admin-token-file PATH, \
                 or use an admin address unix:PATH",
            ));
        };
        match request.authorization {
            Some(authorization) if token.is_in(authorization) => Ok(()),
            Some(_) => Err(Answer::unauthorized("this is not the token of admin-token-file")),
            None => Err(Answer::unauthorized(
                "this needs Authorization: Bearer with the token of admin-token-file",
            )),
        }
    }

    /// Whether `host` cannot be a name that somebody else points here (DNS rebinding).
    fn is_ours(&self, host: &str, own: SocketAddr) -> bool {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if !port.contains(']') => (name, port),
            _ => (host, "80"),
        };
        let is_name = self.name.as_deref().is_some_and(|own| name.eq_ignore_ascii_case(own));
        // A name of the operator's may stand for a proxy or a port that is mapped elsewhere.
        if is_name {
            return port.bytes().all(|byte| byte.is_ascii_digit());
        }
        let literal = match name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            Some(name) => name.parse().map(IpAddr::V6).is_ok(),
            None => name.parse::<std::net::Ipv4Addr>().is_ok(),
        };
        (literal || name.eq_ignore_ascii_case("localhost")) && port.parse() == Ok(own.port())
    }
}

/// Whether a process may change this one: it could do worse without us.
pub(crate) fn is_trusted(peer: Peer) -> bool {
    peer.user == 0 || peer.user == millrace_sys::user()
}

/// Whether a browser says that a page of another site asks. A browser that says nothing of the kind
/// cannot send the token unasked.
fn is_from_another_site(request: &Request<'_>) -> bool {
    let is_other = |site| !matches!(site, "same-origin" | "none");
    let own = request.host.map(|host| format!("http://{host}"));
    request.sec_fetch_site.is_some_and(is_other)
        || request.origin.is_some_and(|origin| own.as_deref() != Some(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_hosts_that_nobody_else_can_point_here_are_ours() {
        let guard = Guard { token: None, name: Some("admin.example".to_owned()) };
        let own = "127.0.0.1:9180".parse().unwrap();
        for host in
            ["127.0.0.1:9180", "10.0.0.1:9180", "[::1]:9180", "LOCALHOST:9180", "Admin.Example:1"]
        {
            assert!(guard.is_ours(host, own), "{host}");
        }
        for host in [
            "",
            ":9180",
            "127.0.0.1",
            "127.0.0.1:80",
            "localhost",
            "evil.example:9180",
            "::1:9180",
            "[::1]",
            "[127.0.0.1]:9180",
            "127.1:9180",
            "admin.example:x",
            "a.admin.example:9180",
            "localhost.evil.example:9180",
            "127.0.0.1.evil.example:9180",
            "127.0.0.1:09180x",
        ] {
            assert!(!guard.is_ours(host, own), "{host}");
        }
        assert!(guard.is_ours("127.0.0.1", "127.0.0.1:80".parse().unwrap()));
    }

    #[test]
    fn a_page_of_another_site_is_known() {
        let request = |origin, sec_fetch_site| Request {
            host: Some("127.0.0.1:1"),
            origin,
            sec_fetch_site,
            ..Request::default()
        };
        assert!(!is_from_another_site(&request(None, None)));
        assert!(!is_from_another_site(&request(Some("http://127.0.0.1:1"), Some("same-origin"))));
        assert!(is_from_another_site(&request(Some("http://127.0.0.1:2"), None)));
        assert!(is_from_another_site(&request(Some("null"), None)));
        for site in ["cross-site", "same-site", "nonsense"] {
            assert!(is_from_another_site(&request(None, Some(site))));
        }
    }
}

//! Who may ask the admin address for what. Every refusal is an answer that says why.
//!
//! | | over TCP | over a Unix socket |
//! | --- | --- | --- |
//! | to be told (GET) | Host is an address or a name of ours | whoever can open the file |
//! | to change, or be told URLs | also no other site's page, and the token | the same user, or root |

use std::net::SocketAddr;
use std::os::fd::AsFd;

use millrace_http1::{Authority, Host};
use millrace_sys::PeerCredentials;

use super::request::AdminRequest;
use super::response::AdminResponse;
use super::token::Token;
use crate::http::Socket;

/// What the rules go by.
#[derive(Debug, Default)]
pub(crate) struct AccessRules {
    /// What changes over TCP need; `None`: there are none.
    pub(crate) token: Option<Token>,
    /// A host name by which TCP addresses are asked, in lower case.
    pub(crate) name: Option<String>,
}

/// Where a request came in, and who asks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestSource {
    /// At a TCP address.
    Tcp(SocketAddr),
    /// At a Unix socket, by a process; `None`: the kernel does not say which.
    Unix(Option<PeerCredentials>),
}

impl RequestSource {
    /// Where a request over `socket` came in.
    ///
    /// # Errors
    /// When the connection has ended.
    pub(super) fn of_socket(socket: &Socket) -> std::io::Result<Self> {
        Ok(match socket {
            Socket::Tcp(stream) => Self::Tcp(stream.local_addr()?),
            Socket::Unix(stream) => Self::Unix(millrace_sys::peer_credentials(stream.as_fd()).ok()),
        })
    }
}

impl std::fmt::Display for RequestSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(_) => f.write_str("a client with the token"),
            Self::Unix(None) => f.write_str("an unknown process"),
            Self::Unix(Some(peer)) => {
                write!(f, "process {} of user {}", peer.process_id, peer.user_id)
            }
        }
    }
}

impl AccessRules {
    /// Whether the request may be answered at all.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn check_host(
        &self,
        request: &AdminRequest<'_>,
        source: RequestSource,
    ) -> Result<(), AdminResponse> {
        match (source, request.host) {
            (RequestSource::Tcp(own), Some(host)) if !self.is_own_host(host, own) => {
                Err(AdminResponse::text(
                    (421, "Misdirected Request"),
                    "Host has to be the address with the port of the admin address, or localhost \
                 with it, or the name that admin-name gives; a name that points here is not enough",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether the request may change something, or be told what clients asked for.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn check_authorized(
        &self,
        request: &AdminRequest<'_>,
        source: RequestSource,
    ) -> Result<(), AdminResponse> {
        match source {
            RequestSource::Unix(Some(peer)) if is_trusted(peer) => return Ok(()),
            RequestSource::Unix(..) => {
                return Err(AdminResponse::text(
                    (403, "Forbidden"),
                    "only the same user and root may do this",
                ));
            }
            RequestSource::Tcp(_) => {}
        }
        if is_from_another_site(request) {
            return Err(AdminResponse::text(
                (403, "Forbidden"),
                "a page of another site may not do this",
            ));
        }
        let Some(token) = &self.token else {
            return Err(AdminResponse::text(
                (403, "Forbidden"),
                "over TCP this needs a token, and none is configured: give admin-token-file PATH, \
                 or use an admin address unix:PATH",
            ));
        };
        match request.authorization {
            Some(authorization) if token.matches(authorization) => Ok(()),
            Some(_) => {
                Err(AdminResponse::unauthorized("this is not the token of admin-token-file"))
            }
            None => Err(AdminResponse::unauthorized(
                "this needs Authorization: Bearer with the token of admin-token-file",
            )),
        }
    }

    /// Whether `host` cannot be a name that somebody else points here (DNS rebinding).
    fn is_own_host(&self, host: Authority<'_>, own: SocketAddr) -> bool {
        let is_port_ours = host.port.unwrap_or(80) == own.port();
        match host.host {
            Host::V4(_) | Host::V6(_) => is_port_ours,
            Host::Name(name) => {
                let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
                // A name of the operator's may stand for a proxy or a port that is mapped
                // elsewhere, so it may come with any port.
                (is("localhost") && is_port_ours) || self.name.as_deref().is_some_and(is)
            }
        }
    }
}

/// Whether a process may change this one: it could do worse without us.
pub(crate) fn is_trusted(peer: PeerCredentials) -> bool {
    peer.user_id == 0 || peer.user_id == millrace_sys::effective_user()
}

/// Whether a browser says that a page of another site asks. A browser that says nothing of the kind
/// cannot send the token unasked.
fn is_from_another_site(request: &AdminRequest<'_>) -> bool {
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
        let guard = AccessRules { token: None, name: Some("admin.example".to_owned()) };
        let is_ours = |host: &str, own: &str| {
            let host = Authority::parse(host.as_bytes());
            host.is_ok_and(|host| guard.is_own_host(host, own.parse().unwrap()))
        };
        let own = "127.0.0.1:9180";
        for host in
            ["127.0.0.1:9180", "10.0.0.1:9180", "[::1]:9180", "LOCALHOST:9180", "Admin.Example:1"]
        {
            assert!(is_ours(host, own), "{host}");
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
            assert!(!is_ours(host, own), "{host}");
        }
        assert!(is_ours("127.0.0.1", "127.0.0.1:80"));
    }

    #[test]
    fn a_page_of_another_site_is_known() {
        let request = |origin, sec_fetch_site| AdminRequest {
            host: Some(Authority::parse(b"127.0.0.1:1").unwrap()),
            origin,
            sec_fetch_site,
            ..AdminRequest::default()
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

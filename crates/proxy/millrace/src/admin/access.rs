//! Access rules of the admin server. A refusal is a response with the reason.
//!
//! | | over TCP | over a Unix socket |
//! | --- | --- | --- |
//! | read (GET) | Host is an address, localhost or the configured name | any process that can open the file |
//! | change, or read URLs | also the token, and no cross-site request | the same user or root |

use std::net::SocketAddr;
use std::os::fd::AsFd;

use millrace_http1::{Authority, Host, Scheme};
use millrace_sys::PeerCredentials;

use super::request::AdminRequest;
use super::response::AdminResponse;
use super::token::Token;
use crate::http::{Connection, Socket};

/// The configured access rules.
#[derive(Debug, Default)]
pub(crate) struct AccessRules {
    /// The token for privileged requests over TCP; `None`: these requests are refused.
    pub(crate) token: Option<Token>,
    /// A host name for TCP addresses, in lower case.
    pub(crate) name: Option<String>,
}

/// The source of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum RequestSource {
    /// A client of this TCP address, which uses this scheme.
    Tcp(SocketAddr, Scheme),
    /// A process at a Unix socket; `None`: the kernel does not report which one.
    Unix(Option<PeerCredentials>),
}

impl RequestSource {
    /// Returns the source of a request over a connection.
    ///
    /// # Errors
    /// If the connection has ended.
    pub(super) fn of_connection(connection: &Connection) -> std::io::Result<Self> {
        let scheme = if connection.is_secure() { Scheme::Https } else { Scheme::Http };
        Ok(match &**connection.socket() {
            Socket::Tcp(stream) => Self::Tcp(stream.local_addr()?, scheme),
            Socket::Unix(stream) => Self::Unix(millrace_sys::peer_credentials(stream.as_fd()).ok()),
        })
    }
}

impl std::fmt::Display for RequestSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(..) => f.write_str("a client with the token"),
            Self::Unix(None) => f.write_str("an unknown process"),
            Self::Unix(Some(peer)) => {
                write!(f, "process {} of user {}", peer.process_id, peer.user_id)
            }
        }
    }
}

impl AccessRules {
    /// Checks the Host field, against DNS rebinding.
    ///
    /// # Errors
    /// The response of a refusal.
    pub(super) fn check_host(
        &self,
        request: &AdminRequest<'_>,
        source: RequestSource,
    ) -> Result<(), AdminResponse> {
        match (source, request.host) {
            (RequestSource::Tcp(own, scheme), Some(host))
                if !self.is_own_host(host, own, scheme) =>
            {
                Err(AdminResponse::text(
                    (421, "Misdirected Request"),
                    "invalid Host (expected: an IP address or localhost, with the port of the admin \
                     address, or the name in admin-name)",
                ))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the client may change the process or read the URLs of the proxy's clients.
    ///
    /// # Errors
    /// The response of a refusal.
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
                    "permission denied (allowed: the same user, root)",
                ));
            }
            RequestSource::Tcp(_, scheme) if is_from_another_site(request, scheme) => {
                return Err(AdminResponse::text(
                    (403, "Forbidden"),
                    "cross-site requests are not allowed",
                ));
            }
            RequestSource::Tcp(..) => {}
        }
        let Some(token) = &self.token else {
            return Err(AdminResponse::text(
                (403, "Forbidden"),
                "no token is configured for requests over TCP (expected: admin-token-file PATH, \
                 or an admin address unix:PATH)",
            ));
        };
        match request.authorization {
            Some(authorization) if token.matches(authorization) => Ok(()),
            Some(_) => Err(AdminResponse::unauthorized(
                "wrong token (expected: the token in admin-token-file)",
            )),
            None => Err(AdminResponse::unauthorized(
                "missing Authorization (expected: Bearer with the token in admin-token-file)",
            )),
        }
    }

    /// Returns whether `host` is safe from DNS rebinding: no third party can point it at this
    /// address.
    fn is_own_host(&self, host: Authority<'_>, own: SocketAddr, scheme: Scheme) -> bool {
        let is_port_ours = host.port.unwrap_or(scheme.port()) == own.port();
        match host.host {
            Host::V4(_) | Host::V6(_) => is_port_ours,
            Host::Name(name) => {
                let is = |own: &str| name.eq_ignore_ascii_case(own.as_bytes());
                // The configured name may stand for a proxy or a mapped port, so any port is
                // allowed.
                (is("localhost") && is_port_ours) || self.name.as_deref().is_some_and(is)
            }
        }
    }
}

/// Returns whether a process may change this one. Root and the same user could control it anyway.
pub(crate) fn is_trusted(peer: PeerCredentials) -> bool {
    peer.user_id == 0 || peer.user_id == millrace_sys::effective_user()
}

/// Returns whether a browser reports that a page of another site made the request. Old browsers do
/// not report it, but a page cannot make them send a token that it does not know.
fn is_from_another_site(request: &AdminRequest<'_>, scheme: Scheme) -> bool {
    let is_other = |site| !matches!(site, "same-origin" | "none");
    let own = request.host.map(|host| format!("{}://{host}", scheme.as_str()));
    request.sec_fetch_site.is_some_and(is_other)
        || request.origin.is_some_and(|origin| own.as_deref() != Some(origin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_that_a_third_party_can_point_here_are_refused() {
        let rules = AccessRules { token: None, name: Some("admin.example".to_owned()) };
        let is_ours_by = |host: &str, own: &str, scheme| {
            let host = Authority::parse(host.as_bytes());
            host.is_ok_and(|host| rules.is_own_host(host, own.parse().unwrap(), scheme))
        };
        let is_ours = |host: &str, own: &str| is_ours_by(host, own, Scheme::Http);
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
        assert!(is_ours_by("127.0.0.1", "127.0.0.1:443", Scheme::Https));
        assert!(!is_ours_by("127.0.0.1", "127.0.0.1:80", Scheme::Https));
    }

    #[test]
    fn cross_site_requests_are_detected() {
        let request = |origin, sec_fetch_site| AdminRequest {
            host: Some(Authority::parse(b"127.0.0.1:1").unwrap()),
            origin,
            sec_fetch_site,
            ..AdminRequest::default()
        };
        let http = |origin, site| is_from_another_site(&request(origin, site), Scheme::Http);
        assert!(!http(None, None));
        assert!(!http(Some("http://127.0.0.1:1"), Some("same-origin")));
        assert!(http(Some("http://127.0.0.1:2"), None));
        assert!(http(Some("null"), None));
        let https = |origin| is_from_another_site(&request(origin, None), Scheme::Https);
        assert!(https(Some("http://127.0.0.1:1")) && !https(Some("https://127.0.0.1:1")));
        for site in ["cross-site", "same-site", "nonsense"] {
            assert!(http(None, Some(site)));
        }
    }
}

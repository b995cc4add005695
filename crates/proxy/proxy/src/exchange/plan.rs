//! The plan for a request, and its sender.

use std::net::IpAddr;

use millrace_http1::Scheme;

use crate::exchange::Reason;

/// How a request is served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum RequestPlan {
    /// The request has not been routed yet.
    #[default]
    Unrouted,
    /// The response is fetched from an origin of this route.
    Route(u16),
    /// The response is fetched from the origin that the target names.
    Target,
    /// CONNECT: bytes are moved in both directions.
    Tunnel,
    /// Millrace responds itself, without an origin.
    Respond(OwnResponse),
}

/// A response that millrace makes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OwnResponse {
    /// The request is refused, or could not be served.
    Refusal(Reason),
    /// OPTIONS with `Max-Forwards: 0` (RFC 9110 section 7.6.2).
    Options,
    /// TRACE with `Max-Forwards: 0` (RFC 9110 section 9.3.8).
    Trace,
}

/// The sender of a request, and how the request reached the proxy.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sender {
    /// The scheme of the target URI: of a reverse proxy that of the client connection, of a forward
    /// proxy that of the target.
    pub(crate) scheme: Scheme,
    /// The client's address. `None` for a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// Whether the peer is trusted to describe the client and the request in header fields.
    pub(crate) is_trusted: bool,
}

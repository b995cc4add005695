//! The plan for a request, and its sender.

use std::net::IpAddr;
use std::rc::Rc;

use millrace_http1::{Method, RequestHead, Scheme};

use crate::exchange::Reason;
use crate::secure::client_certificate::VerifiedClient;
use crate::transfer::stats::TransferStats;

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
    /// A redirect to the same URL with `https` and the `redirect_port` of the service.
    HttpsRedirect,
    /// A redirect to the same path with a slash at its end.
    FolderRedirect,
    /// OPTIONS for a file.
    FileOptions,
}

impl OwnResponse {
    /// Returns the status of the response to a request with this method. Every client follows a
    /// 301, but may turn POST into GET; a 308 keeps the method (RFC 9110 section 15.4).
    pub(crate) fn status(self, method: Method) -> u16 {
        match self {
            Self::Refusal(reason) => reason.status(),
            Self::Options | Self::Trace | Self::FileOptions => 200,
            Self::FolderRedirect => 301,
            Self::HttpsRedirect if matches!(method, Method::Get | Method::Head) => 301,
            Self::HttpsRedirect => 308,
        }
    }
}

/// The sender of a request, and how the request reached the proxy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sender {
    /// The scheme of the target URI: of a reverse proxy that of the client connection, of a forward
    /// proxy that of the target.
    pub(crate) scheme: Scheme,
    /// The client's address. `None` for a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// Whether the peer is trusted to describe the client and the request in header fields.
    pub(crate) is_trusted: bool,
    /// The certificate that the client of a reverse proxy presented in the TLS handshake.
    pub(crate) certificate: Option<Rc<VerifiedClient>>,
    /// The request that it sent, if programs have redirected that to another path.
    pub(crate) redirected: Option<Rc<ClientRequest>>,
}

/// The request of a client that programs have redirected to another path.
#[derive(Clone, Debug)]
pub(crate) struct ClientRequest {
    pub(crate) head: RequestHead,
    /// The number of redirects; at most `LOCAL_REDIRECTS_MAX`.
    pub(crate) redirects: u32,
    /// The bytes of its body that were passed on or collected.
    pub(crate) body_bytes: u64,
    /// The statistics of the transfer of that body.
    pub(crate) body_stats: TransferStats,
    /// Whether a part of its body was not received.
    pub(crate) has_unread_body: bool,
}

//! What is done with a request, and who sent it.

use std::net::IpAddr;

use crate::exchange::Reason;

/// What is done with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum RequestPlan {
    /// It has not been routed yet.
    #[default]
    Unrouted,
    /// A response is fetched: the origin is one of this route's.
    Route(u16),
    /// A response is fetched from where the target says.
    Target,
    /// CONNECT: bytes are moved both ways.
    Tunnel,
    /// Answered without an origin.
    Respond(OwnResponse),
}

/// A response that millrace makes itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OwnResponse {
    /// The request is refused, or could not be served.
    Refusal(Reason),
    /// `Max-Forwards: 0` with OPTIONS (RFC 9110 section 7.6.2).
    Options,
    /// `Max-Forwards: 0` with TRACE (RFC 9110 section 9.3.8).
    Trace,
}

/// The client's address, and whether its description of the request is believed.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sender {
    /// Its address; `None`: a Unix socket.
    pub(crate) client: Option<IpAddr>,
    /// Whether the peer is believed in what it says of the request.
    pub(crate) is_trusted: bool,
}

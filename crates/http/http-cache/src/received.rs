//! A received response, with everything that determines whether it is stored.

use millrace_http1::{FieldName, RequestHead, ResponseHead, Scheme};

use super::directives::ResponseDirectives;
use super::key::HashKey;
use super::policy::CachePolicy;

/// The circumstances of a response's arrival.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// Time at which the request was sent, milliseconds since 1970.
    pub request_ms: u64,
    /// Time at which the response header was received, milliseconds since 1970.
    pub response_ms: u64,
    /// The scheme of the target URI.
    pub scheme: Scheme,
    /// The hash key of this process.
    pub hash: HashKey,
    /// Whether the client has authenticated itself by a certificate that the origin receives.
    pub has_client_certificate: bool,
}

/// A received response, with everything that determines whether it is stored.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedResponse<'a> {
    /// The request.
    pub request: &'a RequestHead,
    /// The response head.
    pub response: &'a ResponseHead,
    /// The circumstances of its arrival.
    pub receipt: &'a Receipt,
    /// The operator's configuration of the route.
    pub policy: &'a CachePolicy,
}

impl ReceivedResponse<'_> {
    /// Parses the cache directives of the response.
    pub(super) fn directives(&self) -> ResponseDirectives {
        ResponseDirectives::parse(self.response, &self.policy.targets)
    }

    /// Returns whether the request names its user, so that RFC 9111 section 3.5 applies. A
    /// certificate names the user as `Authorization` does.
    pub(super) fn is_authorized(&self) -> bool {
        self.receipt.has_client_certificate || self.request.find(FieldName::Authorization).is_some()
    }

    /// Returns the time of receipt in seconds since 1970.
    pub(super) fn time_s(&self) -> u64 {
        self.receipt.response_ms / 1000
    }
}

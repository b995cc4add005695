//! A response that has come, with what decides whether it is stored.

use millrace_http1::{RequestHead, ResponseHead};

use super::directives::ResponseDirectives;
use super::key::{HashKey, Scheme};
use super::policy::CachePolicy;

/// The circumstances in which a response came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Receipt {
    /// When its request was sent, milliseconds since 1970.
    pub request_ms: u64,
    /// When its head was received, milliseconds since 1970.
    pub response_ms: u64,
    /// The scheme of what was asked for.
    pub scheme: Scheme,
    /// What the process hashes with.
    pub hash: HashKey,
}

/// A response that has come, with all that decides whether it is stored.
#[derive(Clone, Copy, Debug)]
pub struct ReceivedResponse<'a> {
    /// The request that it responses.
    pub request: &'a RequestHead,
    /// Its head.
    pub response: &'a ResponseHead,
    /// The circumstances in which it came.
    pub receipt: &'a Receipt,
    /// What the operator decided for the route.
    pub policy: &'a CachePolicy,
}

impl ReceivedResponse<'_> {
    /// What it allows caches.
    pub(super) fn directives(&self) -> ResponseDirectives {
        ResponseDirectives::parse(self.response, &self.policy.targets)
    }

    /// When it was received, in seconds since 1970.
    pub(super) fn time_s(&self) -> u64 {
        self.receipt.response_ms / 1000
    }
}

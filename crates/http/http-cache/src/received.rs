//! A response that has come, with what decides whether it is stored.

use millrace_http1::{AnswerHead, RequestHead};

use super::directives::AnswerDirectives;
use super::key::{HashKey, Scheme};
use super::policy::Policy;

/// The circumstances in which an answer came.
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

/// An answer that has come, with all that decides whether it is stored.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The request that it answers.
    pub request: &'a RequestHead,
    /// Its head.
    pub answer: &'a AnswerHead,
    /// The circumstances in which it came.
    pub receipt: &'a Receipt,
    /// What the operator decided for the route.
    pub policy: &'a Policy,
}

impl Received<'_> {
    /// What it allows caches.
    pub(super) fn directives(&self) -> AnswerDirectives {
        AnswerDirectives::of(self.answer, &self.policy.targets)
    }

    /// When it was received, in seconds since 1970.
    pub(super) fn time_s(&self) -> u64 {
        self.receipt.response_ms / 1000
    }
}

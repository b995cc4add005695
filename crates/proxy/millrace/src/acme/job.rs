//! The state of the orders of one certificate between the steps of the thread.

use std::cell::RefCell;
use std::time::Instant;

use instant_acme::ChallengeType;
use millrace_config::{Acme, AcmeContent};

use super::challenge::ActiveChallenge;
use super::directory::RetryAfter;
use super::renewal::RenewalPlan;
use super::state::FileNames;

/// A certificate to order.
pub(super) struct Job {
    pub(super) acme: Acme,
    pub(super) content: AcmeContent,
    pub(super) files: FileNames,
    pub(super) due: Instant,
    /// The failures since the last success.
    pub(super) failures: u32,
    pub(super) kind: ChallengeType,
    /// When to renew, and when the authority was queried.
    pub(super) plan: Option<(RenewalPlan, Instant)>,
    /// The end of the last order.
    pub(super) ordered: Option<Instant>,
    pub(super) retry_after: RetryAfter,
    /// The challenges of the order in progress.
    pub(super) active: RefCell<Vec<ActiveChallenge>>,
    /// Whether the operator knows that another process holds the lock.
    pub(super) is_lock_reported: bool,
}

impl Job {
    /// Returns the job of a certificate; `None` if its files are not read.
    pub(super) fn new(acme: &Acme) -> Option<Self> {
        Some(Self {
            content: acme.content.clone()?,
            files: FileNames::of(acme),
            acme: acme.clone(),
            due: Instant::now(),
            failures: 0,
            kind: ChallengeType::TlsAlpn01,
            plan: None,
            ordered: None,
            retry_after: RetryAfter::default(),
            active: RefCell::default(),
            is_lock_reported: false,
        })
    }

    /// Returns the names of the certificate.
    pub(super) fn names(&self) -> String {
        self.acme.names.join(", ")
    }

    /// Chooses the other kind of challenge for the next attempt, if it is possible.
    pub(super) fn switch_kind(&mut self) {
        self.kind = match self.kind {
            ChallengeType::TlsAlpn01 if self.acme.http.is_some() => ChallengeType::Http01,
            _ => ChallengeType::TlsAlpn01,
        };
    }
}

//! The counters and the last failure of ACME, for metrics and reports.

use std::fmt::Display;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use instant_acme::Error;
use millrace_config::printable;

const UNKNOWN_ACCOUNT: &str = "urn:ietf:params:acme:error:accountDoesNotExist";

/// The longest text of a failure, in characters.
const TEXT_CHARACTERS_MAX: usize = 1000;

/// A step of an order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Step {
    /// Reading and writing the state folder.
    State,
    /// Reading the directory, and creating or finding the account.
    Account,
    /// Creating the order, or finding the one in progress.
    Order,
    /// Proving the control of a name.
    Challenge,
    /// Submitting the request for the certificate, and waiting for it.
    Issue,
    /// Checking the certificate and putting it in force.
    Install,
    /// Asking when to renew.
    RenewalInfo,
}

impl Step {
    /// All steps, in the order of their numbers.
    pub(crate) const ALL: [Self; 7] = [
        Self::State,
        Self::Account,
        Self::Order,
        Self::Challenge,
        Self::Issue,
        Self::Install,
        Self::RenewalInfo,
    ];

    /// Returns the word for metrics and messages.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::State => "state",
            Self::Account => "account",
            Self::Order => "order",
            Self::Challenge => "challenge",
            Self::Issue => "issue",
            Self::Install => "install",
            Self::RenewalInfo => "renewal-info",
        }
    }
}

/// The failure of an order.
#[derive(Debug)]
pub(super) struct StepFailure {
    pub(super) step: Step,
    pub(super) text: String,
    /// Whether the authority does not know the account, for example because it was restored from an
    /// older state.
    pub(super) is_account_unknown: bool,
    /// Whether the issued certificate can never be used, so that only another order helps.
    pub(super) is_certificate_refused: bool,
}

impl StepFailure {
    pub(super) fn new(step: Step, problem: &dyn Display) -> Self {
        // The text may be from an authority.
        let text = printable(&problem.to_string(), TEXT_CHARACTERS_MAX);
        Self { step, text, is_account_unknown: false, is_certificate_refused: false }
    }

    /// Returns the failure of a call of the authority.
    pub(super) fn of_call(step: Step, error: &Error) -> Self {
        let is_account_unknown = matches!(error, Error::Api(problem)
            if problem.r#type.as_deref() == Some(UNKNOWN_ACCOUNT));
        Self { is_account_unknown, ..Self::new(step, error) }
    }
}

/// The failures of a process by step.
#[derive(Default, Debug)]
pub(crate) struct AcmeCounters([AtomicU64; Step::ALL.len()]);

impl AcmeCounters {
    /// Counts a failure.
    pub(super) fn add(&self, step: Step) {
        // Pairs with the load in `get`; the number guards no other memory.
        self.0[step as usize].fetch_add(1, Relaxed);
    }

    /// Returns the failures of a step.
    pub(crate) fn get(&self, step: Step) -> u64 {
        // Pairs with the addition in `add`.
        self.0[step as usize].load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_an_authority_is_one_line() {
        let problem = serde_json::json!({"detail": "a\nmillrace: \u{1b}[31m\u{9b}", "type": "b"});
        let error = Error::Api(serde_json::from_value(problem).unwrap());
        let failure = StepFailure::of_call(Step::Order, &error);
        assert_eq!(failure.text, r"API error: a\nmillrace: \u{1b}[31m\u{9b} (b)");
        assert_eq!(StepFailure::new(Step::Order, &"x".repeat(9999)).text.len(), 1003);
    }
}

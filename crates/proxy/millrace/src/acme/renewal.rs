//! When a certificate is renewed, and how long to wait after a failure.

use std::time::Duration;

use instant_acme::{Account, CertificateIdentifier};
use millrace_tls::Certificate;

use super::directory::{retry, run};
use super::status::{Step, StepFailure};

/// The longest wait after failures.
const RETRY_MAX: Duration = Duration::from_secs(86_400);
/// Certificates with a shorter time of validity are renewed at half of it, others at two thirds.
const SHORT_VALIDITY: Duration = Duration::from_secs(10 * 86_400);
/// The bounds of the time after which an authority is queried again (RFC 9773 section 4.3.2).
const ASK_INTERVALS: [Duration; 2] = [Duration::from_secs(60), Duration::from_secs(86_400)];

/// When a certificate is renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RenewalPlan {
    /// The window in which the renewal should happen, as durations since 1970.
    window: [Duration; 2],
    /// The moment in the window, as a duration since 1970.
    pub(super) at: Duration,
    /// The time until the authority is queried again.
    pub(super) ask_after: Duration,
}

impl RenewalPlan {
    /// Returns the plan by the time of validity alone.
    pub(super) fn by_validity(certificate: &Certificate) -> Self {
        let (from, to) = (certificate.not_before(), certificate.not_after());
        let whole = to.saturating_sub(from);
        let left = if whole < SHORT_VALIDITY { whole / 2 } else { whole / 3 };
        let at = to.saturating_sub(left);
        Self { window: [at, at], at, ask_after: ASK_INTERVALS[1] }
    }

    /// Asks the authority (ARI). Keeps the moment of `last` if the window is the same.
    ///
    /// # Errors
    /// If the authority cannot be reached, or does not know.
    pub(super) fn ask(
        account: &Account,
        certificate: &Certificate,
        last: Option<&Self>,
    ) -> Result<Self, StepFailure> {
        let default = Self::by_validity(certificate);
        let Some(identifier) = identifier(certificate) else { return Ok(default) };
        let (info, ask_after) = match retry(|| run(account.renewal_info(&identifier))) {
            Ok(found) => found,
            Err(instant_acme::Error::Unsupported(_)) => return Ok(default),
            Err(error) => return Err(StepFailure::new(Step::RenewalInfo, &error)),
        };
        let window = [info.suggested_window.start, info.suggested_window.end]
            .map(|time| Duration::from_secs(time.unix_timestamp().try_into().unwrap_or(0)));
        let ask_after = ask_after.clamp(ASK_INTERVALS[0], ASK_INTERVALS[1]);
        let at = match last.filter(|last| last.window == window) {
            Some(last) => last.at,
            // Renewals of many certificates are spread over the window.
            None => window[0] + random_part(window[1].saturating_sub(window[0])),
        };
        // An authority must not make a certificate expire.
        let latest = default.at + certificate.not_after().saturating_sub(default.at) / 2;
        Ok(Self { window, at: at.min(latest), ask_after })
    }

    /// Returns the plan after a failure to ask, with an earlier repetition.
    pub(super) fn after_failure(self) -> Self {
        Self { ask_after: Duration::from_secs(3600), ..self }
    }
}

/// Returns the identifier of a certificate for its authority; `None` if it has none.
pub(super) fn identifier(certificate: &Certificate) -> Option<CertificateIdentifier<'static>> {
    let (authority, serial) = certificate.renewal_identifier()?;
    Some(CertificateIdentifier::new(authority.into(), serial.into()))
}

/// Returns the wait after the last of `failures` failures in a row: it doubles from `first`, and a
/// random part of up to a quarter is added.
pub(super) fn retry_wait(first: Duration, failures: u32) -> Duration {
    let doubled = first.saturating_mul(1 << failures.saturating_sub(1).min(20));
    let wait = doubled.min(RETRY_MAX);
    wait + random_part(wait / 4)
}

/// Returns a random duration below `whole`.
fn random_part(whole: Duration) -> Duration {
    let mut bytes = [0; 4];
    millrace_sys::fill_random(&mut bytes);
    whole.mul_f64(f64::from(u32::from_ne_bytes(bytes)) / (f64::from(u32::MAX) + 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wait_doubles_up_to_a_day() {
        let first = Duration::from_secs(60);
        for (failures, expected) in [(1, 60), (2, 120), (5, 960), (12, 86_400), (u32::MAX, 86_400)]
        {
            let expected = Duration::from_secs(expected);
            let wait = retry_wait(first, failures);
            assert!(wait >= expected && wait <= expected + expected / 4, "{failures}: {wait:?}");
        }
        assert_eq!(random_part(Duration::ZERO), Duration::ZERO);
    }
}

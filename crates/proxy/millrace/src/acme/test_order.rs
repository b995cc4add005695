//! Test orders, which show whether an authority would issue a certificate. Account and key are
//! thrown away, so a test order touches no state.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use instant_acme::{Account, ChallengeType};
use millrace_config::{Acme, LETS_ENCRYPT};
use millrace_proxy::SharedState;
use rcgen::KeyPair;

use super::challenge::HttpChallenges;
use super::directory::RetryAfter;
use super::issuance::{Issuance, word};
use super::status::{Step, StepFailure};
use super::{account, order};

/// The directory of Let's Encrypt for tests, which has higher limits.
const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";

/// The failure if the running process has nothing to order.
pub(super) const NO_CERTIFICATE: &str = "the running configuration orders no certificate";

/// The failure if the running process has another configuration than the file of the command.
pub(super) const OTHER_ORDERS: &str = "the running process orders other certificates than this \
                                       file (expected: the same, by a reload)";

/// The result of one or more test orders: a line for each certificate, or one line with all
/// failures.
pub(crate) type TestResult = Result<String, String>;

/// The parts that a test order needs.
pub(super) struct TestOrder<'a> {
    pub(super) shared: &'a Arc<SharedState>,
    pub(super) http: &'a Arc<HttpChallenges>,
    /// Sleeps. Returns true if the thread must end.
    pub(super) sleep: &'a dyn Fn(Duration) -> bool,
}

impl TestOrder<'_> {
    /// Orders a certificate like that of `acme`, from the directory for tests if there is one.
    /// Tries the kinds of challenges like a real order.
    ///
    /// # Errors
    /// One line with the failure.
    pub(super) fn run(&self, acme: &Acme) -> TestResult {
        let directory = match acme.directory.as_str() {
            LETS_ENCRYPT => LETS_ENCRYPT_STAGING,
            other => other,
        };
        let acme = Acme { directory: directory.to_owned(), ..acme.clone() };
        let label = format!("acme: test order of {} from {directory}", acme.names.join(", "));
        let retry_after = RetryAfter::default();
        let content = acme.content.as_ref().expect("the files are read with the configuration");
        let created = account::create(&acme, content, &retry_after);
        let (account, _) = created.map_err(|failure| format!("{label}: {}", line(&failure)))?;
        let mut failures = Vec::new();
        for kind in [ChallengeType::TlsAlpn01, ChallengeType::Http01] {
            if kind == ChallengeType::Http01 && acme.http.is_none() {
                continue;
            }
            match self.attempt(&account, &acme, &kind, &retry_after) {
                Ok(()) if failures.is_empty() => {
                    return Ok(format!("{label}: issued by {}", word(&kind)));
                }
                Ok(()) => {
                    let failures = failures.join("; ");
                    return Ok(format!("{label}: issued by {}, but {failures}", word(&kind)));
                }
                Err(failure) if failure.step == Step::Challenge => {
                    failures.push(format!("{} failed: {}", word(&kind), failure.text));
                }
                Err(failure) => return Err(format!("{label}: {}", line(&failure))),
            }
        }
        Err(format!("{label}: {}", failures.join("; ")))
    }

    fn attempt(
        &self,
        account: &Account,
        acme: &Acme,
        kind: &ChallengeType,
        retry_after: &RetryAfter,
    ) -> Result<(), StepFailure> {
        let key = KeyPair::generate().map_err(|error| StepFailure::new(Step::Order, &error))?;
        let order = order::new_order(account, acme, None);
        let mut order = order.map_err(|error| StepFailure::of_call(Step::Order, &error))?;
        let issuance = Issuance {
            names: &acme.names,
            shared: self.shared,
            http: self.http,
            retry_after,
            active: &RefCell::default(),
            kind: kind.clone(),
            sleep: self.sleep,
        };
        issuance.finish(&mut order, &key).map(drop)
    }
}

/// Joins the results of several test orders.
pub(super) fn joined(results: impl IntoIterator<Item = TestResult>) -> TestResult {
    let (issued, failed): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
    match failed.is_empty() {
        true => Ok(issued.into_iter().flatten().collect::<Vec<_>>().join("\n")),
        false => Err(failed.into_iter().filter_map(Result::err).collect::<Vec<_>>().join("; ")),
    }
}

fn line(failure: &StepFailure) -> String {
    format!("{} failed: {}", failure.step.word(), failure.text)
}

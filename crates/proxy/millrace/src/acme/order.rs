//! An order of a certificate (RFC 8555 section 7.4), from the account to the stored certificate.
//!
//! ```text
//! account ─ order ─ challenges ─ ready ─ request ─ issued ─ checked ─ stored
//!             └──── taken up again after a failure or a restart ───┘
//! ```
//!
//! The URL of an order is stored before its first challenge, with the key of the certificate. Only
//! an order that the authority has ended, or whose certificate is refused, is given up, so there is
//! never a second one. A certificate that is not valid yet is not refused: the clock may be wrong.

use instant_acme::{
    Account, CertificateIdentifier, Error, Identifier, NewOrder, Order, OrderStatus, Problem,
};
use millrace_config::{Acme, AcmeContent};
use millrace_tls::Certificate;
use rcgen::KeyPair;
use serde_json::{Value, json};

use super::account;
use super::directory::{retry, run};
use super::issuance::Issuance;
use super::renewal;
use super::state::{FileNames, StateFolder};
use super::status::{Step, StepFailure};

/// The beginning of the types of problems that only an authority sends.
const ERROR_TYPES: &str = "urn:ietf:params:acme:error:";

/// The parts that an order needs.
pub(super) struct OrderContext<'a> {
    pub(super) acme: &'a Acme,
    pub(super) content: &'a AcmeContent,
    pub(super) folder: &'a StateFolder,
    pub(super) files: &'a FileNames,
    /// Whether the order names the certificate that it replaces (RFC 9773 section 5). Authorities
    /// can fail to find that one; it is of use to them, but not required.
    pub(super) names_replaced: bool,
    pub(super) issuance: Issuance<'a>,
}

impl OrderContext<'_> {
    /// Orders a certificate that replaces `old`, or takes up the order in progress, and stores the
    /// certificate with its key. If the authority does not know the account any longer, the account
    /// and its order are removed, and the next call creates them again.
    ///
    /// # Errors
    /// The first failure. An order that the authority has not ended is taken up by the next call.
    pub(super) fn obtain(&self, old: Option<&Certificate>) -> Result<(), StepFailure> {
        let ended = self.attempt(old);
        if ended.as_ref().is_err_and(|failure| failure.is_account_unknown) {
            self.forget_order()?;
            self.remove(&self.files.account)?;
        }
        ended
    }

    fn attempt(&self, old: Option<&Certificate>) -> Result<(), StepFailure> {
        let retry_after = self.issuance.retry_after;
        let account = account::open(self.acme, self.content, self.folder, self.files, retry_after)?;
        let (mut order, key) = match self.take_up(&account, old)? {
            Some(found) => found,
            None => self.create(&account, old)?,
        };
        let ended = self.issuance.finish(&mut order, &key).and_then(|chain| {
            let content = format!("{}{chain}", key.serialize_pem());
            self.folder.write(&self.files.certificate, &content).map_err(state)
        });
        // The authority would return the same refused chain each time.
        let is_refused = ended.as_ref().is_err_and(|failure| failure.is_certificate_refused);
        if order.state().status == OrderStatus::Invalid || is_refused || ended.is_ok() {
            self.forget_order()?;
        }
        ended
    }

    /// Returns the stored order, unless the authority has ended or forgotten it.
    fn take_up(
        &self,
        account: &Account,
        old: Option<&Certificate>,
    ) -> Result<Option<(Order, KeyPair)>, StepFailure> {
        let Some((url, key)) = self.stored_order(old)? else { return Ok(None) };
        match retry(|| run(account.order(url.clone()))) {
            Ok(mut order) => match order.state().status {
                OrderStatus::Invalid => self.forget_order().map(|()| None),
                _ => Ok(Some((order, key))),
            },
            Err(Error::Api(problem)) if is_forgotten(&problem) => {
                self.forget_order().map(|()| None)
            }
            Err(error) => Err(StepFailure::of_call(Step::Order, &error)),
        }
    }

    /// Returns the URL and the key of the stored order. An order whose certificate is in use
    /// already is removed: the process was killed before it could.
    fn stored_order(
        &self,
        old: Option<&Certificate>,
    ) -> Result<Option<(String, KeyPair)>, StepFailure> {
        let Some(text) = self.folder.read(&self.files.order).map_err(state)? else {
            return Ok(None);
        };
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let part = |name: &str| value[name].as_str().unwrap_or_default();
        let key = KeyPair::from_pem(part("key")).ok();
        let is_done = old.is_some() && {
            let stored = self.folder.read(&self.files.certificate).map_err(state)?;
            stored.is_some_and(|stored| stored.contains(part("key").trim()))
        };
        match key.filter(|_| !part("url").is_empty() && !is_done) {
            Some(key) => Ok(Some((part("url").to_owned(), key))),
            None => self.forget_order().map(|()| None),
        }
    }

    /// Creates an order and stores it.
    fn create(
        &self,
        account: &Account,
        old: Option<&Certificate>,
    ) -> Result<(Order, KeyPair), StepFailure> {
        let key = KeyPair::generate().map_err(|error| StepFailure::new(Step::Order, &error))?;
        let replaced = old.filter(|_| self.names_replaced).and_then(renewal::identifier);
        self.issuance.check_stop(Step::Order)?;
        // On a full disk each attempt would create an order.
        let file = self.folder.reserve(&self.files.order).map_err(state)?;
        let order = match new_order(account, self.acme, replaced.as_ref()) {
            // Not every authority lets orders replace certificates, and only once.
            Err(error) if replaced.is_some() && refuses_replacement(&error) => {
                new_order(account, self.acme, None)
            }
            result => result,
        };
        let order = order.map_err(|error| StepFailure::of_call(Step::Order, &error))?;
        let stored = json!({"url": order.url(), "key": key.serialize_pem()});
        file.finish(&stored.to_string()).map_err(state)?;
        Ok((order, key))
    }

    /// Removes the order and its challenges.
    fn forget_order(&self) -> Result<(), StepFailure> {
        self.issuance.active.borrow_mut().clear();
        self.remove(&self.files.order)
    }

    fn remove(&self, file: &str) -> Result<(), StepFailure> {
        self.folder.remove(file).map_err(state)
    }
}

fn state(error: std::io::Error) -> StepFailure {
    StepFailure::new(Step::State, &error)
}

/// Returns whether the authority knows no such order, or the account may not see it. A status 403
/// without a problem of RFC 8555 section 6.7 can come from another server before the authority.
fn is_forgotten(problem: &Problem) -> bool {
    let is_of_acme = || problem.r#type.as_ref().is_some_and(|it| it.starts_with(ERROR_TYPES));
    problem.status == Some(404) || problem.status == Some(403) && is_of_acme()
}

/// Returns whether an authority does not let an order replace a certificate. The library drops an
/// order whose authority ignores the replacement, so a repetition would create one each time.
fn refuses_replacement(error: &Error) -> bool {
    match error {
        Error::Unsupported(_) => true,
        // The limit of a rate, or a failure of the authority.
        Error::Api(problem) => !matches!(problem.status, Some(429 | 500..)),
        // The requests of `DirectoryClient` fail with errors of this type.
        Error::Other(problem) => !problem.is::<std::io::Error>(),
        _ => false,
    }
}

/// Creates an order at the authority.
pub(super) fn new_order(
    account: &Account,
    acme: &Acme,
    replaced: Option<&CertificateIdentifier<'static>>,
) -> Result<Order, Error> {
    let names: Vec<_> = acme.names.iter().cloned().map(Identifier::Dns).collect();
    let mut order = NewOrder::new(&names);
    if let Some(profile) = &acme.profile {
        order = order.profile(profile);
    }
    if let Some(replaced) = replaced {
        order = order.replaces(replaced.clone());
    }
    retry(|| run(account.new_order(&order)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_authority_forgets_an_order() {
        let unauthorized = "urn:ietf:params:acme:error:unauthorized";
        for (problem, is_gone) in [
            (json!({"status": 404}), true),
            (json!({"status": 403, "type": unauthorized}), true),
            (json!({"status": 403, "type": "https://cdn.test/errors/1020"}), false),
            (json!({"status": 403}), false),
            (json!({"status": 503, "type": unauthorized}), false),
        ] {
            assert_eq!(is_forgotten(&serde_json::from_value(problem).unwrap()), is_gone);
        }
    }

    #[test]
    fn an_order_without_replacement_follows_a_refused_one() {
        let api = |status| {
            let problem = json!({"type": "a", "status": status});
            Error::Api(serde_json::from_value(problem).unwrap())
        };
        let ignored = Error::Other("replaces field mismatch".into());
        for error in [ignored, Error::Unsupported("ARI"), api(409), api(400)] {
            assert!(refuses_replacement(&error), "{error}");
        }
        let lost = std::io::Error::from(std::io::ErrorKind::TimedOut);
        for error in [Error::Other(Box::new(lost)), api(429), api(500), Error::Str("a")] {
            assert!(!refuses_replacement(&error), "{error}");
        }
    }
}

//! An order of a certificate (RFC 8555 section 7.4), from the account to the stored certificate.
//!
//! ```text
//! account ─ order ─ challenges ─ ready ─ request ─ issued ─ checked ─ stored
//!             └──── taken up again after a failure or a restart ───┘
//! ```
//!
//! The URL of an order is stored before its first challenge, with the key of the certificate. Only
//! an order that the authority has ended is given up, so there is never a second one.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instant_acme::{
    Account, AuthorizationStatus, CertificateIdentifier, ChallengeStatus, ChallengeType, Error,
    Identifier, NewOrder, Order, OrderStatus,
};
use millrace_config::{Acme, AcmeContent};
use millrace_proxy::SharedState;
use millrace_tls::Certificate;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use serde_json::{Value, json};

use super::account;
use super::challenge::{ActiveChallenge, HttpChallenges};
use super::directory::{RetryAfter, retry, run};
use super::renewal;
use super::state::{FileNames, StateFolder};
use super::status::{Step, StepFailure};
use crate::threads::lock;

/// Time that the authority gets for the challenges, and again for the certificate.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The first and the longest time between two looks at an order.
const LOOK_INTERVALS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

/// The parts that an order needs.
pub(super) struct OrderContext<'a> {
    pub(super) acme: &'a Acme,
    pub(super) content: &'a AcmeContent,
    pub(super) folder: &'a StateFolder,
    pub(super) files: &'a FileNames,
    pub(super) shared: &'a Arc<SharedState>,
    pub(super) http: &'a Arc<HttpChallenges>,
    pub(super) retry_after: &'a RetryAfter,
    /// The challenges that are served. They outlive a failed attempt, because the authority may
    /// still validate them.
    pub(super) active: &'a RefCell<Vec<ActiveChallenge>>,
    /// The kind of challenge to choose.
    pub(super) kind: ChallengeType,
    /// Sleeps. Returns true if the thread must end.
    pub(super) sleep: &'a dyn Fn(Duration) -> bool,
}

impl OrderContext<'_> {
    /// Orders a certificate that replaces `old`, or takes up the order in progress, and stores the
    /// certificate with its key.
    ///
    /// # Errors
    /// The first failure. An order that the authority has not ended is taken up by the next call.
    pub(super) fn obtain(&self, old: Option<&Certificate>) -> Result<(), StepFailure> {
        let account =
            account::open(self.acme, self.content, self.folder, self.files, self.retry_after)?;
        let (mut order, key) = match self.take_up(&account, old)? {
            Some(found) => found,
            None => self.create(&account, old)?,
        };
        let ended = self.finish(&mut order, &key);
        if order.state().status == OrderStatus::Invalid || ended.is_ok() {
            self.active.borrow_mut().clear();
            self.remove(&self.files.order)?;
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
                OrderStatus::Invalid => self.remove(&self.files.order).map(|()| None),
                _ => Ok(Some((order, key))),
            },
            // The authority knows no such order, or the account may not see it.
            Err(Error::Api(problem)) if matches!(problem.status, Some(403 | 404)) => {
                self.remove(&self.files.order).map(|()| None)
            }
            Err(error) => Err(self.refused(Step::Order, &error)),
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
            None => self.remove(&self.files.order).map(|()| None),
        }
    }

    /// Creates an order and stores it.
    fn create(
        &self,
        account: &Account,
        old: Option<&Certificate>,
    ) -> Result<(Order, KeyPair), StepFailure> {
        let key = KeyPair::generate().map_err(|error| StepFailure::new(Step::Order, &error))?;
        let names: Vec<_> = self.acme.names.iter().cloned().map(Identifier::Dns).collect();
        let new_order = |replaced: Option<&CertificateIdentifier<'static>>| {
            let mut order = NewOrder::new(&names);
            if let Some(profile) = &self.acme.profile {
                order = order.profile(profile);
            }
            if let Some(replaced) = replaced {
                order = order.replaces(replaced.clone());
            }
            retry(|| run(account.new_order(&order)))
        };
        let replaced = old.and_then(renewal::identifier);
        let order = match new_order(replaced.as_ref()) {
            // Not every authority lets orders replace certificates, and only once.
            Err(Error::Api(_) | Error::Unsupported(_)) if replaced.is_some() => new_order(None),
            result => result,
        };
        let order = order.map_err(|error| self.refused(Step::Order, &error))?;
        let stored = json!({"url": order.url(), "key": key.serialize_pem()});
        self.folder.write(&self.files.order, &stored.to_string()).map_err(state)?;
        Ok((order, key))
    }

    fn finish(&self, order: &mut Order, key: &KeyPair) -> Result<(), StepFailure> {
        if order.state().status == OrderStatus::Pending {
            self.begin_challenges(order)?;
            self.wait_while(order, OrderStatus::Pending, Step::Challenge)?;
        }
        if order.state().status == OrderStatus::Ready {
            let request = self.request(key)?;
            retry(|| run(order.finalize_csr(&request)))
                .map_err(|error| self.refused(Step::Issue, &error))?;
        }
        self.wait_while(order, OrderStatus::Processing, Step::Issue)?;
        let chain = retry(|| run(order.certificate()));
        let chain = chain.map_err(|error| self.refused(Step::Issue, &error))?;
        let chain =
            chain.ok_or_else(|| StepFailure::new(Step::Issue, &"there is no certificate"))?;
        self.check(&chain, key)?;
        let content = format!("{}{chain}", key.serialize_pem());
        self.folder.write(&self.files.certificate, &content).map_err(state)
    }

    /// Begins to serve a challenge for each name that is not verified yet.
    fn begin_challenges(&self, order: &mut Order) -> Result<(), StepFailure> {
        let refused = |error: Error| self.refused(Step::Challenge, &error);
        // The library keeps the authorizations that it has, so a repetition gets the others.
        let load = || {
            let mut all = order.authorizations();
            while let Some(found) = run(all.next()) {
                found?;
            }
            Ok(())
        };
        retry(load).map_err(refused)?;
        let mut active = self.active.borrow_mut();
        let mut all = order.authorizations();
        while let Some(found) = run(all.next()) {
            let mut found = found.map_err(refused)?;
            if found.status != AuthorizationStatus::Pending {
                continue;
            }
            let name = found.identifier().to_string();
            // An earlier attempt may have begun another kind.
            let begun = found.challenges.iter().find(|it| it.status == ChallengeStatus::Processing);
            let kind = begun.map_or(&self.kind, |challenge| &challenge.r#type).clone();
            let Some(mut challenge) = found.challenge(kind.clone()) else {
                let problem = format!("the authority offers no {} for {name}", word(&kind));
                return Err(StepFailure::new(Step::Challenge, &problem));
            };
            let (token, proof) = (challenge.token.clone(), challenge.key_authorization());
            if !active.iter().any(|it| it.is(&name, &token)) {
                let begun =
                    ActiveChallenge::begin(self.shared, self.http, &name, &token, &kind, &proof);
                active.push(begun.map_err(|error| StepFailure::new(Step::Challenge, &error))?);
            }
            if challenge.status == ChallengeStatus::Pending {
                retry(|| run(challenge.set_ready())).map_err(refused)?;
            }
        }
        Ok(())
    }

    /// Looks at the order until it has another status than `status`.
    fn wait_while(
        &self,
        order: &mut Order,
        status: OrderStatus,
        step: Step,
    ) -> Result<(), StepFailure> {
        let deadline = Instant::now() + WAIT_MAX;
        let mut interval = LOOK_INTERVALS[0];
        while order.state().status == status {
            let asked = lock(self.retry_after).take().unwrap_or_default();
            if Instant::now() > deadline || (self.sleep)(interval.max(asked.min(WAIT_MAX))) {
                return Err(StepFailure::new(step, &"the authority takes too long"));
            }
            interval = (interval * 2).min(LOOK_INTERVALS[1]);
            retry(|| run(order.refresh()).map(|_| ()))
                .map_err(|error| self.refused(step, &error))?;
        }
        match order.state().status {
            OrderStatus::Invalid => Err(StepFailure::new(step, &self.reason(order))),
            _ => Ok(()),
        }
    }

    /// Returns why the authority has ended an order.
    fn reason(&self, order: &mut Order) -> String {
        if let Some(problem) = &order.state().error {
            return problem.to_string();
        }
        let mut reasons = Vec::new();
        let mut all = order.authorizations();
        while let Some(found) = run(all.next()) {
            let Ok(mut found) = found else { continue };
            _ = retry(|| run(found.refresh()).map(|_| ()));
            let name = found.identifier().to_string();
            for challenge in &found.challenges {
                if let Some(problem) = &challenge.error {
                    reasons.push(format!("{name}: {}: {problem}", word(&challenge.r#type)));
                }
            }
        }
        match reasons.is_empty() {
            true => "the authority has ended the order".to_owned(),
            false => reasons.join("; "),
        }
    }

    /// Returns the request for the certificate, in DER.
    fn request(&self, key: &KeyPair) -> Result<Vec<u8>, StepFailure> {
        let failed = |error: rcgen::Error| StepFailure::new(Step::Issue, &error);
        let mut params = CertificateParams::new(self.acme.names.clone()).map_err(failed)?;
        params.distinguished_name = DistinguishedName::new();
        Ok(params.serialize_request(key).map_err(failed)?.der().to_vec())
    }

    /// Checks that a chain fits the key, has all names, and is valid now.
    fn check(&self, chain: &str, key: &KeyPair) -> Result<(), StepFailure> {
        let failed = |problem: &dyn Display| {
            StepFailure::new(Step::Install, &format!("the ordered certificate {problem}"))
        };
        let key = key.serialize_pem();
        let provider = &self.shared.tls_provider;
        let certificate = Certificate::from_pem(chain.as_bytes(), key.as_bytes(), provider)
            .and_then(|it| it.check_time(millrace_sys::time_of_day()).map(|()| it))
            .map_err(|error| failed(&error))?;
        let lacks = |name: &&String| !certificate.names().contains(name);
        match self.acme.names.iter().find(lacks) {
            Some(name) => Err(failed(&format!("is not valid for {name}"))),
            None => Ok(()),
        }
    }

    /// Returns the failure of a call. If the authority does not know the account any longer, the
    /// account and its order are removed, and the next attempt creates them again.
    fn refused(&self, step: Step, error: &Error) -> StepFailure {
        if account::is_unknown(error) {
            let removed = self.remove(&self.files.order);
            if let Err(failure) = removed.and_then(|()| self.remove(&self.files.account)) {
                return failure;
            }
        }
        StepFailure::new(step, error)
    }

    fn remove(&self, file: &str) -> Result<(), StepFailure> {
        self.folder.remove(file).map_err(state)
    }
}

fn state(error: std::io::Error) -> StepFailure {
    StepFailure::new(Step::State, &error)
}

/// Returns the name of a kind of challenge.
fn word(kind: &ChallengeType) -> &str {
    match kind {
        ChallengeType::Http01 => "http-01",
        ChallengeType::TlsAlpn01 => "tls-alpn-01",
        ChallengeType::Dns01 => "dns-01",
        ChallengeType::Unknown(name) => name,
        _ => "another challenge",
    }
}

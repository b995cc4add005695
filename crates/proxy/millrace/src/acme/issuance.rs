//! The part of an order after its creation, which needs no state: the challenges, the request for
//! the certificate, and the check of the issued chain.

use std::cell::RefCell;
use std::fmt::Display;
use std::sync::Arc;
use std::time::{Duration, Instant};

use instant_acme::{
    AuthorizationStatus, ChallengeStatus, ChallengeType, Error, Order, OrderStatus,
};
use millrace_proxy::SharedState;
use millrace_tls::Certificate;
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use super::challenge::{ActiveChallenge, HttpChallenges};
use super::directory::{RetryAfter, retry, run};
use super::status::{Step, StepFailure};
use crate::threads::lock;

/// Time that the authority gets for the challenges, and again for the certificate.
const WAIT_MAX: Duration = Duration::from_secs(300);
/// The first and the longest time between two looks at an order.
const LOOK_INTERVALS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(10)];

/// The parts that the issuance of a certificate needs.
pub(super) struct Issuance<'a> {
    /// The names of the certificate.
    pub(super) names: &'a [String],
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

impl Issuance<'_> {
    /// Brings an order to its end. Returns the chain of the certificate, which fits the key and is
    /// valid for all names.
    ///
    /// # Errors
    /// The first failure. The status of the order says whether the authority has ended it.
    pub(super) fn finish(&self, order: &mut Order, key: &KeyPair) -> Result<String, StepFailure> {
        if order.state().status == OrderStatus::Pending {
            self.begin_challenges(order)?;
            self.wait_while(order, OrderStatus::Pending, Step::Challenge)?;
        }
        let refused = |error: Error| StepFailure::of_call(Step::Issue, &error);
        if order.state().status == OrderStatus::Ready {
            let request = self.request(key)?;
            retry(|| run(order.finalize_csr(&request))).map_err(refused)?;
        }
        self.wait_while(order, OrderStatus::Processing, Step::Issue)?;
        let chain = retry(|| run(order.certificate())).map_err(refused)?;
        let chain =
            chain.ok_or_else(|| StepFailure::new(Step::Issue, &"there is no certificate"))?;
        self.check(&chain, key)?;
        Ok(chain)
    }

    /// Fails if the thread must end, so that a successor finds no object of this process that is in
    /// no file.
    ///
    /// # Errors
    /// If the thread must end.
    pub(super) fn check_stop(&self, step: Step) -> Result<(), StepFailure> {
        match (self.sleep)(Duration::ZERO) {
            true => Err(StepFailure::new(step, &"the process ends")),
            false => Ok(()),
        }
    }

    /// Begins to serve a challenge for each name that is not verified yet.
    fn begin_challenges(&self, order: &mut Order) -> Result<(), StepFailure> {
        let refused = |error: Error| StepFailure::of_call(Step::Challenge, &error);
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
                self.check_stop(Step::Challenge)?;
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
                .map_err(|error| StepFailure::of_call(step, &error))?;
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
        let mut params = CertificateParams::new(self.names).map_err(failed)?;
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
        match self.names.iter().find(lacks) {
            Some(name) => Err(failed(&format!("is not valid for {name}"))),
            None => Ok(()),
        }
    }
}

/// Returns the name of a kind of challenge.
pub(super) fn word(kind: &ChallengeType) -> &str {
    match kind {
        ChallengeType::Http01 => "http-01",
        ChallengeType::TlsAlpn01 => "tls-alpn-01",
        ChallengeType::Dns01 => "dns-01",
        ChallengeType::Unknown(name) => name,
        _ => "another challenge",
    }
}

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
use millrace_tls::{Certificate, Provider};
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
        let now = millrace_sys::time_of_day();
        check_chain(chain, key, self.names, now, &self.shared.tls_provider)
    }
}

/// Checks that a chain fits the key, has all `names`, and is valid at the time `now` since 1970.
fn check_chain(
    chain: &str,
    key: &KeyPair,
    names: &[String],
    now: Duration,
    provider: &Provider,
) -> Result<(), StepFailure> {
    let failed = |problem: &dyn Display, is_certificate_refused| StepFailure {
        is_certificate_refused,
        ..StepFailure::new(Step::Install, &format!("the ordered certificate {problem}"))
    };
    let key = key.serialize_pem();
    let certificate = Certificate::from_pem(chain.as_bytes(), key.as_bytes(), provider)
        .map_err(|error| failed(&error, true))?;
    if let Some(name) = names.iter().find(|name| !certificate.names().contains(name)) {
        return Err(failed(&format!("is not valid for {name}"), true));
    }
    certificate.check_time(now).map_err(|error| {
        // With a clock that is behind, each new order would have this problem, too.
        let becomes_valid = certificate.check_time(now.max(certificate.not_before())).is_ok();
        failed(&error, !becomes_valid)
    })
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

#[cfg(test)]
mod tests {
    use millrace_tls::Aead;
    use rcgen::date_time_ymd;

    use super::*;

    #[test]
    fn a_certificate_that_is_not_valid_yet_is_not_refused() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        (params.not_before, params.not_after) =
            (date_time_ymd(2020, 1, 1), date_time_ymd(2020, 4, 1));
        let chain = params.self_signed(&key).unwrap().pem();
        let provider = Provider::new(Aead::fastest());
        // The day 18,262 since 1970 is the first one of 2020.
        let check = |name: &str, key: &KeyPair, day: u64| {
            let now = Duration::from_secs(day * 86_400);
            check_chain(&chain, key, &[name.to_owned()], now, &provider)
                .map_err(|failure| (failure.text, failure.is_certificate_refused))
        };
        let text = |problem: &str| format!("the ordered certificate {problem}");
        assert_eq!(check("a.test", &key, 18_262), Ok(()));
        let early = (text("is not valid before 2 days from now"), false);
        assert_eq!(check("a.test", &key, 18_260), Err(early));
        assert_eq!(check("a.test", &key, 18_362), Err((text("expired 9 days ago"), true)));
        // Another fault remains when the certificate becomes valid.
        assert_eq!(check("b.test", &key, 18_260), Err((text("is not valid for b.test"), true)));
        let other = KeyPair::generate().unwrap();
        assert!(check("a.test", &other, 18_260).is_err_and(|(_, is_refused)| is_refused));
    }
}

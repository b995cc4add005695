//! The state of the orders of one certificate between the steps of the thread.

use std::cell::RefCell;
use std::time::Instant;

use instant_acme::ChallengeType;
use millrace_config::{Acme, AcmeContent};
use millrace_tls::Certificate;

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
    /// When to renew this certificate, and when the authority was queried.
    pub(super) plan: Option<(RenewalPlan, Instant, Certificate)>,
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

    /// Returns the plan for a certificate, and when the authority was queried; `None` if the plan
    /// is for another one: the job of another service, or another process, may have renewed that.
    pub(super) fn plan_of(&self, certificate: &Certificate) -> Option<(RenewalPlan, Instant)> {
        let plan = self.plan.as_ref().filter(|(.., planned)| planned == certificate);
        plan.map(|(plan, queried, _)| (*plan, *queried))
    }

    /// Chooses the other kind of challenge for the next attempt, if it is possible.
    pub(super) fn switch_kind(&mut self) {
        self.kind = match self.kind {
            ChallengeType::TlsAlpn01 if self.acme.http.is_some() => ChallengeType::Http01,
            _ => ChallengeType::TlsAlpn01,
        };
    }
}

#[cfg(test)]
pub(super) mod tests {
    use millrace_config::Config;
    use millrace_tls::{Aead, Provider, Roots};
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Returns a certificate and its PEM.
    pub(in crate::acme) fn certificate() -> (Certificate, String) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["a.test".to_owned()]).unwrap();
        let pem = format!("{}{}", key.serialize_pem(), params.self_signed(&key).unwrap().pem());
        let provider = Provider::new(Aead::fastest());
        (Certificate::from_pem(pem.as_bytes(), pem.as_bytes(), &provider).unwrap(), pem)
    }

    /// Returns the configuration of [`job`], without the content of files.
    pub(in crate::acme) fn config() -> Config {
        let words =
            "boost --origin=http://a --listen=tls://[::1]:1 --acme=a@b --server-name=a.test";
        millrace_config::from_arguments(words.split(' ')).unwrap()
    }

    /// Returns a job.
    pub(in crate::acme) fn job() -> Job {
        let mut acme = config().services[0].tls.as_ref().unwrap().acme.clone().unwrap();
        let (_, pem) = certificate();
        let roots = Roots::from_pem(pem.as_bytes()).unwrap();
        acme.content = Some(AcmeContent { folder: "/a".into(), roots, external_account: None });
        Job::new(&acme).unwrap()
    }

    #[test]
    fn a_plan_is_for_one_certificate() {
        let (mut job, (old, _)) = (job(), certificate());
        assert_eq!(job.plan_of(&old), None);
        let planned = (RenewalPlan::by_validity(&old), Instant::now());
        job.plan = Some((planned.0, planned.1, old.clone()));
        assert_eq!(job.plan_of(&old), Some(planned));
        // With the plan of the old one, a certificate that was just renewed would be due again.
        assert_eq!(job.plan_of(&certificate().0), None);
    }
}

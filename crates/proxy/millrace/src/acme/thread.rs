//! The thread that orders certificates, one after the other.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use millrace_config::Config;
use millrace_proxy::SharedState;
use millrace_proxy::access_log::Dates;
use millrace_tls::Certificate;

use super::account;
use super::challenge::HttpChallenges;
use super::control::{Control, settings};
use super::issuance::Issuance;
use super::job::Job;
use super::order::OrderContext;
use super::renewal::{RenewalPlan, retry_wait};
use super::state::{StateFolder, certificate_path};
use super::status::{AcmeCounters, Step, StepFailure};
use super::test_order::{NO_CERTIFICATE, TestOrder, TestResult, joined};
use crate::active_config::ActiveConfig;
use crate::console;
use crate::supervisor_requests::{SupervisorHandle, SupervisorRequest};

/// How many orders in a row name the certificate that they replace, if they fail.
const REPLACING_ATTEMPTS: u32 = 2;

/// Time between attempts to lock a state folder.
const LOCK_INTERVAL: Duration = Duration::from_secs(1);
/// The longest sleep, so that a clock that was set forward delays no renewal for long.
const SLEEP_MAX: Duration = Duration::from_secs(3600);

/// The thread.
pub(super) struct Worker {
    pub(super) control: Arc<Control>,
    pub(super) active_config: Arc<ActiveConfig>,
    pub(super) shared: Arc<SharedState>,
    pub(super) supervisor: SupervisorHandle,
    pub(super) http: Arc<HttpChallenges>,
    pub(super) counters: Arc<AcmeCounters>,
    /// The locked state folders.
    pub(super) folders: HashMap<PathBuf, StateFolder>,
}

impl Worker {
    /// Runs the thread. The locks are released at its end.
    pub(super) fn run(mut self) {
        let mut jobs: Vec<Job> = Vec::new();
        loop {
            let due = jobs.iter().map(|job| job.due).min();
            let wait = due.map_or(SLEEP_MAX, |due| due.saturating_duration_since(Instant::now()));
            if self.control.sleep_until_request(wait.min(SLEEP_MAX)) {
                // The requests for test orders end, because nothing responds to them.
                self.control.lock().tests.clear();
                return;
            }
            // A test order is of the configuration that was in force at its request.
            self.update(&mut jobs);
            self.test(&jobs);
            let now = Instant::now();
            for job in jobs.iter_mut().filter(|job| job.due <= now) {
                if self.control.lock().is_stopped {
                    break;
                }
                self.attempt(job);
            }
        }
    }

    /// Takes the certificates of the applied configuration. Those that were there keep their
    /// state.
    fn update(&mut self, jobs: &mut Vec<Job>) {
        let config = {
            let mut state = self.control.lock();
            if !std::mem::take(&mut state.has_changed) {
                return;
            }
            Arc::clone(&state.config)
        };
        let mut last = std::mem::take(jobs);
        for acme in settings(&config) {
            // Services with the same settings share a certificate.
            if jobs.iter().any(|job| job.acme == *acme) {
                continue;
            }
            let known = last.iter().position(|job| job.acme == *acme);
            jobs.extend(known.map(|at| last.swap_remove(at)).or_else(|| Job::new(acme)));
        }
        // Another process may need the folders that this one does not use any longer.
        self.folders.retain(|path, _| jobs.iter().any(|job| job.content.folder == *path));
    }

    /// Responds to the requests for test orders.
    fn test(&self, jobs: &[Job]) {
        let requests = std::mem::take(&mut self.control.lock().tests);
        let busy = order_in_progress(jobs);
        for request in requests {
            let result = match busy {
                Some(job) => {
                    Err(format!("acme: an order of {} is in progress; try again", job.names()))
                }
                None if jobs.is_empty() => Err(NO_CERTIFICATE.to_owned()),
                None => joined(jobs.iter().map(|job| self.test_order(job))),
            };
            // An error means that the client is gone.
            let _ = request.send(result);
        }
    }

    fn test_order(&self, job: &Job) -> TestResult {
        let sleep = |wait| self.control.sleep(wait);
        TestOrder { shared: &self.shared, http: &self.http, sleep: &sleep }.run(&job.acme)
    }

    fn attempt(&mut self, job: &mut Job) {
        let names = job.names();
        match self.advance(job) {
            Ok(due) => (job.due, job.failures) = (due, 0),
            // The end of the thread is no failure of the authority.
            Err(_) if self.control.lock().is_stopped => {}
            Err(StepFailure { step, text, .. }) => {
                self.counters.add(step);
                job.failures = job.failures.saturating_add(1);
                if step == Step::Challenge {
                    job.switch_kind();
                }
                let wait = retry_wait(self.first_wait(), job.failures);
                job.due = Instant::now() + wait;
                let text = format!("certificate for {names}: {} failed: {text}", step.word());
                if let Some(folder) = self.folders.get(&job.content.folder) {
                    // It is only for reports.
                    let _ = folder.write(&job.files.failure, &text);
                }
                console::log(&format!("acme: {text}; next attempt in {} s", wait.as_secs()));
            }
        }
    }

    fn first_wait(&self) -> Duration {
        Duration::from_millis(self.active_config.config().limits.acme_retry_ms)
    }

    /// Does what is due for a certificate. Returns when something is due again.
    fn advance(&mut self, job: &mut Job) -> Result<Instant, StepFailure> {
        let first_wait = self.first_wait();
        if !self.lock_folder(job)? {
            // The other process may have renewed the certificate.
            let path = certificate_path(&job.content.folder, &job.acme);
            if let Some(certificate) = std::fs::read(path).ok().and_then(|pem| self.parse(&pem)) {
                self.install(&certificate, job)?;
            }
            return Ok(Instant::now() + LOCK_INTERVAL);
        }
        let folder = &self.folders[&job.content.folder];
        let stored = self.stored(folder, job)?;
        if let Some(certificate) = &stored {
            self.install(certificate, job)?;
            let left = self.time_to_renewal(folder, certificate, job);
            if !left.is_zero() {
                return Ok(Instant::now() + left.min(SLEEP_MAX));
            }
        }
        // No order follows another one at once, even if the authority suggests it.
        let earliest = job.ordered.map(|ordered| ordered + first_wait);
        if let Some(earliest) = earliest.filter(|earliest| Instant::now() < *earliest) {
            return Ok(earliest);
        }
        let sleep = |wait| self.control.sleep(wait);
        let context = OrderContext {
            acme: &job.acme,
            content: &job.content,
            folder,
            files: &job.files,
            names_replaced: job.failures < REPLACING_ATTEMPTS,
            issuance: Issuance {
                names: &job.acme.names,
                shared: &self.shared,
                http: &self.http,
                retry_after: &job.retry_after,
                active: &job.active,
                kind: job.kind.clone(),
                sleep: &sleep,
            },
        };
        if stored.is_none() && job.failures == 0 {
            console::log(&order_message(&self.active_config.config(), job));
        }
        context.obtain(stored.as_ref())?;
        (job.ordered, job.plan) = (Some(Instant::now()), None);
        self.log_received(folder, job)?;
        folder.remove(&job.files.failure).map_err(|error| StepFailure::new(Step::State, &error))?;
        Ok(Instant::now())
    }

    /// Locks the state folder of a certificate. Returns false while another process holds the lock.
    fn lock_folder(&mut self, job: &mut Job) -> Result<bool, StepFailure> {
        let path = &job.content.folder;
        if self.folders.contains_key(path) {
            return Ok(true);
        }
        let failed = |error: std::io::Error| {
            StepFailure::new(Step::State, &format!("{}: {error}", path.display()))
        };
        match StateFolder::lock(path).map_err(failed)? {
            Some(folder) => {
                self.folders.insert(folder.path().to_owned(), folder);
                Ok(true)
            }
            None => {
                if !std::mem::replace(&mut job.is_lock_reported, true) {
                    let path = path.display();
                    console::log(&format!("acme: waiting for the process that has locked {path}"));
                }
                Ok(false)
            }
        }
    }

    /// Returns the stored certificate, if there is one that can be used.
    fn stored(&self, folder: &StateFolder, job: &Job) -> Result<Option<Certificate>, StepFailure> {
        let stored = folder.read(&job.files.certificate);
        let stored = stored.map_err(|error| StepFailure::new(Step::State, &error))?;
        Ok(stored.and_then(|pem| self.parse(pem.as_bytes())))
    }

    fn log_received(&self, folder: &StateFolder, job: &Job) -> Result<(), StepFailure> {
        let mut dates = Dates::default();
        if let Some(certificate) = self.stored(folder, job)? {
            let end = String::from_utf8_lossy(dates.at(certificate.not_after()).http_date());
            let names = job.names();
            console::log(&format!("acme: received the certificate for {names}, valid until {end}"));
        }
        Ok(())
    }

    fn parse(&self, pem: &[u8]) -> Option<Certificate> {
        Certificate::from_pem(pem, pem, &self.shared.tls_provider).ok()
    }

    /// Puts a certificate in force, unless it is.
    fn install(&self, certificate: &Certificate, job: &Job) -> Result<(), StepFailure> {
        if self.is_in_force(certificate, job) {
            return Ok(());
        }
        let (sender, outcome) = channel();
        self.supervisor.send(SupervisorRequest::InstallCertificates(sender));
        match outcome.recv() {
            Ok(Ok(_)) if self.is_in_force(certificate, job) => Ok(()),
            Ok(Ok(_)) => {
                let file = certificate_path(&job.content.folder, &job.acme);
                let problem =
                    format!("{}: is not readable, or is readable by other users", file.display());
                Err(StepFailure::new(Step::Install, &problem))
            }
            Ok(Err(text)) => Err(StepFailure::new(Step::Install, &text)),
            Err(_) => Err(StepFailure::new(Step::Install, &"the process ends")),
        }
    }

    /// Returns whether the services of a job have this certificate, or are gone.
    fn is_in_force(&self, certificate: &Certificate, job: &Job) -> bool {
        let config = self.active_config.config();
        certificate_in_force(&config, job).is_none_or(|present| present == Some(certificate))
    }

    /// Returns the time until the certificate has to be renewed, or until the authority has to be
    /// queried again, if that is earlier.
    fn time_to_renewal(
        &self,
        folder: &StateFolder,
        certificate: &Certificate,
        job: &mut Job,
    ) -> Duration {
        let is_current = |asked: Instant, plan: &RenewalPlan| asked.elapsed() < plan.ask_after;
        let plan = match job.plan_of(certificate) {
            Some((plan, asked)) if is_current(asked, &plan) => plan,
            last => {
                let last = last.map(|(plan, _)| plan);
                let content = &job.content;
                let asked = account::open(&job.acme, content, folder, &job.files, &job.retry_after)
                    .and_then(|account| RenewalPlan::ask(&account, certificate, last.as_ref()));
                let plan = asked.unwrap_or_else(|failure| {
                    self.counters.add(failure.step);
                    let text = &failure.text;
                    console::log(&format!("acme: cannot ask when to renew: {text}"));
                    let plan = last.unwrap_or_else(|| RenewalPlan::by_validity(certificate));
                    plan.after_failure()
                });
                job.plan = Some((plan, Instant::now(), certificate.clone()));
                plan
            }
        };
        plan.at.saturating_sub(millrace_sys::time_of_day()).min(plan.ask_after)
    }
}

/// Returns the certificate that a service of a job has, if any; `None` if there is no such service.
fn certificate_in_force<'a>(config: &'a Config, job: &Job) -> Option<Option<&'a Certificate>> {
    let mut services = config.services.iter().filter_map(|service| service.tls.as_ref());
    let service = services.find(|tls| tls.acme.as_ref() == Some(&job.acme));
    service.map(|tls| tls.certificates.as_deref().and_then(<[_]>::first))
}

/// Returns the message about the first order of a job. A certificate for other names, or of another
/// authority, may serve until then.
fn order_message(config: &Config, job: &Job) -> String {
    let until_then = match certificate_in_force(config, job) {
        Some(None) => "; handshakes fail until then",
        _ => "",
    };
    format!("acme: ordering a certificate for {}{until_then}", job.names())
}

/// Returns the job of an order that is not over. A test order would replace its challenges, also
/// one of another job with the same names.
fn order_in_progress(jobs: &[Job]) -> Option<&Job> {
    jobs.iter().find(|job| !job.active.borrow().is_empty())
}

#[cfg(test)]
mod tests {
    use super::super::challenge::ActiveChallenge;
    use super::super::job::tests::{certificate, config, job};
    use super::*;

    #[test]
    fn handshakes_fail_only_without_a_certificate() {
        let (mut config, mut job) = (config(), job());
        job.acme.content = None;
        let order = "acme: ordering a certificate for a.test";
        assert_eq!(order_message(&config, &job), format!("{order}; handshakes fail until then"));
        config.services[0].tls.as_mut().unwrap().certificates = Some([certificate().0].into());
        assert_eq!(order_message(&config, &job), order);
    }

    #[test]
    fn an_order_of_any_job_is_in_progress() {
        let jobs = [job(), job()];
        assert!(order_in_progress(&jobs).is_none());
        jobs[1].active.borrow_mut().push(ActiveChallenge::for_test());
        assert!(order_in_progress(&jobs).is_some_and(|found| std::ptr::eq(found, &jobs[1])));
    }
}

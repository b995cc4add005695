//! Runs a configuration: opens listeners and files, starts the workers, then handles signals until
//! the last worker has ended. It touches no request.
//!
//! ```text
//!            SIGHUP
//!            v    |
//! start -> running --SIGTERM, SIGINT--> draining --last worker ended--> done
//!                                          |  \---limits.drain_ms---> aborting -> done
//!                                          \---second SIGINT---> interrupted
//! ```
//!
//! While a successor takes over, reloads are refused, and draining starts only after the takeover
//! has succeeded or failed.

mod certificate_watch;
mod handover;
mod succession;
mod ticket_rotation;

use std::sync::Arc;
use std::time::{Duration, Instant};

use iolite::service::FileClient;
use millrace_config::{Config, ListenAddress, Splice};
use millrace_engine::LogSink;
use millrace_files::Pool;
use millrace_proxy::counters::Counters;
use millrace_proxy::{SharedFiles, SharedState, WorkerMessage};
use millrace_store::HotCopies;
use millrace_sys::{Signal, Signals};

use crate::acme::{AcmeOrders, HttpListeners, OpenTime};
use crate::active_config::{self, ActiveConfig};
use crate::admin::{AccessRules, Admin, AdminListeners, Hooks, Token};
use crate::config_source::ConfigSource;
use crate::congestion;
use crate::disks::{DiskWaker, Disks};
use crate::engines::{self, Engine};
use crate::health_checks;
use crate::metrics::Metrics;
use crate::program_error::ProgramError;
use crate::startup::collect_inherited;
use crate::supervisor_requests::{SupervisorHandle, SupervisorRequest, SupervisorRequests};
use crate::worker_pool::WorkerPool;
use crate::{
    cache, certificates, console, hot_bodies, outages, panics, pipeline_tests, splice_thresholds,
    uploads, uselectd_watch,
};
use certificate_watch::CertificateWatch;
use succession::Succession;
use ticket_rotation::TicketRotation;

/// Interval at which a draining process checks whether its workers have ended. It only decides how
/// soon the process exits after the last one.
const DRAIN_POLL_INTERVAL: Duration = Duration::from_millis(10);
/// The longest time that a running process sleeps if no timer is due earlier.
const IDLE_WAIT: Duration = Duration::from_secs(3600);
/// Threads that open and read files whose folders or bytes are not in memory, and compress.
const FILE_THREADS_MAX: usize = 4;
/// Calls that wait for these threads. With more, clients get 503, and bodies of files wait.
const FILE_IO_MAX: usize = 1024;
/// Compressions that wait for these threads. With more, responses are sent as they are.
const FILE_COMPRESSIONS_MAX: usize = 64;
/// Time that the workers get to abort the remaining exchanges after the drain deadline.
const ABORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs a configuration until a signal or a successor ends the process. A reload reads `source`
/// again. With `upgrade` the process takes over from a running one.
///
/// # Errors
/// If the system refuses what the configuration needs, or if a second SIGINT ended the process.
pub(crate) fn run(config: Config, source: ConfigSource, upgrade: bool) -> Result<(), ProgramError> {
    Running::start(config, source, upgrade)?.wait(None, |_| {})
}

/// A process with running workers.
pub(crate) struct Running {
    signals: Signals,
    engine: engines::EngineSelection,
    thresholds: splice_thresholds::ThresholdSelection,
    /// `None`: the configuration has no cache.
    hot_bodies: Option<hot_bodies::HotBodySelection>,
    active_config: Arc<ActiveConfig>,
    worker_pool: WorkerPool,
    shared: Arc<SharedState>,
    admin: Option<Arc<Admin>>,
    requests: SupervisorRequests,
    succession: Succession,
    tickets: TicketRotation,
    log: LogSink,
    disks: Disks,
    /// `None` only during the start.
    acme: Option<Arc<AcmeOrders>>,
    /// The prefault thread of the cache. It runs until this is dropped.
    _prefault: Option<iolite::PrefaultThread>,
}

impl Running {
    /// Starts everything and logs the addresses.
    ///
    /// # Errors
    /// If the system refuses an address, a file, a thread or memory.
    pub(crate) fn start(
        config: Config,
        source: ConfigSource,
        upgrade: bool,
    ) -> Result<Self, ProgramError> {
        let signals = prepare_process()?;
        let (mut inherited, takeover, systemd) = collect_inherited(&config, upgrade)?;
        let mut engine = engines::select_engine(&config)?;
        let thresholds = splice_thresholds::select_thresholds(config.splice, engine.engine);
        let hot_bodies = config.cache.as_ref().map(|it| hot_bodies::select_hot_copies(it.send));
        let (log, requested_config, mut config) = (LogSink::without_file(), config.clone(), config);
        let access_rules = admin_access_rules(&config)?;
        let admin_listeners = AdminListeners::open(&mut config.admin, &mut inherited)?;
        let copies = hot_bodies.as_ref().map_or(HotCopies::NONE, |selection| selection.copies);
        let shared = create_shared(&config, copies)?;
        connect_to_iolited(&config, &shared)?;
        let tickets = TicketRotation::start(&shared, takeover.as_ref())?;
        let state = (shared.clone(), log.clone());
        let start =
            ActiveConfig::open(requested_config, config, source, inherited, state.0, state.1)?;
        let (active_config, sockets) = (Arc::new(start.0), start.1);
        let open_time = if takeover.is_some() { OpenTime::Takeover } else { OpenTime::Start };
        let http = HttpListeners::open(&active_config.config(), open_time);
        let prefault = drop_privileges(&active_config, engine.engine, &systemd, &log)
            .and_then(|()| uselectd_watch::start_for(engine.engine))
            .and_then(|()| cache::start_prefault(shared.cache.as_ref()))
            .inspect_err(|_| active_config.close_listeners())?;
        let (waker, cache) = (Arc::new(DiskWaker::default()), shared.cache.as_ref());
        let pool = Pool::new(FILE_THREADS_MAX, FILE_IO_MAX, FILE_COMPRESSIONS_MAX);
        shared.files.connect(pool, waker.clone());
        let disks = Disks::open(&active_config.config(), cache, &waker, takeover.is_some())
            .inspect_err(|_| active_config.close_listeners())?;
        uploads::open(&active_config.config(), &shared);
        let rings = std::mem::take(&mut engine.rings);
        let worker_options = (engine.engine, rings, thresholds.thresholds);
        let started =
            WorkerPool::start(&active_config, &shared, worker_options, &log, sockets, &waker);
        let (worker_pool, mailboxes) = started.inspect_err(|_| active_config.close_listeners())?;
        active_config.set_mailboxes(mailboxes);
        let (handle, requests) = SupervisorRequests::new(|| Signal::User2.send_to_self());
        let succession = Succession::new(admin_listeners, systemd);
        let mut running = Self {
            signals,
            engine,
            thresholds,
            hot_bodies,
            active_config,
            worker_pool,
            shared,
            admin: None,
            requests,
            succession,
            tickets,
            log,
            disks,
            acme: None,
            _prefault: prefault,
        };
        // The takeover comes last: after it, no other process can serve.
        let start = health_checks::start(&running.active_config, &running.shared)
            .and_then(|()| running.start_watches())
            .and_then(|()| running.start_acme(handle.clone(), http))
            .and_then(|()| running.start_admin(access_rules, handle.clone()))
            .and_then(|()| takeover.map_or(Ok(()), |takeover| takeover.finish(handle)));
        start.inspect_err(|_| running.abort_start())?;
        running.take_file_ownership();
        running.succession.admin_listeners.serve();
        running.announce();
        Ok(running)
    }

    /// Returns the listening addresses, with the ports that the kernel chose.
    pub(crate) fn addresses(&self) -> Vec<ListenAddress> {
        let config = self.active_config.config();
        config.listeners.iter().map(|listener| listener.address.clone()).collect()
    }

    /// Waits until a signal or a successor ends the process and it has drained. Calls `observe`
    /// with the counters of the workers at least once per `interval`.
    ///
    /// # Errors
    /// [`ProgramError::Interrupted`] after a second SIGINT; an error of waiting for signals.
    pub(crate) fn wait(
        mut self,
        interval: Option<Duration>,
        mut observe: impl FnMut(&[Arc<Counters>]),
    ) -> Result<(), ProgramError> {
        let mut interrupts = 0;
        let mut draining = None;
        let mut watch = CertificateWatch::new(&self.active_config);
        loop {
            let timeout = match draining {
                Some(_) => DRAIN_POLL_INTERVAL,
                None => interval.unwrap_or(IDLE_WAIT).min(self.succession.time_left()),
            };
            let timeout = timeout.min(watch.time_left()).min(self.tickets.time_left());
            let signal =
                self.signals.wait(timeout).map_err(|error| start_error("signals", error))?;
            observe(&self.shared.counters);
            self.feed_watchdog();
            self.tickets.rotate_if_due(&self.shared);
            if watch.take_due(&self.active_config) {
                self.reload_changed_files(draining.is_some());
            }
            match signal {
                Some(Signal::HangUp) => {
                    // `reload` has logged its result.
                    let _ = self.reload(draining.is_some());
                    self.reopen_log();
                }
                Some(Signal::User1) => self.reopen_log(),
                // The signal only announces a request.
                Some(Signal::User2) | None => {}
                Some(signal) => {
                    interrupts += u32::from(signal == Signal::Interrupt);
                    if interrupts > 1 {
                        self.close_files();
                        return Err(ProgramError::Interrupted);
                    }
                    self.request_drain();
                }
            }
            while let Some(request) = self.requests.next() {
                match request {
                    SupervisorRequest::Drain => self.request_drain(),
                    SupervisorRequest::Reload(reply) => {
                        _ = reply.send(self.reload(draining.is_some()))
                    }
                    SupervisorRequest::InstallCertificates(reply) => {
                        _ = reply.send(self.active_config.install_certificates())
                    }
                    SupervisorRequest::CollectOffer(reply) if draining.is_some() => drop(reply),
                    SupervisorRequest::CollectOffer(reply) => _ = reply.send(self.offer()),
                    SupervisorRequest::HandOver(channel) => draining = self.hand_over(channel),
                    SupervisorRequest::Repoll => {
                        self.active_config.try_send_all(|| WorkerMessage::RepollListeners)
                    }
                }
            }
            if self.succession.is_ending && draining.is_none() && !self.is_upgrading() {
                draining = Some(self.drain());
            }
            if let Some(deadline) = &mut draining
                && self.poll_drained(deadline)
            {
                self.close_files();
                return Ok(());
            }
        }
    }

    /// Starts the threads that test origins, and that report outages and the end of the launcher.
    fn start_watches(&self) -> Result<(), ProgramError> {
        outages::start(&self.shared)?;
        pipeline_tests::start(&self.active_config, &self.shared)?;
        self.active_config.launcher().map_or(Ok(()), |launcher| launcher.watch().map(drop))
    }

    fn start_acme(
        &mut self,
        handle: SupervisorHandle,
        listeners: HttpListeners,
    ) -> Result<(), ProgramError> {
        let orders = AcmeOrders::start(&self.active_config, &self.shared, handle, listeners)?;
        self.acme = Some(orders);
        Ok(())
    }

    /// Ends the orders of certificates: this process ends, or another one continues them.
    fn stop_acme(&self) {
        if let Some(acme) = &self.acme {
            acme.stop();
        }
    }

    fn start_admin(
        &mut self,
        access_rules: AccessRules,
        handle: SupervisorHandle,
    ) -> Result<(), ProgramError> {
        if self.active_config.config().admin.is_empty() {
            return Ok(());
        }
        let mut metrics =
            Metrics::new(&self.shared, self.log.clone(), self.active_config.reload_counters());
        let certificates = Arc::clone(&self.active_config);
        let acme = Arc::clone(self.acme.as_ref().expect("ACME starts before the admin server"));
        let counters = acme.counters();
        metrics.add_certificates(move || certificates::expiries(&certificates.config()), counters);
        let (active_config, log) = (self.active_config.clone(), self.log.clone());
        let hooks = Hooks {
            supervisor: handle,
            reopen_log: Box::new(move || {
                active_config.config().access_log.is_some().then(|| log.reopen())
            }),
            test_certificates: Box::new(move |orders| acme.test(orders)),
            cache: self.shared.cache.clone(),
        };
        let admin = Arc::new(Admin::new(metrics, access_rules, hooks));
        admin.set_config(&self.active_config.config());
        self.admin = Some(Arc::clone(&admin));
        let observer = Arc::clone(&admin);
        self.active_config.on_change(move |config| observer.set_config(config));
        self.succession.admin_listeners.prepare(admin)
    }

    fn announce(&self) {
        let engines::EngineSelection { engine, reason, .. } = &self.engine;
        console::log(&format!("engine {} ({reason})", engine.name()));
        let config = self.active_config.config();
        if config.splice == Splice::Calibrated {
            console::log(&format!("splice {}", self.thresholds));
        }
        if let Some(hot_bodies) = &self.hot_bodies {
            console::log(&format!("hot bodies {hot_bodies}"));
        }
        if let Some(confinement) = self.active_config.confinement() {
            console::log(&confinement.line());
        }
        if let Some(launcher) = self.active_config.launcher() {
            console::log(launcher.line());
        }
        certificates::notes(&config).iter().for_each(|note| console::log(note));
        for address in &config.admin {
            console::log(&format!("admin at {address}"));
        }
        for address in self.addresses() {
            console::log(&format!("listening on {address}"));
        }
        self.succession.systemd.ready("serving");
    }

    /// Reloads the configuration and notifies the service manager, unless the process drains.
    fn reload(&self, is_draining: bool) -> Result<u64, String> {
        if is_draining {
            return self.active_config.reload(Some("the process is draining"));
        }
        // A configuration applied now would be lost when this process ends, and the client that
        // requested the reload would not notice.
        let obstacle = self
            .is_upgrading()
            .then_some("another process is taking over, with its own configuration file");
        self.succession.systemd.reloading();
        let outcome = self.active_config.reload(obstacle);
        if outcome.is_ok() {
            let config = self.active_config.config();
            certificates::notes(&config).iter().for_each(|note| console::log(note));
        }
        self.succession.systemd.ready("serving");
        outcome
    }

    /// Reloads if certificates were replaced. During an upgrade a reload would be refused: the
    /// change is found after its end.
    fn reload_changed_files(&self, is_draining: bool) {
        if !is_draining && !self.is_upgrading() && self.active_config.have_files_changed() {
            console::log("certificate files have changed");
            // `reload` has logged its result.
            let _ = self.reload(false);
        }
    }

    /// Makes all workers drain. Returns the deadline for their end.
    fn drain(&mut self) -> Instant {
        if let Some(admin) = &self.admin {
            admin.set_draining();
        }
        console::log("draining");
        self.stop_acme();
        self.succession.end();
        self.active_config.drain();
        self.drain_deadline()
    }

    fn drain_deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.active_config.config().limits.drain_ms)
    }

    /// Checks for the end of draining. Returns true if all workers have ended or have missed their
    /// last deadline. After the first deadline, makes the workers abort and moves the deadline.
    fn poll_drained(&mut self, deadline: &mut Instant) -> bool {
        self.release_successor();
        if self.worker_pool.poll_ended() {
            return true;
        }
        if Instant::now() < *deadline {
            return false;
        }
        if self.active_config.has_aborted_workers() {
            console::log("some workers did not end in time");
            return true;
        }
        console::log("drain timeout (limit drain_ms): aborting the remaining requests");
        self.active_config.abort_workers();
        *deadline = Instant::now() + ABORT_TIMEOUT;
        false
    }

    fn reopen_log(&self) {
        if self.active_config.config().access_log.is_none() {
            return;
        }
        match self.log.reopen() {
            Ok(()) => console::log("access log reopened"),
            Err(error) => console::log(&format!("cannot reopen the access log: {error}")),
        }
    }

    /// Writes what is buffered for the access log and the disks.
    fn close_files(&self) {
        self.log.close();
        self.disks.close();
    }
}

/// Drops privileges, then opens the access log, so that reopening it later needs no privilege that
/// is gone.
fn drop_privileges(
    active_config: &ActiveConfig,
    engine: Engine,
    systemd: &crate::systemd::Systemd,
    log: &LogSink,
) -> Result<(), ProgramError> {
    active_config.drop_privileges(engine, systemd)?;
    let file = active_config::open_log(&active_config.config())?;
    log.set_file(file).map_err(|error| start_error("the access log", error))
}

/// Prepares signals, the panic hook and limits. The process must still have a single thread: a
/// signal is delivered to any thread that does not block it.
fn prepare_process() -> Result<Signals, ProgramError> {
    let signals = Signals::block().map_err(|error| start_error("signals", error))?;
    panics::install_panic_hook();
    if let Err(error) = millrace_sys::raise_descriptor_limit() {
        console::log(&format!("cannot raise the limit of file descriptors: {error}"));
    }
    Ok(signals)
}

/// Returns the rules for requests to the admin address.
fn admin_access_rules(config: &Config) -> Result<AccessRules, ProgramError> {
    let token = config.admin_token_file.as_deref();
    Ok(AccessRules {
        token: token.map(|file| Token::read("admin-token-file", file)).transpose()?,
        name: config.admin_name.clone(),
    })
}

/// Creates the state that all workers share. The pseudonym of the process in Via (RFC 9110 section
/// 7.6.3) is random, so that no two proxies mistake each other's requests for their own.
fn create_shared(config: &Config, copies: HotCopies) -> Result<Arc<SharedState>, ProgramError> {
    let mut random = [0; 8];
    millrace_sys::fill_random(&mut random);
    let pseudonym = format!("millrace-{:016x}", u64::from_ne_bytes(random));
    let (congestion, cache) = (congestion::system_default(config), cache::open(config, copies)?);
    Ok(SharedState::new(config.workers, pseudonym, congestion, cache, console::log, driver_trace()))
}

/// Creates the client of iolited, which connects when it needs a file.
fn connect_to_iolited(config: &Config, shared: &SharedState) -> Result<(), ProgramError> {
    let Some(path) = &config.iolited else { return Ok(()) };
    let client = FileClient::new(Some(path)).map_err(|error| start_error("iolited", error))?;
    let is_first = shared.iolited.set(Arc::new(SharedFiles::new(client))).is_ok();
    assert!(is_first, "the client is created once");
    Ok(())
}

/// Returns where the driver reports its steps: standard error, if MILLRACE_TRACE is set and the
/// build has debug assertions.
fn driver_trace() -> Option<fn(std::fmt::Arguments<'_>)> {
    let is_wanted = cfg!(debug_assertions) && std::env::var_os("MILLRACE_TRACE").is_some();
    is_wanted.then_some(|line| console::log(&line.to_string()))
}

fn start_error(what: &str, error: impl std::fmt::Display) -> ProgramError {
    ProgramError::System(format!("cannot start {what}: {error}"))
}

//! Runs a configuration: opens what has to be open, starts a thread a worker, then waits for
//! signals until the last worker has ended. It touches no request.
//!
//! ```text
//!            SIGHUP
//!            v    |
//! start -> running --SIGTERM, SIGINT--> draining --last worker ended--> done
//!                                          |  \---limits.drain_ms---> breaking off -> done
//!                                          \---second SIGINT---> interrupted
//! ```
//!
//! While a successor takes over, a reload is refused, and draining waits for the outcome.

mod handover;
mod succession;

use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_config::{self as config, Config, ListenAddress, Splice};
use millrace_engine::LogSink;
use millrace_proxy::counters::Counters;
use millrace_proxy::{Shared, WorkerMessage};
use millrace_store::HotCopies;
use millrace_sys::{Signal, Signals};

use crate::admin::{Admin, AdminListeners, Guard, Hooks, Token};
use crate::beginning::begin;
use crate::config_source::ConfigSource;
use crate::congestion;
use crate::disks::{Bell, Disks};
use crate::engines::{self, Engine};
use crate::errands::{Desk, Errand, Errands};
use crate::failure::Failure;
use crate::health_checks;
use crate::metrics::Metrics;
use crate::reload::{self, Force};
use crate::worker_pool::WorkerPool;
use crate::{cache, hot_bodies, outages, print, restart, thresholds, tracking};
use succession::Succession;

/// How often it is looked whether a draining worker has ended. Decides how soon the process ends
/// after the last one, nothing else.
const DRAIN_LOOK: Duration = Duration::from_millis(10);
/// How long a running process sleeps when nobody asks for a shorter time.
const IDLE_LOOK: Duration = Duration::from_secs(3600);
/// What workers have to break off what is left, once the time for draining is over.
const BREAK_OFF: Duration = Duration::from_secs(2);

/// Runs until the process is told to end. `source` is where the configuration can be read again;
/// with `upgrade` it takes the place of a running one.
///
/// # Errors
/// When the machine refuses what the configuration needs, or the end was not awaited.
pub(crate) fn run(
    config: Config,
    source: Option<ConfigSource>,
    upgrade: bool,
) -> Result<(), Failure> {
    Running::start(config, source, upgrade)?.wait(None, |_| {})
}

/// A process whose workers run.
pub(crate) struct Running {
    signals: Signals,
    engine: engines::Picked,
    thresholds: thresholds::Picked,
    /// `None`: there is no cache.
    hot_bodies: Option<hot_bodies::Picked>,
    force: Arc<Force>,
    worker_pool: WorkerPool,
    shared: Arc<Shared>,
    admin: Option<Arc<Admin>>,
    errands: Errands,
    succession: Succession,
    log: LogSink,
    disks: Disks,
    /// Makes memory ready for the cache as long as it lives.
    _prefault: Option<iolite::Helper>,
}

impl Running {
    /// Starts everything and says where it listens.
    ///
    /// # Errors
    /// When the machine refuses an address, a file, a thread or memory.
    pub(crate) fn start(
        config: Config,
        source: Option<ConfigSource>,
        upgrade: bool,
    ) -> Result<Self, Failure> {
        let signals = prepare_process()?;
        let (mut inherited, takeover, systemd) = begin(&config, upgrade)?;
        let mut engine = engines::pick(&config)?;
        let thresholds = thresholds::pick(config.splice, engine.engine);
        let hot_bodies = config.cache.as_ref().map(|cache| hot_bodies::pick(cache.send));
        let log = LogSink::closed();
        let asked_for = config.clone();
        let mut config = config;
        let guard = guard(&config)?;
        let admin_listeners = AdminListeners::open(&mut config.admin, &mut inherited)?;
        let copies = hot_bodies.as_ref().map_or(HotCopies::NONE, |picked| picked.copies);
        let shared = shared(&config, copies)?;
        let begun =
            Force::begin(asked_for, config, source, inherited, shared.clone(), log.clone())?;
        let (force, sockets) = (Arc::new(begun.0), begun.1);
        // From here on with what is left; the log is opened as it will be opened again.
        force
            .lock_in(engine.engine, &systemd)
            .and_then(|()| reload::open_log(&force.config()))
            .and_then(|file| log.turn_to(file).map_err(|error| machine("the access log", error)))
            .inspect_err(|_| force.give_up())?;
        let prefault =
            cache::start_prefault(shared.cache.as_ref()).inspect_err(|_| force.give_up())?;
        if engine.engine == Engine::Uselect {
            tracking::watch().inspect_err(|_| force.give_up())?;
        }
        let (bell, cache) = (Arc::new(Bell::default()), shared.cache.as_ref());
        let disks = Disks::open(&force.config(), cache, &bell, takeover.is_some());
        let disks = disks.inspect_err(|_| force.give_up())?;
        let rings = std::mem::take(&mut engine.rings);
        let of_all = (engine.engine, rings, thresholds.thresholds);
        let started = WorkerPool::start(&force, &shared, of_all, &log, sockets, &bell);
        let (worker_pool, posts) = started.inspect_err(|_| force.give_up())?;
        force.set_posts(posts);
        let (desk, errands) = Errands::new(|| Signal::User2.send_to_self());
        let succession = Succession::new(admin_listeners, systemd);
        let mut running = Self {
            signals,
            engine,
            thresholds,
            hot_bodies,
            force,
            worker_pool,
            shared,
            admin: None,
            errands,
            succession,
            log,
            disks,
            _prefault: prefault,
        };
        // The takeover comes last: once it is done there is nobody else who could serve.
        let begun = health_checks::start(&running.force, &running.shared)
            .and_then(|()| outages::start(&running.shared))
            .and_then(|()| running.start_admin(guard, desk.clone()))
            .and_then(|()| takeover.map_or(Ok(()), |takeover| takeover.finish(desk)));
        begun.inspect_err(|_| running.give_up())?;
        running.own_files();
        running.succession.admin_listeners.serve();
        running.announce();
        Ok(running)
    }

    /// Where it listens, with the ports that the kernel picked.
    pub(crate) fn addresses(&self) -> Vec<ListenAddress> {
        let config = self.force.config();
        config.listeners.iter().map(|listener| listener.address.clone()).collect()
    }

    /// Waits until the process is told to end and has drained. Calls `look` with the workers'
    /// counters each `every`.
    ///
    /// # Errors
    /// [`Failure::Interrupted`] after a second SIGINT; waiting for signals itself may fail.
    pub(crate) fn wait(
        mut self,
        every: Option<Duration>,
        mut look: impl FnMut(&[Arc<Counters>]),
    ) -> Result<(), Failure> {
        let mut interrupts = 0;
        let mut draining = None;
        loop {
            let patience = match draining {
                Some(_) => DRAIN_LOOK,
                None => every.unwrap_or(IDLE_LOOK).min(self.succession.patience()),
            };
            let signal = self.signals.wait(patience).map_err(|error| machine("signals", error))?;
            look(&self.shared.counters);
            self.show_life();
            match signal {
                Some(Signal::HangUp) => {
                    // It has said what came of it.
                    let _ = self.reload(draining.is_some());
                    self.reopen_log();
                }
                Some(Signal::User1) => self.reopen_log(),
                // It only says that there is an errand.
                Some(Signal::User2) | None => {}
                Some(signal) => {
                    interrupts += u32::from(signal == Signal::Interrupt);
                    if interrupts > 1 {
                        self.close_files();
                        return Err(Failure::Interrupted);
                    }
                    self.end_soon();
                }
            }
            while let Some(errand) = self.errands.next() {
                match errand {
                    Errand::Drain => self.end_soon(),
                    Errand::Reload(reply) => _ = reply.send(self.reload(draining.is_some())),
                    Errand::Offer(reply) if draining.is_some() => drop(reply),
                    Errand::Offer(reply) => _ = reply.send(self.offer()),
                    Errand::HandOver(line) => draining = self.hand_over(line),
                    Errand::Rearm => self.force.remind(|| WorkerMessage::RepollListeners),
                }
            }
            if self.succession.ending && draining.is_none() && !self.is_upgrading() {
                draining = Some(self.drain());
            }
            if let Some(deadline) = &mut draining
                && self.has_drained(deadline)
            {
                self.close_files();
                return Ok(());
            }
        }
    }

    fn start_admin(&mut self, guard: Guard, desk: Desk) -> Result<(), Failure> {
        if self.force.config().admin.is_empty() {
            return Ok(());
        }
        let metrics = Metrics::new(&self.shared, self.log.clone(), self.force.counts());
        let (force, log) = (self.force.clone(), self.log.clone());
        let hooks = Hooks {
            desk,
            reopen_log: Box::new(move || force.config().access_log.is_some().then(|| log.reopen())),
            cache: self.shared.cache.clone(),
        };
        let config = config::to_toml(&self.force.config());
        let admin = Arc::new(Admin::new(metrics, config, guard, hooks));
        self.admin = Some(Arc::clone(&admin));
        let follower = Arc::clone(&admin);
        self.force.follow(move |config| follower.set_config(config::to_toml(config)));
        self.succession.admin_listeners.prepare(admin)
    }

    fn announce(&self) {
        let engines::Picked { engine, reason, .. } = &self.engine;
        print::error(&format!("engine {} ({reason})", engine.name()));
        let config = self.force.config();
        if config.splice == Splice::Calibrated {
            print::error(&format!("splice {}", self.thresholds));
        }
        if let Some(hot_bodies) = &self.hot_bodies {
            print::error(&format!("hot bodies {hot_bodies}"));
        }
        if let Some(locked) = self.force.locked() {
            print::error(&locked.line());
        }
        for address in &config.admin {
            print::error(&format!("admin at {address}"));
        }
        for address in self.addresses() {
            print::error(&format!("listening on {address}"));
        }
        self.succession.systemd.ready("serving");
    }

    /// Has the file read again, and tells the service manager so unless the process drains.
    fn reload(&self, is_draining: bool) -> Result<u64, String> {
        if is_draining {
            return self.force.reload(Some("the process is draining"));
        }
        // What was applied now would end with this process, and whoever asked would not know.
        let obstacle =
            self.is_upgrading().then_some("a new process is taking over, with its own file");
        self.succession.systemd.reloading();
        let outcome = self.force.reload(obstacle);
        self.succession.systemd.ready("serving");
        outcome
    }

    /// Tells every worker to take no more. Gives the time by which they should have ended.
    fn drain(&mut self) -> Instant {
        if let Some(admin) = &self.admin {
            admin.set_draining();
        }
        print::error("draining");
        self.succession.end();
        self.force.drain();
        self.drain_deadline()
    }

    fn drain_deadline(&self) -> Instant {
        Instant::now() + Duration::from_millis(self.force.config().limits.drain_ms)
    }

    /// Whether every worker has ended, or none will be waited for any more. Moves the deadline
    /// when it tells the workers to break off.
    fn has_drained(&mut self, deadline: &mut Instant) -> bool {
        self.release_successor();
        if self.worker_pool.has_ended() {
            return true;
        }
        if Instant::now() < *deadline {
            return false;
        }
        if self.force.was_stopped() {
            print::error("some workers did not end");
            return true;
        }
        print::error("the time for draining is over; what is left is cut off");
        self.force.stop();
        *deadline = Instant::now() + BREAK_OFF;
        false
    }

    fn reopen_log(&self) {
        if self.force.config().access_log.is_none() {
            return;
        }
        match self.log.reopen() {
            Ok(()) => print::error("access log reopened"),
            Err(error) => print::error(&format!("access log not reopened: {error}")),
        }
    }

    /// What is to be written still is.
    fn close_files(&self) {
        self.log.close();
        self.disks.close();
    }
}

/// Prepares the process itself. It has one thread so far: a signal goes to any thread that does not
/// block it.
fn prepare_process() -> Result<Signals, Failure> {
    let signals = Signals::block().map_err(|error| machine("signals", error))?;
    restart::end_on_panic();
    if let Err(error) = millrace_sys::raise_descriptor_limit() {
        print::error(&format!("the limit of descriptors stays as it is: {error}"));
    }
    Ok(signals)
}

/// Returns what a request to the admin address has to show.
fn guard(config: &Config) -> Result<Guard, Failure> {
    let token = config.admin_token_file.as_deref();
    Ok(Guard {
        token: token.map(|file| Token::read("admin-token-file", file)).transpose()?,
        name: config.admin_name.clone(),
    })
}

/// What all workers share. The process's name in Via (RFC 9110 section 7.6.3) is random, so that
/// no two proxies take each other's requests for their own.
fn shared(config: &Config, copies: HotCopies) -> Result<Arc<Shared>, Failure> {
    let mut random = [0; 8];
    millrace_sys::fill_random(&mut random);
    let pseudonym = format!("millrace-{:016x}", u64::from_ne_bytes(random));
    let (congestion, cache) = (congestion::system(config), cache::open(config, copies)?);
    Ok(Shared::new(config.workers, pseudonym, congestion, cache, print::error, trace()))
}

/// Where the moves of the driver are reported to: standard error, where MILLRACE_TRACE asks for that
/// and the build has debug assertions.
fn trace() -> Option<fn(std::fmt::Arguments<'_>)> {
    let is_wanted = cfg!(debug_assertions) && std::env::var_os("MILLRACE_TRACE").is_some();
    is_wanted.then_some(|line| print::error(&line.to_string()))
}

fn machine(what: &str, error: impl std::fmt::Display) -> Failure {
    Failure::Machine(format!("cannot start {what}: {error}"))
}

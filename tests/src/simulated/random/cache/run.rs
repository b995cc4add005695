//! One run of a cache scenario: the proxy's workers, the origin and the clients in one world.

use std::cell::Cell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{self as config, Config};
use millrace_engine::{Address, Instant};
use millrace_proxy::{SharedState, WorkerMessage};
use millrace_sim::{Actor, Faults, RunOutcome, SimWorker, World};

use super::super::super::name_server::NameServer;
use super::super::super::reload::WorkerMailboxes;
use super::super::super::tls::{self, ProxyAddress, TlsSettings};
use super::super::super::verifier::SimVerifier;
use super::super::super::{RunningWorker, address_of, cache, pick_ports, run_all, start};
use super::super::findings::{Coverage, Failure};
use super::super::run::Outcome;
use super::CacheScenario;
use super::client::CacheClient;
use super::disk::ActorDisk;
use super::model::CacheModel;
use super::origin::CacheOrigin;

/// Limit of a scenario in virtual time: beyond every deadline, stall and pause.
const TIME: Duration = Duration::from_secs(12 * 3600);
/// Limit from the message to stop until every worker has ended.
const STOP: Duration = Duration::from_secs(600);

pub(super) fn play(scenario: &CacheScenario, world: &World, log_events: bool) -> Outcome {
    if log_events {
        world.enable_event_log();
    }
    let (failure, coverage) = match CacheRun::new(scenario, world) {
        Ok(mut run_state) => {
            let result = run_state.play(world);
            (run_state.actors.model.failure().or(result.err()), run_state.actors.model.coverage())
        }
        Err(details) => (Some(Failure { kind: "configuration", details }), Coverage::new()),
    };
    Outcome::of_world(world, failure, coverage, log_events)
}

/// All actors except the workers.
struct CacheActors {
    clients: Vec<CacheClient>,
    origin: CacheOrigin,
    proxy: ProxyAddress,
    mailboxes: WorkerMailboxes,
    drains_at: Option<Instant>,
    /// When the process is killed, in order.
    kills: VecDeque<Instant>,
    disk: Option<ActorDisk>,
    model: CacheModel,
    over: Rc<Cell<bool>>,
}

impl CacheActors {
    fn tell(&mut self, message: impl Fn() -> WorkerMessage<millrace_sim::SimDetached>) {
        for mailbox in self.mailboxes.borrow_mut().iter_mut() {
            // A worker that has ended reads no messages.
            let _ = mailbox.send(message());
            mailbox.flush();
        }
    }

    /// Returns when the process is killed next. A draining process is not killed.
    fn next_kill(&self) -> Option<Instant> {
        self.kills.front().copied().filter(|_| !self.model.is_drained())
    }

    fn drain(&mut self, world: &World) {
        world.log_event("message to drain");
        self.drains_at = None;
        self.model.drain();
        self.tell(|| WorkerMessage::Drain);
    }
}

impl Actor for CacheActors {
    fn step(&mut self, world: &World) -> Option<Instant> {
        if self.drains_at.is_some_and(|at| at <= world.now()) {
            self.model.cover("operator: drains in the middle");
            self.drain(world);
        }
        let mut next_wake = self.drains_at.into_iter().chain(self.next_kill()).min();
        let mut over = true;
        for client in &mut self.clients {
            next_wake = next_wake.into_iter().chain(client.step(world, &self.proxy)).min();
            over &= client.is_over();
        }
        next_wake = next_wake.into_iter().chain(self.origin.step(world)).min();
        let mailboxes = &self.mailboxes;
        let disk = self.disk.as_mut().and_then(|disk| disk.step(world, mailboxes));
        next_wake = next_wake.into_iter().chain(disk).min();
        self.over.set(over || self.model.failure().is_some());
        next_wake
    }
}

/// A worker of this process or of a killed one.
struct CacheWorker {
    /// `None` once its process was killed.
    running: Option<RunningWorker>,
    ended: Rc<Cell<bool>>,
}

impl SimWorker for CacheWorker {
    fn run_turn(&mut self) -> bool {
        if let Some(running) = self.running.as_mut().filter(|_| !self.ended.get()) {
            self.ended.set(!running.run_turn());
        }
        !self.ended.get()
    }
}

impl CacheWorker {
    fn new(running: RunningWorker) -> Self {
        Self { running: Some(running), ended: Rc::default() }
    }
}

struct CacheRun {
    config: Arc<Config>,
    names: NameServer,
    verifier: SimVerifier,
    /// The workers of all processes so far, in the order of their engines.
    workers: Vec<CacheWorker>,
    shared: Arc<SharedState>,
    /// TLS, if clients or the origin use it.
    tls: Option<Rc<TlsSettings>>,
    actors: CacheActors,
}

impl CacheRun {
    fn new(scenario: &CacheScenario, world: &World) -> Result<Self, String> {
        let model = CacheModel::new(scenario);
        let is_secured = scenario.secured || scenario.origin_tls.is_some();
        let tls = is_secured.then(|| Rc::new(TlsSettings::new(scenario.seed, true)));
        let (origin, address) = CacheOrigin::new(world, &model, tls.clone());
        let mut config = configure(scenario, world, &address)?;
        if let Some(tls) = &tls {
            tls.set_content(&mut config);
        }
        let config = Arc::new(config);
        let (names, verifier) = (NameServer::new(world, &[]), SimVerifier::new(false));
        let servers = (&names, &verifier);
        let (workers, mailboxes, shared) = start(&config, world, servers, 1000, tls.as_deref())?;
        let workers = workers.into_iter().map(CacheWorker::new).collect();
        let client_plans = scenario.clients.iter().enumerate();
        let clients =
            client_plans.map(|(at, plan)| CacheClient::new(world, at, plan, &model)).collect();
        model.cover(format!("world: {:?}", scenario.world));
        let drains_at = scenario.drain_ms.map(|ms| world.now() + Duration::from_millis(ms));
        let for_clients = tls.clone().filter(|_| scenario.secured);
        let address = address_of(&config.listeners[0].address);
        let proxy = ProxyAddress { address, tls: for_clients };
        let over = Rc::default();
        let kills = scenario.kills_ms.iter().map(|ms| world.now() + Duration::from_millis(*ms));
        let kills = kills.collect();
        let mut disk = scenario.disk.map(|plan| ActorDisk::new(plan, scenario.seed, world));
        begin(disk.as_mut(), &shared, world);
        let actors =
            CacheActors { clients, origin, proxy, mailboxes, drains_at, kills, disk, model, over };
        Ok(Self { config, names, verifier, workers, shared, tls, actors })
    }

    fn play(&mut self, world: &World) -> Result<(), Failure> {
        let over = self.actors.over.clone();
        // `run` also returns when every worker has drained. The remaining clients then notice that
        // their connections have ended.
        let mut ended = RunOutcome::Done;
        while ended == RunOutcome::Done && !over.get() {
            let kill = self.actors.next_kill();
            let model = self.actors.model.clone();
            let is_due =
                |world: &World| kill.is_some_and(|at| at <= world.now()) && !model.is_drained();
            ended = self.run(world, TIME, &mut |world| over.get() || is_due(world));
            if ended == RunOutcome::Done && is_due(world) && !over.get() {
                self.actors.kills.pop_front();
                self.kill(world)?;
            }
        }
        if self.actors.model.failure().is_some() {
            return Ok(());
        }
        if !over.get() {
            return Err(self.failure("stuck", format!("{ended:?}")));
        }
        if !self.actors.model.is_drained() {
            self.actors.drain(world);
        }
        self.end(world)?;
        for (index, member) in self.workers.drain(..).enumerate() {
            let Some(RunningWorker(worker)) = member.running else { continue };
            let live = worker.live_objects();
            if live != [0; 4] {
                let details = format!("worker {index} has drained and keeps {live:?}");
                return Err(Failure { kind: "leak", details });
            }
            drop(worker.finish());
        }
        self.actors.disk.iter_mut().for_each(ActorDisk::end);
        let leak = |details| Failure { kind: "leak", details };
        cache::check(&self.shared).map_err(leak)?;
        if let Some(details) = world.plaintext_on_secured() {
            return Err(Failure { kind: "plaintext", details });
        }
        self.actors.clients.iter_mut().for_each(|client| client.close(world));
        self.actors.origin.close(world);
        match &world.leaks()[..] {
            [] => Ok(()),
            leaks => Err(leak(format!("leaked:\n{}", leaks.join("\n")))),
        }
    }

    /// Kills the process and starts another.
    fn kill(&mut self, world: &World) -> Result<(), Failure> {
        world.log_event("the process is killed");
        self.actors.model.cover("operator: kills the process");
        let loses_all = self.actors.disk.as_mut().is_none_or(|disk| disk.kill(world));
        self.actors.model.kill(world, loses_all);
        for member in &mut self.workers {
            member.ended.set(true);
            drop(member.running.take());
        }
        world.kill_engines();
        let servers = (&self.names, &self.verifier);
        let started = start(&self.config, world, servers, 1000, self.tls.as_deref());
        let wrong = |details| Failure { kind: "configuration", details };
        let (workers, mailboxes, shared) = started.map_err(wrong)?;
        self.workers.extend(workers.into_iter().map(CacheWorker::new));
        (self.actors.mailboxes, self.shared) = (mailboxes, shared);
        begin(self.actors.disk.as_mut(), &self.shared, world);
        Ok(())
    }

    /// Does what the supervisor does at SIGTERM, after the message to drain.
    fn end(&mut self, world: &World) -> Result<(), Failure> {
        let flags: Vec<_> = self.workers.iter().map(|member| member.ended.clone()).collect();
        let have_ended = &mut |_: &World| flags.iter().all(|ended| ended.get());
        let drain = Duration::from_millis(self.config.limits.drain_ms);
        self.run(world, drain, have_ended);
        if have_ended(world) {
            return Ok(());
        }
        if self.actors.model.scenario().world != Faults::Hostile {
            return Err(self.failure("undrained", "the workers do not drain".to_owned()));
        }
        world.log_event("message to stop");
        self.actors.tell(|| WorkerMessage::Stop);
        self.run(world, STOP, have_ended);
        match have_ended(world) {
            true => Ok(()),
            false => Err(self.failure("undrained", "the workers do not stop".to_owned())),
        }
    }

    fn run(
        &mut self,
        world: &World,
        time: Duration,
        done: &mut dyn FnMut(&World) -> bool,
    ) -> RunOutcome {
        let have_ended = self.workers.iter().all(|member| member.ended.get());
        let left = if have_ended { 0 } else { self.workers.len() };
        run_all(world, &mut self.workers[..left], &mut [&mut self.actors], time, done)
    }

    fn failure(&self, kind: &'static str, details: String) -> Failure {
        let clients: Vec<String> = self.actors.clients.iter().map(CacheClient::state).collect();
        Failure { kind, details: format!("{details}\n{}", clients.join("\n")) }
    }
}

/// Attaches the disk to a process, if it has one.
fn begin(disk: Option<&mut ActorDisk>, shared: &SharedState, world: &World) {
    if let (Some(disk), Some(cache)) = (disk, &shared.cache) {
        disk.begin(cache, world);
    }
}

/// Returns the proxy's configuration as parsed by the program's own parser, with the selected port.
fn configure(scenario: &CacheScenario, world: &World, origin: &Address) -> Result<Config, String> {
    let scheme = if scenario.origin_tls.is_some() { "https" } else { "http" };
    let mut details =
        vec!["boost".to_owned(), "--origin".to_owned(), format!("{scheme}://{origin}")];
    let listen = if scenario.secured { "tls://127.0.0.1:0" } else { "127.0.0.1:0" };
    details.extend(["--listen", listen, "--workers"].map(str::to_owned));
    details.push(scenario.workers.to_string());
    details.extend(scenario.options.iter().cloned());
    if scenario.secured {
        details.extend(tls::OPTIONS.map(str::to_owned));
    }
    if scenario.origin_tls.is_some() {
        details.extend(tls::ORIGIN_OPTIONS.map(str::to_owned));
    }
    let mut config = config::from_arguments(details).map_err(|wrong| wrong.to_string())?;
    pick_ports(&mut config, world);
    Ok(config)
}

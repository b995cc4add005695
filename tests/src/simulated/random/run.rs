//! One run of a random scenario: the proxy's workers and all actors in one world, and the checks
//! after each turn.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{self as config, Config};
use millrace_engine::{Buffer, Instant};
use millrace_proxy::{SharedState, Worker, WorkerMessage};
use millrace_sim::{Actor, Faults, RunOutcome, SimEngine, SimWorker, World};

use super::super::file_threads::SimFileThreads;
use super::super::folders::{SimFolders, path_of};
use super::super::reload::WorkerMailboxes;
use super::super::tls::{self, ProxyAddress, TlsSettings};
use super::super::verifier::SimVerifier;
use super::super::{RunningWorker, address_of, cache, pick_ports, run_all, start};
use super::client::RandomClient;
use super::coverage;
use super::files::change::{FOLDER_NAME, FolderChanger};
use super::files::history::FolderHistory;
use super::findings::{Coverage, Failure};
use super::model::{ExchangeModel, Moment, WaitLimits};
use super::names::{PlannedNameServer, name_of};
use super::origin::RandomOrigin;
use super::plan::{DisabledFault, NameBehaviour, OperatorEvent, RandomScenario, ServedFolder};

/// The outcome of a scenario.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The failure, if there is one.
    pub failure: Option<Failure>,
    /// The hash of all events.
    pub hash: u64,
    /// How often each class of behaviour occurred.
    pub coverage: Coverage,
    /// The events in readable form, if they were logged.
    pub event_log: String,
    /// The last lines of the simulated kernel's trace.
    pub trace: String,
}

impl Outcome {
    /// Returns the outcome of a run whose world has ended; the trace is empty unless events were
    /// logged.
    pub(super) fn of_world(
        world: &World,
        failure: Option<Failure>,
        coverage: Coverage,
        log_events: bool,
    ) -> Self {
        let trace = if log_events { world.trace() } else { String::new() };
        let (hash, event_log) = (world.trace_hash(), world.event_log());
        Self { failure, hash, coverage, event_log, trace }
    }
}

/// Limit of a scenario in virtual time: beyond every deadline, stall and pause.
const TIME: Duration = Duration::from_secs(24 * 3600);
/// Limit of the time from the message to stop to the end of every worker, without jitter.
const STOP: Duration = Duration::from_secs(10);

/// Plays a scenario in the world of its seed; `log_events` enables the event log.
///
/// # Panics
/// Panics if the proxy violates the contract of its engine, or one of its own assertions.
pub(super) fn play(scenario: &RandomScenario, world: &World, log_events: bool) -> Outcome {
    if log_events {
        world.enable_event_log();
    }
    disable_faults(scenario, world);
    world.record_engine_output();
    let (failure, coverage) = match RandomRun::new(scenario, world) {
        Ok(mut run_state) => {
            let result = run_state.play(world);
            world
                .trouble_counts()
                .iter()
                .for_each(|(what, _)| run_state.model.cover(format!("trouble: {what}")));
            (run_state.model.failure().or(result.err()), run_state.model.coverage())
        }
        Err(details) => (Some(Failure { kind: "configuration", details }), Coverage::new()),
    };
    Outcome::of_world(world, failure, coverage, log_events)
}

/// Disables faults of the world.
fn disable_faults(scenario: &RandomScenario, world: &World) {
    let mut plan = world.plan();
    for fault in &scenario.disabled_faults {
        match fault {
            DisabledFault::Resets => plan.streams.reset = 0,
            DisabledFault::Connects => plan.connect_fault = 0,
            DisabledFault::Descriptors => plan.shortages.descriptors = 0,
            DisabledFault::Stalls => {
                (plan.streams.stall, plan.streams.loss, plan.datagram_loss) = (0, 0, 0)
            }
            DisabledFault::ShortTransfers => (plan.short, plan.wait) = (0, 0),
            DisabledFault::Sizes => {
                (plan.streams.segment, plan.streams.send_capacity) = (65_536, 256 * 1024);
                plan.streams.receive_capacity = 256 * 1024;
            }
            DisabledFault::Pipes => (plan.shortages.pipes, plan.pipe_capacity) = (0, 262_144),
            DisabledFault::Clocks => (plan.clock_jumps, plan.slow_turns, plan.wake_ns) = (0, 0, 0),
            DisabledFault::Memory => (plan.shortages.memory, plan.shortages.lasting_ms) = (0, 0),
            DisabledFault::Vanishing => plan.vanish = 0,
            DisabledFault::Strays => (plan.stale, plan.spurious) = (0, 0),
            DisabledFault::Accepts => (plan.syn_loss, plan.skew, plan.burst_ns) = (0, 0, 0),
            DisabledFault::Mailboxes => plan.mailbox_capacity = 256,
            DisabledFault::Names => plan.name_faults = 0,
            DisabledFault::Delays => {
                (plan.streams.delay_ns, plan.jitter_ns, plan.batch_max) = (20_000, 0, 1000);
            }
        }
    }
    world.set_plan(plan);
}

/// A worker that is checked after each of its turns.
struct CheckedWorker {
    index: usize,
    running: Option<RunningWorker>,
    model: ExchangeModel,
    world: World,
    ended: Rc<Cell<bool>>,
}

impl SimWorker for CheckedWorker {
    fn run_turn(&mut self) -> bool {
        let Some(running) = &mut self.running else { return false };
        let continues = running.run_turn();
        let live = running.0.live_objects();
        let (used, max) = self.world.budget(self.index);
        // The last receive within the budget may have exceeded it by a whole buffer.
        let bound = max + Buffer::SIZE;
        if used >= max {
            self.model.cover("proxy: holds all the bytes that it may");
        }
        if used > bound {
            let details = format!("worker {} holds {used} bytes of {max}", self.index);
            self.model.fail(&self.world, "memory", details);
        }
        if !continues {
            if live != [0; 4] {
                let details = format!("worker {} has drained and keeps {live:?}", self.index);
                self.model.fail(&self.world, "leak", details);
            }
            drop(
                self.running
                    .take()
                    .map(|RunningWorker(worker)| Worker::<SimEngine>::finish(worker)),
            );
            self.ended.set(true);
        }
        continues
    }
}

/// All actors except the workers.
struct RandomActors {
    clients: Vec<RandomClient>,
    origins: Vec<RandomOrigin>,
    names: PlannedNameServer,
    files: Option<ServedFiles>,
    operator: Operator,
    proxy: ProxyAddress,
    model: ExchangeModel,
    over: Rc<Cell<bool>>,
}

/// The folder of a run, and the threads that read it.
struct ServedFiles {
    changer: FolderChanger,
    threads: SimFileThreads,
}

/// The operator, who reloads, drains and stops the workers.
struct Operator {
    /// The mailbox of each worker.
    mailboxes: WorkerMailboxes,
    /// Whether each worker has ended.
    ended: Vec<Rc<Cell<bool>>>,
    /// The remaining reloads with their times, the next one last.
    reloads: Vec<(Instant, Arc<Config>)>,
    /// When to drain.
    drain_at: Option<Instant>,
    /// When to stop the work that remains after a drain.
    stop_at: Option<Instant>,
    /// When the workers received the message to stop.
    stopped: Option<Moment>,
    /// How long the workers may take to end after the message to stop.
    patience: Duration,
    drain: Duration,
    model: ExchangeModel,
}

impl Operator {
    fn send_to_workers(&mut self, message: impl Fn() -> WorkerMessage<millrace_sim::SimDetached>) {
        for (mailbox, ended) in self.mailboxes.borrow_mut().iter_mut().zip(&self.ended) {
            if !ended.get() {
                assert!(mailbox.send(message()).is_ok(), "a worker reads its messages");
                mailbox.flush();
            }
        }
    }

    fn drain(&mut self, world: &World) {
        world.log_event("message to drain");
        (self.drain_at, self.stop_at) = (None, Some(world.now() + self.drain));
        self.model.drain();
        self.send_to_workers(|| WorkerMessage::Drain);
    }

    fn step(&mut self, world: &World) -> Option<Instant> {
        if self.reloads.last().is_some_and(|(at, _)| *at <= world.now())
            && let Some((_, config)) = self.reloads.pop()
        {
            world.log_event("message with another configuration");
            self.model.cover("operator: reloads");
            self.send_to_workers(|| WorkerMessage::Configure {
                config: config.clone(),
                sockets: Vec::new(),
            });
        }
        if self.drain_at.is_some_and(|at| at <= world.now()) {
            self.model.cover("operator: drains in the middle");
            self.drain(world);
        }
        if self.stop_at.is_some_and(|at| at <= world.now()) {
            world.log_event("message to stop");
            (self.stop_at, self.stopped) = (None, Some(Moment::now(world)));
            self.model.cover("operator: stops the remaining work");
            self.send_to_workers(|| WorkerMessage::Stop);
        }
        let reload = self.reloads.last().map(|(at, _)| *at);
        let check_again = self.check_stopped(world);
        reload.into_iter().chain(self.drain_at).chain(self.stop_at).chain(check_again).min()
    }

    /// Checks that stopped workers end soon, whatever their clients do. Returns when to check
    /// again.
    fn check_stopped(&mut self, world: &World) -> Option<Instant> {
        let until = self.stopped?.until(world, self.patience);
        if self.ended.iter().all(|ended| ended.get()) {
            self.stopped = None;
        } else if until <= world.now() {
            self.stopped = None;
            self.model.fail(world, "undrained", "the workers do not stop".to_owned());
        }
        self.stopped.map(|_| until)
    }
}

impl Actor for RandomActors {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut next_wake = self.operator.step(world);
        let changed_sockets = world.take_changed_sockets();
        let mut over = true;
        for client in &mut self.clients {
            next_wake = next_wake
                .into_iter()
                .chain(client.step(world, &self.proxy, &changed_sockets))
                .min();
            over &= client.is_over();
        }
        for origin in &mut self.origins {
            next_wake = next_wake.into_iter().chain(origin.step(world, &changed_sockets)).min();
        }
        next_wake = next_wake.into_iter().chain(self.names.step(world)).min();
        if let Some(files) = &mut self.files {
            next_wake = next_wake.into_iter().chain(files.changer.step(world)).min();
            next_wake = next_wake.into_iter().chain(files.threads.step(world)).min();
        }
        self.over.set(over || self.model.failure().is_some());
        next_wake
    }
}

struct RandomRun {
    workers: Vec<CheckedWorker>,
    shared: Arc<SharedState>,
    actors: RandomActors,
    model: ExchangeModel,
    drains_in_time: bool,
}

impl RandomRun {
    fn new(scenario: &RandomScenario, world: &World) -> Result<Self, String> {
        let scenario = Rc::new(scenario.clone());
        let plan = world.plan();
        let jitter = Duration::from_nanos(plan.jitter_ns + plan.streams.delay_ns + plan.wake_ns);
        let limits = millrace_config::limits::Limits::default();
        let model =
            ExchangeModel::new(scenario.clone(), WaitLimits::new(&limits, &scenario, &plan));
        let [tls, for_clients, for_origins] = tls_settings(&scenario);
        let origins = scenario.origins.iter().enumerate();
        let origins: Vec<(RandomOrigin, u16)> = origins
            .map(|(at, origin)| RandomOrigin::new(origin, at, &model, world, &for_origins))
            .collect();
        let ports: Vec<u16> = origins.iter().map(|(_, port)| *port).collect();
        let authorities = authorities(&scenario, &ports);
        let changer = changer(&scenario, world, &model, jitter);
        let folders = changer.as_ref().map(FolderChanger::folders);
        let contents = (tls.as_deref(), folders.as_deref());
        let config = Arc::new(configure(&scenario, world, &authorities, contents)?);
        let reloads = reloads(&scenario, world, &authorities, &config, contents)?;
        let waits = |config: &Config| WaitLimits::new(&config.limits, &scenario, &plan);
        let all = reloads.iter().fold(waits(&config), |all, (_, config)| all.or(waits(config)));
        model.set_waits(all);
        let names = PlannedNameServer::new(world, &scenario.origins, &model);
        let (real, assumed) = scenario.proxy.descriptors.unwrap_or((usize::MAX, 1000));
        world.set_descriptors_max(real);
        // Random scenarios have no passwords, so the verifier gets no requests.
        let servers = (names.server(), &SimVerifier::new(false));
        let (workers, mailboxes, shared) = start(&config, world, servers, assumed, tls.as_deref())?;
        let hostile = scenario.world == Faults::Hostile;
        let served = |(changer, folders): (_, Rc<_>)| {
            let threads = SimFileThreads::new(&folders, &shared, &mailboxes, world, hostile);
            ServedFiles { changer, threads }
        };
        let files = changer.zip(folders).map(served);
        let ended: Vec<Rc<Cell<bool>>> = workers.iter().map(|_| Rc::default()).collect();
        let workers = checked_workers(workers, &ended, &model, world);
        let clients = scenario.connections.iter().enumerate();
        let client = |(at, plan)| RandomClient::new(plan, at, &authorities, &model, world);
        let operator = Operator {
            mailboxes,
            ended,
            reloads,
            drain_at: drain_at(&scenario, world),
            stop_at: None,
            stopped: None,
            patience: STOP + jitter * 100,
            drain: Duration::from_millis(config.limits.drain_ms),
            model: model.clone(),
        };
        coverage::cover_scenario(&model, &scenario);
        Ok(Self {
            workers,
            shared,
            actors: RandomActors {
                clients: clients.map(client).collect(),
                origins: origins.into_iter().map(|(actor, _)| actor).collect(),
                names,
                files,
                operator,
                proxy: ProxyAddress {
                    address: address_of(&config.listeners[0].address),
                    tls: for_clients,
                },
                model: model.clone(),
                over: Rc::new(Cell::new(false)),
            },
            model,
            drains_in_time: scenario.drains_in_time(),
        })
    }

    fn play(&mut self, world: &World) -> Result<(), Failure> {
        let over = self.actors.over.clone();
        // `run` also returns when every worker has drained. The remaining clients then notice that
        // their connections have ended.
        let mut ended = RunOutcome::Done;
        while ended == RunOutcome::Done && !over.get() {
            ended = self.run(world, TIME, &mut |_| over.get());
        }
        if self.model.failure().is_some() {
            return Ok(());
        }
        if ended != RunOutcome::Done {
            return Err(self.failure("stuck", format!("{ended:?}")));
        }
        self.end(world)?;
        if self.model.failure().is_none() {
            cache::check(&self.shared).map_err(|details| self.failure("leak", details))?;
        }
        if let Some(details) = world.plaintext_on_secured() {
            return Err(self.failure("plaintext", details));
        }
        self.model.check_sent(world, &world.engine_output());
        for client in &mut self.actors.clients {
            client.close(world);
        }
        for origin in &mut self.actors.origins {
            origin.close(world);
        }
        match &world.leaks()[..] {
            [] => Ok(()),
            leaks => Err(self.failure("leak", format!("leaked:\n{}", leaks.join("\n")))),
        }
    }

    /// Does what the supervisor does at SIGTERM, after the clients have ended.
    fn end(&mut self, world: &World) -> Result<(), Failure> {
        let drain = self.actors.operator.drain;
        if self.has_ended() {
            return Ok(());
        }
        if !self.model.is_drained() {
            self.actors.operator.drain(world);
        }
        let flags: Vec<_> = self.workers.iter().map(|worker| worker.ended.clone()).collect();
        let ended = &mut |_: &World| flags.iter().all(|ended| ended.get());
        self.run(world, drain, ended);
        if !self.has_ended() && self.drains_in_time {
            return Err(self.failure("undrained", "the workers do not drain".to_owned()));
        }
        // The operator checks the time that this takes.
        let model = self.model.clone();
        self.run(world, TIME, &mut |world| ended(world) || model.failure().is_some());
        match self.has_ended() || self.model.failure().is_some() {
            true => Ok(()),
            false => Err(self.failure("undrained", "the workers do not end".to_owned())),
        }
    }

    fn has_ended(&self) -> bool {
        self.workers.iter().all(|worker| worker.running.is_none())
    }

    fn run(
        &mut self,
        world: &World,
        time: Duration,
        done: &mut dyn FnMut(&World) -> bool,
    ) -> RunOutcome {
        let left = if self.has_ended() { 0 } else { self.workers.len() };
        run_all(world, &mut self.workers[..left], &mut [&mut self.actors], time, done)
    }

    fn failure(&self, kind: &'static str, details: String) -> Failure {
        let clients: Vec<String> = self.actors.clients.iter().map(RandomClient::state).collect();
        Failure { kind, details: format!("{details}\n{}", clients.join("\n")) }
    }
}

/// Returns when the operator first drains the workers.
fn drain_at(scenario: &RandomScenario, world: &World) -> Option<Instant> {
    let times = scenario.events.iter().filter_map(|event| match event {
        OperatorEvent::Drain(ms) => Some(world.now() + Duration::from_millis(*ms)),
        OperatorEvent::Reload(..) => None,
    });
    times.min()
}

/// Creates the folder of a scenario, if it has one. The model gets its versions.
fn changer(
    scenario: &RandomScenario,
    world: &World,
    model: &ExchangeModel,
    jitter: Duration,
) -> Option<FolderChanger> {
    let folder = scenario.folder.as_ref()?;
    let slack = match scenario.world {
        // A clock may jump, and a disk may take minutes.
        Faults::Hostile => TIME,
        // The threads do one job after the other.
        Faults::None | Faults::Benign => Duration::from_millis(300) + jitter * 40,
    };
    let stale = Duration::from_secs(folder.check_s) + slack;
    let history = FolderHistory::new(folder, world.now(), stale);
    model.set_history(history.clone());
    Some(FolderChanger::new(folder, &history, world))
}

/// Returns the authorities of the origins in the proxy's configuration, for these ports.
fn authorities(scenario: &RandomScenario, ports: &[u16]) -> Vec<String> {
    let origins = scenario.origins.iter().zip(ports).enumerate();
    let authorities = origins.map(|(at, (origin, port))| match origin.naming {
        NameBehaviour::Address => format!("127.0.0.1:{port}"),
        _ => format!("{}:{port}", name_of(at)),
    });
    authorities.collect()
}

/// Returns the workers, each with its flag from `ended`.
fn checked_workers(
    workers: Vec<RunningWorker>,
    ended: &[Rc<Cell<bool>>],
    model: &ExchangeModel,
    world: &World,
) -> Vec<CheckedWorker> {
    let workers = workers.into_iter().zip(ended).enumerate();
    let checked_workers = workers.map(|(index, (running, ended))| CheckedWorker {
        index,
        running: Some(running),
        model: model.clone(),
        world: world.clone(),
        ended: ended.clone(),
    });
    checked_workers.collect()
}

/// Returns the TLS settings of a scenario that uses TLS, and the same for its clients and its
/// origins, as far as they use it.
fn tls_settings(scenario: &RandomScenario) -> [Option<Rc<TlsSettings>>; 3] {
    let proxy = &scenario.proxy;
    let settings = || Rc::new(TlsSettings::new(scenario.seed, proxy.accepts_unknown_names));
    let tls = (proxy.secured || proxy.secures_origins).then(settings);
    let for_clients = tls.clone().filter(|_| proxy.secured);
    let for_origins = tls.clone().filter(|_| proxy.secures_origins);
    [tls, for_clients, for_origins]
}

/// Returns the proxy's configuration as parsed by the program's own parser, with the selected port.
fn configure(
    scenario: &RandomScenario,
    world: &World,
    authorities: &[String],
    (tls, folders): (Option<&TlsSettings>, Option<&SimFolders>),
) -> Result<Config, String> {
    let mut config = config::from_arguments(command(scenario, authorities))
        .map_err(|wrong| wrong.to_string())?;
    pick_ports(&mut config, world);
    if let Some(tls) = tls {
        tls.set_content(&mut config);
    }
    folders.into_iter().for_each(|folders| folders.set_content(&mut config));
    if let Some(bytes) = bytes_per_worker(scenario) {
        config.memory_bytes = bytes * scenario.proxy.workers as u64;
    }
    Ok(config)
}

/// Returns the budget of each worker if memory is short. The program accepts no less than a
/// megabyte, and no scenario uses a fifth of that. So a megabyte on the command line becomes 16
/// KiB.
pub(super) fn bytes_per_worker(scenario: &RandomScenario) -> Option<u64> {
    scenario.proxy.memory_mb.map(|megabytes| megabytes * 16 * 1024)
}

/// Returns the configurations of all reloads with their times, the last one first. Changes that
/// need a restart are refused as in the real program.
fn reloads(
    scenario: &RandomScenario,
    world: &World,
    authorities: &[String],
    first: &Config,
    (tls, folders): (Option<&TlsSettings>, Option<&SimFolders>),
) -> Result<Vec<(Instant, Arc<Config>)>, String> {
    let mut reloads = Vec::new();
    for event in &scenario.events {
        let OperatorEvent::Reload(ms, limits) = event else { continue };
        let mut other = scenario.clone();
        other.proxy.limits = limits.clone();
        let details = command(&other, authorities);
        let mut read = config::from_arguments(details).map_err(|wrong| wrong.to_string())?;
        if let Some(tls) = tls {
            tls.set_content(&mut read);
        }
        folders.into_iter().for_each(|folders| folders.set_content(&mut read));
        let listeners = first.listeners.clone();
        let config = Config { listeners, memory_bytes: first.memory_bytes, ..read };
        if config::check_reload("scenario", first, &config).is_ok() {
            reloads.push((world.now() + Duration::from_millis(*ms), config));
        }
    }
    reloads.sort_by_key(|(at, _)| *at);
    let numbered = reloads.into_iter().zip(first.number + 1..);
    let numbered =
        numbered.map(|((at, config), number)| (at, Arc::new(Config { number, ..config })));
    let mut reloads: Vec<_> = numbered.collect();
    reloads.reverse();
    Ok(reloads)
}

/// Returns the arguments for a folder.
fn serve_words(folder: &ServedFolder) -> Vec<String> {
    let words = [
        "serve",
        &path_of(FOLDER_NAME),
        "--file-check",
        &format!("{}s", folder.check_s),
        "--limit",
        &format!("file_memory_bytes={}", folder.memory_bytes),
    ];
    words.map(str::to_owned).to_vec()
}

/// Returns the program's arguments.
pub(super) fn command(scenario: &RandomScenario, authorities: &[String]) -> Vec<String> {
    let proxy = &scenario.proxy;
    let mut details = match (&scenario.folder, proxy.forward) {
        (Some(folder), _) => serve_words(folder),
        (None, true) => vec!["forward".to_owned()],
        (None, false) => vec!["boost".to_owned()],
    };
    if proxy.fastcgi {
        authorities.iter().for_each(|it| details.extend(["--fastcgi".to_owned(), it.clone()]));
        let buffer = proxy.upload_buffer.iter();
        buffer.for_each(|it| details.extend(["--upload-buffer".to_owned(), it.to_string()]));
    } else if !proxy.forward {
        let scheme = if proxy.secures_origins { "https" } else { "http" };
        let origins: Vec<String> =
            authorities.iter().map(|it| format!("{scheme}://{it}")).collect();
        details.extend(["--origin".to_owned(), origins.join(",")]);
        if let Some((depth, connections)) = proxy.pipelining {
            details.extend(["--origin-pipelining".to_owned(), depth.to_string()]);
            let limits = [("origin_connections", connections), ("queue_ms", 3_600_000)];
            for (name, value) in limits {
                details.extend(["--limit".to_owned(), format!("{name}={value}")]);
            }
        }
    }
    let listen = match (proxy.unix, proxy.secured) {
        (true, _) => "unix:/sim/proxy",
        (false, true) => "tls://127.0.0.1:0",
        (false, false) => "127.0.0.1:0",
    };
    if proxy.secured {
        details.extend(tls::OPTIONS.map(str::to_owned));
        let unknown = if proxy.accepts_unknown_names { "first" } else { "refuse" };
        details.extend(["--unknown-name".to_owned(), unknown.to_owned()]);
    }
    if proxy.secures_origins {
        details.extend(tls::ORIGIN_OPTIONS.map(str::to_owned));
    }
    details.extend(["--listen", listen, "--workers"].map(str::to_owned));
    details.push(proxy.workers.to_string());
    if let Some(memory) = proxy.memory_mb {
        details.extend(["--memory".to_owned(), format!("{}M", memory * proxy.workers as u64)]);
    }
    for (name, value) in &proxy.limits {
        details.extend(["--limit".to_owned(), format!("{name}={value}")]);
    }
    details
}

#[cfg(test)]
mod tests {
    use millrace_config::limits::Limits;
    use millrace_sim::{Faults, run};

    use super::super::plain::plain_scenario;
    use super::super::plan::Ending;
    use super::*;

    impl Actor for Operator {
        fn step(&mut self, world: &World) -> Option<Instant> {
            Operator::step(self, world)
        }
    }

    /// Drains a worker, which has ended or never ends, and stops it a second later. Returns the
    /// failure that the operator reports.
    fn check_again(has_ended: bool) -> Option<&'static str> {
        let world = World::new(1, Faults::None);
        let scenario = Rc::new(plain_scenario(Vec::new(), Ending::Closes));
        let waits = WaitLimits::new(&Limits::default(), &scenario, &world.plan());
        let model = ExchangeModel::new(scenario, waits);
        let mut operator = Operator {
            mailboxes: WorkerMailboxes::default(),
            ended: vec![Rc::new(Cell::new(has_ended))],
            reloads: Vec::new(),
            drain_at: Some(world.now()),
            stop_at: None,
            stopped: None,
            patience: STOP,
            drain: Duration::from_secs(1),
            model: model.clone(),
        };
        let hour = Duration::from_secs(3600);
        run(&world, &mut [], &mut [&mut operator], hour, &mut |_| false);
        model.failure().map(|failure| failure.kind)
    }

    #[test]
    fn a_worker_that_does_not_stop_is_reported() {
        assert_eq!(check_again(true), None);
        assert_eq!(check_again(false), Some("undrained"));
    }
}

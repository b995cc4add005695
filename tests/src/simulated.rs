//! Plays a scenario in the simulator: the proxy's own workers over the simulated engine, in a world
//! that a seed determines.
//!
//! In a working world every expectation holds exactly. In a hostile world, weaker rules hold:
//!
//! * A client gets its own bytes, or a part of them and a broken connection, or a response of the
//!   proxy's own. In a world that replaces files, it may get another file, but no mixture of two.
//! * A request reaches an origin only if a client sent it, and twice only if it may be repeated.
//! * Every wait ends, and nothing leaks.

mod actors;
mod cache;
mod file_threads;
mod folders;
mod name_server;
mod origin;
mod random;
mod reload;
mod script_actor;
mod tickets;
mod tls;
mod tls_stream;
mod transport;
mod verifier;
mod wake_list;

use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{self as config, Config, ListenAddress};
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, mailbox, mailbox_mesh};
use millrace_proxy::{Setup, SharedState, Worker, WorkerMessage};
use millrace_sim::{
    Actor, Faults, RunOutcome, SeededRandom, SimDetached, SimEngine, SimWorker, World, WorldPlan,
    run,
};
use millrace_splice::Thresholds;

pub use random::{
    CacheScenario, Coverage, Failure, Outcome, RandomScenario, SearchResult, plain_request,
    plain_scenario, plan, play_cache, play_cache_in, play_random, play_random_in,
    random_cache_scenario, random_scenario, report, required_classes, search, shrink,
};

use crate::scenario::{
    Listen, Origin, OriginKind, Placeholders, RequestScripts, Scenario, ScriptSignals, Tolerance,
};
use actors::ScenarioActors;
use file_threads::SimFileThreads;
use folders::SimFolders;
use name_server::NameServer;
use origin::ScriptedOrigin;
use reload::{Reloader, WorkerMailboxes, address_of};
use tls::TlsSettings;
use verifier::SimVerifier;

pub use tickets::ForeignTicket;
pub use tls_stream::{TlsFault, TlsPlan};
pub use verifier::users_file;

/// Limit of a scenario in virtual time, in a working world.
const TIME: Duration = Duration::from_secs(600);
/// Limit of a scenario in virtual time, in a hostile world: beyond every deadline and stall.
const TIME_HOSTILE: Duration = Duration::from_secs(4 * 3600);
/// Messages of the supervisor that a mailbox holds.
const MAILBOX_CAPACITY: usize = 256;
/// The most bytes that a connection may hold without a charge to the budget: the bound of a
/// session's own bytes, and a flight of its handshake.
const UNCHARGED_MAX: usize = 8 * 1024 + 4 * 1024;
/// The smallest send buffer of the kernel in scenarios over TLS, where no write is short either.
/// The announced end of an idle connection that closes at once fits into a real one.
const SEND_CAPACITY_TLS_MIN: usize = 256;
/// How late workers with small mailboxes may read their messages.
const MAILBOX_DELAY_NS: u64 = 50_000_000;

/// Plays `scenario` in the world of `seed`. Returns the hash of all events.
///
/// # Errors
/// Returns the expectation that did not hold, with the trace.
///
/// # Panics
/// Panics if the proxy violates the contract of its engine, or one of its own assertions.
pub fn play(scenario: &Scenario, seed: u64, faults: Faults) -> Result<u64, String> {
    play_in(&World::new(seed, faults), scenario, seed, faults)
}

/// Like [`play`], in a new world of the caller's, whose trace the caller can read afterwards.
///
/// # Errors
/// Returns the same errors as [`play`].
///
/// # Panics
/// Panics as [`play`] does.
pub fn play_in(
    world: &World,
    scenario: &Scenario,
    seed: u64,
    faults: Faults,
) -> Result<u64, String> {
    let mut run = ScenarioRun::new(scenario, world, seed, faults)?;
    let result = run.play(world, scenario);
    match result {
        Ok(()) => Ok(world.trace_hash()),
        Err(why) => Err(format!(
            "{} with SEED={seed} {faults:?}:\n{}\n{why}\n{}",
            scenario.name,
            world.trace(),
            run.actors.state()
        )),
    }
}

/// A worker of the proxy, as the simulator runs it.
pub(crate) struct RunningWorker(pub(crate) Worker<SimEngine>);

impl SimWorker for RunningWorker {
    fn run_turn(&mut self) -> bool {
        let continues = self.0.run_turn();
        let uncharged = self.0.uncharged_bytes_max();
        assert!(uncharged <= UNCHARGED_MAX, "a connection holds {uncharged} uncharged bytes");
        continues
    }
}

/// Runs all of these workers: see [`run`].
fn run_all(
    world: &World,
    workers: &mut [impl SimWorker],
    actors: &mut [&mut dyn Actor],
    time: Duration,
    done: &mut dyn FnMut(&World) -> bool,
) -> RunOutcome {
    let turns = workers.iter_mut().map(|worker| worker as &mut dyn SimWorker);
    run(world, &mut turns.collect::<Vec<_>>(), actors, time, done)
}

/// The state of one run.
struct ScenarioRun {
    workers: Vec<RunningWorker>,
    mailboxes: WorkerMailboxes,
    shared: Arc<SharedState>,
    actors: ScenarioActors,
    name_server: NameServer,
    verifier: SimVerifier,
    file_threads: SimFileThreads,
    /// The requests that reached origins in a hostile world.
    requests_seen: Rc<RequestScripts>,
    hostile: bool,
}

impl ScenarioRun {
    fn new(scenario: &Scenario, world: &World, seed: u64, faults: Faults) -> Result<Self, String> {
        let hostile = faults == Faults::Hostile;
        if hostile {
            world.record_engine_output();
        }
        let tls = DrawnTls::draw(scenario, seed);
        plan_world(world, scenario, &tls);
        let (mut names, signals) = (Placeholders::default(), ScriptSignals::default());
        names.set("users", &users_file());
        let listeners: Vec<_> =
            scenario.origins.iter().map(|origin| listen(world, origin, &mut names)).collect();
        for socket in &scenario.sockets {
            names.set(socket, &format!("/sim/{socket}"));
        }
        let folders = Rc::new(SimFolders::new(scenario, world, seed, faults, &mut names));
        let workers = (1 + world.random() % 2).to_string();
        let contents = (&tls, &*folders);
        let (parsed, config) = configure(scenario, world, &mut names, &workers, contents)?;
        let config = Arc::new(config);
        let scripts = scenario.origins.iter().flat_map(Origin::all).cloned().collect();
        let requests_seen = Rc::new(RequestScripts::new(scripts, &names));
        let common = hostile.then_some(&requests_seen);
        let origins = scenario.origins.iter().zip(listeners);
        let origins = origins
            .map(|(origin, listener)| {
                let tls = tls.settings.clone().filter(|_| tls.for_origins);
                ScriptedOrigin::new(origin, listener, &names, &signals, common, tls)
            })
            .collect();
        let proxy = address_of(&config.listeners[0].address);
        let name_server = NameServer::new(world, &scenario.names);
        let (descriptors, assumed) = scenario.descriptors.unwrap_or((usize::MAX, 1000));
        world.set_descriptors_max(descriptors);
        let verifier = SimVerifier::new(hostile);
        let servers = (&name_server, &verifier);
        let (workers_running, mailboxes, shared) =
            start(&config, world, servers, assumed, tls.settings.as_deref())?;
        let commands = scenario.reloads.iter();
        let commands = commands.map(|(name, command)| {
            (name.clone(), arguments(command, scenario, &names, &workers, &tls))
        });
        let both = (parsed, &config);
        let process = (&mailboxes, &shared);
        let reloader = Reloader::new(commands.collect(), &signals, process, both, &folders);
        let file_threads = SimFileThreads::new(&folders, &shared, &mailboxes, world, hostile);
        let actors = ScenarioActors {
            reloader,
            clients: scenario.clients.iter().map(|client| (client.clone(), None)).collect(),
            origins,
            proxy,
            tls: tls.settings,
            secures_clients: tls.for_clients,
            names,
            signals,
            tolerance: if hostile { folders.tolerance() } else { Tolerance::Exact },
            failures: Vec::new(),
            over: Rc::new(Cell::new(false)),
        };
        Ok(Self {
            workers: workers_running,
            mailboxes,
            shared,
            actors,
            name_server,
            verifier,
            file_threads,
            requests_seen,
            hostile,
        })
    }

    fn play(&mut self, world: &World, scenario: &Scenario) -> Result<(), String> {
        let over = self.actors.over.clone();
        let time = if self.hostile { TIME_HOSTILE } else { TIME };
        let ended = self.run(world, time, &mut |_| over.get());
        if !self.actors.failures.is_empty() {
            return Err(self.actors.failures.join("\n"));
        }
        if ended != RunOutcome::Done {
            return Err(format!("{ended:?}"));
        }
        self.drain(world)?;
        if !self.actors.failures.is_empty() {
            return Err(self.actors.failures.join("\n"));
        }
        self.check_repeats(world, scenario)?;
        self.check_leaks(world)?;
        world.plaintext_on_secured().map_or(Ok(()), Err)
    }

    fn run(
        &mut self,
        world: &World,
        time: Duration,
        done: &mut dyn FnMut(&World) -> bool,
    ) -> RunOutcome {
        let actors: &mut [&mut dyn Actor] = &mut [
            &mut self.actors,
            &mut self.name_server,
            &mut self.verifier,
            &mut self.file_threads,
        ];
        run_all(world, &mut self.workers, actors, time, done)
    }

    /// Does what the supervisor does at SIGTERM.
    fn drain(&mut self, world: &World) -> Result<(), String> {
        self.send_to_workers(|| WorkerMessage::Drain);
        let patience = Duration::from_millis(self.actors.reloader.config.limits.drain_ms);
        if self.run(world, patience, &mut |_| false) == RunOutcome::Done {
            return Ok(());
        }
        if !self.hostile {
            return Err("the workers do not drain".to_owned());
        }
        self.send_to_workers(|| WorkerMessage::Stop);
        match self.run(world, Duration::from_secs(10), &mut |_| false) {
            RunOutcome::Done => Ok(()),
            ended => Err(format!("the workers do not stop: {ended:?}")),
        }
    }

    fn send_to_workers(&mut self, message: impl Fn() -> WorkerMessage<SimDetached>) {
        for mailbox in self.mailboxes.borrow_mut().iter_mut() {
            assert!(mailbox.send(message()).is_ok(), "a worker reads its messages");
            mailbox.flush();
        }
    }

    /// Checks non-idempotent requests: the proxy may send each of them only as often as clients
    /// sent it. Requests that no origin read count too.
    fn check_repeats(&self, world: &World, scenario: &Scenario) -> Result<(), String> {
        let sent: Vec<String> =
            scenario.clients.iter().map(|client| client.script.sent(&self.actors.names)).collect();
        let engine_output = world.engine_output();
        for ((method, target), arrived) in self.requests_seen.seen() {
            if ["GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"].contains(&&method[..]) {
                continue;
            }
            let client_sent: usize =
                sent.iter().map(|sent| requests_in(sent, &method, &target)).sum();
            let line = format!("{method} {target} HTTP/1.1\r");
            let lines = engine_output.iter().flat_map(|sent| sent.split(|byte| *byte == b'\n'));
            let proxy_sent = lines.filter(|it| it.ends_with(line.as_bytes())).count();
            if arrived.max(proxy_sent) > client_sent {
                return Err(format!(
                    "{method} {target} was sent {client_sent} times by clients and {proxy_sent} times by the proxy, and arrived {arrived} times"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the proxy has released everything when its workers have ended.
    fn check_leaks(&mut self, world: &World) -> Result<(), String> {
        for (index, RunningWorker(worker)) in self.workers.drain(..).enumerate() {
            let live = worker.live_objects();
            if live != [0; 4] {
                return Err(format!("worker {index} keeps {live:?} objects"));
            }
            drop(worker.finish());
            let listeners = self.shared.counters[index].listeners.get();
            if listeners != 0 {
                return Err(format!("worker {index} ended, and reports {listeners} listeners"));
            }
        }
        cache::check(&self.shared)?;
        self.actors.close(world);
        match &world.leaks()[..] {
            [] => Ok(()),
            leaks => Err(format!("leaked:\n{}", leaks.join("\n"))),
        }
    }
}

/// Adapts the plan of the world to the scenario.
fn plan_world(world: &World, scenario: &Scenario, tls: &DrawnTls) {
    let mut plan = world.plan();
    if let Some(messages) = scenario.mailboxes {
        plan =
            WorldPlan { mailbox_capacity: messages, skew: 1000, wake_ns: MAILBOX_DELAY_NS, ..plan };
    }
    if tls.settings.is_some() {
        plan.short = 0;
        plan.streams.send_capacity = plan.streams.send_capacity.max(SEND_CAPACITY_TLS_MIN);
    }
    world.set_plan(plan);
}

/// The use of TLS in the run of a scenario.
struct DrawnTls {
    settings: Option<Rc<TlsSettings>>,
    for_clients: bool,
    for_origins: bool,
}

impl DrawnTls {
    /// Draws whether the clients use TLS, and whether the origins do: each in one of three seeds,
    /// unless the scenario excludes that. The draw is independent of the world's.
    fn draw(scenario: &Scenario, seed: u64) -> Self {
        let mut random = SeededRandom::new(seed ^ 0x5345_4355_5245_4453);
        let [of_clients, of_origins] = [random.below(3), random.below(3)];
        let is_tcp = |kind| matches!(kind, OriginKind::Tcp | OriginKind::Tcp6);
        let has_origins = scenario.command.iter().any(|word| word.contains("http://"))
            && ["boost", "serve"].contains(&&scenario.command[0][..])
            && scenario.origins.iter().all(|origin| is_tcp(origin.kind));
        let is_tcp = matches!(scenario.listen, Listen::Tcp(_));
        let for_clients = scenario.secured && is_tcp && of_clients == 0;
        let for_origins = scenario.secured && has_origins && of_origins == 0;
        let settings = || Rc::new(TlsSettings::new(seed, true));
        let settings = (for_clients || for_origins).then(settings);
        Self { settings, for_clients, for_origins }
    }
}

/// Returns how often a client's bytes contain the request line of `method` for `target`.
fn requests_in(sent: &str, method: &str, target: &str) -> usize {
    let begins = format!("{method} ");
    sent.match_indices(&begins)
        .filter(|(at, _)| {
            let line = sent[at + begins.len()..].split("\r\n").next().unwrap_or_default();
            line.split(' ').next().is_some_and(|client_sent| client_sent.ends_with(target))
        })
        .count()
}

/// Listens at an origin's address, and sets its placeholder.
fn listen(
    world: &World,
    origin: &Origin,
    names: &mut Placeholders,
) -> Option<millrace_sim::ActorSocket> {
    let address = match origin.kind {
        OriginKind::Tcp | OriginKind::Refusing => Address::Tcp(local("127.0.0.1:0")),
        OriginKind::Tcp6 => Address::Tcp(local("[::1]:0")),
        OriginKind::Unix => Address::Unix(Path::new(&format!("/sim/{}", origin.name)).into()),
    };
    let listener = world.actor_listen(&address);
    names.set(&origin.name, &world.local_address(listener).to_string());
    if origin.kind == OriginKind::Refusing {
        world.close(listener);
        return None;
    }
    Some(listener)
}

/// Returns a complete command line: adds the proxy's own address, and `workers` unless the command
/// states the number.
fn arguments(
    command: &[String],
    scenario: &Scenario,
    names: &Placeholders,
    workers: &str,
    tls: &DrawnTls,
) -> Vec<String> {
    let listen = match &scenario.listen {
        Listen::Tcp(address) if tls.for_clients => format!("tls://{address}"),
        Listen::Tcp(address) => address.clone(),
        Listen::Unix => "unix:/sim/proxy".to_owned(),
    };
    let mut words: Vec<String> = command.iter().map(|word| names.fill(word)).collect();
    words.splice(1..1, ["--listen".to_owned(), listen]);
    if tls.for_clients {
        words.extend(tls::OPTIONS.map(str::to_owned));
    }
    if tls.for_origins {
        words.iter_mut().for_each(|word| *word = word.replace("http://", "https://"));
        words.extend(tls::ORIGIN_OPTIONS.map(str::to_owned));
    }
    if !words.iter().any(|word| word == "--workers") {
        words.extend(["--workers".to_owned(), workers.to_owned()]);
    }
    if !words.iter().any(|word| word == "--access-log") {
        // The file is never opened: the engine receives the records.
        words.extend(["--access-log", "/sim/access.log"].map(str::to_owned));
    }
    words
}

/// Returns the proxy's configuration as parsed by the program's own parser, and the same with the
/// selected ports.
fn configure(
    scenario: &Scenario,
    world: &World,
    names: &mut Placeholders,
    workers: &str,
    (tls, folders): (&DrawnTls, &SimFolders),
) -> Result<(Config, Config), String> {
    let words = arguments(&scenario.command, scenario, names, workers, tls);
    let mut parsed = config::from_arguments(words).map_err(|wrong| wrong.to_string())?;
    verifier::load_users(&mut parsed)?;
    if let Some(tls) = &tls.settings {
        tls.set_content(&mut parsed);
    }
    folders.set_content(&mut parsed);
    let mut config = parsed.clone();
    pick_ports(&mut config, world);
    names.set("proxy", &config.listeners[0].address.to_string());
    Ok((parsed, config))
}

/// Replaces each port 0 by a free one.
fn pick_ports(config: &mut Config, world: &World) {
    for listener in &mut config.listeners {
        let picked = world.actor_listen(&address_of(&listener.address));
        listener.address = match world.local_address(picked) {
            Address::Tcp(address) | Address::Udp(address) => ListenAddress::Tcp(address),
            Address::Unix(path) => ListenAddress::Unix(path.to_path_buf()),
        };
        world.close(picked);
    }
}

fn start(
    config: &Arc<Config>,
    world: &World,
    (name_server, verifier): (&NameServer, &SimVerifier),
    descriptors: usize,
    tls: Option<&TlsSettings>,
) -> Result<(Vec<RunningWorker>, WorkerMailboxes, Arc<SharedState>), String> {
    // The default of this system is bbr, so that `auto` has an effect.
    let system_congestion = Some("bbr".into());
    let name = "millrace-simulated".to_owned();
    let cache = cache::of(config)?;
    let traces = std::env::var_os("MILLRACE_TRACE").is_some();
    let trace = traces.then_some((|line| eprintln!("{line}")) as fn(std::fmt::Arguments<'_>));
    let mut shared =
        SharedState::new(config.workers, name, system_congestion, cache, |_| {}, trace);
    if let Some(tls) = tls {
        let shared = Arc::get_mut(&mut shared).expect("no worker shares it yet");
        shared.tls_provider = tls.provider.clone();
    }
    tls.into_iter().for_each(|tls| tls.attach(&shared));
    let mut outboxes = Vec::new();
    let mut workers = Vec::new();
    for (index, mail) in
        mailbox_mesh(config.workers, world.plan().mailbox_capacity).into_iter().enumerate()
    {
        let (outbox, inbox) = mailbox(MAILBOX_CAPACITY);
        outboxes.push(outbox);
        let listeners = config.listeners.iter().enumerate();
        let setup = Setup {
            config: config.clone(),
            index,
            listeners: listeners
                .map(|(at, listener)| (at as u16, world.listen(&address_of(&listener.address))))
                .collect(),
            inbox,
            mail,
            shared: shared.clone(),
            names: Arc::new(ResolverConfig::parse(b"", b"", &[name_server.address()])),
            verifier: verifier.new_handle(),
            descriptors: (descriptors / config.workers - config.listeners.len()) as u64,
            thresholds: config.splice.thresholds().unwrap_or(Thresholds::FIXED),
        };
        let engine = world.engine((config.pool_bytes() / config.workers as u64) as usize);
        let worker = Worker::new(engine, setup).map_err(|error| format!("a worker: {error}"))?;
        workers.push(RunningWorker(worker));
    }
    permit_pipelining(config, &shared);
    Ok((workers, Rc::new(RefCell::new(outboxes)), shared))
}

/// Lets requests be pipelined to all origins, as if they had passed the test. Only origins of
/// routes that are configured for it get such requests.
fn permit_pipelining(config: &Config, shared: &SharedState) {
    let routes = config.services.iter().flat_map(|service| service.routes());
    for origin in routes.flat_map(|route| &route.origins) {
        shared.health.permit_pipelining(origin);
    }
}

fn local(text: &str) -> SocketAddr {
    text.parse().expect("an address literal")
}

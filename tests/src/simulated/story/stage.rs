//! One run of a story: the proxy's workers and all actors in one world, and what is checked after
//! each turn.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_config::{self as config, Config};
use millrace_engine::{Address, Buffer, Instant};
use millrace_proxy::{SharedState, Worker, WorkerMessage};
use millrace_sim::{Actor, RunOutcome, SimEngine, SimWorker, World};

use super::super::reload::Posts;
use super::super::verifier::SimVerifier;
use super::super::{Running, address_of, cache, pick_ports, run_all, start};
use super::classes;
use super::client::ClientSeat;
use super::ledger::{Ledger, Moment, Waits};
use super::names::{NameSeat, name_of};
use super::origin::OriginSeat;
use super::plan::{Calm, Event, Naming, Story, Temper};
use super::tally::{Failure, Met};

/// How a story went.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// What did not hold, if anything.
    pub failure: Option<Failure>,
    /// Of everything that happened.
    pub hash: u64,
    /// Which classes of behaviour were met how often.
    pub met: Met,
    /// What happened, to read, where that was asked for.
    pub tale: String,
    /// The same as the simulated kernel saw it: its last lines.
    pub trace: String,
}

/// Virtual time that a story may take: beyond every deadline, stall and pause.
const TIME: Duration = Duration::from_secs(24 * 3600);
/// From the order to break everything off to the end of every worker, jitter aside.
const STOP: Duration = Duration::from_secs(10);

/// Plays `story` in the world of its seed; `tells` asks for the tale.
///
/// # Panics
/// When the proxy breaks the contract of its engine, or one of its own assertions.
pub(super) fn play(story: &Story, world: &World, tells: bool) -> Outcome {
    if tells {
        world.enable_event_log();
    }
    calm(story, world);
    world.record_engine_output();
    let (failure, met) = match Stage::new(story, world) {
        Ok(mut stage) => {
            let result = stage.play(world);
            world
                .trouble_counts()
                .iter()
                .for_each(|(what, _)| stage.ledger.met(format!("trouble: {what}")));
            let met = stage.ledger.all_met();
            (stage.ledger.failure().or(result.err()), met)
        }
        Err(words) => (Some(Failure { kind: "configuration", words }), Met::new()),
    };
    let trace = if tells { world.trace() } else { String::new() };
    Outcome { failure, hash: world.trace_hash(), met, tale: world.event_log(), trace }
}

/// Takes faults of the plan back.
fn calm(story: &Story, world: &World) {
    let mut plan = world.plan();
    for calm in &story.calm {
        match calm {
            Calm::Resets => plan.streams.reset = 0,
            Calm::Connects => plan.connect_fault = 0,
            Calm::Descriptors => plan.shortages.descriptors = 0,
            Calm::Stalls => (plan.streams.stall, plan.streams.loss, plan.datagram_loss) = (0, 0, 0),
            Calm::Shorts => (plan.short, plan.wait) = (0, 0),
            Calm::Sizes => {
                (plan.streams.segment, plan.streams.send_capacity) = (65_536, 256 * 1024);
                plan.streams.receive_capacity = 256 * 1024;
            }
            Calm::Pipes => (plan.shortages.pipes, plan.pipe_capacity) = (0, 262_144),
            Calm::Clocks => (plan.clock_jumps, plan.slow_turns, plan.wake_ns) = (0, 0, 0),
            Calm::Memory => (plan.shortages.memory, plan.shortages.lasting_ms) = (0, 0),
            Calm::Vanishing => plan.vanish = 0,
            Calm::Strays => (plan.stale, plan.spurious) = (0, 0),
            Calm::Accepts => (plan.syn_loss, plan.skew, plan.burst_ns) = (0, 0, 0),
            Calm::Letters => plan.mailbox_capacity = 256,
            Calm::Names => plan.name_faults = 0,
            Calm::Delays => {
                (plan.streams.delay_ns, plan.jitter_ns, plan.batch_max) = (20_000, 0, 1000);
            }
        }
    }
    world.set_plan(plan);
}

/// A worker, and what is checked after each of its turns.
struct Watched {
    index: usize,
    running: Option<Running>,
    ledger: Ledger,
    world: World,
    ended: Rc<Cell<bool>>,
}

impl SimWorker for Watched {
    fn run_turn(&mut self) -> bool {
        let Some(running) = &mut self.running else { return false };
        let goes_on = running.run_turn();
        let live = running.0.live_objects();
        let (used, max) = self.world.budget(self.index);
        // The receive with which it ran out may have brought a whole buffer.
        let bound = max + Buffer::SIZE;
        if used >= max {
            self.ledger.met("proxy: holds all the bytes that it may");
        }
        if used > bound {
            let words = format!("worker {} holds {used} bytes of {max}", self.index);
            self.ledger.fail(&self.world, "memory", words);
        }
        if !goes_on {
            if live != [0; 4] {
                let words = format!("worker {} has drained and keeps {live:?}", self.index);
                self.ledger.fail(&self.world, "leak", words);
            }
            drop(self.running.take().map(|Running(worker)| Worker::<SimEngine>::finish(worker)));
            self.ended.set(true);
        }
        goes_on
    }
}

/// Everybody but the workers.
struct Troupe {
    clients: Vec<ClientSeat>,
    origins: Vec<OriginSeat>,
    names: NameSeat,
    director: Director,
    proxy: Address,
    ledger: Ledger,
    over: Rc<Cell<bool>>,
}

/// Who tells the workers to end.
struct Director {
    /// The way to each worker, and whether it has ended.
    posts: Posts,
    ended: Vec<Rc<Cell<bool>>>,
    /// Configurations to come, the next one last.
    reloads: Vec<(Instant, Arc<Config>)>,
    /// When to drain, and when to break off what is left.
    drain_at: Option<Instant>,
    stop_at: Option<Instant>,
    /// When they were told to break off what was left, and how long that may take.
    stopped: Option<Moment>,
    patience: Duration,
    drain: Duration,
    ledger: Ledger,
}

impl Director {
    fn tell(&mut self, letter: impl Fn() -> WorkerMessage<millrace_sim::SimDetached>) {
        for (post, ended) in self.posts.borrow_mut().iter_mut().zip(&self.ended) {
            if !ended.get() {
                assert!(post.send(letter()).is_ok(), "a worker reads its letters");
                post.flush();
            }
        }
    }

    fn drain(&mut self, world: &World) {
        world.log_event("the workers are told to drain");
        (self.drain_at, self.stop_at) = (None, Some(world.now() + self.drain));
        self.ledger.drain();
        self.tell(|| WorkerMessage::Drain);
    }

    fn step(&mut self, world: &World) -> Option<Instant> {
        if self.reloads.last().is_some_and(|(at, _)| *at <= world.now())
            && let Some((_, config)) = self.reloads.pop()
        {
            world.log_event("the workers are told of another configuration");
            self.ledger.met("operator: reloads");
            self.tell(|| WorkerMessage::Configure { config: config.clone(), sockets: Vec::new() });
        }
        if self.drain_at.is_some_and(|at| at <= world.now()) {
            self.ledger.met("operator: drains in the middle");
            self.drain(world);
        }
        if self.stop_at.is_some_and(|at| at <= world.now()) {
            world.log_event("the workers are told to stop");
            (self.stop_at, self.stopped) = (None, Some(Moment::now(world)));
            self.ledger.met("operator: breaks off what is left");
            self.tell(|| WorkerMessage::Stop);
        }
        let reload = self.reloads.last().map(|(at, _)| *at);
        let judged = self.check_stopped(world);
        reload.into_iter().chain(self.drain_at).chain(self.stop_at).chain(judged).min()
    }

    /// Workers that were told to stop end soon, whatever their clients do; says when to look again.
    fn check_stopped(&mut self, world: &World) -> Option<Instant> {
        let until = self.stopped?.until(world, self.patience);
        if self.ended.iter().all(|ended| ended.get()) {
            self.stopped = None;
        } else if until <= world.now() {
            self.stopped = None;
            self.ledger.fail(world, "undrained", "the workers do not stop".to_owned());
        }
        self.stopped.map(|_| until)
    }
}

impl Actor for Troupe {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut look = self.director.step(world);
        let stirred = world.take_changed_sockets();
        let mut over = true;
        for client in &mut self.clients {
            look = look.into_iter().chain(client.step(world, &self.proxy, &stirred)).min();
            over &= client.is_over();
        }
        for origin in &mut self.origins {
            look = look.into_iter().chain(origin.step(world, &stirred)).min();
        }
        look = look.into_iter().chain(self.names.step(world)).min();
        self.over.set(over || self.ledger.failure().is_some());
        look
    }
}

struct Stage {
    workers: Vec<Watched>,
    shared: Arc<SharedState>,
    troupe: Troupe,
    ledger: Ledger,
    temper: Temper,
}

impl Stage {
    fn new(story: &Story, world: &World) -> Result<Self, String> {
        let story = Rc::new(story.clone());
        let plan = world.plan();
        let jitter = Duration::from_nanos(plan.jitter_ns + plan.streams.delay_ns + plan.wake_ns);
        let limits = millrace_config::limits::Limits::default();
        let ledger = Ledger::new(story.clone(), Waits::new(&limits, &story, &plan));
        let origins = story.origins.iter().enumerate();
        let origins: Vec<(OriginSeat, u16)> =
            origins.map(|(at, origin)| OriginSeat::new(origin, at, &ledger, world)).collect();
        let ports: Vec<u16> = origins.iter().map(|(_, port)| *port).collect();
        let authorities = authorities(&story, &ports);
        let config = Arc::new(configure(&story, world, &authorities)?);
        let reloads = reloads(&story, world, &authorities, &config)?;
        let waits = |config: &Config| Waits::new(&config.limits, &story, &plan);
        let all = reloads.iter().map(|(_, config)| waits(config));
        ledger.set_waits(all.fold(waits(&config), Waits::or));
        let names = NameSeat::new(world, &story.origins, &ledger);
        let (real, assumed) = story.proxy.descriptors.unwrap_or((usize::MAX, 1000));
        world.set_descriptors_max(real);
        // No story has passwords, so nobody asks the verifier.
        let servers = (names.server(), &SimVerifier::new(false));
        let (workers, posts, shared) = start(&config, world, servers, assumed)?;
        let ended: Vec<Rc<Cell<bool>>> = workers.iter().map(|_| Rc::default()).collect();
        let workers = watched(workers, &ended, &ledger, world);
        let clients = story.connections.iter().enumerate();
        let clients = clients
            .map(|(at, plan)| ClientSeat::new(plan, at, &authorities, &ledger, world))
            .collect();
        let drain_at = story.events.iter().filter_map(|event| match event {
            Event::Drain(ms) => Some(world.now() + Duration::from_millis(*ms)),
            Event::Reload(..) => None,
        });
        let director = Director {
            posts,
            ended,
            reloads,
            drain_at: drain_at.min(),
            stop_at: None,
            stopped: None,
            patience: STOP + jitter * 100,
            drain: Duration::from_millis(config.limits.drain_ms),
            ledger: ledger.clone(),
        };
        classes::meet_story(&ledger, &story);
        Ok(Self {
            workers,
            shared,
            troupe: Troupe {
                clients,
                origins: origins.into_iter().map(|(seat, _)| seat).collect(),
                names,
                director,
                proxy: address_of(&config.listeners[0].address),
                ledger: ledger.clone(),
                over: Rc::new(Cell::new(false)),
            },
            ledger,
            temper: story.temper,
        })
    }

    fn play(&mut self, world: &World) -> Result<(), Failure> {
        let over = self.troupe.over.clone();
        // It also returns when every worker has drained: those who are left then see it.
        let mut ended = RunOutcome::Done;
        while ended == RunOutcome::Done && !over.get() {
            ended = self.run(world, TIME, &mut |_| over.get());
        }
        if self.ledger.failure().is_some() {
            return Ok(());
        }
        if ended != RunOutcome::Done {
            return Err(self.failure("stuck", format!("{ended:?}")));
        }
        self.end(world)?;
        if self.ledger.failure().is_none() {
            cache::check(&self.shared).map_err(|words| self.failure("leak", words))?;
        }
        self.ledger.check_sent(world, &world.engine_output());
        for client in &mut self.troupe.clients {
            client.close(world);
        }
        for origin in &mut self.troupe.origins {
            origin.close(world);
        }
        match &world.leaks()[..] {
            [] => Ok(()),
            leaks => Err(self.failure("leak", format!("left behind:\n{}", leaks.join("\n")))),
        }
    }

    /// The clients are done: what the supervisor does at SIGTERM.
    fn end(&mut self, world: &World) -> Result<(), Failure> {
        let drain = self.troupe.director.drain;
        if self.has_ended() {
            return Ok(());
        }
        if !self.ledger.is_drained() {
            self.troupe.director.drain(world);
        }
        let flags: Vec<_> = self.workers.iter().map(|worker| worker.ended.clone()).collect();
        let ended = &mut |_: &World| flags.iter().all(|ended| ended.get());
        self.run(world, drain, ended);
        if !self.has_ended() && self.temper != Temper::Wild {
            return Err(self.failure("undrained", "the workers do not drain".to_owned()));
        }
        // How long that may take is the director's to judge.
        let ledger = self.ledger.clone();
        self.run(world, TIME, &mut |world| ended(world) || ledger.failure().is_some());
        match self.has_ended() || self.ledger.failure().is_some() {
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
        run_all(world, &mut self.workers[..left], &mut [&mut self.troupe], time, done)
    }

    fn failure(&self, kind: &'static str, words: String) -> Failure {
        let clients: Vec<String> = self.troupe.clients.iter().map(ClientSeat::state).collect();
        Failure { kind, words: format!("{words}\n{}", clients.join("\n")) }
    }
}

/// What the proxy's configuration calls the origins, which listen on these ports.
fn authorities(story: &Story, ports: &[u16]) -> Vec<String> {
    let origins = story.origins.iter().zip(ports).enumerate();
    let authorities = origins.map(|(at, (origin, port))| match origin.naming {
        Naming::Address => format!("127.0.0.1:{port}"),
        _ => format!("{}:{port}", name_of(at)),
    });
    authorities.collect()
}

/// The workers with the flags that say when each has ended.
fn watched(
    workers: Vec<Running>,
    ended: &[Rc<Cell<bool>>],
    ledger: &Ledger,
    world: &World,
) -> Vec<Watched> {
    let workers = workers.into_iter().zip(ended).enumerate();
    let watched = workers.map(|(index, (running, ended))| Watched {
        index,
        running: Some(running),
        ledger: ledger.clone(),
        world: world.clone(),
        ended: ended.clone(),
    });
    watched.collect()
}

/// The proxy's configuration: by the program's own parser, then with the port that was picked.
fn configure(story: &Story, world: &World, authorities: &[String]) -> Result<Config, String> {
    let mut config =
        config::from_arguments(command(story, authorities)).map_err(|wrong| wrong.to_string())?;
    pick_ports(&mut config, world);
    if let Some(bytes) = bytes_per_worker(story) {
        config.memory_bytes = bytes * story.proxy.workers as u64;
    }
    Ok(config)
}

/// What each worker may hold where memory is short. The program takes no less than a megabyte, of
/// which no story uses a fifth: what is a megabyte in its command line is 16 KiB here.
pub(super) fn bytes_per_worker(story: &Story) -> Option<u64> {
    story.proxy.memory_mb.map(|megabytes| megabytes * 16 * 1024)
}

/// The configurations of all reloads, the last one first, each when it comes. What cannot change in
/// a running process is refused as it is in earnest.
fn reloads(
    story: &Story,
    world: &World,
    authorities: &[String],
    first: &Config,
) -> Result<Vec<(Instant, Arc<Config>)>, String> {
    let mut reloads = Vec::new();
    for event in &story.events {
        let Event::Reload(ms, limits) = event else { continue };
        let mut other = story.clone();
        other.proxy.limits = limits.clone();
        let words = command(&other, authorities);
        let read = config::from_arguments(words).map_err(|wrong| wrong.to_string())?;
        let listeners = first.listeners.clone();
        let config = Config { listeners, memory_bytes: first.memory_bytes, ..read };
        if config::check_reload("story", first, &config).is_ok() {
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

/// The words after the program's name.
pub(super) fn command(story: &Story, authorities: &[String]) -> Vec<String> {
    let proxy = &story.proxy;
    let mut words = vec![if proxy.forward { "forward" } else { "boost" }.to_owned()];
    if !proxy.forward {
        let origins: Vec<String> = authorities.iter().map(|it| format!("http://{it}")).collect();
        words.extend(["--origin".to_owned(), origins.join(",")]);
    }
    let listen = if proxy.unix { "unix:/sim/proxy" } else { "127.0.0.1:0" };
    words.extend(["--listen", listen, "--workers"].map(str::to_owned));
    words.push(proxy.workers.to_string());
    if let Some(memory) = proxy.memory_mb {
        words.extend(["--memory".to_owned(), format!("{}M", memory * proxy.workers as u64)]);
    }
    for (name, value) in &proxy.limits {
        words.extend(["--limit".to_owned(), format!("{name}={value}")]);
    }
    words
}

#[cfg(test)]
mod tests {
    use millrace_config::limits::Limits;
    use millrace_sim::{Faults, run};

    use super::super::plain::plain;
    use super::super::plan::Ending;
    use super::*;

    impl Actor for Director {
        fn step(&mut self, world: &World) -> Option<Instant> {
            Director::step(self, world)
        }
    }

    /// Told to drain and, a second later, to stop: how a worker fails that has ended, or has not.
    fn judged(has_ended: bool) -> Option<&'static str> {
        let world = World::new(1, Faults::None);
        let story = Rc::new(plain(Vec::new(), Ending::Closes));
        let waits = Waits::new(&Limits::default(), &story, &world.plan());
        let ledger = Ledger::new(story, waits);
        let mut director = Director {
            posts: Posts::default(),
            ended: vec![Rc::new(Cell::new(has_ended))],
            reloads: Vec::new(),
            drain_at: Some(world.now()),
            stop_at: None,
            stopped: None,
            patience: STOP,
            drain: Duration::from_secs(1),
            ledger: ledger.clone(),
        };
        let hour = Duration::from_secs(3600);
        run(&world, &mut [], &mut [&mut director], hour, &mut |_| false);
        ledger.failure().map(|failure| failure.kind)
    }

    #[test]
    fn a_worker_that_does_not_stop_is_noticed_while_its_clients_go_on() {
        assert_eq!(judged(true), None);
        assert_eq!(judged(false), Some("undrained"));
    }
}

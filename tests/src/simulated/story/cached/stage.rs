//! One run: the proxy's workers, the origin and the clients in one world.

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
use super::super::super::reload::Posts;
use super::super::super::verifier::SimVerifier;
use super::super::super::{Running, address_of, cache, pick_ports, run_all, start};
use super::super::stage::Outcome;
use super::super::tally::{Failure, Met};
use super::CachedStory;
use super::book::Book;
use super::client::Client;
use super::disk::Disk;
use super::origin::Origin;

/// Virtual time that a story may take: beyond every deadline, stall and pause.
const TIME: Duration = Duration::from_secs(12 * 3600);
/// From the order to break everything off to the end of every worker.
const STOP: Duration = Duration::from_secs(600);

pub(super) fn play(story: &CachedStory, world: &World, tells: bool) -> Outcome {
    if tells {
        world.enable_event_log();
    }
    let (failure, met) = match Stage::new(story, world) {
        Ok(mut stage) => {
            let result = stage.play(world);
            (stage.troupe.book.failure().or(result.err()), stage.troupe.book.all_met())
        }
        Err(words) => (Some(Failure { kind: "configuration", words }), Met::new()),
    };
    let trace = if tells { world.trace() } else { String::new() };
    Outcome { failure, hash: world.trace_hash(), met, tale: world.event_log(), trace }
}

/// Everybody but the workers.
struct Troupe {
    clients: Vec<Client>,
    origin: Origin,
    proxy: Address,
    posts: Posts,
    drains_at: Option<Instant>,
    /// When the process is killed; in order.
    kills: VecDeque<Instant>,
    disk: Option<Disk>,
    book: Book,
    over: Rc<Cell<bool>>,
}

impl Troupe {
    fn tell(&mut self, letter: impl Fn() -> WorkerMessage<millrace_sim::SimDetached>) {
        for post in self.posts.borrow_mut().iter_mut() {
            // One that has ended reads none.
            let _ = post.send(letter());
            post.flush();
        }
    }

    /// When the process is killed next; a process that drains is left alone.
    fn next_kill(&self) -> Option<Instant> {
        self.kills.front().copied().filter(|_| !self.book.is_drained())
    }

    fn drain(&mut self, world: &World) {
        world.log_event("the workers are told to drain");
        self.drains_at = None;
        self.book.drain();
        self.tell(|| WorkerMessage::Drain);
    }
}

impl Actor for Troupe {
    fn step(&mut self, world: &World) -> Option<Instant> {
        if self.drains_at.is_some_and(|at| at <= world.now()) {
            self.book.met("operator: drains in the middle");
            self.drain(world);
        }
        let mut look = self.drains_at.into_iter().chain(self.next_kill()).min();
        let mut over = true;
        for client in &mut self.clients {
            look = look.into_iter().chain(client.step(world, &self.proxy)).min();
            over &= client.is_over();
        }
        look = look.into_iter().chain(self.origin.step(world)).min();
        let posts = &self.posts;
        let disk = self.disk.as_mut().and_then(|disk| disk.step(world, posts));
        look = look.into_iter().chain(disk).min();
        self.over.set(over || self.book.failure().is_some());
        look
    }
}

/// A worker, which may end before the others.
struct Member {
    /// `None`: it was of a process that was killed.
    running: Option<Running>,
    ended: Rc<Cell<bool>>,
}

impl SimWorker for Member {
    fn run_turn(&mut self) -> bool {
        if let Some(running) = self.running.as_mut().filter(|_| !self.ended.get()) {
            self.ended.set(!running.run_turn());
        }
        !self.ended.get()
    }
}

impl Member {
    fn new(running: Running) -> Self {
        Self { running: Some(running), ended: Rc::default() }
    }
}

struct Stage {
    config: Arc<Config>,
    names: NameServer,
    verifier: SimVerifier,
    /// Of all processes that there were, in the order of their engines.
    workers: Vec<Member>,
    shared: Arc<SharedState>,
    troupe: Troupe,
}

impl Stage {
    fn new(story: &CachedStory, world: &World) -> Result<Self, String> {
        let book = Book::new(story);
        let (origin, address) = Origin::new(world, &book);
        let config = Arc::new(configure(story, world, &address)?);
        let (names, verifier) = (NameServer::new(world, &[]), SimVerifier::new(false));
        let (workers, posts, shared) = start(&config, world, (&names, &verifier), 1000)?;
        let workers = workers.into_iter().map(Member::new).collect();
        let askers = story.askers.iter().enumerate();
        let clients = askers.map(|(at, plan)| Client::new(world, at, plan, &book)).collect();
        book.met(format!("world: {:?}", story.world));
        let drains_at = story.drains_ms.map(|ms| world.now() + Duration::from_millis(ms));
        let proxy = address_of(&config.listeners[0].address);
        let over = Rc::default();
        let kills = story.killed_ms.iter().map(|ms| world.now() + Duration::from_millis(*ms));
        let kills = kills.collect();
        let mut disk = story.disk.map(|plan| Disk::new(plan, story.seed, world));
        begin(disk.as_mut(), &shared, world);
        let troupe = Troupe { clients, origin, proxy, posts, drains_at, kills, disk, book, over };
        Ok(Self { config, names, verifier, workers, shared, troupe })
    }

    fn play(&mut self, world: &World) -> Result<(), Failure> {
        let over = self.troupe.over.clone();
        // It also returns when every worker has drained: those who are left then see it.
        let mut ended = RunOutcome::Done;
        while ended == RunOutcome::Done && !over.get() {
            let kill = self.troupe.next_kill();
            let book = self.troupe.book.clone();
            let is_due =
                |world: &World| kill.is_some_and(|at| at <= world.now()) && !book.is_drained();
            ended = self.run(world, TIME, &mut |world| over.get() || is_due(world));
            if ended == RunOutcome::Done && is_due(world) && !over.get() {
                self.troupe.kills.pop_front();
                self.kill(world)?;
            }
        }
        if self.troupe.book.failure().is_some() {
            return Ok(());
        }
        if !over.get() {
            return Err(self.failure("stuck", format!("{ended:?}")));
        }
        if !self.troupe.book.is_drained() {
            self.troupe.drain(world);
        }
        self.end(world)?;
        for (index, member) in self.workers.drain(..).enumerate() {
            let Some(Running(worker)) = member.running else { continue };
            let live = worker.live_objects();
            if live != [0; 4] {
                let words = format!("worker {index} has drained and keeps {live:?}");
                return Err(Failure { kind: "leak", words });
            }
            drop(worker.finish());
        }
        self.troupe.disk.iter_mut().for_each(Disk::end);
        let leak = |words| Failure { kind: "leak", words };
        cache::check(&self.shared).map_err(leak)?;
        self.troupe.clients.iter_mut().for_each(|client| client.close(world));
        self.troupe.origin.close(world);
        match &world.leaks()[..] {
            [] => Ok(()),
            leaks => Err(leak(format!("left behind:\n{}", leaks.join("\n")))),
        }
    }

    /// The process is killed, and another takes its place.
    fn kill(&mut self, world: &World) -> Result<(), Failure> {
        world.log_event("the process is killed");
        self.troupe.book.met("operator: kills the process");
        let loses_all = self.troupe.disk.as_mut().is_none_or(|disk| disk.kill(world));
        self.troupe.book.kill(world, loses_all);
        for member in &mut self.workers {
            member.ended.set(true);
            drop(member.running.take());
        }
        world.kill_engines();
        let servers = (&self.names, &self.verifier);
        let started = start(&self.config, world, servers, 1000);
        let wrong = |words| Failure { kind: "configuration", words };
        let (workers, posts, shared) = started.map_err(wrong)?;
        self.workers.extend(workers.into_iter().map(Member::new));
        (self.troupe.posts, self.shared) = (posts, shared);
        begin(self.troupe.disk.as_mut(), &self.shared, world);
        Ok(())
    }

    /// What the supervisor does at SIGTERM, once the order was given.
    fn end(&mut self, world: &World) -> Result<(), Failure> {
        let flags: Vec<_> = self.workers.iter().map(|member| member.ended.clone()).collect();
        let have_ended = &mut |_: &World| flags.iter().all(|ended| ended.get());
        let drain = Duration::from_millis(self.config.limits.drain_ms);
        self.run(world, drain, have_ended);
        if have_ended(world) {
            return Ok(());
        }
        if self.troupe.book.story().world != Faults::Hostile {
            return Err(self.failure("undrained", "the workers do not drain".to_owned()));
        }
        world.log_event("the workers are told to stop");
        self.troupe.tell(|| WorkerMessage::Stop);
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
        run_all(world, &mut self.workers[..left], &mut [&mut self.troupe], time, done)
    }

    fn failure(&self, kind: &'static str, words: String) -> Failure {
        let clients: Vec<String> = self.troupe.clients.iter().map(Client::state).collect();
        Failure { kind, words: format!("{words}\n{}", clients.join("\n")) }
    }
}

/// A process begins to use its disk, if it has one.
fn begin(disk: Option<&mut Disk>, shared: &SharedState, world: &World) {
    if let (Some(disk), Some(cache)) = (disk, &shared.cache) {
        disk.begin(cache, world);
    }
}

/// The proxy's configuration: by the program's own parser, then with the port that was picked.
fn configure(story: &CachedStory, world: &World, origin: &Address) -> Result<Config, String> {
    let mut words = vec!["boost".to_owned(), "--origin".to_owned(), format!("http://{origin}")];
    words.extend(["--listen", "127.0.0.1:0", "--workers"].map(str::to_owned));
    words.push(story.workers.to_string());
    words.extend(story.options.iter().cloned());
    let mut config = config::from_arguments(words).map_err(|wrong| wrong.to_string())?;
    pick_ports(&mut config, world);
    Ok(config)
}

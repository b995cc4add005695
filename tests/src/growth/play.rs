//! Plays exchanges: one client and one origin in the simulated world, and the proxy's own worker
//! between them. A pause follows each exchange, so that all its work is done before the next one
//! begins.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iolite::Slab;
use millrace_config::users::Users;
use millrace_config::{self as config, Auth, Config, Listener};
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, Instant, mailbox, mailbox_mesh};
use millrace_http_cache::HashKey;
use millrace_proxy::auth::VerifierHandle;
use millrace_proxy::{Setup, SharedState, Worker, WorkerMessage};
use millrace_sim::{
    Actor, ActorSocket, Faults, ReadResult, RunOutcome, SimDetached, SimWaker, SimWorker, World,
    run,
};
use millrace_splice::Thresholds;
use millrace_store::{Bounds, Cache};

use super::exchange::{Exchange, ORIGIN, Service, USER};
use super::message::{self, PASSED};
use super::site::{SITES, site};
use super::size::Size;
use crate::border::{self, Border};

/// The address of the reverse proxy in the simulated world.
const REVERSE_PROXY: &str = "127.0.0.1:8001";
/// The address of the forward proxy in the simulated world.
const FORWARD_PROXY: &str = "127.0.0.1:8002";

/// The address of the reverse proxy with routes in the simulated world.
const ROUTED_REVERSE_PROXY: &str = "127.0.0.1:8003";

/// The observations of the client and the origin in an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    /// The first status that the client received; 0: none.
    pub status: u16,
    /// Requests that reached the origin.
    pub origin_requests: u32,
    /// Whether the origin confirmed the stored response.
    pub is_validated: bool,
}

/// Virtual time between the beginnings of two exchanges. All effects of an exchange end before the
/// next.
const PAUSE: Duration = Duration::from_millis(5);
/// Virtual time between the halves of a message. Each message thus takes more than one receive at
/// every size. Without it, small messages would take a faster path of the parser, for lines that
/// arrive at once, and the difference would look like growth.
const GAP: Duration = Duration::from_micros(200);
/// Limit of all exchanges in virtual time.
const TIME: Duration = Duration::from_secs(10_000);
/// Bytes of the cache: enough for a few of the largest responses.
const CACHE_BYTES: usize = 4 << 20;
/// Messages that a mailbox of the worker holds.
const MAILBOX_CAPACITY: usize = 16;

/// Callgrind enters this function before every [`SITES`] exchanges: it then writes a part of its
/// profile and restarts counting from 0.
#[inline(never)]
fn part_ends() {
    std::hint::black_box(());
}

/// The name of that function in a profile.
pub(super) const PART_ENDS: &str = "millrace_tests::growth::play::part_ends";

/// The state that the actors and the worker share.
struct ExchangeWorld {
    exchanges: Vec<Exchange>,
    /// The index of the current exchange: `at <= exchanges.len()`.
    at: Cell<usize>,
    seen: RefCell<Vec<Seen>>,
}

impl ExchangeWorld {
    fn is_over(&self) -> bool {
        self.at.get() == self.exchanges.len()
    }
}

/// Plays the exchanges, with the header limits of this size.
///
/// # Panics
/// Panics if the configuration is refused, or if the simulated world ends before the exchanges.
pub fn play(exchanges: Vec<Exchange>, size: Size) -> Vec<Seen> {
    play_with(exchanges, size, |_| {})
}

/// Like [`play`]. The work of `reader`, which is called with each request, counts as the worker's.
///
/// # Panics
/// Panics as [`play`] does.
pub fn play_with(exchanges: Vec<Exchange>, size: Size, reader: fn(&[u8])) -> Vec<Seen> {
    let world = World::new(1, Faults::None);
    let origin = address(ORIGIN);
    let listener = world.actor_listen(&origin);
    let seen = RefCell::new(vec![Seen::default(); exchanges.len()]);
    let state = Rc::new(ExchangeWorld { exchanges, at: Cell::new(0), seen });
    let cache = cache();
    let worker = worker(&world, configure(size), cache.clone());
    let mut worker = CountedWorker { worker, state: state.clone(), reader, read: 0 };
    let mut client = Client { state: state.clone(), cache, progress: None };
    let mut origin = Origin { state: state.clone(), listener, connections: Vec::new() };
    let mut workers: [&mut dyn SimWorker; 1] = [&mut worker];
    let mut actors: [&mut dyn Actor; 2] = [&mut client, &mut origin];
    let ended = run(&world, &mut workers, &mut actors, TIME, &mut |_| state.is_over());
    assert_eq!(ended, RunOutcome::Done, "at exchange {}", state.at.get());
    state.seen.take()
}

/// The worker. Its turns are counted for the current exchange.
struct CountedWorker {
    worker: Worker<Border>,
    state: Rc<ExchangeWorld>,
    reader: fn(&[u8]),
    /// Number of exchanges whose request was passed to the reader.
    read: usize,
}

impl SimWorker for CountedWorker {
    fn run_turn(&mut self) -> bool {
        let at = self.state.at.get();
        site(at % SITES)(&mut || {
            if self.read == at
                && let Some(exchange) = self.state.exchanges.get(at)
            {
                read(self.reader, &exchange.request);
                self.read += 1;
            }
            border::turn(&mut self.worker)
        })
    }
}

/// Calls the reader. Callgrind collects this function like a turn of the worker.
#[inline(never)]
fn read(reader: fn(&[u8]), request: &[u8]) {
    reader(request);
}

/// The name of that function, as a callgrind pattern.
pub(super) const READ: &str = "millrace_tests::growth::play::read";

/// Returns three services in the order of [`Service`]: a reverse proxy that trusts its clients and
/// has every part that parses lists, a forward proxy with a user, and a reverse proxy that selects
/// routes by path and trusts no client.
fn configure(size: Size) -> Config {
    let Size { request, response } = size;
    let fields = message::FIELDS_MAX;
    let limits = format!(
        "--limit fields={fields} --limit response_fields={fields} \
         --limit request_head_bytes={request} \
         --limit response_head_bytes={response} --limit target_bytes=65536"
    );
    let booster = format!(
        "boost --origin http://{ORIGIN} --listen {REVERSE_PROXY} --workers 1 --trust 0.0.0.0/0 \
         --access-log access.log --proxy-status on --cache-set-cookie explicit {limits}"
    );
    let forward_proxy = format!("forward --listen {FORWARD_PROXY} --workers 1 {limits}");
    let words = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let read = |words: Vec<String>| config::from_arguments(words).expect("the command is sound");
    let mut config = read([words(&booster), message::options()].concat());
    let mut forward_proxy = read(words(&forward_proxy));
    let auth = Auth {
        path: PathBuf::new(),
        realm: "realm".to_owned(),
        users: Some(Arc::new(Users::parse("users", USER).expect("one user"))),
    };
    forward_proxy.services.iter_mut().for_each(|service| service.auth = Some(auth.clone()));
    let routed_booster = config::from_toml(&routes()).expect("the file is sound");
    for (number, other) in [(1, forward_proxy), (2, routed_booster)] {
        config.listeners.extend(other.listeners.into_iter().map(|listener| Listener {
            number,
            service: usize::from(number),
            ..listener
        }));
        config.services.extend(other.services);
    }
    config
}

/// Returns the configuration of the reverse proxy with routes. No path of a test matches `/other`
/// in any reading, so the proxy has to compare all readings.
fn routes() -> String {
    let route = format!("origins = [\"http://{ORIGIN}\"]\npass-fields = [\"{PASSED}\"]\n");
    format!(
        "[[boost]]\nlisten = [\"{ROUTED_REVERSE_PROXY}\"]\n\
         [[boost.route]]\npath = \"/other\"\n{route}\
         [[boost.route]]\n{route}"
    )
}

fn cache() -> Arc<Cache> {
    let slab = Slab::on_heap(CACHE_BYTES).expect("enough for some blocks");
    let (bytes, object_bytes) = (CACHE_BYTES as u64, CACHE_BYTES as u64 / 8);
    let bounds = Bounds { bytes, object_bytes, variants: 16, prefaults: true };
    Cache::new(slab, HashKey::new([1; 16]), bounds)
}

fn worker(world: &World, config: Config, cache: Arc<Cache>) -> Worker<Border> {
    let (_, inbox) = mailbox::<WorkerMessage<SimDetached>, SimWaker>(MAILBOX_CAPACITY);
    let mail = mailbox_mesh(1, MAILBOX_CAPACITY)
        .into_iter()
        .next()
        .expect("one worker has one set of mailboxes");
    let engine = Border(world.engine(config.memory_bytes as usize));
    let setup = Setup {
        config: Arc::new(config),
        index: 0,
        listeners: vec![
            (0, world.listen(&address(REVERSE_PROXY))),
            (1, world.listen(&address(FORWARD_PROXY))),
            (2, world.listen(&address(ROUTED_REVERSE_PROXY))),
        ],
        inbox,
        mail,
        shared: SharedState::new(1, "millrace-counted".to_owned(), None, Some(cache), |_| {}, None),
        names: Arc::new(ResolverConfig::parse(b"", b"", &[])),
        verifier: VerifierHandle::unavailable(),
        descriptors: 1000,
        thresholds: Thresholds::FIXED,
    };
    Worker::new(engine, setup).expect("a simulated engine takes its listener")
}

fn address(text: &str) -> Address {
    Address::Tcp(text.parse().expect("an address and a port"))
}

fn address_of(service: Service) -> &'static str {
    match service {
        Service::Booster => REVERSE_PROXY,
        Service::ForwardProxy => FORWARD_PROXY,
        Service::RoutedBooster => ROUTED_REVERSE_PROXY,
    }
}

/// The client, with a connection for each exchange.
struct Client {
    state: Rc<ExchangeWorld>,
    cache: Arc<Cache>,
    progress: Option<ExchangeProgress>,
}

/// The current exchange as the client sees it.
struct ExchangeProgress {
    socket: ActorSocket,
    outbox: Outbox,
    /// The first bytes of the response.
    beginning: Vec<u8>,
    until: Instant,
}

/// The bytes to send on a connection: each message in two halves, with a [`GAP`] after each.
#[derive(Default)]
struct Outbox {
    pieces: VecDeque<Vec<u8>>,
    next: Instant,
}

impl Outbox {
    fn add(&mut self, message: &[u8]) {
        let (first, second) = message.split_at(message.len() / 2);
        self.pieces.extend([first, second].map(<[u8]>::to_vec));
    }

    /// Sends the next half if its time has come. Returns when to send another one.
    fn send(&mut self, world: &World, socket: ActorSocket) -> Option<Instant> {
        if world.now() >= self.next
            && let Some(piece) = self.pieces.pop_front()
        {
            assert_eq!(world.write(socket, &piece), Ok(piece.len()));
            self.next = world.now() + GAP;
        }
        (!self.pieces.is_empty()).then_some(self.next)
    }
}

impl Actor for Client {
    fn step(&mut self, world: &World) -> Option<Instant> {
        if self.progress.as_ref().is_some_and(|progress| world.now() >= progress.until) {
            self.end(world);
        }
        if self.state.is_over() {
            return None;
        }
        if self.progress.is_none() {
            self.begin(world);
        }
        let progress = self.progress.as_mut()?;
        let next_wake = progress.step(world).unwrap_or(progress.until);
        Some(next_wake.min(progress.until))
    }
}

impl Client {
    fn begin(&mut self, world: &World) {
        let at = self.state.at.get();
        let exchange = &self.state.exchanges[at];
        if exchange.is_first {
            self.cache.clear();
        }
        if at.is_multiple_of(SITES) {
            part_ends();
        }
        let mut outbox = Outbox::default();
        outbox.add(&exchange.request);
        self.progress = Some(ExchangeProgress {
            socket: world.connect(&address(address_of(exchange.service)), None),
            outbox,
            beginning: Vec::new(),
            until: world.now() + PAUSE,
        });
    }

    fn end(&mut self, world: &World) {
        let Some(progress) = self.progress.take() else { return };
        world.close(progress.socket);
        let at = self.state.at.get();
        self.state.seen.borrow_mut()[at].status = status(&progress.beginning);
        self.state.at.set(at + 1);
    }
}

impl ExchangeProgress {
    fn step(&mut self, world: &World) -> Option<Instant> {
        world.connected(self.socket)?.ok()?;
        while let ReadResult::Bytes(bytes) = world.read(self.socket, usize::MAX) {
            if self.beginning.is_empty() {
                self.beginning = bytes;
            }
        }
        self.outbox.send(world, self.socket)
    }
}

fn status(response: &[u8]) -> u16 {
    let digits = response.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok());
    digits.and_then(|digits| digits.parse().ok()).unwrap_or_default()
}

/// The origin: sends the responses of the exchange to each complete request.
struct Origin {
    state: Rc<ExchangeWorld>,
    listener: ActorSocket,
    connections: Vec<Connection>,
}

/// A connection from the proxy to the origin.
struct Connection {
    socket: ActorSocket,
    inbox: Vec<u8>,
    outbox: Outbox,
}

impl Actor for Origin {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((socket, _)) = world.accept(self.listener) {
            let (inbox, outbox) = Default::default();
            self.connections.push(Connection { socket, inbox, outbox });
        }
        let state = &self.state;
        self.connections.retain_mut(|connection| connection.receive(world, state));
        self.connections.iter_mut().filter_map(|it| it.outbox.send(world, it.socket)).min()
    }
}

impl Connection {
    /// Receives the available bytes, and responds to a complete request. Returns false if the
    /// connection was closed.
    fn receive(&mut self, world: &World, state: &ExchangeWorld) -> bool {
        loop {
            match world.read(self.socket, usize::MAX) {
                ReadResult::Bytes(bytes) => self.inbox.extend(bytes),
                ReadResult::Nothing => return true,
                ReadResult::End | ReadResult::Failed(_) => {
                    world.close(self.socket);
                    return false;
                }
            }
            // No request has a body.
            if self.inbox.ends_with(b"\r\n\r\n") && !state.is_over() {
                self.respond(state);
            }
        }
    }

    fn respond(&mut self, state: &ExchangeWorld) {
        const CONDITION: &[u8] = b"If-None-Match: \"e\"\r\n";
        let at = state.at.get();
        state.seen.borrow_mut()[at].origin_requests += 1;
        let exchange = &state.exchanges[at];
        // The proxy writes the condition after the client's fields.
        let end = &self.inbox[self.inbox.len().saturating_sub(256)..];
        match &exchange.validated {
            Some(validated) if end.windows(CONDITION.len()).any(|line| line == CONDITION) => {
                state.seen.borrow_mut()[at].is_validated = true;
                self.outbox.add(validated);
            }
            _ => exchange.responses.iter().for_each(|response| self.outbox.add(response)),
        }
        self.inbox.clear();
    }
}

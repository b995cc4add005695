//! Plays a script: clients and an origin in the simulated world, and the proxy's own worker between
//! them.

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use iolite::Slab;
use millrace_config::{self as config, Config, ListenAddress};
use millrace_dns::ResolverConfig;
use millrace_engine::{Address, Instant, mailbox, mailbox_mesh};
use millrace_http_cache::HashKey;
use millrace_proxy::{Setup, SharedState, Worker, WorkerMessage};
use millrace_sim::{
    Actor, ActorSocket, Faults, ReadResult, RunOutcome, SimDetached, SimWaker, SimWorker, World,
    run,
};
use millrace_splice::Thresholds;
use millrace_store::{Bounds, Cache};
use millrace_tests::border::{self, Border};

use crate::script::{NUMBER, PING, Script};

/// Virtual time that a script may take.
const TIME: Duration = Duration::from_secs(600);
/// The seed of every script's world. Any value works, but it must not change.
const SEED: u64 = 1;
/// Time between two turns under load. No transmission takes longer, so each turn finds everything
/// that the clients, or the origin, have sent meanwhile.
const PACE: Duration = Duration::from_micros(100);
/// Bytes of the cache, for scripts with a cache.
const CACHE_BYTES: usize = 8 << 20;
/// Messages that a mailbox holds.
const MAILBOX_CAPACITY: usize = 16;

/// Plays `exchanges` exchanges of a script.
///
/// # Panics
/// Panics if a client does not receive what its script expects.
pub(crate) fn play(script: &Script, exchanges: u32) {
    let world = World::new(SEED, Faults::None);
    let listener = world.actor_listen(&Address::Tcp(local()));
    let origin_at = world.local_address(listener).to_string();
    let config = Arc::new(configure(script, &world, &origin_at));
    let ListenAddress::Tcp(proxy) = config.listeners[0].address else {
        panic!("scripts listen on TCP");
    };
    assert_eq!(exchanges as usize % (script.clients * script.pipelined as usize), 0);
    let worker = worker(&world, config.clone(), proxy);
    let pace = if script.clients > 1 { PACE } else { Duration::ZERO };
    let mut worker = PacedWorker { worker, world: world.clone(), pace, next: world.now() };
    let done = Rc::new(Cell::new(0));
    let mut clients = Clients {
        script,
        request: script.request.replace("ORIGIN", &origin_at).into_bytes(),
        proxy: Address::Tcp(proxy),
        connections: (0..script.clients).map(|_| BenchClient::default()).collect(),
        left: exchanges,
        done: done.clone(),
    };
    let mut origin = Origin { script, listener, connections: Vec::new() };
    let mut workers: [&mut dyn SimWorker; 1] = [&mut worker];
    let mut actors: [&mut dyn Actor; 2] = [&mut clients, &mut origin];
    let ended = run(&world, &mut workers, &mut actors, TIME, &mut |_| done.get() == exchanges);
    assert_eq!(ended, RunOutcome::Done, "{}: {} of {exchanges} exchanges", script.name, done.get());
}

/// A worker that pauses after each turn, so that ready events accumulate.
struct PacedWorker {
    worker: Worker<Border>,
    world: World,
    pace: Duration,
    next: Instant,
}

impl SimWorker for PacedWorker {
    fn run_turn(&mut self) -> bool {
        let now = self.world.now();
        if now < self.next {
            return true;
        }
        self.next = now + self.pace;
        border::turn(&mut self.worker)
    }
}

fn configure(script: &Script, world: &World, origin: &str) -> Config {
    let mut words: Vec<String> =
        script.command.iter().map(|word| word.replace("ORIGIN", origin)).collect();
    words.extend(["--listen", "127.0.0.1:0", "--workers", "1"].map(str::to_owned));
    if !script.command.contains(&"--access-log") {
        words.extend(["--access-log", "off"].map(str::to_owned));
    }
    let mut config = config::from_arguments(words).expect("the script's command is sound");
    let picked = world.actor_listen(&Address::Tcp(local()));
    if let Address::Tcp(address) = world.local_address(picked) {
        config.listeners[0].address = ListenAddress::Tcp(address);
    }
    world.close(picked);
    config
}

fn worker(world: &World, config: Arc<Config>, listen: SocketAddr) -> Worker<Border> {
    let (_, inbox) = mailbox::<WorkerMessage<SimDetached>, SimWaker>(MAILBOX_CAPACITY);
    let mail = mailbox_mesh(1, MAILBOX_CAPACITY)
        .into_iter()
        .next()
        .expect("one worker has one set of mailboxes");
    let cache = config.cache.as_ref().map(|_| cache());
    let shared = SharedState::new(1, "millrace-counted".to_owned(), None, cache, |_| {}, None);
    let engine = Border(world.engine(config.memory_bytes as usize));
    let setup = Setup {
        config,
        index: 0,
        listeners: vec![(0, world.listen(&Address::Tcp(listen)))],
        inbox,
        mail,
        shared,
        names: Arc::new(ResolverConfig::parse(b"", b"", &[])),
        verifier: millrace_proxy::auth::VerifierHandle::unavailable(),
        descriptors: 1000,
        thresholds: Thresholds::FIXED,
    };
    Worker::new(engine, setup).expect("a simulated engine takes its listener")
}

/// Returns a cache that needs no kernel.
fn cache() -> Arc<Cache> {
    let slab = Slab::on_heap(CACHE_BYTES).expect("enough for some blocks");
    let (bytes, object_bytes) = (CACHE_BYTES as u64, CACHE_BYTES as u64 / 8);
    let bounds = Bounds { bytes, object_bytes, variants: 16, prefaults: true };
    Cache::new(slab, HashKey::new([1; 16]), bounds)
}

fn local() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 0))
}

/// The clients. Each sends its next requests as soon as it has its responses, until all exchanges
/// have begun.
struct Clients<'a> {
    script: &'a Script,
    request: Vec<u8>,
    proxy: Address,
    connections: Vec<BenchClient>,
    left: u32,
    done: Rc<Cell<u32>>,
}

/// A connection and its state.
#[derive(Default)]
struct BenchClient {
    socket: Option<ActorSocket>,
    inbox: Vec<u8>,
    /// Responses that are due.
    due: u32,
}

impl Actor for Clients<'_> {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let Self { script, request, proxy, connections, left, done } = self;
        for connection in connections {
            while connection.step(world, script, request, proxy, left, done) {}
        }
        None
    }
}

impl BenchClient {
    /// Performs the next action. Returns false if there is none for now.
    fn step(
        &mut self,
        world: &World,
        script: &Script,
        request: &[u8],
        proxy: &Address,
        left: &mut u32,
        done: &Cell<u32>,
    ) -> bool {
        let Some(socket) = self.socket else {
            if *left > 0 {
                self.socket = Some(world.connect(proxy, None));
            }
            return false;
        };
        if world.connected(socket).is_none() {
            return false;
        }
        if self.due == 0 {
            if *left == 0 {
                return false;
            }
            *left -= script.pipelined;
            self.due = script.pipelined;
            for number in 0..script.pipelined {
                write(world, socket, &numbered(request, *left + number));
            }
        }
        if !receive(world, socket, &mut self.inbox) {
            return false;
        }
        while self.due > 0 && self.take_response(world, socket, script) {
            self.due -= 1;
            done.set(done.get() + 1);
            if script.closes {
                world.close(socket);
                *self = Self::default();
                return true;
            }
        }
        true
    }

    /// Takes one response from the inbox if it is complete, and checks it.
    fn take_response(&mut self, world: &World, socket: ActorSocket, script: &Script) -> bool {
        let Some(head) = head_length(&self.inbox) else { return false };
        let words = String::from_utf8_lossy(&self.inbox[..head]);
        assert!(words.starts_with("HTTP/1.1 200 "), "{}: {words}", script.name);
        let chunked = words.contains("Transfer-Encoding: chunked\r\n");
        if script.tunnel && self.inbox.len() == head {
            write(world, socket, PING);
            return false;
        }
        let rest = &self.inbox[head..];
        let length = match chunked {
            true if !rest.ends_with(b"\r\n0\r\n\r\n") => return false,
            true => rest.len(),
            false => script.body.len(),
        };
        if rest.len() < length {
            return false;
        }
        let got = if chunked { unchunked(rest) } else { rest[..length].to_vec() };
        assert!(got == script.body, "{}: wrong body", script.name);
        self.inbox.drain(..head + length);
        true
    }
}

/// The origin: responds to each complete request, on every connection.
struct Origin<'a> {
    script: &'a Script,
    listener: ActorSocket,
    connections: Vec<(ActorSocket, Vec<u8>)>,
}

impl Actor for Origin<'_> {
    fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((socket, _)) = world.accept(self.listener) {
            self.connections.push((socket, Vec::new()));
        }
        let script = self.script;
        self.connections.retain_mut(|(socket, inbox)| {
            loop {
                match world.read(*socket, usize::MAX) {
                    ReadResult::Bytes(bytes) => inbox.extend(bytes),
                    ReadResult::Nothing => return true,
                    ReadResult::End | ReadResult::Failed(_) => {
                        world.close(*socket);
                        return false;
                    }
                }
                while let Some(length) = request_length(script, inbox) {
                    inbox.drain(..length);
                    write(world, *socket, &script.response);
                }
            }
        });
        None
    }
}

/// Returns the request with `number` in place of [`NUMBER`].
fn numbered(request: &[u8], number: u32) -> Vec<u8> {
    let wanted = request.windows(NUMBER.len()).position(|bytes| bytes == NUMBER.as_bytes());
    let mut request = request.to_vec();
    if let Some(at) = wanted {
        request[at..at + NUMBER.len()].copy_from_slice(format!("{number:08}").as_bytes());
    }
    request
}

/// Returns the length of the first request that reached the origin, or `None` if it is incomplete.
fn request_length(script: &Script, inbox: &[u8]) -> Option<usize> {
    if script.tunnel {
        return inbox.starts_with(PING).then_some(PING.len());
    }
    let body = head_length(script.request.as_bytes()).map_or(0, |at| script.request.len() - at);
    let length = head_length(inbox)? + body;
    (inbox.len() >= length).then_some(length)
}

fn head_length(bytes: &[u8]) -> Option<usize> {
    bytes.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// Returns the payload of a complete chunked body without extensions and trailers.
fn unchunked(mut rest: &[u8]) -> Vec<u8> {
    let mut payload = Vec::new();
    while let Some(at) = rest.windows(2).position(|two| two == b"\r\n") {
        let size = std::str::from_utf8(&rest[..at]).ok();
        let size = size.and_then(|size| usize::from_str_radix(size, 16).ok()).expect("a size");
        payload.extend_from_slice(&rest[at + 2..at + 2 + size]);
        rest = &rest[at + 2 + size + 2..];
    }
    payload
}

/// Reads the available bytes. Returns false if there are none.
fn receive(world: &World, socket: ActorSocket, inbox: &mut Vec<u8>) -> bool {
    match world.read(socket, usize::MAX) {
        ReadResult::Bytes(bytes) => inbox.extend(bytes),
        ReadResult::Nothing => return false,
        ReadResult::End | ReadResult::Failed(_) => panic!("the proxy ended a connection"),
    }
    true
}

/// Writes all of `bytes`: the buffers of a world without faults hold more than any message here.
fn write(world: &World, socket: ActorSocket, bytes: &[u8]) {
    assert_eq!(world.write(socket, bytes), Ok(bytes.len()));
}

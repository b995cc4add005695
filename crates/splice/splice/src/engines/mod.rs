//! Tests of the direction state machine over the engines of the proxy, whose operations are
//! asynchronous. Its counts must hold over every engine and for every order of completions. The
//! application reads copies at once or late, and forwards the rest itself after an unsplice.
//!
//! SEEDS=20000 runs that many simulated worlds, half of them hostile, and TRANSFERS=10000 that many
//! transfers over each real engine. SEED=7 runs one seed.

mod check;
mod copy_reader;
mod engine_direction;
mod manual_direction;
mod peer;
mod transfer_driver;

use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use millrace_engine::{
    Address, Clock, Engine, EngineOptions, EpollEngine, Error, Instant as Virtual, PollEngine,
    SelectEngine, UringEngine, Wake,
};
use millrace_sim::{Actor, Faults, SimEngine, SimWorker, World};
use rustix::net::sockopt::set_socket_send_buffer_size;

use check::{Coverage, check};
use peer::{SimulatedStream, StreamPeer};
use transfer_driver::{TransferDriver, TransferSpec};

const SEEDS: u64 = 200;
const TRANSFERS: u64 = 200;
const BUDGET_BYTES: usize = 1 << 20;
/// The send buffer of a slow destination.
const SLOW_BYTES: usize = 16 * 1024;

/// Prints the seed if the test panics.
struct SeedReport(u64);

impl Drop for SeedReport {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}", self.0);
        }
    }
}

fn seeds(count: &str, otherwise: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().map(|text| text.parse().expect("a number"));
    match number("SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number(count).unwrap_or(otherwise),
    }
}

/// A peer in a simulated world that waits for the connection of the worker.
struct PendingPeer {
    listener: millrace_sim::ActorSocket,
    make: Option<Box<dyn FnOnce(SimulatedStream) -> StreamPeer<SimulatedStream>>>,
    peer: Option<StreamPeer<SimulatedStream>>,
}

impl Actor for PendingPeer {
    fn step(&mut self, world: &World) -> Option<Virtual> {
        if self.make.is_some()
            && let Some((socket, _)) = world.accept(self.listener)
        {
            let make = self.make.take().expect("it is there");
            self.peer = Some(make(SimulatedStream(world.clone(), socket)));
        }
        let continues = self.peer.as_mut().is_some_and(StreamPeer::step);
        continues.then(|| world.now() + Duration::from_millis(1))
    }
}

impl SimWorker for TransferDriver<SimEngine> {
    fn run_turn(&mut self) -> bool {
        let deadline = self.reads_at();
        self.engine.submit_and_wait(deadline);
        self.handle();
        true
    }
}

#[test]
fn transfers_over_simulated_engines() {
    let mut coverage = Coverage::default();
    let seeds = seeds("SEEDS", SEEDS);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let _report = SeedReport(seed);
        play_simulated(seed, &mut coverage);
    }
    let is_enough = coverage.whole > count / 3 && coverage.has_all();
    assert!(count < SEEDS || is_enough, "{coverage:?} of {count}");
}

fn play_simulated(seed: u64, coverage: &mut Coverage) {
    let faults = if seed.is_multiple_of(2) { Faults::Benign } else { Faults::Hostile };
    let spec = TransferSpec::new(seed, 14);
    let world = World::new(seed, faults);
    let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listeners = [world.actor_listen(&any), world.actor_listen(&any)];
    let addresses = listeners.map(|listener| world.local_address(listener));
    let Some(mut worker) =
        TransferDriver::connecting(world.engine(BUDGET_BYTES), &spec, &addresses)
    else {
        return;
    };
    let [mut peer0, mut peer1] = [0, 1].map(|side| {
        let spec = spec.clone();
        let make = move |stream| StreamPeer::new(stream, &spec, side);
        PendingPeer { listener: listeners[side], make: Some(Box::new(make)), peer: None }
    });
    let mut run = |worker: &mut TransferDriver<SimEngine>| {
        let (workers, actors): (&mut [&mut dyn SimWorker], &mut [&mut dyn Actor]) =
            (&mut [worker], &mut [&mut peer0, &mut peer1]);
        millrace_sim::run(&world, workers, actors, Duration::from_secs(3600), &mut |_| false);
    };
    run(&mut worker);
    // If a peer vanished, the transfer waits until it is ended here.
    assert!(faults == Faults::Hostile || worker.is_over(), "the transfer has stalled");
    worker.end();
    worker.engine.waker().wake();
    run(&mut worker);
    assert_eq!(world.leaks(), Vec::<String>::new());
    let (Some(peer0), Some(peer1)) = (&peer0.peer, &peer1.peer) else { return };
    check(&spec, &worker, [peer0, peer1], faults, coverage);
}

#[test]
fn transfers_over_epoll() {
    run_all(|| Some(EpollEngine::new(options()).expect("epoll is available")));
}

#[test]
fn transfers_over_uring() {
    run_all(|| match UringEngine::new(options()) {
        Err(Error::Unsupported(reason)) => {
            println!("skip: uring: {}: {}", reason.feature(), reason.reason());
            None
        }
        other => Some(other.expect("io_uring works")),
    });
}

#[test]
fn transfers_over_poll() {
    run_all(|| Some(PollEngine::new(options()).expect("poll is available")));
}

#[test]
fn transfers_over_select() {
    run_all(|| Some(SelectEngine::new(options()).expect("select is available")));
}

fn options() -> EngineOptions {
    EngineOptions { budget_bytes: BUDGET_BYTES, log: None, clock: Clock::new() }
}

fn run_all<E: Engine<DetachedFd = OwnedFd>>(engine: impl Fn() -> Option<E>) {
    let mut coverage = Coverage::default();
    let seeds = seeds("TRANSFERS", TRANSFERS);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let _report = SeedReport(seed);
        let Some(engine) = engine() else { return };
        run_real(seed, engine, &mut coverage);
    }
    assert!(count < TRANSFERS || coverage.has_all(), "{coverage:?} of {count}");
}

fn run_real<E: Engine<DetachedFd = OwnedFd>>(seed: u64, mut engine: E, coverage: &mut Coverage) {
    let spec = TransferSpec::new(seed, 22);
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let streams = listeners.each_ref().map(|listener| {
        let ours = TcpStream::connect(listener.local_addr().expect("it is bound"));
        let (theirs, _) = listener.accept().expect("we connect");
        [ours.expect("it listens"), theirs]
    });
    for stream in streams.iter().flatten() {
        stream.set_nonblocking(true).expect("it is open");
        stream.set_nodelay(true).expect("it is TCP");
    }
    let [[fd0, peer0], [fd1, peer1]] = streams;
    if spec.is_slow {
        // A small buffer stops the worker in the middle of a pipe.
        set_socket_send_buffer_size(&fd1, SLOW_BYTES).expect("it is a socket");
    }
    let fds = [fd0, fd1].map(|stream| engine.adopt(stream.into()).expect("the engine has room"));
    let mut worker = TransferDriver::with(engine, &spec, fds);
    let mut peers =
        [StreamPeer::new(Some(peer0), &spec, 0), StreamPeer::new(Some(peer1), &spec, 1)];
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < Duration::from_secs(60), "the transfer has stalled");
        // The peers are on this thread, so the engine must not wait.
        let now = worker.engine.now();
        worker.engine.submit_and_wait(Some(now));
        worker.handle();
        let continues = peers.iter_mut().fold(false, |continues, peer| peer.step() | continues);
        if worker.is_over() && !continues {
            break;
        }
    }
    let has_reset = peers.iter().any(|peer| peer.has_reset);
    assert!(has_reset || worker.is_whole(), "no peer aborts: {:?}", worker.ends);
    check(&spec, &worker, [&peers[0], &peers[1]], Faults::None, coverage);
}

//! Flows over the engines of the proxy, where what moves bytes is queued and completes later: the
//! same numbers hold over every engine, whatever the order of its completions.
//!
//! SEEDS=20000 plays so many in simulated worlds, half of them hostile, and TRANSFERS=10000 so many
//! over each real engine; SEED=7 plays one.

mod peer;
mod play;
mod way;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use millrace_event::{
    Address, Clock, Engine, EngineOptions, Epoll, Error, Instant as Virtual, Uring, Wake,
};
use millrace_sim::{Actor, Faults, Sim, Turn, World};
use rand_core::SeedableRng;
use rand_pcg::Pcg64Mcg;

use crate::request::End;
use peer::{Peer, Simulated, Stream};
use play::{Asked, Worker};

const SEEDS: u64 = 500;
const TRANSFERS: u64 = 200;
const BUDGET_BYTES: usize = 1 << 20;

/// Says which seed failed.
struct Told(u64);

impl Drop for Told {
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

/// What must be so in the end of what did not break: how each way ended, and what came.
fn check<E: Engine, S: Stream>(asked: &Asked, worker: &Worker<E>, peers: [&Peer<S>; 2]) {
    if !worker.is_whole() {
        return;
    }
    for (way, (end, &forwarded)) in worker.ends.iter().zip(&worker.forwarded).enumerate() {
        let [from, to] = [peers[way], peers[1 - way]];
        let first = if way == 0 { asked.first.len() } else { 0 };
        assert!(to.is_broken || to.got == first + forwarded as usize, "all that was sent came");
        match end {
            Some(End::Limit) => assert_eq!(asked.limit, Some(forwarded)),
            Some(End::Closed) => assert_eq!(from.sent as u64, forwarded),
            other => panic!("{other:?}"),
        }
    }
}

/// A peer in a simulated world, once the worker has connected.
struct Waiting {
    listener: millrace_sim::Socket,
    make: Option<Box<dyn FnOnce(Simulated) -> Peer<Simulated>>>,
    peer: Option<Peer<Simulated>>,
}

impl Actor for Waiting {
    fn step(&mut self, world: &World) -> Option<Virtual> {
        if self.make.is_some()
            && let Some((socket, _)) = world.accept(self.listener)
        {
            let make = self.make.take().expect("it is there");
            self.peer = Some(make(Simulated(world.clone(), socket)));
        }
        let goes_on = self.peer.as_mut().is_some_and(Peer::step);
        goes_on.then(|| world.now() + Duration::from_millis(1))
    }
}

impl Turn for Worker<Sim> {
    fn turn(&mut self) -> bool {
        self.engine.turn(None);
        self.handle();
        true
    }
}

#[test]
fn flows_over_simulated_engines() {
    let mut whole = 0;
    let seeds = seeds("SEEDS", SEEDS);
    let count = seeds.end - seeds.start;
    for seed in seeds {
        let _told = Told(seed);
        whole += u64::from(play_simulated(seed));
    }
    assert!(count < 100 || whole > count / 2, "{whole} of {count} came to their end");
}

/// Whether the transfer came to its end.
fn play_simulated(seed: u64) -> bool {
    let faults = if seed.is_multiple_of(2) { Faults::Benign } else { Faults::Hostile };
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let asked = Asked::new(&mut random, 14);
    let world = World::new(seed, faults);
    let any = Address::Tcp("127.0.0.1:0".parse().expect("an address"));
    let listeners = [world.actor_listen(&any), world.actor_listen(&any)];
    let addresses = listeners.map(|listener| world.local_address(listener));
    let Some(mut worker) = Worker::new(world.engine(BUDGET_BYTES), &asked, &addresses) else {
        return false;
    };
    let [mut peer0, mut peer1] = [0, 1].map(|side| {
        let asked = asked.clone();
        let make = move |stream| Peer::new(stream, seed, &asked, side);
        Waiting { listener: listeners[side], make: Some(Box::new(make)), peer: None }
    });
    let mut run = |worker: &mut Worker<Sim>| {
        let (workers, actors): (&mut [&mut dyn Turn], &mut [&mut dyn Actor]) =
            (&mut [worker], &mut [&mut peer0, &mut peer1]);
        millrace_sim::run(&world, workers, actors, Duration::from_secs(3600), &mut |_| false);
    };
    run(&mut worker);
    // A peer that vanished lets a transfer stand, until somebody ends it.
    assert!(faults == Faults::Hostile || worker.is_over(), "it waits for ever");
    worker.end();
    worker.engine.waker().wake();
    run(&mut worker);
    assert_eq!(world.leaks(), Vec::<String>::new());
    let (Some(peer0), Some(peer1)) = (&peer0.peer, &peer1.peer) else { return false };
    // In a hostile world what was sent may never come.
    if faults == Faults::Benign {
        check(&asked, &worker, [peer0, peer1]);
    }
    worker.is_whole()
}

#[test]
fn flows_over_epoll() {
    play_all(|| Some(Epoll::new(options()).expect("every machine has it")));
}

#[test]
fn flows_over_uring() {
    play_all(|| match Uring::new(options()) {
        Err(Error::Unsupported(reason)) => {
            println!("skip: uring: {}: {}", reason.feature(), reason.since());
            None
        }
        other => Some(other.expect("nothing else is wrong")),
    });
}

fn options() -> EngineOptions {
    EngineOptions { budget_bytes: BUDGET_BYTES, log: None, clock: Clock::new() }
}

fn play_all<E: Engine>(engine: impl Fn() -> Option<E>) {
    for seed in seeds("TRANSFERS", TRANSFERS) {
        let _told = Told(seed);
        let Some(engine) = engine() else { return };
        play_real(seed, engine);
    }
}

fn play_real<E: Engine>(seed: u64, engine: E) {
    let asked = Asked::new(&mut Pcg64Mcg::seed_from_u64(seed), 22);
    let listeners = [0, 1].map(|_| TcpListener::bind("127.0.0.1:0").expect("a port is free"));
    let address = |it: &TcpListener| Address::Tcp(it.local_addr().expect("it is bound"));
    let addresses = [address(&listeners[0]), address(&listeners[1])];
    let mut worker = Worker::new(engine, &asked, &addresses).expect("they listen");
    let mut peers = [0, 1].map(|side| {
        let (stream, _) = listeners[side].accept().expect("the worker connects");
        stream.set_nonblocking(true).expect("it is open");
        Peer::new(Some(stream), seed, &asked, side)
    });
    let since = Instant::now();
    loop {
        assert!(since.elapsed() < Duration::from_secs(60), "it waits for ever");
        // It does not wait: the peers are on this thread, too.
        let now = worker.engine.now();
        worker.engine.turn(Some(now));
        worker.handle();
        let goes_on = peers.iter_mut().fold(false, |goes_on, peer| peer.step() | goes_on);
        if worker.is_over() && !goes_on {
            break;
        }
    }
    let has_reset = peers.iter().any(|peer| peer.has_reset);
    assert!(has_reset || worker.is_whole(), "nobody aborts: {:?}", worker.ends);
    check(&asked, &worker, [&peers[0], &peers[1]]);
}

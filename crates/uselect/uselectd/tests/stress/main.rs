//! Stress test: compares the shared memory with poll(2) under random operations on sockets.
//!
//! Two threads of a tracked process (players) use their sockets at random, and two other threads
//! (peers) the other ends. At intervals all of them pause, and every tracked descriptor is
//! compared. Then a thread sleeps several times, and a single event has to wake it.
//! COMPARISONS=100000 and SLEEPS=1000 run the test longer, MODE=lean runs it in one mode, and SEED
//! repeats the random choices. SEED does not repeat their order, because threads and network are
//! real.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../common/mod.rs"]
mod common;
mod compare;
#[path = "../common/listener.rs"]
mod listener;
#[path = "../common/modes.rs"]
mod modes;
mod peer;
mod player;
mod sleeps;

use std::net::{SocketAddr, SocketAddrV4};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use compare::StressCounts;
use player::Player;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use uselect::TrackedSocket;

const THREADS: usize = 2;
/// How long players and peers run between two comparisons.
const PLAY: Duration = Duration::from_millis(150);
/// How long the network gets to become idle before a comparison. A delayed acknowledgement takes
/// 40 ms.
const REST: Duration = Duration::from_millis(70);

/// How often a thread sleeps during a pause.
const SLEEPS_PER_PAUSE: usize = 4;

/// State that all threads share.
struct SharedState {
    is_paused: AtomicBool,
    is_over: AtomicBool,
    /// For all players, all peers, and the thread that compares.
    barrier: Barrier,
    listener: TrackedSocket,
    address: SocketAddrV4,
    /// The address of the listener to which players connect.
    peer_address: SocketAddr,
}

impl SharedState {
    /// Called by players and peers before each step. Waits during a pause. Returns false when the
    /// test is over.
    fn wait_for_next_step(&self) -> bool {
        if self.is_paused.load(Ordering::Relaxed) {
            self.barrier.wait();
            self.barrier.wait();
        }
        !self.is_over.load(Ordering::Relaxed)
    }
}

pub(crate) struct RandomChoices(Pcg64Mcg);

impl RandomChoices {
    fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0.next_u64() as usize % bound
    }

    /// Returns a number of bytes; each order of magnitude is equally likely.
    fn bytes(&mut self) -> usize {
        let bits = 1 + self.below(18);
        1 + self.below((1 << bits).min(300 << 10))
    }
}

fn env_number(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn shared_memory_agrees_with_poll() {
    if !modes::runs_here("shared_memory_agrees_with_poll") {
        return;
    }
    let Some(tracker) = common::tracker() else { return };
    let (comparisons, sleeps) = (env_number("COMPARISONS", 2_000), env_number("SLEEPS", 30));
    let seed = env_number("SEED", std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("SEED={seed}");
    let (listener, address) = listener::listener(tracker);
    let peer_listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    peer_listener.set_nonblocking(true).unwrap();
    let shared = Arc::new(SharedState {
        is_paused: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        barrier: Barrier::new(2 * THREADS + 1),
        listener,
        address,
        peer_address: peer_listener.local_addr().unwrap(),
    });
    let peer_listener = Arc::new(peer_listener);
    let (mut threads, mut players) = (Vec::new(), Vec::new());
    for thread in 0..THREADS as u64 {
        let player = Arc::new(Mutex::new(Player::new(tracker, seed ^ thread)));
        players.push(player.clone());
        let (here, there) = (shared.clone(), shared.clone());
        threads.push(std::thread::spawn(move || player::play(&player, &here)));
        let peer_listener = peer_listener.clone();
        let random = RandomChoices::new(!seed ^ thread);
        threads.push(std::thread::spawn(move || peer::play(random, &there, &peer_listener)));
    }
    let (mut counts, mut random) =
        (StressCounts::default(), RandomChoices::new(seed.rotate_left(32)));
    while counts.compared < comparisons || counts.slept < sleeps {
        std::thread::sleep(PLAY);
        shared.is_paused.store(true, Ordering::Relaxed);
        shared.barrier.wait();
        std::thread::sleep(REST);
        let locked: Vec<_> = players.iter().map(|player| player.lock().unwrap()).collect();
        counts.compare(&shared.listener, &locked);
        for _ in 0..SLEEPS_PER_PAUSE {
            sleeps::sleep(tracker, &locked, &mut counts, &mut random);
        }
        drop(locked);
        shared.is_paused.store(false, Ordering::Relaxed);
        shared.barrier.wait();
    }
    shared.is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let steps: u64 = players.iter().map(|player| player.lock().unwrap().steps).sum();
    println!("{:?}: {counts:?}, {steps} steps of players", tracker.backend());
    println!("{:?}", tracker.stats());
    assert_eq!((counts.different, counts.late, counts.lost), (0, 0, 0));
}

//! What memory says against what poll(2) says, under everything that sockets are used for.
//!
//! Two threads of a tracked process play with their sockets, two others with the other ends, all at
//! random. Now and then all stand still, and every tracked descriptor is compared; then a thread
//! sleeps, and is to be woken by the one thing that happens. COMPARISONS=100000 and SLEEPS=1000 play
//! longer, MODE=lean in that mode alone, SEED plays the same choices again (not the same order:
//! threads and network are real).

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

use compare::Counts;
use player::Player;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use uselect::TrackedSocket;

const THREADS: usize = 2;
/// How long all play between two comparisons, and how long the network then comes to rest: a
/// delayed acknowledgement takes 40 ms.
const PLAY: Duration = Duration::from_millis(150);
const REST: Duration = Duration::from_millis(70);

/// How often a thread sleeps while all stand still.
const NAPS: usize = 4;

/// What everybody has.
struct Stage {
    is_paused: AtomicBool,
    is_over: AtomicBool,
    /// All players, all peers, and who compares.
    barrier: Barrier,
    listener: TrackedSocket,
    address: SocketAddrV4,
    /// Of the listener that players connect to.
    elsewhere: SocketAddr,
}

impl Stage {
    /// Called by whoever plays before each step: false when the play is over.
    fn goes_on(&self) -> bool {
        if self.is_paused.load(Ordering::Relaxed) {
            self.barrier.wait();
            self.barrier.wait();
        }
        !self.is_over.load(Ordering::Relaxed)
    }
}

pub(crate) struct Dice(Pcg64Mcg);

impl Dice {
    fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.0.next_u64() as usize % bound
    }

    /// A count of bytes, short ones as likely as long ones.
    fn bytes(&mut self) -> usize {
        let bits = 1 + self.below(18);
        1 + self.below((1 << bits).min(300 << 10))
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |text| text.parse().expect("a number"))
}

#[test]
fn memory_says_what_poll_says() {
    if !modes::is_chosen("memory_says_what_poll_says") {
        return;
    }
    let Some(tracker) = common::tracker() else { return };
    let (comparisons, sleeps) = (number("COMPARISONS", 2_000), number("SLEEPS", 30));
    let seed = number("SEED", std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64);
    println!("SEED={seed}");
    let (listener, address) = listener::listener(tracker);
    let elsewhere = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let stage = Arc::new(Stage {
        is_paused: AtomicBool::new(false),
        is_over: AtomicBool::new(false),
        barrier: Barrier::new(2 * THREADS + 1),
        listener,
        address,
        elsewhere: elsewhere.local_addr().unwrap(),
    });
    let elsewhere = Arc::new(elsewhere);
    let (mut threads, mut players) = (Vec::new(), Vec::new());
    for thread in 0..THREADS as u64 {
        let player = Arc::new(Mutex::new(Player::new(tracker, seed ^ thread)));
        players.push(player.clone());
        let (here, there) = (stage.clone(), stage.clone());
        threads.push(std::thread::spawn(move || player::play(&player, &here)));
        let elsewhere = elsewhere.clone();
        let dice = Dice::new(!seed ^ thread);
        threads.push(std::thread::spawn(move || peer::play(dice, &there, &elsewhere)));
    }
    let (mut counts, mut dice) = (Counts::default(), Dice::new(seed.rotate_left(32)));
    while counts.compared < comparisons || counts.slept < sleeps {
        std::thread::sleep(PLAY);
        stage.is_paused.store(true, Ordering::Relaxed);
        stage.barrier.wait();
        std::thread::sleep(REST);
        let locked: Vec<_> = players.iter().map(|player| player.lock().unwrap()).collect();
        counts.compare(&stage.listener, &locked);
        for _ in 0..NAPS {
            sleeps::sleep(tracker, &locked, &mut counts, &mut dice);
        }
        drop(locked);
        stage.is_paused.store(false, Ordering::Relaxed);
        stage.barrier.wait();
    }
    stage.is_over.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    let steps: u64 = players.iter().map(|player| player.lock().unwrap().steps).sum();
    println!("{:?}: {counts:?}, {steps} steps of players", tracker.backend());
    println!("{:?}", tracker.stats());
    assert_eq!((counts.different, counts.late, counts.lost), (0, 0, 0));
}

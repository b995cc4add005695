//! A question about many descriptors that changes from wait to wait, beside poll(2).

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;
#[path = "common/modes.rs"]
mod modes;

use std::io::Write;
use std::net::{Shutdown, SocketAddrV4, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::{mode, tracker};
use listener::listener;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;
use uselect::{PollFd, TrackedSocket, Tracker, TrackingMode, bits};

const PAIRS: usize = 200;
const STEPS: usize = 3000;
/// Steps between two sleeps.
const NAP: usize = 50;
const NOW: Option<Duration> = Some(Duration::ZERO);
const LONG: Duration = Duration::from_secs(10);
const READING: u16 = (bits::IN | bits::RDNORM) as u16;
const EVENTS: [u32; 7] = [
    bits::IN,
    bits::IN | bits::RDHUP,
    bits::IN | bits::RDNORM | bits::RDHUP,
    bits::RDHUP,
    bits::IN | bits::OUT,
    bits::PRI,
    0,
];

#[test]
fn a_crowd_is_what_poll_says() {
    if !modes::is_chosen("a_crowd_is_what_poll_says") {
        return;
    }
    let Some(tracker) = tracker() else { return };
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(seed, |text| text.parse().unwrap());
    println!("SEED={seed}");
    let mut crowd = Crowd::new(tracker, Pcg64Mcg::seed_from_u64(seed));
    let mut ready = 0;
    for step in 0..STEPS {
        crowd.change();
        ready += crowd.compare(step);
        if step % NAP == 0 {
            crowd.nap(step);
        }
    }
    assert!(ready > STEPS, "{ready} answers were compared");
    assert!(crowd.reused > STEPS / NAP, "{} numbers were used again", crowd.reused);
}

struct Crowd {
    tracker: &'static Tracker,
    dice: Pcg64Mcg,
    listener: TrackedSocket,
    address: SocketAddrV4,
    pairs: Vec<Pair>,
    asked: Vec<PollFd>,
    /// How often another socket had the number of one that was asked about.
    reused: usize,
}

struct Pair {
    socket: TrackedSocket,
    peer: TcpStream,
    /// The peer sends nothing more.
    is_ended: bool,
}

impl Crowd {
    fn new(tracker: &'static Tracker, dice: Pcg64Mcg) -> Self {
        let (listener, address) = listener(tracker);
        let (pairs, asked) = (Vec::new(), Vec::new());
        let mut crowd = Self { tracker, dice, listener, address, pairs, asked, reused: 0 };
        for _ in 0..PAIRS {
            let pair = crowd.pair();
            crowd.asked.push(entry(&pair, bits::IN));
            crowd.pairs.push(pair);
        }
        crowd
    }

    fn pair(&self) -> Pair {
        let peer = TcpStream::connect(self.address).unwrap();
        let (socket, _) = self.listener.accept(false).unwrap();
        assert!(socket.is_tracked());
        Pair { socket, peer, is_ended: false }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.dice.next_u64() as usize % bound
    }

    /// Something happens to a socket, or is asked in another way.
    fn change(&mut self) {
        let (one, other) = (self.below(PAIRS), self.below(PAIRS));
        let (at, to) = (self.below(self.asked.len()), self.below(self.asked.len()));
        let events = EVENTS[self.below(EVENTS.len())];
        match self.below(12) {
            0..=2 if !self.pairs[one].is_ended => {
                (&self.pairs[one].peer).write_all(&[1; 100]).unwrap();
            }
            3..=4 => drain(&self.pairs[one].socket),
            5 => {
                self.pairs[one].peer.shutdown(Shutdown::Write).unwrap();
                self.pairs[one].is_ended = true;
            }
            // As likely as not it has the number of the one that was.
            6 => {
                let left = self.pairs.swap_remove(one);
                drain(&left.socket);
                drop(left);
                let pair = self.pair();
                self.asked[at] = entry(&pair, events);
                self.pairs.push(pair);
            }
            7 => self.asked[at].events = events as u16,
            8 => self.asked.swap(at, to),
            9 => self.asked[at] = entry(&self.pairs[other], events),
            10 if self.asked.len() > PAIRS / 2 => {
                self.asked.pop();
            }
            11 => self.asked.push(entry(&self.pairs[other], events)),
            _ => self.asked[at].fd = -1,
        }
        // Of one that is closed nobody asks.
        let open = |fd: i32| self.pairs.iter().any(|pair| pair.socket.as_raw_fd() == fd);
        self.asked.iter_mut().filter(|entry| !open(entry.fd)).for_each(|entry| entry.fd = -1);
    }

    /// How many are ready.
    fn compare(&mut self, step: usize) -> usize {
        let end = Instant::now() + LONG;
        loop {
            let said = self.tracker.upoll(&mut self.asked, NOW, None).unwrap();
            let mut polled = self.asked.clone();
            let count = poll(&mut polled);
            // In lean mode what was received is told until the kernel has looked.
            let is_lean = mode() == TrackingMode::Lean;
            let is_right = |(said, found): (&PollFd, &PollFd)| {
                let looked = if is_lean { found.revents | !READING } else { u16::MAX };
                said.revents & looked == found.revents
            };
            let are_right = self.asked.iter().zip(&polled).all(is_right);
            let told = self.asked.iter().filter(|entry| entry.revents != 0).count();
            if are_right && said == told {
                return count;
            }
            // Bytes may be on their way.
            let pairs = self.asked.iter().zip(&polled);
            let wrong: Vec<_> = pairs.filter(|pair| !is_right(*pair)).collect();
            assert!(Instant::now() < end, "step {step}: {said} said, {told} told, {wrong:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The same question is slept on again and again, and one thing happens.
    fn nap(&mut self, step: usize) {
        self.pairs.iter().for_each(|pair| drain(&pair.socket));
        let mut asked = self.asked.clone();
        for entry in &mut asked {
            let is_of = |pair: &&Pair| pair.socket.as_raw_fd() == entry.fd;
            let is_ended = self.pairs.iter().find(is_of).is_none_or(|pair| pair.is_ended);
            *entry = PollFd { fd: if is_ended { -1 } else { entry.fd }, ..*entry };
            entry.events = bits::IN as u16;
        }
        for round in 0..6 {
            let fds: Vec<i32> = asked.iter().map(|entry| entry.fd).filter(|fd| *fd >= 0).collect();
            let mut fd = fds[self.below(fds.len())];
            let at = self.pairs.iter().position(|pair| pair.socket.as_raw_fd() == fd).unwrap();
            match round % 3 {
                // What is expected of it is another one's, or ends: it is asked about by another
                // thread, or another socket has its number.
                1 => self.nap_elsewhere(fd),
                2 => {
                    drop(self.pairs.swap_remove(at));
                    let pair = self.pair();
                    let new = pair.socket.as_raw_fd();
                    self.pairs.push(pair);
                    // But for what the daemon, a thread of this process, may have for a moment,
                    // numbers are given out from below.
                    self.reused += usize::from(new == fd);
                    asked
                        .iter_mut()
                        .filter(|entry| entry.fd == fd)
                        .for_each(|entry| entry.fd = new);
                    fd = new;
                }
                _ => {}
            }
            let pair = self.pairs.iter().find(|pair| pair.socket.as_raw_fd() == fd).unwrap();
            let mut peer = pair.peer.try_clone().unwrap();
            let other = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(2));
                peer.write_all(b"x").unwrap();
            });
            let begin = Instant::now();
            let count = self.tracker.upoll(&mut asked, Some(LONG), None).unwrap();
            // At its end it looks once more, whether it was woken or not.
            assert!(begin.elapsed() < LONG, "step {step}: what happened woke nobody");
            other.join().unwrap();
            let told: Vec<i32> =
                asked.iter().filter(|entry| entry.revents != 0).map(|entry| entry.fd).collect();
            let times = asked.iter().filter(|entry| entry.fd == fd).count();
            assert_eq!(told, vec![fd; times], "step {step}");
            assert_eq!(count, times, "step {step}");
            drain(&pair.socket);
        }
    }

    fn nap_elsewhere(&self, fd: i32) {
        let tracker = self.tracker;
        let sleeper = std::thread::spawn(move || {
            let mut asked = [PollFd { fd, events: bits::RDHUP as u16, revents: 0 }];
            tracker.upoll(&mut asked, Some(Duration::from_millis(1)), None).unwrap()
        });
        assert_eq!(sleeper.join().unwrap(), 0);
    }
}

fn entry(pair: &Pair, events: u32) -> PollFd {
    PollFd { fd: pair.socket.as_raw_fd(), events: events as u16, revents: 0 }
}

fn drain(socket: &TrackedSocket) {
    while socket.receive(&mut [0; 4096]).is_ok_and(|count| count > 0) {}
}

/// poll(2).
fn poll(fds: &mut [PollFd]) -> usize {
    fds.iter_mut().for_each(|entry| entry.revents = 0);
    // SAFETY: a PollFd has the fields of a pollfd, and there are as many as are said.
    let count = unsafe { libc::poll(fds.as_mut_ptr().cast(), fds.len() as _, 0) };
    usize::try_from(count).unwrap()
}

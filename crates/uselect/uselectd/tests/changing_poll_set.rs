//! A large poll set that changes from wait to wait, compared with poll(2).

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
/// The number of steps between two sleeps.
const SLEEP_EVERY: usize = 50;
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
fn a_changing_poll_set_agrees_with_poll() {
    if !modes::runs_here("a_changing_poll_set_agrees_with_poll") {
        return;
    }
    let Some(tracker) = tracker() else { return };
    let seed = std::time::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = std::env::var("SEED").map_or(seed, |text| text.parse().unwrap());
    println!("SEED={seed}");
    let mut test = PollSetTest::new(tracker, Pcg64Mcg::seed_from_u64(seed));
    let mut ready = 0;
    for step in 0..STEPS {
        test.change();
        ready += test.compare(step);
        if step % SLEEP_EVERY == 0 {
            test.sleep_on_same_set(step);
        }
    }
    assert!(ready > STEPS, "{ready} ready descriptors were compared");
    assert!(test.reused_fds > STEPS / SLEEP_EVERY, "{} descriptors were reused", test.reused_fds);
}

struct PollSetTest {
    tracker: &'static Tracker,
    rng: Pcg64Mcg,
    listener: TrackedSocket,
    address: SocketAddrV4,
    pairs: Vec<Pair>,
    poll_set: Vec<PollFd>,
    /// How often a new socket got the descriptor of a closed socket of the poll set.
    reused_fds: usize,
}

struct Pair {
    socket: TrackedSocket,
    peer: TcpStream,
    /// The peer has shut down its sending side.
    is_shut_down: bool,
}

impl PollSetTest {
    fn new(tracker: &'static Tracker, rng: Pcg64Mcg) -> Self {
        let (listener, address) = listener(tracker);
        let (pairs, poll_set) = (Vec::new(), Vec::new());
        let mut test = Self { tracker, rng, listener, address, pairs, poll_set, reused_fds: 0 };
        for _ in 0..PAIRS {
            let pair = test.pair();
            test.poll_set.push(entry(&pair, bits::IN));
            test.pairs.push(pair);
        }
        test
    }

    fn pair(&self) -> Pair {
        let peer = TcpStream::connect(self.address).unwrap();
        let (socket, _) = self.listener.accept(false).unwrap();
        assert!(socket.is_tracked());
        Pair { socket, peer, is_shut_down: false }
    }

    fn random_below(&mut self, bound: usize) -> usize {
        self.rng.next_u64() as usize % bound
    }

    /// Changes a socket or an entry of the poll set at random.
    fn change(&mut self) {
        let (one, other) = (self.random_below(PAIRS), self.random_below(PAIRS));
        let (at, to) =
            (self.random_below(self.poll_set.len()), self.random_below(self.poll_set.len()));
        let events = EVENTS[self.random_below(EVENTS.len())];
        match self.random_below(12) {
            0..=2 if !self.pairs[one].is_shut_down => {
                (&self.pairs[one].peer).write_all(&[1; 100]).unwrap();
            }
            3..=4 => drain(&self.pairs[one].socket),
            5 => {
                self.pairs[one].peer.shutdown(Shutdown::Write).unwrap();
                self.pairs[one].is_shut_down = true;
            }
            // The new socket often gets the same descriptor.
            6 => {
                let left = self.pairs.swap_remove(one);
                drain(&left.socket);
                drop(left);
                let pair = self.pair();
                self.poll_set[at] = entry(&pair, events);
                self.pairs.push(pair);
            }
            7 => self.poll_set[at].events = events as u16,
            8 => self.poll_set.swap(at, to),
            9 => self.poll_set[at] = entry(&self.pairs[other], events),
            10 if self.poll_set.len() > PAIRS / 2 => {
                self.poll_set.pop();
            }
            11 => self.poll_set.push(entry(&self.pairs[other], events)),
            _ => self.poll_set[at].fd = -1,
        }
        // Disable the entries of closed descriptors.
        let open = |fd: i32| self.pairs.iter().any(|pair| pair.socket.as_raw_fd() == fd);
        self.poll_set.iter_mut().filter(|entry| !open(entry.fd)).for_each(|entry| entry.fd = -1);
    }

    /// Compares upoll with poll(2). Returns the number of ready entries.
    fn compare(&mut self, step: usize) -> usize {
        let end = Instant::now() + LONG;
        loop {
            let upolled = self.tracker.upoll(&mut self.poll_set, NOW, None).unwrap();
            let mut polled = self.poll_set.clone();
            let count = poll(&mut polled);
            // In lean mode a socket may be reported readable once more after its bytes were
            // received.
            let is_lean = mode() == TrackingMode::Lean;
            let agrees = |(entry, kernel): (&PollFd, &PollFd)| {
                let compared = if is_lean { kernel.revents | !READING } else { u16::MAX };
                entry.revents & compared == kernel.revents
            };
            let all_agree = self.poll_set.iter().zip(&polled).all(agrees);
            let reported = self.poll_set.iter().filter(|entry| entry.revents != 0).count();
            if all_agree && upolled == reported {
                return count;
            }
            // Data may still be in flight.
            let pairs = self.poll_set.iter().zip(&polled);
            let wrong: Vec<_> = pairs.filter(|pair| !agrees(*pair)).collect();
            assert!(
                Instant::now() < end,
                "step {step}: returned {upolled}, {reported} entries, {wrong:?}"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sleeps on the same poll set several times, and causes a single event each time.
    fn sleep_on_same_set(&mut self, step: usize) {
        self.pairs.iter().for_each(|pair| drain(&pair.socket));
        let mut poll_set = self.poll_set.clone();
        for entry in &mut poll_set {
            let is_of = |pair: &&Pair| pair.socket.as_raw_fd() == entry.fd;
            let is_shut_down = self.pairs.iter().find(is_of).is_none_or(|pair| pair.is_shut_down);
            *entry = PollFd { fd: if is_shut_down { -1 } else { entry.fd }, ..*entry };
            entry.events = bits::IN as u16;
        }
        for round in 0..6 {
            let fds: Vec<i32> =
                poll_set.iter().map(|entry| entry.fd).filter(|fd| *fd >= 0).collect();
            let mut fd = fds[self.random_below(fds.len())];
            let at = self.pairs.iter().position(|pair| pair.socket.as_raw_fd() == fd).unwrap();
            match round % 3 {
                // Another thread takes over the interest of the descriptor.
                1 => self.sleep_in_another_thread(fd),
                // The descriptor is closed and reused.
                2 => {
                    drop(self.pairs.swap_remove(at));
                    let pair = self.pair();
                    let new = pair.socket.as_raw_fd();
                    self.pairs.push(pair);
                    // The kernel returns the lowest free number, but the daemon, which is a thread
                    // of this process, may hold it for a moment.
                    self.reused_fds += usize::from(new == fd);
                    poll_set
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
            let count = self.tracker.upoll(&mut poll_set, Some(LONG), None).unwrap();
            // At a timeout upoll checks once more, so only the duration shows a missed wake-up.
            assert!(begin.elapsed() < LONG, "step {step}: the event woke no sleeper");
            other.join().unwrap();
            let reported: Vec<i32> =
                poll_set.iter().filter(|entry| entry.revents != 0).map(|entry| entry.fd).collect();
            let times = poll_set.iter().filter(|entry| entry.fd == fd).count();
            assert_eq!(reported, vec![fd; times], "step {step}");
            assert_eq!(count, times, "step {step}");
            drain(&pair.socket);
        }
    }

    fn sleep_in_another_thread(&self, fd: i32) {
        let tracker = self.tracker;
        let sleeper = std::thread::spawn(move || {
            let mut poll_set = [PollFd { fd, events: bits::RDHUP as u16, revents: 0 }];
            tracker.upoll(&mut poll_set, Some(Duration::from_millis(1)), None).unwrap()
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

/// Calls poll(2) and returns the number of ready entries.
fn poll(fds: &mut [PollFd]) -> usize {
    fds.iter_mut().for_each(|entry| entry.revents = 0);
    // SAFETY: PollFd has the layout of struct pollfd, and `fds` has the given length.
    let count = unsafe { libc::poll(fds.as_mut_ptr().cast(), fds.len() as _, 0) };
    usize::try_from(count).unwrap()
}

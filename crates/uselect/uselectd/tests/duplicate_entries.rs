//! Poll sets with several entries for the same descriptor, each with other events.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;
#[path = "common/modes.rs"]
mod modes;

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::tracker;
use listener::listener;
use uselect::{PollFd, bits};

const SOON: Option<Duration> = Some(Duration::from_millis(20));
const LONG: Duration = Duration::from_secs(10);
/// A poll set of this size is cached.
const MANY: usize = 100;

#[test]
fn data_ends_a_sleep_with_duplicate_entries() {
    if !modes::runs_here("data_ends_a_sleep_with_duplicate_entries") {
        return;
    }
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let client = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(true).unwrap();
    let entry = |events: u32| PollFd { fd: socket.as_raw_fd(), events: events as u16, revents: 0 };
    let unused = PollFd { fd: -1, events: 0, revents: 0 };
    let both = bits::IN | bits::RDHUP;
    let orders = [[bits::IN, bits::RDHUP], [bits::RDHUP, bits::IN], [both, bits::RDHUP]];
    for (requested, others) in [0, MANY].into_iter().flat_map(|n| orders.map(|o| (o, n))) {
        let mut fds: Vec<_> = requested.map(entry).into_iter().collect();
        fds.resize(requested.len() + others, unused);
        // The next wait has the same poll set as this one.
        assert_eq!(tracker.upoll(&mut fds, SOON, None), Ok(0));
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                (&client).write_all(b"x").unwrap();
            });
            let begin = Instant::now();
            assert_eq!(tracker.upoll(&mut fds, Some(LONG), None), Ok(1));
            assert!(begin.elapsed() < LONG, "{requested:x?} with {others} other entries");
        });
        assert_eq!(socket.receive(&mut [0; 8]), Ok(1));
    }
}

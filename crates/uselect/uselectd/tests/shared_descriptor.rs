//! Threads that wait for the same descriptor, each for other events.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;
#[path = "common/modes.rs"]
mod modes;

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::tracker;
use listener::listener;
use uselect::{PollFd, bits};

const SHORT: Option<Duration> = Some(Duration::from_micros(1));
const LONG: Duration = Duration::from_secs(2);
const ROUNDS: u32 = 20_000;
const OVER: u32 = u32::MAX;

#[test]
fn taking_over_an_interest_loses_no_wakeup() {
    if !modes::runs_here("taking_over_an_interest_loses_no_wakeup") {
        return;
    }
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    let (socket, _) = listener.accept(true).unwrap();
    let round_to_send = AtomicU32::new(0);
    let wait = |events: u32, time| {
        let mut fds = [PollFd { fd: socket.as_raw_fd(), events: events as u16, revents: 0 }];
        tracker.upoll(&mut fds, time, None).unwrap()
    };
    std::thread::scope(|threads| {
        // Waits for the end of the connection, which never comes.
        threads.spawn(|| {
            while round_to_send.load(Ordering::SeqCst) != OVER {
                assert_eq!(wait(bits::RDHUP, SHORT), 0);
            }
        });
        threads.spawn(|| {
            let mut sent = 0;
            loop {
                match round_to_send.load(Ordering::SeqCst) {
                    OVER => break,
                    round if round > sent => {
                        (0..round % 4096).for_each(|_| std::hint::spin_loop());
                        (&client).write_all(b"x").unwrap();
                        sent = round;
                    }
                    _ => std::thread::yield_now(),
                }
            }
        });
        let missed = (1..=ROUNDS).find(|round| {
            round_to_send.store(*round, Ordering::SeqCst);
            let begin = Instant::now();
            wait(bits::IN, Some(LONG));
            socket.receive(&mut [0; 8]).unwrap();
            begin.elapsed() >= LONG
        });
        round_to_send.store(OVER, Ordering::SeqCst);
        assert_eq!(missed, None);
    });
}

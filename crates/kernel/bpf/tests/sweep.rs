//! What no program is called for: the daemon's sweep finds it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::tracker;
use listener::listener;
use rustix::net::Shutdown;
use uselect::{Event, PollFd, Watcher, bits};

const LONG: Option<Duration> = Some(Duration::from_secs(10));

/// The process's own shutdown(2), without the library's: nothing tells of it.
#[test]
fn who_sleeps_is_woken_by_what_nobody_told() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    for is_watched in [false, true] {
        let _peer = TcpStream::connect(address).unwrap();
        let socket = loop {
            match listener.accept(false) {
                Ok((socket, _)) => break socket,
                Err(_) => std::thread::yield_now(),
            }
        };
        assert!(socket.is_tracked());
        let watcher = Watcher::new(tracker).unwrap();
        watcher.add(socket.as_raw_fd(), bits::IN | bits::RDHUP | bits::EDGE, 7).unwrap();
        let begin = Instant::now();
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                rustix::net::shutdown(&socket, Shutdown::Read).unwrap();
            });
            if is_watched {
                let mut events = [Event::default()];
                assert_eq!(watcher.wait(&mut events, LONG, None), Ok(1));
                assert_eq!((events[0].data, events[0].events), (7, bits::IN | bits::RDHUP));
            } else {
                watcher.remove(socket.as_raw_fd()).unwrap();
                let mut fds = [PollFd { fd: socket.as_raw_fd(), events: 0x2001, revents: 0 }];
                assert_eq!(tracker.upoll(&mut fds, LONG, None), Ok(1));
                assert_eq!(fds[0].revents, 0x2001);
            }
        });
        assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    }
}

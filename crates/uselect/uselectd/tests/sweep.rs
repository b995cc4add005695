//! Events for which no program runs: a sweep of the daemon finds them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::net::TcpStream;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::tracker;
use listener::listener;
use rustix::net::Shutdown;
use uselect::{DescriptorEvent, PollFd, Watcher, bits};

const LONG: Option<Duration> = Some(Duration::from_secs(10));

/// The process calls shutdown(2) itself and not through the library, so no hook reports it.
#[test]
fn a_sweep_wakes_a_sleeper_for_a_missed_event() {
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
                let mut events = [DescriptorEvent::default()];
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

/// The receive sequence number changes without a hook, as when a connection is restored
/// (TCP_REPAIR, since Linux 3.5). The sweep reports it once.
#[test]
fn a_sweep_reports_missed_data_once() {
    let Some(tracker) = tracker() else { return };
    let socket = tracker.socket(false, false).unwrap();
    let watcher = Watcher::new(tracker).unwrap();
    watcher.add(socket.as_raw_fd(), bits::IN | bits::EDGE, 7).unwrap();
    let mut events = [DescriptorEvent::default()];
    assert_eq!(watcher.wait(&mut events, LONG, None), Ok(1), "a new socket reports a hang-up");
    for sequence in [1000, 2000] {
        set_receive_sequence(&socket, sequence);
        assert_eq!(watcher.wait(&mut events, LONG, None), Ok(1));
        assert_eq!((events[0].events, events[0].edges), (bits::HUP, 1));
    }
    assert_eq!(watcher.wait(&mut events, Some(Duration::from_secs(3)), None), Ok(0));
}

/// Sets the sequence number of the next byte to receive (TCP_QUEUE_SEQ).
fn set_receive_sequence(socket: &impl AsFd, sequence: libc::c_int) {
    const TCP_RECV_QUEUE: libc::c_int = 1;
    let options = [
        (libc::TCP_REPAIR, 1),
        (libc::TCP_REPAIR_QUEUE, TCP_RECV_QUEUE),
        (libc::TCP_QUEUE_SEQ, sequence),
        (libc::TCP_REPAIR, 0),
    ];
    for (option, value) in options {
        // SAFETY: `value` outlives the call and has the given length.
        let result = unsafe {
            libc::setsockopt(
                socket.as_fd().as_raw_fd(),
                libc::IPPROTO_TCP,
                option,
                (&raw const value).cast(),
                size_of_val(&value) as libc::socklen_t,
            )
        };
        assert_eq!(result, 0, "{option}: {}", std::io::Error::last_os_error());
    }
}

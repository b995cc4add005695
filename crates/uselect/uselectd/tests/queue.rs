//! Listeners whose connections come and go, sleepers that are added meanwhile, the order of ready
//! descriptors, and thresholds.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsRawFd;
use std::time::Duration;

use common::tracker;
use listener::listener;
use uselect::{DescriptorEvent, PollFd, Tracker, Watcher, bits};

const LONG: Option<Duration> = Some(Duration::from_secs(10));

fn is_readable(tracker: &Tracker, fd: i32, wait: Option<Duration>) -> bool {
    let mut fds = [PollFd { fd, events: 1, revents: 0 }];
    tracker.upoll(&mut fds, wait, None).unwrap() == 1
}

/// The kernel has no counter of a listener's arrivals, and it reuses the memory of an accepted
/// connection for the next one.
#[test]
fn every_pending_connection_is_reported() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    for round in 0..2000 {
        let _client = TcpStream::connect(address).unwrap();
        assert!(is_readable(tracker, listener.as_raw_fd(), LONG), "connection {round}");
        listener.accept(false).unwrap();
        assert!(!is_readable(tracker, listener.as_raw_fd(), Some(Duration::ZERO)));
    }
}

/// The daemon's reply to a thread that requests a ring must not wake the threads that sleep
/// already.
#[test]
fn sleepers_are_added_while_others_sleep() {
    let Some(tracker) = tracker() else { return };
    let sleepers: Vec<_> = (0..32)
        .map(|_| {
            std::thread::spawn(|| {
                let (listener, _) = listener(tracker);
                !is_readable(tracker, listener.as_raw_fd(), Some(Duration::from_millis(200)))
            })
        })
        .collect();
    assert!(sleepers.into_iter().all(|sleeper| sleeper.join().unwrap()));
    let (listener, _) = listener(tracker);
    assert!(listener.is_tracked(), "the process is still registered");
}

/// If more descriptors are ready than events fit into the array, the next waits return the others
/// first, as with epoll(7).
#[test]
fn ready_descriptors_are_reported_round_robin() {
    let Some(tracker) = tracker() else { return };
    let watcher = Watcher::new(tracker).unwrap();
    let ready: Vec<_> = (0..40)
        .map(|number| {
            let (listener, address) = listener(tracker);
            let client = TcpStream::connect(address).unwrap();
            assert!(is_readable(tracker, listener.as_raw_fd(), LONG));
            watcher.add(listener.as_raw_fd(), 1, number).unwrap();
            (listener, client)
        })
        .collect();
    let mut counts = [0; 40];
    for _ in 0..1000 {
        let mut events = [DescriptorEvent::default(); 3];
        let count = watcher.wait(&mut events, LONG, None).unwrap();
        events[..count].iter().for_each(|event| counts[event.data as usize] += 1);
    }
    assert!(counts.iter().all(|times| (74..=76).contains(times)), "{counts:?}");
    drop(ready);
}

/// The wait also includes send space, which is there all the time.
#[test]
fn bytes_below_the_threshold_are_no_event() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let mut client = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    let fd = socket.as_raw_fd();
    let watcher = Watcher::new(tracker).unwrap();
    watcher.add(fd, bits::IN | bits::OUT | bits::EDGE, 7).unwrap();
    let mut events = [DescriptorEvent::default(); 2];
    let mut reported = |wait| match watcher.wait(&mut events, wait, None).unwrap() {
        0 => 0,
        _ => events[0].events,
    };
    assert_eq!(reported(LONG), bits::OUT);
    // The multishot backend does not support thresholds.
    if !tracker.expect_bytes(fd, 10) {
        return;
    }
    client.write_all(b"123").unwrap();
    client.write_all(b"456789").unwrap();
    assert_eq!(reported(Some(Duration::from_millis(30))), 0);
    client.write_all(b"0").unwrap();
    assert_eq!(reported(LONG), bits::IN | bits::OUT);
    // A threshold is removed without a system call: the next arrival is reported.
    tracker.expect_bytes(fd, 0);
    client.write_all(b"1").unwrap();
    assert_ne!(reported(LONG) & bits::IN, 0);
    // Data that had arrived before is reported after a refresh.
    assert_eq!(socket.receive(&mut [0; 100]).unwrap(), 11);
    assert!(tracker.expect_bytes(fd, 10));
    client.write_all(b"1").unwrap();
    assert_eq!(reported(Some(Duration::from_millis(30))), 0);
    tracker.expect_bytes(fd, 0);
    tracker.refresh(fd);
    assert_ne!(reported(LONG) & bits::IN, 0);
    // The end of the stream is reported in spite of a threshold.
    assert_eq!(socket.receive(&mut [0; 100]).unwrap(), 1);
    assert!(tracker.expect_bytes(fd, 10));
    client.shutdown(Shutdown::Write).unwrap();
    assert_ne!(reported(LONG) & bits::IN, 0);
}

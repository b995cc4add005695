//! A listener whose connections come and go; what a registration bears meanwhile; whose turn it is
//! where many are ready; and what is no event.

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

/// Of a listener nothing counts arrivals, and the kernel uses the memory of a connection that was
/// accepted for the next one.
#[test]
fn each_connection_is_told_of() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    for round in 0..2000 {
        let _client = TcpStream::connect(address).unwrap();
        assert!(is_readable(tracker, listener.as_raw_fd(), LONG), "connection {round}");
        listener.accept(false).unwrap();
        assert!(!is_readable(tracker, listener.as_raw_fd(), Some(Duration::ZERO)));
    }
}

/// The answer to a thread that asks for a ring is no sign for those that sleep already.
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
    assert!(listener.is_tracked(), "the registration is as it was");
}

/// As epoll(7) goes round, with less room for events than there are.
#[test]
fn each_of_many_that_are_ready_has_its_turn() {
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
    let mut told = [0; 40];
    for _ in 0..1000 {
        let mut events = [DescriptorEvent::default(); 3];
        let count = watcher.wait(&mut events, LONG, None).unwrap();
        events[..count].iter().for_each(|event| told[event.data as usize] += 1);
    }
    assert!(told.iter().all(|times| (74..=76).contains(times)), "{told:?}");
    drop(ready);
}

/// Though there is room to send all the time, which is waited for as well.
#[test]
fn bytes_short_of_a_threshold_are_no_event() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let mut client = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    let fd = socket.as_raw_fd();
    let watcher = Watcher::new(tracker).unwrap();
    watcher.add(fd, bits::IN | bits::OUT | bits::EDGE, 7).unwrap();
    let mut events = [DescriptorEvent::default(); 2];
    let mut told = |wait| match watcher.wait(&mut events, wait, None).unwrap() {
        0 => 0,
        _ => events[0].events,
    };
    assert_eq!(told(LONG), bits::OUT);
    // Filters know of no numbers.
    if !tracker.expect_bytes(fd, 10) {
        return;
    }
    client.write_all(b"123").unwrap();
    client.write_all(b"456789").unwrap();
    assert_eq!(told(Some(Duration::from_millis(30))), 0);
    client.write_all(b"0").unwrap();
    assert_eq!(told(LONG), bits::IN | bits::OUT);
    // What is left of a threshold is taken back without a call, and seen by the next that comes,
    tracker.expect_bytes(fd, 0);
    client.write_all(b"1").unwrap();
    assert_ne!(told(LONG) & bits::IN, 0);
    // or by a look: then of what has come before, too.
    assert_eq!(socket.receive(&mut [0; 100]).unwrap(), 11);
    assert!(tracker.expect_bytes(fd, 10));
    client.write_all(b"1").unwrap();
    assert_eq!(told(Some(Duration::from_millis(30))), 0);
    tracker.expect_bytes(fd, 0);
    tracker.refresh(fd);
    assert_ne!(told(LONG) & bits::IN, 0);
    // An end is told whatever is left.
    assert_eq!(socket.receive(&mut [0; 100]).unwrap(), 1);
    assert!(tracker.expect_bytes(fd, 10));
    client.shutdown(Shutdown::Write).unwrap();
    assert_ne!(told(LONG) & bits::IN, 0);
}

//! A server that waits by upoll, from its listener to the end of the connection.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddrV6, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use common::tracker;
use listener::listener;
use rustix::event::PollFlags;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use uselect::{PollFd, TrackedSocket, Tracker};

const IN: u16 = 0x001;
const OUT: u16 = 0x004;
const LONG: Option<Duration> = Some(Duration::from_secs(10));
const NOW: Option<Duration> = Some(Duration::ZERO);

fn poll_one(tracker: &Tracker, socket: &TrackedSocket, events: u16, wait: Option<Duration>) -> u16 {
    let mut fds = [PollFd { fd: socket.as_raw_fd(), events, revents: 0 }];
    tracker.upoll(&mut fds, wait, None).unwrap();
    let mut kernel = [rustix::event::PollFd::new(socket, PollFlags::from_bits_retain(events))];
    rustix::event::poll(&mut kernel, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 }))
        .unwrap();
    assert_eq!(fds[0].revents, kernel[0].revents().bits(), "requested {events:#x}");
    fds[0].revents
}

#[test]
fn a_server_echoes_bytes() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    assert!(listener.is_tracked());
    assert_eq!(poll_one(tracker, &listener, IN, NOW), 0);
    let mut client = TcpStream::connect(address).unwrap();
    assert_eq!(poll_one(tracker, &listener, IN, LONG), IN);
    assert_eq!(listener.state().unwrap().readable, 1);
    let (socket, peer) = listener.accept(false).unwrap();
    assert!(socket.is_tracked());
    assert_eq!(peer, Some(client.local_addr().unwrap()));
    assert_eq!(poll_one(tracker, &listener, IN, NOW), 0);
    assert_eq!(poll_one(tracker, &socket, IN | OUT, NOW), OUT);
    client.write_all(b"hello").unwrap();
    assert_eq!(poll_one(tracker, &socket, IN, LONG), IN);
    assert_eq!(socket.state().unwrap().readable, 5);
    let mut bytes = [0; 8];
    assert_eq!(recv(&socket, &mut bytes[..], RecvFlags::empty()).unwrap().0, 5);
    assert_eq!(poll_one(tracker, &socket, IN, NOW), 0);
    assert_eq!(send(&socket, &bytes[..5], SendFlags::NOSIGNAL).unwrap(), 5);
    client.read_exact(&mut bytes[..5]).unwrap();
    assert_eq!(&bytes[..5], b"hello");
    let state = socket.state().unwrap();
    assert!(state.cwnd >= 1 && state.rtt_us >= 1 && state.send_space > 10_000, "{state:?}");
    drop(client);
    let ended = poll_one(tracker, &socket, IN | OUT | 0x2000, LONG);
    assert_eq!(ended & (IN | 0x2000), IN | 0x2000);
}

#[test]
fn ipv6_and_connecting_sockets_are_tracked() {
    let Some(tracker) = tracker() else { return };
    let listener = tracker.socket(true, false).unwrap();
    let any = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 0, 0, 0);
    if let Err(error) = rustix::net::bind(&listener, &any) {
        return println!("skipped: no IPv6 here: {error}");
    }
    rustix::net::listen(&listener, 8).unwrap();
    let address = rustix::net::getsockname(&listener).unwrap();
    let client = tracker.socket(true, false).unwrap();
    assert!(client.is_tracked() && listener.is_tracked());
    assert_eq!(poll_one(tracker, &client, IN | OUT, NOW), OUT | 0x010);
    let _ = rustix::net::connect(&client, &address);
    assert_eq!(poll_one(tracker, &client, OUT, LONG), OUT);
    assert_eq!(poll_one(tracker, &listener, IN, LONG), IN);
    let (socket, _) = listener.accept(false).unwrap();
    assert!(socket.is_tracked());
    assert_eq!(poll_one(tracker, &listener, IN, NOW), 0);
    send(&client, b"hello", SendFlags::NOSIGNAL).unwrap();
    assert_eq!(poll_one(tracker, &socket, IN, LONG), IN);
    // splice(2) counts as a receive.
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    let flags = rustix::pipe::SpliceFlags::NONBLOCK;
    assert_eq!(rustix::pipe::splice(&socket, None, &writer, None, 8, flags), Ok(5));
    assert_eq!(poll_one(tracker, &socket, IN, NOW), 0);
    drop(reader);
}

#[test]
fn data_wakes_a_sleeper_and_timeouts_expire() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let client = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    let begin = Instant::now();
    assert_eq!(poll_one(tracker, &socket, IN, Some(Duration::from_millis(30))), 0);
    assert!(begin.elapsed() >= Duration::from_millis(30));
    for round in 0..100u32 {
        let mut client = client.try_clone().unwrap();
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(u64::from(round * 37 % 900)));
            client.write_all(b"x").unwrap();
        });
        assert_eq!(poll_one(tracker, &socket, IN, LONG), IN, "round {round}");
        assert_eq!(recv(&socket, &mut [0; 8][..], RecvFlags::empty()).unwrap().0, 1);
        thread.join().unwrap();
    }
}

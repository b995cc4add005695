//! Descriptors that are not tracked, beside one that is always ready. Apart from other tests, whose
//! waits would be counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::Write;
use std::net::{TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use common::tracker;
use listener::listener;
use uselect::FdSets;

const NOW: Option<Duration> = Some(Duration::ZERO);
const LONG: Option<Duration> = Some(Duration::from_secs(10));

#[test]
fn select_and_descriptors_that_are_not_tracked() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let mut client = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
    let (tracked, other) = (socket.as_raw_fd() as usize, datagrams.as_fd().as_raw_fd() as usize);
    let select = |wait| {
        let mut read = vec![0u64; 16];
        for fd in [tracked, other] {
            read[fd / 64] |= 1 << (fd % 64);
        }
        let mut sets = FdSets { read: &mut read, write: &mut [], except: &mut [] };
        let count = tracker.uselect(&mut sets, wait, None).unwrap();
        let has = |fd: usize| read[fd / 64] >> (fd % 64) & 1 == 1;
        (count, has(tracked), has(other))
    };
    assert_eq!(select(NOW), (0, false, false));
    datagrams.send_to(b"x", datagrams.local_addr().unwrap()).unwrap();
    assert_eq!(select(LONG), (1, false, true));
    datagrams.recv(&mut [0; 8]).unwrap();
    client.write_all(b"x").unwrap();
    assert_eq!(select(LONG), (1, true, false));
    datagrams.send_to(b"x", datagrams.local_addr().unwrap()).unwrap();
    // Memory answers, but now and then the others are asked for, too: after so many times,
    let begun = Instant::now();
    let both =
        (0..=uselect::KERNEL_CHECK_WAITS_MAX).filter(|_| select(LONG) == (2, true, true)).count();
    // (or on a slow machine after so long)
    let looked = begun.elapsed().div_duration_f64(uselect::KERNEL_CHECK_TIME_MAX) as usize;
    assert!((1..10 + looked).contains(&both), "{both}");
    // and after so long.
    std::thread::sleep(uselect::KERNEL_CHECK_TIME_MAX);
    assert_eq!(select(LONG), (2, true, true));
}

//! Untracked descriptors beside a tracked one that is always ready. In a file of its own, because
//! waits of other tests would be counted.

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
fn uselect_reports_untracked_descriptors() {
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
    // While the tracked socket is ready, the kernel is called for the other one only every
    // KERNEL_CHECK_WAITS_MAX waits.
    let begin = Instant::now();
    let both =
        (0..=uselect::KERNEL_CHECK_WAITS_MAX).filter(|_| select(LONG) == (2, true, true)).count();
    // On a slow machine it is also called after each KERNEL_CHECK_TIME_MAX.
    let by_time = begin.elapsed().div_duration_f64(uselect::KERNEL_CHECK_TIME_MAX) as usize;
    assert!((1..10 + by_time).contains(&both), "{both}");
    // After a pause of that length the next wait calls it.
    std::thread::sleep(uselect::KERNEL_CHECK_TIME_MAX);
    assert_eq!(select(LONG), (2, true, true));
}

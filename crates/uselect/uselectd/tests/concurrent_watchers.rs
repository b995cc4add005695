//! Watchers that several threads create at the same time. In a file of its own, because waits of
//! other tests would be counted.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::os::fd::AsRawFd;
use std::sync::Barrier;
use std::time::Duration;

use common::tracker;
use uselect::{DescriptorEvent, Watcher, bits};

const THREADS: usize = 16;

#[test]
fn concurrent_watchers_wait_without_system_calls() {
    let Some(tracker) = tracker() else { return };
    let start = Barrier::new(THREADS);
    let waits = || {
        start.wait();
        let watcher = Watcher::new(tracker).unwrap();
        let socket = tracker.socket(false, false).unwrap();
        watcher.add(socket.as_raw_fd(), bits::IN, 7).unwrap();
        // A new socket reports a hang-up.
        let found = watcher.wait(&mut [DescriptorEvent::default()], Some(Duration::ZERO), None);
        assert_eq!(found, Ok(1));
        // All watchers are kept until the end, so that none can take the sleeper of another.
        watcher
    };
    std::thread::scope(|threads| {
        let all = [(); THREADS].map(|()| threads.spawn(waits));
        let _watchers = all.map(|thread| thread.join().unwrap());
    });
    let stats = tracker.stats();
    assert_eq!((stats.waits, stats.without_syscall), (THREADS as u64, THREADS as u64));
}

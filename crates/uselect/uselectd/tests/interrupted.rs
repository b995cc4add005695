//! A signal ends a wait that yields, like a wait that sleeps. In a file of its own, because a
//! process has one handler.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::Error;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use common::tracker;
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use uselect::{DescriptorEvent, Errno, PollFd, Watcher, bits};

static SIGNALS: AtomicU32 = AtomicU32::new(0);

extern "C" fn count(_: libc::c_int) {
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn a_signal_ends_a_wait_that_yields() {
    let Some(tracker) = tracker() else { return };
    let (listener, _) = listener::listener(tracker);
    let fd = listener.as_raw_fd();
    let watcher = Watcher::new(tracker).unwrap();
    // SAFETY: the handler only counts.
    let handler = unsafe { libc::signal(libc::SIGUSR1, count as *const () as libc::sighandler_t) };
    assert_ne!(handler, libc::SIG_ERR);
    // Even root may be refused: by a cgroup without a budget of real-time scheduling.
    if !use_fifo_scheduling() {
        println!("skipped: no SCHED_FIFO: {}", Error::last_os_error());
        return;
    }
    let upoll = |timeout| {
        let mut fds = [PollFd { fd, events: bits::IN as u16, revents: 0 }];
        tracker.upoll(&mut fds, Some(timeout), None)
    };
    let long = Duration::from_secs(10);
    // The first wait of a thread requests a ring from the daemon and sleeps for that. A short wait
    // does not yield.
    assert_eq!(upoll(Duration::from_millis(1)), Ok(0));
    let before = tracker.stats();
    let ended = wait_with_signal(|| upoll(long));
    assert_eq!((ended, SIGNALS.load(Ordering::SeqCst)), (Err(Errno::INTR), 1));
    watcher.add(fd, bits::IN, 7).unwrap();
    let ended =
        wait_with_signal(|| watcher.wait(&mut [DescriptorEvent::default()], Some(long), None));
    assert_eq!((ended, SIGNALS.load(Ordering::SeqCst)), (Err(Errno::INTR), 2));
    let after = tracker.stats();
    assert_eq!((after.waits - before.waits, after.sleeps - before.sleeps), (2, 0));
}

/// Pins this thread and the threads that it starts to one CPU, where each runs until it yields or
/// sleeps. Returns false if the scheduler refuses.
fn use_fifo_scheduling() -> bool {
    let mut cpus = CpuSet::new();
    cpus.set(sched_getcpu());
    sched_setaffinity(None, &cpus).unwrap();
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: `priority` is read during the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 }
}

/// Runs a wait to which another thread sends a signal as soon as it gets the CPU.
fn wait_with_signal(wait: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    // SAFETY: pthread_self(3) cannot fail.
    let waiter = unsafe { libc::pthread_self() };
    let is_waiting = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_waiting.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // SAFETY: the waiting thread lives on, because it joins this thread.
            assert_eq!(unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) }, 0);
        });
        is_waiting.store(true, Ordering::SeqCst);
        wait()
    })
}

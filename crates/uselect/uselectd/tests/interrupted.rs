//! A signal that comes while a wait gives way ends it, as it ends a sleep. Apart from other tests, as
//! a process has one handler.

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
fn a_signal_ends_a_wait_that_gives_way() {
    let Some(tracker) = tracker() else { return };
    let (listener, _) = listener::listener(tracker);
    let fd = listener.as_raw_fd();
    let watcher = Watcher::new(tracker).unwrap();
    // SAFETY: the handler only counts.
    let handler = unsafe { libc::signal(libc::SIGUSR1, count as *const () as libc::sighandler_t) };
    assert_ne!(handler, libc::SIG_ERR);
    // Root may be kept from it, too: by a cgroup without time for it.
    if !takes_turns() {
        println!("skipped: no scheduling by turns: {}", Error::last_os_error());
        return;
    }
    let upoll = |timeout| {
        let mut fds = [PollFd { fd, events: bits::IN as u16, revents: 0 }];
        tracker.upoll(&mut fds, Some(timeout), None)
    };
    let long = Duration::from_secs(10);
    // The first one of a thread asks the daemon for a ring, and sleeps in that; a short one gives no
    // way.
    assert_eq!(upoll(Duration::from_millis(1)), Ok(0));
    let before = tracker.stats();
    let ended = signalled(|| upoll(long));
    assert_eq!((ended, SIGNALS.load(Ordering::SeqCst)), (Err(Errno::INTR), 1));
    watcher.add(fd, bits::IN, 7).unwrap();
    let ended = signalled(|| watcher.wait(&mut [DescriptorEvent::default()], Some(long), None));
    assert_eq!((ended, SIGNALS.load(Ordering::SeqCst)), (Err(Errno::INTR), 2));
    let after = tracker.stats();
    assert_eq!((after.waits - before.waits, after.sleeps - before.sleeps), (2, 0));
}

/// Has this thread, and those that it makes, run on one processor, and each of them until it gives
/// way or sleeps.
fn takes_turns() -> bool {
    let mut here = CpuSet::new();
    here.set(sched_getcpu());
    sched_setaffinity(None, &here).unwrap();
    let priority = libc::sched_param { sched_priority: 1 };
    // SAFETY: `priority` is read during the call.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const priority) == 0 }
}

/// What a wait gives that another thread sends a signal as soon as it is let in.
fn signalled(wait: impl FnOnce() -> Result<usize, Errno>) -> Result<usize, Errno> {
    // SAFETY: the call cannot fail.
    let waiter = unsafe { libc::pthread_self() };
    let is_waiting = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !is_waiting.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // SAFETY: the thread waits for this one to end.
            assert_eq!(unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) }, 0);
        });
        is_waiting.store(true, Ordering::SeqCst);
        wait()
    })
}

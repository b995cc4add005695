//! A signal handler that closes descriptors. In a file of its own, because a process has one
//! handler.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::thread::JoinHandleExt;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::tracker;
use uselect::{DescriptorEvent, Watcher};

static WATCHER: OnceLock<Watcher> = OnceLock::new();
static SIGNALS: AtomicU32 = AtomicU32::new(0);
static IS_OVER: AtomicBool = AtomicBool::new(false);
/// A descriptor that is not open.
const CLOSED: i32 = 900;

extern "C" fn remove_closing(_: libc::c_int) {
    WATCHER.get().unwrap().remove_closing(CLOSED);
    SIGNALS.fetch_add(1, Ordering::SeqCst);
}

#[test]
fn remove_closing_in_a_signal_handler_does_not_deadlock() {
    let Some(tracker) = tracker() else { return };
    let watcher = WATCHER.get_or_init(|| Watcher::new(tracker).unwrap());
    let (listener, address) = listener::listener(tracker);
    let _client = TcpStream::connect(address).unwrap();
    watcher.add(listener.as_raw_fd(), 1, 7).unwrap();
    // SAFETY: the handler makes no system calls, takes no lock and allocates nothing.
    let before =
        unsafe { libc::signal(libc::SIGUSR1, remove_closing as *const () as libc::sighandler_t) };
    assert_ne!(before, libc::SIG_ERR);
    // The listener is ready all the time, so the thread holds the lock of the watcher most of the
    // time.
    let waiter = std::thread::spawn(|| {
        while !IS_OVER.load(Ordering::SeqCst) {
            let _ = watcher.wait(&mut [DescriptorEvent::default()], Some(Duration::ZERO), None);
        }
    });
    let end = Instant::now() + Duration::from_secs(10);
    for count in 1..=500 {
        // SAFETY: the thread has not been joined.
        assert_eq!(unsafe { libc::pthread_kill(waiter.as_pthread_t(), libc::SIGUSR1) }, 0);
        while SIGNALS.load(Ordering::SeqCst) < count {
            assert!(Instant::now() < end, "the handler of signal {count} has not returned");
            std::thread::yield_now();
        }
    }
    IS_OVER.store(true, Ordering::SeqCst);
    waiter.join().unwrap();
}

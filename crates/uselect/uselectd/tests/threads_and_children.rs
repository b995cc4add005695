//! Threads and child processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::time::Duration;

use common::tracker;
use listener::listener;
use rustix::net::{RecvFlags, recv};
use uselect::layout::THREADS;
use uselect::{PollFd, TrackedSocket, Tracker};

const IN: u16 = 0x001;
const SHORT: Option<Duration> = Some(Duration::from_nanos(1));
const LONG: Option<Duration> = Some(Duration::from_secs(10));

fn pair(tracker: &Tracker) -> (TrackedSocket, TcpStream) {
    let (listener, address) = listener(tracker);
    let peer = TcpStream::connect(address).unwrap();
    (listener.accept(false).unwrap().0, peer)
}

fn wait(tracker: &Tracker, socket: &TrackedSocket, wait: Option<Duration>) -> u16 {
    let mut fds = [PollFd { fd: socket.as_raw_fd(), events: IN, revents: 0 }];
    tracker.upoll(&mut fds, wait, None).unwrap();
    fds[0].revents
}

#[test]
fn threads_accept_and_sleep_at_the_same_time() {
    let Some(tracker) = tracker() else { return };
    let threads: Vec<_> = (0..8)
        .map(|_| {
            std::thread::spawn(move || {
                for _ in 0..50 {
                    let (socket, mut peer) = pair(tracker);
                    assert!(socket.is_tracked());
                    let other = std::thread::spawn(move || {
                        std::thread::sleep(Duration::from_millis(2));
                        peer.write_all(b"x").unwrap();
                        peer
                    });
                    assert_eq!(wait(tracker, &socket, LONG), IN);
                    other.join().unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn concurrent_waits_keep_their_rings() {
    const THREADS: usize = 4;
    let Some(tracker) = tracker() else { return };
    if count_rings() == 0 {
        println!("skipped: sleepers have no rings in this mode");
        return;
    }
    std::thread::scope(|threads| {
        for _ in 0..THREADS {
            threads.spawn(|| {
                let (socket, _) = listener(tracker);
                (0..10_000).for_each(|_| assert_eq!(wait(tracker, &socket, SHORT), 0));
            });
        }
    });
    assert!(count_rings() > 0, "the process has lost its rings");
}

/// Returns the number of ring buffers of which this process has a descriptor.
fn count_rings() -> usize {
    const RING: &str = "map_type:\t27\n";
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let info =
        |entry: &std::fs::DirEntry| std::fs::read_to_string(entry.path()).unwrap_or_default();
    infos.filter(|entry| info(entry.as_ref().unwrap()).contains(RING)).count()
}

#[test]
fn a_forked_child_uses_the_kernel_and_its_parent_stays_registered() {
    let Some(tracker) = tracker() else { return };
    let (socket, mut peer) = pair(tracker);
    assert_eq!(wait(tracker, &socket, Some(Duration::ZERO)), 0);
    // SAFETY: the code that the child runs takes no lock that another thread may hold, except the
    // lock of the allocator, which fork(3) of the C library handles.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut byte = [0; 1];
        let is_ok = !socket.is_tracked()
            && wait(tracker, &socket, LONG) == IN
            && recv(&socket, &mut byte[..], RecvFlags::empty()).is_ok()
            && tracker.socket(false, false).is_ok_and(|socket| !socket.is_tracked());
        // Closing the copy of the child must not untrack the socket of the parent.
        drop(socket);
        // SAFETY: _exit(2) ends the child without running exit handlers of the parent.
        unsafe { libc::_exit(i32::from(!is_ok)) };
    }
    peer.write_all(b"x").unwrap();
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // The child has received the byte and closed its copy of the socket.
    assert!(socket.is_tracked());
    assert_eq!(wait(tracker, &socket, Some(Duration::ZERO)), 0);
    peer.write_all(b"y").unwrap();
    assert_eq!(wait(tracker, &socket, LONG), IN);
}

#[test]
fn slots_of_ended_threads_are_reused() {
    let Some(tracker) = tracker() else { return };
    // Twice as many threads as there are slots. Each ends with its slot in use.
    for _ in 0..2 * THREADS {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let thread = rustix::thread::gettid().as_raw_pid();
            tracker.open(|| {
                sender.send(thread).unwrap();
                // SAFETY: the call ends only this thread, and nothing else refers to its stack.
                unsafe { libc::syscall(libc::SYS_exit, 0) as i32 }
            });
        });
        let path = format!("/proc/self/task/{}", receiver.recv().unwrap());
        while std::fs::exists(&path).unwrap() {
            std::thread::yield_now();
        }
    }
    assert!(tracker.socket(false, false).unwrap().is_tracked());
}

//! Threads and children: right, or left to the system call.

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
fn threads_that_begin_and_end_waits_at_the_same_time_keep_their_rings() {
    const THREADS: usize = 4;
    let Some(tracker) = tracker() else { return };
    if rings() == 0 {
        println!("skipped: sleepers have no rings");
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
    assert!(rings() > 0, "all waits are poll(2) from now on");
}

/// Of this process.
fn rings() -> usize {
    const RING: &str = "map_type:\t27\n";
    let infos = std::fs::read_dir("/proc/self/fdinfo").unwrap();
    let info =
        |entry: &std::fs::DirEntry| std::fs::read_to_string(entry.path()).unwrap_or_default();
    infos.filter(|entry| info(entry.as_ref().unwrap()).contains(RING)).count()
}

#[test]
fn a_child_asks_the_kernel_and_its_parent_still_knows() {
    let Some(tracker) = tracker() else { return };
    let (socket, mut peer) = pair(tracker);
    assert_eq!(wait(tracker, &socket, Some(Duration::ZERO)), 0);
    // SAFETY: the child calls what follows, which takes no lock that another thread may have but
    // the allocator's, and fork(3) of the C library takes care of that one.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let mut byte = [0; 1];
        let is_right = !socket.is_tracked()
            && wait(tracker, &socket, LONG) == IN
            && recv(&socket, &mut byte[..], RecvFlags::empty()).is_ok()
            && tracker.socket(false, false).is_ok_and(|socket| !socket.is_tracked());
        // What it drops is not its parent's to lose.
        drop(socket);
        // SAFETY: ends the child without what the parent does at its end.
        unsafe { libc::_exit(i32::from(!is_right)) };
    }
    peer.write_all(b"x").unwrap();
    let mut status = 0;
    // SAFETY: `status` outlives the call.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    // The child has received the byte, and closed its copy.
    assert!(socket.is_tracked());
    assert_eq!(wait(tracker, &socket, Some(Duration::ZERO)), 0);
    peer.write_all(b"y").unwrap();
    assert_eq!(wait(tracker, &socket, LONG), IN);
}

#[test]
fn threads_that_end_within_a_call_leave_their_slots_to_others() {
    let Some(tracker) = tracker() else { return };
    // More than there are slots, each with the number of a thread.
    for _ in 0..2 * THREADS {
        let (says, said) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let thread = rustix::thread::gettid().as_raw_pid();
            tracker.open(|| {
                says.send(thread).unwrap();
                // SAFETY: it ends the thread as it is, and what is on its stack is nobody else's.
                unsafe { libc::syscall(libc::SYS_exit, 0) as i32 }
            });
        });
        let path = format!("/proc/self/task/{}", said.recv().unwrap());
        while std::fs::exists(&path).unwrap() {
            std::thread::yield_now();
        }
    }
    assert!(tracker.socket(false, false).unwrap().is_tracked());
}

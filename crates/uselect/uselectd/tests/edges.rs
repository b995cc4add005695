//! Bytes that come just while something else is told of their socket.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;
#[path = "common/modes.rs"]
mod modes;

use std::net::TcpStream;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use common::tracker;
use listener::listener;
use uselect::{DescriptorEvent, Watcher, bits};

const SOON: Option<Duration> = Some(Duration::from_secs(1));
const NOBODY: i32 = -1;
const ENDED: i32 = -2;

/// Of a new socket it is told that there is room; the bytes come before, meanwhile or after.
#[test]
fn bytes_that_come_while_room_is_told_are_told_too() {
    if !modes::is_chosen("bytes_that_come_while_room_is_told_are_told_too") {
        return;
    }
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let watcher = Watcher::new(tracker).unwrap();
    let sender = AtomicI32::new(NOBODY);
    std::thread::scope(|threads| {
        threads.spawn(|| send_soon(&sender));
        for round in 0..10_000 {
            let client = TcpStream::connect(address).unwrap();
            let (socket, _) = listener.accept(true).unwrap();
            watcher.add(socket.as_raw_fd(), bits::IN | bits::OUT | bits::EDGE, 0).unwrap();
            sender.store(client.as_raw_fd(), Ordering::SeqCst);
            (0..round % 256).for_each(|_| std::hint::spin_loop());
            let (mut events, mut told) = ([DescriptorEvent::default()], 0);
            while told & bits::IN == 0 {
                let count = watcher.wait(&mut events, SOON, None).unwrap();
                if count == 0 {
                    sender.store(ENDED, Ordering::SeqCst);
                    panic!("told is {told:#x}, and the bytes are there");
                }
                told = events[0].events;
            }
            watcher.remove(socket.as_raw_fd()).unwrap();
        }
        sender.store(ENDED, Ordering::SeqCst);
    });
}

/// By whichever socket it is given.
fn send_soon(sender: &AtomicI32) {
    loop {
        match sender.swap(NOBODY, Ordering::SeqCst) {
            NOBODY => std::hint::spin_loop(),
            ENDED => return,
            fd => {
                // SAFETY: it is open until what is sent here has been told.
                let client = unsafe { BorrowedFd::borrow_raw(fd) };
                rustix::io::write(client, b"x").unwrap();
            }
        }
    }
}

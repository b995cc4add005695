//! Data that arrives while another event of the same socket is reported.

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
/// No socket has to send.
const NONE: i32 = -1;
/// The test is over.
const ENDED: i32 = -2;

/// A new socket reports send space. The data arrives before, during or after that.
#[test]
fn data_that_arrives_during_another_event_is_reported() {
    if !modes::runs_here("data_that_arrives_during_another_event_is_reported") {
        return;
    }
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    let watcher = Watcher::new(tracker).unwrap();
    let sender = AtomicI32::new(NONE);
    std::thread::scope(|threads| {
        threads.spawn(|| send_on_request(&sender));
        for round in 0..10_000 {
            let client = TcpStream::connect(address).unwrap();
            let (socket, _) = listener.accept(true).unwrap();
            watcher.add(socket.as_raw_fd(), bits::IN | bits::OUT | bits::EDGE, 0).unwrap();
            sender.store(client.as_raw_fd(), Ordering::SeqCst);
            (0..round % 256).for_each(|_| std::hint::spin_loop());
            let (mut events, mut reported) = ([DescriptorEvent::default()], 0);
            while reported & bits::IN == 0 {
                let count = watcher.wait(&mut events, SOON, None).unwrap();
                if count == 0 {
                    sender.store(ENDED, Ordering::SeqCst);
                    panic!("reported {reported:#x}, although data has arrived");
                }
                reported = events[0].events;
            }
            watcher.remove(socket.as_raw_fd()).unwrap();
        }
        sender.store(ENDED, Ordering::SeqCst);
    });
}

/// Sends a byte by each socket that the test stores in `sender`.
fn send_on_request(sender: &AtomicI32) {
    loop {
        match sender.swap(NONE, Ordering::SeqCst) {
            NONE => std::hint::spin_loop(),
            ENDED => return,
            fd => {
                // SAFETY: the test keeps the socket open until this byte is reported.
                let client = unsafe { BorrowedFd::borrow_raw(fd) };
                rustix::io::write(client, b"x").unwrap();
            }
        }
    }
}

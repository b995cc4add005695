//! A connection that is opened by its first send (TCP_FASTOPEN_CONNECT): until then only the kernel
//! reports send space.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::os::fd::AsRawFd;
use std::time::Duration;

use common::tracker;
use listener::listener;
use uselect::{DescriptorEvent, FdSets, PollFd, Tracker, Watcher, bits};

const TIMES: [Option<Duration>; 2] = [Some(Duration::ZERO), Some(Duration::from_secs(10))];

fn set_tcp_flag(fd: i32, option: libc::c_int) {
    let (enabled, length) = (1, size_of::<libc::c_int>() as libc::socklen_t);
    // SAFETY: the value outlives the call and has the given length.
    let result = unsafe {
        libc::setsockopt(fd, libc::IPPROTO_TCP, option, (&raw const enabled).cast(), length)
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

fn select_writable(tracker: &Tracker, fd: i32, wait: Option<Duration>) -> usize {
    let mut write = vec![0; fd as usize / 64 + 1];
    write[fd as usize / 64] = 1 << (fd % 64);
    let mut sets = FdSets { write: &mut write, ..FdSets::default() };
    tracker.uselect(&mut sets, wait, None).unwrap()
}

#[test]
fn a_fastopen_socket_is_writable_before_it_connects() {
    // Fast open without a cookie of an earlier connection (linux/tcp.h).
    const TCP_FASTOPEN_NO_COOKIE: libc::c_int = 34;
    let Some(tracker) = tracker() else { return };
    let (_listener, address) = listener(tracker);
    let socket = tracker.socket(false, false).unwrap();
    let fd = socket.as_raw_fd();
    set_tcp_flag(fd, TCP_FASTOPEN_NO_COOKIE);
    set_tcp_flag(fd, libc::TCP_FASTOPEN_CONNECT);
    rustix::net::connect(&socket, &address).unwrap();
    socket.refresh();
    for wait in TIMES {
        let mut fds = [PollFd { fd, events: 4, revents: 0 }];
        assert_eq!(tracker.upoll(&mut fds, wait, None), Ok(1), "{wait:?}");
        assert_eq!(fds[0].revents, 4);
        assert_eq!(select_writable(tracker, fd, wait), 1, "{wait:?}");
    }
    for flags in [0, bits::EDGE, bits::ONESHOT] {
        let watcher = Watcher::new(tracker).unwrap();
        watcher.add(fd, bits::OUT | flags, 7).unwrap();
        let mut events = [DescriptorEvent::default()];
        assert_eq!(watcher.wait(&mut events, TIMES[1], None), Ok(1), "{flags:#x}");
        assert_eq!(events[0].events, bits::OUT);
    }
    assert_eq!(socket.send(b"a").unwrap(), 1);
}

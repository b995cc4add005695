//! Bytes that another socket's send has put beside what TCP has received (sockmap): memory does not
//! see them, so it has to say that the kernel is to be asked.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::Write;
use std::net::TcpStream;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use common::tracker;
use listener::listener;
use uselect::{DescriptorEvent, PollFd, Watcher, bits};

const LONG: Option<Duration> = Some(Duration::from_secs(10));

/// bpf(2), of commands and attributes of linux/bpf.h in words of 32 bits.
fn bpf<const WORDS: usize>(command: i32, attributes: [u32; WORDS]) -> i32 {
    let (start, bytes) = (attributes.as_ptr(), size_of_val(&attributes));
    // SAFETY: the attributes outlive the call; what they point to does too, as the callers say.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, start, bytes) };
    assert!(result >= 0, "command {command}: {}", std::io::Error::last_os_error());
    result as i32
}

fn halves<T>(place: *const T) -> [u32; 2] {
    let address = place.expose_provenance() as u64;
    [address as u32, (address >> 32) as u32]
}

/// A sockmap of two places. What the second one sends is received by the first one.
fn redirection() -> [OwnedFd; 2] {
    const MAP_CREATE: i32 = 0;
    const PROGRAM_LOAD: i32 = 5;
    const PROGRAM_ATTACH: i32 = 8;
    const SOCKMAP: u32 = 15;
    const SK_MSG: u32 = 16;
    const SK_MSG_VERDICT: u32 = 7;
    let map = bpf(MAP_CREATE, [SOCKMAP, 4, 4, 2, 0]);
    let instructions: [u64; 6] = [
        // The map, by two instructions; place 0; BPF_F_INGRESS; bpf_msg_redirect_map; its verdict.
        u64::from(map.cast_unsigned()) << 32 | 0x1218,
        0,
        0x03b7,
        1 << 32 | 0x04b7,
        60 << 32 | 0x85,
        0x95,
    ];
    let ([at, at_high], [terms, terms_high]) =
        (halves(instructions.as_ptr()), halves(c"GPL".as_ptr()));
    let program = bpf(PROGRAM_LOAD, [SK_MSG, 6, at, at_high, terms, terms_high]);
    bpf(PROGRAM_ATTACH, [map.cast_unsigned(), program.cast_unsigned(), SK_MSG_VERDICT, 0]);
    // SAFETY: the kernel has just given them to us.
    [map, program].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn insert(map: &OwnedFd, place: u32, socket: i32) {
    const MAP_UPDATE: i32 = 2;
    let ([key, key_high], [value, value_high]) =
        (halves(&raw const place), halves(&raw const socket));
    let map = map.as_raw_fd().cast_unsigned();
    bpf(MAP_UPDATE, [map, 0, key, key_high, value, value_high, 0, 0]);
}

#[test]
fn what_is_received_beside_tcp_is_told() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    for is_watched in [false, true] {
        let mut client = TcpStream::connect(address).unwrap();
        let (socket, _) = listener.accept(false).unwrap();
        assert!(socket.is_tracked());
        let fd = socket.as_raw_fd();
        let watcher = Watcher::new(tracker).unwrap();
        watcher.add(fd, bits::IN, 7).unwrap();
        let [map, _program] = redirection();
        insert(&map, 0, fd);
        insert(&map, 1, client.as_raw_fd());
        std::thread::scope(|threads| {
            threads.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                client.write_all(b"12345").unwrap();
            });
            if is_watched {
                let mut events = [DescriptorEvent::default()];
                assert_eq!(watcher.wait(&mut events, LONG, None), Ok(1));
                assert_eq!(events[0].events & bits::IN, bits::IN);
            } else {
                watcher.remove(fd).unwrap();
                let mut fds = [PollFd { fd, events: 1, revents: 0 }];
                assert_eq!(tracker.upoll(&mut fds, LONG, None), Ok(1));
                assert_eq!(fds[0].revents, 1);
            }
        });
        // A part is left there.
        let mut bytes = [0; 2];
        assert_eq!(
            rustix::net::recv(&socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT).unwrap().0,
            2
        );
        let mut fds = [PollFd { fd, events: 1, revents: 0 }];
        assert_eq!(tracker.upoll(&mut fds, Some(Duration::ZERO), None), Ok(1));
    }
}

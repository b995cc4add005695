//! Data that a sockmap redirects from another socket: it is not in TCP's receive queue, so the
//! shared memory has to show that the library must query the kernel.

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

/// Calls bpf(2). The attributes are `union bpf_attr` of linux/bpf.h in words of 32 bits.
fn bpf<const WORDS: usize>(command: i32, attributes: [u32; WORDS]) -> i32 {
    let (start, bytes) = (attributes.as_ptr(), size_of_val(&attributes));
    // SAFETY: the attributes outlive the call, and the callers keep alive what they point to.
    let result = unsafe { libc::syscall(libc::SYS_bpf, command, start, bytes) };
    assert!(result >= 0, "command {command}: {}", std::io::Error::last_os_error());
    result as i32
}

/// Splits an address into its lower and upper half.
fn address_words<T>(pointer: *const T) -> [u32; 2] {
    let address = pointer.expose_provenance() as u64;
    [address as u32, (address >> 32) as u32]
}

/// Creates a sockmap for two sockets: the first receives the data that the second sends. Returns
/// the map and its program.
fn create_sockmap() -> [OwnedFd; 2] {
    const BPF_MAP_CREATE: i32 = 0;
    const BPF_PROG_LOAD: i32 = 5;
    const BPF_PROG_ATTACH: i32 = 8;
    const BPF_MAP_TYPE_SOCKMAP: u32 = 15;
    const BPF_PROG_TYPE_SK_MSG: u32 = 16;
    const BPF_SK_MSG_VERDICT: u32 = 7;
    let map = bpf(BPF_MAP_CREATE, [BPF_MAP_TYPE_SOCKMAP, 4, 4, 2, 0]);
    let instructions: [u64; 6] = [
        // The map (two instructions), index 0, BPF_F_INGRESS, bpf_msg_redirect_map(), return.
        u64::from(map.cast_unsigned()) << 32 | 0x1218,
        0,
        0x03b7,
        1 << 32 | 0x04b7,
        60 << 32 | 0x85,
        0x95,
    ];
    let ([code, code_high], [license, license_high]) =
        (address_words(instructions.as_ptr()), address_words(c"GPL".as_ptr()));
    let program =
        bpf(BPF_PROG_LOAD, [BPF_PROG_TYPE_SK_MSG, 6, code, code_high, license, license_high]);
    bpf(BPF_PROG_ATTACH, [map.cast_unsigned(), program.cast_unsigned(), BPF_SK_MSG_VERDICT, 0]);
    // SAFETY: the kernel has just returned these descriptors, and this function alone owns them.
    [map, program].map(|fd| unsafe { OwnedFd::from_raw_fd(fd) })
}

fn insert(map: &OwnedFd, index: u32, socket: i32) {
    const BPF_MAP_UPDATE_ELEM: i32 = 2;
    let ([key, key_high], [value, value_high]) =
        (address_words(&raw const index), address_words(&raw const socket));
    let map = map.as_raw_fd().cast_unsigned();
    bpf(BPF_MAP_UPDATE_ELEM, [map, 0, key, key_high, value, value_high, 0, 0]);
}

#[test]
fn data_redirected_by_a_sockmap_is_reported() {
    let Some(tracker) = tracker() else { return };
    let (listener, address) = listener(tracker);
    for is_watched in [false, true] {
        let mut client = TcpStream::connect(address).unwrap();
        let (socket, _) = listener.accept(false).unwrap();
        assert!(socket.is_tracked());
        let fd = socket.as_raw_fd();
        let watcher = Watcher::new(tracker).unwrap();
        watcher.add(fd, bits::IN, 7).unwrap();
        let [map, _program] = create_sockmap();
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
        // Receive a part; the rest is still readable.
        let mut bytes = [0; 2];
        assert_eq!(
            rustix::net::recv(&socket, &mut bytes[..], rustix::net::RecvFlags::DONTWAIT).unwrap().0,
            2
        );
        let mut fds = [PollFd { fd, events: 1, revents: 0 }];
        assert_eq!(tracker.upoll(&mut fds, Some(Duration::ZERO), None), Ok(1));
    }
}

//! The protocol of the real uselectd, including invalid input.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/request.rs"]
mod request;
#[path = "common/uselectd.rs"]
mod uselectd;

use std::io::{IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
use uselect::layout::{ReadOnlyPages, SLEEPERS};
use uselect::{REPLY_DESCRIPTORS, RegistrationReply};
use uselectd::Uselectd;

/// A request for exact mode, without the challenge.
const EXACT: &[u8] = b"uselect\x04\x00";
/// A request for lean mode, without the challenge.
const LEAN: &[u8] = b"uselect\x04\x01";
/// A request for the ring of another sleeper.
const RING: &[u8] = b"+";

fn connect(uselectd: &Uselectd) -> UnixStream {
    let connection = UnixStream::connect(&uselectd.socket).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    connection
}

/// Receives a reply: its byte and its descriptors. Returns `None` at the end of the connection.
fn receive_reply(connection: &UnixStream) -> Option<(u8, Vec<OwnedFd>)> {
    let (mut byte, mut descriptors) = ([0], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    match received {
        Ok(received) if received.bytes == 1 => Some((byte[0], descriptors)),
        // If the daemon closes the connection with unread data, the client gets an error.
        Ok(_) | Err(rustix::io::Errno::CONNRESET) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a request and returns the reply, or the reply that came instead of a challenge.
fn send_request(connection: &mut UnixStream, prefix: &[u8]) -> Option<(u8, usize)> {
    match request::receive_challenge(&*connection, prefix) {
        Ok(request) => send_bytes(connection, &request),
        Err(reply) => reply.map(|byte| (byte, 0)),
    }
}

fn send_bytes(connection: &mut UnixStream, bytes: &[u8]) -> Option<(u8, usize)> {
    connection.write_all(bytes).unwrap();
    receive_reply(connection).map(|(byte, descriptors)| (byte, descriptors.len()))
}

const GRANTED: Option<(u8, usize)> = Some((RegistrationReply::Granted as u8, REPLY_DESCRIPTORS));
const ONE_MORE: Option<(u8, usize)> = Some((RegistrationReply::Granted as u8, 1));

#[test]
fn each_sleeper_gets_one_ring() {
    let Some(uselectd) = Uselectd::start("rings", &[]) else { return };
    let idle = uselectd.kernel_objects();
    let mut client = connect(&uselectd);
    assert_eq!(send_request(&mut client, LEAN), GRANTED);
    for _ in 1..SLEEPERS {
        assert_eq!(send_bytes(&mut client, RING), ONE_MORE);
    }
    assert_eq!(send_bytes(&mut client, RING), Some((RegistrationReply::Full as u8, 0)));
    // Any other byte ends the registration.
    assert_eq!(send_bytes(&mut client, b"-"), None);
    uselectd.wait_for(idle);
}

/// Registers this process, and tries again while the registration by an earlier connection lasts.
fn register(uselectd: &Uselectd) -> (UnixStream, u8, Vec<OwnedFd>) {
    loop {
        let mut connection = connect(uselectd);
        let request = match request::receive_challenge(&connection, EXACT) {
            Err(Some(byte)) if byte == RegistrationReply::AlreadyRegistered as u8 => continue,
            request => request.unwrap(),
        };
        connection.write_all(&request).unwrap();
        let (byte, descriptors) = receive_reply(&connection).unwrap();
        if byte != RegistrationReply::AlreadyRegistered as u8 {
            return (connection, byte, descriptors);
        }
    }
}

/// The test holds the memory of ended registrations in each possible way: by a descriptor, by a
/// mapping, and in the queue of a socket.
#[test]
fn a_region_counts_until_its_last_reference_is_gone() {
    let Some(uselectd) = Uselectd::start("memory", &["--per-user", "3"]) else { return };
    let granted = || {
        let (_, byte, descriptors) = register(&uselectd);
        assert_eq!(byte, RegistrationReply::Granted as u8);
        descriptors
    };
    let ring = granted().pop();
    let mapping = Mapping::of(&granted()[0]);
    let queue = loop {
        let mut connection = connect(&uselectd);
        if let Ok(request) = request::receive_challenge(&connection, EXACT) {
            connection.write_all(&request).unwrap();
            recv(&connection, &mut [0][..], RecvFlags::PEEK).unwrap();
            connection.shutdown(Shutdown::Write).unwrap();
            break connection;
        }
    };
    let releases: [Box<dyn FnOnce()>; 3] =
        [Box::new(|| drop(ring)), Box::new(|| drop(mapping)), Box::new(|| drop(queue))];
    let mut others = Vec::new();
    for release in releases {
        assert_eq!(register(&uselectd).1, RegistrationReply::Full as u8);
        release();
        others.push(granted());
    }
    assert_eq!(register(&uselectd).1, RegistrationReply::Full as u8);
}

/// A read-only mapping of `ReadOnlyPages`.
struct Mapping(*mut std::ffi::c_void);

impl Mapping {
    fn of(read_only: &OwnedFd) -> Self {
        let (nowhere, bytes) = (std::ptr::null_mut(), size_of::<ReadOnlyPages>());
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start =
            unsafe { mmap(nowhere, bytes, ProtFlags::READ, MapFlags::SHARED, read_only, 0) };
        Self(start.unwrap())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `of` created this mapping, and no reference into it exists.
        unsafe { munmap(self.0, size_of::<ReadOnlyPages>()) }.unwrap();
    }
}

/// The kernel bounds the number of descriptors in flight for all clients of the daemon together.
#[test]
fn a_client_that_reads_no_replies_is_disconnected() {
    let Some(uselectd) = Uselectd::start("untaken", &[]) else { return };
    let idle = uselectd.kernel_objects();
    let mut client = connect(&uselectd);
    let request = request::receive_challenge(&client, EXACT).unwrap();
    client.write_all(&request).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while client.write_all(RING).is_ok() {
        assert!(Instant::now() < end, "the daemon closes the connection");
    }
    uselectd.wait_for(idle);
    let first = receive_reply(&client).map(|(byte, descriptors)| (byte, descriptors.len()));
    assert_eq!((first, receive_reply(&client).is_none()), (GRANTED, true));
    // A client to which no reply can be sent does not stay registered.
    let mut write_only = connect(&uselectd);
    let request = request::receive_challenge(&write_only, EXACT).unwrap();
    write_only.shutdown(Shutdown::Read).unwrap();
    write_only.write_all(&request).unwrap();
    while send_request(&mut connect(&uselectd), EXACT) != GRANTED {
        assert!(Instant::now() < end, "the client is unregistered");
    }
}

/// Sends a request that `edit` has changed, and returns the reply.
fn reply_to_edited(uselectd: &Uselectd, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> Option<(u8, usize)> {
    let mut connection = connect(uselectd);
    let request = request::receive_challenge(&connection, EXACT).unwrap();
    send_bytes(&mut connection, &edit(request))
}

#[test]
fn invalid_requests_are_not_registered() {
    let Some(uselectd) = Uselectd::start("requests", &[]) else { return };
    let idle = uselectd.kernel_objects();
    let version = Some((RegistrationReply::Version as u8, 0));
    // Without the challenge.
    for other in [&b"uselect\x01"[..], b"uselect\x04", b"uselect\x04\x00", b"uselect\x05\x00"] {
        assert_eq!(reply_to_edited(&uselectd, |_| other.to_vec()), version, "{other:?}");
    }
    for other in [&b"x"[..], b"uselect", b"Uselect\x04\x00", &[0; 4096]] {
        assert_eq!(reply_to_edited(&uselectd, |_| other.to_vec()), None, "{other:?}");
    }
    // A wrong challenge, a part of the challenge, and an invalid mode.
    let wrong: [fn(Vec<u8>) -> Vec<u8>; 3] = [
        |mut request| {
            *request.last_mut().unwrap() ^= 1;
            request
        },
        |request| request[..request.len() - 1].to_vec(),
        |mut request| {
            request[8] = 2;
            request
        },
    ];
    for wrong in wrong {
        assert_eq!(reply_to_edited(&uselectd, wrong), version);
    }
    // Of many silent connections, a few wait until their deadline, and the others get the reply
    // `Full`.
    let silent: Vec<_> = (0..64).map(|_| connect(&uselectd)).collect();
    let full = silent.iter().filter(|connection| {
        let reply = request::receive_challenge(connection, EXACT).map(|_| ());
        assert!(matches!(reply, Ok(()) | Err(Some(_))), "{reply:?}");
        let (mut connection, mut rest): (&UnixStream, _) = (connection, Vec::new());
        connection.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
        reply == Err(Some(RegistrationReply::Full as u8))
    });
    assert!((1..64).contains(&full.count()), "some connections wait, the others get `Full`");
    let mut client = connect(&uselectd);
    assert_eq!(send_request(&mut client, EXACT), GRANTED);
    assert_eq!(
        send_request(&mut connect(&uselectd), EXACT),
        Some((RegistrationReply::AlreadyRegistered as u8, 0))
    );
    drop(client);
    uselectd.wait_for(idle);
}

/// Returns the user and system time of the daemon in hundredths of a second (proc_pid_stat(5)).
fn cpu_time(uselectd: &Uselectd) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", uselectd.process.id())).unwrap();
    let fields: Vec<&str> = text.split(' ').collect();
    fields[13].parse::<u64>().unwrap() + fields[14].parse::<u64>().unwrap()
}

#[test]
fn connections_beyond_the_fd_limit_wait_without_cpu_time() {
    let Some(uselectd) = Uselectd::start("scarce", &[]) else { return };
    let pid = Pid::from_raw(uselectd.process.id().cast_signed());
    let few = Some(uselectd.kernel_objects().descriptors as u64);
    let few = Rlimit { current: few, ..getrlimit(Resource::Nofile) };
    let before = prlimit(pid, Resource::Nofile, few).unwrap();
    let waiting: Vec<_> = (0..32).map(|_| connect(&uselectd)).collect();
    let before_wait = cpu_time(&uselectd);
    std::thread::sleep(Duration::from_secs(1));
    let used = cpu_time(&uselectd) - before_wait;
    assert!(used < 5, "{used} hundredths of a second");
    prlimit(pid, Resource::Nofile, before).unwrap();
    drop(waiting);
    assert_eq!(send_request(&mut connect(&uselectd), EXACT), GRANTED);
}

#[test]
fn a_refusal_precedes_the_request() {
    let Some(uselectd) = Uselectd::start("refused", &["--allow-user", "65534"]) else { return };
    let silent = connect(&uselectd);
    let refused = receive_reply(&silent).map(|(byte, descriptors)| (byte, descriptors.len()));
    assert_eq!(
        (refused, receive_reply(&silent).is_none()),
        (Some((RegistrationReply::Refused as u8, 0)), true)
    );
}

#[test]
fn a_repeated_failure_is_logged_once() {
    let Some(mut uselectd) = Uselectd::start("failing", &[]) else { return };
    let pid = Pid::from_raw(uselectd.process.id().cast_signed());
    let few = Some(uselectd.kernel_objects().descriptors as u64 + 3);
    let few = Rlimit { current: few, ..getrlimit(Resource::Nofile) };
    prlimit(pid, Resource::Nofile, few).unwrap();
    for _ in 0..3 {
        assert_eq!(
            send_request(&mut connect(&uselectd), EXACT),
            Some((RegistrationReply::Failed as u8, 0))
        );
    }
    let log = uselectd.kill_and_read_log();
    let is_reason = log.starts_with("uselectd: cannot register a process: ");
    assert!(is_reason && log.lines().count() == 1, "{log}");
}

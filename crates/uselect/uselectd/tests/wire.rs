//! What the real uselectd says to whatever it is told, byte by byte.

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

/// Requests but for the challenge.
const EXACT: &[u8] = b"uselect\x04\x00";
const LEAN: &[u8] = b"uselect\x04\x01";
const RING: &[u8] = b"+";

fn connect(uselectd: &Uselectd) -> UnixStream {
    let connection = UnixStream::connect(&uselectd.socket).unwrap();
    connection.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    connection
}

/// The byte of an answer, and how many descriptors come with it; `None` at the end. Descriptors
/// that are not kept are closed.
fn answer(connection: &UnixStream) -> Option<(u8, Vec<OwnedFd>)> {
    let (mut byte, mut descriptors) = ([0], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(connection, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    match received {
        Ok(received) if received.bytes == 1 => Some((byte[0], descriptors)),
        // What had not been read when it was closed ends it by an error.
        Ok(_) | Err(rustix::io::Errno::CONNRESET) => None,
        Err(error) => panic!("{error}"),
    }
}

/// Sends a request that begins so; the answer to it, or the one that comes instead of a challenge.
fn ask(connection: &mut UnixStream, begin: &[u8]) -> Option<(u8, usize)> {
    match request::request(&*connection, begin) {
        Ok(request) => say(connection, &request),
        Err(answer) => answer.map(|byte| (byte, 0)),
    }
}

fn say(connection: &mut UnixStream, bytes: &[u8]) -> Option<(u8, usize)> {
    connection.write_all(bytes).unwrap();
    answer(connection).map(|(byte, descriptors)| (byte, descriptors.len()))
}

const GRANTED: Option<(u8, usize)> = Some((RegistrationReply::Granted as u8, REPLY_DESCRIPTORS));
const ONE_MORE: Option<(u8, usize)> = Some((RegistrationReply::Granted as u8, 1));

#[test]
fn each_sleeper_gets_a_ring_in_order() {
    let Some(uselectd) = Uselectd::start("rings", &[]) else { return };
    let idle = uselectd.kept();
    let mut member = connect(&uselectd);
    assert_eq!(ask(&mut member, LEAN), GRANTED);
    for _ in 1..SLEEPERS {
        assert_eq!(say(&mut member, RING), ONE_MORE);
    }
    assert_eq!(say(&mut member, RING), Some((RegistrationReply::Full as u8, 0)));
    // Anything else ends it.
    assert_eq!(say(&mut member, b"-"), None);
    uselectd.wait_for(idle);
}

/// The answer to this process, which may just have been registered by another connection.
fn register(uselectd: &Uselectd) -> (UnixStream, u8, Vec<OwnedFd>) {
    loop {
        let mut connection = connect(uselectd);
        let request = match request::request(&connection, EXACT) {
            Err(Some(byte)) if byte == RegistrationReply::AlreadyRegistered as u8 => continue,
            request => request.unwrap(),
        };
        connection.write_all(&request).unwrap();
        let (byte, descriptors) = answer(&connection).unwrap();
        if byte != RegistrationReply::AlreadyRegistered as u8 {
            return (connection, byte, descriptors);
        }
    }
}

/// Each way to have memory beyond the registration that it is of.
#[test]
fn memory_counts_until_nobody_has_it() {
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
        if let Ok(request) = request::request(&connection, EXACT) {
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

/// Of `Shown`, for reading.
struct Mapping(*mut std::ffi::c_void);

impl Mapping {
    fn of(shown: &OwnedFd) -> Self {
        let (nowhere, bytes) = (std::ptr::null_mut(), size_of::<ReadOnlyPages>());
        // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
        let start = unsafe { mmap(nowhere, bytes, ProtFlags::READ, MapFlags::SHARED, shown, 0) };
        Self(start.unwrap())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped by `of`, and nothing refers to what is in it.
        unsafe { munmap(self.0, size_of::<ReadOnlyPages>()) }.unwrap();
    }
}

/// Descriptors that are in sockets' queues are bounded, for all whom the daemon serves together.
#[test]
fn who_takes_no_answer_gets_no_more() {
    let Some(uselectd) = Uselectd::start("untaken", &[]) else { return };
    let idle = uselectd.kept();
    let mut member = connect(&uselectd);
    let request = request::request(&member, EXACT).unwrap();
    member.write_all(&request).unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while member.write_all(RING).is_ok() {
        assert!(Instant::now() < end, "it is closed");
    }
    uselectd.wait_for(idle);
    let taken = answer(&member).map(|(byte, descriptors)| (byte, descriptors.len()));
    assert_eq!((taken, answer(&member).is_none()), (GRANTED, true));
    // Who can be told nothing is not registered either.
    let mut deaf = connect(&uselectd);
    let request = request::request(&deaf, EXACT).unwrap();
    deaf.shutdown(Shutdown::Read).unwrap();
    deaf.write_all(&request).unwrap();
    while ask(&mut connect(&uselectd), EXACT) != GRANTED {
        assert!(Instant::now() < end, "it stays registered");
    }
}

/// The answer to what `edit` makes of a request.
fn answers(uselectd: &Uselectd, edit: impl Fn(Vec<u8>) -> Vec<u8>) -> Option<(u8, usize)> {
    let mut connection = connect(uselectd);
    let request = request::request(&connection, EXACT).unwrap();
    say(&mut connection, &edit(request))
}

#[test]
fn what_is_no_request_gets_no_registration() {
    let Some(uselectd) = Uselectd::start("requests", &[]) else { return };
    let idle = uselectd.kept();
    let version = Some((RegistrationReply::Version as u8, 0));
    // Without the challenge.
    for other in [&b"uselect\x01"[..], b"uselect\x04", b"uselect\x04\x00", b"uselect\x05\x00"] {
        assert_eq!(answers(&uselectd, |_| other.to_vec()), version, "{other:?}");
    }
    for other in [&b"x"[..], b"uselect", b"Uselect\x04\x00", &[0; 4096]] {
        assert_eq!(answers(&uselectd, |_| other.to_vec()), None, "{other:?}");
    }
    // With another one, with a part of it, and with another mode.
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
        assert_eq!(answers(&uselectd, wrong), version);
    }
    // Who says nothing is not waited for: of many at once most are answered that there is no room.
    let silent: Vec<_> = (0..64).map(|_| connect(&uselectd)).collect();
    let full = silent.iter().filter(|stranger| {
        let answer = request::request(stranger, EXACT).map(|_| ());
        assert!(matches!(answer, Ok(()) | Err(Some(_))), "{answer:?}");
        let (mut stranger, mut rest): (&UnixStream, _) = (stranger, Vec::new());
        stranger.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"");
        answer == Err(Some(RegistrationReply::Full as u8))
    });
    assert!((1..64).contains(&full.count()), "each is closed");
    let mut member = connect(&uselectd);
    assert_eq!(ask(&mut member, EXACT), GRANTED);
    assert_eq!(
        ask(&mut connect(&uselectd), EXACT),
        Some((RegistrationReply::AlreadyRegistered as u8, 0))
    );
    drop(member);
    uselectd.wait_for(idle);
}

/// In hundredths of a second: user and system time of proc_pid_stat(5).
fn processor_time(uselectd: &Uselectd) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/stat", uselectd.process.id())).unwrap();
    let fields: Vec<&str> = text.split(' ').collect();
    fields[13].parse::<u64>().unwrap() + fields[14].parse::<u64>().unwrap()
}

#[test]
fn who_there_is_no_room_for_waits_and_costs_nothing() {
    let Some(uselectd) = Uselectd::start("scarce", &[]) else { return };
    let number = Pid::from_raw(uselectd.process.id().cast_signed());
    let few = Some(uselectd.kept().descriptors as u64);
    let few = Rlimit { current: few, ..getrlimit(Resource::Nofile) };
    let before = prlimit(number, Resource::Nofile, few).unwrap();
    let waiting: Vec<_> = (0..32).map(|_| connect(&uselectd)).collect();
    let begin = processor_time(&uselectd);
    std::thread::sleep(Duration::from_secs(1));
    let used = processor_time(&uselectd) - begin;
    assert!(used < 5, "{used} hundredths of a second");
    prlimit(number, Resource::Nofile, before).unwrap();
    drop(waiting);
    assert_eq!(ask(&mut connect(&uselectd), EXACT), GRANTED);
}

#[test]
fn who_is_refused_is_told_before_it_asks() {
    let Some(uselectd) = Uselectd::start("refused", &["--allow-user", "65534"]) else { return };
    let silent = connect(&uselectd);
    let refused = answer(&silent).map(|(byte, descriptors)| (byte, descriptors.len()));
    assert_eq!(
        (refused, answer(&silent).is_none()),
        (Some((RegistrationReply::Refused as u8, 0)), true)
    );
}

#[test]
fn what_fails_again_and_again_is_said_once() {
    let Some(mut uselectd) = Uselectd::start("failing", &[]) else { return };
    let number = Pid::from_raw(uselectd.process.id().cast_signed());
    let few = Some(uselectd.kept().descriptors as u64 + 3);
    let few = Rlimit { current: few, ..getrlimit(Resource::Nofile) };
    prlimit(number, Resource::Nofile, few).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&mut connect(&uselectd), EXACT), Some((RegistrationReply::Failed as u8, 0)));
    }
    let said = uselectd.end();
    let is_why = said.starts_with("uselectd: a process could not be registered: ");
    assert!(is_why && said.lines().count() == 1, "{said}");
}

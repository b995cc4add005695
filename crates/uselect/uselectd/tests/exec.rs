//! A registration is of a program, not of what the process executes next.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/request.rs"]
mod request;
#[path = "common/uselectd.rs"]
mod uselectd;

use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::mm::{MapFlags, ProtFlags, mmap};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketType,
};
use rustix::net::{ipproto, recvmsg, socket};
use uselect::layout::{THREADS, ThreadSlot, WritablePages};
use uselect::{REPLY_DESCRIPTORS, REQUEST_MAGIC, TrackingMode};
use uselectd::Uselectd;

/// This program again, as a process of [`image`].
fn again() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "image", "--nocapture"]);
    command
}

/// Not a test by itself: registers, with descriptors that stay open, and executes itself. Either
/// image says whether a socket of its own is tracked; the last one stays until its input ends.
#[test]
fn image() {
    let Some(path) = std::env::var_os("USELECT_IMAGE") else { return };
    if let Ok(kept) = std::env::var("USELECT_KEPT") {
        // SAFETY: the number is that of a descriptor which the last image has left open.
        let own = unsafe { BorrowedFd::borrow_raw(kept.parse().unwrap()) };
        eprintln!("image: {}", is_tracked(own));
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let (_connection, descriptors) = registered(path.as_ref());
    let own = &descriptors[1];
    eprintln!("image: {}", is_tracked(own.as_fd()));
    panic!("{}", again().env("USELECT_KEPT", own.as_raw_fd().to_string()).exec());
}

/// A registration, and what came with it; neither is closed on exec.
fn registered(path: &Path) -> (UnixStream, Vec<OwnedFd>) {
    let mut connection = UnixStream::connect(path).unwrap();
    fcntl_setfd(&connection, FdFlags::empty()).unwrap();
    let request =
        request::request(&connection, &[&REQUEST_MAGIC[..], &[TrackingMode::Exact as u8]].concat());
    connection.write_all(&request.unwrap()).unwrap();
    let descriptors = answer(&connection);
    (connection, descriptors)
}

/// What comes with the daemon's answer, not closed on exec.
fn answer(connection: &UnixStream) -> Vec<OwnedFd> {
    let (mut byte, mut descriptors) = ([0], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REPLY_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(connection, &mut parts, &mut control, RecvFlags::empty()).unwrap();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(came) = message {
            descriptors.extend(came);
        }
    }
    descriptors
}

/// Whether a socket that this thread opens now, with a slot armed, is tracked.
fn is_tracked(own: BorrowedFd<'_>) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (nowhere, bytes) = (std::ptr::null_mut(), size_of::<WritablePages>());
    // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
    let start = unsafe { mmap(nowhere, bytes, access, MapFlags::SHARED, own, 0) }.unwrap();
    // SAFETY: it has that many bytes, stays mapped, and is made of atomics.
    let own = unsafe { &*start.cast::<WritablePages>() };
    let thread = rustix::thread::gettid().as_raw_pid().unsigned_abs();
    let ThreadSlot { thread: owner, armed, taken, .. } = &own.slot[thread as usize % THREADS];
    owner.store(thread, Ordering::SeqCst);
    taken.store(0, Ordering::SeqCst);
    armed.store(1, Ordering::SeqCst);
    socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
    taken.load(Ordering::SeqCst) == 1
}

#[test]
fn what_is_executed_is_not_tracked() {
    let Some(mut uselectd) = Uselectd::start("executed", &[]) else { return };
    let idle = uselectd.kept();
    let mut command = again();
    command.env("USELECT_IMAGE", &uselectd.socket).stdout(Stdio::null());
    let mut process = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = lines.filter(|line| line.starts_with("image: "));
    assert_eq!(said.next().unwrap(), "image: true");
    assert_eq!(said.next().unwrap(), "image: false");
    assert!(uselectd.kept().places > 0, "memory is there, as the connection is");
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
    uselectd.wait_for(idle);
    assert_eq!(uselectd.end(), "", "that is nothing to be told");
}

const NOBODY: u32 = 65534;

/// Not a test by itself: registers as a user without privileges, and is root again; as a program
/// does with which a process becomes more than it was.
#[test]
fn changeling() {
    let Some(path) = std::env::var_os("USELECT_CHANGELING") else { return };
    become_user(NOBODY);
    let (_connection, descriptors) = registered(path.as_ref());
    let own = descriptors[1].as_fd();
    assert!(is_tracked(own));
    become_user(0);
    assert!(!is_tracked(own), "it has become more than it was");
    become_user(NOBODY);
    assert!(is_tracked(own));
    become_user(0);
    // SAFETY: as in `become_user`.
    assert_eq!(unsafe { libc::setresgid(u32::MAX, NOBODY, u32::MAX) }, 0);
    become_user(NOBODY);
    assert!(!is_tracked(own), "its group is another one");
}

/// By its effective user id alone.
fn become_user(user: u32) {
    let same = u32::MAX;
    // SAFETY: it changes the ids of this process, in which nobody depends on them.
    assert_eq!(unsafe { libc::setresuid(same, user, same) }, 0);
}

#[test]
fn who_becomes_more_than_it_was_is_not_tracked() {
    let options = ["--allow-user", "root", "--allow-user", "nobody"];
    let Some(mut uselectd) = Uselectd::start("changeling", &options) else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "changeling", "--nocapture"]);
    command.env("USELECT_CHANGELING", &uselectd.socket).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    assert_eq!(uselectd.end(), "");
}

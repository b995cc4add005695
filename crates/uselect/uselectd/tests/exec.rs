//! A registration belongs to a program: it does not extend to a program that the process executes.

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

/// Returns the command that runs [`image`] in this test program.
fn reexec_command() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "image", "--nocapture"]);
    command
}

/// Not a test by itself: registers, with descriptors that stay open, and executes itself. Before
/// and after execve(2) it prints whether a new socket is tracked. The second program then waits for
/// the end of its input.
#[test]
fn image() {
    let Some(path) = std::env::var_os("USELECT_IMAGE") else { return };
    if let Ok(inherited) = std::env::var("USELECT_INHERITED_FD") {
        // SAFETY: the number is that of a descriptor that the first program has left open.
        let writable = unsafe { BorrowedFd::borrow_raw(inherited.parse().unwrap()) };
        eprintln!("image: {}", tracks_new_socket(writable));
        std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
        return;
    }
    let (_connection, descriptors) = register(path.as_ref());
    let writable = &descriptors[1];
    eprintln!("image: {}", tracks_new_socket(writable.as_fd()));
    panic!(
        "{}",
        reexec_command().env("USELECT_INHERITED_FD", writable.as_raw_fd().to_string()).exec()
    );
}

/// Registers. Returns the connection and the descriptors; none is closed on exec.
fn register(path: &Path) -> (UnixStream, Vec<OwnedFd>) {
    let mut connection = UnixStream::connect(path).unwrap();
    fcntl_setfd(&connection, FdFlags::empty()).unwrap();
    let request = request::receive_challenge(
        &connection,
        &[&REQUEST_MAGIC[..], &[TrackingMode::Exact as u8]].concat(),
    );
    connection.write_all(&request.unwrap()).unwrap();
    let descriptors = receive_descriptors(&connection);
    (connection, descriptors)
}

/// Receives the descriptors of a reply, without close-on-exec.
fn receive_descriptors(connection: &UnixStream) -> Vec<OwnedFd> {
    let (mut byte, mut descriptors) = ([0], Vec::new());
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(REPLY_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(&mut byte)];
    recvmsg(connection, &mut parts, &mut control, RecvFlags::empty()).unwrap();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(fds) = message {
            descriptors.extend(fds);
        }
    }
    descriptors
}

/// Arms a slot, opens a socket, and returns whether it is tracked.
fn tracks_new_socket(writable: BorrowedFd<'_>) -> bool {
    let access = ProtFlags::READ | ProtFlags::WRITE;
    let (nowhere, bytes) = (std::ptr::null_mut(), size_of::<WritablePages>());
    // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
    let start = unsafe { mmap(nowhere, bytes, access, MapFlags::SHARED, writable, 0) }.unwrap();
    // SAFETY: the mapping has the size of the type and is never removed, and all fields are
    // atomics.
    let writable = unsafe { &*start.cast::<WritablePages>() };
    let thread = rustix::thread::gettid().as_raw_pid().unsigned_abs();
    let ThreadSlot { thread: owner, armed, taken, .. } = &writable.slot[thread as usize % THREADS];
    owner.store(thread, Ordering::SeqCst);
    taken.store(0, Ordering::SeqCst);
    armed.store(1, Ordering::SeqCst);
    socket(AddressFamily::INET, SocketType::STREAM, Some(ipproto::TCP)).unwrap();
    taken.load(Ordering::SeqCst) == 1
}

#[test]
fn an_executed_program_is_not_tracked() {
    let Some(mut uselectd) = Uselectd::start("executed", &[]) else { return };
    let idle = uselectd.kernel_objects();
    let mut command = reexec_command();
    command.env("USELECT_IMAGE", &uselectd.socket).stdout(Stdio::null());
    let mut process = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(process.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut results = lines.filter(|line| line.starts_with("image: "));
    assert_eq!(results.next().unwrap(), "image: true");
    assert_eq!(results.next().unwrap(), "image: false");
    assert!(
        uselectd.kernel_objects().map_entries > 0,
        "the region exists as long as the connection"
    );
    drop(process.stdin.take());
    assert!(process.wait().unwrap().success());
    uselectd.wait_for(idle);
    assert_eq!(uselectd.kill_and_read_log(), "", "nothing is logged");
}

const NOBODY: u32 = 65534;

/// Not a test by itself: registers as a user without privileges and becomes root again,
/// like a process that executes a set-user-ID program.
#[test]
fn credential_change() {
    let Some(path) = std::env::var_os("USELECT_CREDENTIALS") else { return };
    set_effective_user(NOBODY);
    let (_connection, descriptors) = register(path.as_ref());
    let writable = descriptors[1].as_fd();
    assert!(tracks_new_socket(writable));
    set_effective_user(0);
    assert!(!tracks_new_socket(writable), "the process has gained privileges");
    set_effective_user(NOBODY);
    assert!(tracks_new_socket(writable));
    set_effective_user(0);
    // SAFETY: as in `set_effective_user`.
    assert_eq!(unsafe { libc::setresgid(u32::MAX, NOBODY, u32::MAX) }, 0);
    set_effective_user(NOBODY);
    assert!(!tracks_new_socket(writable), "the group has changed");
}

/// Changes only the effective user id.
fn set_effective_user(user: u32) {
    let same = u32::MAX;
    // SAFETY: the call changes the ids of this process, and no other code depends on them.
    assert_eq!(unsafe { libc::setresuid(same, user, same) }, 0);
}

#[test]
fn a_process_that_gains_privileges_is_not_tracked() {
    let options = ["--allow-user", "root", "--allow-user", "nobody"];
    let Some(mut uselectd) = Uselectd::start("credential_change", &options) else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "credential_change", "--nocapture"]);
    command.env("USELECT_CREDENTIALS", &uselectd.socket).stdout(Stdio::null());
    assert!(command.status().unwrap().success());
    assert_eq!(uselectd.kill_and_read_log(), "");
}

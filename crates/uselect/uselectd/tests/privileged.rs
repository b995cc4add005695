//! A process connects to uselectd and then executes a program with privileges. Another process that
//! holds the connection must not get a registration of that process.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/request.rs"]
mod request;
#[path = "common/uselectd.rs"]
mod uselectd;

use std::io::{BufRead, BufReader, ErrorKind, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use rustix::fs::XattrFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketAddrUnix, SocketType,
};
use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::CapabilitySet;
use uselect::{REPLY_DESCRIPTORS, REQUEST_MAGIC, RegistrationReply, TrackingMode};
use uselectd::Uselectd;

const NOBODY: u32 = 65534;

/// How a program gets more privileges than the process that executes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Privilege {
    /// By a file capability: the effective user stays the same.
    FileCapability,
    /// By the set-user-ID bit of root: the program restores the effective user, and the saved user
    /// is root.
    SetUserId,
}

/// A copy of this test program in a directory of its own, which is removed on drop.
struct Image(PathBuf);

impl Image {
    fn new(name: &str, privilege: Option<Privilege>) -> Self {
        let folder = common::socket_path(name).with_extension("d");
        std::fs::create_dir(&folder).unwrap();
        let image = Self(folder.join("image"));
        std::fs::copy(std::env::current_exe().unwrap(), &image.0).unwrap();
        let mode = |mode| std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(&folder, mode(0o755)).unwrap();
        chown(&image.0, Some(0), Some(0)).unwrap();
        std::fs::set_permissions(&image.0, mode(0o755)).unwrap();
        match privilege {
            None => {}
            Some(Privilege::SetUserId) => {
                std::fs::set_permissions(&image.0, mode(0o4755)).unwrap();
            }
            Some(Privilege::FileCapability) => {
                // `struct vfs_cap_data` of linux/capability.h: VFS_CAP_REVISION_2 with the
                // effective bit, and CAP_NET_BIND_SERVICE in the permitted set.
                let words = [0x0200_0001_u32, 1 << 10, 0, 0, 0];
                let value = words.map(u32::to_le_bytes).concat();
                let flags = XattrFlags::empty();
                rustix::fs::setxattr(&image.0, "security.capability", &value, flags).unwrap();
            }
        }
        image
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.0.parent().unwrap()).unwrap();
    }
}

/// Not a test by itself: connects a socket that it has inherited. Then it sends a request on the
/// order "request" and executes another program on the order "execute".
#[test]
fn process() {
    let Some(path) = std::env::var_os("USELECT_PROCESS") else { return };
    let number = std::env::var("USELECT_CONNECTION").unwrap().parse().unwrap();
    // SAFETY: the number is that of an inherited descriptor, which stays open.
    let connection = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::connect(connection, &SocketAddrUnix::new(Path::new(&path)).unwrap()).unwrap();
    eprintln!("process: connected");
    let mut orders = std::io::stdin().lines().map(Result::unwrap);
    let Some(mut order) = orders.next() else { return };
    if order == "request" {
        let request = request::receive_challenge(connection, &request_prefix()).unwrap();
        rustix::io::write(connection, &request).unwrap();
        eprintln!("process: requested");
        let Some(next) = orders.next() else { return };
        order = next;
    }
    assert_eq!(order, "execute");
    let image = std::env::var_os("USELECT_EXECUTES").unwrap();
    let mut command = Command::new(image);
    command.args(["--exact", "image", "--nocapture"]).env_remove("USELECT_PROCESS");
    panic!("{}", command.env("USELECT_IMAGE", "").exec());
}

/// Not a test by itself: the program that is executed. It prints its credentials and waits for the
/// end of its input.
#[test]
fn image() {
    if std::env::var_os("USELECT_IMAGE").is_none() {
        return;
    }
    if rustix::process::geteuid().is_root() {
        // SAFETY: the call changes the ids of this process, and no other code depends on them.
        assert_eq!(unsafe { libc::seteuid(NOBODY) }, 0);
    }
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: the three integers outlive the call.
    assert_eq!(unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) }, 0);
    let capabilities = rustix::thread::capabilities(None).unwrap().permitted;
    let has_capability = capabilities.contains(CapabilitySet::NET_BIND_SERVICE);
    eprintln!("image: {real} {effective} {saved} {has_capability}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Returns a request without the challenge.
fn request_prefix() -> Vec<u8> {
    [&REQUEST_MAGIC[..], &[TrackingMode::Exact as u8]].concat()
}

struct AttackProcess {
    child: Child,
    stderr: BufReader<ChildStderr>,
    connection: OwnedFd,
}

impl AttackProcess {
    /// Starts a process without privileges and waits until it has connected. The test holds the
    /// connection too.
    fn spawn_connected(uselectd: &Uselectd, before: &Image, after: &Image) -> Self {
        let stream = SocketType::STREAM;
        let connection = rustix::net::socket(AddressFamily::UNIX, stream, None).unwrap();
        let mut command = Command::new(&before.0);
        command.args(["--exact", "process", "--nocapture"]).uid(NOBODY).gid(NOBODY);
        command.env("USELECT_PROCESS", &uselectd.socket).env("USELECT_EXECUTES", &after.0);
        command.env("USELECT_CONNECTION", connection.as_raw_fd().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = loop {
            match command.spawn() {
                // A child of another test holds the copied image open for writing until it executes
                // its program.
                Err(error) if error.kind() == ErrorKind::ExecutableFileBusy => {
                    std::thread::yield_now();
                }
                spawned => break spawned.unwrap(),
            }
        };
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut process = Self { child, stderr, connection };
        assert_eq!(process.read_line("process: "), "connected");
        process
    }

    /// Returns the next line of standard error that starts with `prefix`, without the prefix.
    fn read_line(&mut self, prefix: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.stderr.read_line(&mut line).unwrap() > 0, "the process has ended");
            if let Some(rest) = line.strip_prefix(prefix) {
                return rest.trim_end().to_owned();
            }
        }
    }

    fn send_order(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Makes the process execute the other program, and checks the privileges of that program.
    fn execute(&mut self, privilege: Privilege) {
        self.send_order("execute");
        let expected = match privilege {
            Privilege::FileCapability => "65534 65534 65534 true",
            Privilege::SetUserId => "65534 65534 0 true",
        };
        assert_eq!(
            self.read_line("image: "),
            expected,
            "the file system supports set-user-ID and file capabilities"
        );
    }

    /// Makes the process send a request.
    fn request_registration(&mut self) {
        self.send_order("request");
        assert_eq!(self.read_line("process: "), "requested");
    }

    /// Receives a reply: its byte and the number of its descriptors. Returns `None` at the end of
    /// the connection.
    fn receive_reply(&self) -> Option<(u8, usize)> {
        let (mut byte, mut descriptors) = ([0], Vec::<OwnedFd>::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.connection, &mut parts, &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(fds) = message {
                descriptors.extend(fds);
            }
        }
        (received.unwrap().bytes == 1).then(|| (byte[0], descriptors.len()))
    }

    fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().unwrap().success());
    }
}

const REFUSED: Option<(u8, usize)> = Some((RegistrationReply::Refused as u8, 0));
const GRANTED: Option<(u8, usize)> = Some((RegistrationReply::Granted as u8, REPLY_DESCRIPTORS));

/// Runs `attack` with each kind of privilege. The process must be refused, and the daemon must keep
/// nothing of it.
fn assert_refused(
    name: &str,
    attack: impl Fn(&Uselectd, &Image, &Image, Privilege) -> AttackProcess,
) {
    let Some(mut uselectd) = Uselectd::start(name, &["--allow-user", "65534"]) else { return };
    let idle = uselectd.kernel_objects();
    let before = Image::new(&format!("{name}-before"), None);
    for privilege in [Privilege::FileCapability, Privilege::SetUserId] {
        let after = Image::new(&format!("{name}-after"), Some(privilege));
        let process = attack(&uselectd, &before, &after, privilege);
        assert_eq!(process.receive_reply(), REFUSED, "{privilege:?}");
        process.end();
        uselectd.wait_for(idle);
    }
    assert_eq!(uselectd.kill_and_read_log(), "", "refusals are not logged");
}

#[test]
fn a_process_that_sends_its_own_request_is_registered() {
    let Some(uselectd) = Uselectd::start("honest", &["--allow-user", "65534"]) else { return };
    let image = Image::new("honest", None);
    let mut process = AttackProcess::spawn_connected(&uselectd, &image, &image);
    process.request_registration();
    assert_eq!(process.receive_reply(), GRANTED);
    process.end();
}

#[test]
fn another_process_cannot_register_one_that_has_executed() {
    assert_refused("accomplice", |uselectd, before, after, privilege| {
        let mut process = AttackProcess::spawn_connected(uselectd, before, after);
        let request = request::receive_challenge(&process.connection, &request_prefix()).unwrap();
        process.execute(privilege);
        rustix::io::write(&process.connection, &request).unwrap();
        process
    });
}

#[test]
fn execve_invalidates_a_request_that_was_sent() {
    assert_refused("void", |uselectd, before, after, privilege| {
        let mut process = AttackProcess::spawn_connected(uselectd, before, after);
        wait_for_challenge(&process.connection);
        let stopped = StoppedDaemon::new(uselectd);
        process.request_registration();
        process.execute(privilege);
        drop(stopped);
        process
    });
}

#[test]
fn a_process_that_executes_before_accept_is_not_registered() {
    assert_refused("backlog", |uselectd, before, after, privilege| {
        let stopped = StoppedDaemon::new(uselectd);
        let mut process = AttackProcess::spawn_connected(uselectd, before, after);
        process.execute(privilege);
        drop(stopped);
        let request = request::receive_challenge(&process.connection, &request_prefix()).unwrap();
        rustix::io::write(&process.connection, &request).unwrap();
        process
    });
}

/// Another process without privileges holds the connection and sends the request of the first one.
#[test]
fn another_process_cannot_register_one_that_has_not_executed() {
    let Some(uselectd) = Uselectd::start("another", &["--allow-user", "65534"]) else { return };
    let image = Image::new("another", None);
    let process = AttackProcess::spawn_connected(&uselectd, &image, &image);
    let request = request::receive_challenge(&process.connection, &request_prefix()).unwrap();
    rustix::io::write(&process.connection, &request).unwrap();
    assert_eq!(process.receive_reply(), REFUSED);
    process.end();
}

fn wait_for_challenge(connection: &OwnedFd) {
    rustix::net::recv(connection, &mut [0][..], RecvFlags::PEEK).unwrap();
}

/// Stops a daemon by SIGSTOP; dropping this value continues it.
struct StoppedDaemon(Pid);

impl StoppedDaemon {
    fn new(uselectd: &Uselectd) -> Self {
        let daemon = Pid::from_child(&uselectd.process);
        kill_process(daemon, Signal::STOP).unwrap();
        let is_stopped = || {
            let stat = format!("/proc/{}/stat", daemon.as_raw_pid());
            std::fs::read_to_string(stat).unwrap().contains(") T ")
        };
        while !is_stopped() {
            std::thread::yield_now();
        }
        Self(daemon)
    }
}

impl Drop for StoppedDaemon {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

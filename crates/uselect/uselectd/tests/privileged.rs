//! A process connects to uselectd and then executes a program with privileges. Whoever holds the
//! connection gets no registration of that process.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/request.rs"]
mod request;
#[path = "common/uselectd.rs"]
mod uselectd;

use std::io::{BufRead, BufReader, IoSliceMut, Read, Write};
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
    /// The effective user is the one who executed it, and the capabilities are not.
    FileCapability,
    /// The effective user is that one again, and the saved one is root.
    SetUserId,
}

/// A copy of this program in a directory of its own, which is removed with it.
struct Image(PathBuf);

impl Image {
    fn new(name: &str, privilege: Option<Privilege>) -> Self {
        let folder = common::socket(name).with_extension("d");
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
                // effective bit, and CAP_NET_BIND_SERVICE permitted.
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

/// Not a test by itself: connects a socket that it was left, asks for a registration if it is told
/// to, and executes another program when it is told to.
#[test]
fn process() {
    let Some(path) = std::env::var_os("USELECT_PROCESS") else { return };
    let number = std::env::var("USELECT_CONNECTION").unwrap().parse().unwrap();
    // SAFETY: it is the number of a descriptor that this process was left, which stays open.
    let connection = unsafe { BorrowedFd::borrow_raw(number) };
    rustix::net::connect(connection, &SocketAddrUnix::new(Path::new(&path)).unwrap()).unwrap();
    eprintln!("process: connected");
    let mut orders = std::io::stdin().lines().map(Result::unwrap);
    let Some(mut order) = orders.next() else { return };
    if order == "ask" {
        let request = request::request(connection, &begin()).unwrap();
        rustix::io::write(connection, &request).unwrap();
        eprintln!("process: asked");
        let Some(next) = orders.next() else { return };
        order = next;
    }
    assert_eq!(order, "execute");
    let image = std::env::var_os("USELECT_EXECUTES").unwrap();
    let mut command = Command::new(image);
    command.args(["--exact", "image", "--nocapture"]).env_remove("USELECT_PROCESS");
    panic!("{}", command.env("USELECT_IMAGE", "").exec());
}

/// Not a test by itself: the program that is executed. It stays until its input ends.
#[test]
fn image() {
    if std::env::var_os("USELECT_IMAGE").is_none() {
        return;
    }
    if rustix::process::geteuid().is_root() {
        // SAFETY: it changes the ids of this process, in which nobody depends on them.
        assert_eq!(unsafe { libc::seteuid(NOBODY) }, 0);
    }
    let (mut real, mut effective, mut saved) = (0, 0, 0);
    // SAFETY: three numbers, which outlive the call.
    assert_eq!(unsafe { libc::getresuid(&raw mut real, &raw mut effective, &raw mut saved) }, 0);
    let capabilities = rustix::thread::capabilities(None).unwrap().permitted;
    let has_capability = capabilities.contains(CapabilitySet::NET_BIND_SERVICE);
    eprintln!("image: {real} {effective} {saved} {has_capability}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// A request for a registration but for the challenge.
fn begin() -> Vec<u8> {
    [&REQUEST_MAGIC[..], &[TrackingMode::Exact as u8]].concat()
}

struct Process {
    child: Child,
    said: BufReader<ChildStderr>,
    connection: OwnedFd,
}

impl Process {
    /// A process without privileges, which has connected. This one holds the connection too.
    fn connected(uselectd: &Uselectd, before: &Image, after: &Image) -> Self {
        let stream = SocketType::STREAM;
        let connection = rustix::net::socket(AddressFamily::UNIX, stream, None).unwrap();
        let mut command = Command::new(&before.0);
        command.args(["--exact", "process", "--nocapture"]).uid(NOBODY).gid(NOBODY);
        command.env("USELECT_PROCESS", &uselectd.socket).env("USELECT_EXECUTES", &after.0);
        command.env("USELECT_CONNECTION", connection.as_raw_fd().to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap());
        let mut process = Self { child, said, connection };
        assert_eq!(process.line("process: "), "connected");
        process
    }

    /// What it says behind `word`.
    fn line(&mut self, word: &str) -> String {
        loop {
            let mut line = String::new();
            assert!(self.said.read_line(&mut line).unwrap() > 0, "it has ended");
            if let Some(rest) = line.strip_prefix(word) {
                return rest.trim_end().to_owned();
            }
        }
    }

    fn order(&mut self, order: &str) {
        writeln!(self.child.stdin.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Has it execute the other program, which has to have its privileges then.
    fn executes(&mut self, privilege: Privilege) {
        self.order("execute");
        let expected = match privilege {
            Privilege::FileCapability => "65534 65534 65534 true",
            Privilege::SetUserId => "65534 65534 0 true",
        };
        assert_eq!(self.line("image: "), expected, "the file system honours privileges of files");
    }

    /// Has it ask for a registration.
    fn asks(&mut self) {
        self.order("ask");
        assert_eq!(self.line("process: "), "asked");
    }

    /// The byte of an answer, and how many descriptors come with it; `None` at the end.
    fn answer(&self) -> Option<(u8, usize)> {
        let (mut byte, mut descriptors) = ([0], Vec::<OwnedFd>::new());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = rustix::net::recvmsg(&self.connection, &mut parts, &mut control, flags);
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(came) = message {
                descriptors.extend(came);
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

/// Plays `attack` with each kind of privilege. The process gets no registration, and nothing is left
/// of it.
fn assert_refused(name: &str, attack: impl Fn(&Uselectd, &Image, &Image, Privilege) -> Process) {
    let Some(mut uselectd) = Uselectd::start(name, &["--allow-user", "65534"]) else { return };
    let idle = uselectd.kept();
    let before = Image::new(&format!("{name}-before"), None);
    for privilege in [Privilege::FileCapability, Privilege::SetUserId] {
        let after = Image::new(&format!("{name}-after"), Some(privilege));
        let process = attack(&uselectd, &before, &after, privilege);
        assert_eq!(process.answer(), REFUSED, "{privilege:?}");
        process.end();
        uselectd.wait_for(idle);
    }
    assert_eq!(uselectd.end(), "", "that is nothing to be told");
}

#[test]
fn a_process_that_asks_itself_is_registered() {
    let Some(uselectd) = Uselectd::start("honest", &["--allow-user", "65534"]) else { return };
    let image = Image::new("honest", None);
    let mut process = Process::connected(&uselectd, &image, &image);
    process.asks();
    assert_eq!(process.answer(), GRANTED);
    process.end();
}

#[test]
fn another_process_cannot_register_one_that_has_executed() {
    assert_refused("accomplice", |uselectd, before, after, privilege| {
        let mut process = Process::connected(uselectd, before, after);
        let request = request::request(&process.connection, &begin()).unwrap();
        process.executes(privilege);
        rustix::io::write(&process.connection, &request).unwrap();
        process
    });
}

#[test]
fn a_request_is_void_once_its_process_has_executed() {
    assert_refused("void", |uselectd, before, after, privilege| {
        let mut process = Process::connected(uselectd, before, after);
        wait_for_challenge(&process.connection);
        let stopped = Stopped::new(uselectd);
        process.asks();
        process.executes(privilege);
        drop(stopped);
        process
    });
}

#[test]
fn a_process_that_executes_before_it_is_accepted_is_not_registered() {
    assert_refused("backlog", |uselectd, before, after, privilege| {
        let stopped = Stopped::new(uselectd);
        let mut process = Process::connected(uselectd, before, after);
        process.executes(privilege);
        drop(stopped);
        let request = request::request(&process.connection, &begin()).unwrap();
        rustix::io::write(&process.connection, &request).unwrap();
        process
    });
}

/// Another process without privileges holds the connection, and asks in the other one's name.
#[test]
fn another_process_cannot_register_one_that_has_not_executed() {
    let Some(uselectd) = Uselectd::start("another", &["--allow-user", "65534"]) else { return };
    let image = Image::new("another", None);
    let process = Process::connected(&uselectd, &image, &image);
    let request = request::request(&process.connection, &begin()).unwrap();
    rustix::io::write(&process.connection, &request).unwrap();
    assert_eq!(process.answer(), REFUSED);
    process.end();
}

fn wait_for_challenge(connection: &OwnedFd) {
    rustix::net::recv(connection, &mut [0][..], RecvFlags::PEEK).unwrap();
}

/// A daemon that is stopped until this is dropped.
struct Stopped(Pid);

impl Stopped {
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

impl Drop for Stopped {
    fn drop(&mut self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

//! The real uselectd: who is registered, and that nothing is left of whoever was.
//!
//! KILLS=1000 kills so many processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use uselect::{Error, PollFd, Tracker};

struct Uselectd {
    process: Child,
    socket: PathBuf,
}

impl Uselectd {
    /// `None` where it cannot run, which is said.
    fn start(name: &str, options: &[&str]) -> Option<Self> {
        // Says why not, and fails where it should.
        common::tracker()?;
        let socket = common::socket(name);
        let mut command = Command::new(env!("CARGO_BIN_EXE_uselectd"));
        command.arg("--socket").arg(&socket).args(options).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut said = String::new();
        BufReader::new(process.stderr.take().unwrap()).read_line(&mut said).unwrap();
        assert!(said.starts_with("uselectd: listening on unix:"), "{said}");
        Some(Self { process, socket })
    }

    /// Maps, programs and links that it has: what of them is its own alone is the kernel's no more
    /// than its descriptors are.
    fn counts(&self) -> (usize, usize, usize) {
        let folder = format!("/proc/{}/fdinfo", self.process.id());
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(entry.unwrap().path()).unwrap_or_default()
        };
        let infos: Vec<String> = std::fs::read_dir(folder).unwrap().map(read).collect();
        let count = |what| infos.iter().filter(|info| info.contains(what)).count();
        (count("map_type:"), count("prog_type:"), count("link_type:"))
    }

    fn wait_for(&self, expected: (usize, usize, usize)) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.counts() != expected {
            assert!(Instant::now() < end, "{:?}, not {expected:?}", self.counts());
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Uselectd {
    fn drop(&mut self) {
        // Some tests have done it before.
        let _ = self.process.kill();
        self.process.wait().unwrap();
        std::fs::remove_file(&self.socket).unwrap();
    }
}

/// This program again, as a process of [`member`]: from a copy, as not every user may look into the
/// folder that it is built in. The harness writes to standard output when nobody reads any more.
fn spawn_member(socket: &Path, user: u32) -> Child {
    let copy = socket.with_extension("member");
    std::fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    let mut command = Command::new(&copy);
    command.args(["--exact", "member", "--nocapture"]).env("USELECT_MEMBER", socket);
    command.uid(user).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let member = command.spawn();
    std::fs::remove_file(&copy).unwrap();
    member.unwrap()
}

/// Not a test by itself: registers, opens a socket, says how that went, and stays until its input
/// ends.
#[test]
fn member() {
    let Some(socket) = std::env::var_os("USELECT_MEMBER") else { return };
    let tracker = Tracker::register(Path::new(&socket));
    let socket = tracker.as_ref().map(|tracker| tracker.socket(false, false).unwrap().is_tracked());
    eprintln!("member: {socket:?}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn said(member: &mut Child) -> String {
    let lines = BufReader::new(member.stderr.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.starts_with("member: ")).unwrap()
}

#[test]
fn users_that_are_listed_are_registered_once() {
    let Some(uselectd) = Uselectd::start("users", &["--allow-user", "65534"]) else { return };
    assert!(matches!(Tracker::register(&uselectd.socket), Err(Error::Refused)));
    let mut other = spawn_member(&uselectd.socket, 65534);
    assert_eq!(said(&mut other), "member: Ok(true)");
    drop(other.stdin.take());
    other.wait().unwrap();
    let Some(uselectd) = Uselectd::start("once", &[]) else { return };
    let first = Tracker::register(&uselectd.socket).unwrap();
    assert!(matches!(Tracker::register(&uselectd.socket), Err(Error::Registered)));
    let mut other = spawn_member(&uselectd.socket, 65534);
    assert_eq!(said(&mut other), "member: Err(Refused)");
    drop(other.stdin.take());
    other.wait().unwrap();
    drop(first);
}

#[test]
fn nothing_is_left_of_who_is_killed() {
    let Some(uselectd) = Uselectd::start("killed", &[]) else { return };
    let idle = uselectd.counts();
    assert_eq!(idle.2, 0, "nothing is attached while nobody is registered");
    let kills = std::env::var("KILLS").map_or(20, |text| text.parse().unwrap());
    let mut begun = Duration::from_millis(3);
    for round in 0..kills {
        let mut member = spawn_member(&uselectd.socket, 0);
        if round % 4 == 0 {
            let begin = Instant::now();
            assert_eq!(said(&mut member), "member: Ok(true)");
            begun = begin.elapsed();
            assert!(uselectd.counts().2 > 0, "there is something to be left");
        } else {
            // At any moment of the same way.
            std::thread::sleep(begun * (round * 37 % 100) / 100);
        }
        member.kill().unwrap();
        member.wait().unwrap();
        uselectd.wait_for(idle);
    }
}

#[test]
fn who_outlives_the_daemon_asks_the_kernel() {
    let Some(mut uselectd) = Uselectd::start("ended", &[]) else { return };
    let tracker = Tracker::register(&uselectd.socket).unwrap();
    let (listener, address) = listener::listener(&tracker);
    let mut peer = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    assert!(socket.is_tracked());
    let wait = |timeout| {
        let mut fds = [PollFd { fd: socket.as_raw_fd(), events: 1, revents: 0 }];
        (tracker.upoll(&mut fds, timeout).unwrap(), fds[0].revents)
    };
    assert_eq!(wait(Some(Duration::ZERO)), (0, 0));
    // Once while it sleeps, and nothing but the daemon's end can wake it.
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        uselectd.process.kill().unwrap();
        uselectd.process.wait().unwrap();
        // The kernel detaches what the daemon had when it has nothing else to do.
        std::thread::sleep(Duration::from_millis(300));
        peer.write_all(b"x").unwrap();
        (uselectd, peer)
    });
    assert_eq!(wait(Some(Duration::from_secs(10))), (1, 1));
    let (uselectd, peer) = other.join().unwrap();
    assert!(!socket.is_tracked());
    rustix::net::recv(&socket, &mut [0; 8][..], rustix::net::RecvFlags::empty()).unwrap();
    assert_eq!(wait(Some(Duration::ZERO)), (0, 0));
    drop((uselectd, peer));
}

#[test]
fn who_never_sleeps_finds_the_end_of_the_daemon_too() {
    let Some(mut uselectd) = Uselectd::start("unseen", &[]) else { return };
    let tracker = Tracker::register(&uselectd.socket).unwrap();
    let (listener, address) = listener::listener(&tracker);
    let _peer = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    uselectd.process.kill().unwrap();
    uselectd.process.wait().unwrap();
    let mut fds = [PollFd { fd: socket.as_raw_fd(), events: 4, revents: 0 }];
    for _ in 0..=uselect::WAITS_UNSEEN_MAX {
        assert_eq!(tracker.upoll(&mut fds, Some(Duration::ZERO)), Ok(1));
    }
    assert!(!socket.is_tracked());
}

//! The real uselectd: who is registered, and that nothing is left of whoever was.
//!
//! KILLS=1000 kills so many processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use uselect::{Error, Tracker};

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
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        std::fs::remove_file(&self.socket).unwrap();
    }
}

/// This program again, as a process of [`member`].
fn spawn_member(socket: &Path, user: u32) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "member", "--nocapture"]).env("USELECT_MEMBER", socket);
    command.uid(user).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().unwrap()
}

/// Not a test by itself: registers, opens a socket, says how that went, and stays until its input
/// ends.
#[test]
fn member() {
    let Some(socket) = std::env::var_os("USELECT_MEMBER") else { return };
    let tracker = Tracker::register(Path::new(&socket));
    let socket = tracker.as_ref().map(|tracker| tracker.socket(false, false).unwrap().is_tracked());
    println!("member: {socket:?}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn said(member: &mut Child) -> String {
    let lines = BufReader::new(member.stdout.take().unwrap()).lines();
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

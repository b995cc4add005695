//! The real uselectd: who is registered, and that nothing is left of whoever was.
//!
//! KILLS=1000 kills so many processes.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod common;
#[path = "common/listener.rs"]
mod listener;
#[path = "common/uselectd.rs"]
mod uselectd;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::thread::{Gid, Uid};
use uselect::{Error, PollFd, Tracker, TrackingMode};
use uselectd::Uselectd;

/// Who a [`member`] is when it asks.
#[derive(Clone, Copy)]
struct Identity<'a> {
    user: u32,
    /// Its own one, and another one.
    groups: [u32; 2],
    cgroup: Option<&'a Path>,
    mode: TrackingMode,
}

const ROOT: Identity<'static> =
    Identity { user: 0, groups: [0, 0], cgroup: None, mode: TrackingMode::Exact };
const NOBODY: Identity<'static> = Identity { user: 65534, groups: [65533, 65532], ..ROOT };

/// This program again, as a process of [`member`]. The harness writes to standard output when
/// nobody reads any more.
fn spawn_member(socket: &Path, identity: Identity<'_>) -> Child {
    let Identity { user, groups: [group, other], cgroup, mode } = identity;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "member", "--nocapture"]).env("USELECT_MEMBER", socket);
    command.env("USELECT_MEMBER_IS", format!("{user} {group} {other} {}", mode as u8));
    command.env("USELECT_MEMBER_CGROUP", cgroup.unwrap_or(Path::new("")));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Not a test by itself: registers, opens a socket, says how that went, and stays until its input
/// ends. All as another user, if told so; that is a matter of the thread.
#[test]
fn member() {
    let Some(socket) = std::env::var_os("USELECT_MEMBER") else { return };
    let cgroup = std::env::var("USELECT_MEMBER_CGROUP").unwrap();
    if !cgroup.is_empty() {
        std::fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
    }
    let identity = std::env::var("USELECT_MEMBER_IS").unwrap();
    let numbers: Vec<u32> = identity.split(' ').map(|word| word.parse().unwrap()).collect();
    let (user, group, other) =
        (Uid::from_raw(numbers[0]), Gid::from_raw(numbers[1]), Gid::from_raw(numbers[2]));
    rustix::thread::set_thread_groups(&[other]).unwrap();
    rustix::thread::set_thread_res_gid(group, group, group).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    let mode = if numbers[3] == 0 { TrackingMode::Exact } else { TrackingMode::Lean };
    let tracker = Tracker::register(Path::new(&socket), mode);
    let socket = tracker.as_ref().map(|tracker| tracker.socket(false, false).unwrap().is_tracked());
    eprintln!("member: {socket:?}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn said(member: &mut Child) -> String {
    let lines = BufReader::new(member.stderr.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.starts_with("member: ")).unwrap()
}

fn end(mut member: Child) {
    drop(member.stdin.take());
    assert!(member.wait().unwrap().success());
}

/// What becomes of one who asks and goes.
fn asks(uselectd: &Uselectd, identity: Identity<'_>) -> String {
    let mut member = spawn_member(&uselectd.socket, identity);
    let said = said(&mut member);
    end(member);
    said
}

const GRANTED: &str = "member: Ok(true)";
const REFUSED: &str = "member: Err(Refused)";

#[test]
fn root_is_registered_once() {
    let Some(uselectd) = Uselectd::start("once", &[]) else { return };
    let first = Tracker::register(&uselectd.socket, TrackingMode::Exact).unwrap();
    assert!(matches!(
        Tracker::register(&uselectd.socket, TrackingMode::Exact),
        Err(Error::AlreadyRegistered)
    ));
    assert_eq!(asks(&uselectd, NOBODY), REFUSED);
    assert_eq!(asks(&uselectd, Identity { groups: [0, 0], ..NOBODY }), REFUSED);
    assert_eq!(asks(&uselectd, ROOT), GRANTED);
    drop(first);
}

#[test]
fn users_and_groups_that_are_listed_are_registered() {
    let Some(uselectd) = Uselectd::start("users", &["--allow-user", "65534"]) else { return };
    assert_eq!(asks(&uselectd, NOBODY), GRANTED);
    assert_eq!(asks(&uselectd, ROOT), REFUSED);
    let options = ["--allow-group", "65532", "--allow-user", "root"];
    let uselectd = Uselectd::start("groups", &options).unwrap();
    assert_eq!(asks(&uselectd, NOBODY), GRANTED);
    assert_eq!(asks(&uselectd, Identity { groups: [65532, 1], ..NOBODY }), GRANTED);
    assert_eq!(asks(&uselectd, Identity { groups: [1, 2], ..NOBODY }), REFUSED);
    assert_eq!(asks(&uselectd, ROOT), GRANTED);
}

#[test]
fn who_says_nothing_keeps_nobody_from_asking() {
    let options = ["--allow-user", "0", "--allow-user", "65534"];
    let Some(mut uselectd) = Uselectd::start("silent", &options) else { return };
    let connect = |_| UnixStream::connect(&uselectd.socket).unwrap();
    let silent: Vec<_> = (0..64).map(connect).collect();
    assert_eq!(asks(&uselectd, NOBODY), GRANTED);
    drop(silent);
    assert_eq!(uselectd.end(), "", "that is nothing to be told");
}

/// A cgroup below that of this process; removed when those in it have ended.
struct Group(PathBuf);

impl Group {
    fn new(below: &str) -> std::io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
        let path = Path::new(mount.split(' ').nth(4).unwrap()).join(&below[1..]);
        std::fs::create_dir(&path).map(|()| Self(path))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

#[test]
fn cgroups_that_are_listed_are_registered_with_those_below() {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return };
    let path = format!("{}/uselect-{}", own.trim_end_matches('/'), std::process::id());
    let Some(uselectd) = Uselectd::start("cgroups", &["--allow-cgroup", &path]) else { return };
    let group = match Group::new(&path) {
        Ok(group) => group,
        Err(error) => return println!("skipped: no cgroup can be made: {error}"),
    };
    let below = Group::new(&format!("{path}/below")).unwrap();
    let in_it = |group| Identity { cgroup: Some(group), ..NOBODY };
    assert_eq!(asks(&uselectd, in_it(&group.0)), GRANTED);
    assert_eq!(asks(&uselectd, in_it(&below.0)), GRANTED);
    assert_eq!(asks(&uselectd, NOBODY), REFUSED);
    assert_eq!(asks(&uselectd, ROOT), REFUSED);
    drop(below);
}

#[test]
fn a_user_has_as_many_registrations_as_it_may() {
    let options = ["--per-user", "2", "--allow-user", "nobody", "--allow-user", "0"];
    let Some(uselectd) = Uselectd::start("many", &options) else { return };
    let mut members =
        [spawn_member(&uselectd.socket, NOBODY), spawn_member(&uselectd.socket, NOBODY)];
    for member in &mut members {
        assert_eq!(said(member), GRANTED);
    }
    assert_eq!(asks(&uselectd, NOBODY), "member: Err(Full)");
    assert_eq!(asks(&uselectd, ROOT), GRANTED);
    let [first, second] = members;
    end(first);
    let has_room = (0..100).any(|_| asks(&uselectd, NOBODY) == GRANTED);
    assert!(has_room, "who has ended makes room");
    end(second);
}

#[test]
fn who_is_started_while_another_one_ends_takes_its_place() {
    let options = ["--allow-user", "0"];
    for signal in [Signal::TERM, Signal::KILL] {
        let Some(mut old) = Uselectd::start("anew", &options) else { return };
        kill_process(Pid::from_child(&old.process), signal).unwrap();
        let new = Uselectd::at(old.socket.clone(), &options);
        old.process.wait().unwrap();
        // Its end would remove what is the new one's.
        std::mem::forget(old);
        assert_eq!(asks(&new, ROOT), GRANTED);
    }
}

/// How a daemon ends that cannot start: its status, and what it says.
fn fails(options: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_uselectd")).args(options).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn what_cannot_be_is_said_in_a_line() {
    let said = "uselectd: --per-user: \"0\" is too small (expected: a number from 1 to 256)\n";
    assert_eq!(fails(&["--per-user", "0"]), (Some(2), said.to_owned()));
    let path = format!("/{}", "a".repeat(107));
    let (status, said) = fails(&["--socket", &path]);
    assert!(status == Some(2) && said.contains("is too long (expected: a path of up to 107 bytes"));
    let Some(uselectd) = Uselectd::start("socket", &[]) else { return };
    let path = uselectd.socket.to_str().unwrap();
    let at = |path: &str, why: &str| {
        let said = format!("uselectd: cannot listen at unix:{path}: {why}\n");
        assert_eq!(fails(&["--socket", path]), (Some(1), said));
    };
    at(path, "another process listens there already");
    assert!(Tracker::register(&uselectd.socket, TrackingMode::Exact).is_ok(), "which goes on");
    at(&format!("{path}.none/socket"), "there is no such directory");
    let file = format!("{path}.file");
    std::fs::write(&file, "").unwrap();
    at(&file, "a file that is no socket is there");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn signals_end_it_and_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let Some(mut uselectd) = Uselectd::start("signals", &[]) else { return };
        let mut member = spawn_member(&uselectd.socket, ROOT);
        assert_eq!(said(&mut member), GRANTED);
        kill_process(Pid::from_child(&uselectd.process), signal).unwrap();
        assert_eq!(uselectd.process.wait().unwrap().code(), Some(0));
        assert!(!uselectd.socket.exists());
        end(member);
    }
    let mut killed = Uselectd::start("signals", &[]).unwrap();
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    assert!(killed.socket.exists());
    let next = Uselectd::at(killed.socket.clone(), &[]);
    assert!(
        Tracker::register(&next.socket, TrackingMode::Exact).is_ok(),
        "what is left of one is replaced"
    );
}

/// Links to tracepoints while somebody is registered, and while somebody in exact mode is.
const COMMON_LINKS: usize = 4;
const EXACT_LINKS: usize = 2;
/// Links to each cgroup that somebody who is registered is in.
const CGROUP_LINKS: usize = 5;

#[test]
fn nothing_is_attached_that_nobody_needs() {
    let Some(uselectd) = Uselectd::start("links", &[]) else { return };
    let links = |count| {
        let end = Instant::now() + Duration::from_secs(10);
        while uselectd.kept().links != count {
            assert!(Instant::now() < end, "{:?}, not {count} links", uselectd.kept());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let mut lean = spawn_member(&uselectd.socket, Identity { mode: TrackingMode::Lean, ..ROOT });
    assert_eq!(said(&mut lean), GRANTED);
    links(COMMON_LINKS + CGROUP_LINKS);
    let mut exact = spawn_member(&uselectd.socket, ROOT);
    assert_eq!(said(&mut exact), GRANTED);
    links(COMMON_LINKS + EXACT_LINKS + CGROUP_LINKS);
    end(exact);
    links(COMMON_LINKS + CGROUP_LINKS);
    end(lean);
    links(0);
}

#[test]
fn nothing_is_left_of_who_is_killed() {
    let Some(uselectd) = Uselectd::start("killed", &[]) else { return };
    let idle = uselectd.kept();
    assert_eq!((idle.links, idle.places), (0, 0), "nothing is attached while nobody is registered");
    let kills = std::env::var("KILLS").map_or(20, |text| text.parse().unwrap());
    let mut begun = Duration::from_millis(3);
    for round in 0..kills {
        let mut member = spawn_member(&uselectd.socket, ROOT);
        if round % 4 == 0 {
            let begin = Instant::now();
            assert_eq!(said(&mut member), "member: Ok(true)");
            begun = begin.elapsed();
            let kept = uselectd.kept();
            assert!(kept.links > 0 && kept.places > 0, "there is something to be left");
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
    let tracker = Tracker::register(&uselectd.socket, TrackingMode::Exact).unwrap();
    let (listener, address) = listener::listener(&tracker);
    let mut peer = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    assert!(socket.is_tracked());
    let wait = |timeout| {
        let mut fds = [PollFd { fd: socket.as_raw_fd(), events: 1, revents: 0 }];
        (tracker.upoll(&mut fds, timeout, None).unwrap(), fds[0].revents)
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
fn a_daemon_that_stands_still_keeps_nobody() {
    let Some(uselectd) = Uselectd::start("still", &[]) else { return };
    let tracker = Tracker::register(&uselectd.socket, TrackingMode::Exact).unwrap();
    let (listener, address) = listener::listener(&tracker);
    let mut peer = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    kill_process(Pid::from_child(&uselectd.process), Signal::STOP).unwrap();
    let wait = |fd, wait| {
        let mut fds = [PollFd { fd, events: 1, revents: 0 }];
        tracker.upoll(&mut fds, Some(wait), None).unwrap()
    };
    let begin = Instant::now();
    std::thread::scope(|threads| {
        let sleeps = threads.spawn(|| wait(socket.as_raw_fd(), Duration::from_secs(10)));
        std::thread::sleep(Duration::from_millis(20));
        // It has no ring, nor is it given one.
        assert_eq!(wait(listener.as_raw_fd(), Duration::from_millis(20)), 0);
        peer.write_all(b"x").unwrap();
        assert_eq!(sleeps.join().unwrap(), 1);
    });
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert!(socket.is_tracked(), "what the programs do is done");
}

#[test]
fn who_never_sleeps_finds_the_end_of_the_daemon_too() {
    let Some(mut uselectd) = Uselectd::start("unseen", &[]) else { return };
    let tracker = Tracker::register(&uselectd.socket, TrackingMode::Exact).unwrap();
    let (listener, address) = listener::listener(&tracker);
    let _peer = TcpStream::connect(address).unwrap();
    let (socket, _) = listener.accept(false).unwrap();
    uselectd.process.kill().unwrap();
    uselectd.process.wait().unwrap();
    let mut fds = [PollFd { fd: socket.as_raw_fd(), events: 4, revents: 0 }];
    for _ in 0..=uselect::DAEMON_CHECK_WAITS_MAX {
        assert_eq!(tracker.upoll(&mut fds, Some(Duration::ZERO), None), Ok(1));
    }
    assert!(!socket.is_tracked());
}

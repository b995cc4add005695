//! The real uselectd: which processes are registered, and that a registration leaves nothing
//! behind.
//!
//! KILLS=1000 sets the number of clients that are killed.

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

/// The credentials, cgroup and mode of a process of [`client`].
#[derive(Clone, Copy)]
struct ClientIdentity<'a> {
    user: u32,
    /// The effective group and a supplementary group.
    groups: [u32; 2],
    cgroup: Option<&'a Path>,
    mode: TrackingMode,
}

const ROOT: ClientIdentity<'static> =
    ClientIdentity { user: 0, groups: [0, 0], cgroup: None, mode: TrackingMode::Exact };
const NOBODY: ClientIdentity<'static> =
    ClientIdentity { user: 65534, groups: [65533, 65532], ..ROOT };

/// Starts this test program again to run [`client`]. Its standard output is discarded, because the
/// test harness writes to it after the last read.
fn spawn_client(socket: &Path, identity: ClientIdentity<'_>) -> Child {
    let ClientIdentity { user, groups: [group, other], cgroup, mode } = identity;
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "client", "--nocapture"]).env("USELECT_CLIENT", socket);
    command.env("USELECT_CLIENT_IS", format!("{user} {group} {other} {}", mode as u8));
    command.env("USELECT_CLIENT_CGROUP", cgroup.unwrap_or(Path::new("")));
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Not a test by itself: takes the credentials of `USELECT_CLIENT_IS` for this thread, registers,
/// opens a socket, prints the result, and waits for the end of its input.
#[test]
fn client() {
    let Some(socket) = std::env::var_os("USELECT_CLIENT") else { return };
    let cgroup = std::env::var("USELECT_CLIENT_CGROUP").unwrap();
    if !cgroup.is_empty() {
        std::fs::write(Path::new(&cgroup).join("cgroup.procs"), "0").unwrap();
    }
    let identity = std::env::var("USELECT_CLIENT_IS").unwrap();
    let numbers: Vec<u32> = identity.split(' ').map(|word| word.parse().unwrap()).collect();
    let (user, group, other) =
        (Uid::from_raw(numbers[0]), Gid::from_raw(numbers[1]), Gid::from_raw(numbers[2]));
    rustix::thread::set_thread_groups(&[other]).unwrap();
    rustix::thread::set_thread_res_gid(group, group, group).unwrap();
    rustix::thread::set_thread_res_uid(user, user, user).unwrap();
    let mode = if numbers[3] == 0 { TrackingMode::Exact } else { TrackingMode::Lean };
    let tracker = Tracker::register(Path::new(&socket), mode);
    let socket = tracker.as_ref().map(|tracker| tracker.socket(false, false).unwrap().is_tracked());
    eprintln!("client: {socket:?}");
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

fn registration_result(client: &mut Child) -> String {
    let lines = BufReader::new(client.stderr.take().unwrap()).lines();
    lines.map(Result::unwrap).find(|line| line.starts_with("client: ")).unwrap()
}

fn end_client(mut client: Child) {
    drop(client.stdin.take());
    assert!(client.wait().unwrap().success());
}

/// Registers a process, ends it, and returns the result.
fn register_once(uselectd: &Uselectd, identity: ClientIdentity<'_>) -> String {
    let mut client = spawn_client(&uselectd.socket, identity);
    let result = registration_result(&mut client);
    end_client(client);
    result
}

const GRANTED: &str = "client: Ok(true)";
const REFUSED: &str = "client: Err(Refused)";

#[test]
fn only_root_is_registered_by_default_and_only_once() {
    let Some(uselectd) = Uselectd::start("once", &[]) else { return };
    let first = Tracker::register(&uselectd.socket, TrackingMode::Exact).unwrap();
    assert!(matches!(
        Tracker::register(&uselectd.socket, TrackingMode::Exact),
        Err(Error::AlreadyRegistered)
    ));
    assert_eq!(register_once(&uselectd, NOBODY), REFUSED);
    assert_eq!(register_once(&uselectd, ClientIdentity { groups: [0, 0], ..NOBODY }), REFUSED);
    assert_eq!(register_once(&uselectd, ROOT), GRANTED);
    drop(first);
}

#[test]
fn listed_users_and_groups_are_registered() {
    let Some(uselectd) = Uselectd::start("users", &["--allow-user", "65534"]) else { return };
    assert_eq!(register_once(&uselectd, NOBODY), GRANTED);
    assert_eq!(register_once(&uselectd, ROOT), REFUSED);
    let options = ["--allow-group", "65532", "--allow-user", "root"];
    let uselectd = Uselectd::start("groups", &options).unwrap();
    assert_eq!(register_once(&uselectd, NOBODY), GRANTED);
    assert_eq!(register_once(&uselectd, ClientIdentity { groups: [65532, 1], ..NOBODY }), GRANTED);
    assert_eq!(register_once(&uselectd, ClientIdentity { groups: [1, 2], ..NOBODY }), REFUSED);
    assert_eq!(register_once(&uselectd, ROOT), GRANTED);
}

#[test]
fn silent_connections_do_not_block_other_users() {
    let options = ["--allow-user", "0", "--allow-user", "65534"];
    let Some(mut uselectd) = Uselectd::start("silent", &options) else { return };
    let connect = |_| UnixStream::connect(&uselectd.socket).unwrap();
    let silent: Vec<_> = (0..64).map(connect).collect();
    assert_eq!(register_once(&uselectd, NOBODY), GRANTED);
    drop(silent);
    assert_eq!(uselectd.kill_and_read_log(), "", "silent connections are not logged");
}

/// A cgroup below that of this process. It is removed on drop, when the processes in it have ended.
struct TestCgroup(PathBuf);

impl TestCgroup {
    fn new(below: &str) -> std::io::Result<Self> {
        let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
        let mount = mounts.lines().find(|line| line.contains(" - cgroup2 ")).unwrap();
        let path = Path::new(mount.split(' ').nth(4).unwrap()).join(&below[1..]);
        std::fs::create_dir(&path).map(|()| Self(path))
    }
}

impl Drop for TestCgroup {
    fn drop(&mut self) {
        let removed = std::fs::remove_dir(&self.0);
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

#[test]
fn listed_cgroups_and_their_descendants_are_registered() {
    let own = std::fs::read_to_string("/proc/self/cgroup").unwrap();
    let Some(own) = own.lines().find_map(|line| line.strip_prefix("0::")) else { return };
    let path = format!("{}/uselect-{}", own.trim_end_matches('/'), std::process::id());
    let Some(uselectd) = Uselectd::start("cgroups", &["--allow-cgroup", &path]) else { return };
    let group = match TestCgroup::new(&path) {
        Ok(group) => group,
        Err(error) => return println!("skipped: no cgroup can be made: {error}"),
    };
    let below = TestCgroup::new(&format!("{path}/below")).unwrap();
    let in_it = |group| ClientIdentity { cgroup: Some(group), ..NOBODY };
    assert_eq!(register_once(&uselectd, in_it(&group.0)), GRANTED);
    assert_eq!(register_once(&uselectd, in_it(&below.0)), GRANTED);
    assert_eq!(register_once(&uselectd, NOBODY), REFUSED);
    assert_eq!(register_once(&uselectd, ROOT), REFUSED);
    drop(below);
}

#[test]
fn per_user_limits_registrations_of_a_user() {
    let options = ["--per-user", "2", "--allow-user", "nobody", "--allow-user", "0"];
    let Some(uselectd) = Uselectd::start("many", &options) else { return };
    let mut clients =
        [spawn_client(&uselectd.socket, NOBODY), spawn_client(&uselectd.socket, NOBODY)];
    for client in &mut clients {
        assert_eq!(registration_result(client), GRANTED);
    }
    assert_eq!(register_once(&uselectd, NOBODY), "client: Err(Full)");
    assert_eq!(register_once(&uselectd, ROOT), GRANTED);
    let [first, second] = clients;
    end_client(first);
    let has_room = (0..100).any(|_| register_once(&uselectd, NOBODY) == GRANTED);
    assert!(has_room, "an ended client frees its registration");
    end_client(second);
}

#[test]
fn a_daemon_replaces_one_that_is_ending() {
    let options = ["--allow-user", "0"];
    for signal in [Signal::TERM, Signal::KILL] {
        let Some(mut old) = Uselectd::start("anew", &options) else { return };
        kill_process(Pid::from_child(&old.process), signal).unwrap();
        let new = Uselectd::start_at(old.socket.clone(), &options);
        old.process.wait().unwrap();
        // Drop would remove the socket file of the new daemon.
        std::mem::forget(old);
        assert_eq!(register_once(&new, ROOT), GRANTED);
    }
}

/// Starts a daemon that fails, and returns its status and standard error.
fn start_failure(options: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_uselectd")).args(options).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn a_failed_start_prints_one_line() {
    let expected = "uselectd: --per-user: \"0\" is too small (expected: a number from 1 to 256)\n";
    assert_eq!(start_failure(&["--per-user", "0"]), (Some(2), expected.to_owned()));
    let path = format!("/{}", "a".repeat(107));
    let (status, stderr) = start_failure(&["--socket", &path]);
    assert!(
        status == Some(2) && stderr.contains("is too long (expected: a path of up to 107 bytes")
    );
    let Some(uselectd) = Uselectd::start("socket", &[]) else { return };
    let path = uselectd.socket.to_str().unwrap();
    let at = |path: &str, why: &str| {
        let expected = format!("uselectd: cannot listen on unix:{path}: {why}\n");
        assert_eq!(start_failure(&["--socket", path]), (Some(1), expected));
    };
    at(path, "another process listens there");
    assert!(
        Tracker::register(&uselectd.socket, TrackingMode::Exact).is_ok(),
        "the first daemon still serves"
    );
    at(&format!("{path}.none/socket"), "the directory does not exist");
    let file = format!("{path}.file");
    std::fs::write(&file, "").unwrap();
    at(&file, "the path is a file that is no socket");
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn sigterm_and_sigint_end_the_daemon_and_remove_its_socket() {
    for signal in [Signal::TERM, Signal::INT] {
        let Some(mut uselectd) = Uselectd::start("signals", &[]) else { return };
        let mut client = spawn_client(&uselectd.socket, ROOT);
        assert_eq!(registration_result(&mut client), GRANTED);
        kill_process(Pid::from_child(&uselectd.process), signal).unwrap();
        assert_eq!(uselectd.process.wait().unwrap().code(), Some(0));
        assert!(!uselectd.socket.exists());
        end_client(client);
    }
    let mut killed = Uselectd::start("signals", &[]).unwrap();
    killed.process.kill().unwrap();
    killed.process.wait().unwrap();
    assert!(killed.socket.exists());
    let next = Uselectd::start_at(killed.socket.clone(), &[]);
    assert!(
        Tracker::register(&next.socket, TrackingMode::Exact).is_ok(),
        "the socket file of a killed daemon is replaced"
    );
}

/// Links to tracepoints while there is a client.
const COMMON_LINKS: usize = 4;
/// Further links to tracepoints while there is a client in exact mode.
const EXACT_LINKS: usize = 2;
/// Links to each cgroup in which there is a client.
const CGROUP_LINKS: usize = 5;

#[test]
fn programs_are_attached_only_while_clients_need_them() {
    let Some(uselectd) = Uselectd::start("links", &[]) else { return };
    let wait_for_links = |count| {
        let end = Instant::now() + Duration::from_secs(10);
        while uselectd.kernel_objects().links != count {
            assert!(Instant::now() < end, "{:?}, not {count} links", uselectd.kernel_objects());
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let mut lean =
        spawn_client(&uselectd.socket, ClientIdentity { mode: TrackingMode::Lean, ..ROOT });
    assert_eq!(registration_result(&mut lean), GRANTED);
    wait_for_links(COMMON_LINKS + CGROUP_LINKS);
    let mut exact = spawn_client(&uselectd.socket, ROOT);
    assert_eq!(registration_result(&mut exact), GRANTED);
    wait_for_links(COMMON_LINKS + EXACT_LINKS + CGROUP_LINKS);
    end_client(exact);
    wait_for_links(COMMON_LINKS + CGROUP_LINKS);
    end_client(lean);
    wait_for_links(0);
}

#[test]
fn a_killed_client_leaves_nothing_behind() {
    let Some(uselectd) = Uselectd::start("killed", &[]) else { return };
    let idle = uselectd.kernel_objects();
    assert_eq!((idle.links, idle.map_entries), (0, 0), "nothing is attached without clients");
    let kills = std::env::var("KILLS").map_or(20, |text| text.parse().unwrap());
    let mut registration_time = Duration::from_millis(3);
    for round in 0..kills {
        let mut client = spawn_client(&uselectd.socket, ROOT);
        if round % 4 == 0 {
            let begin = Instant::now();
            assert_eq!(registration_result(&mut client), "client: Ok(true)");
            registration_time = begin.elapsed();
            let objects = uselectd.kernel_objects();
            assert!(
                objects.links > 0 && objects.map_entries > 0,
                "the kernel has objects of the client"
            );
        } else {
            // Kill it at a varying moment of its registration.
            std::thread::sleep(registration_time * (round * 37 % 100) / 100);
        }
        client.kill().unwrap();
        client.wait().unwrap();
        uselectd.wait_for(idle);
    }
}

#[test]
fn waits_use_the_kernel_after_the_daemon_has_ended() {
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
    // The wait below sleeps. The end of the daemon wakes it, and it continues in the kernel.
    let other = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        uselectd.process.kill().unwrap();
        uselectd.process.wait().unwrap();
        // The kernel detaches the programs of the daemon with some delay.
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
fn a_stopped_daemon_does_not_block_waits() {
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
        // This thread has no ring, and the stopped daemon gives it none.
        assert_eq!(wait(listener.as_raw_fd(), Duration::from_millis(20)), 0);
        peer.write_all(b"x").unwrap();
        assert_eq!(sleeps.join().unwrap(), 1);
    });
    assert!(begin.elapsed() < Duration::from_secs(8), "{:?}", begin.elapsed());
    assert!(socket.is_tracked(), "the programs still run");
}

#[test]
fn a_busy_client_notices_the_end_of_the_daemon() {
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

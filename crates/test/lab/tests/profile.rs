//! The profiler finds where real loads spend their time.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[allow(dead_code, reason = "this test uses a part")]
mod network;
mod program;

use std::fs::{File, create_dir, read_to_string, remove_dir};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_lab::profile::{Owner, Part, Profile, Profiler, Selection};
use millrace_uring::Ring;
use network::{CLIENT, Namespace, Network, SERVER};

const MEASURED: Duration = Duration::from_millis(300);

fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: the profiler needs root");
    }
    is_root
}

/// A process that runs until this is dropped.
struct Load(Child);

impl Load {
    fn start(command: &[&str], output: impl Into<Stdio>) -> Self {
        let mut process = Command::new(command[0]);
        process.args(&command[1..]).stdout(output).stderr(Stdio::null());
        Self(process.spawn().unwrap())
    }

    /// Starts a process that never leaves user mode.
    fn spin() -> Self {
        Self::start(&["sh", "-c", "while :; do :; done"], Stdio::null())
    }

    fn selection(&self) -> Selection {
        Selection::Process(self.0.id())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Measures while `run` runs. The parts must add up to the measured time.
fn measure<T>(selection: &Selection, run: impl FnOnce() -> T) -> (Profile, T) {
    let profiler = Profiler::start(selection).unwrap();
    let result = run();
    (stop(profiler), result)
}

fn stop(profiler: Profiler) -> Profile {
    let profile = profiler.stop().unwrap();
    let (sum, cpus) = (profile.sum().as_secs_f64(), profile.cpus as f64);
    let ratio = sum / profile.duration.as_secs_f64() / cpus;
    assert!((0.99..1.01).contains(&ratio), "{ratio}\n{profile}");
    profile
}

fn selected(profile: &Profile, part: Part) -> Duration {
    profile.time(Owner::Selected, part)
}

#[test]
fn a_process_in_user_mode_is_charged_for_it() {
    if !is_root() {
        return;
    }
    // The first load runs already when the profiler starts, and makes no system call.
    let load = Load::spin();
    thread::sleep(Duration::from_millis(50));
    let (profile, ()) = measure(&load.selection(), || thread::sleep(MEASURED));
    let user = selected(&profile, Part::User);
    assert!(user > selected(&profile, Part::Kernel) * 10, "{profile}");
    assert_eq!(selected(&profile, Part::SocketWrite), Duration::ZERO);
    assert_eq!(selected(&profile, Part::Interrupt), Duration::ZERO);
    assert_eq!(selected(&profile, Part::Idle), Duration::ZERO);
}

#[test]
fn system_calls_are_charged_to_the_kernel() {
    if !is_root() {
        return;
    }
    let load = Load::start(&["dd", "if=/dev/zero", "of=/dev/null", "bs=1M"], Stdio::null());
    let (profile, ()) = measure(&load.selection(), || thread::sleep(MEASURED));
    assert!(selected(&profile, Part::Kernel) > selected(&profile, Part::User) * 4, "{profile}");
    assert_eq!(selected(&profile, Part::SocketWrite), Duration::ZERO, "a device is no socket");
    assert_eq!(profile.counts.socket_writes, 0);
    let names: Vec<&str> = profile.counts.calls.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.contains(&"read") && names.contains(&"write"), "{names:?}");
}

#[test]
fn writes_to_sockets_are_a_part() {
    if !is_root() {
        return;
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let mut receiver = listener.accept().unwrap().0;
    let load = Load::start(&["dd", "if=/dev/zero", "bs=64k"], OwnedFd::from(sender));
    let (profile, ()) = measure(&load.selection(), || {
        let (begun, mut bytes) = (Instant::now(), vec![0; 1 << 16]);
        while begun.elapsed() < MEASURED {
            receiver.read_exact(&mut bytes).unwrap();
        }
    });
    assert!(selected(&profile, Part::SocketWrite) > selected(&profile, Part::User), "{profile}");
    let writes = profile.counts.calls.iter().find(|(name, _)| name == "write").unwrap().1;
    assert_eq!(profile.counts.socket_writes, writes, "each write is one to the socket");
}

#[test]
fn sends_of_io_uring_are_socket_writes() {
    const SENDS: u64 = 500;
    if !is_root() {
        return;
    }
    let namespace = Namespace::new();
    let (sender, mut receiver) = UnixStream::pair().unwrap();
    let (profile, ()) = measure(&Selection::Namespace(namespace.path()), || {
        thread::scope(|scope| {
            scope.spawn(|| {
                namespace.enter();
                let mut ring = Ring::new(8, 8).unwrap();
                for number in 0..SENDS {
                    ring.send(sender.as_fd(), number, vec![0; 1 << 14]).unwrap();
                    while ring.next_completion().is_none() {
                        ring.enter(None).unwrap();
                    }
                }
                drop(ring);
                sender.shutdown(std::net::Shutdown::Write).unwrap();
            });
            receiver.read_to_end(&mut Vec::new()).unwrap();
        });
    });
    assert!(profile.counts.socket_writes >= SENDS, "{profile}");
    assert!(selected(&profile, Part::SocketWrite) > Duration::ZERO, "{profile}");
    assert!(selected(&profile, Part::Kernel) > Duration::ZERO, "the rest of the calls\n{profile}");
}

/// Runs `run` on a thread in a namespace.
fn run_in<T: Send>(namespace: &Namespace, run: impl FnOnce() -> T + Send) -> T {
    let enter_and_run = || {
        namespace.enter();
        run()
    };
    thread::scope(|scope| scope.spawn(enter_and_run).join().unwrap())
}

/// Joins two namespaces by a pair of veth devices, which have these addresses.
fn join(namespaces: [&Namespace; 2], addresses: [&str; 2]) {
    let ip = |arguments: &str| {
        let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    };
    let peer = namespaces[1].id();
    run_in(namespaces[0], || ip(&format!("link add pair0 type veth peer pair0 netns {peer}")));
    for (namespace, address) in namespaces.into_iter().zip(addresses) {
        run_in(namespace, || {
            ip(&format!("address add {address}/24 dev pair0"));
            ip("link set pair0 up");
        });
    }
}

#[test]
fn packets_belong_to_the_namespace_that_receives_them() {
    const PACKETS: u64 = 5_000;
    const ADDRESSES: [&str; 2] = ["10.9.5.1", "10.9.5.2"];
    if !is_root() {
        return;
    }
    let (sender, receiver) = (Namespace::new(), Namespace::new());
    join([&sender, &receiver], ADDRESSES);
    let target = run_in(&receiver, || UdpSocket::bind((ADDRESSES[1], 0)).unwrap());
    let port = target.local_addr().unwrap().port();
    target.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let profilers =
        [&sender, &receiver].map(|of| Profiler::start(&Selection::Namespace(of.path())).unwrap());
    run_in(&sender, || {
        let socket = UdpSocket::bind((ADDRESSES[0], 0)).unwrap();
        socket.connect((ADDRESSES[1], port)).unwrap();
        // The kernel drops packets until it knows the address of the device.
        while target.recv(&mut [0; 10]).is_err() {
            socket.send(b"first").unwrap();
        }
        for _ in 0..PACKETS {
            socket.send(b"datagram").unwrap();
        }
    });
    let [sending, receiving] = profilers.map(stop);
    assert!(receiving.counts.received >= PACKETS, "{receiving}");
    assert!(sending.counts.received < PACKETS / 10, "only for address resolution\n{sending}");
    assert!(sending.counts.sent >= PACKETS, "{sending}");
    assert!((1..=PACKETS * 2).contains(&receiving.counts.selected_receives), "{receiving}");
    let received = [&sending, &receiving].map(|profile| selected(profile, Part::Receive));
    assert!(received[1] > received[0] * 5, "{sending}\n{receiving}");
    assert!(sending.counts.socket_writes >= PACKETS, "{sending}");
    let written = [&sending, &receiving].map(|profile| selected(profile, Part::SocketWrite));
    assert!(written[0] > written[1] * 5, "{sending}\n{receiving}");
}

#[test]
fn packets_of_tun_devices_belong_to_the_namespace_that_receives_them() {
    const BYTES: usize = 5_000_000;
    let Some(network) = Network::start(&["--path", "delay=1ms"], "") else { return };
    let server = Selection::Namespace(network.servers.path());
    let (profile, ()) = measure(&server, || {
        let listener = run_in(&network.servers, || TcpListener::bind((SERVER, 0)).unwrap());
        let port = listener.local_addr().unwrap().port();
        thread::scope(|scope| {
            network.client(scope, move || {
                let mut stream = TcpStream::connect((SERVER, port)).unwrap();
                stream.write_all(&vec![0; BYTES]).unwrap();
            });
            let (mut stream, client) = listener.accept().unwrap();
            assert_eq!(client.ip().to_string(), CLIENT);
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            assert_eq!(received.len(), BYTES);
        });
    });
    let received = selected(&profile, Part::DirectReceive);
    assert!(received > selected(&profile, Part::Receive), "{profile}");
    // With segments of up to 64 KB.
    assert!(profile.counts.received >= (BYTES >> 16) as u64, "{profile}");
    network.end();
}

/// A cgroup with a descendant. Both are removed when it is dropped, after their processes.
struct Cgroups([PathBuf; 2]);

impl Cgroups {
    fn new() -> Option<Self> {
        let mounts = read_to_string("/proc/self/mounts").unwrap();
        let mount = mounts.lines().find_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (path, kind) = (fields.next()?, fields.next()?);
            (kind == "cgroup2").then(|| path.to_owned())
        });
        let Some(mount) = mount else {
            eprintln!("skipped: no cgroup of version 2 is mounted");
            return None;
        };
        let outer = Path::new(&mount).join(format!("millrace-profile-{}", std::process::id()));
        let cgroups = Self([outer.clone(), outer.join("inner")]);
        for path in &cgroups.0 {
            create_dir(path).unwrap();
        }
        Some(cgroups)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for path in self.0.iter().rev() {
            // The kernel may need a moment after the end of the last process.
            let begun = Instant::now();
            while remove_dir(path).is_err() && begun.elapsed() < Duration::from_secs(5) {
                thread::yield_now();
            }
        }
    }
}

#[test]
fn a_cgroup_has_the_processes_of_its_descendants() {
    if !is_root() {
        return;
    }
    let Some(cgroups) = Cgroups::new() else { return };
    let [outer, inner] = &cgroups.0;
    let load = Load::spin();
    let spinning = |cgroup: &Path| {
        let selection = Selection::Cgroup(cgroup.to_owned());
        let (profile, ()) = measure(&selection, || thread::sleep(MEASURED));
        selected(&profile, Part::User)
    };
    assert_eq!(spinning(outer), Duration::ZERO, "the process is in another cgroup");
    let mut members = File::options().write(true).open(inner.join("cgroup.procs")).unwrap();
    write!(members, "{}", load.0.id()).unwrap();
    assert!(spinning(outer) > MEASURED / 100);
    assert!(spinning(inner) > MEASURED / 100);
    drop(load);
}

#[test]
fn a_core_has_all_its_time() {
    if !is_root() {
        return;
    }
    let (profile, ()) = measure(&Selection::Core(0), || thread::sleep(MEASURED));
    assert_eq!(profile.cpus, 1);
    let all = Part::ALL.map(|part| profile.time(Owner::Rest, part));
    assert_eq!(all, [Duration::ZERO; Part::ALL.len()], "{profile}");
    assert!(profile.counts.local_interrupts > 0, "{profile}");
}

#[test]
fn the_program_prints_a_table() {
    if !is_root() {
        return;
    }
    let (status, table, _) = program::run("profile", &["core:0", "--seconds", "0.1"]);
    assert_eq!(status, Some(0));
    for line in ["part ", "interrupt ", "sum 0.", "system calls ", "socket writes ", "softirqs:"] {
        assert!(table.lines().any(|of| of.starts_with(line)), "{line}: {table}");
    }
}

#[test]
fn wrong_arguments_are_named() {
    for (arguments, message) in [
        (&[][..], "a selection is needed"),
        (&["user:1"], "\"user:1\" is no selection (expected: pid:NUMBER,"),
        (&["pid:1", "core:0"], "\"core:0\" is too much (expected: one selection)"),
        (&["pid:1", "--seconds", "-1"], "--seconds: \"-1\" is no time"),
        (&["pid:1", "--seconds"], "--seconds needs a value"),
        (&["--all"], "\"--all\" is no option (expected: --seconds, --help)"),
    ] {
        let (status, _, error) = program::run("profile", arguments);
        assert_eq!(status, Some(2), "{arguments:?}");
        assert!(error.starts_with(&format!("millrace-lab: profile: {message}")), "{error}");
    }
}

#[test]
fn the_object_matches_its_sources() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../scripts/bpf-objects");
    let output = Command::new(script).arg("--check").output().unwrap();
    print!("{}", String::from_utf8_lossy(&output.stdout));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

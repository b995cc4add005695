//! Aggregates through connections: the ends are two clients, as in two processes.

mod common;

use std::io::BufReader;
use std::net::{Ipv4Addr, Shutdown, UdpSocket};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::thread;
use std::time::Duration;

use common::connections::{
    FAMILIES, Family, PAIRING_BYTES, Socket, assert_carries_bytes, paired, read_all, read_exactly,
    write_all,
};
use common::{Actor, Daemon, Folder, Reports, finishes, fork, number, pattern, sealed, succeeds};
use iolite::service::FileClient;
use millrace_sys::Errno;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const MEGABYTE: usize = 1 << 20;
const ROUNDS: u64 = 100;

/// The bytes of one round, of a length that differs.
fn round_bytes(round: u64) -> Vec<u8> {
    pattern(1 + (round as usize * 7919) % 200_000, round)
}

/// Writes the bytes of all rounds, in each of the ways in turn, and ends this direction.
fn write_rounds(writer: &FileClient, to: &Socket, seed: u64) {
    for round in 0..ROUNDS {
        let bytes = round_bytes(round + seed);
        match round % 3 {
            0 => write_all(writer, to, &bytes),
            1 => {
                let bytes = sealed(&bytes);
                assert_eq!(writer.write(to.as_fd(), &bytes), Ok(bytes.len()));
            }
            // An ordinary write(2), as by a child of the writer.
            _ => to.write_by_kernel(&bytes),
        }
    }
    to.shutdown(Shutdown::Write);
}

fn rounds_from(seed: u64) -> Vec<u8> {
    (seed..seed + ROUNDS).flat_map(round_bytes).collect()
}

#[test]
fn bytes_keep_their_order_in_both_directions() {
    let folder = Folder::new("socket-order");
    let daemon = Daemon::start(&folder, &[]);
    for (family, trusts) in FAMILIES.into_iter().flat_map(|of| [(of, false), (of, true)]) {
        let clients = [daemon.client(), daemon.client()];
        if trusts {
            clients.iter().for_each(FileClient::trust_user);
        }
        let (one, other) = family.connect();
        let received = thread::scope(|scope| {
            scope.spawn(|| write_rounds(&clients[0], &one, 0));
            scope.spawn(|| write_rounds(&clients[1], &other, 1000));
            let there = scope.spawn(|| read_all(&clients[1], &other));
            (read_all(&clients[0], &one), there.join().expect("the reader"))
        });
        assert!(received.0 == rounds_from(1000), "{family:?}, trusts: {trusts}");
        assert!(received.1 == rounds_from(0), "{family:?}, trusts: {trusts}");
        for client in &clients {
            let stats = client.stats();
            assert!(stats.passed > 20, "{family:?}: {stats:?}");
        }
    }
}

#[test]
fn the_end_of_the_writer_ends_the_connection() {
    let folder = Folder::new("socket-end");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        write_all(&writer, &to, b"the last bytes");
        // The socket is closed, but the process, and so the channel, is still there.
        drop(to);
        assert_eq!(read_all(&reader, &from), b"the last bytes");
        let (reader, from, writer, to) = paired(&daemon, family);
        write_all(&writer, &to, b"the last bytes");
        drop((writer, to));
        assert_eq!(read_all(&reader, &from), b"the last bytes");
        assert_eq!(reader.stats().passed, 2);
    }
}

#[test]
fn the_end_of_the_reader_is_an_error() {
    millrace_sys::ignore_broken_pipe_signal();
    let folder = Folder::new("socket-reader-end");
    let daemon = Daemon::start(&folder, &[]);
    let bytes = sealed(b"bytes");
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        drop(from);
        let is_error = |written| matches!(written, Err(Errno::PIPE | Errno::CONNRESET));
        // A child of another test may have a copy for a moment.
        common::wait_until("an error", || is_error(writer.write(to.as_fd(), &bytes)));
        drop(reader);
        let (reader, from, writer, to) = paired(&daemon, family);
        drop((reader, from));
        common::wait_until("an error", || is_error(writer.write(to.as_fd(), &bytes)));
    }
}

#[test]
fn an_ordinary_program_at_the_other_end_gets_bytes() {
    let folder = Folder::new("socket-ordinary");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let client = daemon.client();
        let (one, other) = family.connect();
        let (there, here) = thread::scope(|scope| {
            let there = scope.spawn(|| other.read_by_kernel());
            scope.spawn(|| {
                for round in 0..20 {
                    other.write_by_kernel(&round_bytes(round));
                }
                other.shutdown(Shutdown::Write);
            });
            scope.spawn(|| {
                for round in 0..20 {
                    write_all(&client, &one, &round_bytes(round));
                }
                one.shutdown(Shutdown::Write);
            });
            let here = read_all(&client, &one);
            (there.join().expect("the reader"), here)
        });
        let expected: Vec<u8> = (0..20).flat_map(round_bytes).collect();
        assert!(there == expected && here == expected, "{family:?}");
        assert_eq!(client.stats().passed, 0);
    }
}

/// The most bytes of one step of a random run.
const STEP_BYTES_MAX: u64 = 30_000;

/// Writes and reads in random steps, so that bytes of the connection and aggregates mix in all
/// ways.
fn run_randomly(daemon: &Daemon, family: Family, seed: u64) {
    const STEPS: u32 = 1500;
    let (reader, from, writer, to) = paired(daemon, family);
    let all = pattern(MEGABYTE, seed);
    let (sent, received) = thread::scope(|scope| {
        let received = scope.spawn(|| {
            let (mut random, mut received) = (Pcg64Mcg::seed_from_u64(seed + 1), Vec::new());
            loop {
                let length = 1 + random.next_u64() % (2 * STEP_BYTES_MAX);
                let bytes = reader.read(from.as_fd(), length).expect("bytes");
                assert!(bytes.len() <= length);
                if bytes.is_empty() {
                    return received;
                }
                received.extend(bytes.to_vec());
                if random.next_u64().is_multiple_of(16) {
                    thread::yield_now();
                }
            }
        });
        let (mut random, mut sent) = (Pcg64Mcg::seed_from_u64(seed), Vec::new());
        for _ in 0..STEPS {
            let bits = random.next_u64();
            let length = if bits & 1 == 0 { bits >> 8 & 63 } else { (bits >> 8) % STEP_BYTES_MAX };
            let start = random.next_u64() as usize % (all.len() - STEP_BYTES_MAX as usize);
            let bytes = &all[start..start + 1 + length as usize];
            match bits >> 1 & 7 {
                0..3 => write_all(&writer, &to, bytes),
                3 => assert_eq!(writer.write(to.as_fd(), &sealed(bytes)), Ok(bytes.len() as u64)),
                4..7 => to.write_by_kernel(bytes),
                _ => {
                    thread::yield_now();
                    continue;
                }
            }
            sent.extend_from_slice(bytes);
        }
        to.shutdown(Shutdown::Write);
        (sent, received.join().expect("the reader"))
    });
    let difference = sent.iter().zip(&received).position(|(one, other)| one != other);
    assert!(sent == received, "{family:?}, seed {seed}: at {difference:?} of {}", sent.len());
    let passed = (writer.stats().passed, reader.stats().passed);
    assert!(passed.0 > 10 && passed.1 > 10, "{family:?}, seed {seed}: {passed:?}");
}

#[test]
fn random_steps_keep_their_order() {
    let folder = Folder::new("socket-random");
    let daemon = Daemon::start(&folder, &[]);
    let first = u64::from(std::process::id());
    for seed in first..first + number("IOLITED_SOCKET_RUNS", 2) {
        for family in FAMILIES {
            run_randomly(&daemon, family, seed);
        }
    }
}

#[test]
fn an_aggregate_waits_for_bytes_that_are_under_way() {
    let folder = Folder::new("socket-cork");
    let daemon = Daemon::start(&folder, &[]);
    for family in [Family::Tcp4, Family::Tcp6] {
        let (reader, from, writer, to) = paired(&daemon, family);
        // The kernel keeps the bytes until more come, but 200 ms at most.
        rustix::net::sockopt::set_tcp_cork(&to, true).expect("a socket");
        to.write_by_kernel(b"first, ");
        assert_eq!(writer.write(to.as_fd(), &sealed(b"second")), Ok(6));
        assert_eq!(writer.stats().passed, 2);
        assert_eq!(read_exactly(&reader, &from, 13), b"first, second");
        assert_eq!(reader.stats().passed, 2);
    }
}

#[test]
fn a_writer_waits_for_its_reader() {
    let folder = Folder::new("socket-waits");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        let expected = pattern(20 * MEGABYTE, 3);
        thread::scope(|scope| {
            let written = scope.spawn(|| {
                write_all(&writer, &to, &expected);
                drop(to);
            });
            assert!(!written.is_finished(), "the channel and the socket have limited room");
            assert!(read_all(&reader, &from) == expected);
            written.join().expect("the writer");
        });
    }
}

#[test]
fn another_process_reads_the_rest() {
    let folder = Folder::new("socket-rest");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        for text in [b"one", b"two", b"six"] {
            write_all(&writer, &to, text);
        }
        assert_eq!(read_exactly(&reader, &from, 4), b"onet");
        // As if the process had ended, while a child of it reads on.
        drop(reader);
        write_all(&writer, &to, b"end");
        drop(to);
        assert_eq!(from.read_by_kernel(), b"wosixend", "{family:?}");
    }
}

#[test]
fn a_reader_that_ends_its_direction_stops_the_writer() {
    millrace_sys::ignore_broken_pipe_signal();
    let folder = Folder::new("socket-shutdown");
    let daemon = Daemon::start(&folder, &[]);
    let (_reader, from, writer, to) = paired(&daemon, Family::Unix);
    from.shutdown(Shutdown::Read);
    assert_eq!(writer.write(to.as_fd(), &sealed(b"bytes")), Err(Errno::PIPE));
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        write_all(&writer, &to, b"bytes");
        to.shutdown(Shutdown::Write);
        assert_eq!(writer.write(to.as_fd(), &sealed(b"more")), Err(Errno::PIPE));
        assert_eq!(read_all(&reader, &from), b"bytes");
        // The other direction goes on.
        write_all(&reader, &from, &pattern(100_000, 1));
        from.shutdown(Shutdown::Write);
        assert!(read_all(&writer, &to) == pattern(100_000, 1), "{family:?}");
    }
}

#[test]
fn a_child_leaves_the_connection_to_its_parent() {
    let folder = Folder::new("socket-fork");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        let child = fork(|| {
            write_all(&writer, &to, b"bytes of the child, ");
            true
        });
        assert!(succeeds(child));
        let passed = writer.stats().passed;
        write_all(&writer, &to, b"bytes of the parent");
        assert_eq!(writer.stats().passed, passed + 1);
        let expected = b"bytes of the child, bytes of the parent";
        assert_eq!(read_exactly(&reader, &from, expected.len()), expected);
        assert!(reader.stats().passed > 1, "{family:?}");
    }
}

#[test]
fn later_flags_of_the_socket_count() {
    let folder = Folder::new("socket-flags");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (reader, from, writer, to) = paired(&daemon, family);
        let timeout = Some(Duration::from_millis(20));
        let timed = rustix::net::sockopt::Timeout::Recv;
        rustix::net::sockopt::set_socket_timeout(&from, timed, timeout).expect("a socket");
        assert_eq!(reader.read(from.as_fd(), 100).map(drop), Err(Errno::AGAIN));
        rustix::net::sockopt::set_socket_timeout(&from, timed, None).expect("a socket");
        millrace_sys::set_nonblocking(from.as_fd()).expect("a socket");
        millrace_sys::set_nonblocking(to.as_fd()).expect("a socket");
        assert_eq!(reader.read(from.as_fd(), 100).map(drop), Err(Errno::AGAIN));
        let bytes = sealed(&pattern(50_000, 1));
        let (written, to) = finishes("the writes", move || {
            let mut written = 0;
            loop {
                match writer.write(to.as_fd(), &bytes) {
                    Ok(count) => written += count,
                    Err(error) => {
                        assert_eq!(error, Errno::AGAIN);
                        break (written, (writer, to));
                    }
                }
            }
        });
        let mut received = 0;
        while received < written {
            match reader.read(from.as_fd(), u64::MAX) {
                Ok(bytes) => received += bytes.len(),
                Err(error) => assert_eq!(error, Errno::AGAIN),
            }
        }
        assert_eq!(received, written, "{family:?}");
        drop(to);
    }
}

#[test]
fn other_sockets_carry_bytes() {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
    let folder = Folder::new("socket-others");
    let daemon = Daemon::start(&folder, &[]);
    for kind in [SocketType::SEQPACKET, SocketType::DGRAM] {
        let (one, other) =
            socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None).expect("sockets");
        assert_carries_bytes(&daemon, &one, &other);
    }
    let any = (Ipv4Addr::LOCALHOST, 0);
    let (one, other) =
        (UdpSocket::bind(any).expect("a socket"), UdpSocket::bind(any).expect("a socket"));
    one.connect(other.local_addr().expect("an address")).expect("a socket");
    assert_carries_bytes(&daemon, &one, &other);
    let (one, other) = UnixStream::pair().expect("sockets");
    sockopt::set_socket_passcred(&other, true).expect("a socket");
    assert_carries_bytes(&daemon, &one, &other);
    for family in FAMILIES {
        let (one, other) = family.connect();
        millrace_sys::set_nonblocking(one.as_fd()).expect("a socket");
        assert_carries_bytes(&daemon, &one, &other);
    }
}

#[test]
fn a_connection_can_be_accepted_later() {
    let folder = Folder::new("socket-later");
    let daemon = Daemon::start(&folder, &[]);
    let path = common::path(&folder, "listener");
    let listener = UnixListener::bind(&path).expect("a socket");
    let to = Socket::Unix(UnixStream::connect(&path).expect("a connection"));
    let (reader, writer) = (daemon.client(), daemon.client());
    let bytes = pattern(PAIRING_BYTES, 1);
    write_all(&writer, &to, &bytes);
    let from = Socket::Unix(listener.accept().expect("a connection").0);
    assert!(read_exactly(&reader, &from, bytes.len()) == bytes);
    while writer.stats().passed == 0 {
        write_all(&writer, &to, &bytes);
        assert!(read_exactly(&reader, &from, bytes.len()) == bytes);
    }
}

#[test]
fn connections_to_ordinary_programs_leave_room_for_others() {
    let folder = Folder::new("socket-many");
    let daemon = Daemon::start(&folder, &[]);
    let (server, client) = (daemon.client(), daemon.client());
    let bytes = pattern(PAIRING_BYTES, 1);
    let mut ordinary = Vec::new();
    for family in FAMILIES.into_iter().cycle().take(40) {
        let (here, there) = family.connect();
        write_all(&server, &here, &bytes);
        here.shutdown(Shutdown::Write);
        assert!(there.read_by_kernel() == bytes);
        ordinary.push((here, there));
    }
    for family in FAMILIES {
        let (here, there) = family.connect();
        let passed = server.stats().passed;
        for round in 0.. {
            assert!(round < 100, "{family:?}: nothing was passed");
            write_all(&server, &here, &bytes);
            assert!(read_exactly(&client, &there, bytes.len()) == bytes);
            if server.stats().passed > passed {
                break;
            }
        }
    }
}

/// Not a test of its own: a process whose standard input is a connection.
#[test]
fn plays_a_role() {
    let Some((role, client, _)) = common::role() else { return };
    let socket = std::io::stdin();
    let read = |length| client.read(socket.as_fd(), length).expect("bytes").to_vec();
    let write = |bytes: &[u8]| {
        let bytes = sealed(bytes);
        assert_eq!(client.write(socket.as_fd(), &bytes), Ok(bytes.len()));
    };
    match role.as_str() {
        "reader" => {
            let mut count = 0;
            while count < PAIRING_BYTES {
                count += read(35_000).len();
            }
            println!("is paired");
            let mut count = 0;
            while count < 4 {
                count += read(4).iter().filter(|byte| **byte != b'x').count();
            }
            println!("has read {count}");
        }
        "writer" => {
            write(&pattern(PAIRING_BYTES, 1));
            while client.stats().passed == 0 {
                write(b"x");
                thread::yield_now();
            }
            write(b"the last bytes");
            println!("has written");
        }
        other => panic!("no role: {other}"),
    }
    // Until the end of this process.
    loop {
        thread::park();
    }
}

/// Starts an actor with a connection.
fn start(role: &str, daemon: &Daemon, folder: &Folder, socket: Socket) -> (Actor, Reports) {
    let program = std::env::current_exe().expect("this program");
    let mut command = Actor::command(&program, role, &daemon.socket, folder);
    let mut actor = Actor(command.stdin(socket.duplicate()).spawn().expect("this program"));
    let reports = Reports(BufReader::new(actor.0.stdout.take().expect("a pipe")));
    (actor, reports)
}

#[test]
fn the_end_of_a_writing_process_loses_nothing() {
    let folder = Folder::new("socket-writer-killed");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (from, to) = family.connect();
        let reader = daemon.client();
        let (mut actor, mut reports) = start("writer", &daemon, &folder, to);
        let mut all = Vec::new();
        let text = b"the last bytes";
        while all.len() < PAIRING_BYTES || reader.stats().passed == 0 {
            all.extend(reader.read(from.as_fd(), 35_000).expect("bytes").to_vec());
        }
        reports.wait_for("has written");
        actor.0.kill().expect("a signal");
        actor.0.wait().expect("its end");
        all.extend(read_all(&reader, &from));
        assert!(all.ends_with(text) && all.starts_with(&pattern(PAIRING_BYTES, 1)), "{family:?}");
        let between = &all[PAIRING_BYTES..all.len() - text.len()];
        assert!(between.iter().all(|byte| *byte == b'x'), "{family:?}");
    }
}

#[test]
fn the_end_of_a_reading_process_loses_nothing() {
    let folder = Folder::new("socket-reader-killed");
    let daemon = Daemon::start(&folder, &[]);
    for family in FAMILIES {
        let (from, to) = family.connect();
        let writer = daemon.client();
        // Another process has the socket, too.
        let copy = match &from {
            Socket::Unix(socket) => Socket::Unix(socket.try_clone().expect("dup")),
            Socket::Tcp(socket) => Socket::Tcp(socket.try_clone().expect("dup")),
        };
        let (mut actor, mut reports) = start("reader", &daemon, &folder, from);
        write_all(&writer, &to, &pattern(PAIRING_BYTES, 1));
        reports.wait_for("is paired");
        while writer.stats().passed == 0 {
            write_all(&writer, &to, b"x");
            thread::yield_now();
        }
        write_all(&writer, &to, b"0123456789");
        let line = reports.wait_for("has read");
        let count: usize = line.rsplit(' ').next().expect("a number").trim().parse().expect("one");
        actor.0.kill().expect("a signal");
        actor.0.wait().expect("its end");
        write_all(&writer, &to, b"end");
        drop(to);
        assert_eq!(copy.read_by_kernel(), b"0123456789end"[count..], "{family:?}");
    }
}

#[test]
fn another_user_at_the_other_end_gets_bytes() {
    use std::os::unix::process::CommandExt;
    if millrace_sys::effective_user() != 0 {
        eprintln!("skipped: clients of two users need root");
        return;
    }
    let folder = Folder::new("socket-user");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&folder.0, mode).expect("the folder");
    let daemon = Daemon::start(&folder, &[]);
    // The folder of this program may be closed to others.
    let program = common::path(&folder, "program");
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    for family in FAMILIES {
        let (from, to) = family.connect();
        let mut command = Actor::command(&program, "reader", &daemon.socket, &folder);
        command.stdin(from.duplicate()).uid(OTHER_USER).gid(OTHER_USER);
        let mut actor = Actor(command.spawn().expect("this program"));
        let mut reports = Reports(BufReader::new(actor.0.stdout.take().expect("a pipe")));
        let writer = daemon.client();
        write_all(&writer, &to, &pattern(PAIRING_BYTES, 1));
        reports.wait_for("is paired");
        for _ in 0..4 {
            write_all(&writer, &to, b"0123456789");
        }
        reports.wait_for("has read");
        assert_eq!(writer.stats().passed, 0, "{family:?}");
    }
}

/// A user without rights.
const OTHER_USER: u32 = 65533;

//! Clients that do not keep to the protocol, or that keep all that they get: the daemon refuses
//! them, and other clients go on.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use common::{
    Actor, Daemon, Folder, by_kernel, memory_of, path, pattern, sealed, wait_until, whole,
};
use iolite::service::{ClientStats, FileClient, RESPONSE_BYTES_MAX, Refusal, Request, Response};
use millrace_sys::Errno;
use rustix::fs::{CWD, FileType, Mode, OFlags};

const MEGABYTE: usize = 1 << 20;
const READ: Request = Request::Read { offset: 0, length: 1 << 40 };

/// A process that sends packets of its own.
struct Peer(OwnedFd);

impl Peer {
    fn connect(socket: &Path) -> Self {
        let (peer, response) = Self::connect_to_any(socket);
        assert_eq!(response, Response::Ready);
        peer
    }

    /// Connects, and returns the first response.
    fn connect_to_any(socket: &Path) -> (Self, Response) {
        let wait_max = Duration::from_secs(60);
        let peer = Self(millrace_sys::connect_and_wait(socket, wait_max).expect("it listens"));
        let (response, _) = peer.receive();
        (peer, response)
    }

    fn send(&self, packet: &[u8], files: &[BorrowedFd<'_>]) {
        millrace_sys::send_packet(self.0.as_fd(), &[packet], files).expect("room");
    }

    /// Returns the response to a request, with its memory.
    fn exchange(&self, request: &Request, files: &[BorrowedFd<'_>]) -> (Response, Vec<OwnedFd>) {
        self.send(&packet(request), files);
        self.receive()
    }

    fn receive(&self) -> (Response, Vec<OwnedFd>) {
        let (mut bytes, mut memory) = ([0; RESPONSE_BYTES_MAX], Vec::new());
        let length = millrace_sys::await_packet(self.0.as_fd(), &mut bytes, &mut memory);
        let response = Response::read(&bytes[..length.expect("a response")], memory.len());
        (response.expect("a known response"), memory)
    }

    fn refusal(&self, request: &Request, files: &[BorrowedFd<'_>]) -> Option<Refusal> {
        match self.exchange(request, files) {
            (Response::Refused(refusal), _) => Some(refusal),
            _ => None,
        }
    }

    /// Returns whether the daemon closes the connection without a response.
    fn is_closed(&self) -> bool {
        let received = millrace_sys::await_packet(self.0.as_fd(), &mut [0; 4096], &mut Vec::new());
        matches!(received, Ok(0) | Err(Errno::CONNRESET))
    }
}

fn packet(request: &Request) -> Vec<u8> {
    let mut packet = Vec::new();
    request.write(&mut packet);
    packet
}

/// Reads a changed file through the daemon.
fn assert_serves(client: &FileClient, file: &File) {
    file.write_all_at(&[7], 0).expect("written");
    let before = client.stats();
    assert!(whole(client, file).to_vec() == by_kernel(file));
    let ClientStats { received, copied, .. } = client.stats();
    assert!(received > before.received && copied == before.copied, "{:?}", client.stats());
}

/// Returns the number of copies and the bytes of a call.
fn read_counted(client: &FileClient, file: &File) -> (u64, Vec<u8>) {
    let before = client.stats().copied;
    let bytes = whole(client, file).to_vec();
    (client.stats().copied - before, bytes)
}

/// Passes descriptors of all kinds that cannot be shared.
fn pass_other_descriptors(socket: &Path, folder: &Path) {
    let file = folder.join("write-only");
    let write_only = File::create(&file).expect("a file");
    write_only.set_len(100_000).expect("a length");
    let named = rustix::fs::open(&file, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let fifo = folder.join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).expect("a FIFO");
    let fifo = File::options().read(true).write(true).open(fifo).expect("the FIFO");
    let (pipe, pipe_end) = std::io::pipe().expect("a pipe");
    let (socket_end, _other_end) = UnixStream::pair().expect("sockets");
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a socket");
    let open = |path: &str| OwnedFd::from(File::open(path).expect("it is there"));
    let wrong: [(OwnedFd, Refusal); 11] = [
        (write_only.into(), Refusal::NotReadable),
        (named.expect("a name"), Refusal::NotReadable),
        (pipe_end.into(), Refusal::NotReadable),
        (open("/"), Refusal::NotRegular),
        (fifo.into(), Refusal::NotRegular),
        (open("/dev/null"), Refusal::NotRegular),
        (socket_end.into(), Refusal::NotRegular),
        (listener.into(), Refusal::NotRegular),
        (pipe.into(), Refusal::NotRegular),
        (open("/proc/self/status"), Refusal::FileSystem),
        (open("/proc/self/mem"), Refusal::FileSystem),
    ];
    let peer = Peer::connect(socket);
    for (number, (file, refusal)) in wrong.iter().enumerate() {
        assert_eq!(peer.refusal(&READ, &[file.as_fd()]), Some(*refusal), "descriptor {number}");
        assert!(Peer::connect(socket).refusal(&READ, &[file.as_fd()]).is_some());
    }
}

#[test]
fn other_descriptors_are_refused() {
    let folder = Folder::new("descriptors");
    let daemon = Daemon::start(&folder, &[]);
    let (file, client) = (folder.file("file", &pattern(MEGABYTE, 1)), daemon.client());
    pass_other_descriptors(&daemon.socket, &folder.0);
    assert_serves(&client, &file);
}

/// Sends packets that are no requests, each on a connection of its own.
fn send_wrong_packets(socket: &Path, file: BorrowedFd<'_>) {
    let read = packet(&READ);
    let written = packet(&Request::Written { offset: 0, length: 5 });
    let mut other_version = read.clone();
    other_version[3] += 1;
    let long = [&read[..], &[0; 3000]].concat();
    let wrong: [(&[u8], usize); 10] = [
        (b"x", 1),
        (&[0; 24], 1),
        (&[0xff; 24], 1),
        (&read[..23], 1),
        (&other_version, 1),
        (&long, 1),
        (&read, 0),
        (&read, 2),
        (&written, 1),
        (&written, 4),
    ];
    for (number, (packet, descriptors)) in wrong.into_iter().enumerate() {
        let peer = Peer::connect(socket);
        peer.send(packet, &vec![file; descriptors]);
        assert!(peer.is_closed(), "packet {number}");
    }
    // Connections that end before, and while, a response comes.
    for _ in 0..20 {
        drop(Peer::connect(socket));
        Peer::connect(socket).send(&read, &[file]);
    }
    // Requests without receiving the responses: their descriptors would be limited for all users.
    let peer = Peer::connect(socket);
    peer.send(&read, &[file]);
    peer.send(&read, &[file]);
    assert!(matches!(peer.receive().0, Response::Pieces { .. }));
    wait_until("the connection is closed", || {
        millrace_sys::send_packet(peer.0.as_fd(), &[&read], &[file]) == Err(Errno::PIPE)
    });
}

#[test]
fn packets_that_are_no_request_end_the_connection() {
    let folder = Folder::new("packets");
    let daemon = Daemon::start(&folder, &[]);
    let (file, client) = (folder.file("file", &pattern(MEGABYTE, 1)), daemon.client());
    assert_serves(&client, &file);
    let (_, before) = daemon.memory();
    send_wrong_packets(&daemon.socket, file.as_fd());
    assert_serves(&client, &file);
    wait_until("no descriptor is left", || daemon.memory().1 <= before);
}

#[test]
fn wrong_memory_is_refused() {
    let folder = Folder::new("memory");
    let daemon = Daemon::start(&folder, &[]);
    let (file, client) = (folder.file("file", &pattern(100_000, 1)), daemon.client());
    let unsealed = millrace_sys::create_memory_file("test", 50_000).expect("memory");
    rustix::io::pwrite(&unsealed, &[1; 50_000], 0).expect("room");
    let sparse = millrace_sys::create_memory_file("test", 50_000).expect("memory");
    millrace_sys::seal_contents(sparse.as_fd()).expect("no mapping");
    let short = sealed(&pattern(49_999, 1));
    let (short, _) = short.slices().next().and_then(|it| it.sendfile_source()).expect("memory");
    let regular = folder.file("other", &pattern(50_000, 1));
    let peer = Peer::connect(&daemon.socket);
    let written = |length| Request::Written { offset: 0, length };
    for memory in [unsealed.as_fd(), sparse.as_fd(), short, regular.as_fd()] {
        let refusal = peer.refusal(&written(50_000), &[file.as_fd(), memory]);
        assert_eq!(refusal, Some(Refusal::Unsealed));
    }
    let read_only = File::open(path(&folder, "file")).expect("the file");
    let refusal = peer.refusal(&written(49_999), &[read_only.as_fd(), short]);
    assert_eq!(refusal, Some(Refusal::NotWritable));
    // The file has other bytes, or fewer: its readers get those.
    for offset in [0, 10_000, 99_999, 1 << 40, u64::MAX >> 1] {
        let request = Request::Written { offset, length: 40_000 };
        assert_eq!(peer.exchange(&request, &[file.as_fd(), short]).0, Response::Taken);
        assert_serves(&client, &file);
    }
    file.set_len(20_000_000).expect("a length");
    assert_serves(&client, &file);
}

/// Returns the length of the file while all its bytes are `state`.
fn length_of(state: u8) -> usize {
    40_000 + usize::from(state) * 37 % 251 * 8_192
}

/// Whether these bytes begin a state of the file: one number, and zeros after a longer length was
/// set.
fn is_state(bytes: &[u8]) -> bool {
    let state = bytes.first().copied().unwrap_or(0);
    let count = bytes.iter().take_while(|byte| **byte == state).count();
    let is_known = (0..=250).any(|other| length_of(other) == bytes.len());
    let is_zero = bytes[count..].iter().all(|byte| *byte == 0);
    state > 0
        && is_known
        && is_zero
        && count <= length_of(state)
        && (count == bytes.len() || count == length_of(state))
}

/// Gives a file one state after the other, and reads each at once.
fn write_states(client: &FileClient, file: &File, rounds: usize) {
    let mut state = 1;
    for round in 0..rounds {
        state = state % 250 + 1;
        file.set_len(length_of(state) as u64).expect("a length");
        file.write_all_at(&vec![state; length_of(state)], 0).expect("written");
        let read = whole(client, file).to_vec();
        let is_right = read.len() == length_of(state) && read.iter().all(|byte| *byte == state);
        assert!(is_right, "round {round}: {} bytes instead of {}", read.len(), length_of(state));
    }
}

/// Ends the readers, also if the writer fails.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_file_that_changes_all_the_time_is_read_as_it_was() {
    let folder = Folder::new("changing");
    let daemon = Daemon::start(&folder, &[]);
    let file = folder.file("file", &vec![1; length_of(1)]);
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let client = daemon.client();
                while !has_ended.load(Ordering::Relaxed) {
                    let (copies, bytes) = read_counted(&client, &file);
                    // The kernel may copy bytes of several states.
                    assert!(copies > 0 || is_state(&bytes), "{} bytes", bytes.len());
                }
            });
        }
        let _ends = Ends(&has_ended);
        write_states(&daemon.client(), &file, 150);
    });
    assert!(whole(&daemon.client(), &file).to_vec() == by_kernel(&file));
}

#[test]
fn too_many_connections_of_a_user_are_refused() {
    let folder = Folder::new("connections");
    let daemon = Daemon::start(&folder, &["--per-user", "2"]);
    let file = folder.file("file", &pattern(MEGABYTE, 1));
    let clients = [daemon.client(), daemon.client()];
    clients.iter().for_each(|client| assert_serves(client, &file));
    let (peer, response) = Peer::connect_to_any(&daemon.socket);
    assert_eq!(response, Response::Refused(Refusal::Clients));
    assert!(peer.is_closed());
    let late = daemon.client();
    assert!(whole(&late, &file).to_vec() == by_kernel(&file));
    assert_eq!(late.stats().last_refusal, Some(Refusal::Clients));
    assert_eq!((late.stats().copied, late.stats().received), (1, 0));
    clients.iter().for_each(|client| assert_serves(client, &file));
    drop(clients);
    wait_until("it connects again", || {
        assert!(whole(&late, &file).to_vec() == by_kernel(&file));
        late.stats().received > 0
    });
}

#[test]
fn a_user_who_keeps_memory_gets_no_more() {
    let folder = Folder::new("keeps");
    let daemon = Daemon::start(&folder, &["--cache-memory", "16M", "--user-memory", "4M"]);
    let files: Vec<File> =
        (0..3).map(|number| folder.file("file", &pattern(2 * MEGABYTE, number))).collect();
    let peer = Peer::connect(&daemon.socket);
    let names = ["one", "two"];
    let kept: Vec<_> = names
        .iter()
        .map(|name| {
            let file = folder.file(name, &pattern(2 * MEGABYTE, 9));
            peer.exchange(&READ, &[file.as_fd()]).1
        })
        .collect();
    assert!(kept.iter().all(|memory| memory.len() == 1));
    assert_eq!(peer.refusal(&READ, &[files[2].as_fd()]), Some(Refusal::UserMemory));
    let client = daemon.client();
    assert_eq!(read_counted(&client, &files[2]), (1, by_kernel(&files[2])));
    assert_eq!(client.stats().last_refusal, Some(Refusal::UserMemory));
    drop(kept);
    wait_until("memory is shared again", || {
        read_counted(&client, &files[2]) == (0, by_kernel(&files[2]))
    });
}

#[test]
fn memory_that_a_client_refers_to_counts() {
    let folder = Folder::new("references");
    let daemon = Daemon::start(&folder, &["--cache-memory", "16M", "--user-memory", "4M"]);
    let peer = Peer::connect(&daemon.socket);
    let mut references = Vec::new();
    for number in 0..30 {
        let file = folder.file("file", &pattern(2 * MEGABYTE, number));
        let (_, memory) = peer.exchange(&READ, &[file.as_fd()]);
        // It is no open file for the kernel, but keeps the memory.
        let path = |file: &OwnedFd| format!("/proc/self/fd/{}", file.as_raw_fd());
        let open = |file| rustix::fs::open(path(file), OFlags::PATH, Mode::empty()).expect("it");
        references.extend(memory.iter().map(open));
    }
    assert!((2..=8).contains(&references.len()), "{} pieces of 2 MB", references.len());
    let (file, client) = (folder.file("file", &pattern(2 * MEGABYTE, 9)), daemon.client());
    assert_eq!(read_counted(&client, &file), (1, by_kernel(&file)));
    drop(references);
    wait_until("memory is shared again", || read_counted(&client, &file) == (0, by_kernel(&file)));
}

#[test]
fn memory_without_contents_takes_no_place() {
    let folder = Folder::new("sparse");
    let daemon = Daemon::start(&folder, &["--cache-memory", "16M"]);
    let (file, client) = (folder.file("file", &pattern(MEGABYTE, 1)), daemon.client());
    let before = memory_of(&whole(&client, &file));
    let other = folder.file("other", b"");
    let peer = Peer::connect(&daemon.socket);
    for length in [20 << 20, 1 << 40] {
        let sparse = millrace_sys::create_memory_file("test", length).expect("memory");
        millrace_sys::seal_contents(sparse.as_fd()).expect("no mapping");
        let written = Request::Written { offset: 0, length };
        let refusal = peer.refusal(&written, &[other.as_fd(), sparse.as_fd()]);
        assert_eq!(refusal, Some(Refusal::Memory));
    }
    let after = daemon.client();
    assert_eq!(memory_of(&whole(&after, &file)), before);
}

#[test]
fn a_client_drops_old_memory_for_new_files() {
    let folder = Folder::new("old-memory");
    let daemon = Daemon::start(&folder, &["--cache-memory", "16M", "--user-memory", "4M"]);
    let client = daemon.client();
    for number in 0..4 {
        let file = folder.file(&number.to_string(), &pattern(2 * MEGABYTE, number));
        wait_until("memory is shared", || read_counted(&client, &file) == (0, by_kernel(&file)));
    }
}

#[test]
fn the_cache_stays_within_its_memory() {
    let folder = Folder::new("bounds");
    let options = ["--cache-memory", "16M", "--user-memory", "1G"];
    let daemon = Daemon::start(&folder, &options);
    let peer = Peer::connect(&daemon.socket);
    for number in 0..30 {
        let length = 2 * MEGABYTE - number as usize * 50_000;
        let file = folder.file(&number.to_string(), &pattern(length, number));
        let (response, memory) = peer.exchange(&READ, &[file.as_fd()]);
        assert!(matches!(response, Response::Pieces { .. }) && memory.len() == 1, "{response:?}");
        drop(memory);
        let (bytes, _) = daemon.memory();
        assert!(bytes <= 16 << 20, "{bytes} bytes");
        std::fs::remove_file(path(&folder, &number.to_string())).expect("the file");
    }
    // Many versions of one file take no more.
    let (file, client) = (folder.file("file", &pattern(3 * MEGABYTE, 1)), daemon.client());
    for round in 0..30 {
        file.write_all_at(&[round], u64::from(round) * 90_000).expect("written");
        assert!(whole(&client, &file).to_vec() == by_kernel(&file));
        let (bytes, _) = daemon.memory();
        assert!(bytes <= 16 << 20, "{bytes} bytes");
    }
}

/// Not a test of its own: a process of another user that a test starts.
#[test]
fn plays_a_role() {
    let Some((role, client, folder)) = common::role() else { return };
    let socket = folder.join("socket");
    let file = File::open(folder.join("file")).unwrap();
    match role.as_str() {
        "read" => {
            let bytes = whole(&client, &file);
            assert!(bytes.to_vec() == by_kernel(&file));
            assert_eq!((client.stats().received, client.stats().copied), (1, 0));
            println!("memory {:?}", memory_of(&bytes));
        }
        "attack" => {
            let own = folder.join("own");
            pass_other_descriptors(&socket, &own);
            send_wrong_packets(&socket, file.as_fd());
            let secret = folder.join("secret");
            assert_eq!(File::open(&secret).unwrap_err().raw_os_error(), Some(13));
            let named = rustix::fs::open(&secret, OFlags::PATH, Mode::empty()).unwrap();
            let peer = Peer::connect(&socket);
            assert_eq!(peer.refusal(&READ, &[named.as_fd()]), Some(Refusal::NotReadable));
            let bytes = sealed(&pattern(100_000, 5));
            let memory = bytes.slices().next().and_then(|it| it.sendfile_source()).unwrap().0;
            let written = Request::Written { offset: 0, length: 100_000 };
            for file in [named.as_fd(), file.as_fd()] {
                let refusal = peer.refusal(&written, &[file, memory]);
                assert_eq!(refusal, Some(Refusal::NotWritable));
            }
            let (pipe, _other_end) = std::io::pipe().unwrap();
            assert_eq!(
                peer.exchange(&Request::Pair { writes: false }, &[pipe.as_fd()]).0,
                Response::Paired
            );
        }
        // The kernel may have given it to users that the daemon's user namespace does not know.
        "unknown" => {
            let peer = Peer::connect(&socket);
            let (pipe, _other_end) = std::io::pipe().unwrap();
            let refusal = peer.refusal(&Request::Pair { writes: false }, &[pipe.as_fd()]);
            assert_eq!(refusal, Some(Refusal::UnknownUser));
            let bytes = sealed(&pattern(100_000, 5));
            let memory = bytes.slices().next().and_then(|it| it.sendfile_source()).unwrap().0;
            let written = Request::Written { offset: 0, length: 100_000 };
            let refusal = peer.refusal(&written, &[file.as_fd(), memory]);
            assert_eq!(refusal, Some(Refusal::UnknownUser));
            assert!(whole(&client, &file).to_vec() == by_kernel(&file));
        }
        "flood" => flood(&socket, file.as_fd()),
        other => panic!("no role: {other}"),
    }
}

/// Opens connections and sends to them for as long as the standard input is open.
fn flood(socket: &Path, file: BorrowedFd<'_>) {
    let mut input = std::io::stdin();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ends = Ends(&has_ended);
            input.read_to_end(&mut Vec::new()).expect("the end");
        });
        let read = packet(&READ);
        let mut peers = Vec::new();
        for count in 0_u64.. {
            if has_ended.load(Ordering::Relaxed) {
                break;
            }
            let wait_max = Duration::from_secs(60);
            // The daemon's queue may be full for a moment.
            if let Ok(peer) = millrace_sys::connect_and_wait(socket, wait_max) {
                let wrong: &[u8] = if count.is_multiple_of(3) { b"no request" } else { &read };
                for _ in 0..count % 4 {
                    let _ = millrace_sys::send_packet(peer.as_fd(), &[wrong], &[file]);
                }
                peers.push(peer);
            }
            if count == 300 {
                println!("all places are taken");
            }
            if peers.len() > 150 {
                peers.drain(..50);
            }
        }
    });
}

/// A user without rights.
const OTHER_USER: u32 = 65533;

/// Returns the command that runs a role as another user.
fn command_of_user(user: u32, role: &str, daemon: &Daemon, folder: &Folder) -> Command {
    use std::os::unix::process::CommandExt;
    // The folder of this program may be closed to others.
    let program = path(folder, "program");
    if !program.exists() {
        std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    }
    let mut command = Actor::command(&program, role, &daemon.socket, folder);
    command.uid(user).gid(user);
    command
}

/// Runs a role as another user, and returns its standard output.
fn as_user(user: u32, role: &str, daemon: &Daemon, folder: &Folder) -> String {
    let mut command = command_of_user(user, role, daemon, folder);
    command.stdin(Stdio::null());
    let output = command.output().expect("this program");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn users_do_not_get_what_they_cannot_open() {
    if millrace_sys::effective_user() != 0 {
        eprintln!("skipped: clients of two users need root");
        return;
    }
    let folder = Folder::new("users");
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(&folder, &[]);
    let client = daemon.client();
    let bytes = sealed(&pattern(3 * MEGABYTE, 1));
    let file = folder.file("file", b"");
    file.set_permissions(PermissionsExt::from_mode(0o644)).unwrap();
    client.write(file.as_fd(), &bytes).unwrap();
    assert_eq!(memory_of(&whole(&client, &file)), memory_of(&bytes));
    let output = as_user(OTHER_USER, "read", &daemon, &folder);
    let inodes = output.lines().find_map(|line| line.split_once("memory ")).unwrap().1;
    for inode in memory_of(&bytes) {
        assert!(!inodes.contains(&inode.to_string()), "{inodes} has {inode}");
    }
    let mut options = File::options();
    options.read(true).write(true).create_new(true).mode(0o600);
    let secret = options.open(path(&folder, "secret")).unwrap();
    secret.write_all_at(&pattern(MEGABYTE, 3), 0).unwrap();
    assert!(whole(&client, &secret).to_vec() == by_kernel(&secret));
    std::fs::create_dir(path(&folder, "own")).unwrap();
    std::os::unix::fs::chown(path(&folder, "own"), Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    as_user(OTHER_USER, "attack", &daemon, &folder);
    as_user(65534, "unknown", &daemon, &folder);
    assert_serves(&client, &file);
}

#[test]
fn a_flood_of_one_user_leaves_places_to_others() {
    if millrace_sys::effective_user() != 0 {
        eprintln!("skipped: clients of two users need root");
        return;
    }
    let folder = Folder::new("flood");
    std::fs::set_permissions(&folder.0, PermissionsExt::from_mode(0o755)).unwrap();
    let daemon = Daemon::start(&folder, &[]);
    let file = folder.file("file", &pattern(MEGABYTE, 1));
    file.set_permissions(PermissionsExt::from_mode(0o644)).unwrap();
    assert_serves(&daemon.client(), &file);
    let (_, before) = daemon.memory();
    let command = &mut command_of_user(OTHER_USER, "flood", &daemon, &folder);
    let mut actor = Actor(command.spawn().unwrap());
    let mut output = BufReader::new(actor.0.stdout.take().unwrap()).lines();
    assert!(output.any(|line| line.unwrap().contains("all places are taken")));
    for _ in 0..20 {
        assert_serves(&daemon.client(), &file);
    }
    drop(actor.0.stdin.take());
    output.for_each(drop);
    assert!(actor.0.wait().unwrap().success());
    wait_until("no descriptor is left", || daemon.memory().1 <= before);
}

//! A running iolited, and files for it.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod connections;
pub(crate) mod history;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use iolite::service::{FileClient, RESPONSE_BYTES_MAX, Request, Response};
use iolite::{Aggregate, UnsealedMemory};

/// A folder that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

/// ext4, XFS and tmpfs, as numbered by statfs(2).
const SHARED_FILE_SYSTEMS: [u64; 3] = [0xef53, 0x5846_5342, 0x0102_1994];

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        // Containers often have an overlay file system, which the daemon does not share.
        let bases = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
        let is_shared = |base: &&PathBuf| {
            let folder = File::open(base).expect("a folder");
            let kind = millrace_sys::file_system(folder.as_fd()).expect("fstatfs");
            SHARED_FILE_SYSTEMS.contains(&kind)
        };
        let base = bases.iter().find(is_shared).expect("a folder in ext4, XFS or tmpfs");
        let path = base.join(format!("iolited-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    /// Creates a file with these bytes, open for reading and writing.
    pub(crate) fn file(&self, name: &str, bytes: &[u8]) -> File {
        std::fs::write(self.0.join(name), bytes).expect("a file");
        self.open(name)
    }

    pub(crate) fn open(&self, name: &str) -> File {
        File::options().read(true).write(true).open(self.0.join(name)).expect("the file")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The daemon, as users start it.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) socket: PathBuf,
}

impl Daemon {
    /// Starts the daemon with its socket in a folder, and waits until it listens.
    pub(crate) fn start(folder: &Folder, options: &[&str]) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_iolited")), folder, options)
    }

    /// Starts the daemon by a command that takes its options.
    pub(crate) fn start_by(mut command: Command, folder: &Folder, options: &[&str]) -> Self {
        let socket = folder.0.join("socket");
        let mut child = command
            .arg("--socket")
            .arg(&socket)
            .args(options)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the daemon starts");
        let mut messages = BufReader::new(child.stderr.take().expect("a pipe"));
        let mut line = String::new();
        messages.read_line(&mut line).expect("a message");
        assert_eq!(line, format!("iolited: listening on unix:{}\n", socket.display()));
        // Later messages are not waited for.
        std::thread::spawn(move || std::io::copy(&mut messages, &mut std::io::stderr()));
        Self { child, socket }
    }

    pub(crate) fn client(&self) -> FileClient {
        FileClient::new(Some(&self.socket)).expect("memory")
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends the daemon at once, as after kill -9.
    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("a signal");
        self.child.wait().expect("its end");
    }

    /// Returns the number of the daemon's open descriptors.
    pub(crate) fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("proc(5)").count()
    }

    /// Returns the memory that the daemon has open, in bytes, and the number of its other
    /// descriptors.
    pub(crate) fn memory(&self) -> (u64, usize) {
        let folder = std::fs::read_dir(format!("/proc/{}/fd", self.pid())).expect("proc(5)");
        let (mut memory, mut others) = (BTreeMap::new(), 0);
        for entry in folder {
            let path = entry.expect("a descriptor").path();
            let Ok(target) = std::fs::read_link(&path) else { continue };
            if !target.as_os_str().as_bytes().starts_with(b"/memfd:") {
                others += 1;
            } else if let Ok(status) = std::fs::metadata(&path) {
                memory.insert(status.ino(), status.blocks() * 512);
            }
        }
        (memory.values().sum(), others)
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns bytes that differ from each other by `seed`.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

/// Reads a whole file by the kernel.
pub(crate) fn by_kernel(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.metadata().expect("fstat").len() as usize];
    file.read_exact_at(&mut bytes, 0).expect("its bytes");
    bytes
}

/// Returns the inodes of the sealed files that have the bytes of an aggregate.
pub(crate) fn memory_of(bytes: &Aggregate) -> Vec<u64> {
    let inode = |(file, _): (std::os::fd::BorrowedFd<'_>, u64)| {
        rustix::fs::fstat(file).expect("fstat").st_ino
    };
    bytes.slices().map(|slice| inode(slice.sendfile_source().expect("a sealed file"))).collect()
}

/// Reads a whole file as an aggregate.
pub(crate) fn whole(client: &FileClient, file: &File) -> Aggregate {
    client.read_at(file.as_fd(), 0, u64::MAX >> 1).expect("its bytes")
}

/// Waits until a condition holds.
pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the path of a file in a folder.
pub(crate) fn path(folder: &Folder, name: &str) -> PathBuf {
    Path::new(&folder.0).join(name)
}

/// Returns sealed memory with these bytes.
pub(crate) fn sealed(bytes: &[u8]) -> Aggregate {
    let mut memory = UnsealedMemory::new(bytes.len()).expect("memory");
    memory.write(bytes);
    memory.seal().expect("no mapping").into_slice().expect("a mapping").into()
}

/// Returns the number in an environment variable, or a default.
pub(crate) fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().map_or(default, |number| number.parse().expect("a number"))
}

/// The variables of a process that plays a role: the role, its socket and its folder.
const VARIABLES: [&str; 3] = ["IOLITED_TEST_ROLE", "IOLITED_TEST_SOCKET", "IOLITED_TEST_FOLDER"];

/// A process that runs the test `plays_a_role` of this program. It ends with the test.
pub(crate) struct Actor(pub(crate) Child);

impl Actor {
    /// Returns the command for a role; `program` is a copy of this program.
    pub(crate) fn command(program: &Path, role: &str, socket: &Path, folder: &Folder) -> Command {
        let mut command = Command::new(program);
        command.args(["plays_a_role", "--exact", "--nocapture"]).current_dir("/");
        command.env(VARIABLES[0], role).env(VARIABLES[1], socket).env(VARIABLES[2], &folder.0);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command
    }

    pub(crate) fn start(role: &str, socket: &Path, folder: &Folder) -> Self {
        let program = std::env::current_exe().expect("this program");
        let mut command = Self::command(&program, role, socket, folder);
        Self(command.spawn().expect("this program"))
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns the role of this process with its client and its folder; `None` in a test.
pub(crate) fn role() -> Option<(String, FileClient, PathBuf)> {
    let [role, socket, folder] = VARIABLES.map(std::env::var_os);
    let client = FileClient::new(Some(Path::new(&socket?))).expect("memory");
    Some((role?.into_string().expect("a name"), client, folder?.into()))
}

/// Passes an end of a pipe or a connection to the daemon, for writing if `writes`, and returns the
/// socket for a channel.
pub(crate) fn pair_by_hand(daemon: &Daemon, stream: BorrowedFd<'_>, writes: bool) -> OwnedFd {
    let connection = millrace_sys::connect_and_wait(&daemon.socket, Duration::from_secs(60));
    let connection = connection.expect("the daemon");
    let (mut packet, mut files) = (Vec::new(), Vec::new());
    let mut receive = || {
        let mut bytes = [0; RESPONSE_BYTES_MAX];
        let length = millrace_sys::await_packet(connection.as_fd(), &mut bytes, &mut files);
        Response::read(&bytes[..length.expect("a response")], files.len())
    };
    assert_eq!(receive(), Some(Response::Ready));
    Request::Pair { writes }.write(&mut packet);
    millrace_sys::send_packet_and_wait(connection.as_fd(), &[&packet], &[stream]).expect("sent");
    assert_eq!(receive(), Some(Response::Paired));
    // The other end finds this one even if the connection has ended.
    std::mem::forget(connection);
    files.pop().expect("a socket")
}

/// Makes a child by fork(2) that runs `run`, and ends with success if that returns `true`.
pub(crate) fn fork(run: impl FnOnce() -> bool) -> i32 {
    // SAFETY: the child uses only what this thread has, and memory, which glibc makes usable.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run));
        // SAFETY: the call does not return, and runs no code of the parent.
        unsafe { libc::_exit(i32::from(!is_right.unwrap_or(false))) };
    }
    assert!(child > 0, "fork(2)");
    child
}

/// Waits for the end of a child, and returns whether it has ended with success.
pub(crate) fn succeeds(child: i32) -> bool {
    let mut status = 0;
    // SAFETY: the kernel stores the status of the child to `status`.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
}

/// The standard output of an actor.
pub(crate) struct Reports(pub(crate) BufReader<ChildStdout>);

impl Reports {
    /// Waits for a line with this word, and returns it.
    pub(crate) fn wait_for(&mut self, word: &str) -> String {
        let mut line = String::new();
        while !line.contains(word) {
            line.clear();
            assert!(self.0.read_line(&mut line).expect("a line") > 0, "no {word}");
        }
        line
    }
}

/// Runs `run` on a thread, and returns its result. It fails if that takes a minute.
pub(crate) fn finishes<T: Send + 'static>(
    what: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> T {
    let thread = std::thread::spawn(run);
    wait_until(what, || thread.is_finished());
    thread.join().expect("no panic")
}

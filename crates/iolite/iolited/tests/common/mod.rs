//! A running iolited, and files for it.
#![allow(dead_code, reason = "each test uses a part")]

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use iolite::Aggregate;
use iolite::service::FileClient;

/// A folder that is removed at the end.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("iolited-{name}-{}", std::process::id()));
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
        let socket = folder.0.join("socket");
        let mut child = Command::new(env!("CARGO_BIN_EXE_iolited"))
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

//! libmrsplice as C programs use it: compiled against the header, linked with the libraries that
//! cargo built for this test, and run.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "../../../uselect/uselect-c/tests/c/mod.rs"]
mod c;
#[path = "../../../uselect/uselect-c/tests/c/documented.rs"]
mod documented;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;
use std::{env, fs, thread};

use c::{ROOT, compile, run};
use documented::Library;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the folder of this package's libraries, in which cargo also puts its tests.
fn libraries() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

/// Returns the arguments of cc for one of the libraries that cargo built.
fn flags(library: &str) -> Vec<String> {
    let (include, folder) = (format!("-I{CRATE}/include"), format!("-L{}", libraries().display()));
    [include, folder].into_iter().chain(library.split(' ').map(str::to_owned)).collect()
}

#[test]
fn a_c_program_behaves_as_the_man_pages_say() {
    let flags = flags("-l:libmrsplice.a -lpthread -ldl -lm");
    run(&mut Command::new(compile("crates/splice/splice-c/tests/caller.c", "caller", &flags)));
}

/// Returns the command of the example, which is compiled once.
fn relay(arguments: &[&str]) -> Command {
    static COMPILED: OnceLock<(PathBuf, PathBuf)> = OnceLock::new();
    let (program, libraries) = COMPILED.get_or_init(|| {
        let source = "examples/mrsplice/relay.c";
        let lines = fs::read_to_string(Path::new(ROOT).join(source)).unwrap().lines().count();
        assert!(lines <= 150, "the example has {lines} lines");
        (compile(source, "relay", &flags("-lmrsplice")), with_soname())
    });
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", libraries);
    command
}

/// The running example.
struct Relay {
    process: Child,
    stdout: BufReader<ChildStdout>,
    stderr: BufReader<ChildStderr>,
    address: SocketAddr,
}

impl Relay {
    fn start(mut command: Command) -> Self {
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        let stderr = BufReader::new(process.stderr.take().unwrap());
        let line = line_of(&mut stdout);
        let address = line.strip_prefix("listening at ").unwrap().parse().unwrap();
        Self { process, stdout, stderr, address }
    }

    /// Returns the next line of standard output.
    fn line(&mut self) -> String {
        line_of(&mut self.stdout)
    }

    /// Returns the next line of standard error.
    fn error_line(&mut self) -> String {
        line_of(&mut self.stderr)
    }

    /// Sets the descriptor limit so that the process can open `count` more descriptors.
    fn allow_more_descriptors(&self, count: usize) {
        let process = self.process.id();
        let open = PathBuf::from(format!("/proc/{process}/fd"));
        let is_free = |fd: &u32| fs::symlink_metadata(open.join(fd.to_string())).is_err();
        let limit = (0..).filter(is_free).nth(count).unwrap();
        let (process, limit) = (format!("--pid={process}"), format!("--nofile={limit}:"));
        run(Command::new("prlimit").args([process, limit]));
    }
}

fn line_of(stdout: &mut impl BufRead) -> String {
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

impl Drop for Relay {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns a folder with the shared library under its soname.
fn with_soname() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("lib");
    fs::create_dir_all(&folder).unwrap();
    let library = folder.join("libmrsplice.so.0");
    fs::copy(libraries().join("libmrsplice.so"), library).unwrap();
    folder
}

/// Returns pseudorandom bytes, in which a lost or repeated part shows.
fn pattern(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// Receives until the end of the stream and sends the bytes back in reverse order. So the close of
/// one direction must be forwarded before the other direction has data.
fn send_reversed(mut connection: TcpStream) {
    let mut bytes = Vec::new();
    connection.read_to_end(&mut bytes).unwrap();
    bytes.reverse();
    connection.write_all(&bytes).unwrap();
}

/// Sends `count` bytes and checks the bytes that come back.
fn check_relay(relay: SocketAddr, count: usize) {
    let mut client = TcpStream::connect(relay).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut bytes = pattern(count);
    client.write_all(&bytes).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut response = Vec::new();
    client.read_to_end(&mut response).unwrap();
    bytes.reverse();
    assert!(
        response == bytes,
        "{} bytes came back (expected: {count}, in reverse order)",
        response.len()
    );
}

#[test]
fn the_example_relays_concurrent_connections_and_counts_bytes() {
    let sizes = || (0..16).map(|client| 20_011_usize << (client % 8));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let mut relay = Relay::start(relay(&["0", "127.0.0.1", &port]));
    let origin = thread::spawn(move || {
        for _ in sizes() {
            let connection = listener.accept().unwrap().0;
            thread::spawn(|| send_reversed(connection));
        }
        listener.accept().unwrap().0
    });
    let address = relay.address;
    let clients: Vec<_> =
        sizes().map(|count| thread::spawn(move || check_relay(address, count))).collect();
    clients.into_iter().for_each(|client| client.join().unwrap());
    let line = |count| format!("{count} bytes from the client, {count} bytes to it");
    let expected: BTreeSet<String> = sizes().map(line).collect();
    assert_eq!(sizes().map(|_| relay.line()).collect::<BTreeSet<_>>(), expected);

    let mut client = TcpStream::connect(relay.address).unwrap();
    client.write_all(b"under way").unwrap();
    let mut received = [0; 9];
    let mut connection = origin.join().unwrap();
    connection.read_exact(&mut received).unwrap();
    run(Command::new("sh").arg("-c").arg(format!("kill -TERM {}", relay.process.id())));
    assert_eq!(relay.line(), "9 bytes from the client, 0 bytes to it");
    assert!(client.read(&mut received).is_err(), "a broken tunnel must not look complete");
    assert!(relay.process.wait().unwrap().success());
}

#[test]
fn the_example_reports_errors() {
    for (port, host_port) in [("abc", "80"), ("99999999", "80"), ("-1", "80"), ("0", "65616")] {
        let output = relay(&[port, "127.0.0.1", host_port]).output().unwrap();
        let stdout = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && stdout.contains("invalid port"), "{port}: {stdout}");
    }
    // Port 1 (tcpmux) has no service.
    let mut relay = Relay::start(relay(&["0", "127.0.0.1", "1"]));
    let refused = "relay: cannot connect to 127.0.0.1:1: Connection refused";
    let mut client = TcpStream::connect(relay.address).unwrap();
    assert_eq!(relay.error_line(), refused);
    assert_eq!(relay.line(), "0 bytes from the client, 0 bytes to it");
    assert!(client.read(&mut [0]).is_err(), "a client that got no origin is reset");
    relay.allow_more_descriptors(1);
    let mut client = TcpStream::connect(relay.address).unwrap();
    assert_eq!(relay.error_line(), "relay: cannot connect to 127.0.0.1:1: Too many open files");
    assert!(client.read(&mut [0]).is_err(), "reset as well");
    relay.allow_more_descriptors(0);
    let _client = TcpStream::connect(relay.address).unwrap();
    let waits = "relay: cannot accept a client; trying again in a second: Too many open files";
    assert_eq!(relay.error_line(), waits);
    relay.allow_more_descriptors(2);
    assert_eq!(relay.error_line(), refused, "the waiting client is served");
}

fn library() -> Library {
    Library { header: Path::new(CRATE).join("include/mrsplice.h"), prefix: "mrsplice_" }
}

#[test]
fn structures_in_the_man_pages_match_the_header() {
    assert_eq!(library().assert_structures(), 4, "structures in the header");
}

#[test]
fn functions_are_exported_and_have_man_pages() {
    assert!(library().functions().contains("mrsplice_splice"));
    library().assert_functions(&libraries().join("libmrsplice.so"));
}

//! Tests of libuselect from C programs: compiled against the header, linked with the libraries that
//! cargo built for this test, and run with each backend.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod c;
#[path = "c/documented.rs"]
mod documented;
#[path = "c/served.rs"]
mod served;

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use c::{compile, run};
use documented::Library;
use served::{BACKENDS, options};

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// Returns the directory in which cargo puts the libraries of this package: that of its tests.
fn libraries() -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().unwrap().to_path_buf()
}

/// Compiles a program with the library that cargo built.
fn program(source: &str, name: &str) -> PathBuf {
    let (include, folder) = (format!("-I{CRATE}/include"), format!("-L{}", libraries().display()));
    let library = ["-l:libuselect_c.a", "-lpthread", "-ldl", "-lm"].map(str::to_owned);
    compile(source, name, &[&[include, folder], &library[..]].concat())
}

#[test]
fn functions_behave_as_documented() {
    let program = program("crates/uselect/uselect-c/tests/caller.c", "uselect-caller");
    for options in BACKENDS.iter().filter_map(|backend| options(backend)) {
        run(Command::new(&program).args(options));
    }
}

#[test]
fn epoll_functions_behave_as_documented() {
    let program = program("crates/uselect/uselect-c/tests/instances.c", "uselect-instances");
    for options in BACKENDS.iter().filter_map(|backend| options(backend)) {
        run(Command::new(&program).args(options));
    }
}

/// The echo server of the examples.
struct Echo {
    process: Child,
    output: BufReader<ChildStdout>,
    address: SocketAddr,
}

impl Echo {
    fn start(method: &str, options: &[String]) -> Self {
        static COMPILED: OnceLock<PathBuf> = OnceLock::new();
        let program = COMPILED.get_or_init(|| program("examples/uselect/echo.c", "uselect-echo"));
        let mut command = Command::new(program);
        let mut process = command.arg(method).args(options).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let line = line_of(&mut output);
        assert!(line.starts_with("backend: "), "{line}");
        let line = line_of(&mut output);
        let address = line.strip_prefix("listening at ").unwrap().parse().unwrap();
        Self { process, output, address }
    }

    /// Stops it, and returns the numbers of waits and of waits without a system call.
    fn end(mut self) -> (u64, u64) {
        run(Command::new("sh").arg("-c").arg(format!("kill -TERM {}", self.process.id())));
        let line = line_of(&mut self.output);
        assert!(self.process.wait().unwrap().success(), "{line}");
        let numbers: Vec<u64> = line.split(' ').filter_map(|word| word.parse().ok()).collect();
        (numbers[0], numbers[1])
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn line_of(output: &mut impl BufRead) -> String {
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    line.trim().to_owned()
}

/// Returns bytes that differ along the array, so that a lost or repeated part is noticed.
fn pattern(count: usize) -> Vec<u8> {
    (0..count as u64).map(|at| (at.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

/// Exchanges small and larger parts in turn, and then more bytes than the buffers of a connection
/// hold, so that the server must wait for send space.
fn exchange_bytes(address: SocketAddr, seed: usize) {
    let mut client = TcpStream::connect(address).unwrap();
    client.set_nodelay(true).unwrap();
    client.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let sent = pattern(100_000);
    let mut got = vec![0; sent.len()];
    for round in 0..200 {
        let count = [1, 100 + seed, 5_000 + round][round % 3];
        client.write_all(&sent[..count]).unwrap();
        client.read_exact(&mut got[..count]).unwrap();
        assert!(sent[..count] == got[..count]);
    }
    let (many, mut writer) = (40, client.try_clone().unwrap());
    let sending = sent.clone();
    let sender = thread::spawn(move || {
        (0..many).for_each(|_| writer.write_all(&sending).unwrap());
        writer.shutdown(Shutdown::Write).unwrap();
    });
    // The client reads nothing until the server's send buffer is full.
    thread::sleep(Duration::from_millis(30));
    for _ in 0..many {
        client.read_exact(&mut got).unwrap();
        assert!(sent == got);
    }
    sender.join().unwrap();
    assert_eq!(client.read(&mut got).unwrap(), 0, "the server closes after the client");
}

#[test]
fn a_server_waits_with_each_function_and_backend() {
    for options in BACKENDS.iter().filter_map(|backend| options(backend)) {
        for method in ["select", "poll", "level", "edge", "oneshot", "counted"] {
            let echo = Echo::start(method, &options);
            let address = echo.address;
            let clients: Vec<_> =
                (0..8).map(|seed| thread::spawn(move || exchange_bytes(address, seed))).collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
            let (waits, without_syscall) = echo.end();
            println!(
                "{method}, {}: {waits} waits, {without_syscall} without a system call",
                options[0]
            );
            let is_bpf = ["bpf", "lean"].contains(&options[0].as_str());
            assert_eq!(without_syscall > 0, is_bpf, "{method}, {options:?}");
        }
    }
}

fn library() -> Library {
    Library { header: Path::new(CRATE).join("include/uselect.h"), prefix: "u" }
}

#[test]
fn each_structure_is_documented() {
    assert_eq!(library().assert_structures(), 4, "structures in the header");
}

#[test]
fn each_function_is_exported_and_documented() {
    assert!(library().functions().contains("upselect"));
    library().assert_functions(&libraries().join("libuselect_c.so"));
}

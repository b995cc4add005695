//! The CPU time of passing bytes to another process through a connection or a pipe, by `iol_write`
//! and `iol_read` beside write(2) and read(2): `cargo bench -p iolited --bench streams`.

use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use iolite::service::FileClient;
use iolite::{Aggregate, UnsealedMemory};

const BYTES: usize = 1 << 20;
const COUNT: usize = 1000;
const ROUNDS: usize = 5;
/// The variables of the reading process.
const READS: &str = "IOLITED_BENCH_READS";
const SOCKET: &str = "IOLITED_BENCH_SOCKET";
/// The bytes that are moved first, so that both ends are paired.
const FIRST_BYTES: usize = 4 << 20;

fn main() {
    if let Some(way) = std::env::var_os(READS) {
        return read(way == "kernel");
    }
    let folder = std::env::temp_dir().join(format!("iolited-streams-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let socket = folder.join("socket");
    let daemon = Command::new(env!("CARGO_BIN_EXE_iolited")).arg("--socket").arg(&socket).spawn();
    let mut daemon = daemon.expect("the daemon starts");
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("microseconds of CPU time for 1 MB, both processes, median of {ROUNDS} rounds");
    println!("{:>8} {:>10} {:>10} {:>10} {:>10}", "", "write(2)", "sealed", "pool", "copied");
    for family in ["pipe", "unix", "tcp"] {
        let columns = [Way::Kernel, Way::Sealed, Way::Pool, Way::Copied].map(|way| {
            let mut times: Vec<f64> = (0..ROUNDS).map(|_| run(&socket, family, way)).collect();
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        let [kernel, sealed, pool, copied] = columns;
        println!("{family:>8} {kernel:>10.1} {sealed:>10.1} {pool:>10.1} {copied:>10.1}");
    }
    daemon.kill().expect("a signal");
    daemon.wait().expect("its end");
    std::fs::remove_dir_all(folder).expect("the folder");
}

/// The ways of passing bytes.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Kernel,
    /// The same sealed memory each time.
    Sealed,
    /// Memory that the reader reads where it is, filled each time.
    Pool,
    /// Private memory, filled each time.
    Copied,
}

fn connect(family: &str) -> (OwnedFd, OwnedFd) {
    match family {
        "pipe" => {
            let (from, to) = std::io::pipe().expect("a pipe");
            (from.into(), to.into())
        }
        "unix" => {
            let (one, other) = UnixStream::pair().expect("sockets");
            (one.into(), other.into())
        }
        _ => {
            let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
            let address = listener.local_addr().expect("an address");
            let one = TcpStream::connect(address).expect("a connection");
            (one.into(), listener.accept().expect("a connection").0.into())
        }
    }
}

/// Returns the microseconds of CPU time for each megabyte.
fn run(socket: &Path, family: &str, way: Way) -> f64 {
    let (from, to) = connect(family);
    let mut reader = Command::new(std::env::current_exe().expect("this program"));
    let reads = match way {
        Way::Kernel => "kernel",
        Way::Pool => "trusting",
        _ => "library",
    };
    reader.env(READS, reads).env(SOCKET, socket).stdin(from).stdout(Stdio::piped());
    let mut reader = reader.spawn().expect("this program");
    drop(reader.stdin.take());
    let client = FileClient::new(Some(socket)).expect("memory");
    write(&client, &to, way, FIRST_BYTES / BYTES);
    let time = |reader: &Child| {
        millrace_sys::cpu_time() + millrace_sys::cpu_time_of(reader.id()).expect("it runs")
    };
    let (begin, passed) = (time(&reader), client.stats().passed);
    write(&client, &to, way, COUNT);
    // The reader has read nearly all by then.
    let took = time(&reader) - begin;
    let passed = client.stats().passed - passed;
    assert!(way == Way::Kernel || passed > COUNT as u64 / 2, "{family}: {passed} were passed");
    drop(to);
    assert!(reader.wait().expect("its end").success());
    took.as_secs_f64() * 1e6 / COUNT as f64
}

fn write(client: &FileClient, to: &OwnedFd, way: Way, count: usize) {
    let bytes = vec![b'x'; BYTES];
    let mut memory = UnsealedMemory::new(BYTES).expect("memory");
    memory.write(&bytes);
    let sealed: Aggregate =
        memory.seal().expect("no mapping").into_slice().expect("a mapping").into();
    for number in 0..count {
        let mut rest = match way {
            Way::Sealed => sealed.clone(),
            Way::Kernel => {
                let mut part = &bytes[..];
                while !part.is_empty() {
                    let parts = [std::io::IoSlice::new(part)];
                    part = &part[millrace_sys::write_next(to.as_fd(), &parts).expect("written")..];
                }
                continue;
            }
            Way::Pool | Way::Copied => filled(client, to, number as u8),
        };
        while !rest.is_empty() {
            let count = client.write(to.as_fd(), &rest).expect("written");
            rest.skip(count);
        }
    }
}

/// Returns new memory for the reader, which is filled.
fn filled(client: &FileClient, to: &OwnedFd, byte: u8) -> Aggregate {
    let mut aggregate = Aggregate::new();
    while aggregate.len() < BYTES as u64 {
        let room = BYTES - aggregate.len() as usize;
        // All memory may be under way.
        let Ok(mut buffer) = client.allocate(to.as_fd(), room) else {
            std::thread::yield_now();
            continue;
        };
        let room = room.min(buffer.unfilled().len());
        buffer.unfilled()[..room].fill(byte);
        buffer.advance(room);
        aggregate.append(buffer.freeze());
    }
    aggregate
}

/// Reads the standard input to its end, one word of each page.
fn read(by_kernel: bool) {
    let input = std::io::stdin();
    let touch = |bytes: &[u8]| bytes.iter().step_by(4096).map(|byte| u64::from(*byte)).sum::<u64>();
    let mut sum = 0;
    if by_kernel {
        let mut bytes = vec![0; BYTES];
        loop {
            match millrace_sys::read_next(input.as_fd(), &mut bytes).expect("bytes") {
                0 => break,
                count => sum += touch(&bytes[..count]),
            }
        }
    } else {
        let socket = std::env::var_os(SOCKET).expect("the path");
        let client = FileClient::new(Some(Path::new(&socket))).expect("memory");
        if std::env::var_os(READS).is_some_and(|way| way == "trusting") {
            client.trust_user();
        }
        loop {
            let bytes = client.read(input.as_fd(), BYTES as u64).expect("bytes");
            if bytes.is_empty() {
                break;
            }
            sum += bytes.slices().map(|slice| touch(slice)).sum::<u64>();
        }
    }
    assert!(sum > 0, "the bytes were read");
}

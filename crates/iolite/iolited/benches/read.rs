//! The CPU time of `iol_read` beside read(2), for cached files: `cargo bench -p iolited --bench
//! read`. The daemon's time counts too. Then the same for many short files, which are opened each
//! time: alone, and with packs of a public folder.

use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use iolite::service::FileClient;

const SIZES_KB: [usize; 5] = [32, 64, 256, 1024, 4096];
const ROUNDS: u32 = 7;
/// The bytes that one round reads.
const BYTES_PER_ROUND: usize = 1 << 29;

fn main() {
    let folder = std::env::temp_dir().join(format!("iolited-bench-{}", std::process::id()));
    std::fs::create_dir(&folder).expect("a folder");
    let socket = folder.join("socket");
    let daemon = Command::new(env!("CARGO_BIN_EXE_iolited")).arg("--socket").arg(&socket).spawn();
    let mut daemon = daemon.expect("the daemon starts");
    while !socket.exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("microseconds of CPU time for each read, median of {ROUNDS} rounds");
    println!("{:>8} {:>10} {:>10} {:>10}", "KB", "read(2)", "iol_read", "first");
    for kilobytes in SIZES_KB {
        let bytes = vec![b'x'; kilobytes << 10];
        let path = folder.join("file");
        std::fs::write(&path, &bytes).expect("a file");
        let mut columns: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            let count = (BYTES_PER_ROUND / bytes.len()) as u32;
            columns[0].push(read_by_kernel(&path, bytes.len(), count));
            columns[1].push(read_again(&daemon, &socket, &path, count));
            columns[2].push(read_first(&daemon, &socket, &path, 200));
        }
        let [kernel, again, first] = columns.map(median);
        println!("{kilobytes:>8} {kernel:>10.2} {again:>10.2} {first:>10.2}");
    }
    daemon.kill().expect("a signal");
    daemon.wait().expect("its end");
    std::fs::remove_dir_all(folder).expect("the folder");
    compare_short_files();
}

const SHORT_FILES: u32 = 1000;
const SHORT_SIZES_KB: [usize; 4] = [4, 8, 16, 31];

fn compare_short_files() {
    println!("{:>8} {:>10} {:>10} {:>10}", "KB", "read(2)", "packs", "first");
    for kilobytes in SHORT_SIZES_KB {
        let name = format!("iolited-bench-{}-{kilobytes}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let public = folder.join("public");
        std::fs::create_dir_all(&public).expect("a folder");
        std::fs::set_permissions(&public, Permissions::from_mode(0o755)).expect("a mode");
        let paths: Vec<_> = (0..SHORT_FILES).map(|of| public.join(of.to_string())).collect();
        for path in &paths {
            std::fs::write(path, vec![b'x'; kilobytes << 10]).expect("a file");
            std::fs::set_permissions(path, Permissions::from_mode(0o644)).expect("a mode");
        }
        let socket = folder.join("socket");
        let mut command = Command::new(env!("CARGO_BIN_EXE_iolited"));
        command.arg("--socket").arg(&socket).arg("--public").arg(&public);
        let mut daemon = command.spawn().expect("the daemon starts");
        while !socket.exists() {
            std::thread::sleep(Duration::from_millis(1));
        }
        // Their times are settled.
        std::thread::sleep(Duration::from_millis(50));
        let mut columns: [Vec<f64>; 3] = Default::default();
        for _ in 0..ROUNDS {
            columns[0].push(read_short(None, &paths, |file| {
                let mut buffer = vec![0; kilobytes << 10];
                file.read_exact_at(&mut buffer, 0).expect("bytes");
                touch(&buffer)
            }));
            let client = client(&socket);
            let read = |file: &File| {
                let bytes = client.read_at(file.as_fd(), 0, 1 << 30).expect("bytes");
                bytes.slices().map(|slice| touch(slice)).sum()
            };
            columns[2].push(read_short(Some(&daemon), &paths, read));
            let copied = client.stats().copied;
            columns[1].push(read_short(Some(&daemon), &paths, read));
            assert_eq!(client.stats().copied, copied, "all files are in packs");
        }
        let [kernel, packs, first] = columns.map(median);
        println!("{kilobytes:>8} {kernel:>10.2} {packs:>10.2} {first:>10.2}");
        daemon.kill().expect("a signal");
        daemon.wait().expect("its end");
        std::fs::remove_dir_all(folder).expect("the folder");
    }
}

/// Opens and reads each file. Returns the microseconds for one.
fn read_short(daemon: Option<&Child>, paths: &[PathBuf], read: impl Fn(&File) -> u64) -> f64 {
    let all = || paths.iter().map(|path| read(&File::open(path).expect("the file"))).sum();
    timed(daemon, 1, all) / f64::from(SHORT_FILES)
}

fn median(mut column: Vec<f64>) -> f64 {
    column.sort_by(f64::total_cmp);
    column[column.len() / 2]
}

/// Calls read(2) into the same buffer.
fn read_by_kernel(path: &Path, length: usize, count: u32) -> f64 {
    let (file, mut buffer) = (File::open(path).expect("the file"), vec![0; length]);
    timed(None, count, || {
        file.read_exact_at(&mut buffer, 0).expect("bytes");
        touch(&buffer)
    })
}

/// Reads a file that the process has read before.
fn read_again(daemon: &Child, socket: &Path, path: &Path, count: u32) -> f64 {
    let (file, client) = (File::open(path).expect("the file"), client(socket));
    let read = || {
        let bytes = client.read_at(file.as_fd(), 0, 1 << 30).expect("bytes");
        bytes.slices().map(|slice| touch(slice)).sum()
    };
    read();
    let time = timed(Some(daemon), count, read);
    assert_eq!(client.stats().copied, 0, "the daemon serves it");
    time
}

/// Reads a cached file with a new client: connects, and maps the memory.
fn read_first(daemon: &Child, socket: &Path, path: &Path, count: u32) -> f64 {
    let file = File::open(path).expect("the file");
    timed(Some(daemon), count, || {
        let client = client(socket);
        let bytes = client.read_at(file.as_fd(), 0, 1 << 30).expect("bytes");
        assert_eq!(client.stats().copied, 0, "the daemon serves it");
        bytes.slices().map(|slice| touch(slice)).sum()
    })
}

fn client(socket: &Path) -> FileClient {
    FileClient::new(Some(socket)).expect("memory")
}

/// Reads one word of each page.
fn touch(bytes: &[u8]) -> u64 {
    bytes.iter().step_by(4096).map(|byte| u64::from(*byte)).sum()
}

/// Returns the microseconds of CPU time that a call takes, here and in the daemon.
fn timed(daemon: Option<&Child>, count: u32, mut call: impl FnMut() -> u64) -> f64 {
    let time_of = |process: &Child| millrace_sys::cpu_time_of(process.id()).expect("it runs");
    let now = || millrace_sys::cpu_time() + daemon.map_or(Duration::ZERO, time_of);
    let (begin, mut sum) = (now(), 0);
    for _ in 0..count {
        sum += call();
    }
    assert!(sum > 0, "the bytes were read");
    (now() - begin).as_secs_f64() * 1e6 / f64::from(count)
}

//! Bandwidth between two processes. Run `cargo bench -p iolite --bench ipc`, optionally followed by
//! `--` and names of ways ([`Way`]), sizes in KB, `all-bytes`, and `csv`.
//!
//! A producer fills buffers and passes them to a consumer, which reads them: one word of each page,
//! as in the paper, or all bytes with `all-bytes`. Both wait by futex(2), or by the socket; neither
//! spins. Each figure is the median of [`ROUNDS`] rounds, in which the ways alternate: the time of
//! one buffer, and the CPU time of both processes for it. With `csv`, each round is a line instead.
//! If PBICEORYX2 names the program peers/tools/iceoryx2, it is one of the ways.
//! docs/design/pools.md has a run.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use iolite::limits::{BLOCK_BYTES, SLAB_BYTES_MIN};
use iolite::{Channel, ChannelOptions, MemoryKind, Pool, Slab, UnsealedMemory, channel_sockets};
use millrace_sys::MappedFile;

const ROUNDS: usize = 5;
const PAGE: usize = 4096;
/// Buffers under way at a time, in each way that has a limit of its own.
const DEPTH: usize = 8;
/// Bytes that are passed in one round, at least [`BUFFERS_MIN`] buffers, or more if none is copied
/// or created anew.
const ROUND_BYTES: usize = 1 << 30;
const BUFFERS_MIN: usize = 2_000;
const SHARED_BUFFERS: usize = 50_000;

/// A way to pass a buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// A Unix stream socket: two copies.
    Unix,
    /// TCP on the loopback interface.
    Inet,
    /// A ring of buffers that both processes can write to: the least that shared memory costs.
    BareRing,
    /// A pool, and a channel with a ring.
    Pool,
    /// A pool, and a channel that uses its socket only.
    PoolBySocket,
    /// A channel that copies into its ring.
    Copied,
    /// A sealed file for each buffer.
    Sealed,
    /// The same sealed file each time.
    SealedAgain,
    /// iceoryx2, by a program of its own.
    Iceoryx2,
}

const WAYS: [(Way, &str); 9] = [
    (Way::Unix, "unix"),
    (Way::Inet, "inet"),
    (Way::BareRing, "bare-ring"),
    (Way::Pool, "pool"),
    (Way::PoolBySocket, "pool-by-socket"),
    (Way::Copied, "copied"),
    (Way::Sealed, "sealed"),
    (Way::SealedAgain, "sealed-again"),
    (Way::Iceoryx2, "iceoryx2"),
];
const ICEORYX2: &str = "PBICEORYX2";

impl Way {
    fn name(self) -> &'static str {
        WAYS.iter().find(|(of, _)| *of == self).expect("each way has a name").1
    }
}

#[derive(Clone, Copy, Debug)]
struct Case {
    way: Way,
    bytes: usize,
    count: usize,
    all_bytes: bool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|of| of != "--bench").collect();
    let all_bytes = arguments.iter().any(|of| of == "all-bytes");
    if let [first, rest @ ..] = &arguments[..]
        && first == "produce"
    {
        return produce_as_child(rest);
    }
    let way_of = |name: &String| WAYS.iter().find(|(_, of)| of == name).map(|(way, _)| *way);
    let mut ways: Vec<Way> = arguments.iter().filter_map(way_of).collect();
    if ways.is_empty() {
        let has_iceoryx2 = std::env::var_os(ICEORYX2).is_some();
        let all = WAYS.iter().map(|(way, _)| *way);
        ways = all.filter(|way| has_iceoryx2 || *way != Way::Iceoryx2).collect();
    }
    let is_csv = arguments.iter().any(|of| of == "csv");
    let mut sizes: Vec<usize> = arguments.iter().filter_map(|of| of.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![4, 16, 64, 256, 1024];
    }
    if is_csv {
        println!("way,bytes,round,us,cpu_us");
    } else {
        println!("{:<6} {:<16} {:>10} {:>10} {:>12}", "KB", "way", "us", "CPU us", "unix/this");
    }
    for size in sizes {
        let bytes = size * 1024;
        let count_of = |way: Way| match way {
            Way::Unix | Way::Inet | Way::Copied | Way::Sealed => {
                (ROUND_BYTES / bytes).clamp(BUFFERS_MIN, SHARED_BUFFERS)
            }
            _ => SHARED_BUFFERS,
        };
        let mut figures: Vec<Vec<[f64; 2]>> = vec![Vec::new(); ways.len()];
        for round in 0..ROUNDS {
            for (way, figures) in ways.iter().zip(&mut figures) {
                let case = Case { way: *way, bytes, count: count_of(*way), all_bytes };
                let [time, cpu] = measure(case);
                if is_csv {
                    println!("{},{bytes},{round},{time:.4},{cpu:.4}", way.name());
                }
                figures.push([time, cpu]);
            }
        }
        if is_csv {
            continue;
        }
        let medians: Vec<[f64; 2]> = figures.iter_mut().map(|of| median(of)).collect();
        let unix = ways.iter().position(|way| *way == Way::Unix).map(|at| medians[at][0]);
        for (way, [time, cpu]) in ways.iter().zip(&medians) {
            let ratio = unix.map_or(f64::NAN, |unix| unix / time);
            println!("{size:<6} {:<16} {time:>10.2} {cpu:>10.2} {ratio:>12.2}", way.name());
        }
    }
}

fn median(figures: &mut [[f64; 2]]) -> [f64; 2] {
    let mut of = |at: usize| {
        figures.sort_by(|one, other| one[at].total_cmp(&other[at]));
        figures[figures.len() / 2][at]
    };
    [of(0), of(1)]
}

/// Returns the time of one buffer, and the CPU time of both processes for it, in microseconds.
fn measure(case: Case) -> [f64; 2] {
    if case.way == Way::Iceoryx2 {
        return measure_iceoryx2(case);
    }
    let (here, there) = match case.way {
        Way::Unix | Way::BareRing => {
            let (here, there) = UnixStream::pair().expect("sockets");
            (OwnedFd::from(here), OwnedFd::from(there))
        }
        Way::Inet => inet_sockets(),
        _ => channel_sockets().expect("sockets"),
    };
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .arg("produce")
        .arg(case.way.name())
        .args([case.bytes.to_string(), case.count.to_string(), case.all_bytes.to_string()])
        .stdin(Stdio::from(there))
        .stdout(Stdio::piped())
        .spawn()
        .expect("this program");
    let cpu_before = millrace_sys::cpu_time();
    let time = match case.way {
        Way::Unix | Way::Inet => consume_stream(here, case),
        Way::BareRing => consume_ring(here, case),
        _ => consume_channel(here, case),
    };
    let cpu = millrace_sys::cpu_time() - cpu_before;
    let mut output = String::new();
    let stdout = child.stdout.as_mut().expect("it is a pipe");
    stdout.read_to_string(&mut output).expect("the producer prints its CPU time");
    assert!(child.wait().expect("it was started").success());
    let produced: f64 = output.trim().parse().expect("a number");
    let count = case.count as f64;
    [time.as_secs_f64() * 1e6 / count, (cpu.as_secs_f64() + produced) * 1e6 / count]
}

fn inet_sockets() -> (OwnedFd, OwnedFd) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let there = TcpStream::connect(listener.local_addr().expect("an address")).expect("a listener");
    let (here, _) = listener.accept().expect("a connection");
    (here.into(), there.into())
}

/// Returns what the program prints.
fn measure_iceoryx2(case: Case) -> [f64; 2] {
    let program = std::env::var_os(ICEORYX2).expect("PBICEORYX2 names the program");
    let touched = if case.all_bytes { "ALL" } else { "ONE_WORD" };
    let output = Command::new(program)
        .args([case.bytes.to_string(), case.count.to_string(), touched.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("the program starts");
    let text = String::from_utf8(output.stdout).expect("text");
    let numbers: Vec<f64> = text.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    <[f64; 2]>::try_from(numbers).unwrap_or_else(|_| panic!("{}: {text}", output.status))
}

fn produce_as_child(arguments: &[String]) {
    let [name, bytes, count, all_bytes] = arguments else { panic!("{arguments:?}") };
    let way = WAYS.iter().find(|(_, of)| of == name).expect("a way").0;
    let number = |text: &String| text.parse().expect("a number");
    let case =
        Case { way, bytes: number(bytes), count: number(count), all_bytes: all_bytes == "true" };
    let socket = std::io::stdin().as_fd().try_clone_to_owned().expect("a socket");
    match way {
        Way::Unix | Way::Inet => produce_stream(socket, case),
        Way::BareRing => produce_ring(socket, case),
        _ => produce_channel(socket, case),
    }
    println!("{}", millrace_sys::cpu_time().as_secs_f64());
}

/// Writes one word of each page, or all bytes.
fn fill(bytes: &mut [u8], case: Case, number: usize) {
    if case.all_bytes {
        bytes.fill(number as u8);
    } else {
        bytes.iter_mut().step_by(PAGE).for_each(|byte| *byte = number as u8);
    }
}

fn check(bytes: &[u8], case: Case, number: usize) {
    let is_right = if case.all_bytes {
        bytes.iter().fold(0_u8, |all, byte| all | (byte ^ number as u8)) == 0
    } else {
        bytes.iter().step_by(PAGE).all(|byte| *byte == number as u8)
    };
    assert!(is_right, "buffer {number}");
}

fn produce_stream(socket: OwnedFd, case: Case) {
    let mut socket = File::from(socket);
    let mut bytes = vec![0; case.bytes];
    for number in 0..case.count {
        fill(&mut bytes, case, number);
        socket.write_all(&bytes).expect("the consumer reads");
    }
}

fn consume_stream(socket: OwnedFd, case: Case) -> Duration {
    let mut socket = File::from(socket);
    let mut bytes = vec![0; case.bytes];
    let mut begin = Instant::now();
    for number in 0..case.count {
        socket.read_exact(&mut bytes).expect("the producer writes");
        check(&bytes, case, number);
        if number == 0 {
            begin = Instant::now();
        }
    }
    begin.elapsed()
}

/// A ring of [`DEPTH`] buffers. Word 0: the buffers that were produced; word 8: those that were
/// consumed; words 16 and 24: whether the other side waits for these.
struct BareRing {
    mapping: MappedFile,
    bytes: usize,
}

impl BareRing {
    fn new(file: &OwnedFd, bytes: usize) -> Self {
        let mapping = MappedFile::populated(file.as_fd(), Self::file_bytes(bytes) as usize);
        Self { mapping: mapping.expect("a mapping"), bytes }
    }

    /// Whole huge pages, as in a pool.
    fn file_bytes(bytes: usize) -> u64 {
        (PAGE + DEPTH * bytes).next_multiple_of(BLOCK_BYTES) as u64
    }

    fn word<T>(&self, index: usize) -> &T {
        assert!(index < 64);
        // SAFETY: the word is in the first page.
        let word = unsafe { self.mapping.start().cast::<AtomicU64>().add(index) };
        // SAFETY: all accesses to it are atomic.
        unsafe { word.cast().as_ref() }
    }

    fn buffer(&self, number: usize) -> *mut u8 {
        // SAFETY: the buffer is in the mapping.
        unsafe { self.mapping.start().as_ptr().add(PAGE + number % DEPTH * self.bytes) }
    }

    /// Waits until a word is not `value` any more.
    fn wait(&self, word: usize, waits: usize, value: u32) -> u32 {
        let (word, waits): (&AtomicU32, &AtomicU32) = (self.word(word), self.word(waits));
        loop {
            let found = word.load(Ordering::SeqCst);
            if found != value {
                return found;
            }
            waits.store(1, Ordering::SeqCst);
            if word.load(Ordering::SeqCst) == value {
                millrace_sys::futex_wait(word, value, Duration::from_millis(100)).expect("mapped");
            }
            waits.store(0, Ordering::SeqCst);
        }
    }

    fn publish(&self, word: usize, waits: usize, value: u32) {
        let (word, waits): (&AtomicU32, &AtomicU32) = (self.word(word), self.word(waits));
        word.store(value, Ordering::SeqCst);
        if waits.load(Ordering::SeqCst) != 0 {
            millrace_sys::futex_wake(word).expect("mapped");
        }
    }
}

fn produce_ring(socket: OwnedFd, case: Case) {
    let file = millrace_sys::create_memory_file("bench", BareRing::file_bytes(case.bytes));
    let file = file.expect("memory");
    millrace_sys::send_with_descriptors(socket.as_fd(), b"r", &[file.as_fd()]).expect("sent");
    let ring = BareRing::new(&file, case.bytes);
    let mut consumed = 0;
    for number in 0..case.count {
        while number - consumed as usize == DEPTH {
            consumed = ring.wait(8, 24, consumed);
        }
        // SAFETY: the consumer does not read this buffer before it is published.
        let bytes = unsafe { std::slice::from_raw_parts_mut(ring.buffer(number), case.bytes) };
        fill(bytes, case, number);
        ring.publish(0, 16, number as u32 + 1);
    }
}

fn consume_ring(socket: OwnedFd, case: Case) -> Duration {
    let mut files = Vec::new();
    millrace_sys::receive_with_descriptors(socket.as_fd(), &mut [0], &mut files).expect("a file");
    let ring = BareRing::new(&files[0], case.bytes);
    let (mut produced, mut begin) = (0, Instant::now());
    for number in 0..case.count {
        if number == produced as usize {
            produced = ring.wait(0, 16, produced);
        }
        // SAFETY: the producer does not write to this buffer before it is consumed.
        let bytes = unsafe { std::slice::from_raw_parts(ring.buffer(number), case.bytes) };
        check(bytes, case, number);
        ring.publish(8, 24, number as u32 + 1);
        if number == 0 {
            begin = Instant::now();
        }
    }
    begin.elapsed()
}

fn options(case: Case) -> ChannelOptions {
    let slab = Slab::on_heap(SLAB_BYTES_MIN.max(8 * case.bytes)).expect("the size is allowed");
    let ring_frames = match case.way {
        Way::PoolBySocket => 0,
        Way::Copied => 512,
        _ => DEPTH,
    };
    ChannelOptions {
        ring_frames,
        ring_bytes: 1 << 20,
        joins_pools: true,
        copied_max: if case.way == Way::Copied { usize::MAX } else { 0 },
        in_flight_max: (DEPTH * case.bytes) as u64,
        ..ChannelOptions::new(slab)
    }
}

fn produce_channel(socket: OwnedFd, case: Case) {
    let mut channel = Channel::new(socket, options(case)).expect("a channel");
    if case.way == Way::Copied {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("the size is allowed");
        for number in 0..case.count {
            let buffer = slab.allocate(MemoryKind::ZeroCopy, case.bytes..=case.bytes, 0);
            let mut buffer = buffer.expect("the last one was dropped");
            fill(&mut buffer.unfilled()[..case.bytes], case, number);
            buffer.advance(case.bytes);
            channel.send(&buffer.freeze().into()).expect("the consumer is there");
        }
    } else if matches!(case.way, Way::Pool | Way::PoolBySocket) {
        let bytes = (32 << 20).max(4 * DEPTH * case.bytes);
        let pool = Pool::new(bytes, u64::MAX, &mut [&mut channel]).expect("a pool");
        for number in 0..case.count {
            let mut buffer = pool.allocate(case.bytes..=case.bytes).expect("there is room");
            fill(&mut buffer.unfilled()[..case.bytes], case, number);
            buffer.advance(case.bytes);
            channel.send(&buffer.freeze().into()).expect("the consumer is there");
        }
    } else {
        let make = |number| {
            let mut memory = UnsealedMemory::new(case.bytes).expect("memory");
            fill(memory.unfilled(), case, number);
            memory.advance(case.bytes);
            memory.seal().expect("no other mapping").into_slice().expect("a mapping")
        };
        let same = make(0);
        for number in 0..case.count {
            let slice = if case.way == Way::Sealed { make(number) } else { same.clone() };
            channel.send(&slice.into()).expect("the consumer is there");
        }
    }
    channel.close().expect("the consumer is there");
}

fn consume_channel(socket: OwnedFd, case: Case) -> Duration {
    let mut channel = Channel::new(socket, options(case)).expect("a channel");
    let mut begin = Instant::now();
    for number in 0..case.count {
        let aggregate = channel.receive().expect("the producer is there").expect("a buffer");
        let number = if case.way == Way::SealedAgain { 0 } else { number };
        // Slices of copies are whole pages, except the last one.
        aggregate.slices().for_each(|slice| check(slice, case, number));
        assert_eq!(aggregate.len(), case.bytes as u64);
        if number == 0 && case.way != Way::SealedAgain {
            begin = Instant::now();
        }
    }
    begin.elapsed()
}

//! The profiler beside /proc, and its cost: `cargo bench -p millrace-lab --bench profile`.
#![allow(clippy::unwrap_used, reason = "a failure ends the benchmark")]

use std::fs::{File, read_to_string};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::net::UdpSocket;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio, id};
use std::thread;
use std::time::{Duration, Instant};

use millrace_lab::profile::{Owner, Part, Profile, Profiler, Selection};
use millrace_sys::thread_cpu_time;

/// The time of one comparison with /proc, whose clock has ticks of 10 ms.
const COMPARED: Duration = Duration::from_secs(10);
/// The operations of one round of the cost, and the CPU time between two of them: 20,000 a second.
const OPERATIONS: usize = 10_000;
const PERIOD: Duration = Duration::from_micros(50);
/// The rounds of the cost, each with the profiler and without.
const ROUNDS: usize = 41;

fn main() {
    if std::env::args().nth(1).as_deref() == Some("load") {
        return run_load(&std::env::args().nth(2).unwrap());
    }
    print!("{}", read_to_string("/proc/loadavg").unwrap());
    compare("user");
    compare("system");
    let mut buffer = [0; 1];
    let zero = File::open("/dev/zero").unwrap();
    measure_cost("one pair: a system call", || _ = zero.read_at(&mut buffer[..0], 0).unwrap());
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(receiver.local_addr().unwrap()).unwrap();
    // When the buffer of the receiver is full, the softirq drops the datagram.
    measure_cost("two pairs: a datagram by loopback, with its softirq", || {
        _ = sender.send(b"datagram").unwrap()
    });
    print!("{}", read_to_string("/proc/loadavg").unwrap());
}

/// Prints the parts of a load beside the figures of /proc.
fn compare(load: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["load", load]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut process = command.spawn().unwrap();
    let mut output = BufReader::new(process.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    let profiler = Profiler::start(&Selection::Process(process.id())).unwrap();
    let mut input = process.stdin.take().unwrap();
    input.write_all(b"\n").unwrap();
    line.clear();
    output.read_line(&mut line).unwrap();
    let profile = profiler.stop().unwrap();
    drop(input);
    process.wait().unwrap();
    let ticks: Vec<f64> = line.split_whitespace().map(|word| word.parse().unwrap()).collect();
    let selected = |part| profile.time(Owner::Selected, part).as_secs_f64();
    let kernel = selected(Part::Kernel) + selected(Part::SocketWrite);
    let (user, utime, stime) = (selected(Part::User), ticks[0] / 100.0, ticks[1] / 100.0);
    println!(
        "{load} load: user {user:.3} s, utime {utime:.3} s; kernel {kernel:.3} s, stime {stime:.3} s"
    );
    let (measured, counted) = if load == "user" { (user, utime) } else { (kernel, stime) };
    println!("  difference {:+.3} %", (measured / counted - 1.0) * 100.0);
    print_sum(&profile);
}

fn print_sum(profile: &Profile) {
    let whole = profile.duration.as_secs_f64() * profile.cpus as f64;
    let difference = (profile.sum().as_secs_f64() / whole - 1.0) * 100.0;
    println!("  sum of the parts {difference:+.5} % from the time of {} CPUs", profile.cpus);
}

/// The process of [`compare`]. Prints the ticks in user and kernel mode that its load has taken.
fn run_load(load: &str) {
    println!("ready");
    stdin().read_exact(&mut [0]).unwrap();
    let before = ticks();
    let begun = Instant::now();
    let (zero, mut buffer) = (File::open("/dev/zero").unwrap(), vec![0; 1 << 20]);
    while begun.elapsed() < COMPARED {
        if load == "user" {
            work(10_000);
        } else {
            zero.read_at(&mut buffer, 0).unwrap();
        }
    }
    let after = ticks();
    println!("{} {}", after[0] - before[0], after[1] - before[1]);
    stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Returns utime and stime of proc_pid_stat(5), in ticks.
fn ticks() -> [u64; 2] {
    let stat = read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    [fields[11], fields[12]].map(|field| field.parse().unwrap())
}

fn work(count: u32) {
    let mut value = black_box(1_u64);
    for _ in 0..count {
        value = value.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    }
    black_box(value);
}

/// Prints the CPU time that the profiler adds to a thread that does an operation 20,000 times in
/// each second of CPU time.
fn measure_cost(name: &str, mut operation: impl FnMut()) {
    let mut round = |count: u32| {
        let before = thread_cpu_time();
        for _ in 0..OPERATIONS {
            work(count);
            operation();
        }
        thread_cpu_time() - before
    };
    // Fills the period with work.
    let mut count = 10_000;
    for _ in 0..4 {
        let time = round(count).as_secs_f64() / OPERATIONS as f64;
        let operation_time = round(0).as_secs_f64() / OPERATIONS as f64;
        let rest = (PERIOD.as_secs_f64() - operation_time).max(0.0);
        count = (f64::from(count) * rest / (time - operation_time)) as u32;
    }
    let (mut costs, mut bare) = (Vec::new(), Vec::new());
    for number in 0..ROUNDS * 2 {
        // The order changes from pair to pair.
        let is_profiled = (number / 2 + number) % 2 == 0;
        let profiler = is_profiled.then(|| Profiler::start(&Selection::Process(id())).unwrap());
        thread::sleep(Duration::from_millis(50));
        let time = round(count).as_secs_f64();
        if let Some(profiler) = profiler {
            profiler.stop().unwrap();
            costs.push(time);
        } else {
            bare.push(time);
        }
    }
    let mut added: Vec<f64> =
        costs.iter().zip(&bare).map(|(with, without)| with / without - 1.0).collect();
    added.sort_by(f64::total_cmp);
    bare.sort_by(f64::total_cmp);
    let per_second = OPERATIONS as f64 / bare[ROUNDS / 2];
    let at = |part: usize| added[(ROUNDS - 1) * part / 4] * 100.0;
    println!("cost, {name}; {per_second:.0} in a second of CPU time");
    println!("  median {:+.3} %, quartiles {:+.3} % and {:+.3} %", at(2), at(1), at(3));
    println!("  {:.0} ns for each", at(2) / 100.0 / per_second * 1e9);
}

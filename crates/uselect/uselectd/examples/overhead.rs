//! `overhead [ROUNDS]`: measures what a registered process costs the sends and receives of another
//! process.
//!
//! One thread on one core sends a byte back and forth over loopback, by sockets that are not
//! tracked. The cases are: no client; a client in lean mode; a client in exact mode; a client in
//! exact mode in the cgroup of this process. Each round measures all cases, in another order. The
//! overhead of a case is its time for a send and a receive, less that of the same round without a
//! client. The status is 1 if the median overhead of a case is above 120 ns. Needs root and an
//! otherwise idle machine.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use uselect::{CHALLENGE_BYTES, REQUEST_MAGIC, RegistrationReply, TrackingMode};
use uselectd::{AccessPolicy, Daemon};

/// The largest allowed overhead of a send and a receive.
const OVERHEAD_MAX_NS: f64 = 120.0;
const ROUNDS: usize = 30;
/// Batches of a case in a round. The result is their median, which an interrupted batch does not
/// change.
const BATCHES: usize = 60;
/// Pairs of a send and a receive in a batch.
const PAIRS: u32 = 1000;

/// The client that is registered during a measurement. Without a `mode` there is none.
struct Case {
    name: &'static str,
    mode: Option<TrackingMode>,
    /// The client is in the cgroup of this process.
    shares_cgroup: bool,
}

const CASES: [Case; 4] = [
    Case { name: "no client", mode: None, shares_cgroup: false },
    Case { name: "lean", mode: Some(TrackingMode::Lean), shares_cgroup: false },
    Case { name: "exact", mode: Some(TrackingMode::Exact), shares_cgroup: false },
    Case { name: "exact, same cgroup", mode: Some(TrackingMode::Exact), shares_cgroup: true },
];

fn main() -> io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [word, socket, mode, cgroup] if word == "client" => {
            client(socket, mode, cgroup).map(|()| ExitCode::SUCCESS)
        }
        [] => compare(ROUNDS),
        [rounds] => compare(rounds.parse().map_err(io::Error::other)?),
        _ => Err(io::Error::other("overhead [ROUNDS]")),
    }
}

/// Runs the client process: registers like the library and waits for the end of its input.
fn client(socket: &str, mode: &str, cgroup: &str) -> io::Result<()> {
    if !cgroup.is_empty() {
        std::fs::write(Path::new(cgroup).join("cgroup.procs"), "0")?;
    }
    let mut connection = UnixStream::connect(socket)?;
    let mode = if mode == "lean" { TrackingMode::Lean } else { TrackingMode::Exact };
    let mut reply = [0];
    connection.read_exact(&mut reply)?;
    if reply[0] == RegistrationReply::Challenge as u8 {
        let mut challenge = [0; CHALLENGE_BYTES];
        connection.read_exact(&mut challenge)?;
        connection.write_all(&[&REQUEST_MAGIC[..], &[mode as u8], &challenge].concat())?;
        connection.read_exact(&mut reply)?;
    }
    if reply[0] != RegistrationReply::Granted as u8 {
        return Err(io::Error::other(format!("refused: {}", reply[0])));
    }
    println!("registered");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn compare(rounds: usize) -> io::Result<ExitCode> {
    let socket = std::env::temp_dir().join(format!("uselect-overhead-{}", std::process::id()));
    let mut daemon = Daemon::new(&socket, AccessPolicy::default()).map_err(io::Error::other)?;
    // The kernel removes its links and maps when the process ends.
    std::thread::spawn(move || daemon.run(None));
    let cgroup = child_cgroup()?;
    std::fs::create_dir(&cgroup)?;
    let measured = measure(rounds, &socket, &cgroup);
    std::fs::remove_dir(&cgroup)?;
    std::fs::remove_file(&socket)?;
    Ok(report(&mut measured?))
}

/// Returns the path of a cgroup below that of this process.
fn child_cgroup() -> io::Result<PathBuf> {
    let (own, mounts) = (
        std::fs::read_to_string("/proc/self/cgroup")?,
        std::fs::read_to_string("/proc/self/mountinfo")?,
    );
    let own = own.lines().find_map(|line| line.strip_prefix("0::/"));
    let mount = mounts.lines().find(|line| line.contains(" - cgroup2 "));
    let mount = mount.and_then(|line| line.split(' ').nth(4));
    let (Some(own), Some(mount)) = (own, mount) else {
        return Err(io::Error::other("no cgroup v2 is mounted"));
    };
    Ok(Path::new(mount).join(own).join(format!("uselect-overhead-{}", std::process::id())))
}

/// Returns for each case the time of a send and a receive in each round, in nanoseconds.
fn measure(rounds: usize, socket: &Path, cgroup: &Path) -> io::Result<[Vec<f64>; CASES.len()]> {
    let mut core = CpuSet::new();
    core.set(std::thread::available_parallelism()?.get() - 1);
    sched_setaffinity(None, &core)?;
    let (mut one, mut other) = pair()?;
    let mut measured = [const { Vec::new() }; CASES.len()];
    for round in 0..rounds {
        for at in 0..CASES.len() {
            let at = (at + round) % CASES.len();
            let Case { mode, shares_cgroup, .. } = &CASES[at];
            let cgroup = if *shares_cgroup { Path::new("") } else { cgroup };
            wait_until_idle()?;
            let registered = mode.map(|mode| register(socket, mode, cgroup)).transpose()?;
            // The first batch warms up.
            run_batch(&mut one, &mut other)?;
            let mut batches = [0.0; BATCHES];
            for batch in &mut batches {
                *batch = run_batch(&mut one, &mut other)?;
            }
            measured[at].push(median(&mut batches));
            if let Some(mut registered) = registered {
                drop(registered.stdin.take());
                registered.wait()?;
            }
        }
    }
    Ok(measured)
}

fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let one = TcpStream::connect(listener.local_addr()?)?;
    let (other, _) = listener.accept()?;
    one.set_nodelay(true)?;
    other.set_nodelay(true)?;
    Ok((one, other))
}

fn register(socket: &Path, mode: TrackingMode, cgroup: &Path) -> io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("client").arg(socket).arg(if mode == TrackingMode::Lean {
        "lean"
    } else {
        "exact"
    });
    let mut client = command.arg(cgroup).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let line =
        BufReader::new(client.stdout.take().expect("standard output is piped")).lines().next();
    match line.transpose()? {
        Some(_) => Ok(client),
        None => Err(io::Error::other(format!("the client has ended: {}", client.wait()?))),
    }
}

/// Waits until no process of the machine has a BPF link. Programs that this process, as the daemon,
/// or another daemon has attached would be measured too.
fn wait_until_idle() -> io::Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while let Some(path) = find_link()? {
        if Instant::now() > end {
            let path = path.display();
            return Err(io::Error::other(format!("a program is attached, see {path}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

/// Returns a file in /proc that shows a BPF link, if there is one.
fn find_link() -> io::Result<Option<PathBuf>> {
    for process in std::fs::read_dir("/proc")? {
        // Some entries are no processes, and processes may end meanwhile.
        let Ok(infos) = std::fs::read_dir(process?.path().join("fdinfo")) else { continue };
        let is_link = |path: &PathBuf| {
            std::fs::read_to_string(path).is_ok_and(|info| info.contains("link_type:"))
        };
        if let Some(path) = infos.flatten().map(|entry| entry.path()).find(is_link) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Runs a batch and returns the mean CPU time of a send and a receive in nanoseconds. Over loopback
/// the softirqs of the receiving side run in the sends of this thread. If the kernel accounts for
/// softirqs separately (CONFIG_IRQ_TIME_ACCOUNTING), the result includes neither them nor the
/// program that runs in them.
fn run_batch(one: &mut TcpStream, other: &mut TcpStream) -> io::Result<f64> {
    let mut byte = [0];
    let begin = clock_gettime(ClockId::ThreadCPUTime);
    for _ in 0..PAIRS / 2 {
        one.write_all(&byte)?;
        other.read_exact(&mut byte)?;
        other.write_all(&byte)?;
        one.read_exact(&mut byte)?;
    }
    let elapsed = clock_gettime(ClockId::ThreadCPUTime) - begin;
    Ok((elapsed.tv_sec as f64 * 1e9 + elapsed.tv_nsec as f64) / f64::from(PAIRS))
}

/// Prints a row for each case, with the quartiles. Returns failure if the median overhead of a
/// case is above the limit.
fn report(measured: &mut [Vec<f64>; CASES.len()]) -> ExitCode {
    let without_client = measured[0].clone();
    println!("{:<20} {:>18}   {:>18}", "registered", "ns per send+recv", "overhead");
    let mut is_met = true;
    for (case, times) in CASES.iter().zip(measured) {
        let mut overhead: Vec<f64> =
            times.iter().zip(&without_client).map(|(time, base)| time - base).collect();
        println!("{:<20} {:>18}   {:>18}", case.name, spread(times), spread(&mut overhead));
        is_met &= median(&mut overhead) <= OVERHEAD_MAX_NS;
    }
    println!("{} the limit of {OVERHEAD_MAX_NS} ns", if is_met { "met" } else { "missed" });
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn spread(values: &mut [f64]) -> String {
    let middle = median(values);
    let (low, high) = (values[values.len() / 4], values[values.len() * 3 / 4]);
    format!("{middle:.0} ({low:.0} to {high:.0})")
}

/// Sorts the values and returns the median.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

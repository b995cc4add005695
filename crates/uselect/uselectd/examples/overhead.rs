//! `overhead [ROUNDS]`: what sending and receiving cost others while somebody is registered.
//!
//! One thread on one core sends a byte to and fro over loopback, of which nothing is tracked: while
//! nobody is registered, while a process in lean mode is, in exact mode, and in exact mode in the
//! cgroup of this process. Each round measures all of them, in another order, and compares with
//! nobody of the same round. Ends with status 1 if a median is above the bar of 120 ns for a send
//! and a receive. Needs root, and a machine that does nothing else.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use uselect::{REQUEST_MAGIC, RegistrationReply, TrackingMode};
use uselectd::{AccessPolicy, Daemon};

const BAR_NS: f64 = 120.0;
const ROUNDS: usize = 30;
/// Of a round and a case; their median counts, so that what interrupts one is left out.
const BATCHES: usize = 60;
/// Sends and receives of a batch.
const TURNS: u32 = 1000;

/// Who is registered.
struct Case {
    name: &'static str,
    mode: Option<TrackingMode>,
    is_neighbour: bool,
}

const CASES: [Case; 4] = [
    Case { name: "nobody", mode: None, is_neighbour: false },
    Case { name: "lean", mode: Some(TrackingMode::Lean), is_neighbour: false },
    Case { name: "exact", mode: Some(TrackingMode::Exact), is_neighbour: false },
    Case { name: "exact, same cgroup", mode: Some(TrackingMode::Exact), is_neighbour: true },
];

fn main() -> io::Result<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match &words[..] {
        [word, socket, mode, cgroup] if word == "member" => {
            member(socket, mode, cgroup).map(|()| ExitCode::SUCCESS)
        }
        [] => compare(ROUNDS),
        [rounds] => compare(rounds.parse().map_err(io::Error::other)?),
        _ => Err(io::Error::other("overhead [ROUNDS]")),
    }
}

/// Another process: asks for what the library asks for, and stays until its input ends.
fn member(socket: &str, mode: &str, cgroup: &str) -> io::Result<()> {
    if !cgroup.is_empty() {
        std::fs::write(Path::new(cgroup).join("cgroup.procs"), "0")?;
    }
    let mut connection = UnixStream::connect(socket)?;
    let mode = if mode == "lean" { TrackingMode::Lean } else { TrackingMode::Exact };
    connection.write_all(&[&REQUEST_MAGIC[..], &[mode as u8]].concat())?;
    let mut answer = [0];
    connection.read_exact(&mut answer)?;
    if answer[0] != RegistrationReply::Granted as u8 {
        return Err(io::Error::other(format!("refused: {}", answer[0])));
    }
    println!("registered");
    io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn compare(rounds: usize) -> io::Result<ExitCode> {
    let socket = std::env::temp_dir().join(format!("uselect-overhead-{}", std::process::id()));
    let mut daemon = Daemon::new(&socket, AccessPolicy::default()).map_err(io::Error::other)?;
    // Ends with the process, whichever way that ends.
    std::thread::spawn(move || daemon.run(None));
    let cgroup = other_cgroup()?;
    std::fs::create_dir(&cgroup)?;
    let measured = measure(rounds, &socket, &cgroup);
    std::fs::remove_dir(&cgroup)?;
    std::fs::remove_file(&socket)?;
    Ok(report(&mut measured?))
}

/// One below this process's own.
fn other_cgroup() -> io::Result<PathBuf> {
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

/// By case, what a send and a receive took in each round, in nanoseconds.
fn measure(rounds: usize, socket: &Path, cgroup: &Path) -> io::Result<[Vec<f64>; CASES.len()]> {
    let mut core = CpuSet::new();
    core.set(std::thread::available_parallelism()?.get() - 1);
    sched_setaffinity(None, &core)?;
    let (mut one, mut other) = pair()?;
    let mut measured = [const { Vec::new() }; CASES.len()];
    for round in 0..rounds {
        for at in 0..CASES.len() {
            let at = (at + round) % CASES.len();
            let Case { mode, is_neighbour, .. } = &CASES[at];
            let cgroup = if *is_neighbour { Path::new("") } else { cgroup };
            wait_until_idle()?;
            let registered = mode.map(|mode| register(socket, mode, cgroup)).transpose()?;
            // What comes first warms up.
            turn(&mut one, &mut other)?;
            let mut batches = [0.0; BATCHES];
            for batch in &mut batches {
                *batch = turn(&mut one, &mut other)?;
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
    command.arg("member").arg(socket).arg(if mode == TrackingMode::Lean {
        "lean"
    } else {
        "exact"
    });
    let mut member = command.arg(cgroup).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let said = BufReader::new(member.stdout.take().expect("it is piped")).lines().next();
    match said.transpose()? {
        Some(_) => Ok(member),
        None => Err(io::Error::other(format!("it ended: {}", member.wait()?))),
    }
}

/// Until no process of the machine has a link to a tracepoint or a cgroup any more: not the daemon,
/// which is this process, and no other daemon, whose programs would be measured too.
fn wait_until_idle() -> io::Result<()> {
    let end = Instant::now() + Duration::from_secs(10);
    while let Some(path) = link()? {
        if Instant::now() > end {
            let path = path.display();
            return Err(io::Error::other(format!("a program is attached, see {path}")));
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn link() -> io::Result<Option<PathBuf>> {
    for process in std::fs::read_dir("/proc")? {
        // Some are no processes, others have ended meanwhile.
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

/// Nanoseconds of a send and a receive, as the mean of a batch: CPU time of the thread, in whose
/// sends over loopback the receiving side's softirqs run. Where the kernel accounts for those apart
/// (CONFIG_IRQ_TIME_ACCOUNTING) they are left out, and with them one of the programs.
fn turn(one: &mut TcpStream, other: &mut TcpStream) -> io::Result<f64> {
    let mut byte = [0];
    let begin = clock_gettime(ClockId::ThreadCPUTime);
    for _ in 0..TURNS / 2 {
        one.write_all(&byte)?;
        other.read_exact(&mut byte)?;
        other.write_all(&byte)?;
        one.read_exact(&mut byte)?;
    }
    let took = clock_gettime(ClockId::ThreadCPUTime) - begin;
    Ok((took.tv_sec as f64 * 1e9 + took.tv_nsec as f64) / f64::from(TURNS))
}

/// Prints a row a case, with the quartiles; says whether the bar is met.
fn report(measured: &mut [Vec<f64>; CASES.len()]) -> ExitCode {
    let nobody = measured[0].clone();
    println!("{:<20} {:>18}   {:>18}", "registered", "ns per send+recv", "more than nobody");
    let mut is_met = true;
    for (case, times) in CASES.iter().zip(measured) {
        let mut more: Vec<f64> =
            times.iter().zip(&nobody).map(|(time, base)| time - base).collect();
        println!("{:<20} {:>18}   {:>18}", case.name, spread(times), spread(&mut more));
        is_met &= median(&mut more) <= BAR_NS;
    }
    println!("{} the bar: {BAR_NS} ns more", if is_met { "met" } else { "missed" });
    if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn spread(values: &mut [f64]) -> String {
    let middle = median(values);
    let (low, high) = (values[values.len() / 4], values[values.len() * 3 / 4]);
    format!("{middle:.0} ({low:.0} to {high:.0})")
}

/// Sorts them.
fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

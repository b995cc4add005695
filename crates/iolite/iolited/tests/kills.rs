//! Processes and the daemon are killed at any moment: no byte is wrong, no write that had returned
//! is lost, and nothing is left of them. KILLS is the number of kills.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Actor, Daemon, Folder, number, path, pattern, sealed, wait_until};
use iolite::service::FileClient;
use millrace_sys::Errno;

/// The files that all workers read and replace.
const FILES: u64 = 3;
const WORKERS: usize = 3;
const RECORD_BYTES: u64 = 8;

/// Returns other numbers for another seed.
fn numbers(seed: u64) -> impl FnMut() -> u64 {
    let mut bytes = pattern(1 << 16, seed).into_iter().cycle();
    move || (0..4).fold(0, |number, _| number << 8 | u64::from(bytes.next().expect("it repeats")))
}

/// A file that a worker has written as a whole: it names the pattern of its bytes.
fn contents(seed: u64) -> Vec<u8> {
    let length = 30_000 + (seed * 7919) as usize % 3_000_000;
    [&seed.to_le_bytes()[..], &pattern(length, seed)].concat()
}

fn are_contents(bytes: &[u8]) -> bool {
    let seed = bytes.first_chunk().map(|seed| u64::from_le_bytes(*seed));
    seed.is_some_and(|seed| bytes == contents(seed))
}

/// The bytes of one round in a pipe.
fn round_bytes(round: u64) -> Vec<u8> {
    pattern(1 + (round as usize * 7919) % 100_000, round)
}

/// Reports on standard output what is done now.
fn report(number: u64) {
    let mut output = std::io::stdout();
    writeln!(output, "done {number}").and_then(|()| output.flush()).expect("its reader");
}

/// Replaces and reads files, and appends to a log, until it is killed.
fn work(client: &FileClient, folder: &Path) {
    let name = |name: String| folder.join(name);
    let id = u64::from(std::process::id());
    let mut next = numbers(id);
    let log = File::options().append(true).create(true).open(name(format!("log-{id}")));
    let log = log.expect("a log");
    for count in 0.. {
        let shared = name(format!("file-{}", next() % FILES));
        if next().is_multiple_of(4) {
            let new = name(format!("new-{id}"));
            let file = File::create(&new).expect("a file");
            let bytes = sealed(&contents(next()));
            assert_eq!(client.write(file.as_fd(), &bytes), Ok(bytes.len()));
            std::fs::rename(new, shared).expect("a name");
        } else if let Ok(file) = File::open(&shared) {
            assert!(are_contents(&common::whole(client, &file).to_vec()), "{}", shared.display());
        }
        let record = sealed(&u64::to_le_bytes(count));
        assert_eq!(client.write(log.as_fd(), &record), Ok(RECORD_BYTES));
        report(count + 1);
    }
}

/// Writes to the pipe that is its standard input, until there is no reader.
fn write_rounds(client: &FileClient, pipe: BorrowedFd<'_>) {
    for round in 1.. {
        let mut bytes = sealed(&round_bytes(round));
        while !bytes.is_empty() {
            match client.write(pipe, &bytes) {
                Ok(count) => bytes.skip(count),
                Err(Errno::PIPE) => return,
                Err(error) => panic!("{error}"),
            }
        }
        report(round);
    }
}

/// Reads the pipe that is its standard input to the end, and reports the whole rounds.
fn read_rounds(client: &FileClient, pipe: BorrowedFd<'_>) {
    let (mut expected, mut rounds) = (Vec::new(), 0);
    loop {
        let bytes = client.read(pipe, 50_000).expect("bytes").to_vec();
        if bytes.is_empty() {
            return report(rounds - u64::from(!expected.is_empty()));
        }
        while expected.len() < bytes.len() {
            rounds += 1;
            expected.extend(round_bytes(rounds));
        }
        assert!(expected.drain(..bytes.len()).eq(bytes), "in round {rounds}");
    }
}

/// Not a test of its own: a process that a test starts and kills.
#[test]
fn plays_a_role() {
    let Some((role, client, folder)) = common::role() else { return };
    millrace_sys::ignore_broken_pipe_signal();
    let pipe = std::io::stdin();
    match role.as_str() {
        "work" => work(&client, &folder),
        "write" => write_rounds(&client, pipe.as_fd()),
        "read" => read_rounds(&client, pipe.as_fd()),
        other => panic!("no role: {other}"),
    }
}

/// Returns the number that a process has reported last, after its end; 0 if there is none.
fn last_report(actor: &mut Actor) -> u64 {
    let output = BufReader::new(actor.0.stdout.take().expect("a pipe"));
    let lines = output.lines().map(|line| line.expect("text"));
    lines.filter_map(|line| line.strip_prefix("done ")?.parse().ok()).last().unwrap_or(0)
}

fn kill(actor: &mut Actor) {
    actor.0.kill().expect("a signal");
    actor.0.wait().expect("its end");
}

struct Kills {
    folder: Folder,
    daemon: Daemon,
    workers: Vec<Actor>,
}

impl Kills {
    fn actor(&self, role: &str, stdin: Stdio) -> Actor {
        let program = std::env::current_exe().expect("this program");
        let mut command: Command =
            Actor::command(&program, role, &self.daemon.socket, &self.folder);
        Actor(command.stdin(stdin).spawn().expect("this program"))
    }

    /// Kills a worker, and compares its log with what it has reported.
    fn kill_worker(&mut self, index: usize) {
        let mut worker = self.workers.swap_remove(index);
        assert_eq!(worker.0.try_wait().expect("its state"), None, "a worker has failed");
        let log = path(&self.folder, &format!("log-{}", worker.0.id()));
        kill(&mut worker);
        let reported = last_report(&mut worker);
        let written = std::fs::read(&log).unwrap_or_default();
        let records: Vec<u8> =
            (0..written.len() as u64 / RECORD_BYTES).flat_map(u64::to_le_bytes).collect();
        assert!(written == records && written.len() as u64 / RECORD_BYTES >= reported);
        remove(log);
        remove(path(&self.folder, &format!("new-{}", worker.0.id())));
        self.workers.push(self.actor("work", Stdio::null()));
    }

    /// Kills one of two processes that a pipe connects; the daemon before, if it `restarts`.
    fn kill_end_of_pipe(&mut self, kills_reader: bool, restarts: bool, after: Duration) {
        let (from, to) = std::io::pipe().expect("a pipe");
        let mut reader = self.actor("read", from.into());
        let mut writer = self.actor("write", to.into());
        std::thread::sleep(after);
        if restarts {
            self.restart_daemon();
            std::thread::sleep(after);
        }
        if kills_reader {
            kill(&mut reader);
            assert!(writer.0.wait().expect("its end").success());
        } else {
            kill(&mut writer);
            let received = last_report(&mut reader);
            assert!(reader.0.wait().expect("its end").success());
            let sent = last_report(&mut writer);
            assert!(received >= sent, "{received} rounds of {sent}");
        }
    }

    fn restart_daemon(&mut self) {
        self.daemon.kill();
        self.daemon = Daemon::start(&self.folder, &OPTIONS);
    }
}

fn remove(path: PathBuf) {
    // It may have another name by now, or none.
    let _ = std::fs::remove_file(path);
}

const OPTIONS: [&str; 2] = ["--cache-memory", "32M"];

#[test]
fn processes_are_killed_at_any_moment() {
    let folder = Folder::new("kills");
    let daemon = Daemon::start(&folder, &OPTIONS);
    let mut kills = Kills { folder, daemon, workers: Vec::new() };
    for _ in 0..WORKERS {
        kills.workers.push(kills.actor("work", Stdio::null()));
    }
    let mut next = numbers(1);
    for count in 0..number("KILLS", 60) {
        let after = Duration::from_micros(next() % 20_000);
        match count % 6 {
            0 => kills.restart_daemon(),
            1 => {
                let [kills_reader, restarts] = [next(), next()].map(|it| it.is_multiple_of(2));
                kills.kill_end_of_pipe(kills_reader, restarts, after);
            }
            _ => {
                std::thread::sleep(after);
                kills.kill_worker(next() as usize % WORKERS);
            }
        }
    }
    let Kills { folder, daemon, workers } = kills;
    drop(workers);
    let idle = Folder::new("kills-idle");
    let (_, others) = Daemon::start(&idle, &OPTIONS).memory();
    wait_until("the daemon has closed all connections", || daemon.memory().1 <= others);
    assert!(daemon.memory().0 <= 32 << 20, "{} bytes", daemon.memory().0);
    for index in 0..FILES {
        let bytes = std::fs::read(path(&folder, &format!("file-{index}"))).unwrap_or_default();
        assert!(bytes.is_empty() || are_contents(&bytes), "file-{index}");
    }
}

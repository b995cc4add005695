//! A real directory, and a process that is killed (SIGKILL) again and again while it stores,
//! replaces, purges and fetches. Each successor checks that everything it finds was stored, and was
//! not durably purged or replaced.
//!
//! `DISK_KILLS=200` sets the number of kills.
#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

#[path = "common/callbacks.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod callbacks;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use callbacks::{RecordingCallbacks, waiter};
use iolite::Slab;
use millrace_disk::{
    Directory, DirectoryIo, DiskCallbacks, DiskOptions, DiskReply, Disks, PurgeTarget, ResponseId,
};
use millrace_http_cache::{HashKey, Key};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const KEYS: u64 = 50;
const DISK_BYTES: u64 = 8 << 20;
/// The environment variable with the directory of the process that will be killed.
const HOME: &str = "MILLRACE_DISK_KILL_HOME";
/// If this environment variable is set, the process checks the contents and ends.
const LAST: &str = "MILLRACE_DISK_KILL_LAST";

/// The range of versions that may be found. All versions before `first` were durably purged or
/// replaced; `last` is the newest one that a process began to store.
#[derive(Default, Clone, Copy)]
struct ExpectedVersions {
    last: u64,
    first: u64,
}

/// Reads the journal of earlier processes:
///
/// * `S key version` comes before a store.
/// * `P key version` comes after a durable purge of everything up to that version.
/// * `F version` means that all versions of this process up to that one were written.
/// * `N` begins a process. Versions that its predecessor had only queued were lost.
fn read_journal(path: &Path) -> (BTreeMap<u64, ExpectedVersions>, u64) {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut known: BTreeMap<u64, ExpectedVersions> = BTreeMap::new();
    let (mut last, mut begin) = (0, 0);
    // The last line may be cut: then it has no line end.
    for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let mut words = line.split_whitespace();
        let what = words.next().unwrap_or_default();
        let numbers: Vec<u64> = words.map(|word| word.parse().unwrap()).collect();
        match (what, &numbers[..]) {
            ("S", [key, version]) => {
                known.entry(*key).or_default().last = *version;
                last = *version;
            }
            ("P", [key, version]) => {
                let known = known.entry(*key).or_default();
                known.first = known.first.max(version + 1);
            }
            ("F", [version]) => {
                let is_stored =
                    |known: &&mut ExpectedVersions| (begin + 1..=*version).contains(&known.last);
                for known in known.values_mut().filter(is_stored) {
                    known.first = known.first.max(known.last);
                }
            }
            ("N", []) => begin = last,
            _ => panic!("{line:?}"),
        }
    }
    (known, last)
}

fn id(key: u64) -> ResponseId {
    ResponseId { key: Key(u128::from(key) << 64 | u128::from(key)), variant: 0 }
}

struct Victim {
    slab: Slab,
    callbacks: Arc<RecordingCallbacks>,
    disks: Disks,
    known: BTreeMap<u64, ExpectedVersions>,
    token: u64,
    random: Pcg64Mcg,
    journal: File,
    version: u64,
}

impl Victim {
    fn open(home: &Path) -> Self {
        let (known, version) = read_journal(&home.join("journal"));
        let journal = File::options().create(true).append(true).open(home.join("journal"));
        let slab = Slab::on_heap(32 << 20).unwrap();
        let callbacks = RecordingCallbacks::new(&slab);
        let disk_callbacks: Arc<dyn DiskCallbacks> = callbacks.clone();
        let directories = ["one", "two"].map(|name| {
            let directory = Directory::open(&home.join(name)).unwrap();
            (Arc::new(directory) as Arc<dyn DirectoryIo>, DISK_BYTES)
        });
        let fresh = HashKey::new([7; 16]);
        let disks =
            Disks::open(directories.into(), &disk_callbacks, &DiskOptions::default(), fresh, 1)
                .unwrap();
        let random = Pcg64Mcg::seed_from_u64(version);
        let journal = journal.unwrap();
        Self { slab, callbacks, disks, known, token: 0, random, journal, version }
    }

    /// Waits for replies, without a timeout of its own.
    fn wait(&self, token: u64, count: usize) -> Vec<DiskReply> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.callbacks.take(token));
            std::thread::sleep(Duration::from_micros(100));
        }
        all
    }

    /// Fetches and checks a key; returns whether it was found.
    fn fetch_and_check(&mut self, key: u64) -> bool {
        let Some(hit) = self.disks.find(id(key).key).pop() else { return false };
        self.token += 1;
        let fetched = callbacks::fetch(&self.disks, &self.slab, hit, self.token);
        let Some(fetched) = fetched else { return false };
        while !fetched.is_over(&self.callbacks) {
            std::thread::sleep(Duration::from_micros(50));
        }
        let Ok((head, is_whole)) = fetched.check(&self.callbacks) else { return false };
        let (version, _, _) = callbacks::read_head(&head);
        let known = self.known.get(&key).copied().unwrap_or_default();
        assert!(
            (known.first..=known.last).contains(&version),
            "key {key}: version {version} (expected: {} to {})",
            known.first,
            known.last
        );
        assert!(is_whole, "nothing is damaged");
        true
    }

    fn fetch_all(&mut self) -> usize {
        while self.disks.stats().iter().any(|disk| disk.is_recovering) {
            std::thread::sleep(Duration::from_micros(100));
        }
        (0..KEYS).filter(|key| self.fetch_and_check(*key)).count()
    }

    fn step(&mut self) {
        let key = self.random.next_u64() % KEYS;
        match self.random.next_u64() % 40 {
            0 => {
                self.token += 1;
                let target = if key.is_multiple_of(2) {
                    PurgeTarget::Response(id(key))
                } else {
                    PurgeTarget::Key(id(key).key)
                };
                self.disks.purge(&target, false, waiter(self.token));
                let replies = self.wait(self.token, 1);
                assert_eq!(replies, [DiskReply::Purged { is_durable: true }]);
                self.forget(key);
                self.note(&format!("P {key} {}\n", self.version));
            }
            1 => {
                self.token += 1;
                callbacks::sync(&self.disks, self.token);
                let replies = self.wait(self.token, 1);
                assert_eq!(replies, [DiskReply::Purged { is_durable: true }]);
                self.note(&format!("F {}\n", self.version));
            }
            2..=19 => drop(self.fetch_and_check(key)),
            _ => {
                self.version += 1;
                self.note(&format!("S {key} {}\n", self.version));
                let length = (self.random.next_u64() % 100_000) as usize;
                let length = length >> (self.random.next_u64() % 8);
                let response = callbacks::response(&self.slab, id(key), self.version, length);
                let known = self.known.entry(key).or_default();
                known.last = self.version;
                // The old version is gone at once, even if the new one is refused.
                known.first = self.version;
                drop(self.disks.store(response));
            }
        }
    }

    /// Appends a line to the journal in a single write, which a kill does not divide.
    fn note(&mut self, line: &str) {
        self.journal.write_all(line.as_bytes()).unwrap();
    }

    fn forget(&mut self, key: u64) {
        let known = self.known.entry(key).or_default();
        known.first = self.version + 1;
    }
}

fn journal_bytes(home: &Path) -> u64 {
    std::fs::metadata(home.join("journal")).map_or(0, |journal| journal.len())
}

/// The process that is killed; does nothing without [`HOME`].
#[test]
fn victim() {
    let Some(home) = std::env::var_os(HOME) else { return };
    let mut victim = Victim::open(Path::new(&home));
    let found = victim.fetch_all();
    println!("found {found} of {}", victim.known.len());
    if std::env::var_os(LAST).is_some() {
        return;
    }
    victim.note("N\n");
    loop {
        victim.step();
    }
}

#[test]
fn a_killed_process_leaves_no_wrong_data() {
    let kills = std::env::var("DISK_KILLS").map_or(8, |text| text.parse().expect("a number"));
    let home = std::env::temp_dir().join(format!("millrace-disk-kill-{}", std::process::id()));
    std::fs::create_dir(&home).unwrap();
    let mut random = Pcg64Mcg::seed_from_u64(std::process::id().into());
    let start = || {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "victim", "--nocapture", "--test-threads=1"]);
        command.env(HOME, &home).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    };
    let begin = Instant::now();
    for kill in 0..kills {
        let mut child = start().spawn().unwrap();
        // The kill may come at any moment: during the start, or later.
        if kill % 4 == 0 {
            std::thread::sleep(Duration::from_millis(random.next_u64() % 200));
        } else {
            let more = random.next_u64() % 6000;
            let wanted = journal_bytes(&home) + more;
            while journal_bytes(&home) < wanted && child.try_wait().unwrap().is_none() {
                std::thread::sleep(Duration::from_micros(random.next_u64() % 2000));
            }
        }
        child.kill().unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(
            std::os::unix::process::ExitStatusExt::signal(&output.status),
            Some(9),
            "kill {kill}: the process ended by itself: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
    }
    let output = start().env(LAST, "1").output().unwrap();
    let output_text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{output_text}{}", String::from_utf8_lossy(&output.stderr));
    let (known, versions) = read_journal(&home.join("journal"));
    std::fs::remove_dir_all(&home).unwrap();
    let found =
        output_text.lines().find_map(|line| line.split("found ").nth(1)).unwrap_or_default();
    println!("{kills} kills in {:?}: {versions} stored, at last {found}", begin.elapsed());
    assert!(!known.is_empty() && !found.is_empty() && !found.starts_with("0 "), "{output_text}");
}

//! Threads read and change the same files at the same time: some calls by clients of the daemon,
//! some by the kernel. Each read is compared with the states that the file has had between its
//! begin and its end, as `common/history.rs` knows them:
//!
//! * Memory of the daemon has the file as it was at one moment: each write(2), `iol_write`, append
//!   and truncation as a whole or not at all. A read that begins after one has returned has it, or
//!   a later one. No read goes back behind what another one had returned before it began.
//! * Bytes that the kernel copies, by read(2) or for a client, may be of several moments: ext4 and
//!   tmpfs take no lock to read. Each byte is one that was there during the call.
//! * An aggregate never changes.
//!
//! Faults that were planted in the daemon and the client are found within 60,000 operations: it
//! does not wait for the lock of the file, or looks for the version only once, or does not compare
//! its memory; times are left out of the version; an aggregate has pieces of two versions.
//!
//! `OPERATIONS` is the number of operations (6,000 if it is not set), and `SEED` the first seed.

mod common;

use std::fs::{File, Permissions};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use common::history::{
    CHANGE_BYTES_MAX, CHANGE_BYTES_MIN, Change, FinishedRead, History, LANES, View,
};
use common::{Daemon, Folder, by_kernel, number, path, sealed};
use iolite::limits::SLAB_BYTES_MIN;
use iolite::service::FileClient;
use iolite::{Aggregate, Slab};
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The files that have a name.
const NAMES: usize = 3;
/// The operations of one game.
const GAME_OPERATIONS: u64 = 10_000;
/// The lengths of lanes: below and above what the daemon shares, and more than one piece.
const LANE_BYTES: [usize; 8] = [0, 100, 10_000, 33_000, 40_000, 100_000, 300_000, 2_200_000];
/// The lengths of changes.
const WRITE_BYTES: [usize; 7] = [8, 30, 500, 4_096, 9_000, 40_000, 2_500_000];
/// The last lane of a file does not become longer than its first length and this.
const GROWTH: usize = 200_000;
/// The aggregates that a thread keeps.
const KEPT: usize = 5;

/// A game: the threads and their files.
struct Game {
    folder: Folder,
    /// The files that the names have now. The lock is held by rename(2) and open(2), so it is known
    /// which of them was opened.
    current: [Mutex<Arc<History>>; NAMES],
    operations: AtomicU64,
    operations_max: u64,
    has_failed: AtomicBool,
    counts: Counts,
}

/// The reads of all threads.
#[derive(Default)]
struct Counts {
    snapshots: AtomicU64,
    copies: AtomicU64,
    by_kernel: AtomicU64,
}

impl Game {
    fn name(&self, name: usize) -> PathBuf {
        path(&self.folder, &format!("file-{name}"))
    }
}

/// A file that a thread has open.
struct OpenFile {
    file: File,
    view: View,
}

/// A thread. It owns one lane of each file.
struct Actor<'a> {
    game: &'a Game,
    lane: usize,
    client: FileClient,
    slab: Slab,
    random: Pcg64Mcg,
    files: Vec<OpenFile>,
    /// Aggregates with the bytes that they had.
    kept: Vec<(Aggregate, Vec<u8>)>,
}

/// Reports a failure to the other threads, which end.
struct Fails<'a>(&'a AtomicBool);

impl Drop for Fails<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

fn below(random: &mut Pcg64Mcg, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}

fn one_of(random: &mut Pcg64Mcg, of: &[usize]) -> usize {
    of[below(random, of.len())]
}

/// Returns a history whose long lanes are rare.
fn new_history(random: &mut Pcg64Mcg) -> Arc<History> {
    let most = LANE_BYTES.len() - usize::from(below(random, 12) > 0);
    let lengths: [usize; LANES] = std::array::from_fn(|_| one_of(random, &LANE_BYTES[..most]));
    Arc::new(History::new(lengths))
}

impl<'a> Actor<'a> {
    fn new(game: &'a Game, lane: usize, client: FileClient, seed: u64) -> Self {
        let mut actor = Self {
            game,
            lane,
            client,
            slab: Slab::on_heap(SLAB_BYTES_MIN).expect("memory"),
            random: Pcg64Mcg::seed_from_u64(seed << 8 | lane as u64),
            files: Vec::new(),
            kept: Vec::new(),
        };
        actor.files = (0..NAMES).map(|name| actor.open(name)).collect();
        actor
    }

    fn below(&mut self, bound: usize) -> usize {
        below(&mut self.random, bound)
    }

    fn open(&self, name: usize) -> OpenFile {
        let current = self.game.current[name].lock().expect("no panic");
        let file = File::options().read(true).write(true).open(self.game.name(name));
        OpenFile { file: file.expect("the file"), view: View::new(current.clone()) }
    }

    fn run(&mut self) {
        let _fails = Fails(&self.game.has_failed);
        let Game { operations, operations_max, has_failed, .. } = self.game;
        while operations.fetch_add(1, Ordering::Relaxed) < *operations_max
            && !has_failed.load(Ordering::Relaxed)
        {
            self.step();
        }
        self.kept.iter().for_each(|(kept, copy)| assert!(kept.to_vec() == *copy));
    }

    fn step(&mut self) {
        let name = self.below(NAMES);
        match self.below(20) {
            0..=8 => self.read(name),
            9 => self.read_by_kernel(name),
            10..=12 => self.write(name, false),
            13..=15 => self.write(name, true),
            16 => self.change_attributes(name),
            17 if self.lane == LANES - 1 => self.truncate(name),
            18 if self.lane == LANES - 1 && self.below(8) == 0 => self.replace(name),
            _ if self.below(4) == 0 => self.files[name] = self.open(name),
            _ => self.read(name),
        }
    }

    /// Returns an offset and a length, often those of the whole file.
    fn range(&mut self, name: usize) -> (u64, u64) {
        let (begin, first) = self.files[name].view.history.lane(LANES - 1);
        let length = begin as usize + first + GROWTH;
        match self.below(4) {
            0 => (self.below(length) as u64, self.below(length) as u64),
            1 => (self.below(length) as u64, 4_096),
            _ => (0, 1 << 40),
        }
    }

    fn read(&mut self, name: usize) {
        let (offset, length) = self.range(name);
        let moves = self.below(3) == 0;
        let Self { client, files, game, .. } = self;
        let OpenFile { file, view } = &mut files[name];
        if moves {
            file.seek(SeekFrom::Start(offset)).expect("an offset");
        }
        let (begin, copied) = (view.history.begin_read(), client.stats().copied);
        let read = match moves {
            true => client.read(file.as_fd(), length),
            false => client.read_at(file.as_fd(), offset, length),
        };
        let aggregate = read.expect("bytes");
        let was_copied = client.stats().copied > copied;
        let bytes = aggregate.to_vec();
        if moves {
            let position = millrace_sys::position(file.as_fd());
            assert_eq!(position, Ok(offset + aggregate.len()), "the position");
        }
        let read = FinishedRead { offset, length, begin, bytes: &bytes };
        if was_copied {
            view.check_copy(&read);
            game.counts.copies.fetch_add(1, Ordering::Relaxed);
        } else {
            view.check_snapshot(&read);
            game.counts.snapshots.fetch_add(1, Ordering::Relaxed);
        }
        self.keep(aggregate, bytes);
    }

    fn read_by_kernel(&mut self, name: usize) {
        let (offset, length) = self.range(name);
        let OpenFile { file, view } = &mut self.files[name];
        let begin = view.history.begin_read();
        let mut bytes = vec![0; length.min(CHANGE_BYTES_MAX as u64) as usize];
        let length = bytes.len() as u64;
        let count = file.read_at(&mut bytes, offset).expect("bytes");
        bytes.truncate(count);
        view.check_copy(&FinishedRead { offset, length, begin, bytes: &bytes });
        self.game.counts.by_kernel.fetch_add(1, Ordering::Relaxed);
    }

    /// Keeps an aggregate, and checks one that was kept before.
    fn keep(&mut self, aggregate: Aggregate, bytes: Vec<u8>) {
        if self.kept.len() == KEPT {
            let at = self.below(KEPT);
            let (kept, copy) = self.kept.swap_remove(at);
            assert!(kept.to_vec() == copy, "a snapshot has changed");
        }
        self.kept.push((aggregate, bytes));
    }

    /// Writes to the lane, by a client or by write(2). The last lane may become longer.
    fn write(&mut self, name: usize, by_client: bool) {
        let lane = self.lane;
        let has_end = lane == LANES - 1;
        let (begin, first) = self.files[name].view.history.lane(lane);
        let length = if has_end { self.files[name].view.length_of(lane) } else { first };
        let most = if has_end { first + GROWTH } else { first };
        let count = one_of(&mut self.random, &WRITE_BYTES).min(most);
        if count < CHANGE_BYTES_MIN {
            return self.read(name);
        }
        let appends = has_end && length + count <= most && self.below(3) == 0;
        let at = match self.below(3) {
            _ if appends => length,
            0 => 0,
            _ => self.below(most - count + 1),
        };
        let offset = begin + at as u64;
        let cuts = [self.below(3) * count / 3, self.below(2)];
        let Self { client, files, slab, .. } = self;
        let OpenFile { file, view } = &files[name];
        let appended = appends.then(|| append_to(file));
        let mut file = appended.as_ref().unwrap_or(file);
        let written = view.history.change(lane, Change::Write { at, length: count }, |bytes| {
            if !by_client && !appends {
                return file.write_at(bytes, offset).expect("written") as u64;
            }
            if !by_client {
                return file.write(bytes).expect("written") as u64;
            }
            file.seek(SeekFrom::Start(offset)).expect("an offset");
            let aggregate = aggregate_of(bytes, cuts, slab);
            client.write(file.as_fd(), &aggregate).expect("written")
        });
        assert_eq!(written, count as u64);
    }

    /// Changes what is part of a version, but not the bytes.
    fn change_attributes(&mut self, name: usize) {
        let number = self.below(1 << 20) as u32;
        let file = &self.files[name].file;
        if number.is_multiple_of(2) {
            file.set_permissions(Permissions::from_mode(0o600 + number % 8)).expect("a mode");
        } else {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::from(number % 4));
            file.set_modified(time).expect("a time");
        }
    }

    fn truncate(&mut self, name: usize) {
        let (begin, first) = self.files[name].view.history.lane(self.lane);
        let length = match self.below(4) {
            0 => 0,
            _ => self.below(first + GROWTH),
        };
        let OpenFile { file, view } = &self.files[name];
        view.history.change(self.lane, Change::Length(length), |_| {
            file.set_len(begin + length as u64).expect("a length");
        });
    }

    /// Gives the name to a new file. Its inode number may be that of one that was removed.
    fn replace(&mut self, name: usize) {
        let history = new_history(&mut self.random);
        let bytes = history.first_bytes();
        let new = path(&self.game.folder, &format!("new-{name}"));
        let mut file = File::options().read(true).write(true).create_new(true).open(&new);
        let file = file.as_mut().expect("a file");
        if self.below(2) == 0 || bytes.is_empty() {
            file.write_all(&bytes).expect("written");
        } else {
            let written = self.client.write(file.as_fd(), &sealed(&bytes));
            assert_eq!(written, Ok(bytes.len() as u64));
        }
        let mut current = self.game.current[name].lock().expect("no panic");
        std::fs::rename(new, self.game.name(name)).expect("a name");
        *current = history;
        drop(current);
        self.files[name] = self.open(name);
    }
}

/// Returns another open file of the same inode that appends.
fn append_to(file: &File) -> File {
    use std::os::fd::AsRawFd;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    File::options().append(true).open(path).expect("the file")
}

/// Returns an aggregate of up to three slices, of which the first is sealed memory.
fn aggregate_of(bytes: &[u8], cuts: [usize; 2], slab: &Slab) -> Aggregate {
    let (first, rest) = bytes.split_at(bytes.len() - cuts[0]);
    let (second, third) = rest.split_at(rest.len().min(20_000));
    let mut aggregate = match cuts[1] {
        0 => sealed(first),
        // A part of sealed memory is not passed.
        _ => {
            let longer = sealed(&[first, b"x"].concat());
            longer.slice(0..first.len() as u64)
        }
    };
    if !second.is_empty() {
        aggregate.concatenate(Aggregate::from_bytes(second, slab).expect("room"));
    }
    if !third.is_empty() {
        aggregate.concatenate(sealed(third));
    }
    aggregate
}

/// Plays one game, and returns its counts.
fn play(seed: u64, operations_max: u64) -> [u64; 3] {
    let folder = Folder::new(&format!("concurrent-{seed}"));
    let daemon = Daemon::start(&folder, &["--cache-memory", "64M"]);
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let current = std::array::from_fn(|name| {
        let history = new_history(&mut random);
        folder.file(&format!("file-{name}"), &history.first_bytes());
        Mutex::new(history)
    });
    let game = Game {
        folder,
        current,
        operations: AtomicU64::new(0),
        operations_max,
        has_failed: AtomicBool::new(false),
        counts: Counts::default(),
    };
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let mut actor = Actor::new(&game, lane, daemon.client(), seed);
            scope.spawn(move || actor.run());
        }
    });
    let client = daemon.client();
    for name in 0..NAMES {
        let file = File::open(game.name(name)).expect("the file");
        let read = common::whole(&client, &file);
        assert!(read.to_vec() == by_kernel(&file));
        let begin = game.current[name].lock().expect("no panic").begin_read();
        let mut view = View::new(game.current[name].lock().expect("no panic").clone());
        let bytes = read.to_vec();
        view.check_snapshot(&FinishedRead { offset: 0, length: 1 << 40, begin, bytes: &bytes });
    }
    let Counts { snapshots, copies, by_kernel } = &game.counts;
    [snapshots, copies, by_kernel].map(|count| count.load(Ordering::Relaxed))
}

#[test]
fn concurrent_changes_are_read_as_they_were_made() {
    let (operations, first) = (number("OPERATIONS", 6_000), number("SEED", 1));
    let (mut left, mut counts) = (operations, [0; 3]);
    for seed in first.. {
        println!("seed {seed}");
        let count = left.min(GAME_OPERATIONS);
        let of_game = play(seed, count);
        counts = std::array::from_fn(|at| counts[at] + of_game[at]);
        left -= count;
        if left == 0 {
            break;
        }
    }
    let [snapshots, copies, by_kernel] = counts;
    println!(
        "{operations} operations: {snapshots} snapshots, {copies} copies, {by_kernel} by read(2)"
    );
    assert!(snapshots > 0 && copies > 0 && by_kernel > 0);
}

//! Random operations on two files: one by clients of the daemon, one by the kernel's own calls. The
//! results are the same, and no aggregate changes.
//!
//! `GAMES` is the number of games (4 if it is not set).

mod common;

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};

use common::{Daemon, Folder, by_kernel, number, path, pattern, sealed, whole};
use iolite::limits::SLAB_BYTES_MIN;
use iolite::service::FileClient;
use iolite::{Aggregate, Slab};
use millrace_sys::Errno;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

const LENGTHS: [u64; 7] = [0, 1, 5_000, 32_768, 100_000, 2 << 20, 5_000_000];
const NAMES: [&str; 2] = ["ours", "theirs"];

struct Game<'a> {
    folder: &'a Folder,
    clients: [FileClient; 2],
    slab: Slab,
    random: Pcg64Mcg,
    /// The file of the clients, and that of the kernel.
    files: [File; 2],
    /// Aggregates with the bytes that they had.
    kept: Vec<(Aggregate, Vec<u8>)>,
}

fn code<T>(result: std::io::Result<T>) -> Result<T, i32> {
    result.map_err(|error| error.raw_os_error().expect("an error of the kernel"))
}

fn errno<T>(result: Result<T, Errno>) -> Result<T, i32> {
    result.map_err(Errno::raw_os_error)
}

fn read_up_to(mut from: impl Read, length: u64) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; length as usize];
    from.read(&mut bytes).map(|count| bytes[..count].to_vec())
}

impl Game<'_> {
    fn below(&mut self, bound: u64) -> u64 {
        self.random.next_u64() % bound
    }

    /// Returns a length near one that matters.
    fn length(&mut self) -> u64 {
        let length = LENGTHS[self.below(LENGTHS.len() as u64) as usize];
        (length + self.below(3)).saturating_sub(1)
    }

    /// Returns an aggregate of up to three slices.
    fn aggregate(&mut self) -> Aggregate {
        let mut bytes = Aggregate::new();
        for _ in 0..self.below(3) + 1 {
            let (length, seed) = (self.length().clamp(1, 2 << 20) as usize, self.below(1 << 40));
            let copy = pattern(length.min(9_000), seed);
            match self.below(3) {
                0 => bytes.concatenate(Aggregate::from_bytes(&copy, &self.slab).expect("room")),
                1 => bytes.concatenate(sealed(&pattern(length, seed))),
                // Bytes of a file.
                _ => bytes.concatenate(self.kept.pop().unwrap_or_default().0),
            }
        }
        bytes
    }

    fn keep(&mut self, bytes: Aggregate) {
        if self.kept.len() > 6 {
            let at = self.below(6) as usize;
            let (kept, copy) = self.kept.swap_remove(at);
            assert!(kept.to_vec() == copy, "a snapshot has changed");
        }
        let copy = bytes.to_vec();
        self.kept.push((bytes, copy));
    }

    /// Opens both files again.
    fn open(&mut self, mode: u64) {
        self.files = NAMES.map(|name| {
            let mut options = File::options();
            match mode {
                0 => options.read(true),
                1 => options.write(true),
                2 => options.read(true).append(true),
                _ => options.read(true).write(true),
            };
            options.open(path(self.folder, name)).expect("the file")
        });
    }

    fn read(&mut self) {
        let (client, length, offset) = (self.below(2) as usize, self.length(), self.length());
        let [ours, theirs] = &self.files;
        let client = &self.clients[client];
        let (read, expected) = if offset % 2 == 0 {
            let expected = code(read_up_to(theirs, length));
            (errno(client.read(ours.as_fd(), length)), expected)
        } else {
            let mut bytes = vec![0; length as usize];
            let expected = code(theirs.read_at(&mut bytes, offset));
            let expected = expected.map(|count| bytes[..count].to_vec());
            (errno(client.read_at(ours.as_fd(), offset, length)), expected)
        };
        assert!(read.as_ref().map(Aggregate::to_vec) == expected.as_ref().cloned(), "{expected:?}");
        if let Ok(read) = read {
            self.keep(read);
        }
    }

    fn write(&mut self) {
        let (bytes, client) = (self.aggregate(), self.below(2) as usize);
        let (copy, mut theirs) = (bytes.to_vec(), &self.files[1]);
        let written = errno(self.clients[client].write(self.files[0].as_fd(), &bytes));
        assert_eq!(written, code(theirs.write(&copy)).map(|count| count as u64));
        self.keep(bytes);
    }

    fn step(&mut self) {
        let (length, mode) = (self.length(), self.below(5));
        match self.below(14) {
            0..=4 => self.read(),
            5..=7 => self.write(),
            8 => self.files.iter().for_each(|mut file| {
                file.seek(SeekFrom::Start(length)).expect("an offset");
            }),
            9 => NAMES.iter().for_each(|name| {
                let file = File::options().write(true).open(path(self.folder, name));
                file.and_then(|file| file.set_len(length)).expect("a length");
            }),
            10 => NAMES.iter().for_each(|name| {
                let bytes = pattern(200, length);
                let file = File::options().write(true).open(path(self.folder, name));
                file.and_then(|file| file.write_all_at(&bytes, length)).expect("written");
            }),
            11 => NAMES.iter().for_each(|name| {
                let new = path(self.folder, "new");
                std::fs::write(&new, pattern(length as usize, length)).expect("a file");
                std::fs::rename(new, path(self.folder, name)).expect("a name");
            }),
            12 => {
                let mode = PermissionsExt::from_mode(0o600 + length as u32 % 8);
                self.files[0].set_permissions(mode).expect("a mode");
            }
            _ => self.open(mode),
        }
        let [ours, theirs] = self.files.each_ref().map(|file| millrace_sys::position(file.as_fd()));
        assert_eq!(ours, theirs, "the position");
    }
}

#[test]
fn clients_have_the_results_of_the_kernel() {
    let games = number("GAMES", 4);
    let folder = Folder::new("model");
    let daemon = Daemon::start(&folder, &["--cache-memory", "32M"]);
    let mut steps = 0;
    for seed in 0..games {
        println!("seed {seed}");
        let files = NAMES.map(|name| folder.file(name, &pattern(100_000, seed)));
        let clients = [daemon.client(), daemon.client()];
        let slab = Slab::on_heap(SLAB_BYTES_MIN).unwrap();
        let random = Pcg64Mcg::seed_from_u64(seed);
        let folder = &folder;
        let mut game = Game { folder, clients, slab, random, files, kept: Vec::new() };
        for _ in 0..200 {
            game.step();
            steps += 1;
        }
        assert!(game.kept.iter().all(|(kept, copy)| kept.to_vec() == *copy));
        let [ours, theirs] = NAMES.map(|name| folder.open(name));
        assert!(whole(&game.clients[0], &ours).to_vec() == by_kernel(&theirs));
    }
    println!("{steps} operations");
}

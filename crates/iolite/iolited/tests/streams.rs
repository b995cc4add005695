//! Random writes to pipes and reads from them, by clients of the daemon and by the kernel's calls.
//! The streams are those of pipe(7):
//!
//! * The bytes of each writer come once and in order, also if it takes turns between `iol_write`
//!   and write(2). Bytes of two writers are mixed, but not within a write of up to PIPE_BUF bytes.
//! * A call on a pipe that blocks writes everything; one of up to PIPE_BUF bytes never a part.
//! * A read returns bytes as soon as there are any, and none at the end and ever after.
//! * A write that begins after the last reader has closed the pipe fails with EPIPE.
//! * If another program reads on when the client has ended, it gets all that is left. Its order is
//!   not that of the writes, so the bytes are counted.
//!
//! Faults that were planted in the client are found within 6,000 operations: the reader ignores the
//! position of an aggregate, the writer ignores that the reader is reading, or drops the bytes that
//! a client has left. A reader that looks for bytes only after it has looked for aggregates is not
//! found within 60,000: the moment is too short.
//!
//! `OPERATIONS` is the number of operations (6,000 if it is not set), and `SEED` the first seed.

mod common;

use std::fs::File;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use common::{Daemon, Folder, number, sealed, whole};
use iolite::limits::SLAB_BYTES_MIN;
use iolite::service::FileClient;
use iolite::{Aggregate, Channel, ChannelOptions, Slab};
use millrace_sys::Errno;
use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Writes up to this length are not mixed with others.
const PIPE_BUF: usize = 4096;
/// Lengths of reads and writes near those that matter. The long ones are rare.
const LENGTHS: [usize; 8] = [1, 9, 100, 1_500, PIPE_BUF, 32 << 10, 64 << 10, 2 << 20];
/// The operations of one pipe.
const GAME_OPERATIONS: u64 = 1_000;
/// A pipe is paired after so many bytes.
const PAIRING_BYTES: usize = 33_000;
/// The aggregates that a reader keeps.
const KEPT: usize = 20;
/// The stream of a writer repeats after this many bytes.
const PERIOD: usize = 1_048_573;
const SLICE_MAX: usize = 3 << 20;

/// Returns a part of the stream of a writer. The two upper bits of each byte are its number.
fn stream(writer: usize, position: usize, length: usize) -> &'static [u8] {
    static TABLES: OnceLock<[Vec<u8>; 2]> = OnceLock::new();
    let tables = TABLES.get_or_init(|| {
        [0, 1].map(|writer: u8| {
            let mut random = Pcg64Mcg::seed_from_u64(u64::from(writer));
            let words = (0..PERIOD / 8 + 1).flat_map(|_| random.next_u64().to_le_bytes());
            let mut table: Vec<u8> = words.map(|byte| byte >> 2 | writer << 6).collect();
            table.truncate(PERIOD);
            table.repeat(SLICE_MAX / PERIOD + 2)
        })
    });
    let begin = position % PERIOD;
    &tables[writer][begin..begin + length]
}

/// How a pipe ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    /// The writers close it.
    Writers,
    /// The reader closes it.
    Reader,
    /// The client of the reader ends, and another program reads on.
    Client,
}

/// The properties of a game.
#[derive(Clone, Copy, Debug)]
struct Rules {
    end: End,
    trusts: bool,
    /// All writes are short, so that many of them are made while the reader looks for bytes.
    is_short: bool,
    /// A second writer: by write(2) only, or also another client.
    second: Option<Second>,
    writers_block: bool,
    reader_blocks: bool,
    /// The operations after which the reader closes the pipe, or its client ends.
    reader_operations: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Second {
    Kernel,
    Client,
}

impl Rules {
    fn new(random: &mut Pcg64Mcg) -> Self {
        let end = [End::Writers, End::Writers, End::Reader, End::Client][below(random, 4)];
        Self {
            end,
            trusts: below(random, 3) == 0,
            is_short: below(random, 4) == 0,
            second: [None, None, Some(Second::Kernel), Some(Second::Client)][below(random, 4)],
            writers_block: end == End::Client || below(random, 5) > 0,
            reader_blocks: end == End::Client || below(random, 5) > 0,
            reader_operations: below(random, GAME_OPERATIONS as usize / 3) as u64,
        }
    }
}

/// The state that the threads of a game share.
struct Game<'a> {
    folder: &'a Folder,
    rules: Rules,
    operations: AtomicU64,
    operations_max: u64,
    writers: AtomicU64,
    /// The reader has closed the pipe, or its client has ended.
    has_left: AtomicBool,
    /// The short writes of each writer: position and length.
    short: [Mutex<Vec<(usize, usize)>>; 2],
}

impl Game<'_> {
    fn count(&self) -> u64 {
        self.operations.fetch_add(1, Ordering::Relaxed)
    }
}

fn below(random: &mut Pcg64Mcg, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}

fn random_length(random: &mut Pcg64Mcg) -> usize {
    let at = match below(random, 400) {
        0 => 7,
        1..20 => 6,
        20..60 => 5,
        60..150 => 4,
        _ => below(random, 4),
    };
    (LENGTHS[at] + below(random, 3)).saturating_sub(1).max(1)
}

struct Writer<'a> {
    game: &'a Game<'a>,
    number: usize,
    to: PipeWriter,
    client: Option<FileClient>,
    slab: Slab,
    random: Pcg64Mcg,
    position: usize,
}

impl Writer<'_> {
    /// Writes until the operations are used up, or there is no reader. Returns the bytes written.
    fn run(&mut self) -> usize {
        while self.game.operations.load(Ordering::Relaxed) < self.game.operations_max {
            if !self.write() {
                break;
            }
        }
        if self.game.rules.end == End::Client {
            // Bytes that the client has left are written by a later call.
            loop {
                let has_left = self.game.has_left.load(Ordering::SeqCst);
                self.write_aggregate(9);
                if has_left {
                    break;
                }
            }
        }
        self.position
    }

    /// Writes once. Returns whether there is a reader.
    fn write(&mut self) -> bool {
        self.game.count();
        let length = match self.position {
            0 => PAIRING_BYTES,
            _ if self.game.rules.is_short => 1 + below(&mut self.random, 8),
            _ => random_length(&mut self.random),
        };
        if self.client.is_none() || below(&mut self.random, 4) == 0 {
            self.write_by_kernel(length)
        } else {
            self.write_aggregate(length)
        }
    }

    fn write_by_kernel(&mut self, length: usize) -> bool {
        let had_left = self.begin(length);
        let written = self.to.write(stream(self.number, self.position, length));
        let written = written.map(|count| count as u64);
        let errno = |error: std::io::Error| Errno::from_io_error(&error).expect("the kernel's");
        self.finish(length, written.map_err(errno), had_left)
    }

    fn write_aggregate(&mut self, length: usize) -> bool {
        let (bytes, had_left) = (self.aggregate(length), self.begin(length));
        let Some(client) = &self.client else { return self.write_by_kernel(length) };
        let length = bytes.len() as usize;
        let written = client.write(self.to.as_fd(), &bytes);
        self.finish(length, written, had_left)
    }

    fn begin(&self, length: usize) -> bool {
        if length <= PIPE_BUF {
            self.game.short[self.number].lock().expect("no panic").push((self.position, length));
        }
        self.game.has_left.load(Ordering::SeqCst)
    }

    fn finish(&mut self, length: usize, written: Result<u64, Errno>, had_left: bool) -> bool {
        let Rules { end, writers_block, .. } = self.game.rules;
        let is_closed = end == End::Reader && had_left;
        if is_closed {
            assert_eq!(written, Err(Errno::PIPE), "{length} bytes after the end");
        }
        match written {
            Ok(count) => {
                let is_whole = count == length as u64;
                let may_be_part = !writers_block && length > PIPE_BUF || end == End::Reader;
                assert!(is_whole || may_be_part && count > 0, "{count} of {length} bytes");
                self.position += count as usize;
                true
            }
            Err(Errno::AGAIN) if !writers_block => {
                if length <= PIPE_BUF {
                    self.game.short[self.number].lock().expect("no panic").pop();
                }
                std::thread::yield_now();
                true
            }
            Err(Errno::PIPE) if end == End::Reader => false,
            Err(error) => panic!("{length} bytes: {error}"),
        }
    }

    /// Returns the next bytes of the stream in memory of some kind; for some kinds not so many.
    fn aggregate(&mut self, length: usize) -> Aggregate {
        let kind = below(&mut self.random, 40);
        let bytes = stream(self.number, self.position, length);
        let Some(client) = &self.client else { return Aggregate::new() };
        match kind {
            0 if length >= 32 << 10 => {
                let file = self.game.folder.file(&format!("source-{}", self.number), bytes);
                whole(client, &file)
            }
            0..10 => sealed(bytes),
            10..15 => sealed(&[b"x", bytes].concat()).slice(1..length as u64 + 1),
            15..20 => {
                let (first, rest) = bytes.split_at(below(&mut self.random, length));
                let (second, third) = rest.split_at(rest.len().min(5_000));
                let mut all = sealed(second);
                all.concatenate(if third.is_empty() { Aggregate::new() } else { sealed(third) });
                let first = if first.len() <= 20_000 && !first.is_empty() {
                    Aggregate::from_bytes(first, &self.slab).expect("room")
                } else {
                    sealed(&[first, b"x"].concat()).slice(0..first.len() as u64)
                };
                let mut bytes = first;
                bytes.concatenate(all);
                bytes
            }
            _ => {
                let mut buffer = client.allocate(self.to.as_fd(), length).expect("memory");
                buffer.write(bytes);
                buffer.freeze().into()
            }
        }
    }
}

/// The streams that were read.
struct Streams<'a> {
    game: &'a Game<'a>,
    positions: [usize; 2],
    last: usize,
    /// Bytes whose order is not known, by their values.
    counts: Vec<usize>,
}

impl Streams<'_> {
    fn accept(&mut self, mut bytes: &[u8]) {
        while let Some(&first) = bytes.first() {
            let writer = usize::from(first >> 6);
            let is_other = |byte: &u8| usize::from(byte >> 6) != writer;
            let run = match self.game.rules.second {
                Some(_) => bytes.iter().position(is_other).unwrap_or(bytes.len()),
                None => bytes.len(),
            };
            let run = run.min(SLICE_MAX);
            let position = self.positions[writer];
            let expected = stream(writer, position, run);
            let at = expected.iter().zip(bytes).position(|(a, b)| a != b);
            assert!(*expected == bytes[..run], "writer {writer}: {at:?} after {position}");
            if self.last != writer {
                self.check_cut(self.last);
            }
            self.positions[writer] += run;
            self.last = writer;
            bytes = &bytes[run..];
        }
    }

    /// Checks that bytes of another writer may follow those of this one.
    fn check_cut(&self, writer: usize) {
        let position = self.positions[writer];
        let short = self.game.short[writer].lock().expect("no panic");
        let next = short.partition_point(|(begin, _)| *begin < position);
        if let Some((begin, length)) = next.checked_sub(1).map(|at| short[at]) {
            let is_within = position < begin + length;
            assert!(!is_within, "writer {writer}: {position} is within {length} bytes at {begin}");
        }
    }

    fn count(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.counts[usize::from(*byte)] += 1);
    }

    /// Checks that the streams have these lengths, and all bytes were read.
    fn check_end(&self, lengths: [usize; 2]) {
        let mut expected = vec![0; 256];
        for (writer, length) in lengths.into_iter().enumerate() {
            let mut position = self.positions[writer];
            while position < length {
                let count = (length - position).min(SLICE_MAX);
                let bytes = stream(writer, position, count);
                bytes.iter().for_each(|byte| expected[usize::from(*byte)] += 1);
                position += count;
            }
            assert!(position == length, "{position} bytes of {length} from writer {writer}");
        }
        let sum = |counts: &[usize]| counts.iter().sum::<usize>();
        let counts = &self.counts;
        assert!(*counts == expected, "{} bytes of {}", sum(counts), sum(&expected));
    }
}

/// Reads the pipe until it ends, or until the reader leaves.
fn read(client: FileClient, from: PipeReader, streams: &mut Streams<'_>, seed: u64) {
    let game = streams.game;
    let (mut random, mut kept) = (Pcg64Mcg::seed_from_u64(seed), Vec::new());
    let mut operations = 0;
    while game.rules.end == End::Writers || operations < game.rules.reader_operations {
        operations += 1;
        game.count();
        let length = random_length(&mut random) as u64;
        let bytes = match client.read(from.as_fd(), length) {
            Err(Errno::AGAIN) if !game.rules.reader_blocks => {
                std::thread::yield_now();
                continue;
            }
            read => read.expect("bytes"),
        };
        assert!(bytes.len() <= length, "{} of {length} bytes", bytes.len());
        if bytes.is_empty() {
            assert_eq!(game.writers.load(Ordering::SeqCst), 0, "the end");
            assert_eq!(client.read(from.as_fd(), length).expect("the end").len(), 0);
            break;
        }
        let copy = bytes.to_vec();
        streams.accept(&copy);
        kept.push((bytes, copy));
        if kept.len() > KEPT {
            let (bytes, copy) = kept.swap_remove(below(&mut random, KEPT));
            assert!(bytes.to_vec() == copy, "an aggregate has changed");
        }
    }
    let check = |(bytes, copy): (Aggregate, Vec<u8>)| assert!(bytes.to_vec() == copy);
    match game.rules.end {
        End::Writers => {}
        End::Reader => {
            drop(from);
            game.has_left.store(true, Ordering::SeqCst);
        }
        End::Client => {
            drop(client);
            game.has_left.store(true, Ordering::SeqCst);
            let mut from = File::from(OwnedFd::from(from));
            let mut bytes = vec![0; 300_000];
            loop {
                let count = from.read(&mut bytes).expect("bytes");
                if count == 0 {
                    break;
                }
                streams.count(&bytes[..count]);
            }
        }
    }
    kept.into_iter().for_each(check);
}

/// Plays one game. Returns its operations and the aggregates that were passed.
fn play(seed: u64, folder: &Folder, daemon: &Daemon, operations_max: u64) -> (u64, u64) {
    let mut random = Pcg64Mcg::seed_from_u64(seed);
    let rules = Rules::new(&mut random);
    println!("seed {seed}: {rules:?}");
    let game = Game {
        folder,
        rules,
        operations: AtomicU64::new(0),
        operations_max,
        writers: AtomicU64::new(1 + u64::from(rules.second.is_some())),
        has_left: AtomicBool::new(false),
        short: Default::default(),
    };
    let (from, to) = std::io::pipe().expect("a pipe");
    if !rules.writers_block {
        millrace_sys::set_nonblocking(to.as_fd()).expect("a pipe");
    }
    if !rules.reader_blocks {
        millrace_sys::set_nonblocking(from.as_fd()).expect("a pipe");
    }
    let reader = daemon.client();
    if rules.trusts {
        reader.trust_user();
    }
    let second = rules.second.map(|_| to.try_clone().expect("dup"));
    let writer = |number: usize, to, client| {
        let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("memory");
        let random = Pcg64Mcg::seed_from_u64(seed << 8 | number as u64);
        Writer { game: &game, number, to, client, slab, random, position: 0 }
    };
    let run = |mut writer: Writer<'_>| {
        let position = writer.run();
        // Its end is the pipe's only after this.
        game.writers.fetch_sub(1, Ordering::SeqCst);
        let passed = writer.client.as_ref().map_or(0, |client| client.stats().passed);
        (position, passed)
    };
    let first = writer(0, to, Some(daemon.client()));
    let second = second.map(|to| {
        let client = (rules.second == Some(Second::Client)).then(|| daemon.client());
        writer(1, to, client)
    });
    let mut streams = Streams { game: &game, positions: [0; 2], last: 0, counts: vec![0; 256] };
    let ends = std::thread::scope(|scope| {
        let first = scope.spawn(|| run(first));
        let second = second.map(|second| scope.spawn(|| run(second)));
        read(reader, from, &mut streams, seed);
        let ends = [Some(first), second];
        ends.map(|thread| thread.map_or((0, 0), |thread| thread.join().expect("a writer")))
    });
    if rules.end != End::Reader {
        streams.check_end([ends[0].0, ends[1].0]);
    }
    (game.operations.load(Ordering::Relaxed), ends[0].1 + ends[1].1)
}

#[test]
fn an_aggregate_does_not_come_within_a_short_write() {
    let folder = Folder::new("within");
    let daemon = Daemon::start(&folder, &[]);
    let (from, mut to) = std::io::pipe().expect("a pipe");
    let reader = daemon.client();
    let read = |length| reader.read(from.as_fd(), length).expect("bytes").to_vec();
    to.write_all(&[b'0'; PAIRING_BYTES]).expect("written");
    let mut count = 0;
    while count < PAIRING_BYTES {
        count += read(u64::MAX).len();
    }
    let slab = Slab::on_heap(SLAB_BYTES_MIN).expect("memory");
    let socket = common::pair_by_hand(&daemon, to.as_fd(), true);
    let options = ChannelOptions { text_max: 8, ..ChannelOptions::new(slab.clone()) };
    let mut writer = Channel::new(socket, options).expect("a channel");
    // Another process writes, after the writer has found the pipe empty.
    to.write_all(&[b'1'; 1000]).expect("written");
    // This pairs the end of the reader.
    assert_eq!(read(100), [b'1'; 100]);
    let aggregate = Aggregate::from_bytes(&[b'2'; 1000], &slab).expect("room");
    assert!(writer.try_send(&aggregate).expect("a channel"));
    assert!(writer.flush().expect("a channel"));
    assert!(read(10_000) == [b'1'; 900]);
    assert!(read(10_000) == [b'2'; 1000]);
}

#[test]
fn streams_are_those_of_pipes() {
    millrace_sys::ignore_broken_pipe_signal();
    let (all, first) = (number("OPERATIONS", 6_000), number("SEED", 1));
    let folder = Folder::new("streams");
    let daemon = Daemon::start(&folder, &[]);
    let (mut operations, mut passed) = (0, 0);
    for seed in first.. {
        let of_game = play(seed, &folder, &daemon, GAME_OPERATIONS.min(all - operations));
        operations = (operations + of_game.0).min(all);
        passed += of_game.1;
        if operations >= all {
            break;
        }
    }
    println!("{operations} operations: {passed} writes were passed through a channel");
    assert!(passed > 0 || all < GAME_OPERATIONS * 5);
}

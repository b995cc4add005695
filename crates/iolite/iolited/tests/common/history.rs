//! The states that a file has had while several threads change it, and whether bytes that were read
//! are one of them.
//!
//! A file consists of lanes, one behind the other. Only one thread changes a lane, so each lane has
//! a sequence of versions. Only the last lane has a length that changes. The bytes of each change
//! differ from those of all others.

use std::collections::VecDeque;
use std::ops::{Range, RangeInclusive};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// The lanes of a file. Some may be empty.
pub(crate) const LANES: usize = 3;
/// The longest change of a lane.
pub(crate) const CHANGE_BYTES_MAX: usize = 5 << 20;
/// Shorter changes could have the bytes that are there already.
pub(crate) const CHANGE_BYTES_MIN: usize = 8;

/// A version of each lane.
pub(crate) type Versions = [u64; LANES];

/// A change of a lane. Offsets are those in the lane.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    Write { at: usize, length: usize },
    Length(usize),
}

#[derive(Debug)]
struct LoggedChange {
    change: Change,
    /// The versions of all lanes that were there before the change began.
    after: Versions,
}

#[derive(Debug)]
struct Lane {
    begin: u64,
    length: usize,
    /// The first one makes version 1.
    changes: Mutex<Vec<LoggedChange>>,
    /// The last version whose change has begun; `finished <= started`.
    started: AtomicU64,
    /// The last version whose change has returned.
    finished: AtomicU64,
    /// The last version that a snapshot had.
    seen: AtomicU64,
}

/// All that has happened to one inode.
#[derive(Debug)]
pub(crate) struct History {
    /// No other inode of this process has it.
    generation: u64,
    lanes: [Lane; LANES],
    /// Snapshots of the whole file. The later ones are last.
    snapshots: Mutex<VecDeque<Versions>>,
}

/// The snapshots with which a further one is compared.
const SNAPSHOTS: usize = 64;

/// Returns the bytes of a change.
fn bytes_of(generation: u64, lane: usize, version: u64, length: usize) -> &'static [u8] {
    static TABLE: OnceLock<Vec<u8>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        let mut random = Pcg64Mcg::seed_from_u64(1);
        (0..CHANGE_BYTES_MAX / 4).flat_map(|_| random.next_u64().to_le_bytes()).collect()
    });
    let number = generation << 34 | (lane as u64) << 32 | version;
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    let begin = (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 20) as usize % CHANGE_BYTES_MAX;
    &table[begin..begin + length]
}

impl History {
    /// Creates the history of a file whose lanes have these lengths.
    pub(crate) fn new(lengths: [usize; LANES]) -> Self {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let mut begin = 0;
        let lanes = lengths.map(|length| {
            let lane = Lane {
                begin,
                length,
                changes: Mutex::default(),
                started: AtomicU64::new(0),
                finished: AtomicU64::new(0),
                seen: AtomicU64::new(0),
            };
            begin += length as u64;
            lane
        });
        let generation = LAST.fetch_add(1, Ordering::SeqCst) + 1;
        Self { generation, lanes, snapshots: Mutex::default() }
    }

    /// Returns the bytes at version 0.
    pub(crate) fn first_bytes(&self) -> Vec<u8> {
        let lanes = self.lanes.iter().enumerate();
        lanes
            .flat_map(|(lane, of)| bytes_of(self.generation, lane, 0, of.length))
            .copied()
            .collect()
    }

    /// Returns where a lane begins, and the length that it had first.
    pub(crate) fn lane(&self, lane: usize) -> (u64, usize) {
        (self.lanes[lane].begin, self.lanes[lane].length)
    }

    /// Makes a change of a lane, which only its thread does. `make` gets the bytes to write.
    pub(crate) fn change<T>(
        &self,
        lane: usize,
        change: Change,
        make: impl FnOnce(&'static [u8]) -> T,
    ) -> T {
        let Lane { changes, started, finished, .. } = &self.lanes[lane];
        let after = self.versions(|lane| &lane.finished);
        let version = finished.load(Ordering::SeqCst) + 1;
        changes.lock().expect("no panic").push(LoggedChange { change, after });
        started.store(version, Ordering::SeqCst);
        let result = make(match change {
            Change::Write { length, .. } => bytes_of(self.generation, lane, version, length),
            Change::Length(_) => &[],
        });
        finished.store(version, Ordering::SeqCst);
        result
    }

    fn versions(&self, of: impl Fn(&Lane) -> &AtomicU64) -> Versions {
        self.lanes.each_ref().map(|lane| of(lane).load(Ordering::SeqCst))
    }

    /// Returns the versions that a read has to see which begins now: of the changes that have
    /// returned, and those that a snapshot had.
    pub(crate) fn begin_read(&self) -> Versions {
        let (finished, seen) = (self.versions(|it| &it.finished), self.versions(|it| &it.seen));
        std::array::from_fn(|lane| finished[lane].max(seen[lane]))
    }

    /// Adds a snapshot of the whole file. Returns one that is neither before nor after it.
    fn add_snapshot(&self, versions: Versions) -> Option<Versions> {
        let mut snapshots = self.snapshots.lock().expect("no panic");
        let is_before =
            |one: &Versions, other: &Versions| one.iter().zip(other).all(|(a, b)| a <= b);
        let is_mixed = |it: &&Versions| !is_before(it, &versions) && !is_before(&versions, it);
        let mixed = snapshots.iter().find(is_mixed).copied();
        snapshots.push_back(versions);
        if snapshots.len() > SNAPSHOTS {
            snapshots.pop_front();
        }
        mixed
    }
}

/// A version of a lane.
#[derive(Clone, Debug)]
struct LaneState {
    lane: usize,
    version: u64,
    bytes: Vec<u8>,
    /// A length that it had since the state was cloned. Behind it, read(2) may see zeros.
    least: usize,
}

impl LaneState {
    fn new(history: &History, lane: usize) -> Self {
        let length = history.lanes[lane].length;
        let bytes = bytes_of(history.generation, lane, 0, length).to_vec();
        Self { lane, version: 0, least: bytes.len(), bytes }
    }

    fn advance(&mut self, history: &History, version: u64) {
        let changes = history.lanes[self.lane].changes.lock().expect("no panic");
        while self.version < version {
            let change = changes[self.version as usize].change;
            self.version += 1;
            match change {
                Change::Length(length) => self.bytes.resize(length, 0),
                Change::Write { at, length } => {
                    self.bytes.resize(self.bytes.len().max(at + length), 0);
                    let new = bytes_of(history.generation, self.lane, self.version, length);
                    self.bytes[at..at + length].copy_from_slice(new);
                }
            }
            self.least = self.least.min(self.bytes.len());
        }
    }

    /// Returns the bytes in a range, as far as there are any.
    fn part(&self, range: &Range<usize>) -> &[u8] {
        let end = range.end.min(self.bytes.len());
        &self.bytes[range.start.min(end)..end]
    }
}

/// The versions of a lane that a read may have seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    first: u64,
    last: u64,
}

/// A reader of one file.
pub(crate) struct View {
    pub(crate) history: Arc<History>,
    /// Versions that are not later than those that it has seen last.
    lanes: [LaneState; LANES],
}

/// A read that has returned.
pub(crate) struct FinishedRead<'a> {
    pub(crate) offset: u64,
    /// The bytes that were wanted.
    pub(crate) length: u64,
    /// As [`History::begin_read`] returned before.
    pub(crate) begin: Versions,
    pub(crate) bytes: &'a [u8],
}

impl View {
    pub(crate) fn new(history: Arc<History>) -> Self {
        let lanes = std::array::from_fn(|lane| LaneState::new(&history, lane));
        Self { history, lanes }
    }

    /// Returns the part of a lane that a read wants, and the bytes that it got there.
    fn part_of<'a>(&self, lane: usize, read: &FinishedRead<'a>) -> (Range<usize>, &'a [u8]) {
        let Lane { begin, length, .. } = self.history.lanes[lane];
        // The last lane may be longer now.
        let lane_end = if lane + 1 == LANES { u64::MAX } else { begin + length as u64 };
        let end = read.offset.saturating_add(read.length).clamp(begin, lane_end);
        let start = read.offset.clamp(begin, end);
        let in_bytes = |at: u64| (at.saturating_sub(read.offset) as usize).min(read.bytes.len());
        (
            (start - begin) as usize..(end - begin) as usize,
            &read.bytes[in_bytes(start)..in_bytes(end)],
        )
    }

    /// Checks that bytes are those of the file at one moment between the begin and the end of the
    /// read: each change is there as a whole or not at all, and with it all that had returned
    /// before it began.
    pub(crate) fn check_snapshot(&mut self, read: &FinishedRead<'_>) {
        let end = self.history.versions(|lane| &lane.started);
        let seen: [Option<Seen>; LANES] = std::array::from_fn(|lane| {
            let (range, bytes) = self.part_of(lane, read);
            if range.is_empty() {
                return None;
            }
            let versions = read.begin[lane]..=end[lane];
            let seen = self.find(lane, &range, bytes, &versions);
            Some(seen.unwrap_or_else(|| self.fail(lane, &range, bytes, &versions)))
        });
        for (lane, of) in seen.iter().enumerate() {
            let Some(Seen { first, .. }) = of else { continue };
            self.history.lanes[lane].seen.fetch_max(*first, Ordering::SeqCst);
            self.lanes[lane].advance(&self.history, *first);
            let Some(change) = first.checked_sub(1) else { continue };
            let changes = self.history.lanes[lane].changes.lock().expect("no panic");
            let after = changes[change as usize].after;
            for (other, before) in after.into_iter().enumerate() {
                let is_there = seen[other].is_none_or(|seen| seen.last >= before);
                assert!(
                    is_there,
                    "lane {lane} is later than lane {other}: {seen:?} after {before}"
                );
            }
        }
        if let [Some(a), Some(b), Some(c)] = seen
            && [a, b, c].iter().all(|seen| seen.first == seen.last)
        {
            let versions = [a.first, b.first, c.first];
            let mixed = self.history.add_snapshot(versions);
            assert_eq!(mixed, None, "the snapshot {versions:?} is not of one moment");
        }
    }

    /// Returns the versions of a lane that have these bytes.
    fn find(
        &mut self,
        lane: usize,
        range: &Range<usize>,
        bytes: &[u8],
        versions: &RangeInclusive<u64>,
    ) -> Option<Seen> {
        self.lanes[lane].advance(&self.history, *versions.start());
        let mut state = self.lanes[lane].clone();
        let mut seen: Option<Seen> = None;
        for version in versions.clone() {
            state.advance(&self.history, version);
            if state.part(range) == bytes {
                let first = seen.map_or(version, |seen| seen.first);
                seen = Some(Seen { first, last: version });
            }
        }
        seen
    }

    /// Fails with what these versions have instead, and all that have these bytes.
    fn fail(
        &self,
        lane: usize,
        range: &Range<usize>,
        bytes: &[u8],
        versions: &RangeInclusive<u64>,
    ) -> ! {
        let length = bytes.len();
        let mut text = format!("lane {lane}, {range:?}: {length} bytes, not of {versions:?}");
        let mut state = LaneState::new(&self.history, lane);
        for version in 0..=*versions.end() {
            state.advance(&self.history, version);
            let part = state.part(range);
            let differs = part.iter().zip(bytes).position(|(a, b)| a != b);
            if versions.contains(&version) || part == bytes {
                let length = part.len();
                text += &format!("\n  {version} has {length} bytes, and differs at {differs:?}");
            }
        }
        panic!("{text}");
    }

    /// Checks bytes that the kernel has copied, which it does not do at one moment: each is one
    /// that the file had at this place between the begin and the end of the read. Zeros may be
    /// there if the file was cut before them meanwhile.
    pub(crate) fn check_copy(&mut self, read: &FinishedRead<'_>) {
        let end = self.history.versions(|lane| &lane.started);
        for (lane, last) in end.into_iter().enumerate() {
            let (range, bytes) = self.part_of(lane, read);
            if !range.is_empty() {
                self.lanes[lane].advance(&self.history, read.begin[lane]);
                self.check_copied(lane, &range, bytes, &(read.begin[lane]..=last));
            }
        }
    }

    fn check_copied(
        &self,
        lane: usize,
        range: &Range<usize>,
        bytes: &[u8],
        versions: &RangeInclusive<u64>,
    ) {
        let mut state = self.lanes[lane].clone();
        state.least = state.bytes.len();
        let mut left: Vec<usize> = (0..bytes.len()).step_by(COMPARED).collect();
        let (mut shortest, mut longest) = (usize::MAX, 0);
        for version in versions.clone() {
            state.advance(&self.history, version);
            let part = state.part(range);
            (shortest, longest) = (shortest.min(part.len()), longest.max(part.len()));
            left.retain(|&at| {
                let end = (at + COMPARED).min(bytes.len());
                part.get(at..end) != Some(&bytes[at..end])
            });
        }
        let length = bytes.len();
        let is_length = (shortest..=longest).contains(&length);
        assert!(is_length, "lane {lane}: {length} bytes of {shortest} to {longest}");
        let cut_at = state.least.saturating_sub(range.start);
        for begin in left {
            for (at, byte) in bytes.iter().enumerate().skip(begin).take(COMPARED) {
                let is_cut = at >= cut_at && *byte == 0;
                let is_one = is_cut || self.has_byte(lane, versions, range.start + at, *byte);
                assert!(is_one, "lane {lane}: byte {at} of {range:?} in {versions:?}");
            }
        }
    }

    /// Returns whether one of these versions has a byte at a place.
    fn has_byte(&self, lane: usize, versions: &RangeInclusive<u64>, at: usize, byte: u8) -> bool {
        let mut state = self.lanes[lane].clone();
        versions.clone().any(|version| {
            state.advance(&self.history, version);
            state.bytes.get(at) == Some(&byte)
        })
    }

    /// Returns the length of a lane that this thread changes.
    pub(crate) fn length_of(&mut self, lane: usize) -> usize {
        let finished = self.history.lanes[lane].finished.load(Ordering::SeqCst);
        let mut state = self.lanes[lane].clone();
        state.advance(&self.history, finished);
        state.bytes.len()
    }
}

/// The bytes that are compared at a time.
const COMPARED: usize = 64;

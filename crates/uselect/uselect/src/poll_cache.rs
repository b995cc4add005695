//! `PollCache`: the array of the last large upoll, indexed by descriptor.
//!
//! A program that waits with poll(2) passes nearly the same array each time. So upoll compares the
//! array with the cached one, which costs little more than to read it. Entries that wait only to
//! receive are then scanned as bitmaps, 64 at a time.

use std::sync::atomic::Ordering;

use crate::bitmap::{ReadinessBitmaps, bit_positions};
use crate::bits;
use crate::layout::{Bitmap, SOCKETS};
use crate::pollfd::PollFd;
use crate::sleeper::InterestStamp;

/// Entries that are compared at once.
const CHUNK: usize = 16;
const NO_ENTRY: PollFd = PollFd { fd: -1, events: 0, revents: 0 };

/// The entries of the last large upoll; none before the first update. An entry that waits only to
/// receive is a reader, unless another reader has the same descriptor or the descriptor is
/// [`SOCKETS`] or above. `words` covers all descriptors of readers, `entry_indices` has 64 elements
/// for each word, and `others` has a bit for each entry.
#[derive(Default)]
pub(crate) struct PollCache {
    /// The array, with `revents` 0.
    entries: Vec<PollFd>,
    pub(crate) words: Vec<ReaderWord>,
    /// By descriptor of a reader, the index of its entry.
    entry_indices: Vec<u32>,
    /// By entry, whether it has a descriptor and is not a reader.
    others: Vec<u64>,
}

/// The readers among 64 descriptors.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReaderWord {
    /// Descriptors with an entry that waits only to receive.
    pub(crate) readers: u64,
    /// The value of [`crate::view::BlockingWait::stamp`] when the interest in all readers was last
    /// published; `None` if the readers have changed since.
    pub(crate) stamp: Option<InterestStamp>,
}

impl PollCache {
    /// Updates the cache from this array, and clears the array's `revents`.
    pub(crate) fn update(&mut self, array: &mut [PollFd]) {
        for at in array.len()..self.entries.len() {
            self.remove_entry(at);
        }
        self.entries.resize(array.len(), NO_ENTRY);
        self.others.resize(array.len().div_ceil(64), 0);
        for (number, chunk) in array.chunks_mut(CHUNK).enumerate() {
            let first = number * CHUNK;
            let cached = &self.entries[first..first + chunk.len()];
            let differs = chunk.iter().zip(cached).fold(0, |all, (a, b)| all | raw(a) ^ raw(b));
            if differs == 0 {
                continue;
            }
            for (at, entry) in (first..).zip(chunk) {
                // The entry is read as a whole, before it is written: a wide read right after a
                // narrower write would stall.
                let array = PollFd { revents: 0, ..*entry };
                entry.revents = 0;
                if array != self.entries[at] {
                    self.remove_entry(at);
                    self.insert_entry(at, array);
                }
            }
        }
    }

    fn remove_entry(&mut self, at: usize) {
        let PollFd { fd, .. } = std::mem::replace(&mut self.entries[at], NO_ENTRY);
        let (word, bit) = (at / 64, 1 << (at % 64));
        if self.others[word] & bit != 0 {
            self.others[word] &= !bit;
        } else if let Ok(fd) = usize::try_from(fd) {
            let word = &mut self.words[fd / 64];
            *word = ReaderWord { readers: word.readers & !(1 << (fd % 64)), stamp: None };
        }
    }

    fn insert_entry(&mut self, at: usize, entry: PollFd) {
        self.entries[at] = entry;
        let Ok(fd) = usize::try_from(entry.fd) else { return };
        let is_reader = u32::from(entry.events) & (bits::WRITABLE | bits::PRI) == 0;
        if is_reader && fd < SOCKETS {
            let (number, bit) = (fd / 64, 1 << (fd % 64));
            if self.words.len() <= number {
                self.words.resize(number + 1, ReaderWord::default());
                self.entry_indices.resize((number + 1) * 64, 0);
            }
            let word = &mut self.words[number];
            if word.readers & bit == 0 {
                *word = ReaderWord { readers: word.readers | bit, stamp: None };
                self.entry_indices[fd] = at as u32;
                return;
            }
        }
        self.others[at / 64] |= 1 << (at % 64);
    }

    /// Records that the interest in all readers of a word is published. `stamp` was read before the
    /// first of them was published.
    pub(crate) fn set_stamp(&mut self, word: usize, stamp: InterestStamp) {
        self.words[word].stamp = Some(stamp);
    }

    /// Returns the index of a reader's entry.
    pub(crate) fn reader_entry(&self, word: usize, bit: u32) -> usize {
        self.entry_indices[word * 64 + bit as usize] as usize
    }

    /// Returns the indices of the entries that are not readers.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let words = self.others.iter().enumerate();
        words.flat_map(|(at, others)| bit_positions(*others).map(move |bit| at * 64 + bit as usize))
    }
}

/// Returns the descriptors of a word that are tracked and not ready to be read. An entry that waits
/// neither for send space nor for urgent data has no events if its bit is set here.
pub(crate) fn quiet_bits(bits: ReadinessBitmaps<'_>, at: usize) -> u64 {
    let word = |bitmap: &Bitmap| bitmap[at].load(Ordering::SeqCst);
    word(bits.active) & !(word(bits.except) | word(bits.read))
}

fn raw(entry: &PollFd) -> u64 {
    let PollFd { fd, events, revents } = *entry;
    u64::from(fd.cast_unsigned()) | u64::from(events) << 32 | u64::from(revents) << 48
}

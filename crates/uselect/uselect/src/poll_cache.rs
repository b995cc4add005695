//! `Remembered`: the question of the last upoll, by descriptor.
//!
//! Who waits by poll(2) asks nearly the same each time. To see that it is the same costs little
//! more than to read the array; then of those that only want to receive a bit each is looked at,
//! 64 at a time, and not an entry.

use std::sync::atomic::Ordering;

use crate::bitmap::{ReadinessBitmaps, bit_positions};
use crate::bits;
use crate::layout::{Bitmap, SOCKETS};
use crate::pollfd::PollFd;
use crate::sleeper::InterestStamp;

/// Entries that are compared at once.
const CHUNK: usize = 16;
const NO_ENTRY: PollFd = PollFd { fd: -1, events: 0, revents: 0 };

/// Empty until something is remembered. `words` has as many as there are descriptors for, and
/// `places` 64 for each; `others` has as many as the entries need.
#[derive(Default)]
pub(crate) struct PollCache {
    /// The array, without answers.
    entries: Vec<PollFd>,
    pub(crate) words: Vec<ReaderWord>,
    /// By descriptor, if it is a reader: the place of the entry.
    entry_indices: Vec<u32>,
    /// By entry: it asks for something else, or for the descriptor of a reader once more.
    others: Vec<u64>,
}

/// 64 descriptors.
#[derive(Clone, Copy, Default)]
pub(crate) struct ReaderWord {
    /// Those that have an entry that asks for nothing but to receive.
    pub(crate) readers: u64,
    /// [`crate::view::Waiter::stamp`] before all of these were expected; none since they changed.
    pub(crate) stamp: Option<InterestStamp>,
}

impl PollCache {
    /// Remembers this question in place of the last one, and takes the answers out of it.
    pub(crate) fn update(&mut self, asked: &mut [PollFd]) {
        for at in asked.len()..self.entries.len() {
            self.remove_entry(at);
        }
        self.entries.resize(asked.len(), NO_ENTRY);
        self.others.resize(asked.len().div_ceil(64), 0);
        for (number, chunk) in asked.chunks_mut(CHUNK).enumerate() {
            let first = number * CHUNK;
            let kept = &self.entries[first..first + chunk.len()];
            let differs = chunk.iter().zip(kept).fold(0, |all, (a, b)| all | raw(a) ^ raw(b));
            if differs == 0 {
                continue;
            }
            for (at, entry) in (first..).zip(chunk) {
                // Read as a whole and before it is written: a read of more than was just written
                // waits for that.
                let asked = PollFd { revents: 0, ..*entry };
                entry.revents = 0;
                if asked != self.entries[at] {
                    self.remove_entry(at);
                    self.insert_entry(at, asked);
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

    /// All readers of a word are expected since the waiter's stamp was this.
    pub(crate) fn set_stamp(&mut self, word: usize, stamp: InterestStamp) {
        self.words[word].stamp = Some(stamp);
    }

    /// The place of a reader's entry.
    pub(crate) fn reader_entry(&self, word: usize, bit: u32) -> usize {
        self.entry_indices[word * 64 + bit as usize] as usize
    }

    /// The places of the entries that are no reader's.
    pub(crate) fn others(&self) -> impl Iterator<Item = usize> {
        let words = self.others.iter().enumerate();
        words.flat_map(|(at, others)| bit_positions(*others).map(move |bit| at * 64 + bit as usize))
    }
}

/// Of a word of descriptors those that memory knows, and of which there is nothing to tell to who
/// asks neither for room nor for urgent data.
pub(crate) fn quiet_bits(bits: ReadinessBitmaps<'_>, at: usize) -> u64 {
    let word = |bitmap: &Bitmap| bitmap[at].load(Ordering::SeqCst);
    word(bits.active) & !(word(bits.except) | word(bits.read))
}

fn raw(entry: &PollFd) -> u64 {
    let PollFd { fd, events, revents } = *entry;
    u64::from(fd.cast_unsigned()) | u64::from(events) << 32 | u64::from(revents) << 48
}

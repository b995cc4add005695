//! The ledger: which extents of a pool one member holds, in memory that only this member writes.
//!
//! ```text
//!   word 0 ...        a bit for each slot: the member has sent bytes of its block by reference
//!   then              a word for each slot: the version of the block that the member has mapped
//!   then              a bit for each unit: the member holds the extent that begins there
//! ```

use std::sync::atomic::Ordering;

use crate::limits::UNITS_PER_SEGMENT;
use crate::pool::words::{OwnWords, PeerWords};

const WORDS_PER_SLOT: usize = UNITS_PER_SEGMENT / 64;

/// The number of words of a ledger.
pub(crate) const fn ledger_words(slots: usize) -> usize {
    slots.div_ceil(64) + slots + slots * WORDS_PER_SLOT
}

const fn version_word(slots: usize, slot: usize) -> usize {
    slots.div_ceil(64) + slot
}

/// Returns the word and the bit of a unit.
const fn unit_bit(slots: usize, unit: usize) -> (usize, u64) {
    (slots.div_ceil(64) + slots + unit / 64, 1 << (unit % 64))
}

/// The ledger that this process writes.
#[derive(Debug)]
pub(crate) struct OwnLedger {
    pub(crate) words: OwnWords,
    slots: usize,
}

impl OwnLedger {
    pub(crate) fn new(words: OwnWords, slots: usize) -> Self {
        Self { words, slots }
    }

    /// Enters that an extent is held. Release: before the frame that refers to it is passed.
    pub(crate) fn hold(&self, unit: usize) {
        let (word, bit) = unit_bit(self.slots, unit);
        self.words.word(word).fetch_or(bit, Ordering::Release);
    }

    /// Enters that an extent is not held any more. Release: all reads of its bytes come before.
    pub(crate) fn release(&self, unit: usize) {
        let (word, bit) = unit_bit(self.slots, unit);
        self.words.word(word).fetch_and(!bit, Ordering::Release);
    }

    /// Enters that bytes of a block were given to the kernel by reference.
    pub(crate) fn set_sent(&self, slot: usize) {
        self.words.word(slot / 64).fetch_or(1 << (slot % 64), Ordering::Release);
    }

    /// Enters which version of a block is mapped; 0: none. Its next version was never sent.
    pub(crate) fn set_version(&self, slot: usize, version: u32) {
        self.words.word(slot / 64).fetch_and(!(1 << (slot % 64)), Ordering::Release);
        self.words
            .word(version_word(self.slots, slot))
            .store(u64::from(version), Ordering::Release);
    }
}

/// The ledger of another process, as its owner of the pool reads it. All bits are believed: a wrong
/// one harms the member itself, or keeps no more than its quota.
#[derive(Debug)]
pub(crate) struct PeerLedger {
    pub(crate) words: PeerWords,
    pub(crate) slots: usize,
}

impl PeerLedger {
    /// Returns whether the member holds the extent that begins at a unit. Acquire: pairs with
    /// [`OwnLedger::release`].
    pub(crate) fn holds(&self, unit: usize) -> bool {
        let (word, bit) = unit_bit(self.slots, unit);
        self.words.word(word).load(Ordering::Acquire) & bit != 0
    }

    pub(crate) fn was_sent(&self, slot: usize) -> bool {
        self.words.word(slot / 64).load(Ordering::Acquire) & (1 << (slot % 64)) != 0
    }

    /// Returns the version of the block that the member has mapped.
    pub(crate) fn version(&self, slot: usize) -> u64 {
        self.words.word(version_word(self.slots, slot)).load(Ordering::Acquire)
    }
}

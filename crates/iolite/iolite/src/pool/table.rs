//! The table of a pool: which extents exist, in memory that only the owner writes.
//!
//! A member acquires an extent in this order: it sets the bit in its ledger, then reads the entry.
//! The owner frees an extent in this order: it marks the entry, then reads the ledgers. Both orders
//! are sequentially consistent, so that either the member sees the mark, or the owner sees the bit.
//! This is the protocol of hazard pointers; no process has to trust the one that passed the
//! reference on.

use std::sync::atomic::Ordering;

use crate::limits::UNITS_PER_SEGMENT;
use crate::pool::words::{OwnWords, PeerWords};

/// The number of words of a table: for each unit the extent that begins there, and for each slot
/// the version of its block.
pub(crate) const fn table_words(slots: usize) -> usize {
    slots * UNITS_PER_SEGMENT + slots
}

/// The owner is about to free the extent.
const MARK: u64 = 1 << 63;
const UNITS_BITS: u32 = UNITS_PER_SEGMENT.ilog2() + 1;

const fn entry(generation: u64, units: usize) -> u64 {
    generation << UNITS_BITS | units as u64
}

/// The table as its owner writes it.
#[derive(Debug)]
pub(crate) struct OwnTable {
    pub(crate) words: OwnWords,
    pub(crate) slots: usize,
}

impl OwnTable {
    /// Publishes an extent, or the end of the attempt to free it.
    pub(crate) fn publish(&self, unit: usize, generation: u64, units: usize) {
        self.words.word(unit).store(entry(generation, units), Ordering::SeqCst);
    }

    /// Marks the extent that begins at a unit.
    pub(crate) fn mark(&self, unit: usize) {
        self.words.word(unit).fetch_or(MARK, Ordering::SeqCst);
    }

    /// Removes an extent that was marked, and that no process holds.
    pub(crate) fn remove(&self, unit: usize) {
        self.words.word(unit).store(0, Ordering::SeqCst);
    }

    /// Publishes the version of a slot's block, before any extent in it.
    pub(crate) fn set_version(&self, slot: usize, version: u64) {
        self.words.word(self.slots * UNITS_PER_SEGMENT + slot).store(version, Ordering::Release);
    }
}

/// The table as a member reads it.
#[derive(Debug)]
pub(crate) struct PeerTable {
    pub(crate) words: PeerWords,
    pub(crate) slots: usize,
}

/// The number of times that a member yields to an owner that is about to free an extent.
const YIELDS_MAX: u32 = 10_000;

impl PeerTable {
    /// Returns the length in units of the extent that begins at a unit, if it has this generation.
    /// The member has set its bit before.
    pub(crate) fn units(&self, unit: usize, generation: u64) -> Option<usize> {
        for _ in 0..YIELDS_MAX {
            let found = self.words.word(unit).load(Ordering::SeqCst);
            if found & MARK == 0 {
                let units = (found & ((1 << UNITS_BITS) - 1)) as usize;
                return (found == entry(generation, units)).then_some(units);
            }
            // The owner has not seen the bit yet, or restores the entry now.
            std::thread::yield_now();
        }
        None
    }

    pub(crate) fn version(&self, slot: usize) -> u64 {
        self.words.word(self.slots * UNITS_PER_SEGMENT + slot).load(Ordering::Acquire)
    }
}

//! One queue of entries, oldest first, kept as one list per size class.
//!
//! A size class is a power of two of bytes. Within a class the oldest entry is evicted first. Among
//! the oldest entries of all classes, the one that is oldest *for its size* is evicted first. A
//! weight per class makes their ages comparable. So a queue has exactly one next victim, found by
//! looking at one entry per class.

use super::entry::EvictionEntry;

/// No entry.
pub(super) const NONE: u32 = u32::MAX;

/// The last class has all sizes from 512 GB on.
const CLASSES: usize = 40;

/// The factor of each class, in units of 2^-20, that makes ages of different classes comparable.
#[derive(Debug)]
pub(super) struct Weights([u64; CLASSES]);

/// Entries in the order of their insertion, by size class.
#[derive(Debug)]
pub(super) struct EvictionQueue {
    lists: [SizeClassList; CLASSES],
    /// Bit `class` is set while that list has entries.
    occupied: u64,
    /// The sum of the sizes of all entries.
    bytes: u64,
}

/// A list linked by [`EvictionEntry::previous`] (older) and [`EvictionEntry::next`] (newer).
#[derive(Clone, Copy, Debug)]
struct SizeClassList {
    oldest: u32,
    newest: u32,
}

/// The entry to evict next.
pub(super) struct Victim {
    pub(super) handle: u32,
    /// Its weighted age: see [`Weights`].
    pub(super) score: u64,
}

const _: () = assert!(CLASSES <= u64::BITS as usize);

impl Weights {
    /// Returns the weights `size / (size + middle)`: below `middle` bytes they grow with the size,
    /// above it hardly at all. docs/design/cache.md has the reasons.
    pub(super) fn new(middle: u64) -> Self {
        Self(std::array::from_fn(|class| {
            // The middle of the class, 1.5 times its lower end.
            let size = 3u64 << class >> 1;
            (u128::from(size) << 20).div_ceil(u128::from(size) + u128::from(middle)) as u64
        }))
    }

    /// Returns the square root of each weight: the same order, less steep.
    pub(super) fn root(&self) -> Self {
        Self(self.0.map(|weight| (weight << 20).isqrt()))
    }

    /// Returns the weighted `age` of an object of `size` bytes.
    pub(super) fn score(&self, age: u32, size: u64) -> u64 {
        u64::from(age) * self.0[size_class(size)]
    }
}

impl EvictionQueue {
    pub(super) fn new() -> Self {
        Self {
            lists: [SizeClassList { oldest: NONE, newest: NONE }; CLASSES],
            occupied: 0,
            bytes: 0,
        }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn is_empty(&self) -> bool {
        self.occupied == 0
    }

    /// Appends an entry that is in no queue as the newest of its class.
    pub(super) fn push(&mut self, entries: &mut [EvictionEntry], handle: u32) {
        let size = entries[handle as usize].size;
        let list = &mut self.lists[size_class(size)];
        let before = std::mem::replace(&mut list.newest, handle);
        if before == NONE {
            list.oldest = handle;
        } else {
            entries[before as usize].next = handle;
        }
        let entry = &mut entries[handle as usize];
        (entry.previous, entry.next) = (before, NONE);
        self.occupied |= 1 << size_class(size);
        self.bytes += size;
    }

    /// Removes an entry that is in this queue.
    pub(super) fn unlink(&mut self, entries: &mut [EvictionEntry], handle: u32) {
        let EvictionEntry { size, previous, next, .. } = entries[handle as usize];
        let list = &mut self.lists[size_class(size)];
        if previous == NONE {
            list.oldest = next;
        } else {
            entries[previous as usize].next = next;
        }
        if next == NONE {
            list.newest = previous;
        } else {
            entries[next as usize].previous = previous;
        }
        if list.oldest == NONE {
            self.occupied &= !(1 << size_class(size));
        }
        self.bytes -= size;
    }

    /// Returns the entry that is oldest for its size. An entry that is the oldest of its class and
    /// expired by `now` comes first. `None` if the queue is empty.
    pub(super) fn victim(
        &self,
        entries: &[EvictionEntry],
        weights: &Weights,
        tick: u32,
        now: u32,
    ) -> Option<Victim> {
        let mut found: Option<Victim> = None;
        let mut left = self.occupied;
        while left != 0 {
            let class = left.trailing_zeros() as usize;
            left &= left - 1;
            let handle = self.lists[class].oldest;
            let entry = &entries[handle as usize];
            // Every age is at least 1, so that the largest of the entries that were just inserted
            // is chosen.
            let age = tick.wrapping_sub(entry.stamp).saturating_add(1);
            let score = u64::from(age) * weights.0[class];
            if entry.expires <= now {
                return Some(Victim { handle, score });
            }
            if found.as_ref().is_none_or(|found| score >= found.score) {
                found = Some(Victim { handle, score });
            }
        }
        found
    }
}

fn size_class(size: u64) -> usize {
    (size.max(1).ilog2() as usize).min(CLASSES - 1)
}

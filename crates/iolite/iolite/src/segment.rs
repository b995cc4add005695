//! One segment: which of its units are allocated, their generations, and its free gaps.

use crate::limits::UNITS_PER_SEGMENT;

const WORDS: usize = UNITS_PER_SEGMENT / 64;

/// A stretch of [`UNITS_PER_SEGMENT`] units of one size. A unit is in one of three states:
///
/// ```text
///          allocate                 release
///   free ───────────> live ───────────────────> free
///                       │  release, if it was sent or the segment is being evacuated
///                       └─────────────────────> tainted     until the segment is cleared
/// ```
#[derive(Debug)]
pub(crate) struct Segment {
    /// One bit per unit, set unless the unit is free.
    allocated: [u64; WORDS],
    /// Units of extents in use; `live + tainted <= UNITS_PER_SEGMENT`, and as many bits are set.
    live: usize,
    /// Units that are not in use, and cannot be allocated until the segment is cleared.
    pub(crate) tainted: usize,
    /// The length of the longest free gap in units; 0 if there is none.
    pub(crate) longest_gap: usize,
    /// The generation of the extent that each unit belongs to; 0: none.
    generations: Box<[u64; UNITS_PER_SEGMENT]>,
    /// The tag of the extent that begins at each unit.
    tags: Box<[u64; UNITS_PER_SEGMENT]>,
    /// The kernel may refer to some of the memory.
    pub(crate) was_sent: bool,
    /// Nothing is allocated here any more.
    pub(crate) is_evacuating: bool,
    /// The index of this segment in the list of its size class, while `longest_gap > 0`.
    pub(crate) list_index: u32,
}

impl Segment {
    /// Creates a segment whose units are all free.
    pub(crate) fn new() -> Self {
        Self {
            allocated: [0; WORDS],
            live: 0,
            tainted: 0,
            longest_gap: UNITS_PER_SEGMENT,
            generations: Box::new([0; UNITS_PER_SEGMENT]),
            tags: Box::new([0; UNITS_PER_SEGMENT]),
            was_sent: false,
            is_evacuating: false,
            list_index: 0,
        }
    }

    /// Frees all units of a segment without units in use.
    pub(crate) fn clear(&mut self) {
        assert!(self.live == 0, "released units have no generation");
        self.allocated = [0; WORDS];
        self.tainted = 0;
        self.longest_gap = UNITS_PER_SEGMENT;
        self.was_sent = false;
        self.is_evacuating = false;
    }

    pub(crate) fn free_units(&self) -> usize {
        UNITS_PER_SEGMENT - self.live - self.tainted
    }

    /// Allocates `units` units for an extent of `generation` in the first gap that has room, and
    /// returns the index of the first one.
    ///
    /// # Panics
    /// If no gap is that long: see `longest_gap`.
    pub(crate) fn allocate(&mut self, units: usize, generation: u64, tag: u64) -> usize {
        assert!(0 < units && units <= self.longest_gap && generation > 0);
        let (start, gap) =
            self.gaps().find(|(_, gap)| *gap >= units).expect("the longest gap is one of them");
        self.toggle(start, units, true);
        self.generations[start..start + units].fill(generation);
        self.tags[start] = tag;
        self.live += units;
        if gap == self.longest_gap {
            self.update_longest_gap();
        }
        start
    }

    /// Releases `units` of an extent from `start` on. `was_sent`: the extent was sent zero-copy.
    ///
    /// # Panics
    /// If some of the units do not belong to `generation`: the caller releases memory that it does
    /// not own.
    pub(crate) fn release(&mut self, start: usize, units: usize, generation: u64, was_sent: bool) {
        let given = &mut self.generations[start..start + units];
        assert!(given.iter().all(|of| *of == generation) && generation > 0);
        given.fill(0);
        self.live -= units;
        self.was_sent |= was_sent;
        if was_sent || self.is_evacuating {
            self.tainted += units;
        } else {
            self.toggle(start, units, false);
            self.update_longest_gap();
        }
    }

    /// Gives the extent a new generation, because its bytes are about to change.
    pub(crate) fn set_generation(
        &mut self,
        start: usize,
        units: usize,
        before: u64,
        generation: u64,
    ) {
        let renewed = &mut self.generations[start..start + units];
        assert!(renewed.iter().all(|of| *of == before) && generation > before);
        renewed.fill(generation);
    }

    /// Returns whether all `units` from `start` on belong to the extent of `generation`.
    pub(crate) fn has_generation(&self, start: usize, units: usize, generation: u64) -> bool {
        generation > 0 && self.generations[start..start + units].iter().all(|of| *of == generation)
    }

    /// Stops allocating from this segment: from now on its free units count as tainted.
    pub(crate) fn start_evacuation(&mut self) {
        self.tainted += self.free_units();
        self.allocated = [u64::MAX; WORDS];
        self.longest_gap = 0;
        self.is_evacuating = true;
    }

    /// Returns the tags of the extents in use, in the order of their positions.
    pub(crate) fn held_tags(&self) -> impl Iterator<Item = u64> {
        let begins = |unit: &usize| {
            let generation = self.generations[*unit];
            generation > 0 && (*unit == 0 || self.generations[*unit - 1] != generation)
        };
        (0..UNITS_PER_SEGMENT).filter(begins).map(|unit| self.tags[unit])
    }

    /// Returns the start and length of each free gap.
    fn gaps(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.next_unit(from, u64::MAX);
            if start == UNITS_PER_SEGMENT {
                return None;
            }
            from = self.next_unit(start, 0);
            Some((start, from - start))
        })
    }

    /// Returns the first unit at or after `from` whose bit differs from those of `flip`, or
    /// [`UNITS_PER_SEGMENT`].
    fn next_unit(&self, from: usize, flip: u64) -> usize {
        if from == UNITS_PER_SEGMENT {
            return UNITS_PER_SEGMENT;
        }
        let mut word = from / 64;
        let mut bits = (self.allocated[word] ^ flip) & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            if word == WORDS {
                return UNITS_PER_SEGMENT;
            }
            bits = self.allocated[word] ^ flip;
        }
        word * 64 + bits.trailing_zeros() as usize
    }

    fn toggle(&mut self, start: usize, units: usize, allocated: bool) {
        let mut unit = start;
        while unit < start + units {
            let count = (64 - unit % 64).min(start + units - unit);
            let bits = (u64::MAX >> (64 - count)) << (unit % 64);
            let word = &mut self.allocated[unit / 64];
            assert_eq!(*word & bits, if allocated { 0 } else { bits }, "a unit has one owner");
            *word ^= bits;
            unit += count;
        }
    }

    fn update_longest_gap(&mut self) {
        self.longest_gap = self.gaps().map(|(_, gap)| gap).max().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_allocated_and_released_across_words() {
        let mut segment = Segment::new();
        assert_eq!(segment.allocate(60, 1, 10), 0);
        assert_eq!(segment.allocate(200, 2, 20), 60);
        assert_eq!(segment.allocate(252, 3, 30), 260);
        assert_eq!(
            (segment.longest_gap, segment.free_units(), segment.live),
            (0, 0, UNITS_PER_SEGMENT)
        );
        assert_eq!(segment.held_tags().collect::<Vec<_>>(), [10, 20, 30]);
        segment.release(60, 200, 2, false);
        assert_eq!(segment.longest_gap, 200);
        assert!(
            !segment.has_generation(60, 200, 2)
                && segment.has_generation(0, 60, 1)
                && !segment.has_generation(0, 61, 1)
        );
        // The tail of an extent is released before the rest.
        segment.release(500, 12, 3, false);
        assert_eq!((segment.longest_gap, segment.free_units()), (200, 212));
        assert_eq!(segment.allocate(12, 4, 40), 60);
        segment.release(260, 240, 3, false);
        assert_eq!(segment.longest_gap, UNITS_PER_SEGMENT - 72);
    }

    #[test]
    fn sent_units_are_not_allocated_again() {
        let mut segment = Segment::new();
        segment.allocate(100, 1, 0);
        segment.release(0, 100, 1, true);
        assert_eq!((segment.tainted, segment.free_units(), segment.longest_gap), (100, 412, 412));
        assert_eq!(segment.allocate(412, 2, 0), 100);
        segment.release(100, 412, 2, false);
        segment.start_evacuation();
        assert_eq!((segment.tainted, segment.longest_gap), (UNITS_PER_SEGMENT, 0));
        segment.clear();
        assert_eq!(
            (segment.tainted, segment.longest_gap, segment.allocate(UNITS_PER_SEGMENT, 3, 0)),
            (0, UNITS_PER_SEGMENT, 0)
        );
    }

    #[test]
    #[should_panic(expected = "all(|of| *of == generation)")]
    fn releasing_foreign_units_panics() {
        let mut segment = Segment::new();
        segment.allocate(10, 1, 0);
        segment.allocate(10, 2, 0);
        segment.release(5, 10, 1, false);
    }

    #[test]
    fn adjacent_extents_are_distinct() {
        let mut segment = Segment::new();
        segment.allocate(1, 1, 7);
        segment.allocate(1, 2, 8);
        segment.allocate(1, 3, 9);
        segment.release(1, 1, 2, false);
        assert_eq!(segment.held_tags().collect::<Vec<_>>(), [7, 9]);
    }
}

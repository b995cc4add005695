//! One area: which of its units are taken, by which generation, and where there is room.

use crate::limits::UNITS_PER_SEGMENT;

const WORDS: usize = UNITS_PER_SEGMENT / 64;

/// A stretch of [`UNITS`] units of one size. A unit is in one of three states:
///
/// ```text
///            take                    give
///   free ───────────> live ───────────────────> free
///                       │  give, if it was sent, or the area is condemned
///                       └─────────────────────> spoiled     until the area is cleared
/// ```
#[derive(Debug)]
pub(crate) struct Segment {
    /// A bit a unit, set where it is not free.
    allocated: [u64; WORDS],
    /// Units of runs that somebody holds; `live + spoiled <= UNITS`, and as many bits are set.
    live: usize,
    /// Units that nobody holds and nobody may write to.
    pub(crate) tainted: usize,
    /// Free units side by side, at most; 0 when there is none.
    pub(crate) longest_gap: usize,
    /// The generation of the run that each unit belongs to; 0: none.
    generations: Box<[u64; UNITS_PER_SEGMENT]>,
    /// What the holder of the run that begins at a unit is found by.
    tags: Box<[u64; UNITS_PER_SEGMENT]>,
    /// The kernel may refer to some of it.
    pub(crate) was_sent: bool,
    /// No run is taken here any more.
    pub(crate) is_evacuating: bool,
    /// Where in the list of its level it stands, while `longest > 0`.
    pub(crate) list_index: u32,
}

impl Segment {
    /// All units free.
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

    /// Makes all units free again, of an area that nobody holds anything of.
    pub(crate) fn clear(&mut self) {
        assert!(self.live == 0, "units are cleared of their generations as they are given");
        self.allocated = [0; WORDS];
        self.tainted = 0;
        self.longest_gap = UNITS_PER_SEGMENT;
        self.was_sent = false;
        self.is_evacuating = false;
    }

    pub(crate) fn free_units(&self) -> usize {
        UNITS_PER_SEGMENT - self.live - self.tainted
    }

    /// Takes the first `units` side by side for a run of `generation`, and gives where they begin.
    ///
    /// # Panics
    /// When there are not so many: `longest` says how many there are.
    pub(crate) fn allocate(&mut self, units: usize, generation: u64, tag: u64) -> usize {
        assert!(0 < units && units <= self.longest_gap && generation > 0);
        let (start, gap) =
            self.gaps().find(|(_, gap)| *gap >= units).expect("the longest is one of them");
        self.toggle(start, units, true);
        self.generations[start..start + units].fill(generation);
        self.tags[start] = tag;
        self.live += units;
        if gap == self.longest_gap {
            self.update_longest_gap();
        }
        start
    }

    /// Takes back `units` of a run from `start` on; `sent`: by reference.
    ///
    /// # Panics
    /// When they are not all of that `generation`: somebody gives what is not theirs.
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

    /// Gives the run another generation, as its bytes are about to change.
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

    /// Whether all `units` from `start` on belong to the run of `generation`.
    pub(crate) fn has_generation(&self, start: usize, units: usize, generation: u64) -> bool {
        generation > 0 && self.generations[start..start + units].iter().all(|of| *of == generation)
    }

    /// Lets nothing more be taken here: what is free counts as spoiled from now on.
    pub(crate) fn start_evacuation(&mut self) {
        self.tainted += self.free_units();
        self.allocated = [u64::MAX; WORDS];
        self.longest_gap = 0;
        self.is_evacuating = true;
    }

    /// The tags of the runs that somebody holds, in the order of their places.
    pub(crate) fn held_tags(&self) -> impl Iterator<Item = u64> {
        let begins = |unit: &usize| {
            let generation = self.generations[*unit];
            generation > 0 && (*unit == 0 || self.generations[*unit - 1] != generation)
        };
        (0..UNITS_PER_SEGMENT).filter(begins).map(|unit| self.tags[unit])
    }

    /// Free stretches: where they begin and their lengths.
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

    /// The first unit at or after `from` whose bit differs from those of `flip`, or [`UNITS`].
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
    fn units_are_taken_and_given_across_words() {
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
        // The end of a run is given back before the rest of it.
        segment.release(500, 12, 3, false);
        assert_eq!((segment.longest_gap, segment.free_units()), (200, 212));
        assert_eq!(segment.allocate(12, 4, 40), 60);
        segment.release(260, 240, 3, false);
        assert_eq!(segment.longest_gap, UNITS_PER_SEGMENT - 72);
    }

    #[test]
    fn what_was_sent_is_not_taken_again() {
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
    fn nobody_gives_what_is_not_theirs() {
        let mut segment = Segment::new();
        segment.allocate(10, 1, 0);
        segment.allocate(10, 2, 0);
        segment.release(5, 10, 1, false);
    }

    #[test]
    fn two_runs_side_by_side_are_two() {
        let mut segment = Segment::new();
        segment.allocate(1, 1, 7);
        segment.allocate(1, 2, 8);
        segment.allocate(1, 3, 9);
        segment.release(1, 1, 2, false);
        assert_eq!(segment.held_tags().collect::<Vec<_>>(), [7, 9]);
    }
}

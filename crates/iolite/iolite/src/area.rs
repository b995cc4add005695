//! One area: which of its units are taken, by which generation, and where there is room.

use crate::limits::UNITS;

const WORDS: usize = UNITS / 64;

/// A stretch of [`UNITS`] units of one size. A unit is in one of three states:
///
/// ```text
///            take                    give
///   free ───────────> live ───────────────────> free
///                       │  give, if it was sent, or the area is condemned
///                       └─────────────────────> spoiled     until the area is cleared
/// ```
#[derive(Debug)]
pub(crate) struct Area {
    /// A bit a unit, set where it is not free.
    taken: [u64; WORDS],
    /// Units of runs that somebody holds; `live + spoiled <= UNITS`, and as many bits are set.
    live: usize,
    /// Units that nobody holds and nobody may write to.
    pub(crate) spoiled: usize,
    /// Free units side by side, at most; 0 when there is none.
    pub(crate) longest: usize,
    /// The generation of the run that each unit belongs to; 0: none.
    generations: Box<[u64; UNITS]>,
    /// What the holder of the run that begins at a unit is found by.
    tags: Box<[u64; UNITS]>,
    /// The kernel may refer to some of it.
    pub(crate) sent: bool,
    /// No run is taken here any more.
    pub(crate) condemned: bool,
    /// Where in the list of its level it stands, while `longest > 0`.
    pub(crate) place: u32,
}

impl Area {
    /// All units free.
    pub(crate) fn new() -> Self {
        Self {
            taken: [0; WORDS],
            live: 0,
            spoiled: 0,
            longest: UNITS,
            generations: Box::new([0; UNITS]),
            tags: Box::new([0; UNITS]),
            sent: false,
            condemned: false,
            place: 0,
        }
    }

    /// Makes all units free again, of an area that nobody holds anything of.
    pub(crate) fn clear(&mut self) {
        assert!(self.live == 0, "units are cleared of their generations as they are given");
        self.taken = [0; WORDS];
        self.spoiled = 0;
        self.longest = UNITS;
        self.sent = false;
        self.condemned = false;
    }

    pub(crate) fn free(&self) -> usize {
        UNITS - self.live - self.spoiled
    }

    /// Takes the first `units` side by side for a run of `generation`, and gives where they begin.
    ///
    /// # Panics
    /// When there are not so many: `longest` says how many there are.
    pub(crate) fn take(&mut self, units: usize, generation: u64, tag: u64) -> usize {
        assert!(0 < units && units <= self.longest && generation > 0);
        let (start, gap) =
            self.gaps().find(|(_, gap)| *gap >= units).expect("the longest is one of them");
        self.mark(start, units, true);
        self.generations[start..start + units].fill(generation);
        self.tags[start] = tag;
        self.live += units;
        if gap == self.longest {
            self.measure();
        }
        start
    }

    /// Takes back `units` of a run from `start` on; `sent`: by reference.
    ///
    /// # Panics
    /// When they are not all of that `generation`: somebody gives what is not theirs.
    pub(crate) fn give(&mut self, start: usize, units: usize, generation: u64, sent: bool) {
        let given = &mut self.generations[start..start + units];
        assert!(given.iter().all(|of| *of == generation) && generation > 0);
        given.fill(0);
        self.live -= units;
        self.sent |= sent;
        if sent || self.condemned {
            self.spoiled += units;
        } else {
            self.mark(start, units, false);
            self.measure();
        }
    }

    /// Gives the run another generation, as its bytes are about to change.
    pub(crate) fn renew(&mut self, start: usize, units: usize, before: u64, generation: u64) {
        let renewed = &mut self.generations[start..start + units];
        assert!(renewed.iter().all(|of| *of == before) && generation > before);
        renewed.fill(generation);
    }

    /// Whether all `units` from `start` on belong to the run of `generation`.
    pub(crate) fn is_of(&self, start: usize, units: usize, generation: u64) -> bool {
        generation > 0 && self.generations[start..start + units].iter().all(|of| *of == generation)
    }

    /// Lets nothing more be taken here: what is free counts as spoiled from now on.
    pub(crate) fn condemn(&mut self) {
        self.spoiled += self.free();
        self.taken = [u64::MAX; WORDS];
        self.longest = 0;
        self.condemned = true;
    }

    /// The tags of the runs that somebody holds, in the order of their places.
    pub(crate) fn tags(&self) -> impl Iterator<Item = u64> {
        let begins = |unit: &usize| {
            let generation = self.generations[*unit];
            generation > 0 && (*unit == 0 || self.generations[*unit - 1] != generation)
        };
        (0..UNITS).filter(begins).map(|unit| self.tags[unit])
    }

    /// Free stretches: where they begin and their lengths.
    fn gaps(&self) -> impl Iterator<Item = (usize, usize)> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.next(from, u64::MAX);
            if start == UNITS {
                return None;
            }
            from = self.next(start, 0);
            Some((start, from - start))
        })
    }

    /// The first unit at or after `from` whose bit differs from those of `flip`, or [`UNITS`].
    fn next(&self, from: usize, flip: u64) -> usize {
        if from == UNITS {
            return UNITS;
        }
        let mut word = from / 64;
        let mut bits = (self.taken[word] ^ flip) & (u64::MAX << (from % 64));
        while bits == 0 {
            word += 1;
            if word == WORDS {
                return UNITS;
            }
            bits = self.taken[word] ^ flip;
        }
        word * 64 + bits.trailing_zeros() as usize
    }

    fn mark(&mut self, start: usize, units: usize, taken: bool) {
        let mut unit = start;
        while unit < start + units {
            let count = (64 - unit % 64).min(start + units - unit);
            let bits = (u64::MAX >> (64 - count)) << (unit % 64);
            let word = &mut self.taken[unit / 64];
            assert_eq!(*word & bits, if taken { 0 } else { bits }, "a unit has one owner");
            *word ^= bits;
            unit += count;
        }
    }

    fn measure(&mut self) {
        self.longest = self.gaps().map(|(_, gap)| gap).max().unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_taken_and_given_across_words() {
        let mut area = Area::new();
        assert_eq!(area.take(60, 1, 10), 0);
        assert_eq!(area.take(200, 2, 20), 60);
        assert_eq!(area.take(252, 3, 30), 260);
        assert_eq!((area.longest, area.free(), area.live), (0, 0, UNITS));
        assert_eq!(area.tags().collect::<Vec<_>>(), [10, 20, 30]);
        area.give(60, 200, 2, false);
        assert_eq!(area.longest, 200);
        assert!(!area.is_of(60, 200, 2) && area.is_of(0, 60, 1) && !area.is_of(0, 61, 1));
        // The end of a run is given back before the rest of it.
        area.give(500, 12, 3, false);
        assert_eq!((area.longest, area.free()), (200, 212));
        assert_eq!(area.take(12, 4, 40), 60);
        area.give(260, 240, 3, false);
        assert_eq!(area.longest, UNITS - 72);
    }

    #[test]
    fn what_was_sent_is_not_taken_again() {
        let mut area = Area::new();
        area.take(100, 1, 0);
        area.give(0, 100, 1, true);
        assert_eq!((area.spoiled, area.free(), area.longest), (100, 412, 412));
        assert_eq!(area.take(412, 2, 0), 100);
        area.give(100, 412, 2, false);
        area.condemn();
        assert_eq!((area.spoiled, area.longest), (UNITS, 0));
        area.clear();
        assert_eq!((area.spoiled, area.longest, area.take(UNITS, 3, 0)), (0, UNITS, 0));
    }

    #[test]
    #[should_panic(expected = "all(|of| *of == generation)")]
    fn nobody_gives_what_is_not_theirs() {
        let mut area = Area::new();
        area.take(10, 1, 0);
        area.take(10, 2, 0);
        area.give(5, 10, 1, false);
    }

    #[test]
    fn two_runs_side_by_side_are_two() {
        let mut area = Area::new();
        area.take(1, 1, 7);
        area.take(1, 2, 8);
        area.take(1, 3, 9);
        area.give(1, 1, 2, false);
        assert_eq!(area.tags().collect::<Vec<_>>(), [7, 9]);
    }
}

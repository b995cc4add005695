//! Pseudorandom numbers for mutants.

/// A pseudorandom sequence: SplitMix64, from one seed.
#[derive(Clone)]
pub struct Random(u64);

impl Random {
    /// Returns the sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the sequence of one mutant of a seed. Each can be generated alone.
    pub fn of(seed: u64, index: u64) -> Self {
        let mut random = Self(seed);
        Self(random.next() ^ index.wrapping_mul(0xff51_afd7_ed55_8ccd))
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number in `0..bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = (bound as u64).max(1);
        usize::try_from(self.next() % bound).expect("below a usize")
    }

    /// Returns one of `choices`, which must not be empty.
    pub fn choose<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }
}

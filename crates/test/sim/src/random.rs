//! The only source of random numbers of a world. It is a PCG generator, whose numbers are the same
//! on every machine and in every release, so that a seed identifies a run permanently.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// A random number generator with a seed.
#[derive(Debug)]
pub struct SeededRandom(Pcg64Mcg);

impl SeededRandom {
    /// Creates the generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// Returns 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns a number in `0..bound`. The bias towards small numbers is below `bound / 2^64`.
    ///
    /// # Panics
    /// Panics if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// Returns a number in `low..=high`.
    ///
    /// # Panics
    /// Panics if `high < low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// Returns a length in `1..=max`. It is drawn from `1..=bound`, where `bound` is a random power
    /// of two up to 2^20, and limited to `max`. So lengths of every order of magnitude occur, and a
    /// small `max` is the most common one.
    ///
    /// # Panics
    /// Panics if `max` is 0.
    pub fn length(&mut self, max: usize) -> usize {
        assert!(max > 0);
        let bound = 1_u64.checked_shl(self.between(0, 20) as u32).unwrap_or(1);
        (self.below(bound) as usize + 1).min(max)
    }

    /// Returns true in `per_thousand` of a thousand cases.
    pub fn chance(&mut self, per_thousand: u64) -> bool {
        per_thousand > 0 && self.below(1000) < per_thousand
    }

    /// Returns one of `choices`.
    ///
    /// # Panics
    /// Panics if `choices` is empty.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Shuffles `items`.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_in_their_bounds_and_depend_on_the_seed_alone() {
        let draw = |seed| {
            let mut random = SeededRandom::new(seed);
            for _ in 0..1000 {
                assert!(random.below(7) < 7);
                assert!((3..=5).contains(&random.between(3, 5)));
                assert!((1..=100).contains(&random.length(100)));
                assert!(!random.chance(0) && random.chance(1000));
            }
            let mut items = [0, 1, 2, 3, 4, 5, 6, 7];
            random.shuffle(&mut items);
            (items, random.next_u64())
        };
        assert_eq!(draw(1), draw(1));
        assert_ne!(draw(1), draw(2));
    }
}

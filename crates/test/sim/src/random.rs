//! The one source of chance of a world: a PCG generator, whose numbers are the same on every
//! machine and in every release, so that a seed names a run for good.

use rand_core::{Rng, SeedableRng};
use rand_pcg::Pcg64Mcg;

/// Chance, drawn from a seed.
#[derive(Debug)]
pub struct SeededRandom(Pcg64Mcg);

impl SeededRandom {
    /// The generator that `seed` names.
    pub fn new(seed: u64) -> Self {
        Self(Pcg64Mcg::seed_from_u64(seed))
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number in `0..bound`. The bias towards small numbers is below `bound / 2^64`.
    ///
    /// # Panics
    /// When `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next_u64() % bound
    }

    /// A number in `low..=high`.
    ///
    /// # Panics
    /// When `high < low`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        assert!(low <= high);
        low + self.below(high - low + 1)
    }

    /// A length in `1..=max`, each power of two as likely as the next: so that one byte is as
    /// common as a thousand.
    ///
    /// # Panics
    /// When `max` is 0.
    pub fn length(&mut self, max: usize) -> usize {
        assert!(max > 0);
        let bound = 1_u64.checked_shl(self.between(0, 20) as u32).unwrap_or(1);
        (self.below(bound) as usize + 1).min(max)
    }

    /// True in `per_thousand` of a thousand cases.
    pub fn chance(&mut self, per_thousand: u64) -> bool {
        per_thousand > 0 && self.below(1000) < per_thousand
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// When there is none.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Puts `items` in a random order.
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

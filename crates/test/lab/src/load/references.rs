//! The order of requests for the files of a set: popularity and temporal locality.

use std::collections::VecDeque;

use rand_distr::{Distribution, LogNormal};
use rand_pcg::Pcg64;

use crate::load::file_set::FileSet;
use crate::trace::{below, seeded};

/// An endless sequence of requests for files.
///
/// In each round, a file is requested as often as its set says. Its requests come in bursts of up
/// to [`BURST_MAX`], which begin in random order. Within bursts, the stack distance decides: the
/// next file is the one with requests left whose place in the LRU stack is the nearest to a draw of
/// the lognormal distribution.
///
/// SURGE lets the stack alone decide. Then a short run depends on the files that are at the top
/// of the stack when it begins. With bursts, each part of a round has nearly the same popularity.
#[derive(Debug)]
pub struct References {
    counts: Vec<u32>,
    /// The bursts of this round that have not begun: the file, and its requests.
    bursts: Vec<(u32, u32)>,
    /// Files by their last request, the latest first.
    stack: VecDeque<u32>,
    /// The requests left of the bursts that have begun, by file.
    pending: Vec<u32>,
    /// The sum of `pending`.
    pending_count: u32,
    distance: LogNormal<f64>,
    random: Pcg64,
}

/// The most requests of a burst.
const BURST_MAX: u32 = 8;
/// A burst begins when fewer requests of others are left.
const PENDING_MIN: u32 = 64;

impl References {
    /// Begins a sequence. The same seed makes the same one.
    pub fn new(set: &FileSet, seed: u64) -> Self {
        let counts: Vec<u32> = set.files().iter().map(|file| file.requests).collect();
        Self {
            bursts: Vec::new(),
            stack: VecDeque::new(),
            pending: vec![0; counts.len()],
            pending_count: 0,
            counts,
            distance: LogNormal::new(1.5, 0.80).expect("a valid deviation"),
            random: seeded(u128::from(seed) << 64),
        }
    }

    /// Returns the next file.
    pub fn draw(&mut self) -> u32 {
        let file = if self.pending_count < PENDING_MIN { self.begin_burst() } else { self.go_on() };
        self.pending[file as usize] -= 1;
        self.pending_count -= 1;
        file
    }

    /// Begins a burst, and returns its file, which is now at the top of the stack.
    fn begin_burst(&mut self) -> u32 {
        if self.bursts.is_empty() {
            self.begin_round();
        }
        let place = below(&mut self.random, self.bursts.len() as u32) as usize;
        let (file, requests) = self.bursts.swap_remove(place);
        self.pending[file as usize] += requests;
        self.pending_count += requests;
        if let Some(place) = self.stack.iter().position(|&other| other == file) {
            self.stack.remove(place);
        }
        self.stack.push_front(file);
        file
    }

    fn begin_round(&mut self) {
        for (file, &count) in self.counts.iter().enumerate() {
            for begin in (0..count).step_by(BURST_MAX as usize) {
                self.bursts.push((file as u32, (count - begin).min(BURST_MAX)));
            }
        }
    }

    /// Continues a burst, and returns its file, which is now at the top of the stack.
    fn go_on(&mut self) -> u32 {
        let wanted = (self.distance.sample(&mut self.random) as usize).min(self.stack.len() - 1);
        let has_pending = |place: usize| {
            self.stack.get(place).is_some_and(|&file| self.pending[file as usize] > 0)
        };
        let nearest = (0..self.stack.len()).find_map(|step| {
            let above = wanted.checked_sub(step).filter(|&place| has_pending(place));
            above.or_else(|| has_pending(wanted + step).then_some(wanted + step))
        });
        let place = nearest.expect("a file with requests left has been requested before");
        let file = self.stack.remove(place).expect("the place was found just now");
        self.stack.push_front(file);
        file
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::file_set::FileSetModel;

    fn mean_size(set: &FileSet, files: &[u32]) -> f64 {
        let bytes: u64 = files.iter().map(|&file| set.files()[file as usize].bytes).sum();
        bytes as f64 / files.len() as f64
    }

    #[test]
    fn a_round_has_each_file_as_often_as_its_set_says() {
        let set = FileSet::new(FileSetModel { files: 200, size_max: 1e6 });
        let mut references = References::new(&set, 3);
        let round: u32 = set.files().iter().map(|file| file.requests).sum();
        let mut counts = vec![0; 200];
        // Bursts of the round are still under way when the next one begins.
        for _ in 0..10 * round + PENDING_MIN {
            counts[references.draw() as usize] += 1;
        }
        for (file, count) in set.files().iter().zip(counts) {
            let wanted = 10 * file.requests;
            assert!(wanted <= count + PENDING_MIN && count <= wanted + PENDING_MIN);
        }
    }

    #[test]
    fn stack_distances_are_short() {
        let set = FileSet::new(FileSetModel::BOOSTER);
        let mut references = References::new(&set, 1);
        let (mut stack, mut distances) = (VecDeque::new(), Vec::new());
        for _ in 0..20_000 {
            let file = references.draw();
            let place = stack.iter().position(|&other: &u32| other == file);
            distances.push(place.unwrap_or(usize::MAX));
            place.map(|place| stack.remove(place));
            stack.push_front(file);
        }
        distances.sort_unstable();
        let median = distances[distances.len() / 2];
        // Half of the draws of the distribution are below e^1.5 = 4.5. Independent requests with
        // the same popularity have a median of more than 100.
        assert!((3..=9).contains(&median), "{median}");
    }

    #[test]
    fn each_part_of_a_round_has_the_same_mean_size() {
        let set = FileSet::new(FileSetModel::BOOSTER);
        let mut references = References::new(&set, 1);
        let files: Vec<u32> = (0..20_000).map(|_| references.draw()).collect();
        // Without the large files, of which a part has few.
        let small: Vec<u32> =
            files.into_iter().filter(|&file| set.files()[file as usize].bytes < 20_000).collect();
        let mean = mean_size(&set, &small);
        for part in small.chunks_exact(small.len() / 4) {
            let of_part = mean_size(&set, part);
            assert!((of_part / mean - 1.0).abs() < 0.1, "{of_part} of {mean}");
        }
    }
}

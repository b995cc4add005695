//! The files of SURGE: their sizes, and how often each is requested.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use rand_distr::Distribution;

use crate::load::pattern::Pattern;
use crate::trace::{SurgeSizes, TAIL_INDEX, TAIL_SHARE, TAIL_SIZE_MIN, seeded};

/// Files with numbers from 0, their sizes and their popularity.
///
/// Sizes are the quantiles of the model, so they have no noise of a sample. The requests for files
/// follow Zipf's law: the k-th most popular has `files / k` requests of a round, rounded. Files are
/// matched with these counts so that the sizes of requested files fit a Pareto distribution: each
/// count in descending order gets the file whose size is the nearest to its quantile.
#[derive(Clone, Debug)]
pub struct FileSet {
    files: Vec<FileOfSet>,
}

/// A file of a set. The number of the file is its index.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileOfSet {
    /// Its length in bytes, at least 1.
    pub bytes: u64,
    /// The number of requests for it in one round of all files, at least 1.
    pub requests: u32,
}

/// The parameters of a set that differ between presets.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FileSetModel {
    /// The number of files, at least 1.
    pub files: u32,
    /// The size at which the Pareto tail of sizes is cut, above [`TAIL_SIZE_MIN`].
    pub size_max: f64,
}

impl FileSetModel {
    /// The files of the paper: 146 MB in total, and a requested file has 10 KB on average. These
    /// parameters are chosen so that both are met: more files add bytes, and a lower bound lowers
    /// the mean of requested files more than the total.
    pub const BOOSTER: Self = Self { files: 2_414, size_max: 8e6 };
    /// The base set of SURGE: 2,000 files, whose tail is not cut.
    pub const SURGE: Self = Self { files: 2_000, size_max: f64::INFINITY };

    /// Returns the model with this name.
    pub fn of_preset(name: &str) -> Option<Self> {
        match name {
            "booster" => Some(Self::BOOSTER),
            "surge" => Some(Self::SURGE),
            _ => None,
        }
    }
}

/// The names of presets, for errors and help.
pub const PRESETS: &str = "booster, surge";

/// The least requested size of the Pareto distribution with a tail index of 1.
const REQUESTED_MIN: f64 = 1000.0;
/// The draws of the lognormal distribution for each quantile. The generator's seed is fixed.
const DRAWS_PER_QUANTILE: usize = 31;
/// The seed of the draws, and of the order of sizes among numbers.
const SEED: u128 = 146;

impl FileSet {
    /// Creates the set of a model. It is always the same, so any run can check the files that
    /// another one has written.
    pub fn new(model: FileSetModel) -> Self {
        let mut random = seeded(SEED);
        let mut sizes = sizes(model);
        let counts = zipf_counts(model.files);
        let total: u64 = counts.iter().map(|&count| u64::from(count)).sum();
        let (mut files, mut earlier) = (Vec::with_capacity(counts.len()), 0.0);
        for requests in counts {
            let quantile = (earlier + f64::from(requests) / 2.0) / total as f64;
            earlier += f64::from(requests);
            let bytes = take_nearest(&mut sizes, REQUESTED_MIN / (1.0 - quantile));
            files.push(FileOfSet { bytes, requests });
        }
        // Numbers must not be in the order of popularity: file systems and caches could profit.
        for last in (1..files.len()).rev() {
            files.swap(last, crate::trace::below(&mut random, last as u32 + 1) as usize);
        }
        Self { files }
    }

    /// Returns the files. The index of a file is its number.
    pub fn files(&self) -> &[FileOfSet] {
        &self.files
    }

    /// Returns the bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the mean size of requested files in bytes: each file counts once for each request.
    pub fn mean_requested_bytes(&self) -> f64 {
        let requests: u64 = self.files.iter().map(|file| u64::from(file.requests)).sum();
        let bytes: u64 = self.files.iter().map(|file| file.bytes * u64::from(file.requests)).sum();
        bytes as f64 / requests as f64
    }

    /// Returns the largest difference between the share of requests for files up to a size and its
    /// share in the Pareto distribution.
    pub fn distance_from_pareto(&self) -> f64 {
        let mut files = self.files.clone();
        files.sort_by_key(|file| file.bytes);
        let total: f64 = files.iter().map(|file| f64::from(file.requests)).sum();
        let (mut share, mut distance) = (0.0, 0.0_f64);
        for file in files {
            let wanted = (1.0 - REQUESTED_MIN / file.bytes as f64).max(0.0);
            distance = distance.max((wanted - share).abs());
            share += f64::from(file.requests) / total;
            distance = distance.max((wanted - share).abs());
        }
        distance
    }

    /// Writes each file below a directory, which must exist. The name of a file is its number.
    ///
    /// # Errors
    /// One line that names the file and the error.
    pub fn write(&self, directory: &Path) -> Result<(), String> {
        let pattern = Pattern::new();
        let mut bytes = Vec::new();
        for (number, file) in self.files.iter().enumerate() {
            bytes.resize(file.bytes as usize, 0);
            pattern.fill(number as u32, 0, &mut bytes);
            let path = directory.join(number.to_string());
            let written = File::create(&path).and_then(|mut to| to.write_all(&bytes));
            written.map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(())
    }
}

/// Returns the sizes of a model in ascending order.
fn sizes(model: FileSetModel) -> Vec<u64> {
    let tail = (f64::from(model.files) * TAIL_SHARE).round() as usize;
    let body = model.files as usize - tail;
    let (surge, mut random) = (SurgeSizes::new(), seeded(SEED));
    let draws = body * DRAWS_PER_QUANTILE;
    let mut draws: Vec<f64> = (0..draws).map(|_| surge.body.sample(&mut random)).collect();
    draws.sort_by(f64::total_cmp);
    let medians = draws.chunks(DRAWS_PER_QUANTILE).map(|chunk| chunk[chunk.len() / 2]);
    let below_cut = 1.0 - (TAIL_SIZE_MIN / model.size_max).powf(TAIL_INDEX);
    let tail = (0..tail).map(|place| {
        let quantile = (place as f64 + 0.5) / tail as f64 * below_cut;
        TAIL_SIZE_MIN * (1.0 - quantile).powf(-1.0 / TAIL_INDEX)
    });
    let mut sizes: Vec<u64> = medians.chain(tail).map(|size| size.max(1.0) as u64).collect();
    sizes.sort_unstable();
    sizes
}

/// Returns the number of requests for each of `files` files in descending order.
fn zipf_counts(files: u32) -> Vec<u32> {
    (1..=files).map(|rank| (f64::from(files) / f64::from(rank)).round() as u32).collect()
}

/// Removes the size from an ascending list that differs from `wanted` by the smallest factor.
fn take_nearest(sizes: &mut Vec<u64>, wanted: f64) -> u64 {
    let above = sizes.partition_point(|&size| (size as f64) < wanted);
    let is_below_nearer = match (above.checked_sub(1), sizes.get(above)) {
        (Some(below), Some(&above)) => wanted / (sizes[below] as f64) < above as f64 / wanted,
        (below, _) => below.is_some(),
    };
    sizes.remove(above - usize::from(is_below_nearer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_booster_preset_has_the_statistics_of_the_paper() {
        let set = FileSet::new(FileSetModel::BOOSTER);
        let total = set.total_bytes() as f64;
        assert!((total / 146e6 - 1.0).abs() < 0.01, "{total} bytes in total");
        let mean = set.mean_requested_bytes();
        assert!((mean / 10e3 - 1.0).abs() < 0.05, "{mean} bytes requested");
        // The most popular file has 12 % of the requests, so no set comes nearer than half of it.
        let distance = set.distance_from_pareto();
        assert!(distance < 0.07, "{distance} from the Pareto distribution");
        // The Pareto distribution has a median of 2,000 bytes.
        let mut files = set.files().to_vec();
        files.sort_by_key(|file| file.bytes);
        let all: u32 = files.iter().map(|file| file.requests).sum();
        let mut requests = 0;
        let median = files.iter().find(|file| {
            requests += file.requests;
            2 * requests >= all
        });
        let median = median.unwrap().bytes;
        assert!((1_900..2_100).contains(&median), "{median} bytes");
        assert_eq!(files.last().unwrap().bytes, 6_460_203);
    }

    #[test]
    fn the_surge_preset_has_the_base_set() {
        let set = FileSet::new(FileSetModel::SURGE);
        assert_eq!(set.files().len(), 2_000);
        assert!(set.distance_from_pareto() < 0.07);
        // Its largest files dominate the total, so this is the natural size of the model.
        let total = set.total_bytes() as f64;
        assert!((total / 147e6 - 1.0).abs() < 0.02, "{total} bytes in total");
    }

    #[test]
    fn requests_follow_zipfs_law_and_numbers_do_not() {
        let set = FileSet::new(FileSetModel::SURGE);
        let mut requests: Vec<u32> = set.files().iter().map(|file| file.requests).collect();
        let first_half: u32 = requests[..1000].iter().sum();
        let all: u32 = requests.iter().sum();
        assert!(all * 3 / 10 < first_half && first_half < all * 7 / 10, "{first_half} of {all}");
        requests.sort_unstable_by(|one, other| other.cmp(one));
        assert_eq!(requests[..4], [2000, 1000, 667, 500]);
        assert_eq!(requests[1999], 1);
    }

    #[test]
    fn the_body_of_sizes_has_the_published_mean_and_median() {
        let (surge, mut random) = (SurgeSizes::new(), seeded(7));
        let mut draws: Vec<f64> = (0..200_000).map(|_| surge.body.sample(&mut random)).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        assert!((mean / 27.6e3 - 1.0).abs() < 0.02, "{mean}");
        draws.sort_by(f64::total_cmp);
        let median = draws[draws.len() / 2];
        assert!((median / 11.6e3 - 1.0).abs() < 0.02, "{median}");
    }

    #[test]
    fn the_nearest_size_is_taken() {
        let mut sizes = vec![10, 100, 1000];
        assert_eq!(take_nearest(&mut sizes, 31.0), 10);
        assert_eq!(take_nearest(&mut sizes, 317.0), 1000);
        assert_eq!(take_nearest(&mut sizes, 1e9), 100);
    }
}

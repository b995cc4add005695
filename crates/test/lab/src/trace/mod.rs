//! Traces: sequences of requests for objects with sizes, made from seeds.
//!
//! A trace is the same in each run and on each machine. It contains only what a cache may store;
//! requests that bypass a cache are left out.

mod pieces;
mod polymix;
mod synthetic;

pub use pieces::pieces;
pub use polymix::{Polymix, polymix};
pub use synthetic::{drift, one_hit, scan, zipf};

use rand_distr::{Distribution, LogNormal, Pareto};
use rand_pcg::Pcg64;

/// Requests in order, and the sizes of the requested objects.
#[derive(Debug)]
pub struct Trace {
    /// The name in the tables.
    pub name: &'static str,
    /// The requested objects, as indices of `sizes`.
    pub requests: Vec<u32>,
    /// Bytes of each object, at least 1.
    pub sizes: Vec<u64>,
}

impl Trace {
    /// Returns the bytes of all objects that are requested at least once.
    pub fn footprint(&self) -> u64 {
        let mut requested = vec![false; self.sizes.len()];
        let mut bytes = 0;
        for &object in &self.requests {
            if !std::mem::replace(&mut requested[object as usize], true) {
                bytes += self.sizes[object as usize];
            }
        }
        bytes
    }
}

/// Returns every trace of the comparison. `objects` is their scale, which the function of each
/// trace defines. A trace has 10 to 20 times as many requests.
pub fn all(objects: u32) -> Vec<Trace> {
    vec![
        zipf("Zipf 0.8", objects, 0.8),
        zipf("Zipf 1.0", objects, 1.0),
        one_hit(objects),
        scan(objects),
        drift(objects),
        polymix("PolyMix-4", objects, Polymix::FORWARD),
        polymix("WebAxe-4", objects, Polymix::REVERSE),
    ]
}

/// File sizes of SURGE (Barford and Crovella, SIGMETRICS 1998): 93 % lognormal, 7 % Pareto.
pub(crate) struct SurgeSizes {
    /// Most files.
    pub(crate) body: LogNormal<f64>,
    /// [`TAIL_SHARE`] of the files.
    tail: Pareto<f64>,
}

/// The largest object. Without this bound, the largest draw of the Pareto tail may be a tenth of
/// all bytes, and the byte miss ratio would depend on that one object.
const SIZE_MAX: f64 = (64u64 << 20) as f64;
/// The share of the tail among all files.
pub(crate) const TAIL_SHARE: f64 = 0.07;
/// The least size of the tail in bytes.
pub(crate) const TAIL_SIZE_MIN: f64 = 133_000.0;
/// The tail index, alpha of the Pareto distribution.
pub(crate) const TAIL_INDEX: f64 = 1.1;

impl SurgeSizes {
    /// Returns the published distributions.
    pub(crate) fn new() -> Self {
        Self {
            body: LogNormal::new(9.357, 1.318).expect("a valid deviation"),
            tail: Pareto::new(TAIL_SIZE_MIN, TAIL_INDEX).expect("a valid shape"),
        }
    }

    fn sizes(&self, count: u32, random: &mut Pcg64) -> Vec<u64> {
        (0..count)
            .map(|_| {
                let tail = uniform(random) < TAIL_SHARE;
                let size = if tail { self.tail.sample(random) } else { self.body.sample(random) };
                bytes(size)
            })
            .collect()
    }
}

/// Converts a draw to a size.
fn bytes(size: f64) -> u64 {
    size.clamp(1.0, SIZE_MAX) as u64
}

/// Returns the generator of one trace.
pub(crate) fn seeded(seed: u128) -> Pcg64 {
    Pcg64::new(seed, 0x0a02_bdbf_7bb3_c0a7_ac28_fa16_a64a_bf96)
}

/// Uniform in [0, 1).
pub(crate) fn uniform(random: &mut Pcg64) -> f64 {
    rand_distr::StandardUniform.sample(random)
}

/// Uniform in 0..`bound`.
pub(crate) fn below(random: &mut Pcg64, bound: u32) -> u32 {
    (uniform(random) * f64::from(bound)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn surge_sizes_have_the_published_shape() {
        let mut sizes = SurgeSizes::new().sizes(200_000, &mut seeded(1));
        sizes.sort_unstable();
        let median = sizes[sizes.len() / 2];
        // The body's median is e^9.357 = 11.6 KB; the tail moves that of all files up a little.
        assert!((11_600..14_500).contains(&median), "median {median}");
        let large = sizes.iter().filter(|&&size| size > 1_330_000).count() as f64;
        // P(tail) * (133,000 / 1,330,000)^1.1 = 0.07 * 0.079.
        let share = large / sizes.len() as f64;
        assert!((0.0050..0.0062).contains(&share), "share {share}");
    }

    #[test]
    fn a_trace_is_the_same_each_time() {
        for (one, other) in all(500).iter().zip(&all(500)) {
            assert_eq!(one.requests, other.requests, "{}", one.name);
            assert_eq!(one.sizes, other.sizes, "{}", one.name);
        }
    }

    #[test]
    fn each_trace_requests_objects_that_it_has() {
        for trace in all(500) {
            let objects = trace.sizes.len() as u32;
            assert!(trace.requests.iter().all(|&object| object < objects), "{}", trace.name);
            assert!(trace.sizes.iter().all(|&size| size > 0), "{}", trace.name);
        }
    }
}

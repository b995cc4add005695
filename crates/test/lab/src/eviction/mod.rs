//! Miss ratios of millrace's eviction and of well-maintained crates, on the traces.
//!
//! Every cache gets the same calls: a lookup for each request, and an insertion after each miss.
//! Objects that are larger than the whole cache are not inserted.

mod iolited;
mod peers;
mod sharding;
mod table;

pub use iolited::PIECE_POLICIES;
pub use peers::{ComparedPolicy, MillracePolicy, POLICIES, PolicyRole, SizedCache};
pub use sharding::{SHARD_COUNTS, ShardingRow, compare_shards};
pub use table::{ComparisonRow, MISS_RATIO_MARGIN, SHARES, compare};

use std::fmt::{Display, Write};

use crate::trace::Trace;

/// The miss ratios of a policy.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Misses {
    /// Misses per request.
    pub objects: f64,
    /// Missed bytes per requested byte.
    pub bytes: f64,
}

/// Plays `trace` against a cache of `capacity` bytes. The first third of the requests fills the
/// cache and is not counted.
pub fn play(trace: &Trace, cache: &mut dyn SizedCache, capacity: u64) -> Misses {
    let warm = trace.requests.len() / 3;
    let (mut missed, mut missed_bytes, mut bytes) = (0u64, 0u64, 0u64);
    for (at, &object) in trace.requests.iter().enumerate() {
        let size = trace.sizes[object as usize];
        let hit = cache.get(object);
        if !hit && size <= capacity {
            cache.insert(object, size);
        }
        if at >= warm {
            bytes += size;
            missed += u64::from(!hit);
            missed_bytes += if hit { 0 } else { size };
        }
    }
    let counted = trace.requests.len() - warm;
    Misses { objects: missed as f64 / counted as f64, bytes: missed_bytes as f64 / bytes as f64 }
}

/// Returns the first two lines of a table whose rows begin with a trace and the size of a cache.
fn head(columns: impl IntoIterator<Item: Display>) -> String {
    let mut head = String::from("| trace | cache |");
    let mut rule = String::from("| --- | ---: |");
    for column in columns {
        let _ = write!(head, " {column} |");
        rule.push_str(" ---: |");
    }
    format!("{head}\n{rule}")
}

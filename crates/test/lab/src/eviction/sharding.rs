//! The cost of dividing a cache into shards.

use std::fmt::Write;

use super::{MillracePolicy, Misses, SHARES, head, play};
use crate::trace::Trace;

/// The numbers of shards that are compared.
pub const SHARD_COUNTS: [u32; 7] = [2, 4, 8, 16, 32, 64, 256];

/// The results for one trace and one size of the cache.
#[derive(Clone, Debug)]
pub struct ShardingRow {
    trace: &'static str,
    share: u64,
    capacity: u64,
    one_shard: Misses,
    /// The misses for each of [`SHARD_COUNTS`], in their order.
    several: Vec<Misses>,
}

/// Runs each of `traces` with each size of the cache, with one shard and with several.
pub fn compare_shards(traces: &[Trace], mut done: impl FnMut(&ShardingRow)) {
    for trace in traces {
        for share in SHARES {
            let capacity = trace.footprint() * share / 100;
            let missed = |shards| play(trace, &mut MillracePolicy::new(capacity, shards), capacity);
            let several = SHARD_COUNTS.iter().map(|&count| missed(count)).collect();
            done(&ShardingRow {
                trace: trace.name,
                share,
                capacity,
                one_shard: missed(1),
                several,
            });
        }
    }
}

impl ShardingRow {
    /// Returns the head of the table.
    pub fn head() -> String {
        head(SHARD_COUNTS.map(|count| format!("{count} shards")))
    }

    /// Returns the row of the table: the additional misses compared with one shard, of objects and
    /// of bytes.
    pub fn line(&self) -> String {
        let megabytes = self.capacity >> 20;
        let mut line = format!("| {} | {} %, {megabytes} MB |", self.trace, self.share);
        for misses in &self.several {
            let objects = misses.objects - self.one_shard.objects;
            let bytes = misses.bytes - self.one_shard.bytes;
            let _ = write!(line, " {objects:+.3} / {bytes:+.3} |");
        }
        line
    }
}

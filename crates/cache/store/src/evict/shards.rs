//! The number of shards of a cache.

use std::sync::Arc;

use super::{Eviction, SharedState};

/// The maximum that [`Eviction::shards_for`] returns.
pub const SHARDS_MAX: u32 = 256;

/// The minimum size of a shard in bytes, unless it is the only one.
const SHARD_BYTES_MIN: u64 = 32 << 20;

impl Eviction {
    /// Returns how many shards a cache of `capacity` bytes should have: a power of two, 1 to
    /// [`SHARDS_MAX`].
    ///
    /// Each shard decides like the whole cache would. But its entries are only a sample, and if
    /// they are few, a single large object has too much influence. docs/design/cache.md has the
    /// cost.
    pub const fn shards_for(capacity: u64) -> u32 {
        let shards = capacity / SHARD_BYTES_MIN;
        if shards >= SHARDS_MAX as u64 {
            SHARDS_MAX
        } else if shards == 0 {
            1
        } else {
            1 << shards.ilog2()
        }
    }

    /// Creates the shards of a cache of `capacity` bytes; [`Eviction::shards_for`] returns their
    /// number. The caller assigns objects to shards by their keys.
    pub fn shards(capacity: u64) -> Vec<Self> {
        Self::split(capacity, Self::shards_for(capacity))
    }

    /// Like [`Eviction::shards`], but with `count` shards, at least one.
    pub fn split(capacity: u64, count: u32) -> Vec<Self> {
        let shared = Arc::new(SharedState::new());
        (0..count).map(|_| Self::with_shared(capacity, count, shared.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::NEVER;
    use super::*;

    #[test]
    fn every_shard_is_large_enough_to_learn() {
        for (capacity, expected) in [
            (0, 1),
            (SHARD_BYTES_MIN, 1),
            (2 * SHARD_BYTES_MIN - 1, 1),
            (2 * SHARD_BYTES_MIN, 2),
            (7 * SHARD_BYTES_MIN, 4),
            (u64::from(SHARDS_MAX) * SHARD_BYTES_MIN - 1, SHARDS_MAX / 2),
            (u64::from(SHARDS_MAX) * SHARD_BYTES_MIN, SHARDS_MAX),
            (u64::MAX, SHARDS_MAX),
        ] {
            assert_eq!(Eviction::shards_for(capacity), expected, "{capacity}");
        }
        assert_eq!(Eviction::shards(64 * SHARD_BYTES_MIN).len(), 64);
    }

    /// An eviction in one shard sets the horizon of both. The other shard may be skipped while its
    /// entries are younger than the horizon. A single shard is never skipped.
    #[test]
    fn a_shard_with_young_entries_may_be_skipped() {
        let mut shards = Eviction::split(1 << 20, 2);
        let [old, young] = &mut shards[..] else { panic!("two") };
        for handle in 0..100 {
            old.insert(handle, u64::from(handle) << 32, 1_000, NEVER);
        }
        assert!(old.evict_if_ripe(0).is_some(), "no age is known before the first eviction");
        young.insert(0, 1 << 60, 1_000, NEVER);
        assert_eq!(young.evict_if_ripe(0), None);
        assert_eq!(young.evict(0), Some(0));
        assert_eq!(young.evict(0), None);

        let mut alone = Eviction::new(1 << 20);
        for handle in 0..100 {
            alone.insert(handle, u64::from(handle) << 32, 1_000, NEVER);
        }
        for _ in 0..100 {
            assert!(alone.evict_if_ripe(0).is_some());
        }
    }
}

//! How many shards a cache should have.

use std::sync::Arc;

use super::{Eviction, SharedState};

/// The most shards that [`Eviction::shards_for`] gives.
pub const SHARDS_MAX: u32 = 256;

/// The fewest bytes of a shard, where there is more than one.
const SHARD_BYTES_MIN: u64 = 32 << 20;

impl Eviction {
    /// How many shards a cache of `capacity` bytes should have: a power of two, 1 to
    /// [`SHARDS_MAX`].
    ///
    /// Each shard decides as the whole cache would; but its entries are a sample, and with few of them
    /// one large object tells. docs/design/eviction.md has what that costs.
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

    /// The shards of a cache of `capacity` bytes, as many as [`Eviction::shards_for`] says: which
    /// one an object belongs to is for the caller to say, by its key.
    pub fn shards(capacity: u64) -> Vec<Self> {
        Self::split(capacity, Self::shards_for(capacity))
    }

    /// The same for `count` shards, at least one.
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
    fn a_shard_has_bytes_enough_to_learn_from() {
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

    /// What is learned in one shard holds in the other, which passes while what it has is younger
    /// than what went there; the first, alone of its kind, may not.
    #[test]
    fn a_shard_passes_while_its_entries_are_young() {
        let mut shards = Eviction::split(1 << 20, 2);
        let [old, young] = &mut shards[..] else { panic!("two") };
        for handle in 0..100 {
            old.insert(handle, u64::from(handle) << 32, 1_000, NEVER);
        }
        assert!(old.evict_if_ripe(0).is_some(), "nothing is known of an age before the first went");
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

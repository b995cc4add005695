//! How many shards a cache should have.

use super::Eviction;

/// The most shards that [`Eviction::shards_for`] gives.
pub const SHARDS_MAX: u32 = 256;

/// The fewest bytes of a shard, where there is more than one.
const SHARD_BYTES_MIN: u64 = 32 << 20;

impl Eviction {
    /// How many shards a cache of `capacity` bytes should have: a power of two, 1 to
    /// [`SHARDS_MAX`].
    ///
    /// A shard learns from its own entries alone and lets its own go, so few bytes make it worse.
    /// docs/design/eviction.md has what that costs: with 32 MB and more at most 0.003 of the requests
    /// and 0.006 of the bytes, with 1 to 4 MB up to 0.026 and 0.062, except where a crawler takes
    /// turns with a hot set. There any cut costs up to 0.07, so there are no more shards than this,
    /// either. It is the cost for shards that let go in turns until all of them together fit. With
    /// a bound for each, a large object displaces all of its shard: up to 0.09 of the bytes.
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
        let count = Self::shards_for(capacity);
        (0..count).map(|_| Self::new(capacity, count)).collect()
    }
}

#[cfg(test)]
mod tests {
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
}

//! Fingerprints of objects that were evicted or refused, in a table of fixed size.
//!
//! A bucket has eight slots. A new fingerprint replaces the one with the oldest tick. Two keys with
//! the same bucket and the same 32 further bits count as one; at worst, an object then gets a
//! better queue than it deserves.

/// A table of fingerprints.
#[derive(Debug)]
pub(super) struct Ghost {
    /// Their number is a power of two.
    buckets: Vec<[GhostSlot; WAYS]>,
}

/// The fingerprint of one object.
#[derive(Clone, Copy, Debug)]
pub(super) struct GhostSlot {
    /// Bits of the key that do not choose the bucket; 0 in an empty slot.
    tag: u32,
    /// The tick when the object entered its last queue, was refused, or was evicted after it had
    /// expired.
    pub(super) stamp: u32,
    /// KB evicted from the object's queue up to and including its own eviction.
    pub(super) mileage: u32,
    pub(super) evicted_from: EvictedFrom,
}

/// The queue from which an object was evicted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum EvictedFrom {
    Probation,
    Main,
    /// It was not admitted, or was removed for a reason unrelated to its queue.
    Elsewhere,
}

const WAYS: usize = 8;
const EMPTY: GhostSlot =
    GhostSlot { tag: 0, stamp: 0, mileage: 0, evicted_from: EvictedFrom::Elsewhere };

const _: () = assert!(size_of::<GhostSlot>() <= 16);

impl Ghost {
    /// Creates a table for about `objects`, at least 64.
    pub(super) fn new(objects: u64) -> Self {
        let buckets = (objects / WAYS as u64).clamp(8, 1 << 24).next_power_of_two();
        Self { buckets: vec![[EMPTY; WAYS]; buckets as usize] }
    }

    /// Returns the fingerprint of `key`.
    pub(super) fn get(&self, key: u64) -> Option<GhostSlot> {
        let (bucket, tag) = self.locate(key);
        self.buckets[bucket].iter().find(|slot| slot.tag == tag).copied()
    }

    /// Stores a fingerprint of `key`, replacing the previous one.
    pub(super) fn put(&mut self, key: u64, stamp: u32, mileage: u32, evicted_from: EvictedFrom) {
        let (bucket, tag) = self.locate(key);
        let slots = &mut self.buckets[bucket];
        let newest = slots.iter().fold(stamp, |newest, slot| {
            if (slot.stamp.wrapping_sub(newest) as i32) > 0 { slot.stamp } else { newest }
        });
        let at = (0..WAYS)
            .max_by_key(|&at| match slots[at].tag {
                held if held == tag => u64::MAX,
                0 => u64::MAX - 1,
                _ => u64::from(newest.wrapping_sub(slots[at].stamp)),
            })
            .expect("a bucket has slots");
        slots[at] = GhostSlot { tag, stamp, mileage, evicted_from };
    }

    /// Removes the fingerprint of `key`.
    pub(super) fn forget(&mut self, key: u64) {
        let (bucket, tag) = self.locate(key);
        for slot in &mut self.buckets[bucket] {
            if slot.tag == tag {
                *slot = EMPTY;
            }
        }
    }

    /// Returns the bucket of a key, and its tag there. The lowest byte of the key is not used,
    /// because it may have chosen the shard.
    fn locate(&self, key: u64) -> (usize, u32) {
        ((key >> 8) as usize & (self.buckets.len() - 1), ((key >> 32) as u32).max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_fingerprint_is_replaced() {
        let mut ghost = Ghost::new(1);
        // All keys are in bucket 0; the ticks wrap around.
        let key = |at: u32| u64::from(at + 1) << 32;
        for at in 0..=WAYS as u32 {
            ghost.put(key(at), (u32::MAX - 3).wrapping_add(at), 0, EvictedFrom::Main);
        }
        assert!(ghost.get(key(0)).is_none());
        for at in 1..=WAYS as u32 {
            let slot = ghost.get(key(at)).expect("one of the eight newest");
            assert_eq!(slot.stamp, (u32::MAX - 3).wrapping_add(at));
        }
    }

    #[test]
    fn a_key_has_one_slot() {
        let mut ghost = Ghost::new(1);
        for stamp in 0..20 {
            ghost.put(5 << 40, stamp, 0, EvictedFrom::Probation);
        }
        assert_eq!(ghost.get(5 << 40).expect("just put").stamp, 19);
        ghost.forget(5 << 40);
        assert!(ghost.get(5 << 40).is_none());
    }
}

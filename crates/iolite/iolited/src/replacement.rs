//! The order in which entries are evicted: the least recently used first, of those that were used
//! once as long as they have more than half of the memory, otherwise of the others.
//!
//! So files that are read once do not evict the others, and the others keep at least half.
//! docs/design/file-cache-size.md has the reasons. `make lab TRACE=pieces` compares it with others.
//! The misses in percent of the requests, if the cache has 1, 10 and 30 % of the memory of all
//! pieces of files of at least 32 KB, and no client holds any (LRU is the paper's policy then):
//!
//! | trace | iolited | LRU | SIEVE | S3-FIFO |
//! | --- | ---: | ---: | ---: | ---: |
//! | Zipf 0.8 | 73, 49, 31 | 80, 54, 33 | 66, 42, 27 | 68, 45, 28 |
//! | one-hit wonders | 72, 62, 58 | 80, 67, 60 | 71, 62, 58 | 70, 60, 57 |
//! | scan and hot set | 68, 51, 45 | 72, 63, 50 | 65, 46, 45 | 66, 46, 44 |
//! | PolyMix-4 | 81, 70, 68 | 82, 68, 68 | 82, 78, 68 | 82, 78, 68 |
//! | WebAxe-4 | 62, 40, 23 | 66, 40, 24 | 56, 45, 37 | 56, 41, 31 |

use std::collections::BTreeMap;

/// The uses of entries with keys `K`.
#[derive(Debug)]
pub(crate) struct Uses<K> {
    /// By the numbers of the last uses.
    once: BTreeMap<u64, K>,
    again: BTreeMap<u64, K>,
    /// The bytes of the entries that were used once.
    once_bytes: u64,
    /// The number of the last use.
    clock: u64,
}

/// The last use of an entry. The entry keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct LastUse {
    number: u64,
    frequency: Frequency,
    bytes: u64,
}

/// How often an entry was used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Frequency {
    Once,
    Again,
}

impl<K> Default for Uses<K> {
    fn default() -> Self {
        Self { once: BTreeMap::new(), again: BTreeMap::new(), once_bytes: 0, clock: 0 }
    }
}

impl<K: Copy> Uses<K> {
    /// Adds an entry that has `bytes` bytes.
    pub(crate) fn add(&mut self, key: K, bytes: u64) -> LastUse {
        self.put(key, bytes, Frequency::Once)
    }

    /// Removes an entry.
    pub(crate) fn remove(&mut self, last: LastUse) {
        self.list(last.frequency).remove(&last.number);
        if last.frequency == Frequency::Once {
            self.once_bytes -= last.bytes;
        }
    }

    /// Records that an entry was used again.
    pub(crate) fn repeat(&mut self, key: K, last: LastUse) -> LastUse {
        self.remove(last);
        self.put(key, last.bytes, Frequency::Again)
    }

    /// Records that an entry is in use now, so that others are evicted before it.
    pub(crate) fn renew(&mut self, key: K, last: LastUse) -> LastUse {
        self.remove(last);
        self.put(key, last.bytes, last.frequency)
    }

    /// Returns the kinds of entries in the order in which they are evicted from a cache of
    /// `bytes_max` bytes.
    pub(crate) fn order(&self, bytes_max: u64) -> [Frequency; 2] {
        if self.once_bytes > bytes_max / 2 {
            [Frequency::Once, Frequency::Again]
        } else {
            [Frequency::Again, Frequency::Once]
        }
    }

    /// Returns the least recently used entry of a kind.
    pub(crate) fn oldest(&self, frequency: Frequency) -> Option<K> {
        let list = match frequency {
            Frequency::Once => &self.once,
            Frequency::Again => &self.again,
        };
        list.first_key_value().map(|(_, key)| *key)
    }

    fn put(&mut self, key: K, bytes: u64, frequency: Frequency) -> LastUse {
        self.clock += 1;
        let number = self.clock;
        self.list(frequency).insert(number, key);
        if frequency == Frequency::Once {
            self.once_bytes += bytes;
        }
        LastUse { number, frequency, bytes }
    }

    fn list(&mut self, frequency: Frequency) -> &mut BTreeMap<u64, K> {
        match frequency {
            Frequency::Once => &mut self.once,
            Frequency::Again => &mut self.again,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Evicts `count` entries of 10 bytes from a cache of 100.
    fn evict(uses: &mut Uses<char>, entries: &mut Vec<(char, LastUse)>, count: usize) -> String {
        (0..count)
            .map(|_| {
                let key = uses.order(100).into_iter().find_map(|of| uses.oldest(of));
                let at = entries.iter().position(|(name, _)| Some(*name) == key);
                let (name, last) = entries.remove(at.expect("it is an entry"));
                uses.remove(last);
                name
            })
            .collect()
    }

    #[test]
    fn entries_that_were_used_once_are_evicted_while_they_have_more_than_half() {
        let mut uses = Uses::default();
        let mut entries: Vec<_> = "abcdefghij".chars().map(|of| (of, uses.add(of, 10))).collect();
        for at in [4, 0] {
            let (name, last) = entries[at];
            entries[at].1 = uses.repeat(name, last);
        }
        // Eight were used once: three of them go, then the others by their last use.
        assert_eq!(evict(&mut uses, &mut entries, 5), "bcdea");
        assert_eq!(evict(&mut uses, &mut entries, 5), "fghij");
        assert_eq!((uses.once_bytes, uses.oldest(Frequency::Again)), (0, None));
    }

    #[test]
    fn an_entry_in_use_is_the_last_of_its_kind() {
        let mut uses = Uses::default();
        let first = uses.add('a', 10);
        uses.add('b', 10);
        let first = uses.renew('a', first);
        assert_eq!(uses.oldest(Frequency::Once), Some('b'));
        uses.repeat('a', first);
        assert_eq!(uses.oldest(Frequency::Again), Some('a'));
    }
}

//! What was learned about names, until its time is over.

use std::collections::{BTreeMap, BTreeSet};

use millrace_engine::Instant;

use super::error::LookupResult;
use super::name::DomainName;

/// Names with what was found for them. Ordered trees, not hash tables: the simulator's runs must
/// not depend on a hidden seed, and a client that picks the names cannot pick collisions.
#[derive(Debug)]
pub(super) struct NameCache {
    entries: BTreeMap<DomainName, (Instant, LookupResult)>,
    /// Every entry of `entries` once, the one that ends first in front.
    expiries: BTreeSet<(Instant, DomainName)>,
    /// `entries.len() <= entries_max`
    entries_max: usize,
}

impl NameCache {
    pub(super) fn new(entries_max: usize) -> Self {
        Self { entries: BTreeMap::new(), expiries: BTreeSet::new(), entries_max }
    }

    /// Remembers at most so many from now on; those that end first are forgotten.
    pub(super) fn set_max(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
        while self.expiries.len() > entries_max {
            if let Some((_, name)) = self.expiries.pop_first() {
                self.entries.remove(&name);
            }
        }
    }

    /// What is known of a name now.
    pub(super) fn get(&self, name: &DomainName, now: Instant) -> Option<&LookupResult> {
        let (end, found) = self.entries.get(name)?;
        (now < *end).then_some(found)
    }

    /// Remembers until `end`. What has ended by `now` is forgotten, two entries at most for each
    /// one that comes in, so that no call does much and the table still shrinks; when the table is
    /// full, the entry that ends first makes room.
    pub(super) fn insert(
        &mut self,
        name: DomainName,
        found: LookupResult,
        end: Instant,
        now: Instant,
    ) {
        self.remove(&name);
        for _ in 0..2 {
            let Some((first, _)) = self.expiries.first() else { break };
            if *first > now && self.entries.len() < self.entries_max {
                break;
            }
            if let Some((_, name)) = self.expiries.pop_first() {
                self.entries.remove(&name);
            }
        }
        self.expiries.insert((end, name.clone()));
        self.entries.insert(name, (end, found));
        assert!(
            self.entries.len() == self.expiries.len() && self.expiries.len() <= self.entries_max
        );
    }

    fn remove(&mut self, name: &DomainName) {
        if let Some((end, _)) = self.entries.remove(name) {
            self.expiries.remove(&(end, name.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;
    use crate::NameError;

    fn name(text: &str) -> DomainName {
        DomainName::parse(text.as_bytes()).unwrap()
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanoseconds(seconds * 1_000_000_000)
    }

    fn found(last: u8) -> LookupResult {
        Ok([IpAddr::from([192, 0, 2, last])].into())
    }

    #[test]
    fn entries_end_when_their_time_is_over() {
        let mut cache = NameCache::new(16);
        cache.insert(name("a"), found(1), at(10), at(0));
        cache.insert(name("b"), Err(NameError::NotFound), at(5), at(0));
        assert_eq!(cache.get(&name("a"), at(9)), Some(&found(1)));
        assert_eq!(cache.get(&name("b"), at(4)), Some(&Err(NameError::NotFound)));
        assert_eq!(cache.get(&name("b"), at(5)), None);
        assert_eq!(cache.get(&name("a"), at(10)), None);
        cache.insert(name("b"), found(2), at(20), at(10));
        assert_eq!(cache.entries.len(), 1, "what has ended makes room");
        assert_eq!(cache.get(&name("b"), at(10)), Some(&found(2)));
    }

    #[test]
    fn a_full_cache_forgets_what_ends_first() {
        let mut cache = NameCache::new(2);
        cache.insert(name("a"), found(1), at(30), at(0));
        cache.insert(name("b"), found(2), at(20), at(0));
        cache.insert(name("a"), found(3), at(40), at(0));
        cache.insert(name("c"), found(4), at(35), at(0));
        assert_eq!(cache.get(&name("a"), at(1)), Some(&found(3)));
        assert_eq!(cache.get(&name("b"), at(1)), None);
        assert_eq!(cache.get(&name("c"), at(1)), Some(&found(4)));
        assert_eq!((cache.entries.len(), cache.expiries.len()), (2, 2));
    }
}

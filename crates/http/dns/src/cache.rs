//! A cache of lookup results with their lifetimes.

use std::collections::{BTreeMap, BTreeSet};

use millrace_engine::Instant;

use super::error::LookupResult;
use super::name::DomainName;

/// Results of lookups by name. Ordered trees are used instead of hash tables: runs in the simulator
/// must not depend on a hidden seed, and a client that chooses names must not be able to choose
/// collisions.
#[derive(Debug)]
pub(super) struct NameCache {
    entries: BTreeMap<DomainName, (Instant, LookupResult)>,
    /// Each entry of `entries` once, in order of expiry.
    expiries: BTreeSet<(Instant, DomainName)>,
    /// `entries.len() <= entries_max`
    entries_max: usize,
}

impl NameCache {
    pub(super) fn new(entries_max: usize) -> Self {
        Self { entries: BTreeMap::new(), expiries: BTreeSet::new(), entries_max }
    }

    /// Sets the maximum number of entries. Entries beyond it are removed, in order of expiry.
    pub(super) fn set_max(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
        while self.expiries.len() > entries_max {
            if let Some((_, name)) = self.expiries.pop_first() {
                self.entries.remove(&name);
            }
        }
    }

    /// Returns the cached result for a name, unless it has expired by `now`.
    pub(super) fn get(&self, name: &DomainName, now: Instant) -> Option<&LookupResult> {
        let (end, found) = self.entries.get(name)?;
        (now < *end).then_some(found)
    }

    /// Inserts a result that expires at `end`. At most two entries that have expired by `now` are
    /// removed in each call, so that no call takes long and the table still shrinks. If the table
    /// is full, the entry that expires first is removed.
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
    fn entries_expire() {
        let mut cache = NameCache::new(16);
        cache.insert(name("a"), found(1), at(10), at(0));
        cache.insert(name("b"), Err(NameError::NotFound), at(5), at(0));
        assert_eq!(cache.get(&name("a"), at(9)), Some(&found(1)));
        assert_eq!(cache.get(&name("b"), at(4)), Some(&Err(NameError::NotFound)));
        assert_eq!(cache.get(&name("b"), at(5)), None);
        assert_eq!(cache.get(&name("a"), at(10)), None);
        cache.insert(name("b"), found(2), at(20), at(10));
        assert_eq!(cache.entries.len(), 1, "the expired entries were removed");
        assert_eq!(cache.get(&name("b"), at(10)), Some(&found(2)));
    }

    #[test]
    fn a_full_cache_removes_the_entry_that_expires_first() {
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

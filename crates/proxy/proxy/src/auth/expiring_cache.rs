//! A cache of verified credentials, with a bound on the number of entries and on their age.

use std::collections::{HashMap, VecDeque};

use millrace_engine::Instant;

/// A digest of credentials under a secret key.
pub(super) type CredentialsDigest = [u8; 32];

/// A cache that evicts the entry that was inserted first.
#[derive(Debug, Default)]
pub(super) struct ExpiringCache<T> {
    entries: HashMap<CredentialsDigest, (T, Instant)>,
    /// The key of each entry once, in the order of insertion.
    order: VecDeque<CredentialsDigest>,
}

impl<T> ExpiringCache<T> {
    /// Returns the value of an entry that has not expired at `now`.
    pub(super) fn get(&self, digest: &CredentialsDigest, now: Instant) -> Option<&T> {
        self.entries.get(digest).filter(|(_, until)| now < *until).map(|(value, _)| value)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Inserts a value that expires at `until`. If there are more than `max` entries, the oldest
    /// are removed.
    pub(super) fn insert(
        &mut self,
        digest: CredentialsDigest,
        value: T,
        until: Instant,
        max: usize,
    ) {
        if self.entries.insert(digest, (value, until)).is_some() {
            self.order.retain(|other| *other != digest);
        }
        self.order.push_back(digest);
        while self.order.len() > max {
            let oldest = self.order.pop_front().expect("there are more than `max` entries");
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_expire_and_the_oldest_are_evicted() {
        let at = |milliseconds: u64| Instant::from_nanoseconds(milliseconds * 1_000_000);
        let mut cache = ExpiringCache::default();
        cache.insert([1; 32], 'a', at(100), 2);
        cache.insert([2; 32], 'b', at(200), 2);
        assert_eq!(cache.get(&[1; 32], at(99)), Some(&'a'));
        assert_eq!(cache.get(&[1; 32], at(100)), None);
        cache.insert([1; 32], 'c', at(300), 2);
        cache.insert([3; 32], 'd', at(300), 2);
        assert_eq!(cache.get(&[2; 32], at(0)), None, "the oldest");
        assert_eq!(cache.get(&[1; 32], at(0)), Some(&'c'));
        cache.insert([4; 32], 'e', at(300), 0);
        assert!(cache.entries.is_empty() && cache.order.is_empty());
    }
}

//! Verified credentials, for a while: a table that is bounded in number and in time.

use std::collections::{HashMap, VecDeque};

use millrace_engine::Instant;

/// What stands for credentials: a digest of them under a key of this worker's.
pub(super) type CredentialsDigest = [u8; 32];

/// What is known of credentials. Entries that were put in first end first.
#[derive(Debug, Default)]
pub(super) struct ExpiringCache<T> {
    entries: HashMap<CredentialsDigest, (T, Instant)>,
    /// Every entry once, in the order in which they were put in.
    order: VecDeque<CredentialsDigest>,
}

impl<T> ExpiringCache<T> {
    /// What is known, unless it has ended by `now`.
    pub(super) fn get(&self, ticket: &CredentialsDigest, now: Instant) -> Option<&T> {
        self.entries.get(ticket).filter(|(_, until)| now < *until).map(|(value, _)| value)
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Puts in what is known until `until`. Of more than `max`, the oldest are forgotten.
    pub(super) fn insert(
        &mut self,
        ticket: CredentialsDigest,
        value: T,
        until: Instant,
        max: usize,
    ) {
        if self.entries.insert(ticket, (value, until)).is_some() {
            self.order.retain(|other| *other != ticket);
        }
        self.order.push_back(ticket);
        while self.order.len() > max {
            let oldest = self.order.pop_front().expect("there are more than none");
            self.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_end_in_time_and_the_oldest_make_room() {
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

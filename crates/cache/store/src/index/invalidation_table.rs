//! A bounded table of invalidations and their sequence numbers (see
//! [`Invalidations`](super::invalidations)).

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

/// For each invalidated item, the sequence number of its last invalidation. When the oldest item is
/// dropped, its number is kept: every item that was not invalidated since then counts as
/// invalidated up to that number.
#[derive(Debug)]
pub(super) struct InvalidationTable<T, const MAX: usize> {
    /// `seqs.len() <= MAX`.
    seqs: HashMap<T, u64>,
    /// The entries of `seqs`, oldest first, and outdated entries of items that were invalidated
    /// again; `<= 2 * MAX + 1`.
    order: VecDeque<(u64, T)>,
    /// The sequence number of the last item that was dropped.
    dropped_seq: u64,
}

impl<T, const MAX: usize> Default for InvalidationTable<T, MAX> {
    fn default() -> Self {
        Self { seqs: HashMap::new(), order: VecDeque::new(), dropped_seq: 0 }
    }
}

impl<T: Copy + Eq + Hash, const MAX: usize> InvalidationTable<T, MAX> {
    /// Records an invalidation; `number` is higher than all previous ones.
    pub(super) fn add(&mut self, item: T, number: u64) {
        self.seqs.insert(item, number);
        self.order.push_back((number, item));
        while self.seqs.len() > MAX {
            let (number, item) = self.order.pop_front().expect("each number is in the order");
            if self.seqs.get(&item) == Some(&number) {
                self.seqs.remove(&item);
                self.dropped_seq = number;
            }
        }
        if self.order.len() > 2 * MAX {
            self.order.retain(|(number, item)| self.seqs.get(item) == Some(number));
        }
    }

    /// Returns whether any of the items was, or may have been, invalidated after `since`.
    pub(super) fn has_any_since(&self, items: &[T], since: u64) -> bool {
        let is_later = |item: &T| self.seqs.get(item).is_some_and(|number| *number > since);
        since < self.dropped_seq || items.iter().any(is_later)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_invalidation_covers_all_older_responses() {
        let mut numbers = InvalidationTable::<u32, 8>::default();
        numbers.add(1, 1);
        for number in 2..30 {
            numbers.add(2, number);
        }
        assert!(numbers.has_any_since(&[1], 0) && !numbers.has_any_since(&[1], 1));
        assert!(!numbers.has_any_since(&[3], 0), "repeating one displaces no other");
        assert!(numbers.order.len() <= 17);
        for item in 10..18 {
            numbers.add(item, 20 + u64::from(item));
        }
        assert_eq!(numbers.seqs.len(), 8);
        assert!(numbers.has_any_since(&[3], 28) && !numbers.has_any_since(&[3], 29));
        assert!(numbers.has_any_since(&[10], 29) && !numbers.has_any_since(&[10], 30));
    }
}

//! The operations that may be ready, in the order in which they became ready.

use std::collections::VecDeque;

use crate::Key;

/// A direction of a descriptor whose operation is to be tried. The descriptor may have been closed
/// since; then its key no longer exists.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadyEntry {
    pub(super) key: Key,
    pub(super) direction: Direction,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Direction {
    Receiving,
    Sending,
}

/// The queues of operations to be tried. Each direction of an open descriptor has at most one entry
/// in all of them together.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    pub(super) ready: VecDeque<ReadyEntry>,
    /// Listeners that have accepted as many connections as one turn allows.
    pub(super) deferred: Vec<ReadyEntry>,
    /// Receives that wait for the budget. While it is exhausted no entry is popped, so entries of
    /// closed descriptors would accumulate. `count_stale_parked` removes them.
    pub(super) parked: VecDeque<ReadyEntry>,
    /// Number of descriptors that were closed while parked, counted since stale entries were last
    /// removed. Some of their entries may have been popped.
    stale: usize,
}

impl ReadyQueue {
    /// Requeues the listeners that were deferred to this turn.
    pub(super) fn begin_turn(&mut self) {
        self.ready.extend(self.deferred.drain(..));
    }

    /// Returns the next entry to run. Parked receives are the oldest, so they come first if the
    /// budget allows it.
    pub(super) fn pop(&mut self, may_receive: bool) -> Option<ReadyEntry> {
        if may_receive && let Some(parked) = self.parked.pop_front() {
            return Some(parked);
        }
        self.ready.pop_front()
    }

    /// Returns whether [`ReadyQueue::pop`] would return `None`.
    pub(super) fn is_empty(&self, may_receive: bool) -> bool {
        self.ready.is_empty() && (self.parked.is_empty() || !may_receive)
    }

    /// Counts a parked entry whose descriptor was closed. Stale entries are removed once they may
    /// be half of the queue, so the cost of each is constant on average.
    pub(super) fn count_stale_parked(&mut self, is_open: impl Fn(Key) -> bool) {
        self.stale += 1;
        if self.stale > 32 && self.stale * 2 > self.parked.len() {
            self.parked.retain(|parked| is_open(parked.key));
            self.stale = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ready(slot: u32) -> ReadyEntry {
        ReadyEntry { key: Key { slot, generation: 1 }, direction: Direction::Receiving }
    }

    #[test]
    fn parked_receives_come_first_once_the_budget_allows() {
        let mut queue = ReadyQueue::default();
        queue.parked.push_back(ready(1));
        queue.parked.push_back(ready(2));
        queue.ready.push_back(ready(3));
        assert_eq!(queue.pop(false).unwrap().key.slot, 3);
        assert!(queue.is_empty(false) && !queue.is_empty(true) && queue.pop(false).is_none());
        assert_eq!([1, 2], [(); 2].map(|()| queue.pop(true).unwrap().key.slot));
    }

    #[test]
    fn closed_connections_leave_no_parked_entries() {
        let mut queue = ReadyQueue::default();
        queue.parked.push_back(ready(0));
        for slot in 1..10_000 {
            queue.parked.push_back(ready(slot));
            queue.count_stale_parked(|key| key.slot == 0 || key.slot > slot);
            assert!(queue.parked.len() <= 70);
        }
        assert_eq!(queue.pop(true).unwrap().key.slot, 0);
    }
}

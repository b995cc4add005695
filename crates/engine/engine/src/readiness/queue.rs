//! What is ready to be run, in the order in which it became so.

use std::collections::VecDeque;

use crate::Key;

/// A direction of a descriptor whose operation is to be run. Descriptors that were closed
/// meanwhile are found by their key.
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

/// Each direction of each open descriptor is in at most one of the queues, at most once.
#[derive(Debug, Default)]
pub(super) struct ReadyQueue {
    pub(super) ready: VecDeque<ReadyEntry>,
    /// Listeners that have given what they may in this turn.
    pub(super) deferred: Vec<ReadyEntry>,
    /// Receives that wait for the budget. Nothing but the budget empties this queue, so it may
    /// not keep an entry for each descriptor that was closed in the meantime: see `forget_parked`.
    pub(super) parked: VecDeque<ReadyEntry>,
    /// Descriptors that were closed while parked, since their entries were last taken out. Some of
    /// the entries may have been popped since.
    stale: usize,
}

impl ReadyQueue {
    /// Brings back what was deferred to this turn.
    pub(super) fn begin_turn(&mut self) {
        self.ready.extend(self.deferred.drain(..));
    }

    /// The next to run: what was parked is the oldest, if the budget allows it.
    pub(super) fn pop(&mut self, may_receive: bool) -> Option<ReadyEntry> {
        if may_receive && let Some(parked) = self.parked.pop_front() {
            return Some(parked);
        }
        self.ready.pop_front()
    }

    /// Whether [`ReadyQueue::pop`] would give nothing.
    pub(super) fn is_empty(&self, may_receive: bool) -> bool {
        self.ready.is_empty() && (self.parked.is_empty() || !may_receive)
    }

    /// Counts an entry of the parked whose descriptor was closed. Once they may be half of all,
    /// they are taken out, so that each one costs a constant number of looks.
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
    fn the_parked_go_first_once_they_may() {
        let mut queue = ReadyQueue::default();
        queue.parked.push_back(ready(1));
        queue.parked.push_back(ready(2));
        queue.ready.push_back(ready(3));
        assert_eq!(queue.pop(false).unwrap().key.slot, 3);
        assert!(queue.is_empty(false) && !queue.is_empty(true) && queue.pop(false).is_none());
        assert_eq!([1, 2], [(); 2].map(|()| queue.pop(true).unwrap().key.slot));
    }

    #[test]
    fn connections_that_come_and_go_while_parked_leave_nothing() {
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

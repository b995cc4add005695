//! Blocks that are of neither kind: ready, waiting to be given back to the kernel, or empty.

use std::collections::VecDeque;

use millrace_sys::Errno;

use crate::limits::READY_BLOCKS_MAX;
use crate::memory::{Memory, Pages};

/// The blocks of a slab that no kind of memory has, by their numbers.
///
/// ```text
///   empty ──make──> ready <────────────── in use, nothing of it sent
///     ^               └──────────────────> in use
///     └──recycle── queued <────────────── in use, some of it sent
/// ```
///
/// What is made or recycled is in none of the lists meanwhile.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The last one is taken first: it is the warmest.
    pub(crate) ready: Vec<u32>,
    /// The first one has waited longest, and its bytes are the least likely to be on their way.
    pub(crate) queued: VecDeque<u32>,
    pub(crate) empty: Vec<u32>,
    /// By the number of a block: it has memory, but is no huge page.
    small: Vec<bool>,
    /// Blocks that are made or recycled now.
    making: usize,
    /// The kernel had no memory when it was asked last.
    failing: bool,
    /// How many are kept ready.
    ready_min: usize,
    pub(crate) recycled: u64,
    pub(crate) failed: u64,
    /// The helper has to end.
    pub(crate) ending: bool,
}

/// What has to be done to have one more block ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Task {
    block: u32,
    /// Somebody may still be reading what was there.
    recycle: bool,
}

impl Blocks {
    /// All of a slab's, empty.
    pub(crate) fn new(count: u32) -> Self {
        Self {
            ready: Vec::new(),
            queued: VecDeque::new(),
            empty: (0..count).rev().collect(),
            small: vec![false; count as usize],
            making: 0,
            failing: false,
            ready_min: (count as usize / 8).clamp(1, READY_BLOCKS_MAX),
            recycled: 0,
            failed: 0,
            ending: false,
        }
    }

    /// A block that can be written to.
    pub(crate) fn take(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// Takes back a block that nobody holds anything of. `sent`: the kernel may refer to some of
    /// it.
    pub(crate) fn give(&mut self, block: u32, sent: bool) {
        if sent {
            self.queued.push_back(block);
        } else {
            self.ready.push(block);
        }
    }

    /// Whether [`Blocks::task`] has one.
    pub(crate) fn has_task(&self) -> bool {
        self.ready.len() < self.ready_min && !(self.queued.is_empty() && self.empty.is_empty())
    }

    /// Whether there will soon be a block without anybody dropping anything.
    pub(crate) fn has_more(&self) -> bool {
        let waiting = self.making + self.queued.len() + self.empty.len();
        !self.ready.is_empty() || (waiting > 0 && !self.failing)
    }

    /// What to do next; to be told to [`Blocks::done`]. Blocks that have memory come before those
    /// that have none, so that a slab takes no more of it than it needs.
    pub(crate) fn task(&mut self) -> Option<Task> {
        if !self.has_task() {
            return None;
        }
        self.making += 1;
        let queued = self.queued.pop_front().map(|block| Task { block, recycle: true });
        queued.or_else(|| self.empty.pop().map(|block| Task { block, recycle: false }))
    }

    /// Notes how a task went.
    pub(crate) fn done(&mut self, task: Task, result: Made) {
        let Task { block, recycle } = task;
        self.making -= 1;
        self.failing = !matches!(result, Made::Ready(_));
        if recycle && !matches!(result, Made::NotRecycled(_)) {
            self.recycled += 1;
            self.small[block as usize] = false;
        }
        match result {
            Made::Ready(pages) => {
                self.small[block as usize] = pages == Pages::Small;
                self.ready.push(block);
            }
            Made::Empty(_) => {
                self.failed += 1;
                self.empty.push(block);
            }
            Made::NotRecycled(_) => {
                self.failed += 1;
                self.queued.push_back(block);
            }
        }
    }

    pub(crate) fn small(&self) -> usize {
        self.small.iter().filter(|small| **small).count()
    }
}

/// How a task went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Made {
    /// The block has memory.
    Ready(Pages),
    /// It has none, and the kernel had none for it.
    Empty(Errno),
    /// It was not even given back.
    NotRecycled(Errno),
}

impl Task {
    /// Does it. To be called without a lock: the kernel may take its time.
    pub(crate) fn run(self, memory: &Memory) -> Made {
        if self.recycle
            && let Err(error) = memory.recycle(self.block)
        {
            return Made::NotRecycled(error);
        }
        memory.make(self.block).map_or_else(Made::Empty, Made::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waited_longest_is_recycled_first_and_before_new_memory_is_taken() {
        let mut blocks = Blocks::new(16);
        let make = |blocks: &mut Blocks| {
            let task = blocks.task().unwrap();
            blocks.done(task, Made::Ready(Pages::Large));
            task.block
        };
        assert!(blocks.take().is_none() && blocks.has_more());
        assert_eq!([make(&mut blocks), make(&mut blocks)], [0, 1]);
        assert_eq!(blocks.task(), None, "two are kept ready");
        assert_eq!([blocks.take(), blocks.take()], [Some(1), Some(0)]);
        blocks.give(1, true);
        blocks.give(0, true);
        assert_eq!((make(&mut blocks), make(&mut blocks), blocks.recycled), (1, 0, 2));
        assert_eq!((blocks.ready.len(), blocks.queued.len(), blocks.empty.len()), (2, 0, 14));
    }

    #[test]
    fn a_block_that_got_no_memory_is_tried_again() {
        let mut blocks = Blocks::new(2);
        let task = blocks.task().unwrap();
        blocks.done(task, Made::Empty(Errno::NOMEM));
        assert_eq!((blocks.empty.len(), blocks.failed, blocks.has_more()), (2, 1, false));
        let task = blocks.task().unwrap();
        blocks.done(task, Made::Ready(Pages::Small));
        assert_eq!(blocks.small(), 1);
        let block = blocks.take().unwrap();
        blocks.give(block, true);
        let task = blocks.task().unwrap();
        blocks.done(task, Made::NotRecycled(Errno::NOMEM));
        assert_eq!((blocks.queued.len(), blocks.recycled, blocks.small()), (1, 0, 1));
        let task = blocks.task().unwrap();
        blocks.done(task, Made::Empty(Errno::NOMEM));
        assert_eq!((blocks.empty.len(), blocks.recycled, blocks.small()), (2, 1, 0));
    }
}

//! Blocks that are of neither kind: ready, waiting to be given back to the kernel, or empty.

use std::collections::VecDeque;

use millrace_sys::Errno;

use crate::limits::READY_BLOCKS_MAX;
use crate::memory::{PageSize, SlabMemory};

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
    has_small_pages: Vec<bool>,
    /// Blocks that are made or recycled now.
    tasks_running: usize,
    /// The kernel had no memory when it was asked last.
    is_out_of_memory: bool,
    /// How many are kept ready.
    ready_target: usize,
    pub(crate) recycled: u64,
    pub(crate) failures: u64,
    /// The helper has to end.
    pub(crate) is_stopping: bool,
}

/// What has to be done to have one more block ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockTask {
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
            has_small_pages: vec![false; count as usize],
            tasks_running: 0,
            is_out_of_memory: false,
            ready_target: (count as usize / 8).clamp(1, READY_BLOCKS_MAX),
            recycled: 0,
            failures: 0,
            is_stopping: false,
        }
    }

    /// A block that can be written to.
    pub(crate) fn take_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// Takes back a block that nobody holds anything of. `sent`: the kernel may refer to some of
    /// it.
    pub(crate) fn release(&mut self, block: u32, sent: bool) {
        if sent {
            self.queued.push_back(block);
        } else {
            self.ready.push(block);
        }
    }

    /// Whether [`Blocks::task`] has one.
    pub(crate) fn has_task(&self) -> bool {
        self.ready.len() < self.ready_target && !(self.queued.is_empty() && self.empty.is_empty())
    }

    /// Whether there will soon be a block without anybody dropping anything.
    pub(crate) fn has_block_soon(&self) -> bool {
        let waiting = self.tasks_running + self.queued.len() + self.empty.len();
        !self.ready.is_empty() || (waiting > 0 && !self.is_out_of_memory)
    }

    /// What to do next; to be told to [`Blocks::done`]. Blocks that have memory come before those
    /// that have none, so that a slab takes no more of it than it needs.
    pub(crate) fn begin_task(&mut self) -> Option<BlockTask> {
        if !self.has_task() {
            return None;
        }
        self.tasks_running += 1;
        let queued = self.queued.pop_front().map(|block| BlockTask { block, recycle: true });
        queued.or_else(|| self.empty.pop().map(|block| BlockTask { block, recycle: false }))
    }

    /// Notes how a task went.
    pub(crate) fn finish_task(&mut self, task: BlockTask, result: TaskResult) {
        let BlockTask { block, recycle } = task;
        self.tasks_running -= 1;
        self.is_out_of_memory = !matches!(result, TaskResult::Ready(_));
        if recycle && !matches!(result, TaskResult::NotRecycled(_)) {
            self.recycled += 1;
            self.has_small_pages[block as usize] = false;
        }
        match result {
            TaskResult::Ready(pages) => {
                self.has_small_pages[block as usize] = pages == PageSize::Small;
                self.ready.push(block);
            }
            TaskResult::Empty(_) => {
                self.failures += 1;
                self.empty.push(block);
            }
            TaskResult::NotRecycled(_) => {
                self.failures += 1;
                self.queued.push_back(block);
            }
        }
    }

    pub(crate) fn small_page_blocks(&self) -> usize {
        self.has_small_pages.iter().filter(|small| **small).count()
    }
}

/// How a task went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskResult {
    /// The block has memory.
    Ready(PageSize),
    /// It has none, and the kernel had none for it.
    Empty(Errno),
    /// It was not even given back.
    NotRecycled(Errno),
}

impl BlockTask {
    /// Does it. To be called without a lock: the kernel may take its time.
    pub(crate) fn run(self, memory: &SlabMemory) -> TaskResult {
        if self.recycle
            && let Err(error) = memory.recycle(self.block)
        {
            return TaskResult::NotRecycled(error);
        }
        memory.populate(self.block).map_or_else(TaskResult::Empty, TaskResult::Ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_waited_longest_is_recycled_first_and_before_new_memory_is_taken() {
        let mut blocks = Blocks::new(16);
        let make = |blocks: &mut Blocks| {
            let task = blocks.begin_task().unwrap();
            blocks.finish_task(task, TaskResult::Ready(PageSize::Huge));
            task.block
        };
        assert!(blocks.take_ready().is_none() && blocks.has_block_soon());
        assert_eq!([make(&mut blocks), make(&mut blocks)], [0, 1]);
        assert_eq!(blocks.begin_task(), None, "two are kept ready");
        assert_eq!([blocks.take_ready(), blocks.take_ready()], [Some(1), Some(0)]);
        blocks.release(1, true);
        blocks.release(0, true);
        assert_eq!((make(&mut blocks), make(&mut blocks), blocks.recycled), (1, 0, 2));
        assert_eq!((blocks.ready.len(), blocks.queued.len(), blocks.empty.len()), (2, 0, 14));
    }

    #[test]
    fn a_block_that_got_no_memory_is_tried_again() {
        let mut blocks = Blocks::new(2);
        let task = blocks.begin_task().unwrap();
        blocks.finish_task(task, TaskResult::Empty(Errno::NOMEM));
        assert_eq!((blocks.empty.len(), blocks.failures, blocks.has_block_soon()), (2, 1, false));
        let task = blocks.begin_task().unwrap();
        blocks.finish_task(task, TaskResult::Ready(PageSize::Small));
        assert_eq!(blocks.small_page_blocks(), 1);
        let block = blocks.take_ready().unwrap();
        blocks.release(block, true);
        let task = blocks.begin_task().unwrap();
        blocks.finish_task(task, TaskResult::NotRecycled(Errno::NOMEM));
        assert_eq!((blocks.queued.len(), blocks.recycled, blocks.small_page_blocks()), (1, 0, 1));
        let task = blocks.begin_task().unwrap();
        blocks.finish_task(task, TaskResult::Empty(Errno::NOMEM));
        assert_eq!((blocks.empty.len(), blocks.recycled, blocks.small_page_blocks()), (2, 1, 0));
    }
}

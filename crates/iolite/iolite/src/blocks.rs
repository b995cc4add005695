//! Blocks without a memory kind: ready, queued for return to the kernel, or empty.

use std::collections::VecDeque;

use millrace_sys::Errno;

use crate::limits::READY_BLOCKS_MAX;
use crate::memory::{PageSize, SlabMemory};

/// The blocks of a slab that have no memory kind, by number.
///
/// ```text
///   empty ──populate──> ready <──────────── in use, nothing of it sent zero-copy
///     ^                   └───────────────> in use
///     └───recycle───── queued <──────────── in use, some of it sent zero-copy
/// ```
///
/// A block that is being populated or recycled is in none of the lists.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The last one is taken first, because it is the most likely to be in a CPU cache.
    pub(crate) ready: Vec<u32>,
    /// The first one has waited longest, so it is the least likely to be still referred to by
    /// sockets.
    pub(crate) queued: VecDeque<u32>,
    pub(crate) empty: Vec<u32>,
    /// Indexed by block number: the block has memory, but no huge page.
    has_small_pages: Vec<bool>,
    /// Tasks that are being run: blocks that are being populated or recycled.
    tasks_running: usize,
    /// The last task failed because the kernel had no memory.
    is_out_of_memory: bool,
    /// The number of blocks to keep ready.
    ready_target: usize,
    pub(crate) recycled: u64,
    pub(crate) failures: u64,
    /// The prefault thread has to end.
    pub(crate) is_stopping: bool,
    /// Whether the prefault thread sleeps until there is a task.
    pub(crate) is_awaited: bool,
}

/// The work to have one more block ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BlockTask {
    block: u32,
    /// The kernel may still be reading the old contents: return the block to it first.
    recycle: bool,
}

impl Blocks {
    /// Creates `count` empty blocks.
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
            is_awaited: false,
        }
    }

    /// Takes a block that can be written to.
    pub(crate) fn take_ready(&mut self) -> Option<u32> {
        self.ready.pop()
    }

    /// Takes back an unused block. `sent`: the kernel may refer to some of its memory.
    pub(crate) fn release(&mut self, block: u32, sent: bool) {
        if sent {
            self.queued.push_back(block);
        } else {
            self.ready.push(block);
        }
    }

    /// Returns whether [`Blocks::begin_task`] would return a task.
    pub(crate) fn has_task(&self) -> bool {
        self.ready.len() < self.ready_target && !(self.queued.is_empty() && self.empty.is_empty())
    }

    /// Returns whether a block is or soon will be ready without any slice being dropped.
    pub(crate) fn has_block_soon(&self) -> bool {
        let waiting = self.tasks_running + self.queued.len() + self.empty.len();
        !self.ready.is_empty() || (waiting > 0 && !self.is_out_of_memory)
    }

    /// Returns the next task, whose result has to be passed to [`Blocks::finish_task`]. Blocks that
    /// have memory come before those that have none, so that a slab takes no more memory than it
    /// needs.
    pub(crate) fn begin_task(&mut self) -> Option<BlockTask> {
        if !self.has_task() {
            return None;
        }
        self.tasks_running += 1;
        let queued = self.queued.pop_front().map(|block| BlockTask { block, recycle: true });
        queued.or_else(|| self.empty.pop().map(|block| BlockTask { block, recycle: false }))
    }

    /// Records the result of a task.
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

/// The result of a task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TaskResult {
    /// The block has memory.
    Ready(PageSize),
    /// The block has no memory, and the kernel had none for it.
    Empty(Errno),
    /// The block could not be returned to the kernel.
    NotRecycled(Errno),
}

impl BlockTask {
    /// Runs the task. To be called without a lock: the system calls may take long.
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
    fn blocks_are_recycled_oldest_first_and_before_new_memory() {
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
    fn a_block_without_memory_is_retried() {
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

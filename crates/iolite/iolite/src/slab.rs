//! The slab: the memory of a cache, bounded and shared by all workers.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use millrace_sys::Errno;

use crate::blocks::{Blocks, TaskResult};
use crate::error::{AllocError, Error};
use crate::free_list::{Allocation, FreeList};
use crate::limits::{
    BLOCK_BYTES, EVACUATING_BLOCKS_SHARE, EVACUATION_FREE_SHARE, FRAGMENTED_SHARE, SLAB_BYTES_MAX,
    SLAB_BYTES_MIN,
};
use crate::memory::SlabMemory;
use crate::memory_kind::MemoryKind;
use crate::slice_id::{SLAB_POOL, SliceId};
use crate::stats::SlabStats;

/// Memory for immutable bytes. Clones refer to the same slab. It lives as long as any clone, buffer
/// or slice of it.
///
/// Allocating and releasing memory takes a lock for some hundred nanoseconds; there is one lock per
/// [`MemoryKind`]. No lock is taken to read, to clone a slice, or to drop a slice that is not the
/// last of its extent.
#[derive(Clone, Debug)]
pub struct Slab(Arc<SlabShared>);

/// Locks are taken in the order of the fields.
#[derive(Debug)]
pub(crate) struct SlabShared {
    pub(crate) memory: SlabMemory,
    capacity: u64,
    copied: Mutex<FreeList>,
    zero_copy: Mutex<FreeList>,
    pub(crate) blocks: Mutex<Blocks>,
    /// Signalled when [`Blocks::has_task`] may have become true, or the prefault thread has to end.
    pub(crate) prefault_needed: Condvar,
    /// The last generation that was assigned. Each extent has its own, and an extent whose bytes
    /// change gets a new one. Relaxed: it is ordered with no other memory.
    generation: AtomicU64,
    pub(crate) counters: StatCounters,
}

/// Monotonic counters, independent of each other.
#[derive(Debug, Default)]
pub(crate) struct StatCounters {
    refused_full: AtomicU64,
    refused_fragmented: AtomicU64,
    refused_not_ready: AtomicU64,
    pub(crate) forms_computed: AtomicU64,
    pub(crate) forms_reused: AtomicU64,
}

/// The outcome of [`Slab::prefault`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PrefaultOutcome {
    /// There was nothing to do.
    Idle,
    /// One more block is ready.
    Prefaulted,
    /// The kernel had no memory for a block, or did not take one back. The value is the error
    /// number (errno(3)). The call may be repeated, but not at once.
    Failed(i32),
}

impl Slab {
    /// Creates a slab in memory files of its own, of `bytes` rounded down to whole blocks; see
    /// [`limits`](crate::limits) for the bounds. It takes memory as it is used. It never takes more
    /// than `bytes`, except for recycled blocks that sockets still refer to. The first blocks are
    /// populated here, so that the slab can be used at once: about 100 microseconds each with huge
    /// pages, 2 milliseconds without (`cargo bench -p iolite -- fill`).
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Unsupported`] before Linux 5.14; [`Error::Kernel`] if the kernel
    /// refuses a file, addresses or memory. Missing huge pages are no error:
    /// [`SlabStats::small_page_blocks`] counts the blocks without.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let bytes = check_size(bytes)?;
        let slab = Self::with_memory(SlabMemory::in_files(bytes)?, bytes);
        loop {
            match slab.prefault_block() {
                None => return Ok(slab),
                Some(TaskResult::Ready(_)) => {}
                Some(TaskResult::Empty(Errno::INVAL)) => {
                    return Err(Error::Unsupported {
                        feature: "MADV_POPULATE_WRITE",
                        since: "5.14",
                    });
                }
                Some(TaskResult::Empty(error) | TaskResult::NotRecycled(error)) => {
                    return Err(Error::Kernel("madvise", error));
                }
            }
        }
    }

    /// Creates a slab on the heap. It takes memory as it is used. It behaves like any other, but
    /// nothing can be sent zero-copy
    /// ([`Slice::sendfile_source`](crate::Slice::sendfile_source) returns `None`). For bytes that
    /// are copied, for the simulator and for tests.
    ///
    /// # Errors
    /// [`Error::Size`].
    pub fn on_heap(bytes: usize) -> Result<Self, Error> {
        let bytes = check_size(bytes)?;
        let slab = Self::with_memory(SlabMemory::on_heap(bytes), bytes);
        while slab.prefault_block().is_some() {}
        Ok(slab)
    }

    fn with_memory(memory: SlabMemory, bytes: usize) -> Self {
        let blocks = bytes / BLOCK_BYTES;
        Self(Arc::new(SlabShared {
            memory,
            capacity: bytes as u64,
            copied: Mutex::new(FreeList::new(MemoryKind::Copied, blocks)),
            zero_copy: Mutex::new(FreeList::new(MemoryKind::ZeroCopy, blocks)),
            blocks: Mutex::new(Blocks::new(blocks as u32)),
            prefault_needed: Condvar::new(),
            generation: AtomicU64::new(0),
            counters: StatCounters::default(),
        }))
    }

    /// Allocates a contiguous range whose length is in `bytes`, and returns it with its generation:
    /// see [`Slab::allocate`].
    pub(crate) fn allocate_extent(
        &self,
        kind: MemoryKind,
        bytes: RangeInclusive<usize>,
        tag: u64,
    ) -> Result<(Allocation, u64), AllocError> {
        let (min, max) = (*bytes.start(), (*bytes.end()).min(kind.bytes_max()));
        assert!(0 < min && min <= max, "{bytes:?} bytes");
        let generation = self.next_generation();
        let mut free_list = self.free_list(kind);
        let mut allocation = free_list.allocate(max, generation, tag);
        if allocation.is_none()
            && let Some(block) = self.take_ready_block()
        {
            free_list.add_block(block);
            allocation = free_list.allocate(max, generation, tag);
        }
        let allocation =
            allocation.or_else(|| free_list.allocate_longest(min, max, generation, tag));
        drop(free_list);
        allocation
            .map(|allocation| (allocation, generation))
            .ok_or_else(|| self.count_alloc_error())
    }

    /// Takes a ready block, and wakes the prefault thread if too few are left.
    fn take_ready_block(&self) -> Option<u32> {
        let mut blocks = self.blocks();
        let block = blocks.take_ready();
        self.wake_prefault_thread(&blocks);
        block
    }

    /// Wakes the prefault thread if it sleeps and there is something to do.
    fn wake_prefault_thread(&self, blocks: &Blocks) {
        if blocks.is_awaited && blocks.has_task() {
            self.0.prefault_needed.notify_one();
        }
    }

    /// Returns why an allocation failed, and counts it.
    fn count_alloc_error(&self) -> AllocError {
        let [_, free, tainted] = self.free_list(MemoryKind::Copied).bytes();
        let unusable = free + tainted;
        let [_, free, tainted] = self.free_list(MemoryKind::ZeroCopy).bytes();
        let unusable = unusable + free + tainted;
        let counters = &self.0.counters;
        let (count, error) = if self.blocks().has_block_soon() {
            (&counters.refused_not_ready, AllocError::NotReady)
        } else if unusable >= self.0.capacity / FRAGMENTED_SHARE {
            (&counters.refused_fragmented, AllocError::Fragmented)
        } else {
            (&counters.refused_full, AllocError::Full)
        };
        count.fetch_add(1, Ordering::Relaxed);
        error
    }

    /// Chooses the block of either kind with the fewest bytes in use, stops allocating from it, and
    /// returns the tags of the objects in it. The block is free for both kinds once the owners have
    /// dropped these objects or replaced them by copies
    /// ([`Aggregate::copy`](crate::Aggregate::copy)). Returns `None` if more than seven eighths of
    /// every block are in use, or if a sixteenth of the blocks are being evacuated already and wait
    /// for slow readers. To be called after [`AllocError::Fragmented`]. Examines every block: some
    /// microseconds for 10 GB.
    pub fn start_evacuation(&self) -> Option<Vec<u64>> {
        let (copied, zero_copy) =
            (self.free_list(MemoryKind::Copied), self.free_list(MemoryKind::ZeroCopy));
        let blocks = self.0.capacity as usize / BLOCK_BYTES;
        if copied.evacuating + zero_copy.evacuating >= blocks.div_ceil(EVACUATING_BLOCKS_SHARE) {
            return None;
        }
        let found = [copied, zero_copy].into_iter();
        let found = found.filter_map(|free_list| Some((free_list.least_used_block()?, free_list)));
        let ((held, block), mut free_list) = found.min_by_key(|((held, _), _)| *held)?;
        let whole = BLOCK_BYTES as u64;
        (held <= whole - whole / EVACUATION_FREE_SHARE).then(|| free_list.start_evacuation(block))
    }

    /// Calls `allocate`, again whenever no block is ready and one could be prepared.
    pub(crate) fn with_ready_block<T>(
        &self,
        mut allocate: impl FnMut() -> Result<T, AllocError>,
    ) -> Result<T, AllocError> {
        loop {
            match allocate() {
                Err(AllocError::NotReady) if self.prefault() == PrefaultOutcome::Prefaulted => {}
                allocated => return allocated,
            }
        }
    }

    /// Populates one more block if too few are ready. This takes as long as for the first blocks of
    /// [`Slab::new`], or longer if the kernel has to assemble a huge page first. It is meant for a
    /// thread of its own: see [`PrefaultThread`](crate::PrefaultThread).
    pub fn prefault(&self) -> PrefaultOutcome {
        match self.prefault_block() {
            None => PrefaultOutcome::Idle,
            Some(TaskResult::Ready(_)) => PrefaultOutcome::Prefaulted,
            Some(TaskResult::Empty(error) | TaskResult::NotRecycled(error)) => {
                PrefaultOutcome::Failed(error.raw_os_error())
            }
        }
    }

    fn prefault_block(&self) -> Option<TaskResult> {
        let task = self.blocks().begin_task()?;
        let result = task.run(&self.0.memory);
        self.blocks().finish_task(task, result);
        Some(result)
    }

    /// Returns whether the slice with this id is still held, unchanged.
    pub fn is_current(&self, id: &SliceId) -> bool {
        let SliceId { pool, length, offset, generation } = *id;
        pool == SLAB_POOL
            && [MemoryKind::Copied, MemoryKind::ZeroCopy].iter().any(|kind| {
                self.free_list(*kind).has_generation(offset, length as usize, generation)
            })
    }

    /// Returns the size in bytes.
    pub fn capacity(&self) -> u64 {
        self.0.capacity
    }

    /// Returns the present state of the slab and its counters.
    pub fn stats(&self) -> SlabStats {
        let (copied, zero_copy) =
            (self.free_list(MemoryKind::Copied), self.free_list(MemoryKind::ZeroCopy));
        let blocks = self.blocks();
        let [live, free, tainted] = [0, 1, 2].map(|of| copied.bytes()[of] + zero_copy.bytes()[of]);
        let counters = &self.0.counters;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        SlabStats {
            capacity: self.0.capacity,
            live,
            free,
            tainted,
            extents: (copied.extents + zero_copy.extents) as u64,
            ready_blocks: blocks.ready.len() as u64,
            queued_blocks: blocks.queued.len() as u64,
            empty_blocks: blocks.empty.len() as u64,
            small_page_blocks: blocks.small_page_blocks() as u64,
            evacuating_blocks: (copied.evacuating + zero_copy.evacuating) as u64,
            recycled: blocks.recycled,
            prefault_failures: blocks.failures,
            refused_full: count(&counters.refused_full),
            refused_fragmented: count(&counters.refused_fragmented),
            refused_not_ready: count(&counters.refused_not_ready),
            forms_computed: count(&counters.forms_computed),
            forms_reused: count(&counters.forms_reused),
        }
    }

    pub(crate) fn shared(&self) -> &SlabShared {
        &self.0
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.0.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Releases an extent. `was_sent`: the kernel may refer to its memory.
    pub(crate) fn release(
        &self,
        kind: MemoryKind,
        allocation: Allocation,
        generation: u64,
        was_sent: bool,
    ) {
        let mut free_list = self.free_list(kind);
        if let Some(freed) = free_list.release(allocation, generation, was_sent) {
            let mut blocks = self.blocks();
            blocks.release(freed.block, freed.was_sent);
            self.wake_prefault_thread(&blocks);
        }
    }

    pub(crate) fn free_list(&self, kind: MemoryKind) -> MutexGuard<'_, FreeList> {
        let free_list = match kind {
            MemoryKind::Copied => &self.0.copied,
            MemoryKind::ZeroCopy => &self.0.zero_copy,
        };
        free_list.lock().expect("no holder of this lock panics")
    }

    pub(crate) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.0.blocks.lock().expect("no holder of this lock panics")
    }
}

/// Rounds the size of a new slab down to whole blocks.
fn check_size(bytes: usize) -> Result<usize, Error> {
    let allowed = (SLAB_BYTES_MIN..=SLAB_BYTES_MAX).contains(&bytes);
    if allowed { Ok(bytes - bytes % BLOCK_BYTES) } else { Err(Error::Size(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::Slice;

    const BLOCK: RangeInclusive<usize> = BLOCK_BYTES..=BLOCK_BYTES;

    fn slice(slab: &Slab, kind: MemoryKind, bytes: usize, tag: u64) -> Result<Slice, AllocError> {
        loop {
            match slab.allocate(kind, bytes..=bytes, tag) {
                Ok(mut buffer) => {
                    buffer.advance(bytes);
                    return Ok(buffer.freeze());
                }
                Err(AllocError::NotReady) => {
                    assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted)
                }
                Err(error) => return Err(error),
            }
        }
    }

    #[test]
    fn sizes_are_bounded() {
        for bytes in [0, SLAB_BYTES_MIN - 1, SLAB_BYTES_MAX + 1] {
            assert_eq!(Slab::on_heap(bytes).unwrap_err(), Error::Size(bytes));
        }
        let slab = Slab::on_heap(SLAB_BYTES_MIN + BLOCK_BYTES - 1).unwrap();
        assert_eq!(slab.stats().capacity, SLAB_BYTES_MIN as u64);
    }

    #[test]
    fn a_full_slab_fails_until_a_slice_is_dropped() {
        let slab = Slab::on_heap(16 * BLOCK_BYTES).unwrap();
        let whole = |slab: &Slab| slab.allocate(MemoryKind::ZeroCopy, BLOCK, 0);
        assert_eq!(slab.stats().ready_blocks, 2);
        let mut held = vec![whole(&slab).unwrap(), whole(&slab).unwrap()];
        assert_eq!(whole(&slab).unwrap_err(), AllocError::NotReady);
        for _ in 2..16 {
            assert_eq!(slab.prefault(), PrefaultOutcome::Prefaulted);
            held.push(whole(&slab).unwrap());
        }
        assert_eq!(slab.prefault(), PrefaultOutcome::Idle);
        assert_eq!(whole(&slab).unwrap_err(), AllocError::Full);
        assert_eq!(slab.allocate(MemoryKind::Copied, 1..=1, 0).unwrap_err(), AllocError::Full);
        let stats = slab.stats();
        assert_eq!((stats.live, stats.free), (stats.capacity, 0));
        assert_eq!((stats.refused_full, stats.refused_not_ready), (2, 1));
        drop(held.pop());
        let small = slab.allocate(MemoryKind::Copied, 1..=1, 0).unwrap();
        assert_eq!(whole(&slab).unwrap_err(), AllocError::Full, "the block has the other kind");
        drop(small);
        assert!(whole(&slab).is_ok());
    }

    #[test]
    fn scattered_memory_is_allocated_in_parts() {
        let slab = Slab::on_heap(2 * BLOCK_BYTES).unwrap();
        let eighth = BLOCK_BYTES / 8;
        let mut held: Vec<Slice> =
            (0..16).map(|_| slice(&slab, MemoryKind::ZeroCopy, eighth, 0).unwrap()).collect();
        held.swap_remove(3);
        assert_eq!(
            slice(&slab, MemoryKind::ZeroCopy, 2 * eighth, 0).unwrap_err(),
            AllocError::Full
        );
        let part = slab.allocate(MemoryKind::ZeroCopy, 1..=2 * eighth, 0).unwrap();
        assert_eq!(part.capacity(), eighth);
    }

    /// Small objects that outlive their neighbours do not keep large ones out, and large objects do
    /// not keep small ones out.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri many minutes")]
    fn blocks_change_from_one_kind_to_the_other() {
        let slab = Slab::on_heap(8 * BLOCK_BYTES).unwrap();
        let there = (MemoryKind::Copied, 20_000, MemoryKind::ZeroCopy, BLOCK_BYTES);
        let back = (MemoryKind::ZeroCopy, 100_000, MemoryKind::Copied, 20_000);
        for (kind, bytes, other, wanted) in [there, back] {
            let mut held: Vec<(u64, Slice)> = Vec::new();
            while let Ok(slice) = slice(&slab, kind, bytes, held.len() as u64) {
                held.push((held.len() as u64, slice));
            }
            assert_eq!(slice(&slab, other, wanted, 0).unwrap_err(), AllocError::Full);
            assert_eq!(slab.start_evacuation(), None, "nothing would be freed");
            held.retain(|(tag, _)| tag % 5 == 0);
            assert_eq!(slice(&slab, other, wanted, 0).unwrap_err(), AllocError::Fragmented);
            let tags = slab.start_evacuation().expect("four fifths of each block are free");
            assert!(!tags.is_empty() && tags.iter().all(|tag| tag % 5 == 0), "{tags:?}");
            assert_eq!((slab.start_evacuation(), slab.stats().evacuating_blocks), (None, 1));
            let moved: Vec<Slice> =
                tags.iter().map(|_| slice(&slab, kind, bytes, 0).unwrap()).collect();
            held.retain(|(tag, _)| !tags.contains(tag));
            assert_eq!((slab.stats().evacuating_blocks, slab.stats().recycled), (0, 0));
            assert!(slice(&slab, other, wanted, 0).is_ok());
            drop(moved);
        }
        assert_eq!((slab.stats().live, slab.stats().extents), (0, 0));
    }
}

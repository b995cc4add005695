//! The slab: all memory of a cache, bounded, shared by all workers.

use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use millrace_sys::Errno;

use crate::areas::{Areas, Taken};
use crate::blocks::{Blocks, Made};
use crate::buffer::Buffer;
use crate::counters::Counters;
use crate::error::{Error, Refusal};
use crate::kind::Kind;
use crate::limits::{BLOCK_BYTES, SLAB_BYTES_MAX, SLAB_BYTES_MIN, SPOILED_SHARE};
use crate::memory::Memory;
use crate::run::Run;
use crate::slice::{POOL, Reference};

/// Memory for immutable bytes. Clones are the same slab; it lives as long as any of them, or any
/// buffer or slice of it.
///
/// A lock is held to take memory and to give it back, for some hundred nanoseconds, one for each
/// [`Kind`]; none to read, to clone a slice, or to drop one that is not the last of its run.
#[derive(Clone, Debug)]
pub struct Slab(Arc<Shared>);

/// Locks are taken in the order of the fields, and at most one of each.
#[derive(Debug)]
pub(crate) struct Shared {
    memory: Memory,
    capacity: u64,
    copied: Mutex<Areas>,
    referred: Mutex<Areas>,
    pub(crate) blocks: Mutex<Blocks>,
    /// There may be something to tend to.
    pub(crate) work: Condvar,
    /// The last generation that was given. No two runs have the same one, and a run that changes
    /// gets another; no order with anything else is needed.
    generation: AtomicU64,
    pub(crate) tally: Tally,
}

/// Numbers that are only ever counted up, apart from each other.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    full: AtomicU64,
    spoiled: AtomicU64,
    later: AtomicU64,
    pub(crate) derived: AtomicU64,
    pub(crate) found: AtomicU64,
}

/// What [`Slab::tend`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Tended {
    /// There was nothing to do.
    Idle,
    /// One more block is ready.
    Done,
    /// The kernel had no memory for a block: its error number (errno(3)). Sound to try again, but
    /// not at once.
    Failed(i32),
}

impl Slab {
    /// A slab in files of its own, of `bytes`, rounded down to blocks; see
    /// [`limits`](crate::limits) for the bounds. It takes memory as it is used and never more than
    /// `bytes`, but for blocks that were recycled while a socket still referred to them. The first
    /// blocks are made ready here, about a millisecond each, so that it can be used at once.
    ///
    /// # Errors
    /// [`Error::Size`]; [`Error::Unsupported`] before Linux 5.14; [`Error::Kernel`] when it gives
    /// no file, address or memory. Huge pages that cannot be had are no error:
    /// [`Counters::small_blocks`] tells.
    pub fn new(bytes: usize) -> Result<Self, Error> {
        let bytes = checked(bytes)?;
        let slab = Self::over(Memory::in_files(bytes)?, bytes);
        loop {
            match slab.make_ready() {
                None => return Ok(slab),
                Some(Made::Ready(_)) => {}
                Some(Made::Empty(Errno::INVAL)) => {
                    return Err(Error::Unsupported {
                        feature: "MADV_POPULATE_WRITE",
                        since: "5.14",
                    });
                }
                Some(Made::Empty(error) | Made::NotRecycled(error)) => {
                    return Err(Error::Kernel("madvise", error));
                }
            }
        }
    }

    /// A slab that needs no kernel: everything is as in another, but nothing can be sent by
    /// reference ([`Slice::file`](crate::Slice::file) gives `None`). For the simulator and for
    /// tests.
    ///
    /// # Errors
    /// [`Error::Size`].
    pub fn on_heap(bytes: usize) -> Result<Self, Error> {
        let bytes = checked(bytes)?;
        let slab = Self::over(Memory::on_heap(bytes), bytes);
        while slab.make_ready().is_some() {}
        Ok(slab)
    }

    fn over(memory: Memory, bytes: usize) -> Self {
        let blocks = bytes / BLOCK_BYTES;
        Self(Arc::new(Shared {
            memory,
            capacity: bytes as u64,
            copied: Mutex::new(Areas::new(Kind::Copied, blocks)),
            referred: Mutex::new(Areas::new(Kind::Referred, blocks)),
            blocks: Mutex::new(Blocks::new(blocks as u32)),
            work: Condvar::new(),
            generation: AtomicU64::new(0),
            tally: Tally::default(),
        }))
    }

    /// A buffer to be filled, for as many bytes of `bytes` as there are side by side; rounded up
    /// to the kind's unit. A large object takes several, of [`Kind::bytes_max`] at most; such of
    /// 256 KB find their places far longer than larger ones. `tag` is how [`Slab::condemn`] names
    /// the object, such as the hash of its key.
    ///
    /// # Errors
    /// A [`Refusal`], which says what the caller can do.
    ///
    /// # Panics
    /// When `bytes` is empty, or begins at 0 or above [`Kind::bytes_max`].
    pub fn allocate(
        &self,
        kind: Kind,
        bytes: RangeInclusive<usize>,
        tag: u64,
    ) -> Result<Buffer, Refusal> {
        let (min, max) = (*bytes.start(), (*bytes.end()).min(kind.bytes_max()));
        assert!(0 < min && min <= max, "{bytes:?} bytes");
        let generation = self.next_generation();
        let mut areas = self.areas(kind);
        let mut taken = areas.take(max, generation, tag);
        if taken.is_none()
            && let Some(block) = self.take_block()
        {
            areas.add(block);
            taken = areas.take(max, generation, tag);
        }
        let taken = taken.or_else(|| areas.take_longest(min, max, generation, tag));
        drop(areas);
        match taken {
            Some(taken) => Ok(Buffer::new(Run::new(self.clone(), kind, taken, generation))),
            None => Err(self.refusal()),
        }
    }

    /// A ready block, and a wake for the helper if too few are left.
    fn take_block(&self) -> Option<u32> {
        let mut blocks = self.blocks();
        let block = blocks.take();
        if blocks.has_task() {
            self.0.work.notify_one();
        }
        block
    }

    /// Why there is nothing.
    fn refusal(&self) -> Refusal {
        let [_, _, spoiled] = self.areas(Kind::Referred).bytes();
        let tally = &self.0.tally;
        let (count, refusal) = if self.blocks().has_more() {
            (&tally.later, Refusal::Later)
        } else if spoiled >= self.0.capacity / SPOILED_SHARE {
            (&tally.spoiled, Refusal::Spoiled)
        } else {
            (&tally.full, Refusal::Full)
        };
        count.fetch_add(1, Ordering::Relaxed);
        refusal
    }

    /// Picks the block in which the most memory waits to be recycled, lets nothing more be taken
    /// there, and gives the tags of what somebody still holds of it. When their holders have
    /// dropped that, or put copies in its place ([`Aggregate::copy`](crate::Aggregate::copy)), the
    /// block is recycled. `None`: no block is worth it, or enough of them are condemned already. To
    /// be called at [`Refusal::Spoiled`], or whenever [`Counters::spoiled`] is an eighth of the
    /// capacity. Looks at every block, so not for a hot path: 10 microseconds for 10 GB.
    pub fn condemn(&self) -> Option<Vec<u64>> {
        self.areas(Kind::Referred).condemn()
    }

    /// Makes one more block ready if too few are, which takes up to a millisecond: for a thread of
    /// its own, see [`Helper`](crate::Helper).
    pub fn tend(&self) -> Tended {
        match self.make_ready() {
            None => Tended::Idle,
            Some(Made::Ready(_)) => Tended::Done,
            Some(Made::Empty(error) | Made::NotRecycled(error)) => {
                Tended::Failed(error.raw_os_error())
            }
        }
    }

    fn make_ready(&self) -> Option<Made> {
        let task = self.blocks().task()?;
        let made = task.run(&self.0.memory);
        self.blocks().done(task, made);
        Some(made)
    }

    /// Whether the slice that had this reference is still held by somebody, unchanged.
    pub fn is_current(&self, reference: &Reference) -> bool {
        let Reference { pool, length, offset, generation } = *reference;
        pool == POOL
            && [Kind::Copied, Kind::Referred]
                .iter()
                .any(|kind| self.areas(*kind).is_of(offset, length as usize, generation))
    }

    /// What there is, and what happened so far.
    pub fn counters(&self) -> Counters {
        let (copied, referred) = (self.areas(Kind::Copied), self.areas(Kind::Referred));
        let blocks = self.blocks();
        let [live, free, spoiled] = [0, 1, 2].map(|of| copied.bytes()[of] + referred.bytes()[of]);
        let tally = &self.0.tally;
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Counters {
            capacity: self.0.capacity,
            live,
            free,
            spoiled,
            runs: (copied.runs() + referred.runs()) as u64,
            ready_blocks: blocks.ready() as u64,
            queued_blocks: blocks.queued() as u64,
            empty_blocks: blocks.empty() as u64,
            small_blocks: blocks.small() as u64,
            condemned_blocks: referred.condemned() as u64,
            recycled: blocks.recycled,
            failed: blocks.failed,
            refused_full: count(&tally.full),
            refused_spoiled: count(&tally.spoiled),
            refused_later: count(&tally.later),
            derived: count(&tally.derived),
            found: count(&tally.found),
        }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0
    }

    pub(crate) fn next_generation(&self) -> u64 {
        self.0.generation.fetch_add(1, Ordering::Relaxed) + 1
    }

    pub(crate) fn address(&self, offset: u64) -> NonNull<u8> {
        self.0.memory.address(offset)
    }

    pub(crate) fn file(&self, offset: u64) -> Option<(BorrowedFd<'_>, u64)> {
        self.0.memory.file(offset)
    }

    /// Takes a run back. `spoiled`: the kernel may refer to it.
    pub(crate) fn give(&self, kind: Kind, taken: Taken, generation: u64, spoiled: bool) {
        let mut areas = self.areas(kind);
        if let Some(emptied) = areas.give(taken, generation, spoiled) {
            let mut blocks = self.blocks();
            blocks.give(emptied.block, emptied.spoiled);
            if blocks.has_task() {
                self.0.work.notify_one();
            }
        }
    }

    pub(crate) fn give_end(&self, kind: Kind, end: Taken, generation: u64) {
        self.areas(kind).give_end(end, generation);
    }

    pub(crate) fn renew(&self, kind: Kind, taken: Taken, before: u64, generation: u64) {
        self.areas(kind).renew(taken, before, generation);
    }

    fn areas(&self, kind: Kind) -> MutexGuard<'_, Areas> {
        let areas = match kind {
            Kind::Copied => &self.0.copied,
            Kind::Referred => &self.0.referred,
        };
        areas.lock().expect("nobody panics who holds this lock")
    }

    pub(crate) fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.0.blocks.lock().expect("nobody panics who holds this lock")
    }
}

/// The bytes of a slab for which `bytes` were asked.
fn checked(bytes: usize) -> Result<usize, Error> {
    let allowed = (SLAB_BYTES_MIN..=SLAB_BYTES_MAX).contains(&bytes);
    if allowed { Ok(bytes - bytes % BLOCK_BYTES) } else { Err(Error::Size(bytes)) }
}

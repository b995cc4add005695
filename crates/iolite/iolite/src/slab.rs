//! The slab: all memory of a cache, bounded, shared by all workers.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use millrace_sys::Errno;

use crate::areas::{Areas, Taken};
use crate::blocks::{Blocks, Made};
use crate::counters::Counters;
use crate::error::{Error, Refusal};
use crate::kind::Kind;
use crate::limits::{
    BLOCK_BYTES, CONDEMNED_BLOCKS_SHARE, CONDEMNED_SHARE, SCATTERED_SHARE, SLAB_BYTES_MAX,
    SLAB_BYTES_MIN,
};
use crate::memory::Memory;
use crate::reference::{POOL, Reference};

/// Memory for immutable bytes. Clones are the same slab; it lives as long as any of them, or any
/// buffer or slice of it.
///
/// A lock is held to take memory and to give it back, for some hundred nanoseconds, one for each
/// [`Kind`]; none to read, to clone a slice, or to drop one that is not the last of its run.
#[derive(Clone, Debug)]
pub struct Slab(Arc<Shared>);

/// Locks are taken in the order of the fields.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) memory: Memory,
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
    scattered: AtomicU64,
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
    /// blocks are made ready here, so that it can be used at once: some 100 microseconds each with
    /// huge pages, 2 milliseconds without (`cargo bench -p iolite -- fill`).
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

    /// Memory for as many bytes of `bytes` as there are side by side, and its generation: see
    /// [`Slab::allocate`].
    pub(crate) fn take(
        &self,
        kind: Kind,
        bytes: RangeInclusive<usize>,
        tag: u64,
    ) -> Result<(Taken, u64), Refusal> {
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
        taken.map(|taken| (taken, generation)).ok_or_else(|| self.refusal())
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
        let [_, free, spoiled] = self.areas(Kind::Copied).bytes();
        let scattered = free + spoiled;
        let [_, free, spoiled] = self.areas(Kind::Referred).bytes();
        let scattered = scattered + free + spoiled;
        let tally = &self.0.tally;
        let (count, refusal) = if self.blocks().has_more() {
            (&tally.later, Refusal::Later)
        } else if scattered >= self.0.capacity / SCATTERED_SHARE {
            (&tally.scattered, Refusal::Scattered)
        } else {
            (&tally.full, Refusal::Full)
        };
        count.fetch_add(1, Ordering::Relaxed);
        refusal
    }

    /// Picks the block of which the least is held, of either kind, lets nothing more be taken
    /// there, and gives the tags of what is held. When their holders have dropped that, or put
    /// copies in its place ([`Aggregate::copy`](crate::Aggregate::copy)), the block is free for
    /// everything. `None`: each is held by an eighth less than all at best, or a sixteenth of them
    /// is condemned already, and waits for slow readers. To be called at [`Refusal::Scattered`].
    /// Looks at every block: some microseconds for 10 GB.
    pub fn condemn(&self) -> Option<Vec<u64>> {
        let (copied, referred) = (self.areas(Kind::Copied), self.areas(Kind::Referred));
        let blocks = self.0.capacity as usize / BLOCK_BYTES;
        if copied.condemned + referred.condemned >= blocks.div_ceil(CONDEMNED_BLOCKS_SHARE) {
            return None;
        }
        let found = [copied, referred].into_iter();
        let found = found.filter_map(|areas| Some((areas.least_held()?, areas)));
        let ((held, block), mut areas) = found.min_by_key(|((held, _), _)| *held)?;
        let whole = BLOCK_BYTES as u64;
        (held <= whole - whole / CONDEMNED_SHARE).then(|| areas.condemn(block))
    }

    /// Makes one more block ready if too few are, which takes as long as [`Slab::new`] says, and
    /// more where the kernel has to gather a huge page first: for a thread of its own, see
    /// [`Helper`](crate::Helper).
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
            runs: (copied.runs + referred.runs) as u64,
            ready_blocks: blocks.ready.len() as u64,
            queued_blocks: blocks.queued.len() as u64,
            empty_blocks: blocks.empty.len() as u64,
            small_blocks: blocks.small() as u64,
            condemned_blocks: (copied.condemned + referred.condemned) as u64,
            recycled: blocks.recycled,
            failed: blocks.failed,
            refused_full: count(&tally.full),
            refused_scattered: count(&tally.scattered),
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

    /// Takes a run back. `sent`: the kernel may refer to it.
    pub(crate) fn give(&self, kind: Kind, taken: Taken, generation: u64, sent: bool) {
        let mut areas = self.areas(kind);
        if let Some(emptied) = areas.give(taken, generation, sent) {
            let mut blocks = self.blocks();
            blocks.give(emptied.block, emptied.sent);
            if blocks.has_task() {
                self.0.work.notify_one();
            }
        }
    }

    pub(crate) fn areas(&self, kind: Kind) -> MutexGuard<'_, Areas> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slice::Slice;

    const BLOCK: RangeInclusive<usize> = BLOCK_BYTES..=BLOCK_BYTES;

    fn slice(slab: &Slab, kind: Kind, bytes: usize, tag: u64) -> Result<Slice, Refusal> {
        loop {
            match slab.allocate(kind, bytes..=bytes, tag) {
                Ok(mut buffer) => {
                    buffer.advance(bytes);
                    return Ok(buffer.freeze());
                }
                Err(Refusal::Later) => assert_eq!(slab.tend(), Tended::Done),
                Err(refusal) => return Err(refusal),
            }
        }
    }

    #[test]
    fn sizes_are_bounded() {
        for bytes in [0, SLAB_BYTES_MIN - 1, SLAB_BYTES_MAX + 1] {
            assert_eq!(Slab::on_heap(bytes).unwrap_err(), Error::Size(bytes));
        }
        let slab = Slab::on_heap(SLAB_BYTES_MIN + BLOCK_BYTES - 1).unwrap();
        assert_eq!(slab.counters().capacity, SLAB_BYTES_MIN as u64);
    }

    #[test]
    fn a_full_slab_gives_nothing_until_something_is_dropped() {
        let slab = Slab::on_heap(16 * BLOCK_BYTES).unwrap();
        let whole = |slab: &Slab| slab.allocate(Kind::Referred, BLOCK, 0);
        assert_eq!(slab.counters().ready_blocks, 2);
        let mut held = vec![whole(&slab).unwrap(), whole(&slab).unwrap()];
        assert_eq!(whole(&slab).unwrap_err(), Refusal::Later);
        for _ in 2..16 {
            assert_eq!(slab.tend(), Tended::Done);
            held.push(whole(&slab).unwrap());
        }
        assert_eq!(slab.tend(), Tended::Idle);
        assert_eq!(whole(&slab).unwrap_err(), Refusal::Full);
        assert_eq!(slab.allocate(Kind::Copied, 1..=1, 0).unwrap_err(), Refusal::Full);
        let counters = slab.counters();
        assert_eq!((counters.live, counters.free), (counters.capacity, 0));
        assert_eq!((counters.refused_full, counters.refused_later), (2, 1));
        drop(held.pop());
        let small = slab.allocate(Kind::Copied, 1..=1, 0).unwrap();
        assert_eq!(whole(&slab).unwrap_err(), Refusal::Full, "the block has the other kind");
        drop(small);
        assert!(whole(&slab).is_ok());
    }

    #[test]
    fn what_is_free_in_pieces_is_given_in_pieces() {
        let slab = Slab::on_heap(2 * BLOCK_BYTES).unwrap();
        let eighth = BLOCK_BYTES / 8;
        let mut held: Vec<Slice> =
            (0..16).map(|_| slice(&slab, Kind::Referred, eighth, 0).unwrap()).collect();
        held.swap_remove(3);
        assert_eq!(slice(&slab, Kind::Referred, 2 * eighth, 0).unwrap_err(), Refusal::Full);
        let part = slab.allocate(Kind::Referred, 1..=2 * eighth, 0).unwrap();
        assert_eq!(part.capacity(), eighth);
    }

    /// Small objects that have outlived their neighbours do not keep large ones out, nor large
    /// ones small ones.
    #[test]
    #[cfg_attr(miri, ignore = "takes Miri many minutes")]
    fn a_slab_changes_from_one_kind_to_the_other() {
        let slab = Slab::on_heap(8 * BLOCK_BYTES).unwrap();
        let there = (Kind::Copied, 20_000, Kind::Referred, BLOCK_BYTES);
        let back = (Kind::Referred, 100_000, Kind::Copied, 20_000);
        for (kind, bytes, other, wanted) in [there, back] {
            let mut held: Vec<(u64, Slice)> = Vec::new();
            while let Ok(slice) = slice(&slab, kind, bytes, held.len() as u64) {
                held.push((held.len() as u64, slice));
            }
            assert_eq!(slice(&slab, other, wanted, 0).unwrap_err(), Refusal::Full);
            assert_eq!(slab.condemn(), None, "nothing would be won");
            held.retain(|(tag, _)| tag % 5 == 0);
            assert_eq!(slice(&slab, other, wanted, 0).unwrap_err(), Refusal::Scattered);
            let tags = slab.condemn().expect("four fifths of each block are free");
            assert!(!tags.is_empty() && tags.iter().all(|tag| tag % 5 == 0), "{tags:?}");
            assert_eq!((slab.condemn(), slab.counters().condemned_blocks), (None, 1));
            let moved: Vec<Slice> =
                tags.iter().map(|_| slice(&slab, kind, bytes, 0).unwrap()).collect();
            held.retain(|(tag, _)| !tags.contains(tag));
            assert_eq!((slab.counters().condemned_blocks, slab.counters().recycled), (0, 0));
            assert!(slice(&slab, other, wanted, 0).is_ok());
            drop(moved);
        }
        assert_eq!((slab.counters().live, slab.counters().runs), (0, 0));
    }
}

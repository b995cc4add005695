//! A pool of another process that this process has joined: memory that it reads.

use std::any::Any;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use millrace_sys::MappedRegion;

use crate::error::Error;
use crate::limits::{BLOCK_BYTES, POOL_BYTES_MAX, UNITS_PER_SEGMENT, ZERO_COPY_UNIT};
use crate::packet::Frame;
use crate::pool::ledger::{OwnLedger, ledger_words};
use crate::pool::words::OwnWords;
use crate::pool::{next_pool_number, slot_of, unit_of};
use crate::sealed::RefusedMemory;

/// The most slots of a pool.
const SLOTS_MAX: usize = 2 * POOL_BYTES_MAX / BLOCK_BYTES;

/// A pool that this process has joined. Its owner is trusted: it can write to the memory. Clones
/// are the same pool.
#[derive(Clone, Debug)]
pub(crate) struct JoinedPool(Arc<JoinedShared>);

#[derive(Debug)]
struct JoinedShared {
    /// The number of the pool in this process; never 0.
    number: u32,
    start: NonNull<u8>,
    slots: usize,
    ledger: OwnLedger,
    /// The generation of the process that has joined the pool. A child of fork(2) has none of its
    /// memory, and no ledger.
    process: u64,
    state: Mutex<JoinedState>,
}

// SAFETY: the memory behind `start` stays reserved as long as the pool is held, on every thread; no
// other field is bound to a thread.
unsafe impl Send for JoinedShared {}
// SAFETY: as above. The memory is only read, where an extent is held.
unsafe impl Sync for JoinedShared {}

#[derive(Debug)]
struct JoinedState {
    region: MappedRegion,
    /// Indexed by slot.
    blocks: Vec<Option<JoinedBlock>>,
    maps: u64,
}

#[derive(Debug)]
struct JoinedBlock {
    file: OwnedFd,
    version: u32,
    is_mapped: bool,
    is_retired: bool,
    /// The extents that are held, by their first units in the block.
    extents: Box<[Option<HeldExtent>]>,
    /// The number of these.
    held: usize,
}

/// The type of the extent is erased, because an extent holds its pool.
#[derive(Debug)]
struct HeldExtent {
    generation: u64,
    /// The ledger has it.
    is_entered: bool,
    extent: Weak<dyn Any + Send + Sync>,
}

/// The reason why a reference was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadReference {
    /// The block has not arrived, or is used no more.
    NoBlock,
    /// No block has such an extent.
    NoExtent,
    Kernel(millrace_sys::Errno),
}

impl JoinedPool {
    /// Joins a pool of `slots`. Returns `None` if the number is 0 or above the maximum of a pool.
    pub(crate) fn new(slots: usize) -> Result<Option<Self>, Error> {
        if slots == 0 || slots > SLOTS_MAX {
            return Ok(None);
        }
        let words = OwnWords::new(ledger_words(slots))?;
        let region = MappedRegion::reserve(slots * BLOCK_BYTES)
            .map_err(|error| Error::Kernel("mmap", error))?;
        Ok(Some(Self(Arc::new(JoinedShared {
            number: next_pool_number(),
            start: region.start(),
            slots,
            ledger: OwnLedger::new(words, slots),
            process: millrace_sys::process_generation(),
            state: Mutex::new(JoinedState {
                region,
                blocks: (0..slots).map(|_| None).collect(),
                maps: 0,
            }),
        }))))
    }

    pub(crate) fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the file of the ledger, for the owner.
    pub(crate) fn ledger_file(&self) -> BorrowedFd<'_> {
        self.0.ledger.words.file()
    }

    /// Returns the number of files that were mapped.
    pub(crate) fn maps(&self) -> u64 {
        self.state().maps
    }

    pub(crate) fn slots(&self) -> usize {
        self.0.slots
    }

    /// Adds a block, whose slot was checked. It is mapped when an extent of it is acquired.
    pub(crate) fn add_block(
        &self,
        slot: usize,
        version: u32,
        file: OwnedFd,
    ) -> Result<(), RefusedMemory> {
        match millrace_sys::is_sealed_for_readers(file.as_fd()) {
            Ok(true) => {}
            Ok(false) => return Err(RefusedMemory::Unsealed),
            Err(_) => return Err(RefusedMemory::OtherFile),
        }
        let (length, _) =
            millrace_sys::memory_file_size(file.as_fd()).map_err(RefusedMemory::Kernel)?;
        if length < BLOCK_BYTES as u64 {
            return Err(RefusedMemory::TooShort { length, expected: BLOCK_BYTES as u64 });
        }
        let mut state = self.state();
        state.retire(&self.0.ledger, slot);
        // An owner that replaces a block of which extents are held does not get its new one used.
        state.blocks[slot].get_or_insert_with(|| JoinedBlock {
            file,
            version,
            is_mapped: false,
            is_retired: false,
            extents: (0..UNITS_PER_SEGMENT).map(|_| None).collect(),
            held: 0,
        });
        Ok(())
    }

    /// Unmaps a version of a block, as soon as nothing of it is held.
    pub(crate) fn retire_block(&self, slot: usize, version: u32) {
        let mut state = self.state();
        if state.blocks[slot].as_ref().is_some_and(|block| block.version == version) {
            state.retire(&self.0.ledger, slot);
        }
    }

    /// Returns the extent of a reference, or the one that `make` creates from its offset and length
    /// in bytes. The owner holds it for this process until the frame is passed, before which
    /// [`JoinedPool::settle`] is called.
    pub(crate) fn acquire<T: Any + Send + Sync>(
        &self,
        frame: Frame,
        make: impl FnOnce(u64, usize) -> Arc<T>,
    ) -> Result<Arc<T>, BadReference> {
        let unit = frame.first_unit as usize;
        let (slot, first) = (unit / UNITS_PER_SEGMENT, unit % UNITS_PER_SEGMENT);
        let units = usize::from(frame.units);
        if slot >= self.0.slots || units == 0 || first + units > UNITS_PER_SEGMENT {
            return Err(BadReference::NoExtent);
        }
        let mut state = self.state();
        let JoinedState { region, blocks, maps } = &mut *state;
        let block = blocks[slot].as_mut().filter(|block| block.version == frame.version);
        let block = block.ok_or(BadReference::NoBlock)?;
        let held = block.extents[first].as_ref().filter(|of| of.generation == frame.generation);
        if let Some(extent) = held.and_then(|held| held.extent.upgrade()) {
            return Ok(extent.downcast().expect("all extents have one type"));
        }
        let is_alive = |held: &HeldExtent| held.extent.strong_count() > 0;
        if block.extents[first].as_ref().is_some_and(is_alive) {
            // The owner has freed an extent that is held here.
            return Err(BadReference::NoExtent);
        }
        if !block.is_mapped {
            let at = slot * BLOCK_BYTES;
            let mapped = region.map_read_only(at, block.file.as_fd(), BLOCK_BYTES);
            mapped.map_err(BadReference::Kernel)?;
            region.keep_from_children(at, BLOCK_BYTES).map_err(BadReference::Kernel)?;
            // If the kernel refuses, the first accesses map pages.
            let _ = region.collapse(at, BLOCK_BYTES);
            let _ = region.populate_for_reading(at, BLOCK_BYTES);
            block.is_mapped = true;
            *maps += 1;
            self.0.ledger.set_version(slot, frame.version);
        }
        let extent = make((unit * ZERO_COPY_UNIT) as u64, units * ZERO_COPY_UNIT);
        let weak = Arc::downgrade(&extent);
        let (generation, extent_here) = (frame.generation, &mut block.extents[first]);
        // An extent that another thread is dropping may have been entered.
        let is_entered = extent_here.as_ref().is_some_and(|before| before.is_entered);
        let held = HeldExtent { generation, is_entered, extent: weak };
        if extent_here.replace(held).is_none() {
            block.held += 1;
        }
        Ok(extent)
    }

    /// Enters the extent that begins at a unit in the ledger, if it is held.
    pub(crate) fn settle(&self, unit: usize) {
        let (slot, first) = (unit / UNITS_PER_SEGMENT, unit % UNITS_PER_SEGMENT);
        let mut state = self.state();
        let block = state.blocks[slot].as_mut();
        if let Some(held) = block.and_then(|block| block.extents[first].as_mut())
            && !held.is_entered
        {
            held.is_entered = true;
            self.0.ledger.hold(unit);
        }
    }

    /// Releases an extent that is being dropped: the one at this address.
    pub(crate) fn release(&self, offset: u64, address: *const ()) {
        if self.0.process != millrace_sys::process_generation() {
            return;
        }
        let unit = unit_of(offset);
        let (slot, first) = (unit / UNITS_PER_SEGMENT, unit % UNITS_PER_SEGMENT);
        let mut state = self.state();
        let Some(block) = &mut state.blocks[slot] else { return };
        let is_this = |held: &HeldExtent| std::ptr::addr_eq(held.extent.as_ptr(), address);
        if !block.extents[first].as_ref().is_some_and(is_this) {
            // Another thread has acquired it again meanwhile, and holds it now.
            return;
        }
        if block.extents[first].take().is_some_and(|held| held.is_entered) {
            self.0.ledger.release(unit);
        }
        block.held -= 1;
        if block.is_retired {
            state.retire(&self.0.ledger, slot);
        }
    }

    pub(crate) fn address(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < (self.0.slots * BLOCK_BYTES) as u64);
        // SAFETY: the offset is inside the region.
        unsafe { self.0.start.byte_add(offset as usize) }
    }

    /// Returns the file of the block at an offset, and the offset in it. Enters in the ledger that
    /// its bytes are sent by reference.
    ///
    /// # Safety
    /// As for [`Pool::file`](crate::Pool).
    pub(crate) unsafe fn file(&self, offset: u64) -> (BorrowedFd<'_>, u64) {
        let slot = slot_of(offset);
        self.0.ledger.set_sent(slot);
        let state = self.state();
        let block = state.blocks[slot].as_ref().expect("an extent of this block is held");
        // SAFETY: the file is closed when no extent in its block is held any more.
        (unsafe { BorrowedFd::borrow_raw(block.file.as_raw_fd()) }, offset % BLOCK_BYTES as u64)
    }

    fn state(&self) -> MutexGuard<'_, JoinedState> {
        self.0.state.lock().expect("no holder of this lock panics")
    }
}

impl JoinedState {
    /// Removes a block of which nothing is held; otherwise it is removed later.
    fn retire(&mut self, ledger: &OwnLedger, slot: usize) {
        let Some(block) = &mut self.blocks[slot] else { return };
        block.is_retired = true;
        if block.held == 0 {
            if block.is_mapped {
                // If the kernel refuses, the next block is mapped over this one.
                let _ = self.region.unmap(slot * BLOCK_BYTES, BLOCK_BYTES);
            }
            ledger.set_version(slot, 0);
            self.blocks[slot] = None;
        }
    }
}

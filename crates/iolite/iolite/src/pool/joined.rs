//! A pool of another process that this process has joined: memory that it reads.

use std::any::Any;
use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use millrace_sys::MappedRegion;

use crate::error::Error;
use crate::limits::{BLOCK_BYTES, POOL_BYTES_MAX, RETIRED_BLOCKS_MAX, ZERO_COPY_UNIT};
use crate::pool::ledger::{OwnLedger, ledger_words};
use crate::pool::table::{PeerTable, table_words};
use crate::pool::words::{OwnWords, PeerWords};
use crate::pool::{next_pool_number, slot_of, unit_of};
use crate::sealed::RefusedMemory;

/// A pool that this process has joined. Its owner is trusted: it can write to the memory. Clones
/// are the same pool.
#[derive(Clone, Debug)]
pub(crate) struct JoinedPool(Arc<JoinedShared>);

#[derive(Debug)]
struct JoinedShared {
    /// The number of the pool in this process; never 0.
    number: u32,
    start: NonNull<u8>,
    table: PeerTable,
    ledger: OwnLedger,
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
    /// The extents that are held, by their first units. The type is erased, because an extent holds
    /// its pool.
    extents: HashMap<usize, HeldExtent>,
    maps: u64,
}

#[derive(Debug)]
struct JoinedBlock {
    file: OwnedFd,
    version: u64,
    is_mapped: bool,
    is_retired: bool,
    /// The extents of this block that are held.
    held: usize,
}

#[derive(Debug)]
struct HeldExtent {
    generation: u64,
    extent: Weak<dyn Any + Send + Sync>,
}

/// The reason why a reference was refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadReference {
    /// The block has not arrived.
    NoBlock,
    /// There is no such extent now.
    NoExtent,
    Kernel(millrace_sys::Errno),
}

impl JoinedPool {
    /// Joins a pool of `slots` with this table.
    pub(crate) fn new(table: &OwnedFd, slots: usize) -> Result<Self, JoinError> {
        if slots == 0 || slots > POOL_BYTES_MAX / BLOCK_BYTES + RETIRED_BLOCKS_MAX + 1 {
            return Err(JoinError::Slots);
        }
        let words = PeerWords::accept(table, table_words(slots)).map_err(JoinError::Table)?;
        let words_of_ledger = OwnWords::new(ledger_words(slots)).map_err(JoinError::Memory)?;
        let region = MappedRegion::reserve(slots * BLOCK_BYTES)
            .map_err(|error| JoinError::Memory(Error::Kernel("mmap", error)))?;
        Ok(Self(Arc::new(JoinedShared {
            number: next_pool_number(),
            start: region.start(),
            table: PeerTable { words, slots },
            ledger: OwnLedger::new(words_of_ledger, slots),
            state: Mutex::new(JoinedState {
                region,
                blocks: (0..slots).map(|_| None).collect(),
                extents: HashMap::new(),
                maps: 0,
            }),
        })))
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

    /// Adds a block, whose slot was checked. It is mapped when an extent of it is acquired.
    pub(crate) fn add_block(
        &self,
        slot: usize,
        version: u64,
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
        state.retire(&self.0, slot);
        if state.blocks[slot].is_none() {
            let block = JoinedBlock { file, version, is_mapped: false, is_retired: false, held: 0 };
            state.blocks[slot] = Some(block);
        }
        Ok(())
    }

    /// Unmaps a version of a block, as soon as nothing of it is held.
    pub(crate) fn retire_block(&self, slot: usize, version: u64) {
        let mut state = self.state();
        if state.blocks[slot].as_ref().is_some_and(|block| block.version == version) {
            state.retire(&self.0, slot);
        }
    }

    /// Returns whether the current block at an offset has arrived.
    pub(crate) fn has_block(&self, offset: u64) -> bool {
        let slot = slot_of(offset);
        let state = self.state();
        let block = state.blocks.get(slot).and_then(Option::as_ref);
        block.is_some_and(|block| block.version == self.0.table.version(slot))
    }

    pub(crate) fn slots(&self) -> usize {
        self.0.table.slots
    }

    /// Returns the extent at `offset` with this generation, or one that `make` creates from its
    /// length. From then on this process holds the extent, until [`JoinedPool::release`].
    pub(crate) fn acquire<T: Any + Send + Sync>(
        &self,
        offset: u64,
        generation: u64,
        make: impl FnOnce(usize) -> Arc<T>,
    ) -> Result<Arc<T>, BadReference> {
        if offset >= (self.slots() * BLOCK_BYTES) as u64
            || !offset.is_multiple_of(ZERO_COPY_UNIT as u64)
        {
            return Err(BadReference::NoExtent);
        }
        let (slot, unit) = (slot_of(offset), unit_of(offset));
        let mut state = self.state();
        let held = state.extents.get(&unit).filter(|held| held.generation == generation);
        if let Some(extent) = held.and_then(|held| held.extent.upgrade()) {
            return Ok(extent.downcast().expect("all extents have one type"));
        }
        // The extent that is held here is another one, or is being dropped by another thread.
        let was_held = state.extents.contains_key(&unit);
        self.0.ledger.hold(unit);
        let acquired = state.find(&self.0, slot, unit, generation);
        let units = match acquired {
            Ok(units) => units,
            Err(error) => {
                if !was_held {
                    self.0.ledger.release(unit);
                }
                return Err(error);
            }
        };
        let extent = make(units * ZERO_COPY_UNIT);
        let erased: Arc<dyn Any + Send + Sync> = extent.clone();
        let held = HeldExtent { generation, extent: Arc::downgrade(&erased) };
        if state.extents.insert(unit, held).is_none()
            && let Some(block) = &mut state.blocks[slot]
        {
            block.held += 1;
        }
        Ok(extent)
    }

    /// Releases an extent that is being dropped: the one at this address.
    pub(crate) fn release(&self, offset: u64, address: *const ()) {
        let (slot, unit) = (slot_of(offset), unit_of(offset));
        let mut state = self.state();
        let is_known = |held: &HeldExtent| std::ptr::addr_eq(held.extent.as_ptr(), address);
        if !state.extents.get(&unit).is_some_and(is_known) {
            // Another thread has acquired it again meanwhile, and holds it now.
            return;
        }
        state.extents.remove(&unit);
        self.0.ledger.release(unit);
        if let Some(block) = &mut state.blocks[slot] {
            block.held -= 1;
            if block.is_retired {
                state.retire(&self.0, slot);
            }
        }
    }

    pub(crate) fn address(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < (self.slots() * BLOCK_BYTES) as u64);
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
    /// Finds the length of an extent, whose bit is set, and maps its block.
    fn find(
        &mut self,
        pool: &JoinedShared,
        slot: usize,
        unit: usize,
        generation: u64,
    ) -> Result<usize, BadReference> {
        let units = pool.table.units(unit, generation).ok_or(BadReference::NoExtent)?;
        // The extent is held, so its block keeps its version.
        let version = pool.table.version(slot);
        let block = self.blocks[slot].as_mut().filter(|block| block.version == version);
        let block = block.ok_or(BadReference::NoBlock)?;
        let first = unit % (BLOCK_BYTES / ZERO_COPY_UNIT);
        if units == 0 || first + units > BLOCK_BYTES / ZERO_COPY_UNIT {
            return Err(BadReference::NoExtent);
        }
        if !block.is_mapped {
            let at = slot * BLOCK_BYTES;
            let mapped = self.region.map_read_only(at, block.file.as_fd(), BLOCK_BYTES);
            mapped.map_err(BadReference::Kernel)?;
            self.region.keep_from_children(at, BLOCK_BYTES).map_err(BadReference::Kernel)?;
            block.is_mapped = true;
            self.maps += 1;
            pool.ledger.set_version(slot, version);
        }
        Ok(units)
    }

    /// Removes a block of which nothing is held; otherwise it is removed later.
    fn retire(&mut self, pool: &JoinedShared, slot: usize) {
        let Some(block) = &mut self.blocks[slot] else { return };
        block.is_retired = true;
        if block.held == 0 {
            if block.is_mapped {
                // If the kernel refuses, the next block is mapped over this one.
                let _ = self.region.unmap(slot * BLOCK_BYTES, BLOCK_BYTES);
            }
            pool.ledger.set_version(slot, 0);
            self.blocks[slot] = None;
        }
    }
}

/// The reason why a pool could not be joined.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum JoinError {
    /// No pool has so many slots.
    Slots,
    Table(RefusedMemory),
    Memory(Error),
}

//! Pools: memory that this process writes, and that the members of the pool read where it is.

pub(crate) mod joined;
pub(crate) mod ledger;
pub(crate) mod members;
pub(crate) mod words;

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use millrace_sys::MappedRegion;

use crate::error::{AllocError, Error};
use crate::free_list::{Allocation, FreeList};
use crate::limits::{
    BLOCK_BYTES, COLLECTED_PER_ALLOCATION, POOL_BYTES_MAX, POOL_BYTES_MIN, RETIRED_BLOCKS_MAX,
    ZERO_COPY_UNIT,
};
use crate::memory_kind::MemoryKind;
use crate::packet::{Frame, FrameKind};
use crate::pool::ledger::PeerLedger;
use crate::pool::members::{Member, MemberState, Membership, Peer};

/// Memory of this process that its members, other processes, read where it was written. Members are
/// fixed when the pool is created, because each can read all of it, now and later. Clones are the
/// same pool.
///
/// The pool has blocks of 2 MB, each in a memory file. Members map a file once, for reading only.
/// An extent that was passed to a member is freed when no member holds it: see
/// docs/design/pools.md.
#[derive(Clone, Debug)]
pub struct Pool(Arc<PoolShared>);

#[derive(Debug)]
struct PoolShared {
    /// The number of the pool in this process; never 0.
    number: u32,
    start: NonNull<u8>,
    slots: usize,
    /// The version of the block in each slot. It does not change while an extent is held there.
    versions: Box<[AtomicU32]>,
    blocks_max: usize,
    quota: u64,
    /// The last generation that was assigned. Relaxed: it is ordered with no other memory.
    generation: AtomicU64,
    /// The generation of the process that owns it.
    process: u64,
    state: Mutex<PoolState>,
}

// SAFETY: the memory behind `start` stays mapped as long as the pool is held, on every thread; no
// other field is bound to a thread.
unsafe impl Send for PoolShared {}
// SAFETY: as above. The memory is accessed only through extents, which exclude races.
unsafe impl Sync for PoolShared {}

#[derive(Debug)]
struct PoolState {
    region: MappedRegion,
    free_list: FreeList,
    /// Indexed by slot: the place of a block in the region.
    slots: Vec<Slot>,
    /// Slots whose blocks are unused and can be written to.
    ready: Vec<u32>,
    /// The version of the newest block.
    version: u32,
    members: Vec<Member>,
    /// Extents that this process does not hold any more, but that members may hold.
    passed: VecDeque<PassedExtent>,
    /// Files that were created for blocks.
    created_blocks: u64,
}

/// ```text
///   Empty ──> InUse ──> Retired ──> Empty
/// ```
#[derive(Debug)]
enum Slot {
    Empty,
    InUse {
        file: OwnedFd,
        version: u32,
    },
    /// Members may have mapped this version still.
    Retired {
        version: u32,
    },
}

#[derive(Clone, Copy, Debug)]
struct PassedExtent {
    allocation: Allocation,
    generation: u64,
    was_sent: bool,
}

/// The state of a [`Pool`], and its counters.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PoolStats {
    /// Blocks that have memory.
    pub blocks: u64,
    /// Blocks that are not used any more, but that members have still mapped.
    pub retired_blocks: u64,
    /// Extents that only members hold.
    pub passed_extents: u64,
    /// Bytes that are allocated.
    pub live: u64,
    /// Files that were created for blocks.
    pub created_blocks: u64,
    /// Members that keep too much, or take nothing: they get copies.
    pub excluded_members: u64,
}

/// A pool that may have ended.
#[derive(Debug)]
pub(crate) struct WeakPool(Weak<PoolShared>);

impl WeakPool {
    pub(crate) fn upgrade(&self) -> Option<Pool> {
        self.0.upgrade().map(Pool)
    }
}

impl Drop for PoolShared {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        let ended = Frame { number: self.number, ..Frame::new(FrameKind::PoolEnded) };
        let state = self.state.get_mut().expect("no holder of this lock panics");
        for member in &state.members {
            if matches!(member.state(), MemberState::Invited | MemberState::Joined) {
                // A member that takes no packets keeps its mappings.
                member.peer.send(ended, &[]);
            }
        }
    }
}

impl PoolShared {
    /// Returns whether the pool is a copy in a child of its owner (fork(2)), which has none of its
    /// memory.
    fn is_inherited(&self) -> bool {
        self.process != millrace_sys::process_generation()
    }
}

/// The last number that was given to a pool of this process, its own or a joined one.
static POOL_NUMBER: AtomicU32 = AtomicU32::new(0);

/// Returns a number for a pool; never 0.
pub(crate) fn next_pool_number() -> u32 {
    POOL_NUMBER.fetch_add(1, Ordering::Relaxed) + 1
}

impl Pool {
    pub(crate) fn with_members(
        bytes: usize,
        quota: u64,
        members: Vec<Arc<Peer>>,
    ) -> Result<Self, Error> {
        if !(POOL_BYTES_MIN..=POOL_BYTES_MAX).contains(&bytes) {
            return Err(Error::PoolSize(bytes));
        }
        let blocks_max = bytes / BLOCK_BYTES;
        // There is a slot for each block, however many retired ones the members keep.
        let slots = blocks_max + members.len() * (RETIRED_BLOCKS_MAX + 1) + 1;
        let region = MappedRegion::reserve(slots * BLOCK_BYTES)
            .map_err(|error| Error::Kernel("mmap", error))?;
        Ok(Self(Arc::new(PoolShared {
            number: next_pool_number(),
            start: region.start(),
            slots,
            versions: (0..slots).map(|_| AtomicU32::new(0)).collect(),
            blocks_max,
            quota,
            generation: AtomicU64::new(0),
            process: millrace_sys::process_generation(),
            state: Mutex::new(PoolState {
                region,
                free_list: FreeList::new(MemoryKind::ZeroCopy, slots),
                slots: (0..slots).map(|_| Slot::Empty).collect(),
                ready: Vec::new(),
                version: 0,
                members: members.into_iter().map(Member::new).collect(),
                passed: VecDeque::new(),
                created_blocks: 0,
            }),
        })))
    }

    /// Returns the number of the pool in this process, as in a [`SliceId`](crate::SliceId).
    pub fn number(&self) -> u32 {
        self.0.number
    }

    /// Returns the present state and counters.
    pub fn stats(&self) -> PoolStats {
        let state = self.state();
        let excluded = state.members.iter().filter(|of| of.state() == MemberState::Excluded);
        let retired = state.slots.iter().filter(|slot| matches!(slot, Slot::Retired { .. }));
        PoolStats {
            blocks: state.blocks_in_use() as u64,
            retired_blocks: retired.count() as u64,
            passed_extents: state.passed.len() as u64,
            live: state.free_list.bytes()[0],
            created_blocks: state.created_blocks,
            excluded_members: excluded.count() as u64,
        }
    }

    /// Frees what no member holds any more. Allocations do this by themselves.
    pub fn collect(&self) {
        let mut state = self.state();
        state.check_members(&self.0);
        let all = state.passed.len();
        state.collect(&self.0, all);
    }

    pub(crate) fn slots(&self) -> usize {
        self.0.slots
    }

    pub(crate) fn downgrade(&self) -> WeakPool {
        WeakPool(Arc::downgrade(&self.0))
    }

    /// Returns the membership of each member, in the order in which they were given.
    pub(crate) fn memberships(&self) -> Vec<Arc<Membership>> {
        self.state().members.iter().map(|member| member.membership.clone()).collect()
    }

    /// Allocates a contiguous range whose length is in `bytes`, and returns it with its generation.
    pub(crate) fn allocate_extent(
        &self,
        bytes: RangeInclusive<usize>,
    ) -> Result<(Allocation, u64), AllocError> {
        let (min, max) = (*bytes.start(), (*bytes.end()).min(BLOCK_BYTES));
        assert!(0 < min && min <= max, "{bytes:?} bytes");
        let generation = self.0.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let mut state = self.state();
        state.collect(&self.0, COLLECTED_PER_ALLOCATION);
        let mut allocation = state.allocate(&self.0, max, generation);
        if allocation.is_none() {
            state.check_members(&self.0);
            let all = state.passed.len();
            state.collect(&self.0, all);
            allocation = state.allocate(&self.0, max, generation);
        }
        let longest =
            |state: &mut PoolState| state.free_list.allocate_longest(min, max, generation, 0);
        let allocation = allocation.or_else(|| longest(&mut state));
        allocation.map(|allocation| (allocation, generation)).ok_or(AllocError::Full)
    }

    pub(crate) fn address(&self, offset: u64) -> NonNull<u8> {
        assert!(offset < (self.slots() * BLOCK_BYTES) as u64);
        // SAFETY: the offset is inside the region.
        unsafe { self.0.start.byte_add(offset as usize) }
    }

    /// Returns the file of the block at an offset, and the offset in it.
    ///
    /// # Safety
    /// The caller holds an extent there for as long as it uses the descriptor.
    pub(crate) unsafe fn file(&self, offset: u64) -> (BorrowedFd<'_>, u64) {
        let Slot::InUse { file, .. } = &self.state().slots[slot_of(offset)] else {
            unreachable!("an extent is in a block in use")
        };
        // SAFETY: the file is closed when no extent in its block is held any more.
        (unsafe { BorrowedFd::borrow_raw(file.as_raw_fd()) }, offset % BLOCK_BYTES as u64)
    }

    /// Gives an extent that has a sole holder a new generation.
    pub(crate) fn renew_generation(&self, allocation: Allocation, before: u64) -> u64 {
        let generation = self.0.generation.fetch_add(1, Ordering::Relaxed) + 1;
        self.state().free_list.set_generation(allocation, before, generation);
        generation
    }

    /// Returns the version of the block at an offset, in which an extent is held.
    pub(crate) fn version(&self, offset: u64) -> u32 {
        self.0.versions[slot_of(offset)].load(Ordering::Relaxed)
    }

    /// Releases the tail of an extent that was not filled.
    pub(crate) fn release_tail(&self, end: Allocation, generation: u64) {
        if self.0.is_inherited() {
            return;
        }
        self.state().free_list.release_tail(end, generation);
    }

    /// Releases an extent that this process does not hold any more. `was_passed`: members may hold
    /// it. `was_sent`: the kernel may refer to its memory.
    pub(crate) fn release(
        &self,
        allocation: Allocation,
        generation: u64,
        was_sent: bool,
        was_passed: bool,
    ) {
        if self.0.is_inherited() {
            return;
        }
        let extent = PassedExtent { allocation, generation, was_sent };
        let mut state = self.state();
        if was_passed {
            state.passed.push_back(extent);
        } else {
            state.free(&self.0, extent);
        }
    }

    /// Adds the ledger of a member, which has joined, and passes it the blocks. Returns whether the
    /// member exists and had not joined.
    pub(crate) fn join(&self, peer: &Arc<Peer>, ledger: PeerLedger) -> bool {
        let mut state = self.state();
        let (in_use, blocks) = (state.blocks_in_use(), state.blocks());
        let Some(member) = state.member(peer) else { return false };
        if member.state() != MemberState::Invited {
            return false;
        }
        member.join();
        member.ledger = Some(ledger);
        if blocks.len() < in_use {
            // There were too few descriptors for copies.
            member.exclude();
            return true;
        }
        for (slot, version, file) in blocks {
            let frame = block_frame(FrameKind::Block, self.0.number, slot, version);
            if !member.peer.send(frame, &[file.as_fd()]) {
                member.exclude();
                break;
            }
            member.newest_version = member.newest_version.max(version);
        }
        true
    }

    /// Ends the membership of a peer whose channel is closed.
    pub(crate) fn leave(&self, peer: &Arc<Peer>) {
        let mut state = self.state();
        if let Some(member) = state.member(peer) {
            // Unless the process has ended, it can read on.
            member.exclude();
            member.check_end();
        }
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.0.state.lock().expect("no holder of this lock panics")
    }
}

impl PoolState {
    /// Allocates up to `bytes`, from a new block if no other has room.
    fn allocate(&mut self, pool: &PoolShared, bytes: usize, generation: u64) -> Option<Allocation> {
        let found = self.free_list.allocate(bytes, generation, 0);
        found.or_else(|| {
            let slot = self.ready.pop().or_else(|| self.add_block(pool))?;
            self.free_list.add_block(slot);
            self.free_list.allocate(bytes, generation, 0)
        })
    }

    /// Creates a block in an empty slot and passes it to the members.
    fn add_block(&mut self, pool: &PoolShared) -> Option<u32> {
        if self.blocks_in_use() == pool.blocks_max {
            return None;
        }
        let slot = self.slots.iter().position(|slot| matches!(slot, Slot::Empty))?;
        let file = self.create_block(slot).ok()?;
        self.version += 1;
        self.created_blocks += 1;
        pool.versions[slot].store(self.version, Ordering::Relaxed);
        let frame = block_frame(FrameKind::Block, pool.number, slot, self.version);
        for member in self.members.iter_mut().filter(|of| of.state() == MemberState::Joined) {
            if member.peer.send(frame, &[file.as_fd()]) {
                member.newest_version = self.version;
            } else {
                member.exclude();
            }
        }
        self.slots[slot] = Slot::InUse { file, version: self.version };
        Some(slot as u32)
    }

    /// Creates the file of a block and maps it. It becomes a huge page if there is one, which is
    /// possible only before it is sealed.
    fn create_block(&mut self, slot: usize) -> millrace_sys::Result<OwnedFd> {
        let at = slot * BLOCK_BYTES;
        let file = millrace_sys::create_memory_file("iolite", BLOCK_BYTES as u64)?;
        self.region.map(at, file.as_fd(), BLOCK_BYTES)?;
        self.region.keep_from_children(at, BLOCK_BYTES)?;
        self.region.populate(at, ZERO_COPY_UNIT)?;
        // Without a huge page, small ones are populated.
        let _ = self.region.collapse(at, BLOCK_BYTES);
        self.region.populate(at, BLOCK_BYTES)?;
        millrace_sys::seal_for_readers(file.as_fd())?;
        Ok(file)
    }

    /// Frees the extents that no member holds, of the first `count` that were passed.
    fn collect(&mut self, pool: &PoolShared, count: usize) {
        for _ in 0..count.min(self.passed.len()) {
            let extent = self.passed.pop_front().expect("there are as many");
            if self.is_held(extent) {
                self.passed.push_back(extent);
            } else {
                self.free(pool, extent);
            }
        }
    }

    /// Returns whether a member holds an extent.
    fn is_held(&self, extent: PassedExtent) -> bool {
        let unit = unit_of(extent.allocation.offset);
        self.members.iter().filter_map(Member::joined_ledger).any(|ledger| ledger.holds(unit))
    }

    /// Frees an extent that no process holds. Retires its block if that is unused and must not be
    /// written to again.
    fn free(&mut self, pool: &PoolShared, extent: PassedExtent) {
        let PassedExtent { allocation, generation, was_sent } = extent;
        let slot = slot_of(allocation.offset);
        let Slot::InUse { version, .. } = &self.slots[slot] else {
            unreachable!("an extent is in a block in use")
        };
        let version = *version;
        let is_tainted = was_sent || self.members.iter().any(|of| of.taints(slot, version));
        let Some(freed) = self.free_list.release(allocation, generation, is_tainted) else {
            return;
        };
        if !freed.was_sent {
            return self.ready.push(freed.block);
        }
        // The region stays reserved; if the kernel refuses, the memory is kept until the slot is
        // used again.
        let _ = self.region.unmap(slot * BLOCK_BYTES, BLOCK_BYTES);
        self.slots[slot] = Slot::Retired { version };
        let frame = block_frame(FrameKind::Retired, pool.number, slot, version);
        for member in self.members.iter_mut().filter(|of| of.state() == MemberState::Joined) {
            if !member.peer.send(frame, &[]) {
                member.exclude();
            }
        }
        self.reuse_slots();
    }

    /// Empties the slots whose retired blocks no member has mapped.
    fn reuse_slots(&mut self) {
        let members = &self.members;
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if let Slot::Retired { version } = *slot {
                let mut ledgers = members.iter().filter_map(Member::joined_ledger);
                if !ledgers.any(|ledger| ledger.version(number) == u64::from(version)) {
                    *slot = Slot::Empty;
                }
            }
        }
    }

    /// Finds members that have ended, or that keep more than they may.
    fn check_members(&mut self, pool: &PoolShared) {
        let Self { members, slots, passed, .. } = self;
        for member in members.iter_mut() {
            member.check_end();
            let Some(ledger) = member.joined_ledger() else { continue };
            let keeps = |(number, slot): &(usize, &Slot)| matches!(slot, Slot::Retired { version } if ledger.version(*number) == u64::from(*version));
            let retired = slots.iter().enumerate().filter(keeps).count();
            if retired > RETIRED_BLOCKS_MAX || kept_bytes(passed, ledger) > pool.quota {
                member.exclude();
            }
        }
        self.reuse_slots();
    }

    fn blocks_in_use(&self) -> usize {
        self.slots.iter().filter(|slot| matches!(slot, Slot::InUse { .. })).count()
    }

    fn member(&mut self, peer: &Arc<Peer>) -> Option<&mut Member> {
        self.members.iter_mut().find(|member| Arc::ptr_eq(&member.peer, peer))
    }

    /// Returns copies of the descriptors of all blocks in use, with their slots and versions.
    fn blocks(&self) -> Vec<(usize, u32, OwnedFd)> {
        let in_use = self.slots.iter().enumerate();
        let in_use = in_use.filter_map(|(number, slot)| match slot {
            Slot::InUse { file, version } => Some((number, *version, file.try_clone().ok()?)),
            _ => None,
        });
        in_use.collect()
    }
}

/// Returns the bytes that a member keeps from being used again: the extents that it holds, and the
/// whole blocks of those from which it has sent by reference.
fn kept_bytes(passed: &VecDeque<PassedExtent>, ledger: &PeerLedger) -> u64 {
    let held = passed.iter().filter(|of| ledger.holds(unit_of(of.allocation.offset)));
    let (mut bytes, mut sent_slots) = (0, Vec::new());
    for PassedExtent { allocation, .. } in held {
        let slot = slot_of(allocation.offset);
        if !ledger.was_sent(slot) {
            bytes += allocation.bytes as u64;
        } else if !sent_slots.contains(&slot) {
            sent_slots.push(slot);
            bytes += BLOCK_BYTES as u64;
        }
    }
    bytes
}

/// Returns the slot of an offset in the pool.
pub(crate) fn slot_of(offset: u64) -> usize {
    (offset / BLOCK_BYTES as u64) as usize
}

/// Returns the unit of an offset in the pool.
pub(crate) fn unit_of(offset: u64) -> usize {
    (offset / ZERO_COPY_UNIT as u64) as usize
}

fn block_frame(kind: FrameKind, pool: u32, slot: usize, version: u32) -> Frame {
    Frame { number: pool, first_unit: slot as u32, version, ..Frame::new(kind) }
}

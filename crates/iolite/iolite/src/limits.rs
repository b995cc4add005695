//! All sizes and bounds of this crate.

use millrace_sys::HUGE_PAGE_BYTES;

/// The unit that is populated, assigned to a memory kind, and recycled: one huge page, so that the
/// kernel never gets back a part of one.
pub const BLOCK_BYTES: usize = HUGE_PAGE_BYTES;
/// The size of one memory file. A slab has many such files.
pub const FILE_BYTES: usize = 64 << 20;
/// The minimum size of a slab: one block for each memory kind.
pub const SLAB_BYTES_MIN: usize = 2 * BLOCK_BYTES;
/// The maximum size of a slab, so that a block number fits into 32 bits with room to spare.
pub const SLAB_BYTES_MAX: usize = 1 << 50;
/// The maximum of blocks that the [`PrefaultThread`](crate::PrefaultThread) keeps ready, for bursts
/// of allocations. In small slabs, it keeps an eighth of the blocks ready. If no block is ready,
/// allocations that need one fail with `AllocError::NotReady`.
pub const READY_BLOCKS_MAX: usize = 8;
/// Units of a segment. An extent never crosses a segment boundary.
pub(crate) const UNITS_PER_SEGMENT: usize = 512;
/// The allocation unit of memory that is sent by copying: about the size of the smallest responses.
pub(crate) const COPIED_UNIT: usize = 256;
/// The allocation unit of memory that may be sent zero-copy: a page.
pub(crate) const ZERO_COPY_UNIT: usize = 4096;
/// The maximum size of an extent of copied memory. Longer ones would leave gaps in their segments.
pub(crate) const COPIED_BYTES_MAX: usize = 32 * 1024;
/// The number of segments that are examined in a size class in which only some may fit.
pub(crate) const FIT_PROBES_MAX: usize = 16;
/// Evacuating a block is worthwhile if at least the capacity of the slab divided by this is unused
/// but cannot be allocated.
pub const FRAGMENTED_SHARE: u64 = 8;
/// A block is evacuated only if at least its size divided by this is unused. Otherwise the
/// evacuation would copy too many bytes for the bytes that it frees.
pub(crate) const EVACUATION_FREE_SHARE: u64 = 8;
/// At most the number of the slab's blocks divided by this are evacuated at the same time.
pub(crate) const EVACUATING_BLOCKS_SHARE: usize = 16;
/// The minimum length in units of each slice of a copy, except that its last slice may be shorter.
/// If the free memory is more fragmented than this, the copy fails.
pub(crate) const COPY_UNITS_MIN: usize = 16;
/// The maximum number of derived values that are kept per extent. Further ones are computed each
/// time.
pub const FORMS_MAX: usize = 16;
/// Sealed files of at least this size are whole huge pages: see docs/design/pools.md.
pub(crate) const HUGE_FILE_BYTES_MIN: usize = 512 * 1024;
/// The minimum size of a pool: one block.
pub const POOL_BYTES_MIN: usize = BLOCK_BYTES;
/// The maximum size of a pool. Its table takes 1/512 of that, and 48 bytes for each block.
pub const POOL_BYTES_MAX: usize = 64 << 30;
/// A member of a pool that keeps more retired blocks than this gets copies.
pub const RETIRED_BLOCKS_MAX: usize = 16;
/// The maximum of frames in the ring of a channel.
pub const RING_FRAMES_MAX: usize = 1024;
/// The maximum of bytes that the ring of a channel has for copied slices.
pub const RING_BYTES_MAX: usize = 8 << 20;
/// An aggregate with more parts is refused by the receiver of a channel.
pub const PARTS_PER_AGGREGATE_MAX: usize = 4096;
/// The most parts of an aggregate that a channel sends.
pub const PARTS_SENT_MAX: usize = PARTS_PER_AGGREGATE_MAX / 2;
/// The files that the receiver of a channel keeps for later references.
pub const FILES_PER_CHANNEL_MAX: usize = 16;
/// Longer files are not kept by the receiver of a channel.
pub const KEPT_FILE_BYTES_MAX: usize = BLOCK_BYTES;
/// The packets that one call of a channel's method reads, and the frames between two looks at the
/// socket.
pub(crate) const PACKETS_PER_CALL: usize = 64;
/// The bytes that one packet of a channel carries. The default size of a socket buffer has room for
/// several.
pub(crate) const BYTES_PER_PACKET_MAX: usize = 32 * 1024;
/// The memory for copies of a program that responds to requests. It is taken as it is used.
pub(crate) const PROGRAM_SLAB_BYTES: usize = 64 << 20;
/// The extents that were passed to members, of which an allocation finds out whether they are held.
pub(crate) const COLLECTED_PER_ALLOCATION: usize = 4;

const _: () = assert!(FILE_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(UNITS_PER_SEGMENT * ZERO_COPY_UNIT == BLOCK_BYTES);
const _: () = assert!(BLOCK_BYTES.is_multiple_of(UNITS_PER_SEGMENT * COPIED_UNIT));
const _: () = assert!(COPIED_BYTES_MAX <= UNITS_PER_SEGMENT * COPIED_UNIT);

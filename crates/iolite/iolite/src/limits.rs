//! Every size and bound of this crate.

use millrace_sys::HUGE_PAGE_BYTES;

/// What is prepared, handed out between the kinds of memory, and recycled as a whole: one huge
/// page, so that what is given back to the kernel is never a part of one.
pub const BLOCK_BYTES: usize = HUGE_PAGE_BYTES;
/// One file. Many small ones rather than one, as the disk tier has the same segments as files.
pub const FILE_BYTES: usize = 64 << 20;
/// A slab has at least two blocks: one for each kind of memory.
pub const SLAB_BYTES_MIN: usize = 2 * BLOCK_BYTES;
/// A slab has at most so many bytes, that a block's number fits 32 bits with room to spare.
pub const SLAB_BYTES_MAX: usize = 1 << 50;
/// Blocks kept ready at most, by the [`Helper`](crate::Helper): what can be filled at once before
/// it has to keep up. An eighth of the slab if that is less. At none, `Refusal::Later`.
pub const READY_BLOCKS_MAX: usize = 8;
/// Units of an area, the stretch of memory within which a run lies.
pub(crate) const UNITS_PER_SEGMENT: usize = 512;
/// What memory that is copied to be sent is divided into: about the size of the smallest answers.
pub(crate) const COPIED_UNIT: usize = 256;
/// What memory that is sent by reference is divided into: a page.
pub(crate) const ZERO_COPY_UNIT: usize = 4096;
/// The most that one run of copied memory holds: longer ones would leave gaps in their areas.
pub(crate) const COPIED_BYTES_MAX: usize = 32 * 1024;
/// Areas of a list that are looked through when any of them may or may not do.
pub(crate) const FIT_PROBES_MAX: usize = 16;
/// The share of the slab, as a divisor, that nobody holds and nobody can be given, from which it is
/// worth condemning a block.
pub const FRAGMENTED_SHARE: u64 = 8;
/// The share of a block, as a divisor, that nobody may hold for it to be condemned: otherwise more
/// would be copied than is won.
pub(crate) const EVACUATION_FREE_SHARE: u64 = 8;
/// The share of the slab's blocks, as a divisor, that may be condemned at a time.
pub(crate) const EVACUATING_BLOCKS_SHARE: usize = 16;
/// Units that a copy is in at least, or all of it: rather no copy than one in splinters.
pub(crate) const COPY_UNITS_MIN: usize = 16;
/// Derived forms kept for one run; more are computed each time.
pub const FORMS_MAX: usize = 16;

const _: () = assert!(FILE_BYTES.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(UNITS_PER_SEGMENT * ZERO_COPY_UNIT == BLOCK_BYTES);
const _: () = assert!(BLOCK_BYTES.is_multiple_of(UNITS_PER_SEGMENT * COPIED_UNIT));
const _: () = assert!(COPIED_BYTES_MAX <= UNITS_PER_SEGMENT * COPIED_UNIT);

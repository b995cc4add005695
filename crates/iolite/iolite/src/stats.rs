//! What a slab tells about itself.

/// A slab's memory and what happened to it, as [`Slab::counters`](crate::Slab::counters) found it.
///
/// The bytes add up: `live + free + spoiled` are those of the blocks in use, and with the other
/// blocks (ready, queued, empty, being made ready) they are `capacity`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlabStats {
    /// Bytes of the whole slab.
    pub capacity: u64,
    /// Bytes of runs that somebody holds, in whole units.
    pub live: u64,
    /// Bytes that nobody holds and that can be written to at once, by memory of their kind.
    pub free: u64,
    /// Bytes that nobody holds and that must not be written to before their block was recycled.
    pub tainted: u64,
    /// Runs that somebody holds.
    pub extents: u64,
    /// Blocks that are ready for either kind.
    pub ready_blocks: u64,
    /// Blocks that nobody holds anything of, and that wait to be given back to the kernel.
    pub queued_blocks: u64,
    /// Blocks without memory.
    pub empty_blocks: u64,
    /// Blocks in use or ready that the kernel would not make huge pages: sending from them by
    /// reference costs several times as much.
    pub small_page_blocks: u64,
    /// Blocks that were condemned and are still held.
    pub evacuating_blocks: u64,
    /// Blocks that were given back to the kernel so far.
    pub recycled: u64,
    /// Times that the kernel had no memory for a block.
    pub prefault_failures: u64,
    /// Refusals because of [`Refusal::Full`](crate::Refusal::Full).
    pub refused_full: u64,
    /// Refusals because of [`Refusal::Scattered`](crate::Refusal::Scattered).
    pub refused_fragmented: u64,
    /// Refusals because of [`Refusal::Later`](crate::Refusal::Later).
    pub refused_not_ready: u64,
    /// Derived forms that were computed.
    pub forms_computed: u64,
    /// Derived forms that were found again.
    pub forms_reused: u64,
}

//! Statistics of a slab.

/// The state and the counters of a slab, returned by [`Slab::stats`](crate::Slab::stats).
///
/// The bytes add up: `live + free + tainted` is the size of the blocks in use. Together with the
/// other blocks (ready, queued, empty, being populated) this is `capacity`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SlabStats {
    /// Bytes of the whole slab.
    pub capacity: u64,
    /// Bytes of extents in use, in whole units.
    pub live: u64,
    /// Unused bytes that can be allocated at once as memory of their kind.
    pub free: u64,
    /// Unused bytes that cannot be allocated before their whole block is unused, because they were
    /// sent zero-copy or their block is being evacuated.
    pub tainted: u64,
    /// Extents in use.
    pub extents: u64,
    /// Blocks that are ready for either kind.
    pub ready_blocks: u64,
    /// Unused blocks that wait to be returned to the kernel.
    pub queued_blocks: u64,
    /// Blocks without memory.
    pub empty_blocks: u64,
    /// Blocks with memory for which the kernel gave no huge page. Sending from them zero-copy costs
    /// up to 2.4 times as much.
    pub small_page_blocks: u64,
    /// Blocks that are being evacuated.
    pub evacuating_blocks: u64,
    /// Blocks that were returned to the kernel so far.
    pub recycled: u64,
    /// Times that the kernel had no memory for a block.
    pub prefault_failures: u64,
    /// Allocations that failed with [`AllocError::Full`](crate::AllocError::Full).
    pub refused_full: u64,
    /// Allocations that failed with [`AllocError::Fragmented`](crate::AllocError::Fragmented).
    pub refused_fragmented: u64,
    /// Allocations that failed with [`AllocError::NotReady`](crate::AllocError::NotReady).
    pub refused_not_ready: u64,
    /// Derived values that were computed.
    pub forms_computed: u64,
    /// Derived values that were found again.
    pub forms_reused: u64,
}

//! What bytes are known by.

/// The number of the slab in every [`Reference`]. Pools that are shared with other processes will
/// have numbers of their own.
pub(crate) const POOL: u32 = 0;

/// What a slice is known by, the same in every process and for all time: no other bytes ever have
/// the same reference. It keeps nothing; [`Slab::is_current`](crate::Slab::is_current) tells whether
/// somebody does.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SliceId {
    /// The pool of memory; 0 is the process's own slab.
    pub pool: u32,
    /// Bytes.
    pub length: u32,
    /// Bytes from the start of the pool.
    pub offset: u64,
    /// Counts the contents that memory of this pool has had; never 0.
    pub generation: u64,
}

const _: () = assert!(size_of::<SliceId>() == 24);

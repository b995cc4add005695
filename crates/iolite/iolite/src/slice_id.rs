//! Identifiers of slices.

/// The pool number of the slab in every [`SliceId`]. Pools shared with other processes will have
/// numbers of their own.
pub(crate) const POOL: u32 = 0;

/// Identifies the contents of a slice, in every process and forever: no other bytes ever have the
/// same id. It does not keep the bytes alive; [`Slab::is_current`](crate::Slab::is_current) returns
/// whether they are still held.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SliceId {
    /// The pool of memory; 0 is the slab of this process.
    pub pool: u32,
    /// Length in bytes.
    pub length: u32,
    /// Offset in bytes from the start of the pool.
    pub offset: u64,
    /// The number of contents that memory of this pool has had so far; never 0.
    pub generation: u64,
}

const _: () = assert!(size_of::<SliceId>() == 24);

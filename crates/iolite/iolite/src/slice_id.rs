//! Identifiers of slices.

/// The pool number of the slab in every [`SliceId`]. No other pools exist.
pub(crate) const POOL: u32 = 0;

/// Identifies the contents of a slice of one slab: no other contents of this slab ever have the
/// same id. It does not keep the bytes alive; [`Slab::is_current`](crate::Slab::is_current) returns
/// whether they are still held.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SliceId {
    /// The pool of memory; 0 is a slab of this process.
    pub pool: u32,
    /// Length in bytes.
    pub length: u32,
    /// Offset in bytes from the start of the pool.
    pub offset: u64,
    /// The number of the contents in their extent. Each allocation, and each change in place, takes
    /// the next number of the slab; the first one is 1.
    pub generation: u64,
}

const _: () = assert!(size_of::<SliceId>() == 24);

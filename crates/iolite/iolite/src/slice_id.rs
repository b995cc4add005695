//! Identifiers of slices.

/// The pool number of slices in a slab.
pub(crate) const SLAB_POOL: u32 = 0;
/// The pool number of slices in sealed files. Each file has its own generation.
pub(crate) const FILE_POOL: u32 = u32::MAX;

/// Identifies the contents of a slice in this process: no other contents of the same slab, or of
/// any pool or sealed file, ever have the same id. It does not keep the bytes alive;
/// [`Slab::is_current`](crate::Slab::is_current) returns whether those of a slab are still held.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SliceId {
    /// The pool of memory: 0 is a slab of this process, `u32::MAX` a sealed file, and each pool of
    /// this process or of another one has its own number.
    pub pool: u32,
    /// Length in bytes.
    pub length: u32,
    /// Offset in bytes from the start of the slab, pool or file.
    pub offset: u64,
    /// The number of the contents in their extent. Each allocation, and each change in place, takes
    /// the next number of the slab; the first one is 1.
    pub generation: u64,
}

const _: () = assert!(size_of::<SliceId>() == 24);

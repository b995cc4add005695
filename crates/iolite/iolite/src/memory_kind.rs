//! The two kinds of memory.

use crate::limits::{
    BLOCK_BYTES, COPIED_BYTES_MAX, COPIED_UNIT, UNITS_PER_SEGMENT, ZERO_COPY_UNIT,
};

/// How bytes will be sent, which decides how their memory is recycled. A block has memory of one
/// kind at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// By copy alone: for small objects. Free memory is used again at once. Taken in units of 256
    /// bytes, at most 32 KB at a time.
    Copied,
    /// By reference too, from whole pages. What was sent so is used again only when its whole block
    /// was given back to the kernel. At most a block, 2 MB, at a time.
    ZeroCopy,
}

impl MemoryKind {
    /// The most bytes that one buffer of this kind holds. Larger objects are aggregates.
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Copied => COPIED_BYTES_MAX,
            Self::ZeroCopy => BLOCK_BYTES,
        }
    }

    /// What memory is taken in multiples of.
    pub const fn unit(self) -> usize {
        match self {
            Self::Copied => COPIED_UNIT,
            Self::ZeroCopy => ZERO_COPY_UNIT,
        }
    }

    pub(crate) const fn segment_bytes(self) -> usize {
        self.unit() * UNITS_PER_SEGMENT
    }

    pub(crate) const fn segments_per_block(self) -> usize {
        BLOCK_BYTES / self.segment_bytes()
    }
}

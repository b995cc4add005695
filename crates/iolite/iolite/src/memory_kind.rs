//! The two kinds of memory.

use crate::limits::{
    BLOCK_BYTES, COPIED_BYTES_MAX, COPIED_UNIT, UNITS_PER_SEGMENT, ZERO_COPY_UNIT,
};

/// How bytes are sent, which decides how their memory is recycled. All memory of a block has the
/// same kind at any time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryKind {
    /// Sent by copying only: for small objects. Free memory is reused at once. Allocated in units
    /// of 256 bytes, at most 32 KB at a time.
    Copied,
    /// May be sent without copying, so it consists of whole pages. Memory that was sent zero-copy
    /// is reused only after its whole block was returned to the kernel. At most one block, 2 MB, at
    /// a time.
    ZeroCopy,
}

impl MemoryKind {
    /// Returns the maximum number of bytes in one buffer of this kind. Larger objects are
    /// aggregates.
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Copied => COPIED_BYTES_MAX,
            Self::ZeroCopy => BLOCK_BYTES,
        }
    }

    /// Returns the kind for a copy: pages if it exceeds a buffer of the other kind.
    pub(crate) const fn for_copy(bytes: u64) -> Self {
        if bytes <= COPIED_BYTES_MAX as u64 { Self::Copied } else { Self::ZeroCopy }
    }

    /// Returns the allocation unit in bytes.
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

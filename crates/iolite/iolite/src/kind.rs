//! The two kinds of memory.

use crate::limits::{BLOCK_BYTES, COPIED_BYTES_MAX, COPIED_UNIT, REFERRED_UNIT, UNITS};

/// How bytes will be sent, which decides how their memory is recycled. A block has memory of one
/// kind at a time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// By copy alone: for small objects. Free memory is used again at once. Taken in units of 256
    /// bytes, at most 32 KB at a time.
    Copied,
    /// By reference too, from whole pages. What was sent so is used again only when its whole block
    /// was given back to the kernel. At most a block, 2 MB, at a time.
    Referred,
}

impl Kind {
    /// The most bytes that one buffer of this kind holds. Larger objects are aggregates.
    pub const fn bytes_max(self) -> usize {
        match self {
            Self::Copied => COPIED_BYTES_MAX,
            Self::Referred => BLOCK_BYTES,
        }
    }

    /// What memory is taken in multiples of.
    pub const fn unit(self) -> usize {
        match self {
            Self::Copied => COPIED_UNIT,
            Self::Referred => REFERRED_UNIT,
        }
    }

    pub(crate) const fn area_bytes(self) -> usize {
        self.unit() * UNITS
    }

    pub(crate) const fn areas_per_block(self) -> usize {
        BLOCK_BYTES / self.area_bytes()
    }
}

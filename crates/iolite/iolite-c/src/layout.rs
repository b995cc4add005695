//! The structures of `include/iolite.h`, which describes each field. Their layout must be the same
//! in C and Rust. The header asserts its sizes. This module asserts the same sizes, and the offsets
//! of fields before which padding could differ.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};

use iolite::{Account, MemoryKind, PoolStats, Slab, SlabStats, Slice, SliceId};

use crate::error::{INVALID, Result};
use crate::object::CObject;
use crate::pointers;

/// `IOL_ZERO_COPY`.
const ZERO_COPY: c_int = 0;
/// `IOL_COPIED`.
const COPIED: c_int = 1;

/// `IOL_JOIN_POOLS`.
pub(crate) const JOIN_POOLS: u32 = 1;
/// `IOL_NO_RING`.
pub(crate) const NO_RING: u32 = 2;

/// `struct iol_id`.
pub type CId = SliceId;

/// `struct iol_part`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPart {
    pub(crate) bytes: *const c_void,
    pub(crate) length: usize,
    pub(crate) id: CId,
}

/// `struct iol_slab_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CSlabStats {
    capacity: u64,
    live: u64,
    free: u64,
    tainted: u64,
    extents: u64,
    small_page_blocks: u64,
    recycled: u64,
    sums_computed: u64,
    sums_reused: u64,
}

/// `struct iol_pool_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CPoolStats {
    blocks: u64,
    retired_blocks: u64,
    passed_extents: u64,
    live: u64,
    created_blocks: u64,
    excluded_members: u64,
}

/// `struct iol_channel_options`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CChannelOptions {
    pub(crate) slab: *const CObject<Slab>,
    pub(crate) account: *const CObject<Account>,
    pub(crate) ring_frames: usize,
    pub(crate) copied_max: usize,
    pub(crate) in_flight_max: u64,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<CId>() == 24);
    assert!(size_of::<CPart>() == 40);
    assert!(size_of::<CSlabStats>() == 72);
    assert!(size_of::<CPoolStats>() == 48);
    assert!(size_of::<CChannelOptions>() == 48);
    assert!(offset_of!(CId, offset) == 8);
    assert!(offset_of!(CPart, id) == 16);
    assert!(offset_of!(CChannelOptions, in_flight_max) == 32);
};

impl CPart {
    /// Describes a slice from an offset on. The pointer refers to its bytes.
    pub(crate) fn new(slice: &Slice, offset: usize) -> Self {
        let bytes = &slice[offset..];
        let whole = slice.id();
        let id = SliceId {
            offset: whole.offset + offset as u64,
            length: whole.length - offset as u32,
            ..whole
        };
        Self { bytes: pointers::start(bytes), length: bytes.len(), id }
    }
}

impl From<SlabStats> for CSlabStats {
    fn from(stats: SlabStats) -> Self {
        Self {
            capacity: stats.capacity,
            live: stats.live,
            free: stats.free,
            tainted: stats.tainted,
            extents: stats.extents,
            small_page_blocks: stats.small_page_blocks,
            recycled: stats.recycled,
            // C computes no other derived values.
            sums_computed: stats.forms_computed,
            sums_reused: stats.forms_reused,
        }
    }
}

impl From<PoolStats> for CPoolStats {
    fn from(stats: PoolStats) -> Self {
        Self {
            blocks: stats.blocks,
            retired_blocks: stats.retired_blocks,
            passed_extents: stats.passed_extents,
            live: stats.live,
            created_blocks: stats.created_blocks,
            excluded_members: stats.excluded_members,
        }
    }
}

/// Parses `IOL_ZERO_COPY` or `IOL_COPIED`.
pub(crate) fn parse_kind(kind: c_int) -> Result<MemoryKind> {
    match kind {
        ZERO_COPY => Ok(MemoryKind::ZeroCopy),
        COPIED => Ok(MemoryKind::Copied),
        _ => Err(INVALID),
    }
}

#[cfg(test)]
mod tests {
    use iolite::limits;

    use super::*;

    #[test]
    fn the_header_has_the_same_constants() {
        let header = include_str!("../include/iolite.h");
        for (name, value) in [
            ("IOL_ZERO_COPY", ZERO_COPY as usize),
            ("IOL_COPIED", COPIED as usize),
            ("IOL_JOIN_POOLS", JOIN_POOLS as usize),
            ("IOL_NO_RING", NO_RING as usize),
            ("IOL_BUFFER_BYTES_MAX", MemoryKind::ZeroCopy.bytes_max()),
            ("IOL_COPIED_BYTES_MAX", MemoryKind::Copied.bytes_max()),
            ("IOL_SLAB_BYTES_MIN", limits::SLAB_BYTES_MIN),
            ("IOL_POOL_BYTES_MIN", limits::POOL_BYTES_MIN),
            ("IOL_RING_FRAMES_MAX", limits::RING_FRAMES_MAX),
            ("IOL_SLICES_MAX", limits::PARTS_PER_AGGREGATE_MAX / 2),
        ] {
            assert!(header.contains(&format!("  {name} = {value},")), "{name} = {value}");
        }
        assert_eq!(parse_kind(2).unwrap_err(), INVALID);
    }
}

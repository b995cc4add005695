//! The structures of `include/mrsplice.h`, which describes each field. Their layout must be the
//! same in C and Rust. The header asserts its sizes. This module asserts the same sizes, and the
//! offsets of fields before which padding could differ.

use std::ffi::{c_int, c_void};
use std::mem::{offset_of, size_of};
use std::ptr;

use millrace_splice::{DirectionResult, End, Notice, Released, Side};

/// `MRSPLICE_UNIDIRECTIONAL`.
pub(crate) const UNIDIRECTIONAL: u32 = 1;
/// `MRSPLICE_LIMIT`.
pub(crate) const LIMIT: u32 = 2;
/// `MRSPLICE_KEEP_COPY`.
pub(crate) const KEEP_COPY: u32 = 4;
/// `MRSPLICE_AUTO_RELEASE`.
pub(crate) const AUTO_RELEASE: u32 = 8;

const READABLE: u32 = 1;
const ENDED: u32 = 2;

/// `struct mrsplice_direction`. The set owns the memory of its pointers; see
/// [`crate::mrsplice_unsplice`].
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CDirection {
    pub(crate) forwarded: u64,
    pub(crate) unsent: *const c_void,
    pub(crate) unsent_bytes: usize,
    pub(crate) prefix_unsent: usize,
    pub(crate) kept: *const c_void,
    pub(crate) kept_bytes: usize,
}

/// `struct mrsplice_released`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CReleased {
    pub(crate) end: i32,
    pub(crate) error: i32,
    pub(crate) directions: [CDirection; 2],
}

/// `struct mrsplice_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CRequest {
    pub(crate) fd0: i32,
    pub(crate) fd1: i32,
    pub(crate) flags: u32,
    pub(crate) reserved: u32,
    pub(crate) limit: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) prefix: *const c_void,
    pub(crate) prefix_bytes: usize,
    pub(crate) min2read: usize,
    pub(crate) max2cache: usize,
    pub(crate) input: *mut c_void,
    pub(crate) input_bytes: usize,
    pub(crate) input_filled: usize,
    pub(crate) splice: u64,
    pub(crate) released: CReleased,
}

/// `struct mrsplice_notice`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CNotice {
    pub(crate) splice: u64,
    pub(crate) user_data: *mut c_void,
    pub(crate) event: u32,
    pub(crate) end: i32,
    pub(crate) error: i32,
    pub(crate) reserved: u32,
    pub(crate) forwarded: [u64; 2],
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<CDirection>() == 48);
    assert!(size_of::<CReleased>() == 104);
    assert!(size_of::<CRequest>() == 200);
    assert!(size_of::<CNotice>() == 48);
    assert!(offset_of!(CDirection, kept) == 32);
    assert!(offset_of!(CReleased, directions) == 8);
    assert!(offset_of!(CRequest, limit) == 16);
    assert!(offset_of!(CRequest, released) == 96);
    assert!(offset_of!(CNotice, forwarded) == 32);
};

/// Returns `MRSPLICE_END_*` and the error number for an end.
fn end_code(end: Option<End>) -> (i32, c_int) {
    let code = match end {
        None => 0,
        Some(End::Limit) => 1,
        Some(End::Closed) => 2,
        Some(End::Aborted { side: Side::Fd0, .. }) => 3,
        Some(End::Aborted { side: Side::Fd1, .. }) => 4,
        Some(End::Failed(_)) => 5,
    };
    let error = end.and_then(End::error).map_or(0, |errno| -errno.raw_os_error());
    (code, error)
}

/// Returns the address of bytes; null if there are none, so that C does not read there.
fn start(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() }
}

impl CDirection {
    fn new(direction: &DirectionResult) -> Self {
        Self {
            forwarded: direction.forwarded,
            unsent: start(&direction.unsent),
            unsent_bytes: direction.unsent.len(),
            prefix_unsent: direction.prefix_unsent,
            kept: start(&direction.kept),
            kept_bytes: direction.kept.len(),
        }
    }
}

impl CReleased {
    /// Converts `released`. The pointers refer to its bytes.
    pub(crate) fn new(released: &Released) -> Self {
        let (end, error) = end_code(released.end);
        Self { end, error, directions: released.directions.each_ref().map(CDirection::new) }
    }
}

impl CNotice {
    /// Converts `notice`, of a splice that was started with `user_data`.
    pub(crate) fn new(notice: Notice, user_data: *mut c_void) -> Self {
        let mut c_notice = Self {
            splice: notice.handle().to_bits(),
            user_data,
            event: READABLE,
            end: 0,
            error: 0,
            reserved: 0,
            forwarded: [0; 2],
        };
        if let Notice::Ended { end: how, forwarded, .. } = notice {
            c_notice.event = ENDED;
            (c_notice.end, c_notice.error) = end_code(Some(how));
            c_notice.forwarded = forwarded;
        }
        c_notice
    }
}

#[cfg(test)]
mod tests {
    use millrace_splice::Errno;

    use super::*;

    #[test]
    fn the_header_has_the_same_constants() {
        let header = include_str!("../include/mrsplice.h");
        let reset = Errno::CONNRESET;
        let code = |how| end_code(Some(how)).0 as u32;
        for (name, value) in [
            ("MRSPLICE_UNIDIRECTIONAL", UNIDIRECTIONAL),
            ("MRSPLICE_LIMIT", LIMIT),
            ("MRSPLICE_KEEP_COPY", KEEP_COPY),
            ("MRSPLICE_AUTO_RELEASE", AUTO_RELEASE),
            ("MRSPLICE_READABLE", READABLE),
            ("MRSPLICE_ENDED", ENDED),
            ("MRSPLICE_END_NONE", end_code(None).0 as u32),
            ("MRSPLICE_END_LIMIT", code(End::Limit)),
            ("MRSPLICE_END_CLOSED", code(End::Closed)),
            ("MRSPLICE_END_FD0_ABORTED", code(End::Aborted { side: Side::Fd0, error: reset })),
            ("MRSPLICE_END_FD1_ABORTED", code(End::Aborted { side: Side::Fd1, error: reset })),
            ("MRSPLICE_END_FAILED", code(End::Failed(reset))),
        ] {
            assert!(header.contains(&format!("  {name} = {value},")), "{name} = {value}");
        }
        assert_eq!(end_code(Some(End::Failed(reset))).1, -reset.raw_os_error());
    }
}

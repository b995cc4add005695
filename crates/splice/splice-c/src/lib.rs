//! libmrsplice: the crate `millrace-splice` for C. `include/mrsplice.h` is the interface, and the
//! man pages `mrsplice(7)` and `mrsplice_*(3)` describe each function. The comments here concern
//! pointers.
//!
//! This crate translates requests, handles and errors between C and the splicer. It decides nothing
//! about a transfer and forwards no byte itself. It cannot detect invalid pointers or concurrent
//! use of a set; all other misuse returns a negative error number. No panic reaches C: after one,
//! the set refuses every call.

mod error;
mod layout;
mod set;

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::slice;

use millrace_splice::{Errno, Side};

use crate::error::{BROKEN, INVALID, Result};

pub use crate::error::mrsplice_strerror;
pub use crate::layout::{CDirection, CNotice, CReleased, CRequest};
pub use crate::set::SpliceSet;

/// mrsplice_new(3): stores a new set in `*set`, which C owns until [`mrsplice_free`].
///
/// # Safety
/// `set` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_new(set: *mut *mut SpliceSet, pipes_max: usize) -> c_int {
    if set.is_null() {
        return INVALID;
    }
    match catch_unwind(|| SpliceSet::new(pipes_max)).unwrap_or(Err(BROKEN)) {
        Ok(new_set) => {
            // SAFETY: `set` is not null and has room, by this function's contract.
            unsafe { set.write(Box::into_raw(Box::new(new_set))) };
            0
        }
        Err(error) => error,
    }
}

/// mrsplice_new(3): frees a set and ends its splices.
///
/// # Safety
/// `set` is null or a set from [`mrsplice_new`] that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_free(set: *mut SpliceSet) {
    if set.is_null() {
        return;
    }
    // SAFETY: mrsplice_new made it from a box, and it was not freed, by this function's contract.
    let set = unsafe { Box::from_raw(set) };
    // After a panic, dropping the splicer may panic too; then its memory and descriptors leak.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(set)));
}

/// mrsplice_new(3): returns the descriptor for poll(2).
///
/// # Safety
/// As for [`mrsplice_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_fd(set: *const SpliceSet) -> c_int {
    // SAFETY: as for mrsplice_forward; the call only reads.
    unsafe { set.as_ref() }.map_or(INVALID, SpliceSet::fd)
}

/// mrsplice_splice(3): starts a splice and stores the result in `request`.
///
/// # Safety
/// As for [`mrsplice_forward`]. `request` is null or a request. `prefix` and `input` are null or
/// have the stated number of bytes, and do not overlap. Its descriptors stay open until the splice
/// is released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_splice(set: *mut SpliceSet, request: *mut CRequest) -> c_int {
    let call = |set: &mut SpliceSet| {
        // SAFETY: null or a request, by this function's contract.
        let request = unsafe { request.as_mut() }.ok_or(INVALID)?;
        // SAFETY: the pointer has the stated number of bytes, by this function's contract.
        let prefix = unsafe { bytes(request.prefix, request.prefix_bytes) }?;
        // SAFETY: as for `prefix`, and the two do not overlap.
        let input = unsafe { bytes_mut(request.input, request.input_bytes) }?;
        // SAFETY: it stays open while the set uses it, by this function's contract.
        let fd0 = unsafe { borrow_fd(request.fd0) }?;
        // SAFETY: as for fd0.
        let fd1 = unsafe { borrow_fd(request.fd1) }?;
        set.splice(request, [fd0, fd1], prefix, input)
    };
    // SAFETY: as for mrsplice_forward.
    to_c_int(unsafe { with_set(set, call) })
}

/// mrsplice_forward(3): forwards bytes.
///
/// # Safety
/// `set` is null or a set from [`mrsplice_new`] that was not freed, and no other thread uses it
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_forward(set: *mut SpliceSet, wait_ms: c_int) -> c_int {
    // SAFETY: this function has the same contract as `with_set`.
    to_c_int(unsafe { with_set(set, |set| set.forward(wait_ms)) }.map(|()| 0))
}

/// mrsplice_forward(3): takes a notice.
///
/// # Safety
/// As for [`mrsplice_forward`]. `notice` is null or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_next_notice(set: *mut SpliceSet, notice: *mut CNotice) -> c_int {
    let call = |set: &mut SpliceSet| {
        if notice.is_null() {
            return Err(INVALID);
        }
        let Some(next) = set.next_notice() else { return Ok(0) };
        // SAFETY: `notice` is not null and has room, by this function's contract.
        unsafe { notice.write(next) };
        Ok(1)
    };
    // SAFETY: as for mrsplice_forward.
    to_c_int(unsafe { with_set(set, call) })
}

/// mrsplice_read(3): reads from one side of a splice.
///
/// # Safety
/// As for [`mrsplice_forward`]. `bytes` is null or has room for `max` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_read(
    set: *mut SpliceSet,
    splice: u64,
    side: c_int,
    bytes: *mut c_void,
    max: usize,
) -> isize {
    let call = |set: &mut SpliceSet| {
        // SAFETY: null or room for `max` bytes, by this function's contract.
        let bytes = unsafe { bytes_mut(bytes, max) }?;
        set.read(splice, parse_side(side)?, bytes)
    };
    // SAFETY: as for mrsplice_forward.
    to_ssize(unsafe { with_set(set, call) })
}

/// mrsplice_read(3): writes to one side of a splice.
///
/// # Safety
/// As for [`mrsplice_forward`]. `from` is null or has `max` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_write(
    set: *mut SpliceSet,
    splice: u64,
    side: c_int,
    from: *const c_void,
    max: usize,
) -> isize {
    let call = |set: &mut SpliceSet| {
        // SAFETY: null or `max` bytes, by this function's contract.
        let from = unsafe { bytes(from, max) }?;
        set.write(splice, parse_side(side)?, from)
    };
    // SAFETY: as for mrsplice_forward.
    to_ssize(unsafe { with_set(set, call) })
}

/// mrsplice_unsplice(3): releases a splice. The set owns the memory that `released` points to,
/// until the next call of this function, [`mrsplice_splice`] or [`mrsplice_free`] for the set.
///
/// # Safety
/// As for [`mrsplice_forward`]. `released` is null or has room for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_unsplice(
    set: *mut SpliceSet,
    splice: u64,
    released: *mut CReleased,
) -> c_int {
    let call = |set: &mut SpliceSet| {
        let result = set.unsplice(splice)?;
        if !released.is_null() {
            // SAFETY: `released` is not null and has room, by this function's contract.
            unsafe { released.write(result) };
        }
        Ok(0)
    };
    // SAFETY: as for mrsplice_forward.
    to_c_int(unsafe { with_set(set, call) })
}

/// Calls `call` with the set.
///
/// # Safety
/// `set` is null or a set that was not freed, and nothing else uses it during the call.
unsafe fn with_set<T>(
    set: *mut SpliceSet,
    call: impl FnOnce(&mut SpliceSet) -> Result<T>,
) -> Result<T> {
    // SAFETY: null or a set that only this call uses, by this function's contract.
    unsafe { set.as_mut() }.ok_or(INVALID)?.guarded(call)
}

/// Returns a slice of C's bytes.
///
/// # Safety
/// `start` is null or has `count` bytes, which stay valid and unchanged for the lifetime of the
/// slice.
unsafe fn bytes<'a>(start: *const c_void, count: usize) -> Result<&'a [u8]> {
    if is_empty(start, count)? {
        return Ok(&[]);
    }
    // SAFETY: not null, of a possible size, and valid by this function's contract.
    Ok(unsafe { slice::from_raw_parts(start.cast(), count) })
}

/// Returns a mutable slice of C's bytes, which is written and not read.
///
/// # Safety
/// As for [`bytes`], and nothing else reads the bytes.
unsafe fn bytes_mut<'a>(start: *mut c_void, count: usize) -> Result<&'a mut [u8]> {
    if is_empty(start, count)? {
        return Ok(&mut []);
    }
    // SAFETY: not null, of a possible size, and valid by this function's contract.
    Ok(unsafe { slice::from_raw_parts_mut(start.cast(), count) })
}

/// Returns whether there are no bytes; an error if the pointer or the count is impossible.
fn is_empty(start: *const c_void, count: usize) -> Result<bool> {
    match count {
        0 => Ok(true),
        _ if start.is_null() || isize::try_from(count).is_err() => Err(INVALID),
        _ => Ok(false),
    }
}

/// Borrows C's descriptor. The first call on the descriptor detects whether it is open.
///
/// # Safety
/// If the descriptor is open, it stays open while a set uses it.
unsafe fn borrow_fd(fd: c_int) -> Result<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(-Errno::BADF.raw_os_error());
    }
    // SAFETY: it is not -1. It stays open by this function's contract, or the set refuses it.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn parse_side(side: c_int) -> Result<Side> {
    match side {
        0 => Ok(Side::Fd0),
        1 => Ok(Side::Fd1),
        _ => Err(INVALID),
    }
}

/// Returns the value or the negative error number.
fn to_c_int(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| error)
}

/// Returns the number of bytes or the negative error number.
fn to_ssize(result: Result<usize>) -> isize {
    // A slice has at most isize::MAX bytes.
    result.map_or_else(|error| error as isize, |count| count as isize)
}

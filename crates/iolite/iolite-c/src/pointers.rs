//! Pointers from C to plain memory and descriptors, and results for C.

use std::ffi::{c_int, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, OwnedFd};
use std::{ptr, slice};

use crate::error::{BAD_FD, INVALID, Result};

/// Returns a slice of C's bytes.
///
/// # Safety
/// `start` is null or has `count` bytes, which stay valid and unchanged for the lifetime of the
/// slice.
pub(crate) unsafe fn bytes<'a>(start: *const c_void, count: usize) -> Result<&'a [u8]> {
    if is_empty(start, count)? {
        return Ok(&[]);
    }
    // SAFETY: not null, of a possible size, and valid by this function's contract.
    Ok(unsafe { slice::from_raw_parts(start.cast(), count) })
}

/// Returns whether there are no bytes; an error if the pointer or the count is impossible.
fn is_empty(start: *const c_void, count: usize) -> Result<bool> {
    match count {
        0 => Ok(true),
        _ if start.is_null() || isize::try_from(count).is_err() => Err(INVALID),
        _ => Ok(false),
    }
}

/// Copies bytes to C's memory.
///
/// # Safety
/// `to` has room for the bytes, and none of them is in it.
pub(crate) unsafe fn copy_out(from: &[u8], to: *mut c_void) {
    // SAFETY: the source is a slice, and the destination is by this function's contract.
    unsafe { ptr::copy_nonoverlapping(from.as_ptr(), to.cast(), from.len()) };
}

/// Stores a value in C's memory.
///
/// # Safety
/// `place` is null or has room for a value.
pub(crate) unsafe fn store<T>(place: *mut T, value: T) -> Result<()> {
    if place.is_null() {
        return Err(INVALID);
    }
    // SAFETY: not null, and room by this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Takes over C's descriptor; an error if it is not open.
///
/// # Safety
/// If the descriptor is open, nothing else closes it.
pub(crate) unsafe fn owned_fd(fd: c_int) -> Result<OwnedFd> {
    if fd < 0 {
        return Err(BAD_FD);
    }
    // SAFETY: it is not -1. The only call that uses it detects whether it is open.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    millrace_sys::file_status(borrowed).map_err(|errno| -errno.raw_os_error())?;
    // SAFETY: it is open, and only the result closes it, by this function's contract.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns the address of bytes; null if there are none, so that C does not read there.
pub(crate) fn start(bytes: &[u8]) -> *const c_void {
    if bytes.is_empty() { ptr::null() } else { bytes.as_ptr().cast() }
}

/// Returns the value or the negative error number.
pub(crate) fn to_c_int(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| error)
}

/// Returns 0 or the negative error number.
pub(crate) fn to_zero(result: Result<()>) -> c_int {
    to_c_int(result.map(|()| 0))
}

/// Returns the number of bytes or the negative error number.
pub(crate) fn to_ssize(result: Result<usize>) -> isize {
    // A slice has at most isize::MAX bytes.
    result.map_or_else(|error| error as isize, |count| count as isize)
}

/// Returns the value or the negative error number.
pub(crate) fn to_int64(result: Result<u64>) -> i64 {
    let max = i64::MAX as u64;
    result.map_or_else(i64::from, |value| value.min(max) as i64)
}

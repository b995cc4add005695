//! `struct iol_buffer`: memory that is being filled.

use std::ffi::{c_int, c_void};

use iolite::Buffer;

use crate::error::INVALID;
use crate::object::{self, CObject};
use crate::pointers::{bytes, store, to_c_int, to_ssize, to_zero};
use crate::slice::CSlice;

/// `struct iol_buffer`.
pub type CBuffer = CObject<Buffer>;

/// iol_slab_allocate(3): stores the address and the size of the memory still to be filled.
///
/// # Safety
/// `buffer` is null or a buffer of this library that was not frozen or destroyed, and no other
/// thread uses it during the call. `start` and `room` are null or have room for a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_buffer_unfilled(
    buffer: *mut CBuffer,
    start: *mut *mut c_void,
    room: *mut usize,
) -> c_int {
    let call = |buffer: &mut Buffer| {
        let unfilled = buffer.unfilled();
        // SAFETY: null or room, by this function's contract.
        unsafe { store(start, unfilled.as_mut_ptr().cast()) }?;
        // SAFETY: as above.
        unsafe { store(room, unfilled.len()) }
    };
    // SAFETY: this function has the same contract.
    to_zero(unsafe { object::with_mut(buffer, call) })
}

/// iol_slab_allocate(3): records that bytes were written.
///
/// # Safety
/// As for [`iol_buffer_unfilled`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_buffer_advance(buffer: *mut CBuffer, count: usize) -> c_int {
    let call = |buffer: &mut Buffer| {
        if count > buffer.capacity() - buffer.len() {
            return Err(INVALID);
        }
        buffer.advance(count);
        Ok(())
    };
    // SAFETY: as for iol_buffer_unfilled.
    to_zero(unsafe { object::with_mut(buffer, call) })
}

/// iol_slab_allocate(3): copies as many bytes as fit.
///
/// # Safety
/// As for [`iol_buffer_unfilled`]. `from` is null or has `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_buffer_write(
    buffer: *mut CBuffer,
    from: *const c_void,
    count: usize,
) -> isize {
    // SAFETY: null or `count` bytes, by this function's contract.
    let call = |buffer: &mut Buffer| Ok(buffer.write(unsafe { bytes(from, count) }?));
    // SAFETY: as for iol_buffer_unfilled.
    to_ssize(unsafe { object::with_mut(buffer, call) })
}

/// iol_slab_allocate(3): stores a slice of filled bytes in `*slice`.
///
/// # Safety
/// As for [`iol_buffer_unfilled`]. `slice` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_buffer_slice(
    buffer: *const CBuffer,
    offset: usize,
    length: usize,
    slice: *mut *mut CSlice,
) -> c_int {
    let part = |buffer: &Buffer| {
        let end = offset.checked_add(length).filter(|end| *end <= buffer.len());
        Ok(buffer.slice(offset..end.ok_or(INVALID)?))
    };
    // SAFETY: as for iol_buffer_unfilled.
    let make = || unsafe { object::with(buffer, part) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(slice, make) })
}

/// iol_slab_allocate(3): stores the filled bytes as a slice in `*slice`, and destroys the buffer.
///
/// # Safety
/// As for [`iol_buffer_unfilled`], and the buffer is not used any more, unless `slice` is null.
/// Otherwise `slice` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_buffer_freeze(buffer: *mut CBuffer, slice: *mut *mut CSlice) -> c_int {
    if slice.is_null() {
        return INVALID;
    }
    // SAFETY: as for iol_buffer_unfilled, and it is not used any more.
    let freeze = || Ok(unsafe { object::take(buffer) }?.freeze());
    // SAFETY: not null, and room by this function's contract.
    to_c_int(unsafe { object::create(slice, freeze) })
}

/// iol_slab_allocate(3): destroys a buffer that was not frozen.
///
/// # Safety
/// `buffer` is null or a buffer of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_buffer_destroy(buffer: *mut CBuffer) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(buffer) };
}

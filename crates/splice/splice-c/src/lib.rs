//! libmrsplice: the `splice` crate for C. `include/mrsplice.h` is what C sees, and the man pages
//! `mrsplice(7)` and `mrsplice_*(3)` say what each function does; here stands what it does with
//! pointers.
//!
//! This crate translates: C's requests, names and errors into the splicer's, and back. It decides
//! nothing about a transfer, and forwards no byte itself. What C breaks of its side (a pointer that
//! is none, a set used by two threads) cannot be noticed here; whatever can be is refused with a
//! negative error number. No panic reaches C: it makes the set refuse every further call.

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

/// mrsplice_new(3): puts a set into `*set`, which is C's until [`mrsplice_free`].
///
/// # Safety
/// `set` is null, or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_new(set: *mut *mut SpliceSet, pipes_max: usize) -> c_int {
    if set.is_null() {
        return INVALID;
    }
    match catch_unwind(|| SpliceSet::new(pipes_max)).unwrap_or(Err(BROKEN)) {
        Ok(made) => {
            // SAFETY: it is not null, and has room by this function's contract.
            unsafe { set.write(Box::into_raw(Box::new(made))) };
            0
        }
        Err(error) => error,
    }
}

/// mrsplice_new(3): ends a set, with its splices.
///
/// # Safety
/// `set` is null, or a set of [`mrsplice_new`], which nobody uses any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_free(set: *mut SpliceSet) {
    if set.is_null() {
        return;
    }
    // SAFETY: it was made of a box in mrsplice_new and was not freed, by this function's contract.
    let set = unsafe { Box::from_raw(set) };
    // After a panic even the end of a splicer may panic; what it holds is lost then.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(set)));
}

/// mrsplice_new(3): the descriptor to wait for.
///
/// # Safety
/// As [`mrsplice_forward`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_fd(set: *const SpliceSet) -> c_int {
    // SAFETY: as for mrsplice_forward; nothing is changed.
    unsafe { set.as_ref() }.map_or(INVALID, SpliceSet::fd)
}

/// mrsplice_splice(3): begins a splice, and puts what came of it into `request`.
///
/// # Safety
/// As [`mrsplice_forward`]; `request` is null or a request whose pointers are null or have as many
/// bytes as it says, which do not overlap; and its descriptors stay open until the splice is
/// released.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_splice(set: *mut SpliceSet, request: *mut CRequest) -> c_int {
    let call = |set: &mut SpliceSet| {
        // SAFETY: null, or a request, by this function's contract.
        let request = unsafe { request.as_mut() }.ok_or(INVALID)?;
        // SAFETY: the request says how many bytes there are, by this function's contract.
        let first = unsafe { bytes(request.prefix, request.prefix_bytes) }?;
        // SAFETY: as for `first`; the two do not overlap.
        let input = unsafe { bytes_mut(request.input, request.input_bytes) }?;
        // SAFETY: they stay open while the set has them, by this function's contract.
        let fd0 = unsafe { borrow_fd(request.fd0) }?;
        // SAFETY: as for fd0.
        let fd1 = unsafe { borrow_fd(request.fd1) }?;
        set.splice(request, [fd0, fd1], first, input)
    };
    // SAFETY: as for mrsplice_forward.
    to_c_int(unsafe { with_set(set, call) })
}

/// mrsplice_forward(3): moves bytes.
///
/// # Safety
/// `set` is null, or a set of [`mrsplice_new`] that was not freed, and that no other thread uses
/// during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_forward(set: *mut SpliceSet, wait_ms: c_int) -> c_int {
    // SAFETY: what this function's contract says is what `with_set` asks for.
    to_c_int(unsafe { with_set(set, |set| set.forward(wait_ms)) }.map(|()| 0))
}

/// mrsplice_forward(3): takes a notice.
///
/// # Safety
/// As [`mrsplice_forward`]; `notice` is null, or has room for one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_next_notice(set: *mut SpliceSet, notice: *mut CNotice) -> c_int {
    let call = |set: &mut SpliceSet| {
        if notice.is_null() {
            return Err(INVALID);
        }
        let Some(told) = set.next_notice() else { return Ok(0) };
        // SAFETY: it is not null, and has room by this function's contract.
        unsafe { notice.write(told) };
        Ok(1)
    };
    // SAFETY: as for mrsplice_forward.
    to_c_int(unsafe { with_set(set, call) })
}

/// mrsplice_read(3): reads from a side of a splice.
///
/// # Safety
/// As [`mrsplice_forward`]; `bytes` is null, or has room for `max`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_read(
    set: *mut SpliceSet,
    splice: u64,
    side: c_int,
    bytes: *mut c_void,
    max: usize,
) -> isize {
    let call = |set: &mut SpliceSet| {
        // SAFETY: null, or room for so many, by this function's contract.
        let bytes = unsafe { bytes_mut(bytes, max) }?;
        set.read(splice, parse_side(side)?, bytes)
    };
    // SAFETY: as for mrsplice_forward.
    to_ssize(unsafe { with_set(set, call) })
}

/// mrsplice_read(3): writes to a side of a splice.
///
/// # Safety
/// As [`mrsplice_forward`]; `from` is null, or has `max` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_write(
    set: *mut SpliceSet,
    splice: u64,
    side: c_int,
    from: *const c_void,
    max: usize,
) -> isize {
    let call = |set: &mut SpliceSet| {
        // SAFETY: null, or so many bytes, by this function's contract.
        let from = unsafe { bytes(from, max) }?;
        set.write(splice, parse_side(side)?, from)
    };
    // SAFETY: as for mrsplice_forward.
    to_ssize(unsafe { with_set(set, call) })
}

/// mrsplice_unsplice(3): releases a splice. What `released` points to then is the set's, and stays
/// until the next call of this function, [`mrsplice_splice`] or [`mrsplice_free`] with it.
///
/// # Safety
/// As [`mrsplice_forward`]; `released` is null, or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mrsplice_unsplice(
    set: *mut SpliceSet,
    splice: u64,
    released: *mut CReleased,
) -> c_int {
    let call = |set: &mut SpliceSet| {
        let told = set.unsplice(splice)?;
        if !released.is_null() {
            // SAFETY: it is not null, and has room by this function's contract.
            unsafe { released.write(told) };
        }
        Ok(0)
    };
    // SAFETY: as for mrsplice_forward.
    to_c_int(unsafe { with_set(set, call) })
}

/// Does `call` with the set that C means.
///
/// # Safety
/// `set` is null, or a set that was made, not freed, and that nobody else uses meanwhile.
unsafe fn with_set<T>(
    set: *mut SpliceSet,
    call: impl FnOnce(&mut SpliceSet) -> Result<T>,
) -> Result<T> {
    // SAFETY: by this function's contract it is null or a set, and we alone have it.
    unsafe { set.as_mut() }.ok_or(INVALID)?.guarded(call)
}

/// C's bytes.
///
/// # Safety
/// `start` is null, or `count` bytes are there while the slice is, and nobody changes them.
unsafe fn bytes<'a>(start: *const c_void, count: usize) -> Result<&'a [u8]> {
    if is_empty(start, count)? {
        return Ok(&[]);
    }
    // SAFETY: not null, of a size that memory can have, and there by this function's contract.
    Ok(unsafe { slice::from_raw_parts(start.cast(), count) })
}

/// C's room for bytes; what is in it is overwritten and never looked at.
///
/// # Safety
/// As [`bytes`], and nobody else looks at them.
unsafe fn bytes_mut<'a>(start: *mut c_void, count: usize) -> Result<&'a mut [u8]> {
    if is_empty(start, count)? {
        return Ok(&mut []);
    }
    // SAFETY: not null, of a size that memory can have, and there by this function's contract.
    Ok(unsafe { slice::from_raw_parts_mut(start.cast(), count) })
}

/// Whether there is no byte; an error if there cannot be so many.
fn is_empty(start: *const c_void, count: usize) -> Result<bool> {
    match count {
        0 => Ok(true),
        _ if start.is_null() || isize::try_from(count).is_err() => Err(INVALID),
        _ => Ok(false),
    }
}

/// C's descriptor. One that is not open is found out by the first call on it.
///
/// # Safety
/// If it is open, it stays so while a set has it.
unsafe fn borrow_fd(fd: c_int) -> Result<BorrowedFd<'static>> {
    if fd < 0 {
        return Err(-Errno::BADF.raw_os_error());
    }
    // SAFETY: it is not -1, and open by this function's contract, or refused before it is kept.
    Ok(unsafe { BorrowedFd::borrow_raw(fd) })
}

fn parse_side(side: c_int) -> Result<Side> {
    match side {
        0 => Ok(Side::Fd0),
        1 => Ok(Side::Fd1),
        _ => Err(INVALID),
    }
}

/// As C has it: the value, or the negative error number.
fn to_c_int(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|error| error)
}

/// As C has it: how many bytes, or the negative error number.
fn to_ssize(result: Result<usize>) -> isize {
    // No slice has more bytes than an isize can tell.
    result.map_or_else(|error| error as isize, |count| count as isize)
}

//! `struct iol_slice`: immutable bytes.

use std::ffi::c_int;
use std::os::fd::AsRawFd;

use iolite::{SealedMemory, Slice};

use crate::account::CAccount;
use crate::error::{INVALID, NO_FILE, memory_error, refused_error};
use crate::layout::CPart;
use crate::object::{self, CObject};
use crate::pointers::{owned_fd, store, to_c_int, to_zero};

/// `struct iol_slice`.
pub type CSlice = CObject<Slice>;

/// The pool number of slices in sealed memory.
const SEALED_POOL: u32 = u32::MAX;

/// iol_slice_describe(3): stores the address, the length and the id of the bytes.
///
/// # Safety
/// `slice` is null or a slice of this library that was not destroyed. `part` is null or has room
/// for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_describe(slice: *const CSlice, part: *mut CPart) -> c_int {
    // SAFETY: null or room, by this function's contract.
    let call = |slice: &Slice| unsafe { store(part, CPart::new(slice, 0)) };
    // SAFETY: this function has the same contract.
    to_zero(unsafe { object::with(slice, call) })
}

/// iol_slice_describe(3): stores another slice of the same bytes in `*copy`.
///
/// # Safety
/// As for [`iol_slice_describe`]. `copy` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_duplicate(
    slice: *const CSlice,
    copy: *mut *mut CSlice,
) -> c_int {
    // SAFETY: as for iol_slice_describe.
    let make = || unsafe { object::with(slice, |slice| Ok(slice.clone())) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(copy, make) })
}

/// iol_slice_describe(3): stores a slice of some of the bytes in `*part`.
///
/// # Safety
/// As for [`iol_slice_describe`]. `part` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_part(
    slice: *const CSlice,
    offset: usize,
    length: usize,
    part: *mut *mut CSlice,
) -> c_int {
    let part_of = |slice: &Slice| {
        let end = offset.checked_add(length).filter(|end| *end <= slice.len());
        Ok(slice.slice(offset..end.ok_or(INVALID)?))
    };
    // SAFETY: as for iol_slice_describe.
    let make = || unsafe { object::with(slice, part_of) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(part, make) })
}

/// iol_slice_describe(3): destroys a slice. The bytes live as long as others hold them.
///
/// # Safety
/// `slice` is null or a slice of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_destroy(slice: *mut CSlice) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(slice) };
}

/// iol_aggregate_checksum(3): returns the Internet checksum.
///
/// # Safety
/// As for [`iol_slice_describe`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_checksum(slice: *const CSlice) -> c_int {
    let call = |slice: &Slice| Ok(c_int::from(slice.sum().checksum()));
    // SAFETY: as for iol_slice_describe.
    to_c_int(unsafe { object::with(slice, call) })
}

/// iol_slice_sendfile_source(3): stores the descriptor and the offset for sendfile(2).
///
/// # Safety
/// As for [`iol_slice_describe`]. `fd` and `offset` are null or have room for a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_sendfile_source(
    slice: *const CSlice,
    fd: *mut c_int,
    offset: *mut u64,
) -> c_int {
    if fd.is_null() || offset.is_null() {
        return INVALID;
    }
    let call = |slice: &Slice| {
        let (file, at) = slice.sendfile_source().ok_or(NO_FILE)?;
        // SAFETY: not null, and room by this function's contract.
        unsafe { store(fd, file.as_raw_fd()) }?;
        // SAFETY: as above.
        unsafe { store(offset, at) }
    };
    // SAFETY: as for iol_slice_describe.
    to_zero(unsafe { object::with(slice, call) })
}

/// iol_slice_accept(3): returns the descriptor of sealed memory.
///
/// # Safety
/// As for [`iol_slice_describe`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_sealed_file(slice: *const CSlice) -> c_int {
    let call = |slice: &Slice| {
        if slice.id().pool != SEALED_POOL {
            return Err(NO_FILE);
        }
        let (file, _) = slice.sendfile_source().ok_or(NO_FILE)?;
        Ok(file.as_raw_fd())
    };
    // SAFETY: as for iol_slice_describe.
    to_c_int(unsafe { object::with(slice, call) })
}

/// iol_slice_accept(3): takes over a descriptor from another process, and stores its bytes as a
/// slice in `*slice`.
///
/// # Safety
/// Nothing else closes the descriptor. `account` is null or an account of this library that was not
/// destroyed. `slice` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slice_accept(
    fd: c_int,
    account: *const CAccount,
    slice: *mut *mut CSlice,
) -> c_int {
    // SAFETY: nothing else closes it, by this function's contract.
    let file = unsafe { owned_fd(fd) };
    let make = move || {
        let file = file?;
        // SAFETY: null or an account, by this function's contract.
        let account = unsafe { object::get(account) }?;
        let memory = SealedMemory::accept(file, account).map_err(refused_error)?;
        memory.into_slice().map_err(memory_error)
    };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(slice, make) })
}

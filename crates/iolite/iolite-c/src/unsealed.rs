//! `struct iol_unsealed`: a memory file that is being filled, and then sealed.

use std::ffi::{c_int, c_void};

use iolite::UnsealedMemory;

use crate::error::{INVALID, memory_error};
use crate::object::{self, CObject};
use crate::pointers::{bytes, store, to_c_int, to_ssize, to_zero};
use crate::slice::CSlice;

/// `struct iol_unsealed`.
pub type CUnsealed = CObject<UnsealedMemory>;

/// iol_unsealed_create(3): stores new memory in `*memory`, which C owns until
/// [`iol_unsealed_seal`] or [`iol_unsealed_destroy`].
///
/// # Safety
/// `memory` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_unsealed_create(memory: *mut *mut CUnsealed, bytes: usize) -> c_int {
    let make = || match bytes {
        0 => Err(INVALID),
        // Longer memory could become no slice.
        _ if u32::try_from(bytes).is_err() => Err(INVALID),
        _ => UnsealedMemory::new(bytes).map_err(memory_error),
    };
    // SAFETY: this function has the same contract.
    to_c_int(unsafe { object::create(memory, make) })
}

/// iol_unsealed_create(3): stores the address and the size of the memory still to be filled.
///
/// # Safety
/// `memory` is null or memory from [`iol_unsealed_create`] that was not sealed or destroyed, and no
/// other thread uses it during the call. `start` and `room` are null or have room for a value.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_unsealed_unfilled(
    memory: *mut CUnsealed,
    start: *mut *mut c_void,
    room: *mut usize,
) -> c_int {
    let call = |memory: &mut UnsealedMemory| {
        let unfilled = memory.unfilled();
        // SAFETY: null or room, by this function's contract.
        unsafe { store(start, unfilled.as_mut_ptr().cast()) }?;
        // SAFETY: as above.
        unsafe { store(room, unfilled.len()) }
    };
    // SAFETY: this function has the same contract.
    to_zero(unsafe { object::with_mut(memory, call) })
}

/// iol_unsealed_create(3): records that bytes were written.
///
/// # Safety
/// As for [`iol_unsealed_unfilled`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_unsealed_advance(memory: *mut CUnsealed, count: usize) -> c_int {
    let call = |memory: &mut UnsealedMemory| {
        if count > memory.unfilled().len() {
            return Err(INVALID);
        }
        memory.advance(count);
        Ok(())
    };
    // SAFETY: as for iol_unsealed_unfilled.
    to_zero(unsafe { object::with_mut(memory, call) })
}

/// iol_unsealed_create(3): copies as many bytes as fit.
///
/// # Safety
/// As for [`iol_unsealed_unfilled`]. `from` is null or has `count` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_unsealed_write(
    memory: *mut CUnsealed,
    from: *const c_void,
    count: usize,
) -> isize {
    // SAFETY: null or `count` bytes, by this function's contract.
    let call = |memory: &mut UnsealedMemory| Ok(memory.write(unsafe { bytes(from, count) }?));
    // SAFETY: as for iol_unsealed_unfilled.
    to_ssize(unsafe { object::with_mut(memory, call) })
}

/// iol_unsealed_create(3): seals the memory, destroys it, and stores its bytes as a slice in
/// `*slice`.
///
/// # Safety
/// As for [`iol_unsealed_unfilled`], and the memory is not used any more, unless `slice` is null.
/// Otherwise `slice` has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_unsealed_seal(
    memory: *mut CUnsealed,
    slice: *mut *mut CSlice,
) -> c_int {
    if slice.is_null() {
        return INVALID;
    }
    let seal = || {
        // SAFETY: as for iol_unsealed_unfilled, and it is not used any more.
        let sealed = unsafe { object::take(memory) }?.seal().map_err(memory_error)?;
        sealed.into_slice().map_err(memory_error)
    };
    // SAFETY: not null, and room by this function's contract.
    to_c_int(unsafe { object::create(slice, seal) })
}

/// iol_unsealed_create(3): destroys memory that was not sealed.
///
/// # Safety
/// `memory` is null or memory from [`iol_unsealed_create`] that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_unsealed_destroy(memory: *mut CUnsealed) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(memory) };
}

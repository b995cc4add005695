//! `struct iol_slab`: memory of this process.

use std::ffi::c_int;

use iolite::{AllocError, PrefaultOutcome, Slab};

use crate::buffer::CBuffer;
use crate::error::{AGAIN, INVALID, Result, alloc_error, memory_error};
use crate::layout::{CId, CSlabStats, parse_kind};
use crate::object::{self, CObject};
use crate::pointers::{store, to_c_int, to_zero};

/// `struct iol_slab`.
pub type CSlab = CObject<Slab>;

/// iol_slab_create(3): stores a new slab in `*slab`, which C owns until [`iol_slab_destroy`].
///
/// # Safety
/// `slab` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slab_create(slab: *mut *mut CSlab, bytes: usize) -> c_int {
    // SAFETY: this function has the same contract.
    to_c_int(unsafe { object::create(slab, || Slab::new(bytes).map_err(memory_error)) })
}

/// iol_slab_create(3): destroys a slab. Its memory lives as long as buffers and slices of it.
///
/// # Safety
/// `slab` is null or a slab from [`iol_slab_create`] that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slab_destroy(slab: *mut CSlab) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(slab) };
}

/// iol_slab_create(3): prepares a block of memory. Returns 1 if it did, and 0 if enough are ready.
///
/// # Safety
/// `slab` is null or a slab from [`iol_slab_create`] that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slab_prefault(slab: *const CSlab) -> c_int {
    let call = |slab: &Slab| match slab.prefault() {
        PrefaultOutcome::Idle => Ok(0),
        PrefaultOutcome::Prefaulted => Ok(1),
        PrefaultOutcome::Failed(error) => Err(-error),
    };
    // SAFETY: this function has the same contract.
    to_c_int(unsafe { object::with(slab, call) })
}

/// iol_slab_create(3): returns 1 if the contents with this id are still held, otherwise 0.
///
/// # Safety
/// As for [`iol_slab_prefault`]. `id` is null or an id.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slab_is_current(slab: *const CSlab, id: *const CId) -> c_int {
    let call = |slab: &Slab| {
        // SAFETY: null or an id, by this function's contract.
        let id = unsafe { id.as_ref() }.ok_or(INVALID)?;
        Ok(c_int::from(slab.is_current(id)))
    };
    // SAFETY: as for iol_slab_prefault.
    to_c_int(unsafe { object::with(slab, call) })
}

/// iol_slab_create(3): stores the state and the counters.
///
/// # Safety
/// As for [`iol_slab_prefault`]. `stats` is null or has room for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slab_stats(slab: *const CSlab, stats: *mut CSlabStats) -> c_int {
    // SAFETY: null or room, by this function's contract.
    let call = |slab: &Slab| unsafe { store(stats, slab.stats().into()) };
    // SAFETY: as for iol_slab_prefault.
    to_zero(unsafe { object::with(slab, call) })
}

/// iol_slab_allocate(3): stores a new buffer in `*buffer`.
///
/// # Safety
/// As for [`iol_slab_prefault`]. `buffer` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_slab_allocate(
    slab: *const CSlab,
    kind: c_int,
    bytes_min: usize,
    bytes_max: usize,
    buffer: *mut *mut CBuffer,
) -> c_int {
    let allocate = |slab: &Slab| {
        let kind = parse_kind(kind)?;
        if bytes_min == 0 || bytes_min > bytes_max || bytes_min > kind.bytes_max() {
            return Err(INVALID);
        }
        with_memory(slab, || slab.allocate(kind, bytes_min..=bytes_max, 0))
    };
    // SAFETY: as for iol_slab_prefault.
    let make = || unsafe { object::with(slab, allocate) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(buffer, make) })
}

/// Calls `attempt`, and prepares memory of the slab as often as none is ready. C programs need no
/// thread for that.
pub(crate) fn with_memory<T>(
    slab: &Slab,
    mut attempt: impl FnMut() -> std::result::Result<T, AllocError>,
) -> Result<T> {
    loop {
        match attempt() {
            Err(AllocError::NotReady) => match slab.prefault() {
                PrefaultOutcome::Prefaulted => {}
                // Another thread prepares it.
                PrefaultOutcome::Idle => return Err(AGAIN),
                PrefaultOutcome::Failed(error) => return Err(-error),
            },
            result => return result.map_err(alloc_error),
        }
    }
}

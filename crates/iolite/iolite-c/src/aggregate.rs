//! `struct iol_aggregate`: sequences of slices, and their bytes.

use std::ffi::{c_int, c_void};

use iolite::{Aggregate, MemoryKind, Slab, Slice};
use millrace_sys::PrivateMemory;

use crate::error::{INVALID, Result, TOO_LONG, memory_error};
use crate::layout::{CPart, parse_kind};
use crate::object::{self, CObject};
use crate::pointers::{bytes, copy_out, store, to_c_int, to_int64, to_ssize};
use crate::slab::{CSlab, with_memory};
use crate::slice::CSlice;

/// `struct iol_aggregate`.
pub type CAggregate = CObject<Aggregate>;

/// The units of a slab that each slice of a copy has at least, except the last one. The same number
/// as for [`Aggregate::copy`].
const COPY_UNITS_MIN: usize = 16;

/// iol_aggregate_create(3): stores a new aggregate in `*aggregate`, which C owns until
/// [`iol_aggregate_destroy`].
///
/// # Safety
/// `aggregate` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_create(aggregate: *mut *mut CAggregate) -> c_int {
    // SAFETY: this function has the same contract.
    to_c_int(unsafe { object::create(aggregate, || Ok(Aggregate::new())) })
}

/// iol_aggregate_create(3): stores an aggregate of copied bytes in `*aggregate`.
///
/// # Safety
/// `slab` is null or a slab of this library that was not destroyed. `from` is null or has `count`
/// bytes. `aggregate` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_from_bytes(
    slab: *const CSlab,
    kind: c_int,
    from: *const c_void,
    count: usize,
    aggregate: *mut *mut CAggregate,
) -> c_int {
    let copy = |slab: &Slab| {
        // SAFETY: null or `count` bytes, by this function's contract.
        copy_bytes(slab, parse_kind(kind)?, unsafe { bytes(from, count) }?)
    };
    // SAFETY: null or a slab, by this function's contract.
    let make = || unsafe { object::with(slab, copy) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(aggregate, make) })
}

fn copy_bytes(slab: &Slab, kind: MemoryKind, mut rest: &[u8]) -> Result<Aggregate> {
    let mut copy = Aggregate::new();
    while !rest.is_empty() {
        let size = rest.len().min(COPY_UNITS_MIN * kind.unit())..=rest.len();
        let mut buffer = with_memory(slab, || slab.allocate(kind, size.clone(), 0))?;
        rest = &rest[buffer.write(rest)..];
        copy.append(buffer.freeze());
    }
    Ok(copy)
}

/// iol_aggregate_create(3): stores another aggregate of the same slices in `*copy`.
///
/// # Safety
/// `aggregate` is null or an aggregate of this library that was not destroyed, and no other thread
/// changes it during the call. `copy` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_duplicate(
    aggregate: *const CAggregate,
    copy: *mut *mut CAggregate,
) -> c_int {
    // SAFETY: this function has the same contract.
    let make = || unsafe { object::with(aggregate, |aggregate| Ok(aggregate.clone())) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(copy, make) })
}

/// iol_aggregate_create(3): destroys an aggregate. Its slices live as long as others hold them.
///
/// # Safety
/// `aggregate` is null or an aggregate of this library that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_destroy(aggregate: *mut CAggregate) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(aggregate) };
}

/// iol_aggregate_create(3): returns the number of bytes.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_length(aggregate: *const CAggregate) -> i64 {
    // SAFETY: as for iol_aggregate_duplicate.
    to_int64(unsafe { object::with(aggregate, |aggregate| Ok(aggregate.len())) })
}

/// iol_mmap(3): stores the first address of private memory that has all bytes in `*start`.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`]. `start` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_mmap(aggregate: *const CAggregate, start: *mut *mut c_void) -> c_int {
    if start.is_null() {
        return INVALID;
    }
    // SAFETY: as for iol_aggregate_duplicate.
    let mapped = unsafe { object::with(aggregate, |bytes| bytes.map().map_err(memory_error)) };
    let store = |memory: PrivateMemory| {
        // SAFETY: not null, and room by this function's contract.
        unsafe { start.write(memory.leak().as_ptr().cast()) };
        0
    };
    to_c_int(mapped.map(store))
}

/// iol_aggregate_create(3): returns the number of slices.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_slices(aggregate: *const CAggregate) -> isize {
    // SAFETY: as for iol_aggregate_duplicate.
    to_ssize(unsafe { object::with(aggregate, |aggregate| Ok(aggregate.slices().count())) })
}

/// iol_aggregate_next(3): describes the bytes from `*position` on that are in one slice, and moves
/// the position behind them. Returns 0 at the end.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`]. `position` is null or a position. `part` is null or has room
/// for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_next(
    aggregate: *const CAggregate,
    position: *mut u64,
    part: *mut CPart,
) -> c_int {
    let call = |aggregate: &Aggregate| {
        // SAFETY: null or a position, by this function's contract.
        let position = unsafe { position.as_mut() }.ok_or(INVALID)?;
        if part.is_null() {
            return Err(INVALID);
        }
        let Some((slice, offset)) = aggregate.at(*position) else { return Ok(0) };
        *position += (slice.len() - offset) as u64;
        // SAFETY: not null, and room by this function's contract.
        unsafe { store(part, CPart::new(slice, offset)) }?;
        Ok(1)
    };
    // SAFETY: as for iol_aggregate_duplicate.
    to_c_int(unsafe { object::with(aggregate, call) })
}

/// iol_aggregate_next(3): stores the slice from a position on in `*slice`.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`]. `slice` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_slice(
    aggregate: *const CAggregate,
    position: u64,
    slice: *mut *mut CSlice,
) -> c_int {
    let find = |aggregate: &Aggregate| {
        let (found, offset) = aggregate.at(position).ok_or(INVALID)?;
        Ok(found.slice(offset..found.len()))
    };
    // SAFETY: as for iol_aggregate_duplicate.
    let make = || unsafe { object::with(aggregate, find) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(slice, make) })
}

/// iol_aggregate_next(3): copies up to `max` bytes from a position on. Returns 0 at the end.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`]. `to` is null or has room for `max` bytes, which are no bytes
/// of the aggregate.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_read(
    aggregate: *const CAggregate,
    position: u64,
    to: *mut c_void,
    max: usize,
) -> isize {
    let call = |aggregate: &Aggregate| {
        if max > 0 && to.is_null() || isize::try_from(max).is_err() {
            return Err(INVALID);
        }
        let mut done = 0;
        while done < max {
            let Some((slice, offset)) = aggregate.at(position.saturating_add(done as u64)) else {
                break;
            };
            let count = (slice.len() - offset).min(max - done);
            let place = to.wrapping_byte_add(done);
            // SAFETY: `done + count <= max`, and room for `max` bytes by this function's contract.
            unsafe { copy_out(&slice[offset..offset + count], place) };
            done += count;
        }
        Ok(done)
    };
    // SAFETY: as for iol_aggregate_duplicate.
    to_ssize(unsafe { object::with(aggregate, call) })
}

/// iol_aggregate_checksum(3): returns the Internet checksum.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_checksum(aggregate: *const CAggregate) -> c_int {
    let call = |aggregate: &Aggregate| Ok(c_int::from(aggregate.sum().checksum()));
    // SAFETY: as for iol_aggregate_duplicate.
    to_c_int(unsafe { object::with(aggregate, call) })
}

/// iol_aggregate_write(3): stores a copy of the bytes in new memory in `*copy`.
///
/// # Safety
/// As for [`iol_aggregate_duplicate`]. `slab` is null or a slab of this library that was not
/// destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_copy(
    aggregate: *const CAggregate,
    slab: *const CSlab,
    kind: c_int,
    copy: *mut *mut CAggregate,
) -> c_int {
    let copy_in = |slab: &Slab| {
        let kind = parse_kind(kind)?;
        // SAFETY: as for iol_aggregate_duplicate.
        let aggregate = unsafe { object::get(aggregate) }?;
        with_memory(slab, || aggregate.copy(slab, kind, 0))
    };
    // SAFETY: null or a slab, by this function's contract.
    let make = || unsafe { object::with(slab, copy_in) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(copy, make) })
}

/// iol_aggregate_write(3): stores all bytes as one slice in `*slice`.
///
/// # Safety
/// As for [`iol_aggregate_copy`]. `slice` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_contiguous(
    aggregate: *const CAggregate,
    slab: *const CSlab,
    kind: c_int,
    slice: *mut *mut CSlice,
) -> c_int {
    let copy_in = |slab: &Slab| {
        let kind = parse_kind(kind)?;
        // SAFETY: as for iol_aggregate_duplicate.
        contiguous(unsafe { object::get(aggregate) }?, slab, kind)
    };
    // SAFETY: null or a slab, by this function's contract.
    let make = || unsafe { object::with(slab, copy_in) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(slice, make) })
}

/// Returns the only slice, or one with a copy of all bytes.
fn contiguous(aggregate: &Aggregate, slab: &Slab, kind: MemoryKind) -> Result<Slice> {
    let mut slices = aggregate.slices();
    if let (Some(only), None) = (slices.next(), slices.next()) {
        return Ok(only.clone());
    }
    if aggregate.len() > kind.bytes_max() as u64 {
        return Err(TOO_LONG);
    }
    let size = aggregate.len().max(1) as usize;
    let mut buffer = with_memory(slab, || slab.allocate(kind, size..=size, 0))?;
    for slice in aggregate.slices() {
        buffer.write(slice);
    }
    Ok(buffer.freeze())
}

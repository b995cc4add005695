//! `struct iol_aggregate`: the functions that change an aggregate, or make one of a part.

use std::ffi::{c_int, c_void};
use std::ops::Range;

use iolite::Aggregate;

use crate::aggregate::CAggregate;
use crate::error::{INVALID, Result};
use crate::layout::parse_kind;
use crate::object;
use crate::pointers::{bytes, to_c_int, to_zero};
use crate::slab::{CSlab, with_memory};
use crate::slice::CSlice;

/// iol_aggregate_append(3): appends a slice.
///
/// # Safety
/// `aggregate` is null or an aggregate of this library that was not destroyed, and no other thread
/// uses it during the call. `slice` is null or a slice of this library that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_append(
    aggregate: *mut CAggregate,
    slice: *const CSlice,
) -> c_int {
    let call = |aggregate: &mut Aggregate| {
        // SAFETY: null or a slice, by this function's contract.
        aggregate.append(unsafe { object::get(slice) }?.clone());
        Ok(())
    };
    // SAFETY: this function has the same contract.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// iol_aggregate_append(3): prepends a slice.
///
/// # Safety
/// As for [`iol_aggregate_append`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_prepend(
    aggregate: *mut CAggregate,
    slice: *const CSlice,
) -> c_int {
    let call = |aggregate: &mut Aggregate| {
        // SAFETY: null or a slice, by this function's contract.
        aggregate.prepend(unsafe { object::get(slice) }?.clone());
        Ok(())
    };
    // SAFETY: as for iol_aggregate_append.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// iol_aggregate_append(3): appends all slices of `other`, which may be the same aggregate.
///
/// # Safety
/// As for [`iol_aggregate_append`], also for `other`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_concatenate(
    aggregate: *mut CAggregate,
    other: *const CAggregate,
) -> c_int {
    // SAFETY: null or an aggregate that is not changed meanwhile, by this function's contract.
    let other = unsafe { object::with(other, |other| Ok(other.clone())) };
    let call = |aggregate: &mut Aggregate| {
        aggregate.concatenate(other?);
        Ok(())
    };
    // SAFETY: as for iol_aggregate_append.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// iol_aggregate_append(3): keeps the first `length` bytes.
///
/// # Safety
/// As for [`iol_aggregate_append`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_truncate(aggregate: *mut CAggregate, length: u64) -> c_int {
    let call = |aggregate: &mut Aggregate| {
        aggregate.truncate(length);
        Ok(())
    };
    // SAFETY: as for iol_aggregate_append.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// iol_aggregate_append(3): drops the first `count` bytes.
///
/// # Safety
/// As for [`iol_aggregate_append`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_skip(aggregate: *mut CAggregate, count: u64) -> c_int {
    let call = |aggregate: &mut Aggregate| {
        aggregate.skip(count);
        Ok(())
    };
    // SAFETY: as for iol_aggregate_append.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// iol_aggregate_append(3): moves the bytes from `position` on to a new aggregate in `*rest`.
///
/// # Safety
/// As for [`iol_aggregate_append`]. `rest` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_split(
    aggregate: *mut CAggregate,
    position: u64,
    rest: *mut *mut CAggregate,
) -> c_int {
    let split = |aggregate: &mut Aggregate| {
        if position > aggregate.len() {
            return Err(INVALID);
        }
        Ok(aggregate.split_off(position))
    };
    // SAFETY: as for iol_aggregate_append.
    let make = || unsafe { object::with_mut(aggregate, split) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(rest, make) })
}

/// iol_aggregate_append(3): stores an aggregate of a part of the bytes in `*part`.
///
/// # Safety
/// As for [`iol_aggregate_append`]. `part` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_range(
    aggregate: *const CAggregate,
    position: u64,
    length: u64,
    part: *mut *mut CAggregate,
) -> c_int {
    let part_of = |aggregate: &Aggregate| Ok(aggregate.slice(range(aggregate, position, length)?));
    // SAFETY: as for iol_aggregate_append.
    let make = || unsafe { object::with(aggregate, part_of) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(part, make) })
}

/// iol_aggregate_append(3): replaces a part of the bytes by those of `with`, which may be the same
/// aggregate.
///
/// # Safety
/// As for [`iol_aggregate_append`], also for `with`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_replace(
    aggregate: *mut CAggregate,
    position: u64,
    length: u64,
    with: *const CAggregate,
) -> c_int {
    // SAFETY: null or an aggregate that is not changed meanwhile, by this function's contract.
    let with = unsafe { object::with(with, |with| Ok(with.clone())) };
    let call = |aggregate: &mut Aggregate| {
        let range = range(aggregate, position, length)?;
        aggregate.replace(range, with?);
        Ok(())
    };
    // SAFETY: as for iol_aggregate_append.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// iol_aggregate_write(3): overwrites bytes, in place or in new memory.
///
/// # Safety
/// As for [`iol_aggregate_append`]. `from` is null or has `count` bytes, which are no bytes of the
/// aggregate. `slab` is null or a slab of this library that was not destroyed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_aggregate_write(
    aggregate: *mut CAggregate,
    position: u64,
    from: *const c_void,
    count: usize,
    slab: *const CSlab,
    kind: c_int,
) -> c_int {
    let call = |aggregate: &mut Aggregate| {
        let kind = parse_kind(kind)?;
        // SAFETY: null or a slab, by this function's contract.
        let slab = unsafe { object::get(slab) }?;
        // SAFETY: null or `count` bytes, by this function's contract.
        let from = unsafe { bytes(from, count) }?;
        range(aggregate, position, count as u64)?;
        with_memory(slab, || aggregate.write(position, from, slab, kind, 0))
    };
    // SAFETY: as for iol_aggregate_append.
    to_zero(unsafe { object::with_mut(aggregate, call) })
}

/// Returns the positions of a part; an error if it exceeds the aggregate.
fn range(aggregate: &Aggregate, position: u64, length: u64) -> Result<Range<u64>> {
    let end = position.checked_add(length).filter(|end| *end <= aggregate.len());
    Ok(position..end.ok_or(INVALID)?)
}

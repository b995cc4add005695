//! `struct iol_pool`: memory of this process that members read where it is.

use std::ffi::c_int;

use iolite::{Pool, limits};

use crate::aggregate::CAggregate;
use crate::buffer::CBuffer;
use crate::channel::CChannel;
use crate::error::{INVALID, alloc_error, channel_error};
use crate::layout::CPoolStats;
use crate::object::{self, CObject};
use crate::pointers::{store, to_c_int, to_zero};

/// `struct iol_pool`.
pub type CPool = CObject<Pool>;

/// iol_pool_create(3): stores a new pool in `*pool`, which C owns until [`iol_pool_destroy`].
///
/// # Safety
/// `pool` is null or has room for a pointer. `members` is null or has `count` pointers, each of
/// them null or a channel of this library that was not destroyed, which no other thread uses during
/// the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_create(
    pool: *mut *mut CPool,
    bytes: usize,
    quota: u64,
    members: *const *mut CChannel,
    count: usize,
) -> c_int {
    let make = || {
        // SAFETY: null or `count` channels that nothing else uses, by this function's contract.
        unsafe {
            object::with_all(members, count, |mut ends| {
                let mut channels: Vec<_> = ends.iter_mut().map(|end| &mut end.channel).collect();
                Pool::new(bytes, quota, &mut channels).map_err(channel_error)
            })
        }
    };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(pool, make) })
}

/// iol_pool_create(3): destroys a pool. Its memory lives as long as buffers and slices of it.
///
/// # Safety
/// `pool` is null or a pool from [`iol_pool_create`] that is not used any more.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_destroy(pool: *mut CPool) {
    // SAFETY: this function has the same contract.
    unsafe { object::destroy(pool) };
}

/// iol_pool_create(3): stores a new buffer in `*buffer`.
///
/// # Safety
/// `pool` is null or a pool from [`iol_pool_create`] that was not destroyed. `buffer` is null or
/// has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_allocate(
    pool: *const CPool,
    bytes_min: usize,
    bytes_max: usize,
    buffer: *mut *mut CBuffer,
) -> c_int {
    let allocate = |pool: &Pool| {
        if bytes_min == 0 || bytes_min > bytes_max || bytes_min > limits::BLOCK_BYTES {
            return Err(INVALID);
        }
        pool.allocate(bytes_min..=bytes_max).map_err(alloc_error)
    };
    // SAFETY: this function has the same contract.
    let make = || unsafe { object::with(pool, allocate) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(buffer, make) })
}

/// iol_pool_create(3): stores a copy of the bytes in memory of the pool in `*copy`.
///
/// # Safety
/// As for [`iol_pool_allocate`]. `aggregate` is null or an aggregate of this library that was not
/// destroyed, and no other thread changes it during the call. `copy` is null or has room for a
/// pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_copy(
    pool: *const CPool,
    aggregate: *const CAggregate,
    copy: *mut *mut CAggregate,
) -> c_int {
    let copy_to = |pool: &Pool| {
        // SAFETY: null or an aggregate, by this function's contract.
        let aggregate = unsafe { object::get(aggregate) }?;
        aggregate.copy_to_pool(pool).map_err(alloc_error)
    };
    // SAFETY: as for iol_pool_allocate.
    let make = || unsafe { object::with(pool, copy_to) };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(copy, make) })
}

/// iol_pool_create(3): frees the memory that no process holds any more.
///
/// # Safety
/// As for [`iol_pool_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_collect(pool: *const CPool) -> c_int {
    let call = |pool: &Pool| {
        pool.collect();
        Ok(())
    };
    // SAFETY: as for iol_pool_allocate.
    to_zero(unsafe { object::with(pool, call) })
}

/// iol_pool_create(3): stores the state and the counters.
///
/// # Safety
/// As for [`iol_pool_allocate`]. `stats` is null or has room for the structure.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_stats(pool: *const CPool, stats: *mut CPoolStats) -> c_int {
    // SAFETY: null or room, by this function's contract.
    let call = |pool: &Pool| unsafe { store(stats, pool.stats().into()) };
    // SAFETY: as for iol_pool_allocate.
    to_zero(unsafe { object::with(pool, call) })
}

/// iol_pool_create(3): returns the number of the pool in ids; 0 if `pool` is null.
///
/// # Safety
/// As for [`iol_pool_allocate`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pool_number(pool: *const CPool) -> u32 {
    // SAFETY: as for iol_pool_allocate.
    unsafe { object::with(pool, |pool| Ok(pool.number())) }.unwrap_or(0)
}

//! Reading and writing descriptors of C as aggregates.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use iolite::Aggregate;
use iolite::limits::BLOCK_BYTES;
use iolite::service::FileClient;
use millrace_sys::Errno;

use crate::aggregate::CAggregate;
use crate::buffer::CBuffer;
use crate::error::{BAD_FD, INVALID, Result, memory_error};
use crate::object::{self, consume};
use crate::pointers::{to_c_int, to_ssize, to_zero};

/// Returns the client of this process. It is never dropped: memory that it has passed may be on its
/// way when the process ends.
fn client() -> Result<&'static FileClient> {
    static CLIENT: OnceLock<Result<FileClient>> = OnceLock::new();
    let client = CLIENT.get_or_init(|| {
        let socket = iolite::service::socket_path();
        FileClient::new(Some(&socket)).map_err(memory_error)
    });
    client.as_ref().map_err(|error| *error)
}

/// Calls `call` with the client and a descriptor.
fn with<R>(
    fd: c_int,
    call: impl FnOnce(&FileClient, BorrowedFd<'_>) -> std::result::Result<R, Errno>,
) -> Result<R> {
    if fd < 0 {
        return Err(BAD_FD);
    }
    // SAFETY: it is not -1. Calls of the kernel detect whether it is open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    consume((), |()| call(client()?, file).map_err(|error| -error.raw_os_error()))
}

/// Reads, and stores the aggregate in `*aggregate`. Returns its length.
///
/// # Safety
/// `aggregate` is null or has room for a pointer.
unsafe fn read(
    fd: c_int,
    aggregate: *mut *mut CAggregate,
    call: impl FnOnce(&FileClient, BorrowedFd<'_>) -> std::result::Result<Aggregate, Errno>,
) -> isize {
    if aggregate.is_null() {
        return INVALID as isize;
    }
    let read = with(fd, call).and_then(|bytes| {
        let length = bytes.len() as usize;
        // SAFETY: not null, and room by this function's contract.
        unsafe { object::create(aggregate, || Ok(bytes)) }.map(|_| length)
    });
    to_ssize(read)
}

/// iol_read(3): reads from the position of a descriptor.
///
/// # Safety
/// `aggregate` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_read(
    fd: c_int,
    length: usize,
    aggregate: *mut *mut CAggregate,
) -> isize {
    // SAFETY: this function has the same contract.
    unsafe { read(fd, aggregate, |client, file| client.read(file, length as u64)) }
}

/// iol_read(3): reads from an offset of a file.
///
/// # Safety
/// As for [`iol_read`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_pread(
    fd: c_int,
    length: usize,
    offset: i64,
    aggregate: *mut *mut CAggregate,
) -> isize {
    let Ok(offset) = u64::try_from(offset) else { return INVALID as isize };
    // SAFETY: this function has the same contract.
    unsafe { read(fd, aggregate, |client, file| client.read_at(file, offset, length as u64)) }
}

/// iol_write(3): writes an aggregate to a descriptor.
///
/// # Safety
/// `aggregate` is null or an aggregate of this library that was not destroyed, and no other thread
/// changes it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_write(fd: c_int, aggregate: *const CAggregate) -> isize {
    // SAFETY: null or an aggregate, by this function's contract.
    let aggregate = unsafe { object::get(aggregate) };
    let write = |bytes: &Aggregate| with(fd, |client, file| client.write(file, bytes));
    to_ssize(aggregate.and_then(write).map(|count| count as usize))
}

/// iol_write(3): stores a buffer for bytes that are written to a descriptor in `*buffer`.
///
/// # Safety
/// `buffer` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_allocate(fd: c_int, bytes: usize, buffer: *mut *mut CBuffer) -> c_int {
    let make = || {
        if !(1..=BLOCK_BYTES).contains(&bytes) {
            return Err(INVALID);
        }
        with(fd, |client, file| client.allocate(file, bytes))
    };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(buffer, make) })
}

/// iol_read(3): lets this process read the bytes of pipes where writers of the same user have them.
#[unsafe(no_mangle)]
pub extern "C" fn iol_trust_user() -> c_int {
    to_zero(client().map(FileClient::trust_user))
}

//! Descriptors of C that are read and written as aggregates, and the memory for that.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::OnceLock;

use iolite::limits::BLOCK_BYTES;
use iolite::service::FileClient;
use iolite::{Aggregate, Buffer};
use millrace_sys::Errno;

use crate::aggregate::CAggregate;
use crate::buffer::CBuffer;
use crate::error::{BAD_FD, INVALID, Result, memory_error};
use crate::object::{self, consume};
use crate::pointers::{to_c_int, to_ssize, to_zero};

/// The bytes that one call reads at most, as read(2) does.
const READ_BYTES_MAX: usize = 0x7fff_f000;

/// Returns the client of this process. It is never dropped: memory that it has passed may be on its
/// way when the process ends.
fn client() -> Result<&'static FileClient> {
    static CLIENT: OnceLock<Result<FileClient>> = OnceLock::new();
    let create = || {
        let socket = iolite::service::socket_path();
        FileClient::new(Some(&socket)).map_err(memory_error)
    };
    CLIENT.get_or_init(create).as_ref().map_err(|error| *error)
}

/// Calls `call` with the client and a descriptor, and catches its panics.
fn with_descriptor<R>(
    fd: c_int,
    call: impl FnOnce(&FileClient, BorrowedFd<'_>) -> std::result::Result<R, Errno>,
) -> Result<R> {
    if fd < 0 {
        return Err(BAD_FD);
    }
    // SAFETY: it is not -1. The calls that use it detect whether it is open.
    let file = unsafe { BorrowedFd::borrow_raw(fd) };
    consume((), |()| call(client()?, file).map_err(|errno| -errno.raw_os_error()))
}

/// Reads by `call`, and stores the aggregate in `*aggregate`. Returns its length.
///
/// # Safety
/// `aggregate` is null or has room for a pointer.
unsafe fn read(
    fd: c_int,
    aggregate: *mut *mut CAggregate,
    call: impl FnOnce(&FileClient, BorrowedFd<'_>) -> std::result::Result<Aggregate, Errno>,
) -> isize {
    let mut length = 0;
    let make = || {
        let bytes = with_descriptor(fd, call)?;
        length = bytes.len() as usize;
        Ok(bytes)
    };
    // SAFETY: null or room, by this function's contract.
    let created = unsafe { object::create(aggregate, make) };
    to_ssize(created.map(|_| length))
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
    let length = length.min(READ_BYTES_MAX) as u64;
    // SAFETY: this function has the same contract.
    unsafe { read(fd, aggregate, |client, file| client.read(file, length)) }
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
    let length = length.min(READ_BYTES_MAX) as u64;
    let read_at = |client: &FileClient, file: BorrowedFd<'_>| {
        client.read_at(file, u64::try_from(offset).map_err(|_| Errno::INVAL)?, length)
    };
    // SAFETY: this function has the same contract.
    unsafe { read(fd, aggregate, read_at) }
}

/// iol_read(3): lets this process read the bytes of pipes and connections where writers of the same
/// user have them.
#[unsafe(no_mangle)]
pub extern "C" fn iol_trust_user() -> c_int {
    to_zero(consume((), |()| client().map(FileClient::trust_user)))
}

/// iol_write(3): writes an aggregate to a descriptor.
///
/// # Safety
/// `aggregate` is null or an aggregate of this library that was not destroyed, and no other thread
/// changes it during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_write(fd: c_int, aggregate: *const CAggregate) -> isize {
    // SAFETY: null or an aggregate that nothing changes, by this function's contract.
    let aggregate = unsafe { object::get(aggregate) };
    let write = |bytes| with_descriptor(fd, |client, file| client.write(file, bytes));
    to_ssize(aggregate.and_then(write).map(|count| count as usize))
}

/// iol_write(3): stores a buffer for bytes that are written to a descriptor later in `*buffer`.
///
/// # Safety
/// `buffer` is null or has room for a pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn iol_allocate(fd: c_int, bytes: usize, buffer: *mut *mut CBuffer) -> c_int {
    let make = || -> Result<Buffer> {
        if !(1..=BLOCK_BYTES).contains(&bytes) {
            return Err(INVALID);
        }
        with_descriptor(fd, |client, file| client.allocate(file, bytes))
    };
    // SAFETY: null or room, by this function's contract.
    to_c_int(unsafe { object::create(buffer, make) })
}

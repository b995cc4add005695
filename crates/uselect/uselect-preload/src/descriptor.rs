//! The calls that close and copy descriptors. The library's own descriptors look closed to the
//! program, because daemons close all descriptors that they find.

use std::ffi::{c_int, c_long, c_uint};

use libc::FILE;
use uselect::is_internal_fd;

use crate::fd_kind::{self, FdKind};
use crate::libc_next::{self, preserve_errno, set_errno};
use crate::{epoll_ownership, fd_table, instance, process};

/// close(2).
///
/// # Safety
/// That of close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_internal_fd(fd) {
        return fail(libc::EBADF);
    }
    prepare_close(fd);
    // SAFETY: by this function's contract.
    unsafe { libc_next::close(fd) }
}

/// close_range(2).
///
/// # Safety
/// That of close_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    if flags & CLOEXEC != 0 {
        // SAFETY: by this function's contract.
        return unsafe { libc_next::close_range(first, last, flags) };
    }
    fd_kind::known(first as usize, last as usize).for_each(prepare_close);
    // Closes the ranges between the library's own descriptors.
    let end = fd_kind::DESCRIPTORS as c_uint;
    let mut begin = first;
    for own in (first..=last).take_while(|fd| *fd < end).filter(|fd| is_internal_fd(*fd as c_int)) {
        if begin < own {
            // SAFETY: by this function's contract.
            let code = unsafe { libc_next::close_range(begin, own - 1, flags) };
            if code != 0 {
                return code;
            }
        }
        begin = own + 1;
    }
    if begin > last && begin > first {
        return 0;
    }
    // SAFETY: by this function's contract.
    unsafe { libc_next::close_range(begin, last, flags) }
}

/// closefrom(3).
///
/// # Safety
/// That of closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: by this function's contract, which is that of close_range(2) without an end.
    unsafe { close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0) };
}

/// fclose(3), which closes the descriptor without calling the replaced close(2).
///
/// # Safety
/// That of fclose(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: it is a stream by this function's contract; a stream in memory has the descriptor -1.
    let fd = preserve_errno(|| unsafe { libc::fileno(stream) });
    prepare_close(fd);
    // SAFETY: by this function's contract.
    unsafe { libc_next::fclose(stream) }
}

/// dup(2).
///
/// # Safety
/// That of dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    prepare_copy(fd);
    // SAFETY: by this function's contract.
    let copy = unsafe { libc_next::dup(fd) };
    fd_table::set(copy, FdKind::Unknown);
    copy
}

/// dup2(2).
///
/// # Safety
/// That of dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_internal_fd(to) {
        return fail(libc::EBUSY);
    }
    prepare_replace(from, to);
    // SAFETY: by this function's contract.
    unsafe { libc_next::dup2(from, to) }
}

/// dup3(2).
///
/// # Safety
/// That of dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_internal_fd(to) {
        return fail(libc::EBUSY);
    }
    prepare_replace(from, to);
    // SAFETY: by this function's contract.
    unsafe { libc_next::dup3(from, to, flags) }
}

/// fcntl(2). The third argument is a number or a pointer; both are passed in the same way.
///
/// # Safety
/// That of fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let is_copy = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
    if is_copy {
        prepare_copy(fd);
    }
    // SAFETY: by this function's contract.
    let code = unsafe { libc_next::fcntl(fd, command, argument) };
    if is_copy {
        fd_table::set(code, FdKind::Unknown);
    }
    code
}

/// fcntl(2) under its name for programs with 64-bit offsets.
///
/// # Safety
/// That of fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { fcntl(fd, command, argument) }
}

fn fail(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Removes the records of a descriptor that is about to be closed.
fn prepare_close(fd: c_int) {
    let kind = fd_kind::get(fd);
    if kind == FdKind::Unknown || !process::check_own_process() {
        return;
    }
    match kind {
        FdKind::Unknown => {}
        FdKind::Other | FdKind::Untracked => instance::remove_closing(fd),
        FdKind::Tracked | FdKind::Listener => {
            instance::remove_closing(fd);
            if let Some(process) = process::registered() {
                preserve_errno(|| process.tracker.untrack(fd));
            }
        }
        FdKind::Epoll | FdKind::InheritedEpoll => {
            instance::remove(fd);
            instance::remove_closing(fd);
        }
    }
    // This must happen before another thread can get the number.
    fd_table::set(fd, FdKind::Unknown);
}

/// Prepares a descriptor for being copied.
fn prepare_copy(fd: c_int) {
    match fd_kind::get(fd) {
        FdKind::Epoll | FdKind::InheritedEpoll => epoll_ownership::hand_over(fd),
        FdKind::Tracked | FdKind::Listener => instance::hand_over_fd(fd),
        FdKind::Unknown | FdKind::Other | FdKind::Untracked => {}
    }
}

/// Prepares `to` for being closed by dup2(2), unless it is `from`, or `from` is not open.
fn prepare_replace(from: c_int, to: c_int) {
    // SAFETY: the call reads flags and takes no pointer.
    let is_open = preserve_errno(|| unsafe { libc_next::fcntl(from, libc::F_GETFD, 0) }) >= 0;
    if from != to && is_open {
        prepare_copy(from);
        prepare_close(to);
    }
}

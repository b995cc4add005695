//! What closes descriptors and copies them. Those of the library's own are not open, as far as the
//! program is told: daemons close all that they find.

use std::ffi::{c_int, c_long, c_uint};

use libc::FILE;
use uselect::is_internal_fd;

use crate::kinds::{self, Kind};
use crate::real::{self, aside, set_errno};
use crate::{instance, ours, process, table};

/// close(2).
///
/// # Safety
/// As for close(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if is_internal_fd(fd) {
        return refuse(libc::EBADF);
    }
    leave(fd);
    // SAFETY: by this function's contract.
    unsafe { real::close(fd) }
}

/// close_range(2).
///
/// # Safety
/// As for close_range(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const CLOEXEC: c_int = libc::CLOSE_RANGE_CLOEXEC as c_int;
    if flags & CLOEXEC != 0 {
        // SAFETY: by this function's contract.
        return unsafe { real::close_range(first, last, flags) };
    }
    kinds::known(first as usize, last as usize).for_each(leave);
    // What is between the library's own.
    let end = kinds::DESCRIPTORS as c_uint;
    let mut begin = first;
    for own in (first..=last).take_while(|fd| *fd < end).filter(|fd| is_internal_fd(*fd as c_int)) {
        if begin < own {
            // SAFETY: by this function's contract.
            let code = unsafe { real::close_range(begin, own - 1, flags) };
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
    unsafe { real::close_range(begin, last, flags) }
}

/// closefrom(3).
///
/// # Safety
/// As for closefrom(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    // SAFETY: by this function's contract, which is that of a range without an end.
    unsafe { close_range(first.max(0).unsigned_abs(), c_uint::MAX, 0) };
}

/// fclose(3), which closes without close(2) of the C library being seen.
///
/// # Safety
/// As for fclose(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fclose(stream: *mut FILE) -> c_int {
    // SAFETY: it is a stream by this function's contract; one in memory has no descriptor, -1.
    let fd = aside(|| unsafe { libc::fileno(stream) });
    leave(fd);
    // SAFETY: by this function's contract.
    unsafe { real::fclose(stream) }
}

/// dup(2).
///
/// # Safety
/// As for dup(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    share(fd);
    // SAFETY: by this function's contract.
    let copy = unsafe { real::dup(fd) };
    table::set(copy, Kind::Unknown);
    copy
}

/// dup2(2).
///
/// # Safety
/// As for dup2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup2(from: c_int, to: c_int) -> c_int {
    if is_internal_fd(to) {
        return refuse(libc::EBUSY);
    }
    replace(from, to);
    // SAFETY: by this function's contract.
    unsafe { real::dup2(from, to) }
}

/// dup3(2).
///
/// # Safety
/// As for dup3(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn dup3(from: c_int, to: c_int, flags: c_int) -> c_int {
    if is_internal_fd(to) {
        return refuse(libc::EBUSY);
    }
    replace(from, to);
    // SAFETY: by this function's contract.
    unsafe { real::dup3(from, to, flags) }
}

/// fcntl(2), whose third argument is a number or a pointer, which are passed alike.
///
/// # Safety
/// As for fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl(fd: c_int, command: c_int, argument: c_long) -> c_int {
    let is_copy = command == libc::F_DUPFD || command == libc::F_DUPFD_CLOEXEC;
    if is_copy {
        share(fd);
    }
    // SAFETY: by this function's contract.
    let code = unsafe { real::fcntl(fd, command, argument) };
    if is_copy {
        table::set(code, Kind::Unknown);
    }
    code
}

/// The same under the name that it has for programs with 64-bit offsets.
///
/// # Safety
/// As for fcntl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn fcntl64(fd: c_int, command: c_int, argument: c_long) -> c_int {
    // SAFETY: by this function's contract.
    unsafe { fcntl(fd, command, argument) }
}

fn refuse(errno: c_int) -> c_int {
    set_errno(errno);
    -1
}

/// Takes back what is known of a descriptor that is about to be closed.
fn leave(fd: c_int) {
    let kind = kinds::kind(fd);
    if kind == Kind::Unknown || !process::is_caller() {
        return;
    }
    match kind {
        Kind::Unknown => {}
        Kind::Other | Kind::Left => instance::forget(fd),
        Kind::Tracked | Kind::Listener => {
            instance::forget(fd);
            if let Some(process) = process::made() {
                aside(|| process.tracker.untrack(fd));
            }
        }
        Kind::Epoll | Kind::Inherited => {
            instance::end(fd);
            instance::forget(fd);
        }
    }
    // Before the number may be another file's.
    table::set(fd, Kind::Unknown);
}

/// A descriptor gets another number.
fn share(fd: c_int) {
    match kinds::kind(fd) {
        Kind::Epoll | Kind::Inherited => ours::hand_over(fd),
        Kind::Tracked | Kind::Listener => instance::leave_to_kernel(fd),
        Kind::Unknown | Kind::Other | Kind::Left => {}
    }
}

/// `to` is about to be closed, unless it stays what it is or `from` is not open.
fn replace(from: c_int, to: c_int) {
    // SAFETY: it asks for flags, without a pointer.
    let is_open = aside(|| unsafe { real::fcntl(from, libc::F_GETFD, 0) }) >= 0;
    if from != to && is_open {
        share(from);
        leave(to);
    }
}

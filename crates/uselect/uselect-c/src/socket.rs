//! Sockets for C: uselect_socket(3). Each call is the system call, and the library knows of it.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use libc::{sockaddr, sockaddr_storage, socklen_t};
use uselect::{Backend, Errno, Tracker, TrackingMode};

use crate::instance;
use crate::process::{guarded, tracker};

/// uselect_socket(3): socket(2).
#[unsafe(no_mangle)]
pub extern "C" fn uselect_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: it has no conditions.
    let call = || unsafe { libc::socket(domain, kind, protocol) };
    match tracker() {
        Some(tracker) => guarded(|| Ok(tracker.open(call))),
        None => call(),
    }
}

/// uselect_socket(3): accept4(2).
///
/// # Safety
/// `addr` and `addrlen` are null, or an address's room and how long that is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_accept4(
    sockfd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(tracker) = tracker() else {
        // SAFETY: this function's contract is accept4's.
        return unsafe { libc::accept4(sockfd, addr, addrlen, flags) };
    };
    guarded(|| {
        // By the look for the address the kernel's programs know of the socket.
        let mut room = MaybeUninit::<sockaddr_storage>::uninit();
        let mut room_bytes = size_of::<sockaddr_storage>() as socklen_t;
        let (address, bytes) = match addr.is_null() {
            true => (room.as_mut_ptr().cast(), ptr::from_mut(&mut room_bytes)),
            false => (addr, addrlen),
        };
        // SAFETY: the caller's by this function's contract, or room for any address.
        let call = || unsafe { libc::accept4(sockfd, address, bytes, flags) };
        let fd = tracker.open(call);
        if fd >= 0 {
            // Of the queue that became empty nothing tells.
            tracker.refresh(sockfd);
        }
        Ok(fd)
    })
}

/// uselect_recv(3): recv(2).
///
/// # Safety
/// `buf` has room for `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_recv(
    sockfd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: this function's contract is recv's.
    let call = || unsafe { libc::recv(sockfd, buf, len, flags) };
    let Some(tracker) = lean_tracker() else { return call() };
    guarded(|| {
        tracker.begin_receive(sockfd);
        let received = checked(call());
        // Flags can have bytes counted that stay, or others that were there left out.
        let got = received.ok().filter(|_| flags & !PLAIN == 0);
        tracker.end_receive(sockfd, got, len);
        // No receive gives more than an isize can tell.
        received.map(|count| count as isize)
    })
}

/// uselect_recv(3): send(2).
///
/// # Safety
/// There are `len` bytes at `buf`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_send(
    sockfd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: this function's contract is send's.
    let call = || unsafe { libc::send(sockfd, buf, len, flags) };
    let Some(tracker) = lean_tracker() else { return call() };
    guarded(|| {
        let sent = checked(call());
        tracker.end_send(sockfd, sent.ok(), len);
        if sent != Ok(len) {
            instance::lacks_room(sockfd);
        }
        // No send takes more than an isize can tell.
        sent.map(|count| count as isize)
    })
}

/// Flags with which a receive takes what it gives.
const PLAIN: c_int = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC;

fn lean_tracker() -> Option<&'static Tracker> {
    tracker().filter(|tracker| tracker.backend() == Backend::Bpf(TrackingMode::Lean))
}

/// What a call has given, before anything else changes errno.
fn checked(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error().raw_os_error();
        Errno::from_raw_os_error(error.unwrap_or_default())
    })
}

/// uselect_socket(3): has an open TCP socket tracked.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_adopt(fd: c_int) -> c_int {
    guarded(|| {
        let tracker = tracker();
        Ok(tracker.is_some_and(|tracker| tracker.is_tracked(fd) || tracker.track(fd)).into())
    })
}

/// uselect_socket(3): ends that.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_forget(fd: c_int) {
    guarded(|| {
        instance::leave(fd);
        tracker().into_iter().for_each(|tracker| tracker.untrack(fd));
        Ok(0)
    });
}

/// uselect_socket(3): close(2).
#[unsafe(no_mangle)]
pub extern "C" fn uselect_close(fd: c_int) -> c_int {
    guarded(|| {
        instance::close(fd);
        tracker().into_iter().for_each(|tracker| tracker.untrack(fd));
        Ok(0)
    });
    // SAFETY: whose descriptor it is, is C's to know.
    unsafe { libc::close(fd) }
}

/// uselect_socket(3): shutdown(2).
#[unsafe(no_mangle)]
pub extern "C" fn uselect_shutdown(sockfd: c_int, how: c_int) -> c_int {
    // SAFETY: it has no conditions.
    let result = unsafe { libc::shutdown(sockfd, how) };
    if result == 0 {
        uselect_refresh(sockfd);
    }
    result
}

/// uselect_socket(3): looks at a socket.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_refresh(fd: c_int) {
    guarded(|| {
        tracker().into_iter().for_each(|tracker| tracker.refresh(fd));
        Ok(0)
    });
}

//! Sockets for C: uselect_socket(3). Each function is the system call, and informs the tracker.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use libc::{sockaddr, sockaddr_storage, socklen_t};
use uselect::{Backend, Errno, Tracker, TrackingMode};

use crate::instance;
use crate::process::{catch_to_errno, tracker};

/// uselect_socket(3): socket(2).
#[unsafe(no_mangle)]
pub extern "C" fn uselect_socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: socket(2) takes only numbers.
    let call = || unsafe { libc::socket(domain, kind, protocol) };
    match tracker() {
        Some(tracker) => catch_to_errno(|| Ok(tracker.open(call))),
        None => call(),
    }
}

/// uselect_socket(3): accept4(2).
///
/// # Safety
/// `addr` and `addrlen` are null, or an address buffer and its length.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_accept4(
    sockfd: c_int,
    addr: *mut sockaddr,
    addrlen: *mut socklen_t,
    flags: c_int,
) -> c_int {
    let Some(tracker) = tracker() else {
        // SAFETY: this function has the contract of accept4(2).
        return unsafe { libc::accept4(sockfd, addr, addrlen, flags) };
    };
    catch_to_errno(|| {
        // The eBPF program runs when the kernel looks up the address.
        let mut buffer = MaybeUninit::<sockaddr_storage>::uninit();
        let mut buffer_bytes = size_of::<sockaddr_storage>() as socklen_t;
        let (address, bytes) = match addr.is_null() {
            true => (buffer.as_mut_ptr().cast(), ptr::from_mut(&mut buffer_bytes)),
            false => (addr, addrlen),
        };
        // SAFETY: the caller's buffer, by this function's contract, or one for any address.
        let call = || unsafe { libc::accept4(sockfd, address, bytes, flags) };
        let fd = tracker.open(call);
        if fd >= 0 {
            // The kernel does not report that the queue became empty.
            tracker.refresh(sockfd);
        }
        Ok(fd)
    })
}

/// uselect_recv(3): recv(2).
///
/// # Safety
/// `buf` is a buffer of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_recv(
    sockfd: c_int,
    buf: *mut c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: this function has the contract of recv(2).
    let call = || unsafe { libc::recv(sockfd, buf, len, flags) };
    let Some(tracker) = lean_tracker() else { return call() };
    catch_to_errno(|| {
        tracker.begin_receive(sockfd);
        let received = result_of(call());
        // With other flags the count may include bytes that stay queued, or omit some that were
        // taken.
        let got = received.ok().filter(|_| flags & !CONSUMING_FLAGS == 0);
        tracker.end_receive(sockfd, got, len);
        // A receive returns no more than an isize can hold.
        received.map(|count| count as isize)
    })
}

/// uselect_recv(3): send(2).
///
/// # Safety
/// `buf` is a buffer of `len` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_send(
    sockfd: c_int,
    buf: *const c_void,
    len: usize,
    flags: c_int,
) -> isize {
    // SAFETY: this function has the contract of send(2).
    let call = || unsafe { libc::send(sockfd, buf, len, flags) };
    let Some(tracker) = lean_tracker() else { return call() };
    catch_to_errno(|| {
        let sent = result_of(call());
        tracker.end_send(sockfd, sent.ok(), len);
        if sent != Ok(len) {
            instance::report_short_send(sockfd);
        }
        // A send takes no more than an isize can hold.
        sent.map(|count| count as isize)
    })
}

/// Flags with which a receive consumes exactly the bytes that it returns.
const CONSUMING_FLAGS: c_int = libc::MSG_DONTWAIT | libc::MSG_WAITALL | libc::MSG_CMSG_CLOEXEC;

fn lean_tracker() -> Option<&'static Tracker> {
    tracker().filter(|tracker| tracker.backend() == Backend::Bpf(TrackingMode::Lean))
}

/// Returns the result of a system call, before another call changes errno.
fn result_of(result: isize) -> Result<usize, Errno> {
    usize::try_from(result).map_err(|_| {
        let error = std::io::Error::last_os_error().raw_os_error();
        Errno::from_raw_os_error(error.unwrap_or_default())
    })
}

/// uselect_socket(3): starts tracking an open TCP socket.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_track(fd: c_int) -> c_int {
    catch_to_errno(|| {
        let tracker = tracker();
        Ok(tracker.is_some_and(|tracker| tracker.is_tracked(fd) || tracker.track(fd)).into())
    })
}

/// uselect_socket(3): stops tracking a socket.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_untrack(fd: c_int) {
    catch_to_errno(|| {
        instance::hand_over(fd);
        tracker().into_iter().for_each(|tracker| tracker.untrack(fd));
        Ok(0)
    });
}

/// uselect_socket(3): close(2).
#[unsafe(no_mangle)]
pub extern "C" fn uselect_close(fd: c_int) -> c_int {
    catch_to_errno(|| {
        instance::remove_closing(fd);
        tracker().into_iter().for_each(|tracker| tracker.untrack(fd));
        Ok(0)
    });
    // SAFETY: the caller is responsible for the descriptor.
    unsafe { libc::close(fd) }
}

/// uselect_socket(3): shutdown(2).
#[unsafe(no_mangle)]
pub extern "C" fn uselect_shutdown(sockfd: c_int, how: c_int) -> c_int {
    // SAFETY: shutdown(2) takes only numbers.
    let result = unsafe { libc::shutdown(sockfd, how) };
    if result == 0 {
        uselect_refresh(sockfd);
    }
    result
}

/// uselect_socket(3): updates the recorded state of a socket.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_refresh(fd: c_int) {
    catch_to_errno(|| {
        tracker().into_iter().for_each(|tracker| tracker.refresh(fd));
        Ok(0)
    });
}

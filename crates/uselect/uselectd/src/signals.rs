//! The signals that end the daemon, as a descriptor for poll(2).

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use crate::error::Error;

/// Blocks SIGTERM and SIGINT in this thread and the threads that it starts, and returns a
/// descriptor that is readable once one of them is pending.
///
/// # Errors
/// EMFILE, ENFILE, ENOMEM.
pub fn block_termination_signals() -> Result<OwnedFd, Error> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` is writable memory for a sigset_t.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset(3) has initialized `set`.
    let mut set = unsafe { set.assume_init() };
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: `set` is an initialized signal set, and no other reference to it exists.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: `set` is initialized and outlives the call; the old set may be null.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
    assert!(error == 0, "the arguments are valid");
    // SAFETY: `set` is initialized and outlives the call; -1 requests a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into());
    }
    // SAFETY: the kernel has just returned this descriptor, and this function alone owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

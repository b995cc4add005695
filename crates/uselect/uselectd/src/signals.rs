//! The signals that ask the daemon to end, as a descriptor that poll(2) waits for.

use std::mem::MaybeUninit;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use rustix::io::Errno;

use crate::error::Error;

/// Readable once SIGTERM or SIGINT has come. They do nothing else from now on, in the calling
/// thread and in those that it starts.
///
/// # Errors
/// EMFILE, ENFILE and ENOMEM.
pub fn block_termination_signals() -> Result<OwnedFd, Error> {
    let mut set = MaybeUninit::uninit();
    // SAFETY: `set` is writable memory for a sigset_t; the call fills all of it.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: sigemptyset filled it.
    let mut set = unsafe { set.assume_init() };
    for signal in [libc::SIGTERM, libc::SIGINT] {
        // SAFETY: `set` is a filled signal set that this function alone has.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: `set` is filled and outlives the call; a null old set is allowed.
    let error = unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, ptr::null_mut()) };
    assert!(error == 0, "these may be blocked");
    // SAFETY: `set` is filled and outlives the call; -1 asks for a new descriptor.
    let fd = unsafe { libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC) };
    if fd < 0 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO).into());
    }
    // SAFETY: the kernel has just given it to us.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

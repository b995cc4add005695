//! libuselect: the `uselect` crate for C. `include/uselect.h` is what C sees, and the man pages
//! `uselect(7)` and those that it names say what each function does; here stands what it does with
//! pointers.
//!
//! This crate translates: C's sets, times and errors into the tracker's, and back. It knows of one
//! tracker, the process's; without one each function is the system call. What C breaks of its side
//! (a pointer that is none, a descriptor that was closed behind its back) cannot be noticed here. No
//! panic reaches C: after one, every call is the system call.

mod instance;
mod layout;
mod numbers;
mod process;
mod socket;
mod time;
mod wait;

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uselect::{Errno, TrackingMode};

use crate::process::guarded;

pub use crate::instance::{uepoll_create, uepoll_ctl, uepoll_pwait, uepoll_wait, uselect_changes};
pub use crate::layout::{Change, Info, Options, Stats};
pub use crate::numbers::{
    uselect_get_socket_state, uselect_set_passes, uselect_set_spin, uselect_set_threshold,
    uselect_socket_info, uselect_stats,
};
pub use crate::socket::{
    uselect_accept4, uselect_adopt, uselect_close, uselect_forget, uselect_recv, uselect_refresh,
    uselect_send, uselect_shutdown, uselect_socket,
};
pub use crate::wait::{upoll, uppoll, upselect, uselect};

/// uselect_init(3): makes the process's tracker.
///
/// # Safety
/// `options` is null, or its path is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_init(options: *const Options) -> c_int {
    guarded(|| {
        // SAFETY: null or options, by this function's contract.
        let options = unsafe { options.as_ref() };
        let (socket, backend, mode) = options
            .map_or((std::ptr::null(), layout::AUTO, layout::EXACT), |options| {
                (options.socket, options.backend, options.mode)
            });
        let path = match socket.is_null() {
            true => Path::new(uselect::DEFAULT_SOCKET),
            // SAFETY: a string, which stays during the call, by this function's contract.
            false => Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(socket) }.to_bytes())),
        };
        let mode = match mode {
            layout::EXACT => TrackingMode::Exact,
            layout::LEAN => TrackingMode::Lean,
            _ => return Err(Errno::INVAL),
        };
        let is_long = path.as_os_str().len() >= SOCKET_BYTES;
        if backend > layout::CALLS || path.as_os_str().is_empty() || is_long {
            return Err(Errno::INVAL);
        }
        process::begin(path, backend, mode).map(|()| 0)
    })
}

/// What the address of a Unix socket has room for, with the 0 behind it (unix(7)).
const SOCKET_BYTES: usize = 108;

/// uselect_init(3): who tells of sockets.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_backend() -> c_int {
    guarded(|| Ok(process::backend() as c_int))
}

/// uselect_init(3): why it is that one. Never null; it stays until the calling thread asks again.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_why() -> *const c_char {
    process::why()
}

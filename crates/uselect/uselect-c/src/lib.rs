//! libuselect: the `uselect` crate for C. `include/uselect.h` declares the functions, and
//! uselect(7) and the man pages that it lists document them. The documentation here covers the use
//! of pointers.
//!
//! This crate converts sets, times and errors between C and Rust. It has one tracker for the
//! process; without it each function is the system call. It cannot detect errors of the C program,
//! such as a bad pointer or a descriptor that was closed without notice. No panic reaches C: after
//! one, every call is the system call, and calls on epoll instances of the library fail.

mod abi;
mod inspect;
mod instance;
mod process;
mod settings;
mod socket;
mod time;
mod wait;

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use uselect::{Errno, TrackingMode};

use crate::process::catch_to_errno;

pub use crate::abi::{CCountedEvent, CInitOptions, CSocketInfo, CStats};
pub use crate::inspect::{uselect_get_socket_state, uselect_socket_info, uselect_stats};
pub use crate::instance::{
    uepoll_create, uepoll_ctl, uepoll_pwait, uepoll_pwait_counted, uepoll_wait,
};
pub use crate::settings::{
    uselect_set_kernel_check_interval, uselect_set_spin, uselect_set_threshold,
};
pub use crate::socket::{
    uselect_accept4, uselect_close, uselect_recv, uselect_refresh, uselect_send, uselect_shutdown,
    uselect_socket, uselect_track, uselect_untrack,
};
pub use crate::wait::{upoll, uppoll, upselect, uselect};

/// uselect_init(3): creates the tracker of the process.
///
/// # Safety
/// `options` is null or points to options, whose path is null or a string.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_init(options: *const CInitOptions) -> c_int {
    catch_to_errno(|| {
        // SAFETY: null or options, by this function's contract.
        let options = unsafe { options.as_ref() };
        let (socket, backend, mode) = options
            .map_or((std::ptr::null(), abi::BACKEND_AUTO, abi::MODE_EXACT), |options| {
                (options.socket, options.backend, options.mode)
            });
        let path = match socket.is_null() {
            true => Path::new(uselect::DEFAULT_SOCKET),
            // SAFETY: a string that is valid during the call, by this function's contract.
            false => Path::new(OsStr::from_bytes(unsafe { CStr::from_ptr(socket) }.to_bytes())),
        };
        let mode = match mode {
            abi::MODE_EXACT => TrackingMode::Exact,
            abi::MODE_LEAN => TrackingMode::Lean,
            _ => return Err(Errno::INVAL),
        };
        let is_long = path.as_os_str().len() >= SOCKET_PATH_BYTES;
        if backend > abi::BACKEND_CALLS || path.as_os_str().is_empty() || is_long {
            return Err(Errno::INVAL);
        }
        process::init(path, backend, mode).map(|()| 0)
    })
}

/// The size of the path in the address of a Unix socket, with the final 0 (unix(7)).
const SOCKET_PATH_BYTES: usize = 108;

/// uselect_init(3): returns how waits are served.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_backend() -> c_int {
    catch_to_errno(|| Ok(process::backend() as c_int))
}

/// uselect_init(3): returns why this backend is in use. Never null; valid until the calling thread
/// calls this function again.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_backend_reason() -> *const c_char {
    process::backend_reason()
}

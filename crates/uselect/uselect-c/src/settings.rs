//! The settings of waits, for C.

use std::ffi::c_int;
use std::time::Duration;

use uselect::{Errno, Tracker};

use crate::process::{catch_to_errno, initialized_tracker, tracker};

/// uselect_set_threshold(3): sets how many bytes make a socket readable.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_set_threshold(fd: c_int, bytes: u32) -> c_int {
    catch_to_errno(|| match tracker().is_some_and(|tracker| tracker.set_threshold(fd, bytes)) {
        true => Ok(0),
        false => Err(Errno::NOENT),
    })
}

/// uselect_set_kernel_check_interval(3): sets how long memory alone may serve waits.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_set_kernel_check_interval(waits: u32, time_us: u32) -> c_int {
    set(|tracker| tracker.set_kernel_check_interval(waits, Duration::from_micros(time_us.into())))
}

/// uselect_set_kernel_check_interval(3): sets how long a wait spins before it sleeps.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_set_spin(max_us: u32) -> c_int {
    set(|tracker| tracker.set_spin(Duration::from_micros(max_us.into())))
}

fn set(what: impl FnOnce(&Tracker)) -> c_int {
    catch_to_errno(|| initialized_tracker().map(what).map(|()| 0))
}

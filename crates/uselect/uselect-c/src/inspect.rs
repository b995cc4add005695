//! The state of sockets and the counters of waits, for C.

use std::ffi::c_int;
use std::time::Duration;

use uselect::{Errno, PollFd};

use crate::abi::{CSocketInfo, CStats};
use crate::process::{catch_to_errno, initialized_tracker, tracker};

/// uselect_get_socket_state(3): returns what a descriptor is ready for now.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_get_socket_state(fd: c_int) -> c_int {
    catch_to_errno(|| {
        let mut fds = [PollFd { fd, events: ALL_EVENTS as u16, revents: 0 }];
        match tracker() {
            Some(tracker) => {
                tracker.upoll(&mut fds, Some(Duration::ZERO), None)?;
            }
            // SAFETY: there is one entry, whose layout equals that of `pollfd`, as `abi.rs`
            // asserts.
            None => match unsafe { libc::poll(fds.as_mut_ptr().cast(), 1, 0) } {
                0.. => {}
                _ => return Err(Errno::INTR),
            },
        }
        match fds[0].revents {
            found if fd < 0 || found & libc::POLLNVAL as u16 != 0 => Err(Errno::BADF),
            found => Ok(found.into()),
        }
    })
}

const ALL_EVENTS: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;

/// uselect_socket_info(3): stores the recorded state of a tracked socket.
///
/// # Safety
/// `info` is null or points to a `struct uselect_info`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_socket_info(fd: c_int, info: *mut CSocketInfo) -> c_int {
    catch_to_errno(|| {
        if info.is_null() {
            return Err(Errno::FAULT);
        }
        let state = tracker().and_then(|tracker| tracker.state(fd)).ok_or(Errno::NOENT)?;
        let known = CSocketInfo {
            events: state.events,
            edges: state.edges.into(),
            readable: state.readable,
            send_space: state.send_space,
            cwnd: state.cwnd,
            rtt_us: state.rtt_us,
        };
        // SAFETY: it is not null, and points to a structure by this function's contract.
        unsafe { info.write(known) };
        Ok(0)
    })
}

/// uselect_set_kernel_check_interval(3): stores the counters of waits.
///
/// # Safety
/// `stats` is null or points to a `struct uselect_stats`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_stats(stats: *mut CStats) -> c_int {
    catch_to_errno(|| {
        if stats.is_null() {
            return Err(Errno::FAULT);
        }
        let counted = initialized_tracker()?.stats();
        let uselect::Stats { waits, without_syscall, sleeps } = counted;
        // SAFETY: it is not null, and points to a structure by this function's contract.
        unsafe { stats.write(CStats { waits, without_syscall, sleeps }) };
        Ok(0)
    })
}

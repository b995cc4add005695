//! What is known of sockets, and what waits cost, for C.

use std::ffi::c_int;
use std::time::Duration;

use uselect::{Errno, PollFd, Tracker};

use crate::layout::{Info, Stats};
use crate::process::{guarded, made, tracker};

/// uselect_get_socket_state(3): what a descriptor is ready for now.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_get_socket_state(fd: c_int) -> c_int {
    guarded(|| {
        let mut fds = [PollFd { fd, events: EVERYTHING as u16, revents: 0 }];
        match tracker() {
            Some(tracker) => {
                tracker.upoll(&mut fds, Some(Duration::ZERO), None)?;
            }
            // SAFETY: there is one entry, which has the layout of poll's, as `layout.rs` asserts.
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

const EVERYTHING: i16 = libc::POLLIN | libc::POLLPRI | libc::POLLOUT | libc::POLLRDHUP;

/// uselect_socket_info(3): what is known of a tracked socket.
///
/// # Safety
/// `info` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_socket_info(fd: c_int, info: *mut Info) -> c_int {
    guarded(|| {
        if info.is_null() {
            return Err(Errno::FAULT);
        }
        let state = tracker().and_then(|tracker| tracker.state(fd)).ok_or(Errno::NOENT)?;
        let known = Info {
            events: state.events,
            edges: state.edges.into(),
            readable: state.readable,
            room: state.send_space,
            window: state.cwnd,
            rtt_us: state.rtt_us,
        };
        // SAFETY: it is not null, and has room by this function's contract.
        unsafe { info.write(known) };
        Ok(0)
    })
}

/// uselect_set_threshold(3): readable only with so many bytes.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_set_threshold(fd: c_int, bytes: u32) -> c_int {
    guarded(|| match tracker().is_some_and(|tracker| tracker.set_threshold(fd, bytes)) {
        true => Ok(0),
        false => Err(Errno::NOENT),
    })
}

/// uselect_set_passes(3): how long others may be left out.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_set_passes(count: u32, time_us: u32) -> c_int {
    set(|tracker| tracker.set_kernel_check_interval(count, Duration::from_micros(time_us.into())))
}

/// uselect_set_passes(3): how long to look at memory before a sleep.
#[unsafe(no_mangle)]
pub extern "C" fn uselect_set_spin(max_us: u32) -> c_int {
    set(|tracker| tracker.set_spin(Duration::from_micros(max_us.into())))
}

fn set(what: impl FnOnce(&Tracker)) -> c_int {
    guarded(|| made().map(what).map(|()| 0))
}

/// uselect_set_passes(3): what waits have cost.
///
/// # Safety
/// `stats` is null or has room.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_stats(stats: *mut Stats) -> c_int {
    guarded(|| {
        if stats.is_null() {
            return Err(Errno::FAULT);
        }
        let counted = made()?.stats();
        let uselect::Stats { waits, without_syscall: without_call, sleeps } = counted;
        // SAFETY: it is not null, and has room by this function's contract.
        unsafe { stats.write(Stats { waits, without_call, sleeps }) };
        Ok(0)
    })
}

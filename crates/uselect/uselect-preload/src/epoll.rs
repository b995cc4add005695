//! epoll(7) of the program. An epoll descriptor of the program is a real one. A watcher over it has
//! the tracked sockets, and the kernel has all other descriptors.
//!
//! ```text
//!  created ── a tracked socket is added ──> with a watcher
//!     │                                          │
//!     └── polled, copied, passed, inherited ─────┴──> kernel only, permanently
//! ```
//!
//! If a process polls the epoll descriptor itself, or uses a copy of it, it sees only the events of
//! the kernel's instance. So all sockets are moved to the kernel's instance before that.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use uselect::{DescriptorEvent, Errno, SignalSet};

use crate::fd_kind::{self, FdKind};
use crate::instance::{self, Instance};
use crate::libc_next::{self, preserve_errno, set_errno};
use crate::pointer::{can_read, can_write};
use crate::reentry::ReentryGuard;
use crate::socket::classify;
use crate::wait::{c_result, milliseconds, nanoseconds, read_mask};
use crate::{epoll_ownership, fd_table, process};

/// epoll_create(2).
///
/// # Safety
/// That of epoll_create(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: by this function's contract.
    record_created(unsafe { libc_next::epoll_create(size) })
}

/// epoll_create1(2).
///
/// # Safety
/// That of epoll_create1(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: by this function's contract.
    record_created(unsafe { libc_next::epoll_create1(flags) })
}

fn record_created(epoll: c_int) -> c_int {
    if epoll >= 0 {
        let has_shared_flag = preserve_errno(|| epoll_ownership::register_epoll(epoll));
        fd_table::set(epoll, if has_shared_flag { FdKind::Epoll } else { FdKind::Other });
    }
    epoll
}

/// epoll_ctl(2).
///
/// # Safety
/// That of epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let is_add = operation == libc::EPOLL_CTL_ADD;
    if is_add && matches!(fd_kind::get(fd), FdKind::Epoll | FdKind::InheritedEpoll) {
        epoll_ownership::hand_over(fd);
    }
    let changed = match operation {
        _ if !epoll_ownership::check_exclusive(epoll) => None,
        libc::EPOLL_CTL_ADD => read_event(event).and_then(|event| add(epoll, fd, &event)),
        libc::EPOLL_CTL_MOD => read_event(event).and_then(|event| {
            preserve_errno(|| {
                Some(Instance::of(epoll)?.watcher().modify(fd, event.events, event.u64))
            })
        }),
        libc::EPOLL_CTL_DEL => preserve_errno(|| Some(Instance::of(epoll)?.watcher().remove(fd))),
        _ => None,
    };
    match changed {
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            set_errno(error.raw_os_error());
            -1
        }
        // SAFETY: by this function's contract.
        None => unsafe { libc_next::epoll_ctl(epoll, operation, fd, event) },
    }
}

/// Reads the program's event. Returns `None` if the pointer is bad, so that the kernel fails the
/// call.
fn read_event(event: *const epoll_event) -> Option<epoll_event> {
    // SAFETY: it can be read, and any bytes are an event.
    can_read(event, 1).then(|| unsafe { event.read_unaligned() })
}

/// Adds a descriptor to the watcher, which is created for the first tracked socket. Returns `None`
/// if there is no watcher, so that the C library must do the call.
fn add(epoll: c_int, fd: c_int, event: &epoll_event) -> Option<Result<(), Errno>> {
    let is_tracked = matches!(classify(fd), FdKind::Tracked | FdKind::Listener);
    preserve_errno(|| {
        let instance = match Instance::of(epoll) {
            None if is_tracked => Instance::make(epoll, &process::registered()?.tracker)?,
            found => found?,
        };
        instance::record_added(fd);
        Some(instance.watcher().add(fd, event.events, event.u64))
    })
}

/// epoll_wait(2).
///
/// # Safety
/// That of epoll_wait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: by this function's contract.
    let result = unsafe { wait(epoll, events, max, milliseconds(timeout), None) };
    // SAFETY: by this function's contract.
    result.unwrap_or_else(|| unsafe { libc_next::epoll_wait(epoll, events, max, timeout) })
}

/// epoll_pwait(2).
///
/// # Safety
/// That of epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let result = read_mask(mask).and_then(|set| {
        // SAFETY: by this function's contract.
        unsafe { wait(epoll, events, max, milliseconds(timeout), set) }
    });
    // SAFETY: by this function's contract.
    result.unwrap_or_else(|| unsafe { libc_next::epoll_pwait(epoll, events, max, timeout, mask) })
}

/// epoll_pwait2(2).
///
/// # Safety
/// That of epoll_pwait2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let result = read_timeout(timeout).and_then(|timeout| {
        let set = read_mask(mask)?;
        // SAFETY: by this function's contract.
        unsafe { wait(epoll, events, max, timeout, set) }
    });
    // SAFETY: by this function's contract.
    result.unwrap_or_else(|| unsafe { libc_next::epoll_pwait2(epoll, events, max, timeout, mask) })
}

/// Reads the program's timeout, like [`nanoseconds`]. The outer `None` also means a bad pointer.
fn read_timeout(timeout: *const timespec) -> Option<Option<Duration>> {
    if !timeout.is_null() && !can_read(timeout, 1) {
        return None;
    }
    // SAFETY: null, or a time that can be read.
    nanoseconds(unsafe { timeout.as_ref() })
}

/// Waits with the watcher of an epoll descriptor. Returns `None` if the C library must make the
/// call.
///
/// # Safety
/// If `events` points to memory, it is an array of `max` events.
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: Option<SignalSet>,
) -> Option<c_int> {
    process::count_wait(timeout, || {
        let max = usize::try_from(max).ok().filter(|max| (1..=KERNEL_EVENTS_MAX).contains(max))?;
        if !epoll_ownership::check_exclusive(epoll) {
            return None;
        }
        let instance = Instance::of(epoll)?;
        let Some(guard) = ReentryGuard::enter() else {
            // A signal handler interrupted a wait, maybe for this instance. The kernel's instance
            // does not have the events of tracked sockets, so the call cannot be passed on.
            return Some(c_result(Err(Errno::INTR)));
        };
        let mut count = max.min(EVENTS_MAX);
        if !can_write(events, count) {
            count = count_writable(events, count);
        }
        if count == 0 {
            drop(guard);
            drop(instance);
            // No event can be stored. The kernel's call must therefore wait for all descriptors: it
            // fails only when there is an event, and the event stays.
            epoll_ownership::hand_over(epoll);
            return None;
        }
        let mut found = MaybeUninit::<[DescriptorEvent; EVENTS_MAX]>::uninit();
        // One memset(3), because a loop over the fields takes 500 instructions. SAFETY: the array
        // has at least this length, and all fields are numbers, which may be 0.
        unsafe { found.as_mut_ptr().cast::<DescriptorEvent>().write_bytes(0, count) };
        // SAFETY: these elements were initialised above; the array outlives the slice.
        let found = unsafe {
            slice::from_raw_parts_mut(found.as_mut_ptr().cast::<DescriptorEvent>(), count)
        };
        let result = instance.watcher().wait(found, timeout, mask.as_ref());
        drop(guard);
        drop(instance);
        for (at, event) in found[..result.unwrap_or(0)].iter().enumerate() {
            // SAFETY: the array has this length by this function's contract.
            let place = unsafe { events.add(at) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(epoll_event { events: event.events, u64: event.data }) };
        }
        Some(c_result(result))
    })
}

/// Returns how many of `count` events can be written at `events`.
#[cold]
fn count_writable(events: *mut epoll_event, count: usize) -> usize {
    (0..count).take_while(|at| can_write(events.wrapping_add(*at), 1)).count()
}

/// Events that one wait returns at most; the next wait returns the rest, as epoll_wait(2) allows.
const EVENTS_MAX: usize = 128;
/// The largest number of events that the kernel accepts (EP_MAX_EVENTS).
const KERNEL_EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

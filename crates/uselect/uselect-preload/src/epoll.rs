//! epoll(7) of the program. Its descriptor is a real one; a watcher over it has the sockets that
//! memory knows, and the kernel has everything else.
//!
//! ```text
//! made here ── a tracked socket is added ──> with a watcher
//!     │                                          │
//!     └── polled, copied, passed, inherited ─────┴──> the kernel's alone, for good
//! ```
//!
//! Whoever waits for the descriptor itself, or has it in another process, sees what the kernel knows
//! of it, so all is left to the kernel then.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::slice;
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use uselect::{DescriptorEvent, Errno, SignalSet};

use crate::inside::Inside;
use crate::instance::{self, Instance};
use crate::kinds::{self, Kind};
use crate::pointer::{can_read, can_write};
use crate::real::{self, aside, set_errno};
use crate::socket::learn;
use crate::wait::{code, milliseconds, nanoseconds, signals};
use crate::{ours, process, table};

/// epoll_create(2).
///
/// # Safety
/// As for epoll_create(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_create(size: c_int) -> c_int {
    // SAFETY: by this function's contract.
    made(unsafe { real::epoll_create(size) })
}

/// epoll_create1(2).
///
/// # Safety
/// As for epoll_create1(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_create1(flags: c_int) -> c_int {
    // SAFETY: by this function's contract.
    made(unsafe { real::epoll_create1(flags) })
}

fn made(epoll: c_int) -> c_int {
    if epoll >= 0 {
        let can_be_shared = aside(|| ours::begin(epoll));
        table::set(epoll, if can_be_shared { Kind::Epoll } else { Kind::Other });
    }
    epoll
}

/// epoll_ctl(2).
///
/// # Safety
/// As for epoll_ctl(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_ctl(
    epoll: c_int,
    operation: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let is_add = operation == libc::EPOLL_CTL_ADD;
    if is_add && matches!(kinds::kind(fd), Kind::Epoll | Kind::Inherited) {
        ours::hand_over(fd);
    }
    let changed = match operation {
        _ if !ours::is_ours(epoll) => None,
        libc::EPOLL_CTL_ADD => given(event).and_then(|given| add(epoll, fd, &given)),
        libc::EPOLL_CTL_MOD => given(event).and_then(|given| {
            aside(|| Some(Instance::of(epoll)?.watcher().modify(fd, given.events, given.u64)))
        }),
        libc::EPOLL_CTL_DEL => aside(|| Some(Instance::of(epoll)?.watcher().remove(fd))),
        _ => None,
    };
    match changed {
        Some(Ok(())) => 0,
        Some(Err(error)) => {
            set_errno(error.raw_os_error());
            -1
        }
        // SAFETY: by this function's contract.
        None => unsafe { real::epoll_ctl(epoll, operation, fd, event) },
    }
}

/// The program's event; `None` if the pointer is bad, so that the kernel fails the call.
fn given(event: *const epoll_event) -> Option<epoll_event> {
    // SAFETY: it can be read, and any bytes are an event.
    can_read(event, 1).then(|| unsafe { event.read_unaligned() })
}

/// `None`: the call is the C library's, as nothing in the instance is tracked.
fn add(epoll: c_int, fd: c_int, event: &epoll_event) -> Option<Result<(), Errno>> {
    let is_tracked = matches!(learn(fd), Kind::Tracked | Kind::Listener);
    aside(|| {
        let instance = match Instance::of(epoll) {
            None if is_tracked => Instance::make(epoll, &process::made()?.tracker)?,
            found => found?,
        };
        instance::note(fd);
        Some(instance.watcher().add(fd, event.events, event.u64))
    })
}

/// epoll_wait(2).
///
/// # Safety
/// As for epoll_wait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: by this function's contract.
    let answered = unsafe { wait(epoll, events, max, milliseconds(timeout), None) };
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::epoll_wait(epoll, events, max, timeout) })
}

/// epoll_pwait(2).
///
/// # Safety
/// As for epoll_pwait(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    let answered = signals(mask).and_then(|set| {
        // SAFETY: by this function's contract.
        unsafe { wait(epoll, events, max, milliseconds(timeout), set) }
    });
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::epoll_pwait(epoll, events, max, timeout, mask) })
}

/// epoll_pwait2(2).
///
/// # Safety
/// As for epoll_pwait2(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn epoll_pwait2(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let answered = left(timeout).and_then(|left| {
        let set = signals(mask)?;
        // SAFETY: by this function's contract.
        unsafe { wait(epoll, events, max, left, set) }
    });
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::epoll_pwait2(epoll, events, max, timeout, mask) })
}

/// The program's timeout, as [`nanoseconds`]; the outer `None` also if the pointer is bad.
fn left(timeout: *const timespec) -> Option<Option<Duration>> {
    if !timeout.is_null() && !can_read(timeout, 1) {
        return None;
    }
    // SAFETY: null, or a time that can be read.
    nanoseconds(unsafe { timeout.as_ref() })
}

/// `None`: the call is the C library's.
///
/// # Safety
/// Where there is memory at `events`, there is room for `max`.
unsafe fn wait(
    epoll: c_int,
    events: *mut epoll_event,
    max: c_int,
    timeout: Option<Duration>,
    mask: Option<SignalSet>,
) -> Option<c_int> {
    process::counted(timeout, || {
        let max = usize::try_from(max).ok().filter(|max| (1..=MAX).contains(max))?;
        if !ours::is_ours(epoll) {
            return None;
        }
        let instance = Instance::of(epoll)?;
        let Some(inside) = Inside::enter() else {
            // A signal handler has interrupted a wait, which may be of this very instance: of what
            // memory knows the kernel's instance tells nothing.
            return Some(code(Err(Errno::INTR)));
        };
        let mut room = max.min(EVENTS_MAX);
        if !can_write(events, room) {
            room = fitting(events, room);
        }
        if room == 0 {
            drop(inside);
            drop(instance);
            // The kernel waits for an event before it finds that it cannot store it, and keeps it.
            // So its instance must have all descriptors.
            ours::hand_over(epoll);
            return None;
        }
        let mut found = MaybeUninit::<[DescriptorEvent; EVENTS_MAX]>::uninit();
        // One memset(3): a loop that stores the fields of each takes 500 instructions.
        // SAFETY: there are at least as many, and all fields are numbers, which may be 0.
        unsafe { found.as_mut_ptr().cast::<DescriptorEvent>().write_bytes(0, room) };
        // SAFETY: these were initialised above; the array outlives the slice.
        let found = unsafe {
            slice::from_raw_parts_mut(found.as_mut_ptr().cast::<DescriptorEvent>(), room)
        };
        let answered = instance.watcher().wait(found, timeout, mask.as_ref());
        drop(inside);
        drop(instance);
        for (at, event) in found[..answered.unwrap_or(0)].iter().enumerate() {
            // SAFETY: there is room for as many by this function's contract.
            let place = unsafe { events.add(at) };
            // SAFETY: as above.
            unsafe { place.write_unaligned(epoll_event { events: event.events, u64: event.data }) };
        }
        Some(code(answered))
    })
}

/// How many events fit into the memory at `events`, if not all of `room` do.
#[cold]
fn fitting(events: *mut epoll_event, room: usize) -> usize {
    (0..room).take_while(|at| can_write(events.wrapping_add(*at), 1)).count()
}

/// So many events are told by a wait at most, as epoll_wait(2) may; the next one tells the rest.
const EVENTS_MAX: usize = 128;
/// The kernel takes no larger number, EP_MAX_EVENTS.
const MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();

//! epoll for C: uepoll(3) and uselect_changes(3). An instance is one of the kernel's, whose number
//! the caller has, with a watcher over it, which is found by that number.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use uselect::{DescriptorEvent, Errno, SignalSet, Tracker, Watcher};

use crate::layout::Change;
use crate::process::{Result, errno, guarded, sound, tracker};
use crate::time;
use crate::wait::{count, mask};

/// The instances that watch sockets which are tracked; there are few.
static INSTANCES: RwLock<Vec<(c_int, Arc<Watcher>)>> = RwLock::new(Vec::new());

fn watcher(epfd: c_int) -> Option<Arc<Watcher>> {
    let instances = INSTANCES.read().unwrap_or_else(PoisonError::into_inner);
    instances.iter().find(|(number, _)| *number == epfd).map(|(_, watcher)| watcher.clone())
}

/// Does `what` with each watcher.
fn each(what: impl Fn(&Watcher)) {
    let instances = INSTANCES.read().unwrap_or_else(PoisonError::into_inner);
    instances.iter().for_each(|(_, watcher)| what(watcher));
}

/// Leaves a descriptor to the kernel's instances, in those that it is in.
pub(crate) fn leave(fd: c_int) {
    each(|watcher| watcher.hand_over_one(fd));
}

/// A send has fallen short in lean mode: where the socket is watched, room is waited for.
pub(crate) fn lacks_room(fd: c_int) {
    each(|watcher| watcher.report_short_send(fd));
}

/// A descriptor is about to be closed: it leaves the instances, and if it is one, that ends.
pub(crate) fn close(fd: c_int) {
    each(|watcher| watcher.remove_closing(fd));
    if watcher(fd).is_some() {
        let mut instances = INSTANCES.write().unwrap_or_else(PoisonError::into_inner);
        instances.retain(|(number, _)| *number != fd);
    }
}

/// uepoll(3): epoll_create1(2).
#[unsafe(no_mangle)]
pub extern "C" fn uepoll_create(flags: c_int) -> c_int {
    // SAFETY: it has no conditions.
    let epfd = unsafe { libc::epoll_create1(flags) };
    let Some(tracker) = tracker().filter(|_| epfd >= 0) else { return epfd };
    let made = guarded(|| {
        let watcher = Watcher::over_epoll(tracker, epfd).map_err(errno)?;
        let mut instances = INSTANCES.write().unwrap_or_else(PoisonError::into_inner);
        // One of this number that was closed behind our back is gone.
        instances.retain(|(number, _)| *number != epfd);
        instances.push((epfd, Arc::new(watcher)));
        Ok(epfd)
    });
    if made < 0 {
        // SAFETY: it was opened above, and nobody else knows of it. After this errno is as it was.
        unsafe { libc::close(epfd) };
    }
    made
}

/// uepoll(3): epoll_ctl(2).
///
/// # Safety
/// `event` is null or an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let known = [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL];
    // What is refused whatever is in the instance, the kernel refuses.
    let Some(watcher) = watcher(epfd).filter(|_| known.contains(&op)) else {
        // SAFETY: this function's contract is epoll_ctl's.
        return unsafe { libc::epoll_ctl(epfd, op, fd, event) };
    };
    guarded(|| {
        sound()?;
        if op == libc::EPOLL_CTL_DEL {
            watcher.remove(fd)?;
            return Ok(0);
        }
        if event.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: it is not null, and an event by this function's contract.
        let epoll_event { events, u64: data } = unsafe { event.read() };
        match op {
            libc::EPOLL_CTL_ADD => watcher.add(fd, events, data)?,
            _ if events & libc::EPOLLEXCLUSIVE as u32 != 0 => return Err(Errno::INVAL),
            _ => watcher.modify(fd, events, data)?,
        }
        Ok(0)
    })
}

/// uepoll(3): epoll_wait(2).
///
/// # Safety
/// As [`uepoll_pwait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: by this function's contract; without a mask it is the same.
    unsafe { uepoll_pwait(epfd, events, maxevents, timeout, ptr::null()) }
}

/// uepoll(3): epoll_pwait(2).
///
/// # Safety
/// `events` is null or has room for `maxevents`; `sigmask` is null or a set of signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
    sigmask: *const sigset_t,
) -> c_int {
    let Some(watcher) = watcher(epfd) else {
        // SAFETY: this function's contract is epoll_pwait's.
        return unsafe { libc::epoll_pwait(epfd, events, maxevents, timeout, sigmask) };
    };
    guarded(|| {
        let as_c = |event: &DescriptorEvent| epoll_event { events: event.events, u64: event.data };
        // SAFETY: null or a set of signals, by this function's contract.
        let mask = unsafe { mask(sigmask) };
        // SAFETY: null or room for so many, by this function's contract.
        unsafe { wait(&watcher, events, maxevents, as_c, time::of_ms(timeout), mask.as_ref()) }
    })
}

/// uselect_changes(3): what changed, with counts.
///
/// # Safety
/// `changes` is null or has room for `maxchanges`; `timeout` is null or a time, `sigmask` null or a
/// set of signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect_changes(
    epfd: c_int,
    changes: *mut Change,
    maxchanges: c_int,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    guarded(|| {
        // An instance of the kernel's alone gives its events, which nobody counts.
        static CALLS: OnceLock<Tracker> = OnceLock::new();
        let watcher = match watcher(epfd) {
            Some(watcher) => watcher,
            None => {
                let calls = CALLS.get_or_init(Tracker::calls);
                Arc::new(Watcher::over_epoll(calls, epfd).map_err(errno)?)
            }
        };
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_ref() }.map(time::of_timespec).transpose()?;
        // SAFETY: null or a set of signals, by this function's contract.
        let mask = unsafe { mask(sigmask) };
        let as_c = |event: &DescriptorEvent| Change {
            data: event.data,
            events: event.events,
            edges: event.edges.into(),
        };
        // SAFETY: null or room for so many, by this function's contract.
        unsafe { wait(&watcher, changes, maxchanges, as_c, timeout, mask.as_ref()) }
    })
}

/// Waits, and puts what there is into `out`, as C has it.
///
/// # Safety
/// `out` is null or has room for `max`.
unsafe fn wait<T>(
    watcher: &Watcher,
    out: *mut T,
    max: c_int,
    as_c: impl Fn(&DescriptorEvent) -> T,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<c_int> {
    sound()?;
    let max = usize::try_from(max).unwrap_or(0);
    if max == 0 || max > MAX {
        return Err(Errno::INVAL);
    }
    if out.is_null() {
        return Err(Errno::FAULT);
    }
    let mut events = [DescriptorEvent::default(); AT_ONCE];
    let found = watcher.wait(&mut events[..max.min(AT_ONCE)], timeout, mask)?;
    for (at, event) in events[..found].iter().enumerate() {
        // SAFETY: `at` is below `max`, and there is room for so many by this function's contract.
        let place = unsafe { out.add(at) };
        // SAFETY: as above.
        unsafe { place.write(as_c(event)) };
    }
    Ok(count(found))
}

/// What epoll_wait(2) refuses more than, by the size of an event.
const MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();
/// Events that a call gives at most; the next one gives the rest.
const AT_ONCE: usize = 256;

//! epoll for C: uepoll(3) and uepoll_pwait_counted(3). An instance is an epoll instance of the
//! kernel with a watcher over it. The caller has the descriptor of the instance, by which the
//! watcher is found.

use std::ffi::c_int;
use std::ptr;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use libc::{epoll_event, sigset_t, timespec};
use uselect::{DescriptorEvent, Errno, SignalSet, Tracker, Watcher};

use crate::abi::CCountedEvent;
use crate::process::{Result, catch_to_errno, check_intact, errno, tracker};
use crate::time;
use crate::wait::{c_count, signal_set};

/// Watchers by the descriptor of their instance; there are few.
static INSTANCES: RwLock<Vec<(c_int, Arc<Watcher>)>> = RwLock::new(Vec::new());

fn watcher(epfd: c_int) -> Option<Arc<Watcher>> {
    let instances = INSTANCES.read().unwrap_or_else(PoisonError::into_inner);
    instances.iter().find(|(number, _)| *number == epfd).map(|(_, watcher)| watcher.clone())
}

/// Calls `what` with each watcher.
fn for_each_watcher(what: impl Fn(&Watcher)) {
    let instances = INSTANCES.read().unwrap_or_else(PoisonError::into_inner);
    instances.iter().for_each(|(_, watcher)| what(watcher));
}

/// Moves a descriptor from the watcher to the kernel, in each instance that has it.
pub(crate) fn hand_over(fd: c_int) {
    for_each_watcher(|watcher| watcher.hand_over_one(fd));
}

/// Reports a short send in lean mode, so that instances wait for send space.
pub(crate) fn report_short_send(fd: c_int) {
    for_each_watcher(|watcher| watcher.report_short_send(fd));
}

/// Removes a descriptor that is about to be closed from all instances. If it is an instance itself,
/// its watcher is removed.
pub(crate) fn remove_closing(fd: c_int) {
    for_each_watcher(|watcher| watcher.remove_closing(fd));
    if watcher(fd).is_some() {
        let mut instances = INSTANCES.write().unwrap_or_else(PoisonError::into_inner);
        instances.retain(|(number, _)| *number != fd);
    }
}

/// uepoll(3): epoll_create1(2).
#[unsafe(no_mangle)]
pub extern "C" fn uepoll_create(flags: c_int) -> c_int {
    // SAFETY: epoll_create1(2) takes only a number.
    let epfd = unsafe { libc::epoll_create1(flags) };
    let Some(tracker) = tracker().filter(|_| epfd >= 0) else { return epfd };
    let created = catch_to_errno(|| {
        let watcher = Watcher::over_epoll(tracker, epfd, true).map_err(errno)?;
        let mut instances = INSTANCES.write().unwrap_or_else(PoisonError::into_inner);
        // An earlier instance with this descriptor was closed without `uselect_close`.
        instances.retain(|(number, _)| *number != epfd);
        instances.push((epfd, Arc::new(watcher)));
        Ok(epfd)
    });
    if created < 0 {
        // SAFETY: the descriptor was opened above and is used by no other code. close(2) succeeds
        // and keeps errno.
        unsafe { libc::close(epfd) };
    }
    created
}

/// uepoll(3): epoll_ctl(2).
///
/// # Safety
/// `event` is null or points to an event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let known = [libc::EPOLL_CTL_ADD, libc::EPOLL_CTL_MOD, libc::EPOLL_CTL_DEL];
    // The kernel refuses unknown operations.
    let Some(watcher) = watcher(epfd).filter(|_| known.contains(&op)) else {
        // SAFETY: this function has the contract of epoll_ctl(2).
        return unsafe { libc::epoll_ctl(epfd, op, fd, event) };
    };
    catch_to_errno(|| {
        check_intact()?;
        if op == libc::EPOLL_CTL_DEL {
            watcher.remove(fd)?;
            return Ok(0);
        }
        if event.is_null() {
            return Err(Errno::FAULT);
        }
        // SAFETY: it is not null, and points to an event by this function's contract.
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
/// That of [`uepoll_pwait`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    // SAFETY: by this function's contract; a null mask is allowed.
    unsafe { uepoll_pwait(epfd, events, maxevents, timeout, ptr::null()) }
}

/// uepoll(3): epoll_pwait(2).
///
/// # Safety
/// `events` is null or an array of `maxevents`; `sigmask` is null or points to a signal set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
    sigmask: *const sigset_t,
) -> c_int {
    let Some(watcher) = watcher(epfd) else {
        // SAFETY: this function has the contract of epoll_pwait(2).
        return unsafe { libc::epoll_pwait(epfd, events, maxevents, timeout, sigmask) };
    };
    catch_to_errno(|| {
        let as_c = |event: &DescriptorEvent| epoll_event { events: event.events, u64: event.data };
        // SAFETY: null or a signal set, by this function's contract.
        let mask = unsafe { signal_set(sigmask) };
        // SAFETY: null or an array of this length, by this function's contract.
        unsafe { wait(&watcher, events, maxevents, as_c, time::from_ms(timeout), mask.as_ref()) }
    })
}

/// uepoll_pwait_counted(3): epoll_pwait(2) with the number of changes of each descriptor.
///
/// # Safety
/// `events` is null or an array of `maxevents`; `timeout` is null or points to a time, `sigmask` is
/// null or points to a signal set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uepoll_pwait_counted(
    epfd: c_int,
    events: *mut CCountedEvent,
    maxevents: c_int,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    catch_to_errno(|| {
        // A plain epoll instance has events without counts.
        static CALLS: OnceLock<Tracker> = OnceLock::new();
        let watcher = match watcher(epfd) {
            Some(watcher) => watcher,
            None => {
                let calls = CALLS.get_or_init(Tracker::calls);
                Arc::new(Watcher::over_epoll(calls, epfd, false).map_err(errno)?)
            }
        };
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_ref() }.map(time::from_timespec).transpose()?;
        // SAFETY: null or a signal set, by this function's contract.
        let mask = unsafe { signal_set(sigmask) };
        let as_c = |event: &DescriptorEvent| CCountedEvent {
            data: event.data,
            events: event.events,
            edges: event.edges.into(),
        };
        // SAFETY: null or an array of this length, by this function's contract.
        unsafe { wait(&watcher, events, maxevents, as_c, timeout, mask.as_ref()) }
    })
}

/// Waits, and stores the events in `out`, converted by `as_c`.
///
/// # Safety
/// `out` is null or an array of `max`.
unsafe fn wait<T>(
    watcher: &Watcher,
    out: *mut T,
    max: c_int,
    as_c: impl Fn(&DescriptorEvent) -> T,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<c_int> {
    check_intact()?;
    let max = usize::try_from(max).unwrap_or(0);
    if max == 0 || max > EVENTS_MAX {
        return Err(Errno::INVAL);
    }
    if out.is_null() {
        return Err(Errno::FAULT);
    }
    let mut events = [DescriptorEvent::default(); EVENTS_PER_CALL];
    let found = watcher.wait(&mut events[..max.min(EVENTS_PER_CALL)], timeout, mask)?;
    for (at, event) in events[..found].iter().enumerate() {
        // SAFETY: `at` is below `max`, the length of the array by this function's contract.
        let slot = unsafe { out.add(at) };
        // SAFETY: as above.
        unsafe { slot.write(as_c(event)) };
    }
    Ok(c_count(found))
}

/// The largest number of events that epoll_wait(2) accepts (EP_MAX_EVENTS).
const EVENTS_MAX: usize = c_int::MAX as usize / size_of::<epoll_event>();
/// Events that one call returns at most; the next call returns the rest.
const EVENTS_PER_CALL: usize = 256;

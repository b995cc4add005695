//! poll(2), select(2) and their variants with signal masks and with checked sizes.

use std::ffi::c_int;
use std::slice;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use uselect::{Errno, FdSets, PollFd, SignalSet};

use crate::fd_kind;
use crate::libc_next::{self, set_errno};
use crate::pointer::{can_read, can_write};
use crate::process::{self, RegisteredProcess};
use crate::reentry::ReentryGuard;
use crate::socket::{prepare_wait, prepare_waits};

/// poll(2).
///
/// # Safety
/// That of poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let result = unsafe { upoll(fds, count, milliseconds(timeout), None) };
    // SAFETY: by this function's contract.
    result.unwrap_or_else(|| unsafe { libc_next::poll(fds, count, timeout) })
}

/// ppoll(2).
///
/// # Safety
/// That of ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time, by this function's contract.
    let result = nanoseconds(unsafe { timeout.as_ref() }).and_then(|wait| {
        let mask = read_mask(mask)?;
        // SAFETY: by this function's contract.
        unsafe { upoll(fds, count, wait, mask) }
    });
    // SAFETY: by this function's contract.
    result.unwrap_or_else(|| unsafe { libc_next::ppoll(fds, count, timeout, mask) })
}

/// poll(2) for a program that was compiled with checks of array sizes (_FORTIFY_SOURCE).
///
/// # Safety
/// That of poll(2); the array has `bytes` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    bytes: size_t,
) -> c_int {
    if bytes / size_of::<pollfd>() < count as usize {
        // The C library prints an error and ends the program. SAFETY: by this function's contract.
        return unsafe { libc_next::__poll_chk(fds, count, timeout, bytes) };
    }
    // SAFETY: by this function's contract.
    unsafe { poll(fds, count, timeout) }
}

/// ppoll(2) with the same check.
///
/// # Safety
/// That of ppoll(2); the array has `bytes` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
    bytes: size_t,
) -> c_int {
    if bytes / size_of::<pollfd>() < count as usize {
        // SAFETY: by this function's contract.
        return unsafe { libc_next::__ppoll_chk(fds, count, timeout, mask, bytes) };
    }
    // SAFETY: by this function's contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// select(2), which stores the remaining time in `timeout`.
///
/// # Safety
/// That of select(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: null, or a time, by this function's contract.
    let timeout_left = unsafe { timeout.as_mut() };
    let result = microseconds(timeout_left.as_deref()).and_then(|wait| {
        let begin = Instant::now();
        // SAFETY: by this function's contract.
        let code = unsafe { uselect(count, [read, write, except], wait, None) }?;
        if let (Some(timeout_left), Some(wait)) = (timeout_left, wait) {
            let left = wait.saturating_sub(begin.elapsed());
            timeout_left.tv_sec = left.as_secs() as _;
            timeout_left.tv_usec = left.subsec_micros().into();
        }
        Some(code)
    });
    // SAFETY: by this function's contract.
    result.unwrap_or_else(|| unsafe { libc_next::select(count, read, write, except, timeout) })
}

/// pselect(2).
///
/// # Safety
/// That of pselect(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time, by this function's contract.
    let result = nanoseconds(unsafe { timeout.as_ref() }).and_then(|wait| {
        let mask = read_mask(mask)?;
        // SAFETY: by this function's contract.
        unsafe { uselect(count, [read, write, except], wait, mask) }
    });
    // SAFETY: by this function's contract.
    result
        .unwrap_or_else(|| unsafe { libc_next::pselect(count, read, write, except, timeout, mask) })
}

/// poll(2) by the tracker. Returns `None` if the C library must do the call.
///
/// # Safety
/// If `fds` points to memory, it is an array of `count` entries.
unsafe fn upoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: Option<Duration>,
    mask: Option<SignalSet>,
) -> Option<c_int> {
    process::count_wait(timeout, || {
        let count = usize::try_from(count).ok().filter(|count| *count <= fd_kind::DESCRIPTORS)?;
        if count == 0 || !can_write(fds, count) {
            return None;
        }
        let guard = ReentryGuard::enter()?;
        // SAFETY: it has this many entries by this function's contract; the two types have the same
        // fields.
        let fds = unsafe { slice::from_raw_parts_mut(fds.cast::<PollFd>(), count) };
        // Ends early, because the first descriptor is usually tracked.
        let is_tracked =
            |process: &RegisteredProcess| fds.iter().any(|fd| process.tracker.is_tracked(fd.fd));
        let registered = process::registered();
        let is_any = registered.is_some_and(is_tracked);
        if !is_any && !prepare_waits(fds.iter().map(|entry| entry.fd), &guard) {
            return None;
        }
        let on_untracked = |fd| {
            prepare_wait(fd, &guard);
        };
        let process = registered.or_else(process::registered)?;
        let result = process.tracker.upoll_with(fds, timeout, mask.as_ref(), on_untracked);
        drop(guard);
        Some(c_result(result))
    })
}

/// select(2) by the tracker. Returns `None` if the C library must do the call.
///
/// # Safety
/// Each of `sets` that points to memory has `count` bits, in whole words.
unsafe fn uselect(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: Option<SignalSet>,
) -> Option<c_int> {
    process::count_wait(timeout, || {
        let count = usize::try_from(count).ok().filter(|count| *count <= fd_kind::DESCRIPTORS)?;
        let words = count.div_ceil(64);
        let is_good = |set: &*mut fd_set| set.is_null() || can_write(set.cast::<u64>(), words);
        if count == 0 || !sets.iter().all(is_good) {
            return None;
        }
        let guard = ReentryGuard::enter()?;
        let [read, write, except] = sets.map(|set| {
            let words = if set.is_null() { 0 } else { words };
            let set = if set.is_null() { std::ptr::dangling_mut() } else { set.cast::<u64>() };
            // SAFETY: there are this many words by this function's contract, or none.
            unsafe { slice::from_raw_parts_mut(set, words) }
        });
        let mut sets = FdSets { read, write, except };
        let saved = clip(&mut sets, count);
        let mut is_any = false;
        for_each_fd(&sets, |fd| is_any |= prepare_wait(fd, &guard));
        let result = if is_any {
            process::registered()
                .map(|process| process.tracker.uselect(&mut sets, timeout, mask.as_ref()))
        } else {
            None
        };
        drop(guard);
        if !matches!(result, Some(Ok(_))) {
            restore(&mut sets, saved);
        }
        result.map(c_result)
    })
}

/// Clears the bits from `count` on in the last words, and returns these words as they were.
fn clip(sets: &mut FdSets<'_>, count: usize) -> [u64; 3] {
    let mask = if count.is_multiple_of(64) { u64::MAX } else { (1 << (count % 64)) - 1 };
    [&mut *sets.read, &mut *sets.write, &mut *sets.except].map(|set| {
        let Some(last) = set.last_mut() else { return 0 };
        std::mem::replace(last, *last & mask)
    })
}

fn restore(sets: &mut FdSets<'_>, saved: [u64; 3]) {
    let sets = [&mut *sets.read, &mut *sets.write, &mut *sets.except];
    for (last, saved) in sets.into_iter().map(|set| set.last_mut()).zip(saved) {
        last.into_iter().for_each(|last| *last = saved);
    }
}

/// Calls `work` with each descriptor that is in any of the sets.
fn for_each_fd(sets: &FdSets<'_>, mut work: impl FnMut(c_int)) {
    let sets = [&*sets.read, &*sets.write, &*sets.except];
    let words = sets[0].len().max(sets[1].len()).max(sets[2].len());
    for at in 0..words {
        let [read, write, except] = sets.map(|set| set.get(at).copied().unwrap_or(0));
        let mut left = read | write | except;
        while left != 0 {
            work((at * 64) as c_int + left.trailing_zeros() as c_int);
            left &= left - 1;
        }
    }
}

/// Converts a result for C. After a signal, a thread with a pending cancellation is cancelled here,
/// as it would be in the system call.
pub(crate) fn c_result(result: Result<usize, Errno>) -> c_int {
    match result {
        Ok(count) => count as c_int,
        Err(error) => {
            if error == Errno::INTR {
                test_cancel();
            }
            set_errno(error.raw_os_error());
            -1
        }
    }
}

fn test_cancel() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: the call takes no arguments. If it unwinds, no frame up to the program's has a
    // destructor that matters.
    unsafe { pthread_testcancel() }
}

/// Reads a signal mask. The C library's type begins with the kernel's. The outer `None` means a bad
/// pointer, so that the kernel fails the call.
pub(crate) fn read_mask(mask: *const sigset_t) -> Option<Option<SignalSet>> {
    const { assert!(size_of::<sigset_t>() >= size_of::<u64>()) };
    if mask.is_null() {
        return Some(None);
    }
    let set = mask.cast::<u64>();
    // SAFETY: it can be read, and any bytes are a signal set.
    can_read(set, 1).then(|| Some(SignalSet(unsafe { set.read_unaligned() })))
}

/// Converts a timeout; `None` is unlimited.
pub(crate) fn milliseconds(timeout: c_int) -> Option<Duration> {
    Some(Duration::from_millis(u64::try_from(timeout).ok()?))
}

/// Converts a timeout. The outer `None` means an invalid time, which is an error of the call.
pub(crate) fn nanoseconds(timeout: Option<&timespec>) -> Option<Option<Duration>> {
    let Some(timeout) = timeout else { return Some(None) };
    let nanoseconds = u32::try_from(timeout.tv_nsec).ok().filter(|part| *part < 1_000_000_000)?;
    Some(Some(Duration::new(u64::try_from(timeout.tv_sec).ok()?, nanoseconds)))
}

/// Like [`nanoseconds`], for select(2), which accepts more than a second of microseconds.
fn microseconds(timeout: Option<&timeval>) -> Option<Option<Duration>> {
    let Some(timeout) = timeout else { return Some(None) };
    let seconds = Duration::from_secs(u64::try_from(timeout.tv_sec).ok()?);
    let part = Duration::from_micros(u64::try_from(timeout.tv_usec).ok()?);
    Some(seconds.checked_add(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_are_converted_like_those_of_the_calls() {
        assert_eq!(milliseconds(-1), None);
        assert_eq!(milliseconds(1500), Some(Duration::from_millis(1500)));
        let at = |tv_sec, tv_nsec| nanoseconds(Some(&timespec { tv_sec, tv_nsec }));
        assert_eq!(nanoseconds(None), Some(None));
        assert_eq!(at(1, 5), Some(Some(Duration::new(1, 5))));
        assert!(at(0, 1_000_000_000).is_none() && at(-1, 0).is_none() && at(0, -1).is_none());
        let at = |tv_sec, tv_usec| microseconds(Some(&timeval { tv_sec, tv_usec }));
        assert_eq!(at(1, 2_000_001), Some(Some(Duration::new(3, 1000))));
        assert!(at(-1, 0).is_none() && at(0, -1).is_none());
    }

    #[test]
    fn bits_beyond_the_count_are_ignored_and_restored() {
        let (mut read, mut except) = ([1 << 63, 0b1101], [0, 0b100]);
        let mut sets = FdSets { read: &mut read, write: &mut [], except: &mut except };
        let saved = clip(&mut sets, 66);
        let mut requested = Vec::new();
        for_each_fd(&sets, |fd| requested.push(fd));
        assert_eq!(requested, [63, 64]);
        restore(&mut sets, saved);
        assert_eq!((read, except), ([1 << 63, 0b1101], [0, 0b100]));
    }
}

//! select and poll for C: uselect(3) and upoll(3).

use std::ffi::c_int;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use uselect::{Errno, FdSets, PollFd, SignalSet, Tracker};

use crate::process::{Result, catch_to_errno, tracker};
use crate::time;

/// uselect(3): select(2).
///
/// # Safety
/// Each set is null, or has `nfds` bits in whole words; `timeout` is null or points to a time.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [readfds, writefds, exceptfds];
    let Some(tracker) = tracker().filter(|_| !overlap(sets, nfds)) else {
        // SAFETY: this function has the contract of select(2).
        return unsafe { libc::select(nfds, readfds, writefds, exceptfds, timeout) };
    };
    catch_to_errno(|| {
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_mut() };
        let Some(timeout) = timeout else {
            // SAFETY: the sets are valid by this function's contract, and do not overlap.
            return unsafe { select(tracker, nfds, sets, None, None) };
        };
        let (requested, begin) = (time::from_timeval(timeout)?, Instant::now());
        // SAFETY: as above.
        let result = unsafe { select(tracker, nfds, sets, Some(requested), None) };
        *timeout = time::to_timeval(requested.saturating_sub(begin.elapsed()));
        result
    })
}

/// uselect(3): pselect(2).
///
/// # Safety
/// That of [`uselect()`]; `sigmask` is null or points to a signal set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    let sets = [readfds, writefds, exceptfds];
    let Some(tracker) = tracker().filter(|_| !overlap(sets, nfds)) else {
        // SAFETY: this function has the contract of pselect(2).
        return unsafe { libc::pselect(nfds, readfds, writefds, exceptfds, timeout, sigmask) };
    };
    catch_to_errno(|| {
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_ref() }.map(time::from_timespec).transpose()?;
        // SAFETY: null or a signal set, by this function's contract.
        let mask = unsafe { signal_set(sigmask) };
        // SAFETY: the sets are valid by this function's contract, and do not overlap.
        unsafe { select(tracker, nfds, sets, timeout, mask.as_ref()) }
    })
}

/// Returns the number of words of a set with `nfds` bits.
fn set_words(nfds: c_int) -> usize {
    usize::try_from(nfds).unwrap_or(0).div_ceil(WORD_BITS)
}

/// Returns whether two of the sets share memory. select(2) allows that; Rust does not.
fn overlap(sets: [*mut fd_set; 3], nfds: c_int) -> bool {
    let bytes = set_words(nfds) * size_of::<u64>();
    let is_shared = |one: *mut fd_set, other: *mut fd_set| {
        !one.is_null() && !other.is_null() && one.addr().abs_diff(other.addr()) < bytes
    };
    let [read, write, except] = sets;
    is_shared(read, write) || is_shared(read, except) || is_shared(write, except)
}

/// # Safety
/// Each set is null or has `nfds` bits in whole words, and they do not overlap.
unsafe fn select(
    tracker: &Tracker,
    nfds: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<c_int> {
    if nfds < 0 {
        return Err(Errno::INVAL);
    }
    let words = set_words(nfds);
    let mut sets = sets.map(|set| match set.is_null() || words == 0 {
        true => &mut [],
        // SAFETY: an fd_set consists of aligned words. There are this many, and no other code uses
        // them meanwhile, by this function's contract.
        false => unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), words) },
    });
    // Bits from nfds on are not checked, and are restored after an error.
    let beyond = match nfds as usize % WORD_BITS {
        0 => 0,
        used => u64::MAX << used,
    };
    let last = sets.each_ref().map(|set| set.last().copied());
    sets.iter_mut().filter_map(|set| set.last_mut()).for_each(|word| *word &= !beyond);
    let [read, write, except] = &mut sets;
    let result = tracker.uselect(&mut FdSets { read, write, except }, timeout, mask);
    if result.is_err() {
        for (set, last) in sets.iter_mut().zip(last) {
            set.last_mut().zip(last).into_iter().for_each(|(word, last)| *word = last);
        }
    }
    Ok(c_count(result?))
}

/// upoll(3): poll(2).
///
/// # Safety
/// `fds` is null, or has `nfds` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let Some(tracker) = tracker() else {
        // SAFETY: this function has the contract of poll(2).
        return unsafe { libc::poll(fds, nfds, timeout) };
    };
    // SAFETY: by this function's contract.
    catch_to_errno(|| unsafe { poll(tracker, fds, nfds, time::from_ms(timeout), None) })
}

/// upoll(3): ppoll(2).
///
/// # Safety
/// That of [`upoll`]; `timeout` is null or points to a time, `sigmask` is null or points to a
/// signal set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uppoll(
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    let Some(tracker) = tracker() else {
        // SAFETY: this function has the contract of ppoll(2).
        return unsafe { libc::ppoll(fds, nfds, timeout, sigmask) };
    };
    catch_to_errno(|| {
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_ref() }.map(time::from_timespec).transpose()?;
        // SAFETY: null or a signal set, by this function's contract.
        let mask = unsafe { signal_set(sigmask) };
        // SAFETY: by this function's contract.
        unsafe { poll(tracker, fds, nfds, timeout, mask.as_ref()) }
    })
}

/// # Safety
/// `fds` is null, or has `nfds` entries.
unsafe fn poll(
    tracker: &Tracker,
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: Option<Duration>,
    mask: Option<&SignalSet>,
) -> Result<c_int> {
    if nfds > descriptors_max(nfds) {
        return Err(Errno::INVAL);
    }
    let fds = match (nfds, fds.is_null()) {
        (0, _) => &mut [],
        (_, true) => return Err(Errno::FAULT),
        // SAFETY: the two types have equal layouts, as `abi.rs` asserts. There are this many, and
        // no other code uses them meanwhile, by this function's contract.
        (_, false) => unsafe { slice::from_raw_parts_mut(fds.cast::<PollFd>(), nfds as usize) },
    };
    Ok(c_count(tracker.upoll(fds, timeout, mask)?))
}

/// Returns the limit of open files, which is also that of poll(2). Reads it again only if `nfds` is
/// above the last value.
fn descriptors_max(nfds: nfds_t) -> u64 {
    static LIMIT: AtomicU64 = AtomicU64::new(0);
    let limit = LIMIT.load(Ordering::Relaxed);
    if nfds <= limit {
        return limit;
    }
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the buffer has the size that the kernel writes.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) };
    LIMIT.store(limits.rlim_cur, Ordering::Relaxed);
    limits.rlim_cur
}

/// Converts C's signal set, which begins with the kernel's part; `None` if it is null.
///
/// # Safety
/// `mask` is null or points to a signal set.
pub(crate) unsafe fn signal_set(mask: *const sigset_t) -> Option<SignalSet> {
    let first = mask.cast::<u64>();
    // SAFETY: it is not null, and begins with the 64 signals of Linux, aligned as a word.
    (!mask.is_null()).then(|| SignalSet(unsafe { first.read() }))
}

/// Converts a number of results. It fits an int: `maxevents` is an int, select(2) counts each
/// descriptor at most three times, and a process has far fewer than 2^31 / 3 descriptors.
pub(crate) fn c_count(ready: usize) -> c_int {
    ready.try_into().unwrap_or(c_int::MAX)
}

/// Bits in a word of a set.
const WORD_BITS: usize = 64;

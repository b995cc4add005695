//! select and poll for C: uselect(3) and upoll(3).

use std::ffi::c_int;
use std::slice;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};
use uselect::{Errno, FdSets, PollFd, SignalSet, Tracker};

use crate::process::{Result, guarded, tracker};
use crate::time;

/// uselect(3): select(2).
///
/// # Safety
/// Each set is null, or has `nfds` bits in whole words; `timeout` is null or a time.
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
        // SAFETY: this function's contract is select's.
        return unsafe { libc::select(nfds, readfds, writefds, exceptfds, timeout) };
    };
    guarded(|| {
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_mut() };
        let Some(timeout) = timeout else {
            // SAFETY: the sets are as this function's contract says, and do not overlap.
            return unsafe { select(tracker, nfds, sets, None, None) };
        };
        let (asked, begin) = (time::of_timeval(timeout)?, Instant::now());
        // SAFETY: as above.
        let result = unsafe { select(tracker, nfds, sets, Some(asked), None) };
        *timeout = time::to_timeval(asked.saturating_sub(begin.elapsed()));
        result
    })
}

/// uselect(3): pselect(2).
///
/// # Safety
/// As [`uselect()`]; `sigmask` is null or a set of signals.
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
        // SAFETY: this function's contract is pselect's.
        return unsafe { libc::pselect(nfds, readfds, writefds, exceptfds, timeout, sigmask) };
    };
    guarded(|| {
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_ref() }.map(time::of_timespec).transpose()?;
        // SAFETY: null or a set of signals, by this function's contract.
        let mask = unsafe { mask(sigmask) };
        // SAFETY: the sets are as this function's contract says, and do not overlap.
        unsafe { select(tracker, nfds, sets, timeout, mask.as_ref()) }
    })
}

/// Words of a set that has so many bits.
fn words(nfds: c_int) -> usize {
    usize::try_from(nfds).unwrap_or(0).div_ceil(WORD)
}

/// Whether two of the sets share memory, for which select(2) has an answer and Rust has none.
fn overlap(sets: [*mut fd_set; 3], nfds: c_int) -> bool {
    let bytes = words(nfds) * size_of::<u64>();
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
    let words = words(nfds);
    let mut sets = sets.map(|set| match set.is_null() || words == 0 {
        true => &mut [],
        // SAFETY: an fd_set is made of aligned words; there are so many, and nobody else has them
        // meanwhile, by this function's contract.
        false => unsafe { slice::from_raw_parts_mut(set.cast::<u64>(), words) },
    });
    // What is beyond nfds is not asked for, but stays after an error.
    let beyond = match nfds as usize % WORD {
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
    Ok(count(result?))
}

/// upoll(3): poll(2).
///
/// # Safety
/// `fds` is null, or has `nfds` entries.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn upoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    let Some(tracker) = tracker() else {
        // SAFETY: this function's contract is poll's.
        return unsafe { libc::poll(fds, nfds, timeout) };
    };
    // SAFETY: by this function's contract.
    guarded(|| unsafe { poll(tracker, fds, nfds, time::of_ms(timeout), None) })
}

/// upoll(3): ppoll(2).
///
/// # Safety
/// As [`upoll`]; `timeout` is null or a time, `sigmask` null or a set of signals.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn uppoll(
    fds: *mut pollfd,
    nfds: nfds_t,
    timeout: *const timespec,
    sigmask: *const sigset_t,
) -> c_int {
    let Some(tracker) = tracker() else {
        // SAFETY: this function's contract is ppoll's.
        return unsafe { libc::ppoll(fds, nfds, timeout, sigmask) };
    };
    guarded(|| {
        // SAFETY: null or a time, by this function's contract.
        let timeout = unsafe { timeout.as_ref() }.map(time::of_timespec).transpose()?;
        // SAFETY: null or a set of signals, by this function's contract.
        let mask = unsafe { mask(sigmask) };
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
        // SAFETY: the two types have the same layout, as `layout.rs` asserts; there are so many,
        // and nobody else has them meanwhile, by this function's contract.
        (_, false) => unsafe { slice::from_raw_parts_mut(fds.cast::<PollFd>(), nfds as usize) },
    };
    Ok(count(tracker.upoll(fds, timeout, mask)?))
}

/// The limit of descriptors, which is that of poll(2) too, for who has `nfds` of them: asked for
/// when they are more than it was.
fn descriptors_max(nfds: nfds_t) -> u64 {
    static LIMIT: AtomicU64 = AtomicU64::new(0);
    let limit = LIMIT.load(Ordering::Relaxed);
    if nfds <= limit {
        return limit;
    }
    let mut limits = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: it has room for the limits, and fails for no limit that there is.
    let _ = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limits) };
    LIMIT.store(limits.rlim_cur, Ordering::Relaxed);
    limits.rlim_cur
}

/// C's set of signals, of which the kernel's part comes first; none if it is null.
///
/// # Safety
/// `mask` is null or a set of signals.
pub(crate) unsafe fn mask(mask: *const sigset_t) -> Option<SignalSet> {
    let first = mask.cast::<u64>();
    // SAFETY: it is not null, and begins with the 64 signals that Linux has, aligned as a word.
    (!mask.is_null()).then(|| SignalSet(unsafe { first.read() }))
}

/// As C has it. No more is ready than was asked for in an int, or three times as many bits, of which
/// the kernel has no more than a twentieth.
pub(crate) fn count(ready: usize) -> c_int {
    ready.try_into().unwrap_or(c_int::MAX)
}

/// Bits of a word of a set.
const WORD: usize = 64;

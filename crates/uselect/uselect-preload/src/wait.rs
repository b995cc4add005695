//! poll(2) and select(2), and their kin with masks and checks.

use std::ffi::c_int;
use std::slice;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, sigset_t, size_t, timespec, timeval};
use uselect::{Errno, FdSets, PollFd, SignalSet};

use crate::inside::Inside;
use crate::kinds;
use crate::pointer::{can_read, can_write};
use crate::process::{self, Process};
use crate::real::{self, set_errno};
use crate::socket::{learn_all, learn_waited};

/// poll(2).
///
/// # Safety
/// As for poll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: by this function's contract.
    let answered = unsafe { upoll(fds, count, milliseconds(timeout), None) };
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::poll(fds, count, timeout) })
}

/// ppoll(2).
///
/// # Safety
/// As for ppoll(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time, by this function's contract.
    let answered = nanoseconds(unsafe { timeout.as_ref() }).and_then(|wait| {
        let mask = signals(mask)?;
        // SAFETY: by this function's contract.
        unsafe { upoll(fds, count, wait, mask) }
    });
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::ppoll(fds, count, timeout, mask) })
}

/// poll(2) of a program that was built to have the size of its array checked.
///
/// # Safety
/// As for poll(2); the array has `bytes`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    bytes: size_t,
) -> c_int {
    if bytes / size_of::<pollfd>() < count as usize {
        // It ends the program, and says why.
        // SAFETY: by this function's contract.
        return unsafe { real::__poll_chk(fds, count, timeout, bytes) };
    }
    // SAFETY: by this function's contract.
    unsafe { poll(fds, count, timeout) }
}

/// ppoll(2) likewise.
///
/// # Safety
/// As for ppoll(2); the array has `bytes`.
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
        return unsafe { real::__ppoll_chk(fds, count, timeout, mask, bytes) };
    }
    // SAFETY: by this function's contract.
    unsafe { ppoll(fds, count, timeout, mask) }
}

/// select(2), which leaves in `timeout` how much of it is left.
///
/// # Safety
/// As for select(2).
#[cfg_attr(not(test), unsafe(no_mangle))]
pub unsafe extern "C-unwind" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    // SAFETY: null, or a time, by this function's contract.
    let given = unsafe { timeout.as_mut() };
    let answered = microseconds(given.as_deref()).and_then(|wait| {
        let begin = Instant::now();
        // SAFETY: by this function's contract.
        let code = unsafe { uselect(count, [read, write, except], wait, None) }?;
        if let (Some(given), Some(wait)) = (given, wait) {
            let left = wait.saturating_sub(begin.elapsed());
            given.tv_sec = left.as_secs() as _;
            given.tv_usec = left.subsec_micros().into();
        }
        Some(code)
    });
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::select(count, read, write, except, timeout) })
}

/// pselect(2).
///
/// # Safety
/// As for pselect(2).
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
    let answered = nanoseconds(unsafe { timeout.as_ref() }).and_then(|wait| {
        let mask = signals(mask)?;
        // SAFETY: by this function's contract.
        unsafe { uselect(count, [read, write, except], wait, mask) }
    });
    // SAFETY: by this function's contract.
    answered.unwrap_or_else(|| unsafe { real::pselect(count, read, write, except, timeout, mask) })
}

/// `None`: the call is the C library's.
///
/// # Safety
/// Where there is memory at `fds`, it is an array of `count` entries.
unsafe fn upoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: Option<Duration>,
    mask: Option<SignalSet>,
) -> Option<c_int> {
    process::counted(timeout, || {
        let count = usize::try_from(count).ok().filter(|count| *count <= kinds::DESCRIPTORS)?;
        if count == 0 || !can_write(fds, count) {
            return None;
        }
        let inside = Inside::enter()?;
        // SAFETY: it has as many entries by this function's contract; the two types have the same
        // fields.
        let fds = unsafe { slice::from_raw_parts_mut(fds.cast::<PollFd>(), count) };
        // Most are tracked, and the first one usually is.
        let is_tracked = |process: &Process| fds.iter().any(|fd| process.tracker.is_tracked(fd.fd));
        let made = process::made();
        let is_any = made.is_some_and(is_tracked);
        if !is_any && !learn_all(fds.iter().map(|entry| entry.fd), &inside) {
            return None;
        }
        let learn = |fd| {
            learn_waited(fd, &inside);
        };
        let process = made.or_else(process::made)?;
        let answered = process.tracker.upoll_with(fds, timeout, mask.as_ref(), learn);
        drop(inside);
        Some(code(answered))
    })
}

/// As [`upoll`].
///
/// # Safety
/// Each of `sets` where there is memory has `count` bits, in whole words.
unsafe fn uselect(
    count: c_int,
    sets: [*mut fd_set; 3],
    timeout: Option<Duration>,
    mask: Option<SignalSet>,
) -> Option<c_int> {
    process::counted(timeout, || {
        let count = usize::try_from(count).ok().filter(|count| *count <= kinds::DESCRIPTORS)?;
        let words = count.div_ceil(64);
        let is_good = |set: &*mut fd_set| set.is_null() || can_write(set.cast::<u64>(), words);
        if count == 0 || !sets.iter().all(is_good) {
            return None;
        }
        let inside = Inside::enter()?;
        let [read, write, except] = sets.map(|set| {
            let words = if set.is_null() { 0 } else { words };
            let set = if set.is_null() { std::ptr::dangling_mut() } else { set.cast::<u64>() };
            // SAFETY: there are as many words by this function's contract, or none.
            unsafe { slice::from_raw_parts_mut(set, words) }
        });
        let mut sets = FdSets { read, write, except };
        let kept = clip(&mut sets, count);
        let mut is_any = false;
        for_each_asked(&sets, |fd| is_any |= learn_waited(fd, &inside));
        let answered = if is_any {
            process::made()
                .map(|process| process.tracker.uselect(&mut sets, timeout, mask.as_ref()))
        } else {
            None
        };
        drop(inside);
        if !matches!(answered, Some(Ok(_))) {
            give_back(&mut sets, kept);
        }
        answered.map(code)
    })
}

/// Takes bits out of the last words that are beyond `count`; gives those words as they were.
fn clip(sets: &mut FdSets<'_>, count: usize) -> [u64; 3] {
    let mask = if count.is_multiple_of(64) { u64::MAX } else { (1 << (count % 64)) - 1 };
    [&mut *sets.read, &mut *sets.write, &mut *sets.except].map(|set| {
        let Some(last) = set.last_mut() else { return 0 };
        std::mem::replace(last, *last & mask)
    })
}

fn give_back(sets: &mut FdSets<'_>, kept: [u64; 3]) {
    let sets = [&mut *sets.read, &mut *sets.write, &mut *sets.except];
    for (last, kept) in sets.into_iter().map(|set| set.last_mut()).zip(kept) {
        last.into_iter().for_each(|last| *last = kept);
    }
}

/// Calls `work` with each descriptor that is in any of the sets.
fn for_each_asked(sets: &FdSets<'_>, mut work: impl FnMut(c_int)) {
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

/// As the C library gives it. After a signal a thread that is to be cancelled is, as it would be in
/// the system call.
pub(crate) fn code(answered: Result<usize, Errno>) -> c_int {
    match answered {
        Ok(count) => count as c_int,
        Err(error) => {
            if error == Errno::INTR {
                cancel_point();
            }
            set_errno(error.raw_os_error());
            -1
        }
    }
}

fn cancel_point() {
    unsafe extern "C-unwind" {
        fn pthread_testcancel();
    }
    // SAFETY: it takes nothing; where it unwinds, frames up to the program's have no destructors
    // that matter.
    unsafe { pthread_testcancel() }
}

/// A mask as the kernel has it, which is how one of the C library begins. The outer `None`: the
/// pointer is bad, so that the kernel fails the call.
pub(crate) fn signals(mask: *const sigset_t) -> Option<Option<SignalSet>> {
    const { assert!(size_of::<sigset_t>() >= size_of::<u64>()) };
    if mask.is_null() {
        return Some(None);
    }
    let set = mask.cast::<u64>();
    // SAFETY: it can be read, and any bytes are a set.
    can_read(set, 1).then(|| Some(SignalSet(unsafe { set.read_unaligned() })))
}

/// `None`: for ever.
pub(crate) fn milliseconds(timeout: c_int) -> Option<Duration> {
    Some(Duration::from_millis(u64::try_from(timeout).ok()?))
}

/// The outer `None`: no time at all, and an error of the call.
pub(crate) fn nanoseconds(timeout: Option<&timespec>) -> Option<Option<Duration>> {
    let Some(timeout) = timeout else { return Some(None) };
    let nanoseconds = u32::try_from(timeout.tv_nsec).ok().filter(|part| *part < 1_000_000_000)?;
    Some(Some(Duration::new(u64::try_from(timeout.tv_sec).ok()?, nanoseconds)))
}

/// As [`nanoseconds`]; a part that is more than a second is allowed here.
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
    fn times_are_those_of_the_calls() {
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
    fn bits_beyond_the_count_are_nobodys_and_come_back() {
        let (mut read, mut except) = ([1 << 63, 0b1101], [0, 0b100]);
        let mut sets = FdSets { read: &mut read, write: &mut [], except: &mut except };
        let kept = clip(&mut sets, 66);
        let mut asked = Vec::new();
        for_each_asked(&sets, |fd| asked.push(fd));
        assert_eq!(asked, [63, 64]);
        give_back(&mut sets, kept);
        assert_eq!((read, except), ([1 << 63, 0b1101], [0, 0b100]));
    }
}

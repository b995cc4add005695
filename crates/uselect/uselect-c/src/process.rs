//! What the process has one of: its tracker, the word why it is that one, and how C gets errors.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use uselect::{Backend, Errno, Error, Tracker, TrackingMode};

use crate::layout::{AUTO, BPF, CALLS, MULTISHOT};

/// What a function of the library comes to.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// Who tracks this process's sockets.
struct Tracked {
    tracker: Tracker,
    /// As it was made: not by system calls.
    is_tracking: bool,
    /// A child of fork(2) is another process, and may begin anew.
    process: u32,
    /// Its parent's, in which instances of that may still be.
    _before: Option<&'static Tracked>,
}

/// Null, or what lives as long as the process: threads may be in a wait of it at any time. Stored
/// by [`begin`] alone, under `WHY`; the release there pairs with the acquire in [`current`].
static TRACKED: AtomicPtr<Tracked> = AtomicPtr::new(ptr::null_mut());
/// A bug of ours was found: nothing is believed of memory any more.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);
/// What came of the last `uselect_init`.
struct Why {
    /// Which called it; 0: none has.
    process: u32,
    text: String,
}

static WHY: Mutex<Why> = Mutex::new(Why { process: 0, text: String::new() });

fn current() -> Option<&'static Tracked> {
    // SAFETY: null, or a box that was leaked, and of which nobody has a mutable reference.
    unsafe { TRACKED.load(Ordering::Acquire).as_ref() }
}

/// The tracker, unless every call is to be the system call: there is none, or it tracks nothing.
pub(crate) fn tracker() -> Option<&'static Tracker> {
    let tracked = current().filter(|_| !IS_BROKEN.load(Ordering::Relaxed))?;
    (tracked.tracker.backend() != Backend::Calls).then_some(&tracked.tracker)
}

/// An error once a bug was found: for who has nothing else to ask.
pub(crate) fn sound() -> Result<()> {
    if IS_BROKEN.load(Ordering::Relaxed) { Err(Errno::NOTRECOVERABLE) } else { Ok(()) }
}

/// The tracker of this process or, after fork(2), of the one before, whether or not it tracks.
///
/// # Errors
/// ENOENT: uselect_init was not called.
pub(crate) fn made() -> Result<&'static Tracker> {
    current().map(|tracked| &tracked.tracker).ok_or(Errno::NOENT)
}

/// `USELECT_BACKEND_*`.
pub(crate) fn backend() -> u32 {
    match tracker().map_or(Backend::Calls, Tracker::backend) {
        Backend::Bpf(_) => BPF,
        Backend::Multishot => MULTISHOT,
        Backend::Calls => CALLS,
    }
}

/// Makes the process's tracker: `backend`, or with `AUTO` the first that there is.
pub(crate) fn begin(path: &Path, backend: u32, mode: TrackingMode) -> Result<()> {
    let mut why = WHY.lock().unwrap_or_else(PoisonError::into_inner);
    let (process, before) = (std::process::id(), current());
    if before.is_some_and(|tracked| tracked.process == process) {
        return Err(Errno::ALREADY);
    }
    *why = Why { process, text: String::new() };
    let tracker = make(path, backend, mode, &mut why.text)?;
    let is_tracking = tracker.backend() != Backend::Calls;
    let tracked = Tracked { tracker, is_tracking, process, _before: before };
    let tracked = Box::leak(Box::new(tracked));
    TRACKED.store(tracked, Ordering::Release);
    Ok(())
}

/// The backend, or the first that there is, with what stands in the way of those before it.
fn make(path: &Path, backend: u32, mode: TrackingMode, why: &mut String) -> Result<Tracker> {
    type Make<'a> = &'a dyn Fn() -> std::result::Result<Tracker, Error>;
    let tries: [(u32, &str, Make<'_>); 3] = [
        (BPF, "eBPF", &|| Tracker::register(path, mode)),
        (MULTISHOT, "io_uring", &Tracker::multishot),
        (CALLS, "system calls", &|| Ok(Tracker::calls())),
    ];
    let mut refused = Errno::INVAL;
    for (one, name, make) in tries {
        if backend != AUTO && backend != one {
            continue;
        }
        match make() {
            Ok(tracker) => {
                why.insert_str(0, name);
                return Ok(tracker);
            }
            Err(error) => {
                refused = errno(error);
                why.push_str(&format!("; no {name}: {}", error.at_path(path)));
            }
        }
    }
    // Nothing is in use, only reasons are there.
    why.drain(..2);
    Err(refused)
}

/// The number of what kept a process from being tracked: the kernel's as it is, and for a refusal of
/// the daemon's that of a call that refuses for a like reason.
pub(crate) fn errno(error: Error) -> Errno {
    match error {
        Error::NoDaemon(errno) | Error::NoRing(errno) | Error::Kernel(errno) => errno,
        Error::Refused => Errno::ACCESS,
        Error::Full => Errno::AGAIN,
        Error::AlreadyRegistered => Errno::ALREADY,
        Error::OtherNamespace => Errno::XDEV,
        Error::Daemon => Errno::IO,
        Error::NoReply => Errno::TIMEDOUT,
        Error::Protocol => Errno::PROTO,
    }
}

thread_local! {
    /// What [`why`] gave last.
    static WORDS: RefCell<CString> = RefCell::default();
}

/// Why nothing is tracked any more.
fn what_ended() -> Option<&'static str> {
    if IS_BROKEN.load(Ordering::Relaxed) {
        return Some("a bug of libuselect's");
    }
    let tracked = current().filter(|tracked| tracked.process == std::process::id())?;
    let is_over = tracked.is_tracking && tracked.tracker.backend() == Backend::Calls;
    is_over.then_some("uselectd has ended")
}

/// Why it is the tracker that it is, in words that stay until the calling thread asks again.
pub(crate) fn why() -> *const c_char {
    let why = WHY.lock().unwrap_or_else(PoisonError::into_inner);
    let text = match what_ended() {
        Some(what) => format!("system calls; {what}"),
        None if why.process == std::process::id() => why.text.clone(),
        None if why.process == 0 => String::from("system calls; uselect_init was not called"),
        None => String::from("system calls; this child of fork has not called uselect_init"),
    };
    drop(why);
    let keep = |words: &RefCell<CString>| {
        words.replace(CString::new(text).unwrap_or_default());
        words.borrow().as_ptr()
    };
    // A thread that is about to end has no words any more.
    WORDS.try_with(keep).unwrap_or(c"".as_ptr())
}

/// Does `call`, and tells C: what it gives, or -1 with errno. A panic must not unwind into C, and
/// nothing can be said of what it leaves behind: from then on every call is the system call.
pub(crate) fn guarded<T: From<i8>>(call: impl FnOnce() -> Result<T>) -> T {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        IS_BROKEN.store(true, Ordering::Relaxed);
        Err(Errno::NOTRECOVERABLE)
    });
    result.unwrap_or_else(|error| {
        // SAFETY: the C library gives the place of this thread's errno, which is always there.
        let place = unsafe { libc::__errno_location() };
        // SAFETY: as above; no other thread has it.
        unsafe { place.write(error.raw_os_error()) };
        T::from(-1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_stays_here_and_memory_is_not_believed_from_then_on() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!(guarded(|| Ok(5)), 5);
        assert_eq!(guarded::<isize>(|| Err(Errno::NOSPC)), -1);
        assert_eq!(errno(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(sound(), Ok(()), "a refusal breaks nothing");
        assert_eq!(guarded::<i32>(|| panic!("on purpose")), -1);
        assert_eq!(errno(), Some(Errno::NOTRECOVERABLE.raw_os_error()));
        assert!(tracker().is_none() && sound() == Err(Errno::NOTRECOVERABLE));
    }
}

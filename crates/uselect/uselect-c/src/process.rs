//! The state of the process: its tracker, the reason for its backend, and how C gets errors.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use uselect::{Backend, Errno, Error, Tracker, TrackingMode};

use crate::abi::{BACKEND_AUTO, BACKEND_BPF, BACKEND_CALLS, BACKEND_MULTISHOT};

/// The result of a function of the library.
pub(crate) type Result<T> = std::result::Result<T, Errno>;

/// The tracker of a process.
struct ProcessTracker {
    tracker: Tracker,
    /// Whether its backend tracked sockets when it was created.
    is_tracking: bool,
    /// The process that created it. A child of fork(2) may create another one.
    process: u32,
    /// The tracker of the parent, which instances may still use.
    _parents: Option<&'static ProcessTracker>,
}

/// Null, or a tracker that is never freed, because threads may use it at any time. Only [`init`]
/// stores it, while it holds the lock of `REASON`. The release of this store pairs with the acquire
/// in [`process_tracker`].
static TRACKER: AtomicPtr<ProcessTracker> = AtomicPtr::new(ptr::null_mut());
/// Whether a bug of the library was found. Then memory is not used any more.
static IS_BROKEN: AtomicBool = AtomicBool::new(false);
/// The reason that the last call of `uselect_init` recorded.
struct BackendReason {
    /// The process that made the call; 0: none.
    process: u32,
    text: String,
}

/// See [`backend_reason`].
static REASON: Mutex<BackendReason> = Mutex::new(BackendReason { process: 0, text: String::new() });

fn process_tracker() -> Option<&'static ProcessTracker> {
    // SAFETY: null, or a leaked box of which no mutable reference exists.
    unsafe { TRACKER.load(Ordering::Acquire).as_ref() }
}

/// Returns the tracker; `None` if there is none or it tracks nothing, so that each call is the
/// system call.
pub(crate) fn tracker() -> Option<&'static Tracker> {
    let tracker = process_tracker().filter(|_| !IS_BROKEN.load(Ordering::Relaxed))?;
    (tracker.tracker.backend() != Backend::Calls).then_some(&tracker.tracker)
}

/// Returns an error if a bug was found, for calls that have no system call to fall back to.
pub(crate) fn check_intact() -> Result<()> {
    if IS_BROKEN.load(Ordering::Relaxed) { Err(Errno::NOTRECOVERABLE) } else { Ok(()) }
}

/// Returns the tracker of this process, or of its parent after fork(2), whether or not it tracks.
///
/// # Errors
/// ENOENT if uselect_init was not called.
pub(crate) fn initialized_tracker() -> Result<&'static Tracker> {
    process_tracker().map(|tracker| &tracker.tracker).ok_or(Errno::NOENT)
}

/// Returns the `USELECT_BACKEND_*` in use.
pub(crate) fn backend() -> u32 {
    match tracker().map_or(Backend::Calls, Tracker::backend) {
        Backend::Bpf(_) => BACKEND_BPF,
        Backend::Multishot => BACKEND_MULTISHOT,
        Backend::Calls => BACKEND_CALLS,
    }
}

/// Creates the tracker of the process, with `backend`, or with the first available one for
/// `BACKEND_AUTO`.
pub(crate) fn init(path: &Path, backend: u32, mode: TrackingMode) -> Result<()> {
    let mut backend_reason = REASON.lock().unwrap_or_else(PoisonError::into_inner);
    let (process, parents) = (std::process::id(), process_tracker());
    if parents.is_some_and(|tracker| tracker.process == process) {
        return Err(Errno::ALREADY);
    }
    *backend_reason = BackendReason { process, text: String::new() };
    let tracker = make(path, backend, mode, &mut backend_reason.text)?;
    let is_tracking = tracker.backend() != Backend::Calls;
    let tracker = ProcessTracker { tracker, is_tracking, process, _parents: parents };
    let tracker = Box::leak(Box::new(tracker));
    TRACKER.store(tracker, Ordering::Release);
    Ok(())
}

/// Creates the tracker, and records why the backends that were tried before are not available.
fn make(
    path: &Path,
    backend: u32,
    mode: TrackingMode,
    backend_reason: &mut String,
) -> Result<Tracker> {
    type Make<'a> = &'a dyn Fn() -> std::result::Result<Tracker, Error>;
    let backends: [(u32, &str, Make<'_>); 3] = [
        (BACKEND_BPF, "eBPF", &|| Tracker::register(path, mode)),
        (BACKEND_MULTISHOT, "io_uring", &Tracker::multishot),
        (BACKEND_CALLS, "system calls", &|| Ok(Tracker::calls())),
    ];
    let mut last_error = Errno::INVAL;
    for (candidate, name, make) in backends {
        if backend != BACKEND_AUTO && backend != candidate {
            continue;
        }
        match make() {
            Ok(tracker) => {
                backend_reason.insert_str(0, name);
                return Ok(tracker);
            }
            Err(error) => {
                last_error = errno(error);
                backend_reason.push_str(&format!("; no {name}: {}", error.at_path(path)));
            }
        }
    }
    // Remove the leading separator.
    backend_reason.drain(..2);
    Err(last_error)
}

/// Returns the errno of a failed registration. For an error of a system call this is its errno. For
/// a refusal of the daemon it is the errno of a similar system call.
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
    /// The string that [`backend_reason`] returned last.
    static RETURNED_REASON: RefCell<CString> = RefCell::default();
}

/// Returns why nothing is tracked any more; `None` if tracking has not ended.
fn tracking_ended() -> Option<&'static str> {
    if IS_BROKEN.load(Ordering::Relaxed) {
        return Some("libuselect found a bug of its own");
    }
    let tracker = process_tracker().filter(|tracker| tracker.process == std::process::id())?;
    let is_over = tracker.is_tracking && tracker.tracker.backend() == Backend::Calls;
    is_over.then_some("uselectd has ended")
}

/// Returns why the backend is in use, as a string that is valid until the calling thread calls this
/// function again.
pub(crate) fn backend_reason() -> *const c_char {
    let backend_reason = REASON.lock().unwrap_or_else(PoisonError::into_inner);
    let text = match tracking_ended() {
        Some(what) => format!("system calls; {what}"),
        None if backend_reason.process == std::process::id() => backend_reason.text.clone(),
        None if backend_reason.process == 0 => {
            String::from("system calls; uselect_init was not called")
        }
        None => String::from("system calls; this child of fork has not called uselect_init"),
    };
    drop(backend_reason);
    let store = |string: &RefCell<CString>| {
        string.replace(CString::new(text).unwrap_or_default());
        string.borrow().as_ptr()
    };
    // A thread that is ending may have no string any more.
    RETURNED_REASON.try_with(store).unwrap_or(c"".as_ptr())
}

/// Returns the result of `call` to C: its value, or -1 with errno. A panic must not unwind into C.
/// It may have left the state inconsistent, so memory is not used after it: [`tracker`] returns
/// `None`, and [`check_intact`] an error.
pub(crate) fn catch_to_errno<T: From<i8>>(call: impl FnOnce() -> Result<T>) -> T {
    let result = catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
        IS_BROKEN.store(true, Ordering::Relaxed);
        Err(Errno::NOTRECOVERABLE)
    });
    result.unwrap_or_else(|error| {
        // SAFETY: the C library returns the address of this thread's errno, which is always valid.
        let location = unsafe { libc::__errno_location() };
        // SAFETY: as above; no other thread uses it.
        unsafe { location.write(error.raw_os_error()) };
        T::from(-1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_and_memory_is_not_used_afterwards() {
        let errno = || std::io::Error::last_os_error().raw_os_error();
        assert_eq!(catch_to_errno(|| Ok(5)), 5);
        assert_eq!(catch_to_errno::<isize>(|| Err(Errno::NOSPC)), -1);
        assert_eq!(errno(), Some(Errno::NOSPC.raw_os_error()));
        assert_eq!(check_intact(), Ok(()), "an error is no bug");
        assert_eq!(catch_to_errno::<i32>(|| panic!("on purpose")), -1);
        assert_eq!(errno(), Some(Errno::NOTRECOVERABLE.raw_os_error()));
        assert!(tracker().is_none() && check_intact() == Err(Errno::NOTRECOVERABLE));
    }
}

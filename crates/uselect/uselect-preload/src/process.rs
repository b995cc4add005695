//! The registration of the process, and its reset after fork(2).
//!
//! ```text
//!  unregistered ── first TCP socket ──> registering ──> registered   (until the process ends)
//!     ^                                                     │
//!     └──────────────── fork(2): the child ─────────────────┘
//! ```
//!
//! The kernel wipes a page in each child of fork(2) (MADV_WIPEONFORK). So a process whose page is
//! wiped is a new child, and starts unregistered. It leaks what its parent created, because
//! another thread of the parent may have been changing it. A child of vfork(2) shares the memory of
//! its parent but has its own descriptors. So code that removes the record of a descriptor first
//! compares the process ID.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use uselect::{Backend, Error, Tracker, TrackingMode};

use crate::config::{self, RequestedBackend};
use crate::fd_kind::{self, FdKind};
use crate::{instance, message};

/// The registration of a process.
pub(crate) struct RegisteredProcess {
    pub(crate) tracker: Tracker,
    /// The backends that would be better but are not available, and why.
    pub(crate) missing: Vec<(Backend, Error)>,
}

/// The page that the kernel wipes in children; null before main. Its first byte is a value of
/// `stage`.
static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// The registration; null before it, and never freed.
static REGISTERED: AtomicPtr<RegisteredProcess> = AtomicPtr::new(null_mut());
/// Shared with children of fork(2) if a backend was named. The first byte is 1 once a process
/// reported that the backend is not available. If this is null, each process reports it.
static MISSING_REPORTED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// The process ID.
static PROCESS_ID: AtomicI32 = AtomicI32::new(0);
/// The number of waits of the program.
static WAITS: AtomicU64 = AtomicU64::new(0);
/// The number of waits that were passed to the C library and could sleep.
static BLOCKING_CALLS: AtomicU64 = AtomicU64::new(0);
/// Whether the end of the daemon was reported.
static LOSS_REPORTED: AtomicBool = AtomicBool::new(false);

/// The stage of a process, as stored in the page. The kernel makes it 0 in a new child.
mod stage {
    pub(super) const WIPED: u8 = 0;
    pub(super) const RESETTING: u8 = 1;
    pub(super) const UNREGISTERED: u8 = 2;
    pub(super) const REGISTERING: u8 = 3;
    pub(super) const REGISTERED: u8 = 4;
}

/// Allocates the pages. Call this before main.
pub(crate) fn init() {
    let Some(page) = map(libc::MAP_PRIVATE) else { return };
    // SAFETY: the page belongs to this module; its bytes change only in children.
    if unsafe { libc::madvise(page.cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return;
    }
    store_process_id();
    // SAFETY: it was mapped above, is never unmapped, and any byte is an AtomicU8.
    unsafe { &*page }.store(stage::UNREGISTERED, Ordering::Relaxed);
    PAGE.store(page, Ordering::Release);
    if matches!(config::get().backend, RequestedBackend::Bpf | RequestedBackend::Multishot) {
        MISSING_REPORTED.store(map(libc::MAP_SHARED).unwrap_or(null_mut()), Ordering::Release);
    }
}

const PAGE_BYTES: usize = 4096;

/// Maps a page of zeros, which is never unmapped.
fn map(kind: c_int) -> Option<*mut AtomicU8> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address, so no existing mapping changes.
    let page = unsafe { libc::mmap(null_mut(), PAGE_BYTES, access, flags, -1, 0) };
    (page != libc::MAP_FAILED).then_some(page.cast())
}

fn page() -> Option<&'static AtomicU8> {
    // SAFETY: null, or the page of `init`, which is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// Returns the registration of this process. In a new child of fork(2) there is none, and its state
/// is reset.
#[inline]
pub(crate) fn registered() -> Option<&'static RegisteredProcess> {
    let page = page()?;
    match page.load(Ordering::Acquire) {
        // SAFETY: it was stored before the stage, and is never freed.
        stage::REGISTERED => unsafe { REGISTERED.load(Ordering::Acquire).as_ref() },
        stage::WIPED => {
            reset_after_fork(page);
            None
        }
        _ => None,
    }
}

/// Returns the registration, and registers if there is none. Returns `None` while another thread
/// registers.
pub(crate) fn register() -> Option<&'static RegisteredProcess> {
    if let Some(process) = registered() {
        return Some(process);
    }
    let page = page()?;
    let (unregistered, registering) = (stage::UNREGISTERED, stage::REGISTERING);
    page.compare_exchange(unregistered, registering, Ordering::Acquire, Ordering::Relaxed).ok()?;
    let process: &'static RegisteredProcess = Box::leak(Box::new(RegisteredProcess::new()));
    watch_forks();
    REGISTERED.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    page.store(stage::REGISTERED, Ordering::Release);
    Some(process)
}

/// Resets the state in a new child of fork(2), in the first thread that calls the library.
#[cold]
fn reset_after_fork(page: &AtomicU8) {
    let (wiped, resetting) = (stage::WIPED, stage::RESETTING);
    if page.compare_exchange(wiped, resetting, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    REGISTERED.store(null_mut(), Ordering::Relaxed);
    WAITS.store(0, Ordering::Relaxed);
    BLOCKING_CALLS.store(0, Ordering::Relaxed);
    LOSS_REPORTED.store(false, Ordering::Relaxed);
    store_process_id();
    instance::inherit();
    for fd in fd_kind::known(0, usize::MAX) {
        let is_epoll = matches!(fd_kind::get(fd), FdKind::Epoll | FdKind::InheritedEpoll);
        fd_kind::store(fd, if is_epoll { FdKind::InheritedEpoll } else { FdKind::Unknown });
    }
    page.store(stage::UNREGISTERED, Ordering::Release);
}

fn store_process_id() {
    // SAFETY: getpid(2) takes no arguments and cannot fail.
    PROCESS_ID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

impl RegisteredProcess {
    fn new() -> Self {
        let (config, mode) = (config::get(), TrackingMode::Exact);
        let named = match config.backend {
            RequestedBackend::Auto => {
                let (tracker, missing) = Tracker::best(config.socket(), mode);
                return Self { tracker, missing };
            }
            RequestedBackend::Bpf => {
                Tracker::register(config.socket(), mode).map_err(|e| (Backend::Bpf(mode), e))
            }
            RequestedBackend::Multishot => {
                Tracker::multishot().map_err(|e| (Backend::Multishot, e))
            }
            RequestedBackend::Calls => Ok(Tracker::calls()),
        };
        match named {
            Ok(tracker) => Self { tracker, missing: Vec::new() },
            Err(missing) => {
                if claim_missing_report() {
                    message::report_missing_backend(&missing);
                }
                Self { tracker: Tracker::calls(), missing: vec![missing] }
            }
        }
    }

    /// Returns whether the daemon of its registration has ended.
    pub(crate) fn has_lost_daemon(&self) -> bool {
        let lacks_bpf = self.missing.iter().any(|(backend, _)| matches!(backend, Backend::Bpf(_)));
        let wants_bpf =
            matches!(config::get().backend, RequestedBackend::Auto | RequestedBackend::Bpf);
        wants_bpf && !lacks_bpf && !self.can_track()
    }

    /// Returns whether sockets can be tracked.
    pub(crate) fn can_track(&self) -> bool {
        self.tracker.backend() != Backend::Calls
    }
}

/// Returns whether this process must report that the backend is missing. Only the first caller
/// does, among the processes that share the flag of `MISSING_REPORTED` by fork(2).
fn claim_missing_report() -> bool {
    // SAFETY: null, or a page that is never unmapped.
    let reported = unsafe { MISSING_REPORTED.load(Ordering::Acquire).as_ref() };
    reported.is_none_or(|reported| reported.swap(1, Ordering::Relaxed) == 0)
}

/// Returns whether the caller is this process, and not a child of vfork(2), which shares its memory
/// but has its own descriptors. Check this before the record of a descriptor is removed.
pub(crate) fn check_own_process() -> bool {
    // A child of fork(2) must reset its state first.
    registered();
    // SAFETY: getpid(2) takes no arguments and cannot fail.
    PROCESS_ID.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// Hands over listeners in fork(2): a child may accept from them, and the kernel does not report to
/// this process that the queue became empty.
fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn forked() {
        let Some(process) = registered() else { return };
        for fd in fd_kind::known(0, usize::MAX) {
            if fd_kind::get(fd) == FdKind::Listener {
                instance::hand_over_fd(fd);
                fd_kind::store(fd, FdKind::Untracked);
                process.tracker.untrack(fd);
            }
        }
    }
    if !IS_WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function takes no arguments, and this library is never unloaded.
        unsafe { libc::pthread_atfork(None, Some(forked), None) };
    }
}

/// Counts a wait of the program, and the system call if the wait is passed to the C library and may
/// sleep. If statistics are requested, the first wait after the end of the daemon reports that.
pub(crate) fn count_wait(
    timeout: Option<Duration>,
    wait: impl FnOnce() -> Option<c_int>,
) -> Option<c_int> {
    // First, because a child of fork(2) has its own counters.
    let process = registered();
    WAITS.fetch_add(1, Ordering::Relaxed);
    if config::get().reports_stats
        && process.is_some_and(RegisteredProcess::has_lost_daemon)
        && !LOSS_REPORTED.swap(true, Ordering::Relaxed)
    {
        message::report_daemon_end();
    }
    let result = wait();
    if result.is_none() && timeout != Some(Duration::ZERO) {
        BLOCKING_CALLS.fetch_add(1, Ordering::Relaxed);
    }
    result
}

/// Returns the number of waits of the program.
pub(crate) fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

/// Returns the number of waits that were passed to the C library and could sleep.
pub(crate) fn blocking_calls() -> u64 {
    BLOCKING_CALLS.load(Ordering::Relaxed)
}

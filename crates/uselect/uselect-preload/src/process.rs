//! The process as it is registered, and what fork(2) makes of that.
//!
//! ```text
//! nobody ── first TCP socket ──> making ──> made      (until the process ends)
//!    ^                                        │
//!    └──────── fork(2): the child ────────────┘
//! ```
//!
//! A child finds a page wiped that the kernel wipes for it (MADV_WIPEONFORK), and begins as nobody,
//! with what its parent has made left where it is: another thread of the parent may have been about
//! to change it. A child of vfork(2) has the parent's memory and descriptors of its own; so who
//! would change what is known of a descriptor compares the process's number.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use uselect::{Backend, Error, Tracker, TrackingMode};

use crate::config::{self, Wanted};
use crate::kinds::{self, Kind};
use crate::{instance, say};

pub(crate) struct Process {
    pub(crate) tracker: Tracker,
    /// Which backends could not be had that would be better, and why.
    pub(crate) why: Vec<(Backend, Error)>,
}

/// The page; its first byte is a `Stage`. Null before main.
static PAGE: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
static MADE: AtomicPtr<Process> = AtomicPtr::new(null_mut());
/// Shared with children of fork(2), where a backend was named: that somebody could not have it was
/// said, if its first byte is 1. Null: there is none, and each says so.
static MISSED: AtomicPtr<AtomicU8> = AtomicPtr::new(null_mut());
/// The process's number.
static ID: AtomicI32 = AtomicI32::new(0);
/// Waits that the program has called for.
static WAITS: AtomicU64 = AtomicU64::new(0);
/// Of these, how many were left to the C library and could sleep.
static CALLS: AtomicU64 = AtomicU64::new(0);
/// That the daemon has ended was said.
static WAS_TOLD: AtomicBool = AtomicBool::new(false);

/// Stages of a process, as they are in the page. 0: a child that has not looked yet.
mod stage {
    pub(super) const WIPED: u8 = 0;
    pub(super) const CLEANING: u8 = 1;
    pub(super) const NOBODY: u8 = 2;
    pub(super) const MAKING: u8 = 3;
    pub(super) const MADE: u8 = 4;
}

/// To be called before main.
pub(crate) fn begin() {
    let Some(page) = map(libc::MAP_PRIVATE) else { return };
    // SAFETY: the page is our own; its bytes change in children alone.
    if unsafe { libc::madvise(page.cast(), PAGE_BYTES, libc::MADV_WIPEONFORK) } != 0 {
        return;
    }
    store_id();
    // SAFETY: it was mapped just now, is never unmapped, and any byte is an AtomicU8.
    unsafe { &*page }.store(stage::NOBODY, Ordering::Relaxed);
    PAGE.store(page, Ordering::Release);
    if matches!(config::get().wanted, Wanted::Bpf | Wanted::Multishot) {
        MISSED.store(map(libc::MAP_SHARED).unwrap_or(null_mut()), Ordering::Release);
    }
}

const PAGE_BYTES: usize = 4096;

/// A page of zeros, which is never unmapped.
fn map(kind: c_int) -> Option<*mut AtomicU8> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, kind | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel picks the address, so nothing that is mapped is touched.
    let page = unsafe { libc::mmap(null_mut(), PAGE_BYTES, access, flags, -1, 0) };
    (page != libc::MAP_FAILED).then_some(page.cast())
}

fn page() -> Option<&'static AtomicU8> {
    // SAFETY: null, or the page of begin(), which is never unmapped.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// The process as it is registered, if it is; in a child of fork(2) it is not.
#[inline]
pub(crate) fn made() -> Option<&'static Process> {
    let page = page()?;
    match page.load(Ordering::Acquire) {
        // SAFETY: it was stored, and is never freed.
        stage::MADE => unsafe { MADE.load(Ordering::Acquire).as_ref() },
        stage::WIPED => {
            clean(page);
            None
        }
        _ => None,
    }
}

/// The same, registered now if it was not. `None` while another thread does that.
pub(crate) fn make() -> Option<&'static Process> {
    if let Some(process) = made() {
        return Some(process);
    }
    let page = page()?;
    let (nobody, making) = (stage::NOBODY, stage::MAKING);
    page.compare_exchange(nobody, making, Ordering::Acquire, Ordering::Relaxed).ok()?;
    let process: &'static Process = Box::leak(Box::new(Process::new()));
    watch_forks();
    MADE.store(std::ptr::from_ref(process).cast_mut(), Ordering::Release);
    page.store(stage::MADE, Ordering::Release);
    Some(process)
}

/// What a child of fork(2) does first, in whichever of its threads.
#[cold]
fn clean(page: &AtomicU8) {
    let (wiped, cleaning) = (stage::WIPED, stage::CLEANING);
    if page.compare_exchange(wiped, cleaning, Ordering::Acquire, Ordering::Relaxed).is_err() {
        return;
    }
    MADE.store(null_mut(), Ordering::Relaxed);
    WAITS.store(0, Ordering::Relaxed);
    CALLS.store(0, Ordering::Relaxed);
    WAS_TOLD.store(false, Ordering::Relaxed);
    store_id();
    instance::inherit();
    for fd in kinds::known(0, usize::MAX) {
        let is_epoll = matches!(kinds::kind(fd), Kind::Epoll | Kind::Inherited);
        kinds::put(fd, if is_epoll { Kind::Inherited } else { Kind::Unknown });
    }
    page.store(stage::NOBODY, Ordering::Release);
}

fn store_id() {
    // SAFETY: it takes nothing and cannot fail.
    ID.store(unsafe { libc::getpid() }, Ordering::Relaxed);
}

impl Process {
    fn new() -> Self {
        let (config, mode) = (config::get(), TrackingMode::Exact);
        let named = match config.wanted {
            Wanted::Auto => {
                let (tracker, why) = Tracker::best(config.socket(), mode);
                return Self { tracker, why };
            }
            Wanted::Bpf => {
                Tracker::register(config.socket(), mode).map_err(|e| (Backend::Bpf(mode), e))
            }
            Wanted::Multishot => Tracker::multishot().map_err(|e| (Backend::Multishot, e)),
            Wanted::Calls => Ok(Tracker::calls()),
        };
        let mut why = Vec::new();
        let tracker = named.unwrap_or_else(|missing| {
            if is_first_to_miss() {
                say::tell_missing(&missing);
            }
            why.push(missing);
            Tracker::calls()
        });
        Self { tracker, why }
    }

    /// It was registered with a daemon that has ended.
    pub(crate) fn is_lost(&self) -> bool {
        let has_missed = self.why.iter().any(|(backend, _)| matches!(backend, Backend::Bpf(_)));
        let wants = matches!(config::get().wanted, Wanted::Auto | Wanted::Bpf);
        wants && !has_missed && !self.tracks()
    }

    /// Whether anything can be tracked.
    pub(crate) fn tracks(&self) -> bool {
        self.tracker.backend() != Backend::Calls
    }
}

/// Of this process and those that it has been forked with.
fn is_first_to_miss() -> bool {
    // SAFETY: null, or a page that is never unmapped.
    let missed = unsafe { MISSED.load(Ordering::Acquire).as_ref() };
    missed.is_none_or(|missed| missed.swap(1, Ordering::Relaxed) == 0)
}

/// Whether it is this process that calls, and not a child of vfork(2), which has its memory and
/// descriptors of its own. To be asked before what is known of a descriptor is taken back.
pub(crate) fn is_caller() -> bool {
    // A child of fork(2) looks first.
    made();
    // SAFETY: it takes nothing and cannot fail.
    ID.load(Ordering::Relaxed) == unsafe { libc::getpid() }
}

/// A listener that a child may accept from has a queue that gets empty without a word to us.
fn watch_forks() {
    static IS_WATCHED: AtomicBool = AtomicBool::new(false);
    unsafe extern "C" fn forked() {
        let Some(process) = made() else { return };
        for fd in kinds::known(0, usize::MAX) {
            if kinds::kind(fd) == Kind::Listener {
                instance::leave_to_kernel(fd);
                kinds::put(fd, Kind::Left);
                process.tracker.untrack(fd);
            }
        }
    }
    if !IS_WATCHED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function takes nothing, and this library is never unloaded.
        unsafe { libc::pthread_atfork(None, Some(forked), None) };
    }
}

/// Counts a wait of the program's, and, if it is left to the C library and may sleep there, the
/// call. Who asks for statistics is told once that the daemon has ended.
pub(crate) fn counted(
    timeout: Option<Duration>,
    wait: impl FnOnce() -> Option<c_int>,
) -> Option<c_int> {
    // First: a child of fork(2) has its own count.
    let process = made();
    WAITS.fetch_add(1, Ordering::Relaxed);
    if config::get().says_stats
        && process.is_some_and(Process::is_lost)
        && !WAS_TOLD.swap(true, Ordering::Relaxed)
    {
        say::tell_loss();
    }
    let answered = wait();
    if answered.is_none() && timeout != Some(Duration::ZERO) {
        CALLS.fetch_add(1, Ordering::Relaxed);
    }
    answered
}

pub(crate) fn waits() -> u64 {
    WAITS.load(Ordering::Relaxed)
}

pub(crate) fn calls() -> u64 {
    CALLS.load(Ordering::Relaxed)
}

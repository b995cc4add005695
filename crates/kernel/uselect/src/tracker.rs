//! `Tracker`: a registered process. It numbers its sockets, and knows which thread opens which.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::net::AddressFamily;

use crate::attach::attach;
use crate::error::Error;
use crate::kernel::{self, Mapping};
use crate::layout::{PROBES, SOCKETS, Slot, THREADS};
use crate::limits::{OTHERS_UNSEEN_MAX, PASSES_MAX, WAITS_UNSEEN_MAX};
use crate::pages::Pages;
use crate::sleep::Sleeper;
use crate::socket::Socket;

/// A process whose sockets are tracked: those that it opens and accepts here from now on.
///
/// A child of fork(2) has the parent's sockets, but not its registration: in the child nothing is
/// tracked and every wait is the system call.
#[derive(Clone)]
pub struct Tracker(Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) pages: Pages,
    pub(crate) sleeper: Mutex<Sleeper>,
    /// Waits answered from memory since descriptors that are not tracked were looked at, and when
    /// that was, in milliseconds behind `begin`.
    passes: AtomicU32,
    looked_ms: AtomicU64,
    begin: Instant,
    /// Indices that no socket has. The one that was given back last is taken last, so that what
    /// the kernel still does about the old socket is over by then; the generation says so too.
    free: Mutex<VecDeque<u32>>,
    /// 1 in the process that registered, 0 in its children.
    is_ours: Mapping<AtomicU8>,
    /// Readable once the daemon has ended, and memory with it.
    registration: OwnedFd,
    is_lost: AtomicBool,
    /// Waits so far, to look at that now and then.
    waits: AtomicU32,
}

impl Tracker {
    /// Registers this process with the daemon that listens at `path` ([`crate::SOCKET`] unless the
    /// operator says otherwise).
    ///
    /// # Errors
    /// Those of [`Error`]; the process then waits by its system calls as before.
    pub fn register(path: &Path) -> Result<Self, Error> {
        let is_ours = Mapping::wiped_on_fork()?;
        let (pages, registration) = attach(path)?;
        is_ours.store(1, Ordering::Relaxed);
        Ok(Self(Arc::new(Inner {
            pages,
            sleeper: Mutex::new(Sleeper::default()),
            passes: AtomicU32::new(0),
            looked_ms: AtomicU64::new(0),
            begin: Instant::now(),
            free: Mutex::new((1..SOCKETS as u32).collect()),
            is_ours,
            registration,
            is_lost: AtomicBool::new(false),
            waits: AtomicU32::new(0),
        })))
    }

    /// Opens a TCP socket, closed on exec and tracked if possible.
    ///
    /// # Errors
    /// Those of socket(2).
    pub fn socket(&self, is_ipv6: bool, is_blocking: bool) -> Result<Socket, Error> {
        let family = if is_ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
        let (fd, index) = self.0.open(|| kernel::tcp_socket(family, is_blocking))?;
        Ok(Socket::new(self.clone(), fd, index))
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// Whether memory is this process's, and kept up to date as far as is known.
    pub(crate) fn is_live(&self) -> bool {
        self.is_ours() && !self.is_lost.load(Ordering::Relaxed)
    }

    fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed) == 1
    }

    /// As [`Inner::is_live`], for who begins a wait: looks at the daemon each [`WAITS_UNSEEN_MAX`]
    /// times, for a process that never sleeps.
    pub(crate) fn begins_live(&self) -> bool {
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits.is_multiple_of(WAITS_UNSEEN_MAX) && self.is_live() {
            let found = kernel::is_readable(self.registration.as_fd());
            self.is_lost.fetch_or(found, Ordering::Relaxed);
        }
        self.is_live()
    }

    /// What a sleeper waits for besides.
    pub(crate) fn registration(&self) -> BorrowedFd<'_> {
        self.registration.as_fd()
    }

    /// The daemon has ended: nothing tells of sockets any more. Never taken back.
    pub(crate) fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Whether a wait may be answered without a look at descriptors that are not tracked: not too
    /// often in a row, and not for too long.
    pub(crate) fn may_pass(&self) -> bool {
        let unseen = self.now_ms().saturating_sub(self.looked_ms.load(Ordering::Relaxed));
        let passes = self.passes.fetch_add(1, Ordering::Relaxed);
        passes < PASSES_MAX && u128::from(unseen) < OTHERS_UNSEEN_MAX.as_millis()
    }

    /// They are looked at now.
    pub(crate) fn end_passes(&self) {
        self.passes.store(0, Ordering::Relaxed);
        self.looked_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    fn now_ms(&self) -> u64 {
        self.begin.elapsed().as_millis() as u64
    }

    /// Makes a call that gives a new socket, and gives it with its index, 0 if it is not tracked.
    pub(crate) fn open<T: Opened>(
        &self,
        call: impl FnOnce() -> kernel::Result<T>,
    ) -> Result<(T, u32), Error> {
        let armed = if self.is_live() { self.arm() } else { None };
        let opened = call();
        let Some((slot, index)) = armed else { return Ok((opened?, 0)) };
        // The programs ran in this thread's call: what they wrote is in the past, as a signal
        // handler's writes would be.
        compiler_fence(Ordering::SeqCst);
        let is_taken = slot.taken.load(Ordering::Relaxed) == index;
        let generation = slot.generation.load(Ordering::Relaxed);
        slot.armed.store(0, Ordering::Relaxed);
        slot.taken.store(0, Ordering::Relaxed);
        slot.thread.store(0, Ordering::Release);
        match opened {
            Ok(opened) if is_taken && self.may_publish(&opened, index, generation) => {
                self.pages.publish(opened.number(), index as usize);
                Ok((opened, index))
            }
            opened => {
                self.give_back(index);
                Ok((opened?, 0))
            }
        }
    }

    fn may_publish(&self, opened: &impl Opened, index: u32, generation: u32) -> bool {
        opened.number() < SOCKETS && self.pages.generation(index as usize) == generation
    }

    /// An index for this thread's next socket; `None` when there are no more, or too many threads.
    fn arm(&self) -> Option<(&Slot, u32)> {
        let thread = kernel::thread();
        let slot = (0..PROBES).find_map(|step| {
            let slot = &self.pages.own.slot[(thread as usize + step) % THREADS];
            let claimed =
                slot.thread.compare_exchange(0, thread, Ordering::Acquire, Ordering::Relaxed);
            claimed.is_ok().then_some(slot)
        })?;
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let Some(index) = free else {
            slot.thread.store(0, Ordering::Release);
            return None;
        };
        slot.taken.store(0, Ordering::Relaxed);
        slot.armed.store(index, Ordering::Relaxed);
        // The programs run in this thread, within the call that follows.
        compiler_fence(Ordering::SeqCst);
        Some((slot, index))
    }

    /// To be called right before the descriptor is closed.
    pub(crate) fn forget(&self, fd: usize, index: u32) {
        if self.is_ours() {
            self.pages.withdraw(fd, index as usize);
            self.give_back(index);
        }
    }

    fn give_back(&self, index: u32) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).push_back(index);
    }
}

/// What a call that opens a socket gives.
pub(crate) trait Opened {
    fn number(&self) -> usize;
}

impl Opened for OwnedFd {
    fn number(&self) -> usize {
        usize::try_from(self.as_fd().as_raw_fd()).expect("descriptors are not negative")
    }
}

impl<T> Opened for (OwnedFd, T) {
    fn number(&self) -> usize {
        self.0.number()
    }
}

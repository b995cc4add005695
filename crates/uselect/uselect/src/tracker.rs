//! `Tracker`: a process whose sockets are tracked, and how waits are answered there.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::error::Error;
use crate::kernel;
use crate::kernel_check::KernelCheckInterval;
use crate::layout::SOCKETS;
use crate::multishot::Multishot;
use crate::poll_cache::PollCache;
use crate::region::ProcessRegion;
use crate::registration::TrackingMode;
use crate::spin::Spin;
use crate::stats::{Stats, WaitCounters};
use crate::view::MemoryView;
use crate::yield_before_sleep::YieldBeforeSleep;

/// A process whose sockets are tracked: those that it opens, accepts or adopts here from now on.
///
/// A child of fork(2) has the parent's sockets, but not its registration: in the child nothing is
/// tracked and every wait is the system call.
#[derive(Clone)]
pub struct Tracker(Arc<TrackerShared>);

/// What answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// Memory that programs in the kernel keep up to date.
    Bpf(TrackingMode),
    /// An io_uring instance that says of which sockets the kernel need not be asked.
    Multishot,
    /// The system calls.
    Calls,
}

pub(crate) struct TrackerShared {
    memory: TrackerMemory,
    pub(crate) kernel_check: KernelCheckInterval,
    pub(crate) spin: Spin,
    /// Of those who wait by upoll and uselect.
    pub(crate) yielding: YieldBeforeSleep,
    pub(crate) counters: WaitCounters,
    /// Of the last upoll that was large; one that finds it taken by another thread goes without.
    pub(crate) poll_cache: Mutex<PollCache>,
}

enum TrackerMemory {
    Bpf(Box<ProcessRegion>),
    Multishot(Box<Multishot>),
    None,
}

/// What is known of a socket without a system call, as of its last event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketState {
    /// What poll(2) would say, including bits that have to be asked for. POLLPRI and POLLERR: the
    /// kernel has to be asked. POLLOUT that is missing may have come back meanwhile.
    pub events: u32,
    /// Events so far, modulo 2^16: what would have woken a process that waits by edges.
    pub edges: u16,
    /// Bytes that can be received, with one more behind an end (as SIOCINQ has it before it takes
    /// that off); of a listener, connections that wait.
    pub readable: u32,
    /// Bytes of room to send.
    pub send_space: u32,
    /// The congestion window, in segments.
    pub cwnd: u32,
    /// The smoothed round-trip time.
    pub rtt_us: u32,
}

impl Tracker {
    /// Registers this process with the daemon that listens at `path` ([`crate::SOCKET`] unless the
    /// operator says otherwise).
    ///
    /// # Errors
    /// Those of [`Error`]; the process then waits by its system calls as before.
    pub fn register(path: &Path, mode: TrackingMode) -> Result<Self, Error> {
        Ok(Self::with_memory(TrackerMemory::Bpf(Box::new(ProcessRegion::register(path, mode)?))))
    }

    /// Tracks by an io_uring instance of the process's own (multishot poll), for which no
    /// privilege is needed. Sockets that are idle cost a wait nothing then. Those of which anything
    /// was heard since poll(2) last found nothing there are asked of poll(2), so no wait is told of
    /// one without a call; and none is told of one that poll(2) does not find.
    ///
    /// Room for 32,768 events is taken from the kernel, 0.5 MB. One thread at a time waits by the
    /// ring; another one that waits too does it in the system call. [`crate::Watcher`] is an epoll
    /// instance here. A thread that has waited is woken in other calls too, to take note of an
    /// event: those that Linux does not take up again after a signal, as epoll_wait(2) and receives
    /// with a timeout, then end with EINTR.
    ///
    /// A child of fork(2) has the ring open; where the child outlives the parent without a call of
    /// execve(2), the parent's end does not end its armed connections.
    ///
    /// # Errors
    /// [`Error::NoRing`], those of mmap(2), EMFILE.
    pub fn multishot() -> Result<Self, Error> {
        Ok(Self::with_memory(TrackerMemory::Multishot(Box::new(Multishot::new()?))))
    }

    /// The best there is: [`Tracker::register`], else [`Tracker::multishot`], else
    /// [`Tracker::calls`]; and why not those before it, in that order.
    pub fn best(path: &Path, mode: TrackingMode) -> (Self, Vec<(Backend, Error)>) {
        let mut missing = Vec::new();
        match Self::register(path, mode) {
            Ok(tracker) => return (tracker, missing),
            Err(error) => missing.push((Backend::Bpf(mode), error)),
        }
        match Self::multishot() {
            Ok(tracker) => return (tracker, missing),
            Err(error) => missing.push((Backend::Multishot, error)),
        }
        (Self::calls(), missing)
    }

    /// One that tracks nothing: every wait is the system call.
    pub fn calls() -> Self {
        Self::with_memory(TrackerMemory::None)
    }

    #[cfg(test)]
    pub(crate) fn with_multishot(filter: Multishot) -> Self {
        Self::with_memory(TrackerMemory::Multishot(Box::new(filter)))
    }

    fn with_memory(memory: TrackerMemory) -> Self {
        Self(Arc::new(TrackerShared {
            memory,
            kernel_check: KernelCheckInterval::new(),
            spin: Spin::default(),
            yielding: YieldBeforeSleep::default(),
            counters: WaitCounters::default(),
            poll_cache: Mutex::default(),
        }))
    }

    /// What answers; [`Backend::Calls`] too in a child of fork(2), and once the daemon has ended.
    pub fn backend(&self) -> Backend {
        match &self.0.memory {
            TrackerMemory::Bpf(region) if region.is_live() => Backend::Bpf(region.mode),
            TrackerMemory::Multishot(filter) if filter.is_this_process() => Backend::Multishot,
            TrackerMemory::Bpf(_) | TrackerMemory::Multishot(_) | TrackerMemory::None => {
                Backend::Calls
            }
        }
    }

    /// Sleeps until the daemon has ended, and nothing is told of sockets any more: for a thread that
    /// says so. Returns at once where there is no registration, or one of a parent.
    pub fn wait_for_daemon_end(&self) {
        if let Some(region) = self.0.live_region() {
            region.wait_for_daemon_end();
        }
    }

    /// Makes a call that gives a new socket, or a negative number, and gives what it gave; the
    /// socket is tracked if possible. The call is socket(2), or accept4(2) with room for an
    /// address: other calls make sockets that [`Tracker::adopt`] takes. Whoever closes it calls
    /// [`Tracker::forget`] before.
    pub fn open(&self, call: impl FnOnce() -> i32) -> i32 {
        match &self.0.memory {
            TrackerMemory::Bpf(region) if region.is_live() => region.open(call),
            TrackerMemory::Multishot(filter) => {
                let fd = call();
                filter.track(fd);
                fd
            }
            TrackerMemory::Bpf(_) | TrackerMemory::None => call(),
        }
    }

    /// Has an open TCP socket tracked from now on, wherever it is from; one system call. False if
    /// it cannot be: it is no TCP socket, its number is 65,536 or more, or it is tracked already:
    /// by another descriptor of this process, or by another process. Whoever closes it calls
    /// [`Tracker::forget`] before.
    pub fn track(&self, fd: i32) -> bool {
        match &self.0.memory {
            TrackerMemory::Bpf(region) => region.is_live() && region.track(fd),
            TrackerMemory::Multishot(filter) => filter.track(fd),
            TrackerMemory::None => false,
        }
    }

    /// To be called right before a descriptor is closed, or another file is put in its place
    /// (dup2(2)), or when it is to be tracked no longer. Nothing happens to others.
    pub fn untrack(&self, fd: i32) {
        match &self.0.memory {
            TrackerMemory::Bpf(region) => region.untrack(fd),
            TrackerMemory::Multishot(filter) => filter.untrack(fd),
            TrackerMemory::None => {}
        }
    }

    /// Whether waits for a descriptor can be answered from memory.
    #[inline]
    pub fn is_tracked(&self, fd: i32) -> bool {
        match &self.0.memory {
            TrackerMemory::Bpf(region) => region.is_live() && region.pages.index(fd).is_some(),
            TrackerMemory::Multishot(filter) => filter.is_this_process() && filter.is_tracked(fd),
            TrackerMemory::None => false,
        }
    }

    /// What is known of a descriptor; `None` if it is not tracked, or by
    /// [`Tracker::multishot`], which knows nothing of the kind.
    pub fn state(&self, fd: i32) -> Option<SocketState> {
        let region = self.0.live_region()?;
        let index = region.pages.index(fd)?;
        let numbers = region.pages.numbers(index);
        Some(SocketState {
            events: region.events(fd as usize, index),
            edges: region.pages.word(index).edges(),
            readable: numbers.readable.load(Ordering::Relaxed),
            send_space: numbers.room.load(Ordering::Relaxed),
            cwnd: numbers.window.load(Ordering::Relaxed),
            rtt_us: numbers.rtt_us.load(Ordering::Relaxed),
        })
    }

    /// Makes the memory what a tracked socket is: to be called after what no hook of the kernel
    /// tells of, which is setsockopt(2) of buffers and marks, SO_ERROR asked for, shutdown(2) of
    /// the receiving side, accept(2) of a listener's last connection, a connect(2) that dissolves,
    /// and in lean mode whatever takes or adds bytes by calls of one's own. One system call.
    pub fn refresh(&self, fd: i32) {
        match &self.0.memory {
            TrackerMemory::Bpf(region) if region.is_live() => region.refresh(fd),
            TrackerMemory::Multishot(filter) => filter.refresh(fd),
            TrackerMemory::Bpf(_) | TrackerMemory::None => {}
        }
    }

    /// In lean mode, before a receive by a call of one's own: what has come so far is not to be told
    /// any more. Nothing in exact mode.
    pub fn begin_receive(&self, fd: i32) {
        if let Some(region) = self.0.live_region() {
            region.begin_receive(fd);
        }
    }

    /// In lean mode, behind that receive: it gave `got` of the `max` bytes that it had room for,
    /// `None` if it failed. Where there may be more the kernel is made to look.
    pub fn end_receive(&self, fd: i32, got: Option<usize>, max: usize) {
        if let Some(region) = self.0.live_region() {
            region.end_receive(fd, got, max);
        }
    }

    /// In lean mode, behind a send: of `count` bytes `sent` were taken, `None` if it failed. Where
    /// it fell short a watcher is to be told, too: [`crate::Watcher::lacks_room`].
    pub fn end_send(&self, fd: i32, sent: Option<usize>, count: usize) {
        if let Some(region) = self.0.live_region() {
            region.end_send(fd, sent, count);
        }
    }

    /// A tracked socket is readable from now on only with so many bytes, at its end, or when its
    /// peer may send no more; 0 and 1: as before. For who knows how much is to come. False if it is
    /// not tracked, or not by [`Backend::Bpf`].
    pub fn set_threshold(&self, fd: i32, bytes: u32) -> bool {
        let Some(region) = self.0.live_region() else { return false };
        let Some(index) = region.pages.index(fd) else { return false };
        if region.pages.writable.threshold[index].swap(bytes, Ordering::SeqCst) != bytes {
            region.refresh(fd);
        }
        true
    }

    /// As [`Tracker::set_threshold`], but only for what comes from now on, and without a system call.
    /// For who has received all that there was, and once it takes that back receives, or calls
    /// [`Tracker::refresh`], before it waits.
    pub fn expect_bytes(&self, fd: i32, bytes: u32) -> bool {
        let Some(region) = self.0.live_region() else { return false };
        let Some(index) = region.pages.index(fd) else { return false };
        // Pairs with settle() in the kernel, which reads it with the socket locked, as a receive
        // that follows is.
        region.pages.writable.threshold[index].store(bytes, Ordering::SeqCst);
        true
    }

    /// Bounds how many waits in a row, and for how long, are answered without a look at what is not
    /// tracked (the paper's MaxPass).
    pub fn set_kernel_check_interval(&self, count: u32, time: Duration) {
        self.0.kernel_check.set(count, time);
    }

    /// Lets waits look at memory for up to `max` before they sleep, where that has lately been
    /// shorter than sleeping, and nobody else wants the processor; 0, as at first: never.
    pub fn set_spin(&self, max: Duration) {
        self.0.spin.set(max);
    }

    /// What the waits of this process did so far.
    pub fn stats(&self) -> Stats {
        self.0.counters.stats()
    }

    pub(crate) fn shared(&self) -> &TrackerShared {
        &self.0
    }

    /// As [`Tracker::open`], for who owns what is opened.
    pub(crate) fn open_owned<T>(
        &self,
        call: impl FnOnce() -> kernel::Result<(OwnedFd, T)>,
    ) -> Result<(OwnedFd, T), Error> {
        let mut opened = Err(kernel::Errno::IO);
        self.open(|| {
            opened = call();
            opened.as_ref().map_or(-1, |(fd, _)| fd.as_raw_fd())
        });
        Ok(opened?)
    }
}

impl TrackerShared {
    /// The registration, if there ever was one.
    pub(crate) fn region(&self) -> Option<&ProcessRegion> {
        match &self.memory {
            TrackerMemory::Bpf(region) => Some(region),
            TrackerMemory::Multishot(_) | TrackerMemory::None => None,
        }
    }

    /// What a wait that begins can see.
    #[inline]
    pub(crate) fn begin_view(&self) -> Option<MemoryView<'_>> {
        match &self.memory {
            TrackerMemory::Bpf(region) => region.check_live().then_some(MemoryView::Region(region)),
            TrackerMemory::Multishot(filter) => {
                filter.is_this_process().then_some(MemoryView::Multishot(filter))
            }
            TrackerMemory::None => None,
        }
    }

    pub(crate) fn live_region(&self) -> Option<&ProcessRegion> {
        self.region().filter(|region| region.is_live())
    }
}

const _: () = assert!(SOCKETS == 65_536, "the documentation of `adopt` says so");

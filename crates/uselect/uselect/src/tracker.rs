//! `Tracker`: tracks the sockets of a process.

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

/// Tracks the TCP sockets that a process opens or accepts through it, or passes to it.
///
/// A child of fork(2) inherits the sockets, but not the registration: nothing is tracked in the
/// child, and every wait is the system call.
#[derive(Clone)]
pub struct Tracker(Arc<TrackerShared>);

/// How waits are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backend {
    /// From memory that eBPF programs keep up to date.
    Bpf(TrackingMode),
    /// By poll(2), except for sockets that an io_uring instance shows to be idle.
    Multishot,
    /// By the system calls.
    Calls,
}

/// The state of a tracker, shared by its clones.
pub(crate) struct TrackerShared {
    memory: TrackerMemory,
    pub(crate) kernel_check: KernelCheckInterval,
    pub(crate) spin: Spin,
    /// For upoll and uselect; a watcher has its own.
    pub(crate) yielding: YieldBeforeSleep,
    pub(crate) counters: WaitCounters,
    /// The array of the last large upoll. A wait that finds it locked by another thread works
    /// without it.
    pub(crate) poll_cache: Mutex<PollCache>,
}

/// The memory behind a backend.
enum TrackerMemory {
    Bpf(Box<ProcessRegion>),
    Multishot(Box<Multishot>),
    None,
}

/// The recorded state of a tracked socket, as of the last run of an eBPF program for it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketState {
    /// The result of poll(2) if all events were requested. POLLPRI and POLLERR mean that the kernel
    /// must be called. If POLLOUT is missing, send space may have become free since.
    pub events: u32,
    /// The event count, modulo 2^16. Anything that would wake an edge-triggered wait is an event.
    pub edges: u16,
    /// Bytes that can be received; for a listener, connections to accept. The FIN of the peer
    /// counts as one byte (SIOCINQ does not count it).
    pub readable: u32,
    /// Bytes of free send space.
    pub send_space: u32,
    /// The congestion window, in segments.
    pub cwnd: u32,
    /// The smoothed round-trip time.
    pub rtt_us: u32,
}

impl Tracker {
    /// Registers this process with the daemon at `path`, by default [`crate::DEFAULT_SOCKET`].
    ///
    /// # Errors
    /// Any [`Error`] except [`Error::NoRing`]. The process can then still use its system calls.
    pub fn register(path: &Path, mode: TrackingMode) -> Result<Self, Error> {
        Ok(Self::with_memory(TrackerMemory::Bpf(Box::new(ProcessRegion::register(path, mode)?))))
    }

    /// Finds idle sockets with multishot polls of an io_uring instance, which needs no privilege.
    /// Waits make no system call for idle sockets. All other sockets are passed to poll(2): it has
    /// not checked them yet, or something has happened since it last found them not ready. So a
    /// wait that returns a socket always makes a system call, and never returns a socket that
    /// poll(2) does not report.
    ///
    /// The ring has space for 32,768 completions, 0.5 MB of kernel memory. One thread at a time
    /// waits by the ring; other threads use the system call. A [`crate::Watcher`] is a plain epoll
    /// instance. In a thread that has waited, completions interrupt other system calls too. Calls
    /// that Linux does not restart after a signal, such as epoll_wait(2) and receives with a
    /// timeout, then fail with EINTR.
    ///
    /// A child of fork(2) holds the ring open, and the ring holds the sockets that it polls. If the
    /// child outlives the parent without execve(2), these connections stay open after the parent's
    /// end.
    ///
    /// # Errors
    /// [`Error::NoRing`], those of mmap(2), EMFILE.
    pub fn multishot() -> Result<Self, Error> {
        Ok(Self::with_memory(TrackerMemory::Multishot(Box::new(Multishot::new()?))))
    }

    /// Returns the first available of [`Tracker::register`], [`Tracker::multishot`] and
    /// [`Tracker::calls`], with the errors of those before it, in that order.
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

    /// Returns a tracker that tracks nothing: every wait is the system call.
    pub fn calls() -> Self {
        Self::with_memory(TrackerMemory::None)
    }

    #[cfg(test)]
    pub(crate) fn with_multishot(multishot: Multishot) -> Self {
        Self::with_memory(TrackerMemory::Multishot(Box::new(multishot)))
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

    /// Returns how waits are served. This becomes [`Backend::Calls`] in a child of fork(2), and
    /// when the daemon ends.
    pub fn backend(&self) -> Backend {
        match &self.0.memory {
            TrackerMemory::Bpf(region) if region.is_live() => Backend::Bpf(region.mode),
            TrackerMemory::Multishot(multishot) if multishot.is_this_process() => {
                Backend::Multishot
            }
            TrackerMemory::Bpf(_) | TrackerMemory::Multishot(_) | TrackerMemory::None => {
                Backend::Calls
            }
        }
    }

    /// Sleeps until the daemon ends, for a thread that reports this. Returns at once if this
    /// process is not registered.
    pub fn wait_for_daemon_end(&self) {
        if let Some(region) = self.0.live_region() {
            region.wait_for_daemon_end();
        }
    }

    /// Runs a call that returns a new socket or a negative number, and returns its result. The
    /// socket is tracked if possible. The call must be socket(2), or accept4(2) with a buffer for
    /// the address; sockets of other calls need [`Tracker::track`]. Call [`Tracker::untrack`]
    /// before the socket is closed.
    pub fn open(&self, call: impl FnOnce() -> i32) -> i32 {
        match &self.0.memory {
            TrackerMemory::Bpf(region) if region.is_live() => region.open(call),
            TrackerMemory::Multishot(multishot) => {
                let fd = call();
                multishot.track(fd);
                fd
            }
            TrackerMemory::Bpf(_) | TrackerMemory::None => call(),
        }
    }

    /// Starts tracking an open TCP socket, with one system call. Returns false if the descriptor is
    /// not a TCP socket, is 65,536 or above, or is tracked already. With [`Backend::Bpf`], also
    /// returns false if another descriptor or another process tracks the same socket. Call
    /// [`Tracker::untrack`] before the socket is closed.
    pub fn track(&self, fd: i32) -> bool {
        match &self.0.memory {
            TrackerMemory::Bpf(region) => region.is_live() && region.track(fd),
            TrackerMemory::Multishot(multishot) => multishot.track(fd),
            TrackerMemory::None => false,
        }
    }

    /// Stops tracking a socket. Call this right before its descriptor is closed or replaced
    /// (dup2(2)). Does nothing for other descriptors.
    pub fn untrack(&self, fd: i32) {
        match &self.0.memory {
            TrackerMemory::Bpf(region) => region.untrack(fd),
            TrackerMemory::Multishot(multishot) => multishot.untrack(fd),
            TrackerMemory::None => {}
        }
    }

    /// Returns whether memory can serve waits for a descriptor.
    #[inline]
    pub fn is_tracked(&self, fd: i32) -> bool {
        match &self.0.memory {
            TrackerMemory::Bpf(region) => region.is_live() && region.pages.index(fd).is_some(),
            TrackerMemory::Multishot(multishot) => {
                multishot.is_this_process() && multishot.is_tracked(fd)
            }
            TrackerMemory::None => false,
        }
    }

    /// Returns the recorded state of a socket; `None` if it is not tracked by [`Backend::Bpf`].
    pub fn state(&self, fd: i32) -> Option<SocketState> {
        let region = self.0.live_region()?;
        let index = region.pages.index(fd)?;
        let numbers = region.pages.numbers(index);
        Some(SocketState {
            events: region.events(fd as usize, index),
            edges: region.pages.word(index).edges(),
            readable: numbers.readable.load(Ordering::Relaxed),
            send_space: numbers.send_space.load(Ordering::Relaxed),
            cwnd: numbers.cwnd.load(Ordering::Relaxed),
            rtt_us: numbers.rtt_us.load(Ordering::Relaxed),
        })
    }

    /// Updates the recorded state of a socket, with one system call. Call this after changes that
    /// no hook of the kernel reports: setsockopt(2) of buffers and watermarks, a read of SO_ERROR,
    /// shutdown(2) of the receiving side, accept(2) of the last pending connection, connect(2) that
    /// dissolves a connection. In lean mode, call this also after a receive or send that was not
    /// recorded by [`Tracker::end_receive`] or [`Tracker::end_send`].
    pub fn refresh(&self, fd: i32) {
        match &self.0.memory {
            TrackerMemory::Bpf(region) if region.is_live() => region.refresh(fd),
            TrackerMemory::Multishot(multishot) => multishot.refresh(fd),
            TrackerMemory::Bpf(_) | TrackerMemory::None => {}
        }
    }

    /// Prepares a receive that the caller makes by its own system call. Required in lean mode,
    /// except for a descriptor that a [`crate::Watcher`] reports with EPOLLET. Does nothing in
    /// exact mode.
    pub fn begin_receive(&self, fd: i32) {
        if let Some(region) = self.0.live_region() {
            region.begin_receive(fd);
        }
    }

    /// Records a receive that the caller made by its own system call. Required after
    /// [`Tracker::begin_receive`]. `got` is the result of that call for at most `max` bytes, `None`
    /// if it failed. If more bytes may be there, the kernel updates the state.
    pub fn end_receive(&self, fd: i32, got: Option<usize>, max: usize) {
        if let Some(region) = self.0.live_region() {
            region.end_receive(fd, got, max);
        }
    }

    /// Records a send that the caller made by its own system call. Required in lean mode, except
    /// for a descriptor that a [`crate::Watcher`] reports with EPOLLET. `sent` is the result of
    /// that call for `count` bytes, `None` if it failed. If a watcher has the descriptor, with or
    /// without EPOLLET, a short send in lean mode also needs [`crate::Watcher::report_short_send`].
    pub fn end_send(&self, fd: i32, sent: Option<usize>, count: usize) {
        if let Some(region) = self.0.live_region() {
            region.end_send(fd, sent, count);
        }
    }

    /// Sets how many bytes make a tracked socket readable; 0 and 1 mean any byte. The end of the
    /// stream and a full receive buffer make it readable too. For a reader that knows how much will
    /// arrive. Returns false if the socket is not tracked by [`Backend::Bpf`].
    pub fn set_threshold(&self, fd: i32, bytes: u32) -> bool {
        let Some(region) = self.0.live_region() else { return false };
        let Some(index) = region.pages.index(fd) else { return false };
        if region.pages.writable.threshold[index].swap(bytes, Ordering::SeqCst) != bytes {
            region.refresh(fd);
        }
        true
    }

    /// Like [`Tracker::set_threshold`], but only for future events, and without a system call.
    /// Before raising the threshold, receive all bytes that have arrived. After lowering it,
    /// receive or call [`Tracker::refresh`] before the next wait.
    pub fn expect_bytes(&self, fd: i32, bytes: u32) -> bool {
        let Some(region) = self.0.live_region() else { return false };
        let Some(index) = region.pages.index(fd) else { return false };
        // Pairs with update_word() in the kernel, which reads this under the lock of the socket
        // when bytes arrive. The next receive takes that lock too, so the program sees this value
        // for all bytes that arrive after that receive.
        region.pages.writable.threshold[index].store(bytes, Ordering::SeqCst);
        true
    }

    /// Limits how many consecutive waits memory alone may serve (MaxPass in the paper). If memory
    /// does not show the state of some descriptors, `time` limits them too. A [`crate::Watcher`]
    /// keeps the limits that were set when it was created.
    pub fn set_kernel_check_interval(&self, count: u32, time: Duration) {
        self.0.kernel_check.set(count, time);
    }

    /// Lets waits spin on memory for up to `max` before they sleep. They do so only while recent
    /// spins have found events and no other thread needs the processor. The default is 0: no
    /// spinning.
    pub fn set_spin(&self, max: Duration) {
        self.0.spin.set(max);
    }

    /// Returns the counters of the waits of this tracker, its clones and their watchers.
    pub fn stats(&self) -> Stats {
        self.0.counters.stats()
    }

    pub(crate) fn shared(&self) -> &TrackerShared {
        &self.0
    }

    /// Like [`Tracker::open`], for a call that returns an owned descriptor.
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
    /// Returns the region of the registered process, even if it is not live any more.
    pub(crate) fn region(&self) -> Option<&ProcessRegion> {
        match &self.memory {
            TrackerMemory::Bpf(region) => Some(region),
            TrackerMemory::Multishot(_) | TrackerMemory::None => None,
        }
    }

    /// Returns the memory for a wait that begins now, or `None` if the wait must be the system
    /// call.
    #[inline]
    pub(crate) fn begin_view(&self) -> Option<MemoryView<'_>> {
        match &self.memory {
            TrackerMemory::Bpf(region) => region.check_live().then_some(MemoryView::Region(region)),
            TrackerMemory::Multishot(multishot) => {
                multishot.is_this_process().then_some(MemoryView::Multishot(multishot))
            }
            TrackerMemory::None => None,
        }
    }

    /// Returns the region of the registered process if it is kept up to date.
    pub(crate) fn live_region(&self) -> Option<&ProcessRegion> {
        self.region().filter(|region| region.is_live())
    }
}

const _: () = assert!(SOCKETS == 65_536, "documented at `track`");

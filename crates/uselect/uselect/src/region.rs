//! `ProcessRegion`: the shared memory of a registered process, and which descriptors it tracks.

use std::cell::Cell;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, compiler_fence};
use std::time::Instant;

use crossbeam_queue::ArrayQueue;

use crate::bitmap::{fd_index, is_set, set_bit};
use crate::bits;
use crate::error::Error;
use crate::internal_fd::InternalFd;
use crate::kernel::{self, Mapping};
use crate::layout::{Bitmap, PROBES, SOCKETS, THREADS, ThreadSlot};
use crate::limits::{
    DAEMON_CHECK_WAITS_MAX, RING_REPLY_TIME_MAX, WATCHER_SLEEPER_RETRY, WATCHER_SLEEPER_TIME_MAX,
};
use crate::pages::{SharedPages, SocketWord};
use crate::pollfd::PollFd;
use crate::registration::{TrackingMode, register};
use crate::ring_requests::RingRequests;
use crate::sleeper::Sleeper;
use crate::sleeper_pool::SleeperPool;

/// The events for which the connection to the daemon is polled: none, because a hang-up is always
/// reported. POLLIN is left out, because only the thread that requested a ring reads from the
/// connection.
pub(crate) const HANGUP_ONLY: u32 = 0;

thread_local! {
    /// Whether this thread has offered an index in its slot, and is in the call of `open` or
    /// `track` that follows. The variable has no destructor, so a signal handler can read it at any
    /// time in the life of the thread.
    static IS_ARMED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct ProcessRegion {
    pub(crate) pages: SharedPages,
    pub(crate) mode: TrackingMode,
    /// The connection to the daemon. It reports a hang-up when the daemon, and with it the
    /// tracking, has ended.
    registration: InternalFd,
    is_lost: AtomicBool,
    /// The number of waits, for the daemon check in [`ProcessRegion::check_live`].
    waits: AtomicU32,
    /// 1 in the process that registered, 0 in its children.
    is_own_process: Mapping<AtomicU8>,
    /// Indices without a socket, first in, first out. So an index is reused as late as possible,
    /// when the kernel has usually finished with the old socket. If it has not, the generation in
    /// the word differs.
    free_indices: ArrayQueue<u32>,
    sleepers: SleeperPool,
    rings: Mutex<RingRequests>,
}

impl ProcessRegion {
    pub(crate) fn register(path: &Path, mode: TrackingMode) -> Result<Self, Error> {
        let is_own_process = Mapping::wiped_on_fork()?;
        let (pages, ring, registration) = register(path, mode)?;
        is_own_process.store(1, Ordering::Relaxed);
        let sleepers = SleeperPool::new();
        sleepers.put(Box::new(Sleeper::new(0, ring)));
        Ok(Self {
            pages,
            mode,
            registration: InternalFd::new(registration),
            is_lost: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            is_own_process,
            free_indices: free_indices(),
            sleepers,
            rings: Mutex::new(RingRequests::new(RING_REPLY_TIME_MAX)),
        })
    }

    /// Returns whether the memory belongs to this process and, as far as is known, is kept up to
    /// date.
    pub(crate) fn is_live(&self) -> bool {
        self.is_this_process() && !self.is_lost.load(Ordering::Relaxed)
    }

    fn is_this_process(&self) -> bool {
        self.is_own_process.load(Ordering::Relaxed) == 1
    }

    /// Like [`ProcessRegion::is_live`], at the beginning of a wait. Checks the daemon at each
    /// [`DAEMON_CHECK_WAITS_MAX`]th call, for a process that never sleeps.
    pub(crate) fn check_live(&self) -> bool {
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits.is_multiple_of(DAEMON_CHECK_WAITS_MAX) && self.is_live() {
            let found = kernel::is_peer_closed(self.registration.as_fd());
            self.is_lost.fetch_or(found, Ordering::Relaxed);
        }
        self.is_live()
    }

    /// Returns the connection to the daemon, which a sleeper polls for a hang-up.
    pub(crate) fn registration(&self) -> BorrowedFd<'_> {
        self.registration.as_fd()
    }

    pub(crate) fn wait_for_daemon_end(&self) {
        let registration = self.registration.as_fd().as_raw_fd();
        let mut fds = [PollFd { fd: registration, events: HANGUP_ONLY as u16, revents: 0 }];
        while self.is_live() {
            // With one descriptor poll(2) can fail only with EINTR.
            if let Ok(1..) = kernel::ppoll(&mut fds, None, None) {
                self.mark_lost();
            }
        }
    }

    /// Records that the daemon has ended. This is never reverted.
    pub(crate) fn mark_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Returns a sleeper for this thread. Returns `None` if all are in use, the daemon sends no
    /// ring, or another thread is requesting a ring. It does not wait for the other request,
    /// because it may run in a signal handler that interrupted that request.
    pub(crate) fn take_sleeper(&self) -> Option<Box<Sleeper>> {
        self.sleepers.take().or_else(|| {
            let mut rings = self.rings.try_lock().ok()?;
            let (number, ring) = rings.request_next(self.registration.as_fd(), Instant::now())?;
            Some(Box::new(Sleeper::new(number, ring)))
        })
    }

    /// Like [`ProcessRegion::take_sleeper`], for a watcher, which has its sleeper for its lifetime.
    /// Retries while other threads request rings, for at most [`WATCHER_SLEEPER_TIME_MAX`].
    pub(crate) fn take_watcher_sleeper(&self) -> Option<Box<Sleeper>> {
        let begin = Instant::now();
        loop {
            let sleeper = self.take_sleeper();
            let has_all_rings = self.rings.try_lock().is_ok_and(|rings| rings.has_all());
            let is_over =
                has_all_rings || !self.is_live() || begin.elapsed() > WATCHER_SLEEPER_TIME_MAX;
            if sleeper.is_some() || is_over {
                return sleeper;
            }
            std::thread::sleep(WATCHER_SLEEPER_RETRY);
        }
    }

    /// Returns a sleeper to the pool.
    pub(crate) fn return_sleeper(&self, sleeper: Box<Sleeper>) {
        self.sleepers.put(sleeper);
    }

    /// Returns what poll(2) would return for a tracked descriptor, including bits that were not
    /// requested.
    pub(crate) fn events(&self, fd: usize, index: usize) -> u32 {
        self.events_of_word(self.pages.word(index), fd)
    }

    /// Like [`ProcessRegion::events`], for a word of the descriptor that was read before.
    pub(crate) fn events_of_word(&self, word: SocketWord, fd: usize) -> u32 {
        let word = word.events();
        match self.mode {
            TrackingMode::Exact => word,
            TrackingMode::Lean => {
                let own = &self.pages.writable;
                let side = |bitmap: &Bitmap, bits| if is_set(bitmap, fd) { bits } else { 0 };
                word & !(bits::READABLE | bits::WRITABLE)
                    | side(&own.read, bits::READABLE)
                    | side(&own.write, bits::WRITABLE)
            }
        }
    }

    /// Runs a call that returns a new socket or a negative number. The socket is tracked if
    /// possible.
    pub(crate) fn open(&self, call: impl FnOnce() -> i32) -> i32 {
        let Some((slot, index)) = self.arm_slot() else { return call() };
        let fd = call();
        // If the program closed the previous socket of this number without untracking it, the
        // record is removed here.
        self.untrack(fd);
        let was_disarmed =
            slot.armed.load(Ordering::Relaxed) == 0 && slot.taken.load(Ordering::Relaxed) == 0;
        self.finish_open(slot, index, fd);
        // A signal handler has disarmed the slot (see `arm_slot`).
        if was_disarmed {
            self.track(fd);
        }
        fd
    }

    /// Tracks an open socket, with one system call. Returns false if it is not a TCP socket, or is
    /// tracked already by this or another process.
    pub(crate) fn track(&self, fd: i32) -> bool {
        let Some(socket) = kernel::borrow_fd(fd) else { return false };
        let Some((slot, index)) = self.arm_slot() else { return false };
        kernel::run_programs(socket);
        self.finish_open(slot, index, fd)
    }

    /// Offers an index for this thread's next socket. Returns `None` if no index or slot is free,
    /// if tracking has ended, or in a signal handler that interrupted a call with an offer.
    fn arm_slot(&self) -> Option<(&ThreadSlot, u32)> {
        if !self.is_live() {
            return None;
        }
        let thread = kernel::thread_id();
        let near = |step| &self.pages.writable.slot[(thread as usize + step) % THREADS];
        let slots = (0..PROBES).map(near);
        let own = slots.clone().find(|slot| slot.thread.load(Ordering::Relaxed) == thread);
        if let (Some(slot), true) = (own, IS_ARMED.get()) {
            // This is a signal handler that interrupted `open` or `track`. A socket of the handler
            // must not get the index that the interrupted function offered: withdraw the offer. If
            // no socket had taken the index, `open` tracks its socket later, and `track` returns
            // false.
            slot.armed.store(0, Ordering::Relaxed);
            return None;
        }
        let claim = |slot: &ThreadSlot, from| {
            slot.thread.compare_exchange(from, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        // The slot may belong to an ended thread that had the same ID.
        let own = own.inspect(|slot| self.reclaim_index(slot));
        let free = || slots.clone().find(|slot| claim(slot, 0));
        let slot = own.or_else(free).or_else(|| self.reclaim_slot(slots.clone(), claim))?;
        let Some(index) = self.free_indices.pop() else {
            slot.thread.store(0, Ordering::Release);
            return None;
        };
        slot.taken.store(0, Ordering::Relaxed);
        slot.armed.store(index, Ordering::Relaxed);
        IS_ARMED.set(true);
        // The programs run in this thread, within the call that follows.
        compiler_fence(Ordering::SeqCst);
        Some((slot, index))
    }

    /// Claims a slot of a thread that ended within its call, either by pthread_cancel(3) or by
    /// pthread_exit(3) in a signal handler.
    fn reclaim_slot<'a>(
        &self,
        mut slots: impl Iterator<Item = &'a ThreadSlot>,
        claim: impl Fn(&ThreadSlot, u32) -> bool,
    ) -> Option<&'a ThreadSlot> {
        let slot = slots.find(|slot| {
            let owner = slot.thread.load(Ordering::Relaxed);
            kernel::has_thread_ended(owner) && claim(slot, owner)
        })?;
        self.reclaim_index(slot);
        Some(slot)
    }

    /// Frees the index of a slot whose thread has ended. If a socket got it, that socket is not
    /// tracked any more.
    fn reclaim_index(&self, slot: &ThreadSlot) {
        let index = slot.armed.swap(0, Ordering::Relaxed).max(slot.taken.load(Ordering::Relaxed));
        if (1..SOCKETS as u32).contains(&index) {
            self.free_index(index);
        }
    }

    /// Records the descriptor of the socket that the call opened. Returns whether it is tracked.
    fn finish_open(&self, slot: &ThreadSlot, index: u32, fd: i32) -> bool {
        // The programs ran in this thread's call, so their writes are ordered before this, like
        // those of a signal handler.
        compiler_fence(Ordering::SeqCst);
        let is_taken = slot.taken.load(Ordering::Relaxed) == index;
        let generation = slot.generation.load(Ordering::Relaxed);
        slot.armed.store(0, Ordering::Relaxed);
        slot.taken.store(0, Ordering::Relaxed);
        slot.thread.store(0, Ordering::Release);
        IS_ARMED.set(false);
        let fd = fd_index(fd);
        let is_adopted = is_taken && self.pages.word(index as usize).generation() == generation;
        match fd {
            Some(fd) if is_adopted => {
                // For `track`: the previous socket of this descriptor may have been closed without
                // being untracked.
                self.untrack(fd as i32);
                self.pages.publish(fd, index as usize);
            }
            _ => self.free_index(index),
        }
        is_adopted && fd.is_some()
    }

    /// Stops tracking; call this right before a descriptor is closed.
    pub(crate) fn untrack(&self, fd: i32) {
        if !self.is_this_process() {
            return;
        }
        if let Some(index) = self.pages.index(fd) {
            self.pages.unpublish(fd as usize, index);
            self.free_index(index as u32);
        }
    }

    fn free_index(&self, index: u32) {
        self.free_indices.push(index).expect("the queue holds all indices");
    }

    /// Updates the word of a socket, with one system call.
    pub(crate) fn refresh(&self, fd: i32) {
        if let (true, Some(socket)) = (self.pages.index(fd).is_some(), kernel::borrow_fd(fd)) {
            kernel::run_programs(socket);
        }
    }

    /// Lean mode: clears the R-bit before a receive. Bytes that arrive from now on set it again.
    pub(crate) fn begin_receive(&self, fd: i32) {
        if self.mode == TrackingMode::Lean && self.pages.index(fd).is_some() {
            set_bit(&self.pages.writable.read, fd as usize, false);
        }
    }

    /// Lean mode: completes a receive of at most `max` bytes, which returned `got` bytes (`None`:
    /// it failed). If more bytes, the end of the stream or urgent data may be left in the socket,
    /// one system call updates the word.
    pub(crate) fn end_receive(&self, fd: i32, got: Option<usize>, max: usize) {
        let Some(index) = self.pages.index(fd).filter(|_| self.mode == TrackingMode::Lean) else {
            return;
        };
        // The end of the stream may follow these bytes: RDHUP is recorded when the FIN arrives,
        // before the bytes are read. Urgent data ends a receive before the buffer is full.
        let has_more = self.pages.word(index).events() & (bits::RDHUP | bits::PRI) != 0;
        let is_drained = got.is_some_and(|got| 0 < got && got < max);
        if !is_drained || has_more {
            self.refresh(fd);
        }
    }

    /// Lean mode: completes a send of `count` bytes, of which the kernel took `sent` (`None`: the
    /// send failed). If it did not take all, one system call updates the word.
    pub(crate) fn end_send(&self, fd: i32, sent: Option<usize>, count: usize) {
        if self.mode == TrackingMode::Lean && sent != Some(count) {
            self.refresh(fd);
        }
    }
}

/// Returns all indices as free. The queue is lock-free, because a signal handler may close
/// descriptors.
fn free_indices() -> ArrayQueue<u32> {
    let free = ArrayQueue::new(SOCKETS);
    for index in 1..SOCKETS as u32 {
        free.push(index).expect("the queue holds all indices");
    }
    free
}

//! `Region`: the memory of a registered process, and which of its descriptors are in it.

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
    DAEMON_CHECK_WAITS_MAX, KEPT_SLEEPER_STEP, KEPT_SLEEPER_TIME_MAX, RING_REPLY_TIME_MAX,
};
use crate::pages::{SharedPages, SocketWord};
use crate::pollfd::PollFd;
use crate::registration::{TrackingMode, register};
use crate::ring_requests::RingRequests;
use crate::sleeper::Sleeper;
use crate::sleeper_pool::SleeperPool;

/// What the end of the daemon is waited for with: a hang-up, which is told unasked. Bytes are for
/// the thread that has asked for a ring.
pub(crate) const HANGUP_ONLY: u32 = 0;

thread_local! {
    /// This thread is in a call that gives a socket, with a slot. Without a destructor, so that it
    /// can be asked whatever the thread is at.
    static IS_ARMED: Cell<bool> = const { Cell::new(false) };
}

pub(crate) struct ProcessRegion {
    pub(crate) pages: SharedPages,
    pub(crate) mode: TrackingMode,
    /// Readable once the daemon has ended, and memory with it.
    registration: InternalFd,
    is_lost: AtomicBool,
    /// Waits so far, to look at that now and then.
    waits: AtomicU32,
    /// 1 in the process that registered, 0 in its children.
    is_ours: Mapping<AtomicU8>,
    /// Indices that no socket has. The one that was given back last is taken last, so that what
    /// the kernel still does about the old socket is over by then; the generation says so too.
    free_indices: ArrayQueue<u32>,
    sleepers: SleeperPool,
    rings: Mutex<RingRequests>,
}

impl ProcessRegion {
    pub(crate) fn register(path: &Path, mode: TrackingMode) -> Result<Self, Error> {
        let is_ours = Mapping::wiped_on_fork()?;
        let (pages, ring, registration) = register(path, mode)?;
        is_ours.store(1, Ordering::Relaxed);
        let idle = SleeperPool::new();
        idle.put(Box::new(Sleeper::new(0, ring)));
        Ok(Self {
            pages,
            mode,
            registration: InternalFd::new(registration),
            is_lost: AtomicBool::new(false),
            waits: AtomicU32::new(0),
            is_ours,
            free_indices: free_indices(),
            sleepers: idle,
            rings: Mutex::new(RingRequests::new(RING_REPLY_TIME_MAX)),
        })
    }

    /// Whether memory is this process's, and kept up to date as far as is known.
    pub(crate) fn is_live(&self) -> bool {
        self.is_this_process() && !self.is_lost.load(Ordering::Relaxed)
    }

    fn is_this_process(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed) == 1
    }

    /// As [`Region::is_live`], for who begins a wait: looks at the daemon each [`WAITS_UNSEEN_MAX`]
    /// times, for a process that never sleeps.
    pub(crate) fn check_live(&self) -> bool {
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits.is_multiple_of(DAEMON_CHECK_WAITS_MAX) && self.is_live() {
            let found = kernel::is_peer_closed(self.registration.as_fd());
            self.is_lost.fetch_or(found, Ordering::Relaxed);
        }
        self.is_live()
    }

    /// What a sleeper waits for besides: its end, [`ENDED`].
    pub(crate) fn registration(&self) -> BorrowedFd<'_> {
        self.registration.as_fd()
    }

    pub(crate) fn wait_for_daemon_end(&self) {
        let registration = self.registration.as_fd().as_raw_fd();
        let mut fds = [PollFd { fd: registration, events: HANGUP_ONLY as u16, revents: 0 }];
        while self.is_live() {
            // With one descriptor it has no errors but EINTR.
            if let Ok(1..) = kernel::ppoll(&mut fds, None, None) {
                self.mark_lost();
            }
        }
    }

    /// The daemon has ended: nothing tells of sockets any more. Never taken back.
    pub(crate) fn mark_lost(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// A sleeper for this thread; `None` when there are no more, the daemon gives none, or somebody is
    /// just being given one, as a signal handler must not wait for what it has interrupted.
    pub(crate) fn take_sleeper(&self) -> Option<Box<Sleeper>> {
        self.sleepers.take().or_else(|| {
            let mut rings = self.rings.try_lock().ok()?;
            let (number, ring) = rings.request_next(self.registration.as_fd(), Instant::now())?;
            Some(Box::new(Sleeper::new(number, ring)))
        })
    }

    /// As [`Region::sleeper`], for who would do without one for as long as it lives: waits for
    /// whoever is just being given one, and asks the daemon again, but not for ever.
    pub(crate) fn take_sleeper_to_keep(&self) -> Option<Box<Sleeper>> {
        let begin = Instant::now();
        loop {
            let sleeper = self.take_sleeper();
            let are_all = self.rings.try_lock().is_ok_and(|rings| rings.has_all());
            let is_over = are_all || !self.is_live() || begin.elapsed() > KEPT_SLEEPER_TIME_MAX;
            if sleeper.is_some() || is_over {
                return sleeper;
            }
            std::thread::sleep(KEPT_SLEEPER_STEP);
        }
    }

    /// Takes it back.
    pub(crate) fn return_sleeper(&self, sleeper: Box<Sleeper>) {
        self.sleepers.put(sleeper);
    }

    /// What poll(2) would say of a tracked descriptor, with bits in it that nobody has asked for.
    pub(crate) fn events(&self, fd: usize, index: usize) -> u32 {
        self.events_of_word(self.pages.word(index), fd)
    }

    /// As [`Region::events`], by a word of the descriptor's that was read before.
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

    /// Makes a call that gives a new socket, or a negative number; tracked if possible.
    pub(crate) fn open(&self, call: impl FnOnce() -> i32) -> i32 {
        let Some((slot, index)) = self.arm_slot() else { return call() };
        let fd = call();
        // Whatever it is, it is not what the number was if somebody has closed that without a word.
        self.untrack(fd);
        let was_disarmed =
            slot.armed.load(Ordering::Relaxed) == 0 && slot.taken.load(Ordering::Relaxed) == 0;
        self.finish_open(slot, index, fd);
        if was_disarmed {
            self.track(fd);
        }
        fd
    }

    /// Has a socket that is there tracked, which takes a call. False if it is no TCP socket, or
    /// tracked already, by this process or by another one.
    pub(crate) fn track(&self, fd: i32) -> bool {
        let Some(socket) = kernel::borrow_fd(fd) else { return false };
        let Some((slot, index)) = self.arm_slot() else { return false };
        kernel::run_programs(socket);
        self.finish_open(slot, index, fd)
    }

    /// An index for this thread's next socket; `None` when there are no more, or too many threads.
    fn arm_slot(&self) -> Option<(&ThreadSlot, u32)> {
        if !self.is_live() {
            return None;
        }
        let thread = kernel::thread_id();
        let near = |step| &self.pages.writable.slot[(thread as usize + step) % THREADS];
        let slots = (0..PROBES).map(near);
        let own = slots.clone().find(|slot| slot.thread.load(Ordering::Relaxed) == thread);
        if let (Some(slot), true) = (own, IS_ARMED.get()) {
            // A signal handler opens a socket while what it has interrupted does: that one is not
            // to have the handler's, and is adopted later.
            slot.armed.store(0, Ordering::Relaxed);
            return None;
        }
        let claim = |slot: &ThreadSlot, from| {
            slot.thread.compare_exchange(from, thread, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        // One of a thread that has ended, and had the number of this one.
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

    /// A slot that was left by a thread which has ended within its call (pthread_cancel(3), or
    /// pthread_exit(3) by a signal handler).
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

    /// Gives back the index of a slot that was left. If a socket has it that is tracked no more.
    fn reclaim_index(&self, slot: &ThreadSlot) {
        let index = slot.armed.swap(0, Ordering::Relaxed).max(slot.taken.load(Ordering::Relaxed));
        if (1..SOCKETS as u32).contains(&index) {
            self.free_index(index);
        }
    }

    /// Whether the call has had its socket tracked; which descriptor it is, is said from now on.
    fn finish_open(&self, slot: &ThreadSlot, index: u32, fd: i32) -> bool {
        // The programs ran in this thread's call: what they wrote is in the past, as a signal
        // handler's writes would be.
        compiler_fence(Ordering::SeqCst);
        let is_taken = slot.taken.load(Ordering::Relaxed) == index;
        let generation = slot.generation.load(Ordering::Relaxed);
        slot.armed.store(0, Ordering::Relaxed);
        slot.taken.store(0, Ordering::Relaxed);
        slot.thread.store(0, Ordering::Release);
        IS_ARMED.set(false);
        let fd = fd_index(fd);
        let is_right = is_taken && self.pages.word(index as usize).generation() == generation;
        match fd {
            Some(fd) if is_right => {
                // Somebody closed the number's last socket without a word.
                self.untrack(fd as i32);
                self.pages.publish(fd, index as usize);
            }
            _ => self.free_index(index),
        }
        is_right && fd.is_some()
    }

    /// To be called right before a descriptor is closed.
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
        self.free_indices.push(index).expect("there are no more indices than places");
    }

    /// Makes the memory what the socket is, by a call.
    pub(crate) fn refresh(&self, fd: i32) {
        if let (true, Some(socket)) = (self.pages.index(fd).is_some(), kernel::borrow_fd(fd)) {
            kernel::run_programs(socket);
        }
    }

    /// Lean: what is about to be received is not to be told any more. What comes from now on is.
    pub(crate) fn begin_receive(&self, fd: i32) {
        if self.mode == TrackingMode::Lean && self.pages.index(fd).is_some() {
            set_bit(&self.pages.writable.read, fd as usize, false);
        }
    }

    /// Lean: a receive has given `got` of the `max` bytes that it had room for. Where there may be
    /// more, or something else than bytes, the kernel looks.
    pub(crate) fn end_receive(&self, fd: i32, got: Option<usize>, max: usize) {
        let Some(index) = self.pages.index(fd).filter(|_| self.mode == TrackingMode::Lean) else {
            return;
        };
        // An end behind the bytes has been told before, and urgent data stops a receive.
        let has_more = self.pages.word(index).events() & (bits::RDHUP | bits::PRI) != 0;
        let is_drained = got.is_some_and(|got| 0 < got && got < max);
        if !is_drained || has_more {
            self.refresh(fd);
        }
    }

    /// Lean: a send of `count` bytes has had `sent` of them taken.
    pub(crate) fn end_send(&self, fd: i32, sent: Option<usize>, count: usize) {
        if self.mode == TrackingMode::Lean && sent != Some(count) {
            self.refresh(fd);
        }
    }
}

/// Without a lock: a signal handler may close what it likes.
fn free_indices() -> ArrayQueue<u32> {
    let free = ArrayQueue::new(SOCKETS);
    for index in 1..SOCKETS as u32 {
        free.push(index).expect("there is a place for each");
    }
    free
}

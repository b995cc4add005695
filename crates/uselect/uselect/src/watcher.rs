//! `Watcher`: waits like epoll(7) for events of a set of descriptors that it keeps between waits.
//! The paper leaves such an interface as future work.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bits;
use crate::deadline::{deadline_of, remaining};
use crate::error::Error;
use crate::internal_fd::InternalFd;
use crate::kernel::{self, Epoll, EpollEvent, Errno, Result, SignalSet};
use crate::kernel_check::KernelCheckInterval;
use crate::layout::SOCKETS;
use crate::limits::EVENTS_MAX;
use crate::region::{HANGUP_ONLY, ProcessRegion};
use crate::sleeper::Sleeper;
use crate::tracker::Tracker;
use crate::watch_list::{DescriptorEvent, WatchList};
use crate::yield_before_sleep::YieldBeforeSleep;

/// A set of descriptors, each with bits of epoll(7) and the caller's data. Tracked descriptors are
/// in memory, all others in an epoll instance ("the kernel's instance"). All methods are
/// thread-safe, also while another thread waits.
///
/// A descriptor that is tracked only after it was added stays in the kernel's instance until it is
/// removed. Before a descriptor is closed, call [`Watcher::remove_closing`] and
/// [`Tracker::untrack`].
pub struct Watcher {
    tracker: Tracker,
    /// The epoll instance with the descriptors that are not in memory.
    kernel_set: Epoll,
    /// `None` if the process is not registered, or no sleeper was available.
    memory: Option<WatcherMemory>,
    kernel_check: KernelCheckInterval,
    yielding: YieldBeforeSleep,
}

/// The part of a watcher that uses the memory of a registered process.
struct WatcherMemory {
    /// Taken out when the watcher is dropped.
    sleeper: Option<Box<Sleeper>>,
    /// The epoll instance on which a thread sleeps. It contains the ring, the daemon connection,
    /// `kernel_set`, `wakeup`, and sockets that lack send space.
    wake_epoll: Epoll,
    /// The eventfd that makes a sleeping thread scan memory again.
    wakeup: InternalFd,
    state: Mutex<WatchList>,
}

/// The locked state of a watcher, for a call about one descriptor.
struct LockedList<'a> {
    memory: &'a WatcherMemory,
    region: &'a ProcessRegion,
    state: MutexGuard<'a, WatchList>,
    /// Whether the descriptor is in memory.
    is_in_memory: bool,
}

/// The epoll data of the ring in `wake_epoll`. A socket that waits for send space has its
/// descriptor as data.
const RING: u64 = 1 << 32;
/// The epoll data of the daemon connection.
const DAEMON: u64 = 2 << 32;
/// The epoll data of the kernel's instance.
const KERNEL_SET: u64 = 3 << 32;
/// The epoll data of the eventfd.
const WAKEUP: u64 = 4 << 32;

impl Watcher {
    /// Creates an empty watcher, over its own epoll instance.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new(tracker: &Tracker) -> Result<Self, Error> {
        Self::build(tracker, Epoll::new()?, false)
    }

    /// Like [`Watcher::new`], over an epoll instance of the caller, which must stay open while the
    /// watcher lives. Waits include the descriptors that it contains already. If there are none,
    /// pass `is_empty`: this saves system calls until the watcher adds one to the instance.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn over_epoll(tracker: &Tracker, epoll: i32, is_empty: bool) -> Result<Self, Error> {
        Self::build(tracker, Epoll::Borrowed(epoll), !is_empty)
    }

    fn build(tracker: &Tracker, kernel_set: Epoll, has_entries: bool) -> Result<Self, Error> {
        let shared = tracker.shared();
        let sleeper = shared.live_region().and_then(|region| {
            let mut sleeper = region.take_watcher_sleeper()?;
            // Clears the interests that the sleeper's previous user left. Once the sleeper sleeps,
            // no other thread could take them over.
            sleeper.withdraw(&region.pages);
            Some((region, sleeper))
        });
        let memory = sleeper
            .map(|(region, sleeper)| WatcherMemory::new(region, sleeper, &kernel_set, has_entries));
        let (kernel_check, yielding) =
            (shared.kernel_check.with_same_limits(), YieldBeforeSleep::default());
        let memory = memory.transpose()?;
        Ok(Self { tracker: tracker.clone(), kernel_set, memory, kernel_check, yielding })
    }

    /// Adds a descriptor with bits of epoll(7), which may include EPOLLET, EPOLLONESHOT,
    /// EPOLLEXCLUSIVE and EPOLLWAKEUP. With the last two it goes to the kernel's instance.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let Some(LockedList { memory, region, mut state, is_in_memory }) = self.locked_list(fd)
        else {
            return self.kernel_set.add(fd, events, data);
        };
        if is_in_memory {
            return Err(Errno::EXIST);
        }
        if !state.add(region, memory.sleeper(), fd, events, data) {
            self.kernel_set.add(fd, events, data)?;
            state.record_in_kernel(fd);
        } else if state.waiters > 0 {
            memory.wake_sleeper();
        }
        Ok(())
    }

    /// Changes the events of a descriptor, and enables it again after EPOLLONESHOT.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn modify(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let Some(LockedList { memory, region, mut state, .. }) = self.locked_entry(fd) else {
            return self.kernel_set.modify(fd, events, data);
        };
        state.modify(region, memory.sleeper(), fd, events, data);
        if state.waiters > 0 {
            memory.wake_sleeper();
        }
        Ok(())
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn remove(&self, fd: i32) -> Result<()> {
        if let Some(LockedList { memory, region, mut state, is_in_memory }) = self.locked_list(fd) {
            if is_in_memory {
                // The descriptor is in `wake_epoll` if it waits for send space.
                let _ = memory.wake_epoll.delete(fd);
                state.remove(region, fd);
                return Ok(());
            }
            state.remove_closing(fd);
        }
        self.kernel_set.delete(fd)
    }

    /// Removes a descriptor that is about to be closed. Makes no system call: the kernel's instance
    /// drops it with the open file. A signal handler may call this.
    pub fn remove_closing(&self, fd: i32) {
        // Does not wait for the lock, because the interrupted code may hold it. If the descriptor
        // stays in the list, the next call that finds it removes it: an untracked descriptor has no
        // persistent interest.
        let Some(memory) = &self.memory else { return };
        if let Ok(mut state) = memory.state.try_lock() {
            state.remove_closing(fd);
        }
    }

    /// Calls [`Tracker::untrack`] for every descriptor that is in memory, for a caller that closes
    /// all of them.
    pub fn untrack_all(&self) {
        if let (Some(memory), Some(region)) = (&self.memory, self.tracker.shared().region()) {
            let mut state = memory.state();
            for fd in state.verified_fds(region, memory.sleeper()) {
                self.tracker.untrack(fd);
                state.remove_closing(fd);
            }
        }
    }

    /// Moves all descriptors to the kernel's instance, permanently. Call this before that instance
    /// is itself polled, added to another one, or used by a child.
    pub fn hand_over(&self) {
        if let (Some(memory), Some(region)) = (&self.memory, self.tracker.shared().region()) {
            memory.state().hand_over(region, memory.sleeper(), &self.kernel_set);
            memory.wake_sleeper();
        }
    }

    /// Like [`Watcher::hand_over`], for one descriptor. Does nothing if it is not in memory.
    pub fn hand_over_one(&self, fd: i32) {
        if let Some(LockedList { region, mut state, .. }) = self.locked_entry(fd) {
            state.hand_over_one(region, &self.kernel_set, fd);
        }
    }

    /// Records that a send took fewer bytes than requested, so that new send space is reported.
    /// Required in lean mode; in exact mode the eBPF programs notice the short send.
    pub fn report_short_send(&self, fd: i32) {
        if let Some(LockedList { memory, region, mut state, .. }) = self.locked_entry(fd) {
            state.record_short_send(region, &memory.wake_epoll, fd);
        }
    }

    /// Waits until a descriptor is ready, the timeout expires (`None`: never) or a signal is
    /// handled. Returns how many of `events`, which must not be empty, were stored.
    ///
    /// While memory has events, a wait makes no system call. A wait with a timeout of zero and no
    /// mask makes none either, unless a descriptor was ever in the kernel's instance or lacked send
    /// space. There are three exceptions: the interval of [`Tracker::set_kernel_check_interval`],
    /// the daemon check of [`crate::DAEMON_CHECK_WAITS_MAX`], and descriptors whose state memory
    /// does not show.
    ///
    /// # Errors
    /// EINTR; EINVAL if `events` is empty.
    pub fn wait(
        &self,
        events: &mut [DescriptorEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let counters = &self.tracker.shared().counters;
        counters.waits.add();
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        if let Some((memory, region)) = self.memory() {
            if region.check_live() {
                return self.wait_in_memory(memory, region, events, timeout, mask);
            }
            self.hand_over();
        }
        self.wait_in_kernel(events, timeout, mask)
    }

    fn wait_in_memory(
        &self,
        memory: &WatcherMemory,
        region: &ProcessRegion,
        events: &mut [DescriptorEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut state = memory.state();
        let has_kernel_entries = state.has_kernel_entries;
        let may_skip = self.kernel_check.skip_check(has_kernel_entries);
        let mut found = 0;
        if !may_skip {
            drop(state);
            self.kernel_check.record_check();
            // The kernel comes first, because events from memory might fill the array each time.
            found = self.poll_kernel(memory, region, events);
            state = memory.state();
        }
        found += state.scan(region, memory.sleeper(), &memory.wake_epoll, &mut events[found..]);
        drop(state);
        let is_over = timeout == Some(Duration::ZERO) && mask.is_none();
        if found == 0 && (!is_over || has_kernel_entries && may_skip) {
            return self.sleep(memory, region, events, timeout, mask);
        }
        if may_skip {
            self.tracker.shared().counters.without_syscall.add();
        }
        Ok(found)
    }

    /// Waits in the kernel's instance. Stores as many events as fit, at most [`EVENTS_MAX`].
    fn wait_in_kernel(
        &self,
        events: &mut [DescriptorEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut found = [EpollEvent::default(); EVENTS_MAX];
        let max = events.len().min(EVENTS_MAX);
        self.tracker.shared().counters.add_sleep(timeout);
        let count = self.kernel_set.wait(&mut found[..max], timeout, mask)?;
        for (event, found) in events.iter_mut().zip(&found[..count]) {
            *event = DescriptorEvent { data: found.data(), events: found.events(), edges: 0 };
        }
        Ok(count)
    }

    /// Stores the events that the kernel has now, and returns their number.
    fn poll_kernel(
        &self,
        memory: &WatcherMemory,
        region: &ProcessRegion,
        events: &mut [DescriptorEvent],
    ) -> usize {
        let at_once = Some(Duration::ZERO);
        match memory.wait_for_wakeup(region, at_once, None) {
            Ok(true) => self.wait_in_kernel(events, at_once, None).unwrap_or(0),
            _ => 0,
        }
    }

    fn sleep(
        &self,
        memory: &WatcherMemory,
        region: &ProcessRegion,
        events: &mut [DescriptorEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let shared = self.tracker.shared();
        let deadline = deadline_of(timeout);
        let mut left = timeout;
        loop {
            let has_changes = || memory.state().has_changes(region, memory.sleeper());
            if shared.spin.begin_spin(left) && shared.spin.spin_until(has_changes) {
                left = Some(Duration::ZERO);
            }
            let yielded = self.yielding.yield_now(left);
            let mut found = memory.begin(region, events);
            left = yielded.finish(found, left, deadline);
            if found == 0 {
                shared.counters.add_sleep(left);
                let woken = memory.wait_for_wakeup(region, left, mask);
                found = memory.end(region, events);
                let has_kernel_events = match woken {
                    Err(error) if found == 0 => return Err(error),
                    woken => woken.unwrap_or(false),
                };
                if !has_kernel_events || found < events.len() {
                    // This wait has checked the kernel too.
                    self.kernel_check.record_check();
                }
                if has_kernel_events && found < events.len() {
                    let at_once = Some(Duration::ZERO);
                    found += self.wait_in_kernel(&mut events[found..], at_once, None).unwrap_or(0);
                }
            }
            if found == 0 && yielded.is_interrupted {
                return Err(Errno::INTR);
            }
            left = remaining(deadline);
            if found > 0 || left == Some(Duration::ZERO) {
                return Ok(found);
            }
            if !region.is_live() || memory.state().is_handed_over {
                self.hand_over();
                return self.wait_in_kernel(events, left, mask);
            }
        }
    }

    /// Locks the state. Returns `None` if the watcher does not use memory, or has handed over all
    /// descriptors. While the lock is held, no other thread hands them over.
    fn locked_list(&self, fd: i32) -> Option<LockedList<'_>> {
        let (memory, region) = self.memory.as_ref().zip(self.tracker.shared().region())?;
        let mut state = memory.state();
        if state.is_handed_over {
            return None;
        }
        let is_in_memory = state.verify_in_memory(region, memory.sleeper(), fd);
        Some(LockedList { memory, region, state, is_in_memory })
    }

    /// Like [`Watcher::locked_list`], but `None` if the descriptor is not in memory.
    fn locked_entry(&self, fd: i32) -> Option<LockedList<'_>> {
        self.locked_list(fd).filter(|locked| locked.is_in_memory)
    }

    /// Returns the part of the watcher that uses memory, and the region of the process, or `None`
    /// once all descriptors are handed over.
    fn memory(&self) -> Option<(&WatcherMemory, &ProcessRegion)> {
        let memory = self.memory.as_ref().zip(self.tracker.shared().region());
        memory.filter(|(memory, _)| !memory.state().is_handed_over)
    }
}

impl WatcherMemory {
    fn new(
        region: &ProcessRegion,
        sleeper: Box<Sleeper>,
        kernel_set: &Epoll,
        has_kernel_entries: bool,
    ) -> Result<Self> {
        let (wake_epoll, wakeup) = (Epoll::new()?, kernel::eventfd()?);
        // Edge-triggered: each record of the ring is an edge. Old records stay in the ring until
        // the next sleep begins.
        wake_epoll.add(sleeper.ring.as_fd().as_raw_fd(), bits::IN | bits::EDGE, RING)?;
        wake_epoll.add(region.registration().as_raw_fd(), HANGUP_ONLY, DAEMON)?;
        wake_epoll.add(kernel_set.raw_fd(), bits::IN, KERNEL_SET)?;
        wake_epoll.add(wakeup.as_raw_fd(), bits::IN, WAKEUP)?;
        Ok(Self {
            sleeper: Some(sleeper),
            wake_epoll,
            wakeup,
            state: Mutex::new(WatchList::new(has_kernel_entries)),
        })
    }

    fn sleeper(&self) -> &Sleeper {
        self.sleeper.as_ref().expect("taken only when the watcher is dropped")
    }

    fn state(&self) -> MutexGuard<'_, WatchList> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_sleeper(&self) {
        kernel::signal_eventfd(&self.wakeup);
    }

    /// Prepares a sleep. Returns the number of events that are ready; the thread sleeps only if
    /// there are none.
    fn begin(&self, region: &ProcessRegion, events: &mut [DescriptorEvent]) -> usize {
        let mut state = self.state();
        // The result does not matter: persistent interests are never taken over.
        let _ = self.sleeper().begin_sleep(&region.pages);
        let found = state.scan(region, self.sleeper(), &self.wake_epoll, events);
        if found == 0 {
            state.waiters += 1;
        } else if state.waiters == 0 {
            self.sleeper().end_sleep(&region.pages);
        } else if state.has_changes(region, self.sleeper()) {
            // `begin_sleep` may have drained the wake-up of a thread that still sleeps.
            self.wake_sleeper();
        }
        found
    }

    /// Ends a sleep, and returns the number of events. If other threads still sleep, begins a sleep
    /// again for them, and wakes one for the events that remain.
    fn end(&self, region: &ProcessRegion, events: &mut [DescriptorEvent]) -> usize {
        let mut state = self.state();
        state.waiters -= 1;
        if state.waiters == 0 {
            self.sleeper().end_sleep(&region.pages);
        } else {
            let _ = self.sleeper().begin_sleep(&region.pages);
        }
        let found = state.scan(region, self.sleeper(), &self.wake_epoll, events);
        if state.waiters > 0 && state.has_changes(region, self.sleeper()) {
            self.wake_sleeper();
        }
        found
    }

    /// Waits on `wake_epoll`. Returns whether the kernel's instance has events.
    fn wait_for_wakeup(
        &self,
        region: &ProcessRegion,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let mut woken = [EpollEvent::default(); EVENTS_MAX];
        let count = self.wake_epoll.wait(&mut woken, timeout, mask)?;
        let mut has_kernel_events = false;
        for event in &woken[..count] {
            match event.data() {
                RING => {}
                DAEMON => region.mark_lost(),
                KERNEL_SET => has_kernel_events = true,
                WAKEUP => kernel::drain_eventfd(&self.wakeup),
                fd => self.state().record_writable(region, fd as usize % SOCKETS),
            }
        }
        Ok(has_kernel_events)
    }
}

/// Returns the kernel's instance, which has only the descriptors that are not in memory.
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kernel_set.as_fd()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let (Some(memory), Some(region)) = (&mut self.memory, self.tracker.shared().region())
        else {
            return;
        };
        let sleeper = memory.sleeper.take().expect("taken only here");
        let state = memory.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.remove_all(region, &sleeper);
        region.return_sleeper(sleeper);
    }
}

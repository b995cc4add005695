//! `Watcher`: of a set of descriptors, only what has changed (epoll(7), and what the paper leaves
//! as future work).

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

/// A set of descriptors, each with bits of epoll(7) that are waited for and a number of the
/// caller's. Those that are tracked are known by memory; the rest is in an epoll instance of the
/// kernel's. Its methods may be called by any thread, also while another one waits.
///
/// A descriptor stays where it was added: one that is tracked only later is the kernel's until it
/// is removed. Before one is closed it is forgotten ([`Tracker::forget`], [`Watcher::forget`]).
pub struct Watcher {
    tracker: Tracker,
    /// What is not tracked.
    kernel_set: Epoll,
    /// None where nothing is tracked, or as many sleep as can.
    memory: Option<WatcherMemory>,
    kernel_check: KernelCheckInterval,
    yielding: YieldBeforeSleep,
}

/// What a watcher has of a registered process.
struct WatcherMemory {
    /// Taken out when the watcher ends.
    sleeper: Option<Box<Sleeper>>,
    /// What a thread sleeps on: the ring, the daemon, the items of the kernel, `kick`, and sockets
    /// that wait for room.
    wake_epoll: Epoll,
    /// Written when there is something for a thread that sleeps already.
    kick: InternalFd,
    state: Mutex<WatchList>,
}

/// What a call about a descriptor changes, locked.
struct LockedList<'a> {
    memory: &'a WatcherMemory,
    region: &'a ProcessRegion,
    state: MutexGuard<'a, WatchList>,
    /// Memory knows the descriptor: it was added, and not forgotten since.
    is_in_memory: bool,
}

/// What the bell rang for, in the events of `bell`; a socket that has room is told by its
/// descriptor.
const RING: u64 = 1 << 32;
const DAEMON: u64 = 2 << 32;
const KERNEL_SET: u64 = 3 << 32;
const WAKEUP: u64 = 4 << 32;

impl Watcher {
    /// A watcher with nothing in it, over an epoll instance of its own.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new(tracker: &Tracker) -> Result<Self, Error> {
        Self::build(tracker, Epoll::new()?)
    }

    /// As [`Watcher::new`], over an epoll instance of the caller's, which stays open as long as the
    /// watcher is there. What is in it already is waited for as well.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn over_epoll(tracker: &Tracker, epoll: i32) -> Result<Self, Error> {
        Self::build(tracker, Epoll::Borrowed(epoll))
    }

    fn build(tracker: &Tracker, items: Epoll) -> Result<Self, Error> {
        let inner = tracker.shared();
        let sleeper = inner.live_region().and_then(|region| {
            let mut sleeper = region.take_sleeper_to_keep()?;
            // Of who had it before: other threads would be refused what it was interested in.
            sleeper.withdraw(&region.pages);
            Some((region, sleeper))
        });
        let memory = sleeper.map(|(region, sleeper)| WatcherMemory::new(region, sleeper, &items));
        let (passes, turn) = (inner.kernel_check.with_same_limits(), YieldBeforeSleep::default());
        let memory = memory.transpose()?;
        Ok(Self {
            tracker: tracker.clone(),
            kernel_set: items,
            memory,
            kernel_check: passes,
            yielding: turn,
        })
    }

    /// Adds a descriptor, with bits of epoll(7) among which EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE
    /// and EPOLLWAKEUP may be. The last two leave it to the kernel.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let Some(LockedList { memory, region, mut state, is_in_memory: is_known }) =
            self.locked_list(fd)
        else {
            return self.kernel_set.add(fd, events, data);
        };
        if is_known {
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

    /// Changes what is waited for. One that was told once is waited for again.
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
        if let Some(LockedList { memory, region, mut state, is_in_memory: is_known }) =
            self.locked_list(fd)
        {
            if is_known {
                // It may wait for room.
                let _ = memory.wake_epoll.delete(fd);
                state.remove(region, fd);
                return Ok(());
            }
            state.remove_closing(fd);
        }
        self.kernel_set.delete(fd)
    }

    /// To be called right before a descriptor is closed: its number may be another file's from
    /// then on. Makes no call; what the kernel has of it ends with the open file. A signal handler
    /// may call it.
    pub fn remove_closing(&self, fd: i32) {
        // Waits for nobody: what the handler has interrupted may have the lock. What it would change
        // then is found out later: who is tracked no more has no interest, and a number that was the
        // kernel's is so again.
        let Some(memory) = &self.memory else { return };
        if let Ok(mut state) = memory.state.try_lock() {
            state.remove_closing(fd);
        }
    }

    /// Has every tracked descriptor of the set forgotten ([`Tracker::forget`]): for who closes all of
    /// them.
    pub fn untrack_all(&self) {
        if let (Some(memory), Some(region)) = (&self.memory, self.tracker.shared().region()) {
            let mut state = memory.state();
            for fd in state.verified_fds(region, memory.sleeper()) {
                self.tracker.untrack(fd);
                state.remove_closing(fd);
            }
        }
    }

    /// Leaves all to the kernel's instance from now on, for good: for one that is to be watched
    /// itself, or is to be used by a child.
    pub fn hand_over(&self) {
        if let (Some(memory), Some(region)) = (&self.memory, self.tracker.shared().region()) {
            memory.state().hand_over(region, memory.sleeper(), &self.kernel_set);
            memory.wake_sleeper();
        }
    }

    /// As [`Watcher::give_up`], of one descriptor; nothing if it is not in the set, or not tracked.
    pub fn hand_over_one(&self, fd: i32) {
        if let Some(LockedList { region, mut state, .. }) = self.locked_entry(fd) {
            state.hand_over_one(region, &self.kernel_set, fd);
        }
    }

    /// In lean mode: a send has fallen short, so that room is to be waited for. In exact mode the
    /// kernel says so.
    pub fn report_short_send(&self, fd: i32) {
        if let Some(LockedList { memory, region, mut state, .. }) = self.locked_entry(fd) {
            state.record_short_send(region, &memory.wake_epoll, fd);
        }
    }

    /// Waits until there is something to tell, `timeout` is over (`None`: never) or a signal comes;
    /// gives how many of `events`, of which there is at least one, were filled in. No call is made
    /// while memory has something to tell, but as often as [`Tracker::set_passes`] says; none
    /// either when it has nothing, everything is tracked and the timeout is zero.
    ///
    /// # Errors
    /// EINTR; EINVAL where there is no room in `events`.
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
        let has_others = state.has_kernel_entries;
        let may_pass = self.kernel_check.skip_check(has_others);
        let mut found = 0;
        if !may_pass {
            drop(state);
            self.kernel_check.record_check();
            // First: memory alone may fill all there is room for, again and again.
            found = self.poll_kernel(memory, region, events);
            state = memory.state();
        }
        found += state.scan(region, memory.sleeper(), &memory.wake_epoll, &mut events[found..]);
        drop(state);
        let is_over = timeout == Some(Duration::ZERO) && mask.is_none();
        if found == 0 && (!is_over || has_others && may_pass) {
            return self.sleep(memory, region, events, timeout, mask);
        }
        if may_pass {
            self.tracker.shared().counters.without_call.add();
        }
        Ok(found)
    }

    /// Waits for what is not tracked: gives as much as there is room for, and at most [`EVENTS_MAX`].
    fn wait_in_kernel(
        &self,
        events: &mut [DescriptorEvent],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut found = [EpollEvent::default(); EVENTS_MAX];
        let room = events.len().min(EVENTS_MAX);
        self.tracker.shared().counters.add_sleep(timeout);
        let count = self.kernel_set.wait(&mut found[..room], timeout, mask)?;
        for (event, found) in events.iter_mut().zip(&found[..count]) {
            *event = DescriptorEvent { data: found.data(), events: found.events(), edges: 0 };
        }
        Ok(count)
    }

    /// What the kernel has to tell at once.
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
        let inner = self.tracker.shared();
        let deadline = deadline_of(timeout);
        let mut left = timeout;
        loop {
            let has_changes = || memory.state().has_changes(region, memory.sleeper());
            if inner.spin.begin_spin(left) && inner.spin.spin_until(has_changes) {
                left = Some(Duration::ZERO);
            }
            let given = self.yielding.yield_now(left);
            let mut found = memory.begin(region, events);
            left = given.finish(found, left, deadline);
            if found == 0 {
                inner.counters.add_sleep(left);
                let rung = memory.wait_for_wakeup(region, left, mask);
                found = memory.end(region, events);
                let has_items = match rung {
                    Err(error) if found == 0 => return Err(error),
                    rung => rung.unwrap_or(false),
                };
                if !has_items || found < events.len() {
                    // The kernel has been asked by that, too.
                    self.kernel_check.record_check();
                }
                if has_items && found < events.len() {
                    let at_once = Some(Duration::ZERO);
                    found += self.wait_in_kernel(&mut events[found..], at_once, None).unwrap_or(0);
                }
            }
            if found == 0 && given.is_interrupted {
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

    /// Nothing once all is left to the kernel, which stays so while the place is held.
    fn locked_list(&self, fd: i32) -> Option<LockedList<'_>> {
        let (memory, region) = self.memory.as_ref().zip(self.tracker.shared().region())?;
        let mut state = memory.state();
        if state.is_handed_over {
            return None;
        }
        let is_known = state.verify_in_memory(region, memory.sleeper(), fd);
        Some(LockedList { memory, region, state, is_in_memory: is_known })
    }

    /// As [`Watcher::place`], and nothing if memory does not know the descriptor.
    fn locked_entry(&self, fd: i32) -> Option<LockedList<'_>> {
        self.locked_list(fd).filter(|place| place.is_in_memory)
    }

    /// Nothing once all is left to the kernel.
    fn memory(&self) -> Option<(&WatcherMemory, &ProcessRegion)> {
        let memory = self.memory.as_ref().zip(self.tracker.shared().region());
        memory.filter(|(memory, _)| !memory.state().is_handed_over)
    }
}

impl WatcherMemory {
    fn new(region: &ProcessRegion, sleeper: Box<Sleeper>, items: &Epoll) -> Result<Self> {
        let (bell, kick) = (Epoll::new()?, kernel::eventfd()?);
        // By edges: each wake is one, and there is nothing to be read that would be left.
        bell.add(sleeper.ring.as_fd().as_raw_fd(), bits::IN | bits::EDGE, RING)?;
        bell.add(region.registration().as_raw_fd(), HANGUP_ONLY, DAEMON)?;
        bell.add(items.raw_fd(), bits::IN, KERNEL_SET)?;
        bell.add(kick.as_raw_fd(), bits::IN, WAKEUP)?;
        Ok(Self {
            sleeper: Some(sleeper),
            wake_epoll: bell,
            kick,
            state: Mutex::new(WatchList::default()),
        })
    }

    fn sleeper(&self) -> &Sleeper {
        self.sleeper.as_ref().expect("it is there as long as the watcher is")
    }

    fn state(&self) -> MutexGuard<'_, WatchList> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_sleeper(&self) {
        kernel::signal_eventfd(&self.kick);
    }

    /// A thread is about to sleep, unless there is something to tell.
    fn begin(&self, region: &ProcessRegion, events: &mut [DescriptorEvent]) -> usize {
        let mut state = self.state();
        // What a watcher waits for nobody takes over.
        let _ = self.sleeper().begin_sleep(&region.pages);
        let found = state.scan(region, self.sleeper(), &self.wake_epoll, events);
        if found == 0 {
            state.waiters += 1;
        } else if state.waiters == 0 {
            self.sleeper().end_sleep(&region.pages);
        } else if state.has_changes(region, self.sleeper()) {
            // The ring, by which whoever sleeps was being told of it, may just have been drained.
            self.wake_sleeper();
        }
        found
    }

    /// It has been woken. Whoever else sleeps is to be told of what comes, and of what is left.
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

    /// Waits for the bell: whether it rang for items of the kernel.
    fn wait_for_wakeup(
        &self,
        region: &ProcessRegion,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let mut rung = [EpollEvent::default(); EVENTS_MAX];
        let count = self.wake_epoll.wait(&mut rung, timeout, mask)?;
        let mut has_items = false;
        for event in &rung[..count] {
            match event.data() {
                RING => {}
                DAEMON => region.mark_lost(),
                KERNEL_SET => has_items = true,
                WAKEUP => kernel::drain_eventfd(&self.kick),
                fd => self.state().record_writable(region, fd as usize % SOCKETS),
            }
        }
        Ok(has_items)
    }
}

/// The kernel's instance: a descriptor that can be polled, of what is not tracked.
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
        let sleeper = memory.sleeper.take().expect("it is taken here");
        let state = memory.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.remove_all(region, &sleeper);
        region.return_sleeper(sleeper);
    }
}

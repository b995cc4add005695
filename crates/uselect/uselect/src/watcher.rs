//! `Watcher`: of a set of descriptors, only what has changed (epoll(7), and what the paper leaves
//! as future work).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::bits;
use crate::deadline::{deadline_of, left_of};
use crate::error::Error;
use crate::hidden::Hidden;
use crate::items::{Event, State};
use crate::kernel::{self, Epoll, EpollEvent, Errno, Result, SignalSet};
use crate::layout::SOCKETS;
use crate::limits::EVENTS_MAX;
use crate::passes::Passes;
use crate::region::{ENDED, Region};
use crate::sleep::Sleeper;
use crate::tracker::Tracker;
use crate::turn::Turn;

/// A set of descriptors, each with bits of epoll(7) that are waited for and a number of the
/// caller's. Those that are tracked are known by memory; the rest is in an epoll instance of the
/// kernel's. Its methods may be called by any thread, also while another one waits.
///
/// A descriptor stays where it was added: one that is tracked only later is the kernel's until it
/// is removed. Before one is closed it is forgotten ([`Tracker::forget`], [`Watcher::forget`]).
pub struct Watcher {
    tracker: Tracker,
    /// What is not tracked.
    items: Epoll,
    /// None where nothing is tracked, or as many sleep as can.
    memory: Option<Memory>,
    passes: Passes,
    turn: Turn,
}

/// What a watcher has of a registered process.
struct Memory {
    /// Taken out when the watcher ends.
    sleeper: Option<Box<Sleeper>>,
    /// What a thread sleeps on: the ring, the daemon, the items of the kernel, `kick`, and sockets
    /// that wait for room.
    bell: Epoll,
    /// Written when there is something for a thread that sleeps already.
    kick: Hidden,
    state: Mutex<State>,
}

/// What a call about a descriptor changes, locked.
struct Place<'a> {
    memory: &'a Memory,
    region: &'a Region,
    state: MutexGuard<'a, State>,
    /// Memory knows the descriptor: it was added, and not forgotten since.
    is_known: bool,
}

/// What the bell rang for, in the events of `bell`; a socket that has room is told by its
/// descriptor.
const RING: u64 = 1 << 32;
const DAEMON: u64 = 2 << 32;
const ITEMS: u64 = 3 << 32;
const KICK: u64 = 4 << 32;

impl Watcher {
    /// A watcher with nothing in it, over an epoll instance of its own.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn new(tracker: &Tracker) -> Result<Self, Error> {
        Self::of(tracker, Epoll::new()?)
    }

    /// As [`Watcher::new`], over an epoll instance of the caller's, which stays open as long as the
    /// watcher is there. What is in it already is waited for as well.
    ///
    /// # Errors
    /// EMFILE, ENFILE, ENOMEM.
    pub fn over(tracker: &Tracker, epoll: i32) -> Result<Self, Error> {
        Self::of(tracker, Epoll::Lent(epoll))
    }

    fn of(tracker: &Tracker, items: Epoll) -> Result<Self, Error> {
        let inner = tracker.inner();
        let sleeper = inner.live().and_then(|region| {
            let mut sleeper = region.sleeper_to_keep()?;
            // Of who had it before: other threads would be refused what it was interested in.
            sleeper.take_back(&region.pages);
            Some((region, sleeper))
        });
        let memory = sleeper.map(|(region, sleeper)| Memory::new(region, sleeper, &items));
        let (passes, turn) = (inner.passes.like(), Turn::default());
        let memory = memory.transpose()?;
        Ok(Self { tracker: tracker.clone(), items, memory, passes, turn })
    }

    /// Adds a descriptor, with bits of epoll(7) among which EPOLLET, EPOLLONESHOT, EPOLLEXCLUSIVE
    /// and EPOLLWAKEUP may be. The last two leave it to the kernel.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn add(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let Some(Place { memory, region, mut state, is_known }) = self.place(fd) else {
            return self.items.add(fd, events, data);
        };
        if is_known {
            return Err(Errno::EXIST);
        }
        if !state.add(region, memory.sleeper(), fd, events, data) {
            self.items.add(fd, events, data)?;
            state.leave_to_kernel(fd);
        } else if state.waiters > 0 {
            memory.kick();
        }
        Ok(())
    }

    /// Changes what is waited for. One that was told once is waited for again.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn modify(&self, fd: i32, events: u32, data: u64) -> Result<()> {
        let Some(Place { memory, region, mut state, .. }) = self.known(fd) else {
            return self.items.modify(fd, events, data);
        };
        state.modify(region, memory.sleeper(), fd, events, data);
        if state.waiters > 0 {
            memory.kick();
        }
        Ok(())
    }

    /// Removes a descriptor.
    ///
    /// # Errors
    /// Those of epoll_ctl(2).
    pub fn remove(&self, fd: i32) -> Result<()> {
        if let Some(Place { memory, region, mut state, is_known }) = self.place(fd) {
            if is_known {
                // It may wait for room.
                let _ = memory.bell.delete(fd);
                state.remove(region, fd);
                return Ok(());
            }
            state.forget(fd);
        }
        self.items.delete(fd)
    }

    /// To be called right before a descriptor is closed: its number may be another file's from
    /// then on. Makes no call; what the kernel has of it ends with the open file. A signal handler
    /// may call it.
    pub fn forget(&self, fd: i32) {
        // Waits for nobody: what the handler has interrupted may have the lock. What it would change
        // then is found out later: who is tracked no more has no interest, and a number that was the
        // kernel's is so again.
        let Some(memory) = &self.memory else { return };
        if let Ok(mut state) = memory.state.try_lock() {
            state.forget(fd);
        }
    }

    /// Has every tracked descriptor of the set forgotten ([`Tracker::forget`]): for who closes all of
    /// them.
    pub fn forget_all(&self) {
        if let (Some(memory), Some(region)) = (&self.memory, self.tracker.inner().region()) {
            let mut state = memory.state();
            for fd in state.tracked(region, memory.sleeper()) {
                self.tracker.forget(fd);
                state.forget(fd);
            }
        }
    }

    /// Leaves all to the kernel's instance from now on, for good: for one that is to be watched
    /// itself, or is to be used by a child.
    pub fn give_up(&self) {
        if let (Some(memory), Some(region)) = (&self.memory, self.tracker.inner().region()) {
            memory.state().give_up(region, memory.sleeper(), &self.items);
            memory.kick();
        }
    }

    /// As [`Watcher::give_up`], of one descriptor; nothing if it is not in the set, or not tracked.
    pub fn give_up_one(&self, fd: i32) {
        if let Some(Place { region, mut state, .. }) = self.known(fd) {
            state.give_up_one(region, &self.items, fd);
        }
    }

    /// In lean mode: a send has fallen short, so that room is to be waited for. In exact mode the
    /// kernel says so.
    pub fn lacks_room(&self, fd: i32) {
        if let Some(Place { memory, region, mut state, .. }) = self.known(fd) {
            state.lacks_room(region, &memory.bell, fd);
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
        events: &mut [Event],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let counters = &self.tracker.inner().counters;
        counters.waits.add();
        if events.is_empty() {
            return Err(Errno::INVAL);
        }
        if let Some((memory, region)) = self.memory() {
            if region.begins_live() {
                return self.wait_by_memory(memory, region, events, timeout, mask);
            }
            self.give_up();
        }
        self.wait_for_items(events, timeout, mask)
    }

    fn wait_by_memory(
        &self,
        memory: &Memory,
        region: &Region,
        events: &mut [Event],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut state = memory.state();
        let has_others = state.has_others;
        let may_pass = self.passes.may_pass(has_others);
        let mut found = 0;
        if !may_pass {
            drop(state);
            self.passes.end();
            // First: memory alone may fill all there is room for, again and again.
            found = self.look_at_kernel(memory, region, events);
            state = memory.state();
        }
        found += state.scan(region, memory.sleeper(), &memory.bell, &mut events[found..]);
        drop(state);
        let is_over = timeout == Some(Duration::ZERO) && mask.is_none();
        if found == 0 && (!is_over || has_others && may_pass) {
            return self.sleep(memory, region, events, timeout, mask);
        }
        if may_pass {
            self.tracker.inner().counters.without_call.add();
        }
        Ok(found)
    }

    /// Waits for what is not tracked: gives as much as there is room for, and at most [`EVENTS_MAX`].
    fn wait_for_items(
        &self,
        events: &mut [Event],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let mut found = [EpollEvent::default(); EVENTS_MAX];
        let room = events.len().min(EVENTS_MAX);
        self.tracker.inner().counters.add_sleep(timeout);
        let count = self.items.wait(&mut found[..room], timeout, mask)?;
        for (event, found) in events.iter_mut().zip(&found[..count]) {
            *event = Event { data: found.data(), events: found.events(), edges: 0 };
        }
        Ok(count)
    }

    /// What the kernel has to tell at once.
    fn look_at_kernel(&self, memory: &Memory, region: &Region, events: &mut [Event]) -> usize {
        let at_once = Some(Duration::ZERO);
        match memory.listen(region, at_once, None) {
            Ok(true) => self.wait_for_items(events, at_once, None).unwrap_or(0),
            _ => 0,
        }
    }

    fn sleep(
        &self,
        memory: &Memory,
        region: &Region,
        events: &mut [Event],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let inner = self.tracker.inner();
        let deadline = deadline_of(timeout);
        let mut left = timeout;
        loop {
            let has_changes = || memory.state().has_changes(region, memory.sleeper());
            if inner.spin.spins(left) && inner.spin.until(has_changes) {
                left = Some(Duration::ZERO);
            }
            let given = self.turn.give(left);
            let mut found = memory.begin(region, events);
            left = given.end(found, left, deadline);
            if found == 0 {
                inner.counters.add_sleep(left);
                let rung = memory.listen(region, left, mask);
                found = memory.end(region, events);
                let has_items = match rung {
                    Err(error) if found == 0 => return Err(error),
                    rung => rung.unwrap_or(false),
                };
                if !has_items || found < events.len() {
                    // The kernel has been asked by that, too.
                    self.passes.end();
                }
                if has_items && found < events.len() {
                    let at_once = Some(Duration::ZERO);
                    found += self.wait_for_items(&mut events[found..], at_once, None).unwrap_or(0);
                }
            }
            if found == 0 && given.is_interrupted {
                return Err(Errno::INTR);
            }
            left = left_of(deadline);
            if found > 0 || left == Some(Duration::ZERO) {
                return Ok(found);
            }
            if !region.is_live() || memory.state().is_given_up {
                self.give_up();
                return self.wait_for_items(events, left, mask);
            }
        }
    }

    /// Nothing once all is left to the kernel, which stays so while the place is held.
    fn place(&self, fd: i32) -> Option<Place<'_>> {
        let (memory, region) = self.memory.as_ref().zip(self.tracker.inner().region())?;
        let mut state = memory.state();
        if state.is_given_up {
            return None;
        }
        let is_known = state.has(region, memory.sleeper(), fd);
        Some(Place { memory, region, state, is_known })
    }

    /// As [`Watcher::place`], and nothing if memory does not know the descriptor.
    fn known(&self, fd: i32) -> Option<Place<'_>> {
        self.place(fd).filter(|place| place.is_known)
    }

    /// Nothing once all is left to the kernel.
    fn memory(&self) -> Option<(&Memory, &Region)> {
        let memory = self.memory.as_ref().zip(self.tracker.inner().region());
        memory.filter(|(memory, _)| !memory.state().is_given_up)
    }
}

impl Memory {
    fn new(region: &Region, sleeper: Box<Sleeper>, items: &Epoll) -> Result<Self> {
        let (bell, kick) = (Epoll::new()?, kernel::eventfd()?);
        // By edges: each wake is one, and there is nothing to be read that would be left.
        bell.add(sleeper.ring.as_fd().as_raw_fd(), bits::IN | bits::EDGE, RING)?;
        bell.add(region.registration().as_raw_fd(), ENDED, DAEMON)?;
        bell.add(items.number(), bits::IN, ITEMS)?;
        bell.add(kick.as_raw_fd(), bits::IN, KICK)?;
        Ok(Self { sleeper: Some(sleeper), bell, kick, state: Mutex::new(State::default()) })
    }

    fn sleeper(&self) -> &Sleeper {
        self.sleeper.as_ref().expect("it is there as long as the watcher is")
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick(&self) {
        kernel::signal(&self.kick);
    }

    /// A thread is about to sleep, unless there is something to tell.
    fn begin(&self, region: &Region, events: &mut [Event]) -> usize {
        let mut state = self.state();
        // What a watcher waits for nobody takes over.
        let _ = self.sleeper().begin(&region.pages);
        let found = state.scan(region, self.sleeper(), &self.bell, events);
        if found == 0 {
            state.waiters += 1;
        } else if state.waiters == 0 {
            self.sleeper().end(&region.pages);
        } else if state.has_changes(region, self.sleeper()) {
            // The ring, by which whoever sleeps was being told of it, may just have been drained.
            self.kick();
        }
        found
    }

    /// It has been woken. Whoever else sleeps is to be told of what comes, and of what is left.
    fn end(&self, region: &Region, events: &mut [Event]) -> usize {
        let mut state = self.state();
        state.waiters -= 1;
        if state.waiters == 0 {
            self.sleeper().end(&region.pages);
        } else {
            let _ = self.sleeper().begin(&region.pages);
        }
        let found = state.scan(region, self.sleeper(), &self.bell, events);
        if state.waiters > 0 && state.has_changes(region, self.sleeper()) {
            self.kick();
        }
        found
    }

    /// Waits for the bell: whether it rang for items of the kernel.
    fn listen(
        &self,
        region: &Region,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<bool> {
        let mut rung = [EpollEvent::default(); EVENTS_MAX];
        let count = self.bell.wait(&mut rung, timeout, mask)?;
        let mut has_items = false;
        for event in &rung[..count] {
            match event.data() {
                RING => {}
                DAEMON => region.lose(),
                ITEMS => has_items = true,
                KICK => kernel::drain(&self.kick),
                fd => self.state().has_room(region, fd as usize % SOCKETS),
            }
        }
        Ok(has_items)
    }
}

/// The kernel's instance: a descriptor that can be polled, of what is not tracked.
impl AsFd for Watcher {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.items.as_fd()
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let (Some(memory), Some(region)) = (&mut self.memory, self.tracker.inner().region()) else {
            return;
        };
        let sleeper = memory.sleeper.take().expect("it is taken here");
        let state = memory.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.end(region, &sleeper);
        region.rest(sleeper);
    }
}

//! `Filter`: of which sockets the kernel need not be asked, known without any privilege.
//!
//! A socket that poll(2) has found not ready, and of which an io_uring instance has told nothing
//! since, is not ready. Of all others poll(2) is asked. So a socket's bits say "something has
//! happened since poll(2) last found nothing": no more, but that without a call.
//!
//! A socket is armed, which is a request of the ring's that tells of edges for as long as it is
//! tracked, once poll(2) has found nothing there. The ring then keeps the socket open, so it is
//! disarmed before its descriptor is closed.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use crossbeam_queue::ArrayQueue;
use millrace_uring::{PollRing, RingGuard};

use crate::bitmap::{ReadinessBitmaps, fd_index, is_set, set_bit};
use crate::bits;
use crate::error::Error;
use crate::internal_fd::InternalFd;
use crate::kernel::{self, Mapping, Result, SharedMemory, SignalSet};
use crate::layout::{Bitmap, SOCKETS};
use crate::limits::{COMPLETIONS_MAX, DISARM_TIME_MAX, REQUESTS_MAX};
use crate::poll_set::PollSet;

pub(crate) struct Multishot {
    ring: PollRing<InternalFd>,
    table: Mapping<HintTable>,
    /// 1 in the process that made it, 0 in its children, which leave the ring alone.
    is_ours: Mapping<AtomicU8>,
    /// What a thread that waits by the ring has; one at a time, as who takes a completion that
    /// another one sleeps for would have to tell it.
    guesser: ArrayQueue<HintPoller>,
    /// That thread sleeps, or is about to; others that take completions meanwhile tell it.
    is_asleep: AtomicBool,
    wakeup: InternalFd,
}

/// By descriptor.
#[repr(C)]
struct HintTable {
    /// Since it was forgotten last.
    tracked: Bitmap,
    /// Armed: the ring tells of it.
    active: Bitmap,
    /// Something has happened since poll(2) last found nothing, by what select(2) asks about.
    read: Bitmap,
    write: Bitmap,
    urgent: Bitmap,
    /// Besides, an error or a hang-up, which is told to who does not ask.
    except: Bitmap,
    /// A request of the ring's has it, or is about to. Written by who has the turn.
    in_ring: Bitmap,
    /// How many sockets have been forgotten there: what the ring tells of those is dropped.
    generation: [AtomicU32; SOCKETS],
    /// How often bits were set. Who has asked poll(2) and found nothing takes bits back, and sets
    /// them again if this has changed since; who sets bits counts before that.
    changes: [AtomicU32; SOCKETS],
}

// SAFETY: it is made of atomics.
unsafe impl SharedMemory for HintTable {}

/// What a thread has that asks poll(2).
#[derive(Default)]
pub(crate) struct HintPoller {
    pub(crate) asked: PollSet,
    /// By place in `asked`: the count of changes before.
    changes: Vec<u32>,
    /// To be armed: descriptor, and the number that its request carries.
    arming: Vec<(i32, u64)>,
}

/// Of which nobody knows what it was: poll(2) is to be asked, whatever the question.
const UNKNOWN_EVENTS: u32 = bits::ERR;

/// What a request is to tell of.
const ARMED_EVENTS: u32 = bits::IN | bits::PRI | bits::OUT | bits::RDHUP | bits::ERR | bits::HUP;

impl Multishot {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::with_capacity(REQUESTS_MAX, COMPLETIONS_MAX)
    }

    fn with_capacity(requests: u32, completions: u32) -> Result<Self, Error> {
        let is_ours = Mapping::wiped_on_fork()?;
        is_ours.store(1, Ordering::Relaxed);
        let guesser = ArrayQueue::new(1);
        guesser.force_push(HintPoller::default());
        Ok(Self {
            ring: PollRing::new(requests, completions, InternalFd::new).map_err(Error::NoRing)?,
            table: Mapping::private()?,
            is_ours,
            guesser,
            is_asleep: AtomicBool::new(false),
            wakeup: kernel::eventfd()?,
        })
    }

    pub(crate) fn is_this_process(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed) == 1
    }

    pub(crate) fn bits(&self) -> ReadinessBitmaps<'_> {
        let HintTable { active, read, write, urgent, except, .. } = &*self.table;
        ReadinessBitmaps { active, read, write, urgent, except, is_hint: true }
    }

    pub(crate) fn is_tracked(&self, fd: i32) -> bool {
        fd_index(fd).is_some_and(|fd| is_set(&self.table.tracked, fd))
    }

    /// Of other files than TCP sockets poll(2) may know what their wakes do not tell.
    pub(crate) fn track(&self, fd: i32) -> bool {
        let Some(at) = fd_index(fd).filter(|fd| !is_set(&self.table.tracked, *fd)) else {
            return false;
        };
        if !self.is_this_process() || !kernel::borrow_fd(fd).is_some_and(kernel::is_tcp) {
            return false;
        }
        self.set_hints(at, UNKNOWN_EVENTS);
        set_bit(&self.table.tracked, at, true);
        true
    }

    /// Something may have happened of which the ring does not tell.
    pub(crate) fn refresh(&self, fd: i32) {
        if let Some(at) = fd_index(fd).filter(|_| self.is_this_process() && self.is_tracked(fd)) {
            self.set_hints(at, UNKNOWN_EVENTS);
            self.wake_poller();
        }
    }

    /// To be called right before a descriptor is closed: returns when the ring has let go of the
    /// socket, or is about to, where a thread that is busy has armed it.
    pub(crate) fn untrack(&self, fd: i32) {
        let Some(at) = fd_index(fd).filter(|_| self.is_this_process() && self.is_tracked(fd))
        else {
            return;
        };
        set_bit(&self.table.tracked, at, false);
        // Pairs with `confirm`: either that finds the generation changed and disarms, or it is seen
        // here to be active.
        let generation = self.table.generation[at].fetch_add(1, Ordering::SeqCst);
        if is_set(&self.table.active, at) {
            set_bit(&self.table.active, at, false);
            self.disarm(at, generation);
        }
    }

    fn disarm(&self, at: usize, generation: u32) {
        // If it has ended by itself there is none.
        let _ = self.ring.cancel(user_data(at, generation));
        let begin = Instant::now();
        // Who interrupts somebody that has the turn must not wait for it.
        while self.fetch_completions().is_some() && is_set(&self.table.in_ring, at) {
            let Some(left) = DISARM_TIME_MAX.checked_sub(begin.elapsed()) else { return };
            let ring = (self.ring.as_fd().as_raw_fd(), bits::IN);
            let _ = PollSet::default().poll([ring], Some(left), None);
        }
    }

    /// Takes in what the ring has to tell: how many calls that took; `None` while another thread
    /// does that.
    pub(crate) fn fetch_completions(&self) -> Option<u32> {
        if !self.ring.has_completions() {
            return Some(0);
        }
        let mut turn = self.ring.try_lock()?;
        let (mut calls, mut has_changed) = (0, false);
        loop {
            calls += u32::from(turn.fetch_completions());
            while let Some(completion) = turn.next_completion() {
                has_changed |=
                    self.apply_completion(completion.data, completion.events, completion.has_more);
            }
            if !turn.has_overflowed() {
                break;
            }
        }
        drop(turn);
        if has_changed {
            self.wake_poller();
        }
        Some(calls)
    }

    /// Whether it is of a socket that is tracked.
    fn apply_completion(&self, data: u64, events: Result<u32>, has_more: bool) -> bool {
        let (at, generation) = (data as usize % SOCKETS, (data >> 32) as u32);
        let is_tracked = self.table.generation[at].load(Ordering::SeqCst) == generation;
        if !has_more {
            set_bit(&self.table.in_ring, at, false);
        }
        if !is_tracked {
            return false;
        }
        if !has_more {
            // It ended for want of room for completions, or with the thread that has armed it. What
            // it has missed is found by poll(2), which is asked until it is armed again.
            self.set_hints(at, UNKNOWN_EVENTS);
            set_bit(&self.table.active, at, false);
        }
        self.set_hints(at, events.unwrap_or(UNKNOWN_EVENTS));
        true
    }

    fn set_hints(&self, at: usize, events: u32) {
        self.table.changes[at].fetch_add(1, Ordering::SeqCst);
        let mark = |bitmap, bits| {
            if events & bits != 0 {
                set_bit(bitmap, at, true);
            }
        };
        mark(&self.table.read, bits::IN | bits::RDHUP | bits::HUP | bits::ERR);
        mark(&self.table.write, bits::OUT | bits::ERR);
        // A wake for bytes says that there may be urgent ones.
        mark(&self.table.urgent, bits::PRI | bits::ERR);
        mark(&self.table.except, bits::HUP | bits::ERR);
    }

    /// Pairs with `begin`: bits are set before this; there they are looked at behind the store.
    fn wake_poller(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            kernel::signal_eventfd(&self.wakeup);
        }
    }

    pub(crate) fn take_poller(&self) -> Option<HintPoller> {
        self.guesser.pop()
    }

    pub(crate) fn return_poller(&self, guesser: HintPoller) {
        self.guesser.force_push(guesser);
    }

    pub(crate) fn begin_sleep(&self) {
        self.is_asleep.swap(true, Ordering::SeqCst);
    }

    pub(crate) fn end_sleep(&self) {
        self.is_asleep.swap(false, Ordering::SeqCst);
    }

    /// poll(2) of what is asked. It is readable, the ring is, if something happens to any other.
    pub(crate) fn poll(
        &self,
        guesser: &mut HintPoller,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<()> {
        let change =
            |fd| fd_index(fd).map_or(0, |at| self.table.changes[at].load(Ordering::SeqCst));
        guesser.changes.clear();
        guesser.changes.extend(guesser.asked.fds.iter().map(|asked| change(asked.fd)));
        let ours =
            [self.ring.as_fd().as_raw_fd(), self.wakeup.as_raw_fd()].map(|fd| (fd, bits::IN));
        let [_, is_kicked] = guesser.asked.poll(ours, timeout, mask)?;
        if is_kicked {
            kernel::drain_eventfd(&self.wakeup);
        }
        self.clear_and_arm(guesser);
        Ok(())
    }

    /// Takes back the bits of what was found not ready, and arms that if it is not armed yet.
    fn clear_and_arm(&self, guesser: &mut HintPoller) {
        let HintPoller { asked, changes, arming } = guesser;
        arming.clear();
        for (asked, change) in asked.fds.iter().zip(changes) {
            let Some(at) = fd_index(asked.fd).filter(|_| asked.revents == 0) else { continue };
            if !is_set(&self.table.tracked, at) {
                continue;
            }
            let generation = self.table.generation[at].load(Ordering::SeqCst);
            self.clear_hints(at, u32::from(asked.events), *change);
            if !is_set(&self.table.active, at) {
                arming.push((asked.fd, user_data(at, generation)));
            }
        }
        if let (false, Some(mut turn)) = (arming.is_empty(), self.ring.try_lock()) {
            self.arm(&mut turn, arming);
        }
    }

    fn clear_hints(&self, at: usize, asked: u32, change: u32) {
        let own = &*self.table;
        let kinds =
            [(&own.read, bits::READABLE), (&own.write, bits::WRITABLE), (&own.urgent, bits::PRI)];
        for (bitmap, bits) in kinds {
            if asked & bits != 0 {
                set_bit(bitmap, at, false);
            }
        }
        set_bit(&own.except, at, false);
        // Pairs with `mark`: there it is counted before bits are set, so either they are set behind
        // the above, or the count is seen here.
        if own.changes[at].load(Ordering::SeqCst) != change {
            self.set_hints(at, UNKNOWN_EVENTS);
            self.wake_poller();
        }
    }

    /// What the queue has no room for has its turn at once, too; what the kernel does not take is
    /// asked of poll(2) again, and tried then.
    fn arm(&self, turn: &mut RingGuard<'_, InternalFd>, arming: &mut Vec<(i32, u64)>) {
        // One that the ring still holds, or that is asked about twice, is not armed twice.
        arming.retain(|(fd, _)| {
            let is_free = !is_set(&self.table.in_ring, *fd as usize);
            set_bit(&self.table.in_ring, *fd as usize, true);
            is_free
        });
        for some in arming.chunks(turn.capacity()) {
            let taken = turn.submit(some, ARMED_EVENTS);
            for (fd, _) in &some[taken..] {
                set_bit(&self.table.in_ring, *fd as usize, false);
            }
            some[..taken].iter().for_each(|(fd, data)| self.confirm_armed(*fd as usize, *data));
        }
    }

    /// It is armed; unless it was forgotten meanwhile: then what is armed may be the socket that
    /// was, or another one with the number.
    fn confirm_armed(&self, at: usize, data: u64) {
        set_bit(&self.table.active, at, true);
        // Pairs with `forget`.
        if self.table.generation[at].load(Ordering::SeqCst) != (data >> 32) as u32 {
            set_bit(&self.table.active, at, false);
            let _ = self.ring.cancel(data);
            self.set_hints(at, UNKNOWN_EVENTS);
            self.wake_poller();
        }
    }
}

impl Drop for Multishot {
    fn drop(&mut self) {
        if self.is_this_process() {
            self.ring.cancel_all();
        }
    }
}

/// What a request carries.
fn user_data(at: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | at as u64
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::kernel::Errno;
    use crate::tracker::Tracker;
    use crate::{FdSets, PollFd};

    /// With room for two requests, and for two completions that nobody has taken.
    fn filter() -> Option<Multishot> {
        match Multishot::with_capacity(2, 2) {
            Ok(filter) => Some(filter),
            Err(Error::NoRing(error @ (Errno::NOSYS | Errno::PERM))) => {
                println!("skip: io_uring cannot be had here: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn what_there_is_no_room_to_tell_is_told() {
        let Some(filter) = filter() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pairs: Vec<(TcpStream, TcpStream)> = (0..100)
            .map(|_| {
                let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (listener.accept().unwrap().0, peer)
            })
            .collect();
        for (stream, _) in &pairs {
            assert!(filter.track(stream.as_raw_fd()));
        }
        let tracker = Tracker::with_multishot(filter);
        for round in 0..20 {
            // Until none needs a call.
            let told = |revents: u16| tracker_told(&tracker, &pairs, revents);
            for _ in 0..100 {
                assert_eq!(told(0), 0);
            }
            let some = || pairs.iter().skip(round).step_by(3);
            some().for_each(|(_, peer)| assert_eq!((&*peer).write(b"a").unwrap(), 1));
            assert_eq!(told(1), some().count());
            some().for_each(|(stream, _)| assert_eq!((&*stream).read(&mut [0; 9]).unwrap(), 1));
        }
        assert!(tracker.stats().without_syscall > 0);
        for (stream, mut peer) in pairs {
            tracker.untrack(stream.as_raw_fd());
            drop(stream);
            peer.set_nonblocking(true).unwrap();
            assert_eq!(peer.read(&mut [0]).unwrap(), 0);
        }
    }

    /// How many upoll says are readable, which uselect says too.
    fn tracker_told(tracker: &Tracker, pairs: &[(TcpStream, TcpStream)], revents: u16) -> usize {
        let entry = |(stream, _): &(TcpStream, TcpStream)| PollFd {
            fd: stream.as_raw_fd(),
            events: bits::IN as u16,
            revents: 0,
        };
        let mut fds: Vec<_> = pairs.iter().map(entry).collect();
        let count = tracker.upoll(&mut fds, Some(Duration::ZERO), None).unwrap();
        assert!(fds.iter().all(|fd| fd.revents == 0 || fd.revents == revents));
        let mut read = vec![0; 16];
        fds.iter().for_each(|fd| read[fd.fd as usize / 64] |= 1 << (fd.fd % 64));
        let mut sets = FdSets { read: &mut read, ..FdSets::default() };
        assert_eq!(tracker.uselect(&mut sets, Some(Duration::ZERO), None), Ok(count));
        count
    }
}

//! `Multishot`: finds idle sockets without any privilege, by multishot polls of io_uring.
//!
//! A socket is idle if poll(2) found it not ready and the ring has reported no event of it since.
//! Only other sockets are passed to poll(2). The bitmaps hold hints: a set bit means that something
//! happened since poll(2) last found nothing. Reading them costs no system call.
//!
//! When poll(2) finds a socket not ready, the socket is armed: a multishot poll of the ring reports
//! its edges for as long as it is tracked. The poll keeps the socket open, so it must be cancelled
//! before the descriptor is closed.

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

/// The backend that finds idle sockets by multishot polls.
pub(crate) struct Multishot {
    ring: PollRing<InternalFd>,
    table: Mapping<HintTable>,
    /// 1 in the process that created the ring, 0 in its children, which must not use it.
    is_own_process: Mapping<AtomicU8>,
    /// The state that a thread takes while it waits by the ring; empty while a thread has it. Only
    /// one thread at a time waits by the ring. With several, a thread that takes completions would
    /// have to wake all the others.
    poller: ArrayQueue<HintPoller>,
    /// Whether the thread that waits by the ring sleeps or is about to. Other threads that take
    /// completions then wake it.
    is_asleep: AtomicBool,
    /// The eventfd that wakes the thread that waits by the ring.
    wakeup: InternalFd,
}

/// The state of all descriptors. Each array is indexed by descriptor.
#[repr(C)]
struct HintTable {
    /// The socket is tracked.
    tracked: Bitmap,
    /// Armed: a poll of the ring reports its edges.
    active: Bitmap,
    /// Hint for reading, in the sense of select(2): something happened since poll(2) last found
    /// nothing.
    read: Bitmap,
    /// Hint for writing.
    write: Bitmap,
    /// Hint for urgent data.
    urgent: Bitmap,
    /// Hint of an error or hang-up, which is reported even if it is not requested.
    except: Bitmap,
    /// A poll of the ring exists, or is being submitted. Written by the thread that has the
    /// [`RingGuard`].
    in_ring: Bitmap,
    /// How often a socket of this descriptor was untracked. Completions of earlier generations are
    /// dropped.
    generation: [AtomicU32; SOCKETS],
    /// How often hints were set. A thread reads this before poll(2), and clears hints afterwards.
    /// If this has changed meanwhile, it sets them again. A thread that sets hints increments this
    /// first.
    changes: [AtomicU32; SOCKETS],
}

// SAFETY: all fields are atomics.
unsafe impl SharedMemory for HintTable {}

/// The state of a thread that calls poll(2) for hints.
#[derive(Default)]
pub(crate) struct HintPoller {
    pub(crate) poll_set: PollSet,
    /// By index in `poll_set`, the count of changes before poll(2).
    changes: Vec<u32>,
    /// The sockets to arm, each with the user data of its poll.
    arming: Vec<(i32, u64)>,
}

/// An event of unknown kind: it sets all hints, so any wait calls poll(2).
const UNKNOWN_EVENTS: u32 = bits::ERR;

/// The events that a poll of the ring reports.
const ARMED_EVENTS: u32 = bits::IN | bits::PRI | bits::OUT | bits::RDHUP | bits::ERR | bits::HUP;

impl Multishot {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::with_capacity(REQUESTS_MAX, COMPLETIONS_MAX)
    }

    fn with_capacity(requests: u32, completions: u32) -> Result<Self, Error> {
        let is_own_process = Mapping::wiped_on_fork()?;
        is_own_process.store(1, Ordering::Relaxed);
        let poller = ArrayQueue::new(1);
        poller.force_push(HintPoller::default());
        Ok(Self {
            ring: PollRing::new(requests, completions, InternalFd::new).map_err(Error::NoRing)?,
            table: Mapping::private()?,
            is_own_process,
            poller,
            is_asleep: AtomicBool::new(false),
            wakeup: kernel::eventfd()?,
        })
    }

    pub(crate) fn is_this_process(&self) -> bool {
        self.is_own_process.load(Ordering::Relaxed) == 1
    }

    pub(crate) fn bits(&self) -> ReadinessBitmaps<'_> {
        let HintTable { active, read, write, urgent, except, .. } = &*self.table;
        ReadinessBitmaps { active, read, write, urgent, except, is_hint: true }
    }

    pub(crate) fn is_tracked(&self, fd: i32) -> bool {
        fd_index(fd).is_some_and(|fd| is_set(&self.table.tracked, fd))
    }

    /// Tracks a TCP socket. Other files are refused: their wake-ups may not cover all that poll(2)
    /// reports.
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

    /// Sets the hints of a socket, for changes that the ring does not report.
    pub(crate) fn refresh(&self, fd: i32) {
        if let Some(at) = fd_index(fd).filter(|_| self.is_this_process() && self.is_tracked(fd)) {
            self.set_hints(at, UNKNOWN_EVENTS);
            self.wake_poller();
        }
    }

    /// Stops tracking a socket; call this right before its descriptor is closed. Returns when the
    /// ring has released the socket. If a busy thread armed it, the ring may release it only later,
    /// see [`DISARM_TIME_MAX`].
    pub(crate) fn untrack(&self, fd: i32) {
        let Some(at) = fd_index(fd).filter(|_| self.is_this_process() && self.is_tracked(fd))
        else {
            return;
        };
        set_bit(&self.table.tracked, at, false);
        // Pairs with `confirm_armed`: either that load finds the new generation and the poll is
        // cancelled, or this thread sees the socket as active.
        let generation = self.table.generation[at].fetch_add(1, Ordering::SeqCst);
        if is_set(&self.table.active, at) {
            set_bit(&self.table.active, at, false);
            self.disarm(at, generation);
        }
    }

    /// Cancels the poll of a socket, and waits until the ring has released it.
    fn disarm(&self, at: usize, generation: u32) {
        // A poll that has ended by itself cannot be cancelled.
        let _ = self.ring.cancel(user_data(at, generation));
        let begin = Instant::now();
        // Stops if the ring guard is taken: this may run in a signal handler that interrupted the
        // owner of the guard.
        while self.fetch_completions().is_some() && is_set(&self.table.in_ring, at) {
            let Some(left) = DISARM_TIME_MAX.checked_sub(begin.elapsed()) else { return };
            let ring = (self.ring.as_fd().as_raw_fd(), bits::IN);
            let _ = PollSet::default().poll([ring], Some(left), None);
        }
    }

    /// Takes the completions of the ring. Returns the number of system calls, or `None` while
    /// another thread has the ring guard.
    pub(crate) fn fetch_completions(&self) -> Option<u32> {
        if !self.ring.has_completions() {
            return Some(0);
        }
        let mut ring_guard = self.ring.try_lock()?;
        let (mut calls, mut has_changed) = (0, false);
        loop {
            calls += u32::from(ring_guard.fetch_completions());
            while let Some(completion) = ring_guard.next_completion() {
                has_changed |=
                    self.apply_completion(completion.data, completion.events, completion.has_more);
            }
            if !ring_guard.has_overflowed() {
                break;
            }
        }
        drop(ring_guard);
        if has_changed {
            self.wake_poller();
        }
        Some(calls)
    }

    /// Sets hints for a completion. Returns false if its socket is not tracked any more.
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
            // The poll ended because the completion queue was full, or because the thread that
            // armed it exited. poll(2) finds the events that were missed, and is called until the
            // socket is armed again.
            self.set_hints(at, UNKNOWN_EVENTS);
            set_bit(&self.table.active, at, false);
        }
        self.set_hints(at, events.unwrap_or(UNKNOWN_EVENTS));
        true
    }

    /// Sets the hints of a socket for these events.
    fn set_hints(&self, at: usize, events: u32) {
        self.table.changes[at].fetch_add(1, Ordering::SeqCst);
        let mark_bitmap = |bitmap, bits| {
            if events & bits != 0 {
                set_bit(bitmap, at, true);
            }
        };
        mark_bitmap(&self.table.read, bits::IN | bits::RDHUP | bits::HUP | bits::ERR);
        mark_bitmap(&self.table.write, bits::OUT | bits::ERR);
        // The kernel sets POLLPRI in each wake-up for received bytes, which may include urgent
        // data.
        mark_bitmap(&self.table.urgent, bits::PRI | bits::ERR);
        mark_bitmap(&self.table.except, bits::HUP | bits::ERR);
    }

    /// Wakes the thread that sleeps. Pairs with `begin_sleep`: hints are set before this load; that
    /// thread stores the flag before it reads the hints.
    fn wake_poller(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            kernel::signal_eventfd(&self.wakeup);
        }
    }

    pub(crate) fn take_poller(&self) -> Option<HintPoller> {
        self.poller.pop()
    }

    pub(crate) fn return_poller(&self, poller: HintPoller) {
        self.poller.force_push(poller);
    }

    pub(crate) fn begin_sleep(&self) {
        self.is_asleep.swap(true, Ordering::SeqCst);
    }

    pub(crate) fn end_sleep(&self) {
        self.is_asleep.swap(false, Ordering::SeqCst);
    }

    /// Calls poll(2) for the poll set and for the ring, which is readable if something happens to
    /// any other socket.
    pub(crate) fn poll(
        &self,
        poller: &mut HintPoller,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<()> {
        let change =
            |fd| fd_index(fd).map_or(0, |at| self.table.changes[at].load(Ordering::SeqCst));
        poller.changes.clear();
        poller.changes.extend(poller.poll_set.fds.iter().map(|entry| change(entry.fd)));
        let own_fds =
            [self.ring.as_fd().as_raw_fd(), self.wakeup.as_raw_fd()].map(|fd| (fd, bits::IN));
        let [_, is_woken] = poller.poll_set.poll(own_fds, timeout, mask)?;
        if is_woken {
            kernel::drain_eventfd(&self.wakeup);
        }
        self.clear_and_arm(poller);
        Ok(())
    }

    /// Clears the hints of the sockets that poll(2) found not ready, and arms those that are not
    /// armed.
    fn clear_and_arm(&self, poller: &mut HintPoller) {
        let HintPoller { poll_set, changes, arming } = poller;
        arming.clear();
        for (entry, change) in poll_set.fds.iter().zip(changes) {
            let Some(at) = fd_index(entry.fd).filter(|_| entry.revents == 0) else { continue };
            if !is_set(&self.table.tracked, at) {
                continue;
            }
            let generation = self.table.generation[at].load(Ordering::SeqCst);
            self.clear_hints(at, u32::from(entry.events), *change);
            if !is_set(&self.table.active, at) {
                arming.push((entry.fd, user_data(at, generation)));
            }
        }
        if let (false, Some(mut ring_guard)) = (arming.is_empty(), self.ring.try_lock()) {
            self.arm(&mut ring_guard, arming);
        }
    }

    /// Clears the hints of the events that poll(2) did not find, unless new hints were set
    /// meanwhile.
    fn clear_hints(&self, at: usize, polled: u32, change: u32) {
        let table = &*self.table;
        let bitmaps = [
            (&table.read, bits::READABLE),
            (&table.write, bits::WRITABLE),
            (&table.urgent, bits::PRI),
        ];
        for (bitmap, bits) in bitmaps {
            if polled & bits != 0 {
                set_bit(bitmap, at, false);
            }
        }
        set_bit(&table.except, at, false);
        // Pairs with `set_hints`, which increments the count before it sets bits: either those bits
        // are set after they were cleared above, or the new count is seen here.
        if table.changes[at].load(Ordering::SeqCst) != change {
            self.set_hints(at, UNKNOWN_EVENTS);
            self.wake_poller();
        }
    }

    /// Submits polls, as many at a time as the submission queue holds. If the kernel refuses a
    /// poll, waits call poll(2) for that socket, and the next one tries again to arm it.
    fn arm(&self, ring_guard: &mut RingGuard<'_, InternalFd>, arming: &mut Vec<(i32, u64)>) {
        // A socket that the ring still holds, or that is in the poll set twice, is not armed again.
        arming.retain(|(fd, _)| {
            let is_free = !is_set(&self.table.in_ring, *fd as usize);
            set_bit(&self.table.in_ring, *fd as usize, true);
            is_free
        });
        for chunk in arming.chunks(ring_guard.capacity()) {
            let taken = ring_guard.submit(chunk, ARMED_EVENTS);
            for (fd, _) in &chunk[taken..] {
                set_bit(&self.table.in_ring, *fd as usize, false);
            }
            chunk[..taken].iter().for_each(|(fd, data)| self.confirm_armed(*fd as usize, *data));
        }
    }

    /// Marks a socket as armed. If it was untracked meanwhile, the poll may be of the old socket or
    /// of a new one with the same descriptor, so it is cancelled.
    fn confirm_armed(&self, at: usize, data: u64) {
        set_bit(&self.table.active, at, true);
        // Pairs with `untrack`.
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

/// Returns the user data of a poll.
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

    /// A ring for two requests and two completions.
    fn multishot() -> Option<Multishot> {
        match Multishot::with_capacity(2, 2) {
            Ok(multishot) => Some(multishot),
            Err(Error::NoRing(error @ (Errno::NOSYS | Errno::PERM))) => {
                println!("skip: io_uring is not available: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn a_full_ring_loses_no_event() {
        let Some(multishot) = multishot() else { return };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let pairs: Vec<(TcpStream, TcpStream)> = (0..100)
            .map(|_| {
                let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                (listener.accept().unwrap().0, peer)
            })
            .collect();
        for (stream, _) in &pairs {
            assert!(multishot.track(stream.as_raw_fd()));
        }
        let tracker = Tracker::with_multishot(multishot);
        for round in 0..20 {
            // These waits arm the sockets.
            let readable = |revents: u16| count_readable(&tracker, &pairs, revents);
            for _ in 0..100 {
                assert_eq!(readable(0), 0);
            }
            let some = || pairs.iter().skip(round).step_by(3);
            some().for_each(|(_, peer)| assert_eq!((&*peer).write(b"a").unwrap(), 1));
            assert_eq!(readable(1), some().count());
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

    /// Returns how many sockets upoll reports as readable, and checks that uselect reports the same
    /// number.
    fn count_readable(tracker: &Tracker, pairs: &[(TcpStream, TcpStream)], revents: u16) -> usize {
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

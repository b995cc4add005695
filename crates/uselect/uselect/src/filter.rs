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

use crate::asked::Asked;
use crate::bitmap::{Bits, is_set, number, set};
use crate::bits;
use crate::error::Error;
use crate::hidden::Hidden;
use crate::kernel::{self, Mapping, Result, Shared, SignalSet};
use crate::layout::{Bitmap, SOCKETS};
use crate::limits::{COMPLETIONS_MAX, DISARM_TIME_MAX, REQUESTS_MAX};

pub(crate) struct Filter {
    ring: PollRing<Hidden>,
    table: Mapping<Table>,
    /// 1 in the process that made it, 0 in its children, which leave the ring alone.
    is_ours: Mapping<AtomicU8>,
    /// What a thread that waits by the ring has; one at a time, as who takes a completion that
    /// another one sleeps for would have to tell it.
    guesser: ArrayQueue<Guesser>,
    /// That thread sleeps, or is about to; others that take completions meanwhile tell it.
    is_asleep: AtomicBool,
    kick: Hidden,
}

/// By descriptor.
#[repr(C)]
struct Table {
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
    held: Bitmap,
    /// How many sockets have been forgotten there: what the ring tells of those is dropped.
    generation: [AtomicU32; SOCKETS],
    /// How often bits were set. Who has asked poll(2) and found nothing takes bits back, and sets
    /// them again if this has changed since; who sets bits counts before that.
    changes: [AtomicU32; SOCKETS],
}

// SAFETY: it is made of atomics.
unsafe impl Shared for Table {}

/// What a thread has that asks poll(2).
#[derive(Default)]
pub(crate) struct Guesser {
    pub(crate) asked: Asked,
    /// By place in `asked`: the count of changes before.
    changes: Vec<u32>,
    /// To be armed: descriptor, and the number that its request carries.
    arming: Vec<(i32, u64)>,
}

/// Of which nobody knows what it was: poll(2) is to be asked, whatever the question.
const ANYTHING: u32 = bits::ERR;

/// What a request is to tell of.
const ALL: u32 = bits::IN | bits::PRI | bits::OUT | bits::RDHUP | bits::ERR | bits::HUP;

impl Filter {
    pub(crate) fn new() -> Result<Self, Error> {
        Self::with_room(REQUESTS_MAX, COMPLETIONS_MAX)
    }

    fn with_room(requests: u32, completions: u32) -> Result<Self, Error> {
        let is_ours = Mapping::wiped_on_fork()?;
        is_ours.store(1, Ordering::Relaxed);
        let guesser = ArrayQueue::new(1);
        guesser.force_push(Guesser::default());
        Ok(Self {
            ring: PollRing::new(requests, completions, Hidden::new).map_err(Error::NoRing)?,
            table: Mapping::private()?,
            is_ours,
            guesser,
            is_asleep: AtomicBool::new(false),
            kick: kernel::eventfd()?,
        })
    }

    pub(crate) fn is_ours(&self) -> bool {
        self.is_ours.load(Ordering::Relaxed) == 1
    }

    pub(crate) fn bits(&self) -> Bits<'_> {
        let Table { active, read, write, urgent, except, .. } = &*self.table;
        Bits { active, read, write, urgent, except, is_guess: true }
    }

    pub(crate) fn is_tracked(&self, fd: i32) -> bool {
        number(fd).is_some_and(|fd| is_set(&self.table.tracked, fd))
    }

    /// Of other files than TCP sockets poll(2) may know what their wakes do not tell.
    pub(crate) fn adopt(&self, fd: i32) -> bool {
        let Some(at) = number(fd).filter(|fd| !is_set(&self.table.tracked, *fd)) else {
            return false;
        };
        if !self.is_ours() || !kernel::borrow(fd).is_some_and(kernel::is_tcp) {
            return false;
        }
        self.mark(at, ANYTHING);
        set(&self.table.tracked, at, true);
        true
    }

    /// Something may have happened of which the ring does not tell.
    pub(crate) fn refresh(&self, fd: i32) {
        if let Some(at) = number(fd).filter(|_| self.is_ours() && self.is_tracked(fd)) {
            self.mark(at, ANYTHING);
            self.tell();
        }
    }

    /// To be called right before a descriptor is closed: returns when the ring has let go of the
    /// socket, or is about to, where a thread that is busy has armed it.
    pub(crate) fn forget(&self, fd: i32) {
        let Some(at) = number(fd).filter(|_| self.is_ours() && self.is_tracked(fd)) else {
            return;
        };
        set(&self.table.tracked, at, false);
        // Pairs with `confirm`: either that finds the generation changed and disarms, or it is seen
        // here to be active.
        let generation = self.table.generation[at].fetch_add(1, Ordering::SeqCst);
        if is_set(&self.table.active, at) {
            set(&self.table.active, at, false);
            self.disarm(at, generation);
        }
    }

    fn disarm(&self, at: usize, generation: u32) {
        // If it has ended by itself there is none.
        let _ = self.ring.cancel(data(at, generation));
        let begin = Instant::now();
        // Who interrupts somebody that has the turn must not wait for it.
        while self.refill().is_some() && is_set(&self.table.held, at) {
            let Some(left) = DISARM_TIME_MAX.checked_sub(begin.elapsed()) else { return };
            let ring = (self.ring.as_fd().as_raw_fd(), bits::IN);
            let _ = Asked::default().poll([ring], Some(left), None);
        }
    }

    /// Takes in what the ring has to tell: how many calls that took; `None` while another thread
    /// does that.
    pub(crate) fn refill(&self) -> Option<u32> {
        if !self.ring.has_completions() {
            return Some(0);
        }
        let mut turn = self.ring.try_lock()?;
        let (mut calls, mut has_changed) = (0, false);
        loop {
            calls += u32::from(turn.fetch_completions());
            while let Some(completion) = turn.next_completion() {
                has_changed |=
                    self.take_in(completion.data, completion.events, completion.has_more);
            }
            if !turn.has_overflowed() {
                break;
            }
        }
        drop(turn);
        if has_changed {
            self.tell();
        }
        Some(calls)
    }

    /// Whether it is of a socket that is tracked.
    fn take_in(&self, data: u64, events: Result<u32>, has_more: bool) -> bool {
        let (at, generation) = (data as usize % SOCKETS, (data >> 32) as u32);
        let is_tracked = self.table.generation[at].load(Ordering::SeqCst) == generation;
        if !has_more {
            set(&self.table.held, at, false);
        }
        if !is_tracked {
            return false;
        }
        if !has_more {
            // It ended for want of room for completions, or with the thread that has armed it. What
            // it has missed is found by poll(2), which is asked until it is armed again.
            self.mark(at, ANYTHING);
            set(&self.table.active, at, false);
        }
        self.mark(at, events.unwrap_or(ANYTHING));
        true
    }

    fn mark(&self, at: usize, events: u32) {
        self.table.changes[at].fetch_add(1, Ordering::SeqCst);
        let mark = |bitmap, bits| {
            if events & bits != 0 {
                set(bitmap, at, true);
            }
        };
        mark(&self.table.read, bits::IN | bits::RDHUP | bits::HUP | bits::ERR);
        mark(&self.table.write, bits::OUT | bits::ERR);
        // A wake for bytes says that there may be urgent ones.
        mark(&self.table.urgent, bits::PRI | bits::ERR);
        mark(&self.table.except, bits::HUP | bits::ERR);
    }

    /// Pairs with `begin`: bits are set before this; there they are looked at behind the store.
    fn tell(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            kernel::signal(&self.kick);
        }
    }

    pub(crate) fn guesser(&self) -> Option<Guesser> {
        self.guesser.pop()
    }

    pub(crate) fn rest(&self, guesser: Guesser) {
        self.guesser.force_push(guesser);
    }

    pub(crate) fn begin(&self) {
        self.is_asleep.swap(true, Ordering::SeqCst);
    }

    pub(crate) fn end(&self) {
        self.is_asleep.swap(false, Ordering::SeqCst);
    }

    /// poll(2) of what is asked. It is readable, the ring is, if something happens to any other.
    pub(crate) fn poll(
        &self,
        guesser: &mut Guesser,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<()> {
        let change = |fd| number(fd).map_or(0, |at| self.table.changes[at].load(Ordering::SeqCst));
        guesser.changes.clear();
        guesser.changes.extend(guesser.asked.fds.iter().map(|asked| change(asked.fd)));
        let ours = [self.ring.as_fd().as_raw_fd(), self.kick.as_raw_fd()].map(|fd| (fd, bits::IN));
        let [_, is_kicked] = guesser.asked.poll(ours, timeout, mask)?;
        if is_kicked {
            kernel::drain(&self.kick);
        }
        self.settle(guesser);
        Ok(())
    }

    /// Takes back the bits of what was found not ready, and arms that if it is not armed yet.
    fn settle(&self, guesser: &mut Guesser) {
        let Guesser { asked, changes, arming } = guesser;
        arming.clear();
        for (asked, change) in asked.fds.iter().zip(changes) {
            let Some(at) = number(asked.fd).filter(|_| asked.revents == 0) else { continue };
            if !is_set(&self.table.tracked, at) {
                continue;
            }
            let generation = self.table.generation[at].load(Ordering::SeqCst);
            self.take_back(at, u32::from(asked.events), *change);
            if !is_set(&self.table.active, at) {
                arming.push((asked.fd, data(at, generation)));
            }
        }
        if let (false, Some(mut turn)) = (arming.is_empty(), self.ring.try_lock()) {
            self.arm(&mut turn, arming);
        }
    }

    fn take_back(&self, at: usize, asked: u32, change: u32) {
        let own = &*self.table;
        let kinds =
            [(&own.read, bits::READING), (&own.write, bits::WRITING), (&own.urgent, bits::PRI)];
        for (bitmap, bits) in kinds {
            if asked & bits != 0 {
                set(bitmap, at, false);
            }
        }
        set(&own.except, at, false);
        // Pairs with `mark`: there it is counted before bits are set, so either they are set behind
        // the above, or the count is seen here.
        if own.changes[at].load(Ordering::SeqCst) != change {
            self.mark(at, ANYTHING);
            self.tell();
        }
    }

    /// What the queue has no room for has its turn at once, too; what the kernel does not take is
    /// asked of poll(2) again, and tried then.
    fn arm(&self, turn: &mut RingGuard<'_, Hidden>, arming: &mut Vec<(i32, u64)>) {
        // One that the ring still holds, or that is asked about twice, is not armed twice.
        arming.retain(|(fd, _)| {
            let is_free = !is_set(&self.table.held, *fd as usize);
            set(&self.table.held, *fd as usize, true);
            is_free
        });
        for some in arming.chunks(turn.capacity()) {
            let taken = turn.submit(some, ALL);
            for (fd, _) in &some[taken..] {
                set(&self.table.held, *fd as usize, false);
            }
            some[..taken].iter().for_each(|(fd, data)| self.confirm(*fd as usize, *data));
        }
    }

    /// It is armed; unless it was forgotten meanwhile: then what is armed may be the socket that
    /// was, or another one with the number.
    fn confirm(&self, at: usize, data: u64) {
        set(&self.table.active, at, true);
        // Pairs with `forget`.
        if self.table.generation[at].load(Ordering::SeqCst) != (data >> 32) as u32 {
            set(&self.table.active, at, false);
            let _ = self.ring.cancel(data);
            self.mark(at, ANYTHING);
            self.tell();
        }
    }
}

impl Drop for Filter {
    fn drop(&mut self) {
        if self.is_ours() {
            self.ring.cancel_all();
        }
    }
}

/// What a request carries.
fn data(at: usize, generation: u32) -> u64 {
    u64::from(generation) << 32 | at as u64
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;
    use crate::kernel::Errno;
    use crate::tracker::Tracker;
    use crate::{PollFd, Sets};

    /// With room for two requests, and for two completions that nobody has taken.
    fn filter() -> Option<Filter> {
        match Filter::with_room(2, 2) {
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
            assert!(filter.adopt(stream.as_raw_fd()));
        }
        let tracker = Tracker::by_filter(filter);
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
        assert!(tracker.stats().without_call > 0);
        for (stream, mut peer) in pairs {
            tracker.forget(stream.as_raw_fd());
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
        let mut sets = Sets { read: &mut read, ..Sets::default() };
        assert_eq!(tracker.uselect(&mut sets, Some(Duration::ZERO), None), Ok(count));
        count
    }
}

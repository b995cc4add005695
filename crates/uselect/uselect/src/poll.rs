//! upoll: poll(2), answered from memory where that knows.

use std::sync::MutexGuard;
use std::time::Duration;

use crate::asked::Asked;
use crate::bitmap::{Bits, is_set, number, places};
use crate::bits;
use crate::kernel::{self, Result, SignalSet};
use crate::limits::REMEMBERED_MIN;
use crate::pollfd::PollFd;
use crate::remembered::{Remembered, Word, calm};
use crate::tracker::Tracker;
use crate::view::{View, Waiter};
use crate::wait::{Look, Question, wait};

impl Tracker {
    /// poll(2), or with a signal mask ppoll(2): waits until one of `fds` is ready, `timeout` is over
    /// (`None`: never) or a signal comes; gives how many have `revents`. No system call is made
    /// while a tracked one is ready, but each [`crate::PASSES_MAX`] times, or
    /// [`crate::PASSES_TIME_MAX`] after the last time if others are among them; none either when
    /// nothing is ready, all are tracked and have the room to send that is asked for, and the
    /// timeout is zero.
    ///
    /// # Errors
    /// Those of poll(2), EINTR among them.
    pub fn upoll(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        self.upoll_learning(fds, timeout, mask, |_| {})
    }

    /// As [`Tracker::upoll`]. `learn` is called with each descriptor that memory does not know, and
    /// maybe with others, before anybody is asked about it; it may have that tracked
    /// ([`Tracker::adopt`]).
    ///
    /// # Errors
    /// As there.
    pub fn upoll_learning(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
        learn: impl FnMut(i32),
    ) -> Result<usize> {
        let is_large = fds.len() >= REMEMBERED_MIN;
        let remembered = is_large.then(|| self.inner().remembered.try_lock().ok()).flatten();
        wait(self.inner(), &mut Poll { fds, remembered, told: None, learn }, timeout, mask)
    }
}

struct Poll<'a, Learn> {
    fds: &'a mut [PollFd],
    /// There in a large question, unless another thread is in one.
    remembered: Option<MutexGuard<'a, Remembered>>,
    /// Answers that the last look has left in `fds`; `None` before the first.
    told: Option<usize>,
    learn: Learn,
}

/// What memory says of an entry.
enum Known {
    /// Nothing: the kernel has to be asked.
    Not,
    /// That it may be ready: the kernel has to be asked.
    Guess,
    Events(u32),
}

fn known(view: View<'_>, bits: Bits<'_>, entry: PollFd) -> Known {
    let Some(fd) = number(entry.fd) else { return Known::Not };
    if !is_set(bits.active, fd) {
        return Known::Not;
    }
    // Most sockets of a large set are idle: nothing to read, and nobody asks for room.
    let asked = u32::from(entry.events);
    let may_be_ready = is_set(bits.read, fd)
        || asked & bits::WRITING != 0 && is_set(bits.write, fd)
        || asked & bits::PRI != 0 && is_set(bits.urgent, fd)
        || is_set(bits.except, fd);
    match may_be_ready {
        false => Known::Events(0),
        true if bits.is_guess => Known::Guess,
        true if is_set(bits.except, fd) => Known::Not,
        true => match view.events(fd) {
            Some(events) => Known::Events(events & (asked | bits::ALWAYS)),
            None => Known::Not,
        },
    }
}

/// Room is made without a word, unless guesses are made of what the kernel itself wakes for.
fn lacks_room(bits: Bits<'_>, entry: PollFd, events: u32) -> bool {
    !bits.is_guess && u32::from(entry.events) & bits::WRITING & !events != 0
}

/// What an entry adds to a look.
fn look_at(view: View<'_>, entry: &mut PollFd, look: &mut Look, learn: &mut impl FnMut(i32)) {
    let bits = view.bits();
    let mut known_now = known(view, bits, *entry);
    if matches!(known_now, Known::Not) {
        learn(entry.fd);
        known_now = known(view, bits, *entry);
    }
    match known_now {
        Known::Not => look.has_others = true,
        Known::Guess => look.has_guesses = true,
        Known::Events(events) => {
            entry.revents = events as u16;
            look.ready += usize::from(events != 0);
            look.has_others |= lacks_room(bits, *entry, events);
        }
    }
}

/// Publishes or collects what an entry waits for; whether there is something to tell of it.
fn collect_one(waiter: &mut Waiter<'_>, entry: PollFd, at: usize) -> bool {
    let is_expected = waiter.expect(entry.fd, u32::from(entry.events));
    let view = waiter.view();
    match known(view, view.bits(), entry) {
        Known::Events(found) if is_expected => {
            if lacks_room(view.bits(), entry, found) {
                waiter.wait_for_room(entry.fd, at);
            }
            found != 0
        }
        _ => {
            waiter.asked().add(entry.fd, u32::from(entry.events), at);
            false
        }
    }
}

impl<Learn: FnMut(i32)> Question for Poll<'_, Learn> {
    fn look(&mut self, view: View<'_>) -> Look {
        let Self { fds, remembered, told, learn } = self;
        let (mut look, bits) = (Look::default(), view.bits());
        let Some(remembered) = remembered else {
            for entry in fds.iter_mut() {
                entry.revents = 0;
                if entry.fd >= 0 {
                    look_at(view, entry, &mut look, learn);
                }
            }
            return look;
        };
        // What was asked does not change in a wait, so it is compared once, unless there are answers.
        if *told != Some(0) {
            remembered.remember(fds);
        }
        for (number, word) in remembered.words.iter().enumerate() {
            for bit in places(word.readers & !calm(bits, number)) {
                let entry = &mut fds[remembered.place(number, bit)];
                look_at(view, entry, &mut look, learn);
            }
        }
        for at in remembered.others() {
            look_at(view, &mut fds[at], &mut look, learn);
        }
        *told = Some(look.ready);
        look
    }

    fn collect(&mut self, waiter: &mut Waiter<'_>) -> usize {
        let Self { fds, remembered, .. } = self;
        let Some(remembered) = remembered else {
            let entries = fds.iter().enumerate().filter(|(_, entry)| entry.fd >= 0);
            return entries.filter(|(at, entry)| collect_one(waiter, **entry, *at)).count();
        };
        let mut ready = 0;
        for number in 0..remembered.words.len() {
            let Word { readers, stamp } = remembered.words[number];
            let (now, mut unexpected) = (waiter.stamp(number), 0);
            if stamp == Some(now) {
                waiter.expect_still(number, readers);
            } else {
                for bit in places(readers) {
                    let entry = fds[remembered.place(number, bit)];
                    let is_expected = waiter.expect(entry.fd, u32::from(entry.events));
                    unexpected |= u64::from(!is_expected) << bit;
                }
                if unexpected == 0 {
                    remembered.set_stamp(number, now);
                }
            }
            // Behind what is expected: what has happened before is found here.
            for bit in places(readers & (unexpected | !calm(waiter.view().bits(), number))) {
                let at = remembered.place(number, bit);
                ready += usize::from(collect_one(waiter, fds[at], at));
            }
        }
        ready + remembered.others().filter(|at| collect_one(waiter, fds[*at], *at)).count()
    }

    fn add(&mut self, asked: &Asked) -> Result<usize> {
        let mut added = 0;
        for (other, at) in asked.fds.iter().zip(&asked.entries) {
            let entry = &mut self.fds[*at as usize];
            added += usize::from(entry.revents == 0 && other.revents != 0);
            entry.revents |= other.revents;
        }
        Ok(added)
    }

    fn refresh(&self, view: View<'_>) {
        let told = self.fds.iter().filter(|entry| entry.revents != 0);
        told.for_each(|entry| view.refresh(entry.fd));
    }

    fn ask_kernel(&mut self, timeout: Option<Duration>, mask: Option<&SignalSet>) -> Result<usize> {
        let open = self.fds.iter().filter(|entry| entry.fd >= 0);
        open.for_each(|entry| (self.learn)(entry.fd));
        kernel::ppoll(self.fds, timeout, mask)
    }
}

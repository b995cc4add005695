//! upoll: poll(2), answered from memory where that knows.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::asked::Asked;
use crate::bits;
use crate::kernel::{self, Result, SignalSet};
use crate::layout::SOCKETS;
use crate::pages::is_set;
use crate::tracker::Tracker;
use crate::view::{Bits, View, Waiter};
use crate::wait::{Look, Question, wait};

/// A descriptor of a wait: `struct pollfd` of poll(2).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
pub struct PollFd {
    /// Negative: to be passed over.
    pub fd: i32,
    /// What to look for, as poll(2) names it. Errors and hang-ups are always told.
    pub events: u16,
    /// What was found.
    pub revents: u16,
}

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
        wait(self.inner(), &mut Poll(fds), timeout, mask)
    }
}

struct Poll<'a>(&'a mut [PollFd]);

/// What memory says of an entry.
enum Known {
    /// Nothing: the kernel has to be asked.
    Not,
    /// That it may be ready: the kernel has to be asked.
    Guess,
    Events(u32),
}

fn known(view: View<'_>, bits: Bits<'_>, entry: PollFd) -> Known {
    let Some(fd) = usize::try_from(entry.fd).ok().filter(|fd| *fd < SOCKETS) else {
        return Known::Not;
    };
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

/// The descriptors of a word that memory knows, and of which there is nothing to tell to who asks
/// neither for room nor for urgent data. In a large set most are such and neighbours of each other:
/// they cost a bit.
struct Quiet {
    at: usize,
    bits: u64,
}

impl Default for Quiet {
    fn default() -> Self {
        Self { at: usize::MAX, bits: 0 }
    }
}

impl Quiet {
    #[inline(always)]
    fn has(&mut self, bits: Bits<'_>, entry: PollFd) -> bool {
        let at = entry.fd as usize / 64;
        if at != self.at {
            let Some(active) = bits.active.get(at) else { return false };
            let told =
                bits.except[at].load(Ordering::SeqCst) | bits.read[at].load(Ordering::SeqCst);
            *self = Self { at, bits: active.load(Ordering::SeqCst) & !told };
        }
        let is_quiet = self.bits >> (entry.fd % 64) & 1 == 1;
        is_quiet && u32::from(entry.events) & (bits::WRITING | bits::PRI) == 0
    }
}

/// Room is made without a word, unless guesses are made of what the kernel itself wakes for.
fn lacks_room(bits: Bits<'_>, entry: PollFd, events: u32) -> bool {
    !bits.is_guess && u32::from(entry.events) & bits::WRITING & !events != 0
}

impl Question for Poll<'_> {
    fn look(&mut self, view: View<'_>) -> Look {
        let (mut look, mut quiet, bits) = (Look::default(), Quiet::default(), view.bits());
        for entry in self.0.iter_mut() {
            entry.revents = 0;
            if entry.fd < 0 || quiet.has(bits, *entry) {
                continue;
            }
            match known(view, bits, *entry) {
                Known::Not => look.has_others = true,
                Known::Guess => look.has_guesses = true,
                Known::Events(events) => {
                    entry.revents = events as u16;
                    look.ready += usize::from(events != 0);
                    look.has_others |= lacks_room(bits, *entry, events);
                }
            }
        }
        look
    }

    fn collect(&mut self, waiter: &mut Waiter<'_>) -> usize {
        let (mut ready, view) = (0, waiter.view());
        let bits = view.bits();
        for (at, entry) in self.0.iter().enumerate().filter(|(_, entry)| entry.fd >= 0) {
            let events = u32::from(entry.events);
            let is_expected = waiter.expect(entry.fd, events);
            match known(view, bits, *entry) {
                Known::Events(found) if is_expected => {
                    ready += usize::from(found != 0);
                    if lacks_room(bits, *entry, found) {
                        waiter.wait_for_room(entry.fd, at);
                    }
                }
                _ => waiter.ask(entry.fd, events, at),
            }
        }
        ready
    }

    fn add(&mut self, asked: &Asked) -> Result<usize> {
        let mut added = 0;
        for (other, at) in asked.fds.iter().zip(&asked.entries) {
            let entry = &mut self.0[*at as usize];
            added += usize::from(entry.revents == 0 && other.revents != 0);
            entry.revents |= other.revents;
        }
        Ok(added)
    }

    fn refresh(&self, view: View<'_>) {
        self.0.iter().filter(|entry| entry.revents != 0).for_each(|entry| view.refresh(entry.fd));
    }

    fn ask_kernel(&mut self, timeout: Option<Duration>, mask: Option<&SignalSet>) -> Result<usize> {
        kernel::ppoll(self.0, timeout, mask)
    }
}

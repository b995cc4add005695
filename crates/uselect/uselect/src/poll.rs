//! upoll: poll(2), answered from memory where that knows.

use std::sync::MutexGuard;
use std::time::Duration;

use crate::bitmap::{ReadinessBitmaps, bit_positions, fd_index, is_set};
use crate::bits;
use crate::kernel::{self, Result, SignalSet};
use crate::limits::POLL_CACHE_ENTRIES_MIN;
use crate::poll_cache::{PollCache, ReaderWord, quiet_bits};
use crate::poll_set::PollSet;
use crate::pollfd::PollFd;
use crate::tracker::Tracker;
use crate::view::{BlockingWait, MemoryView};
use crate::wait::{MemoryScan, WaitCall, wait};

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
        self.upoll_with(fds, timeout, mask, |_| {})
    }

    /// As [`Tracker::upoll`]. `learn` is called with each descriptor that memory does not know, and
    /// maybe with others, before anybody is asked about it; it may have that tracked
    /// ([`Tracker::adopt`]).
    ///
    /// # Errors
    /// As there.
    pub fn upoll_with(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
        on_untracked: impl FnMut(i32),
    ) -> Result<usize> {
        let is_large = fds.len() >= POLL_CACHE_ENTRIES_MIN;
        let remembered = is_large.then(|| self.shared().poll_cache.try_lock().ok()).flatten();
        wait(
            self.shared(),
            &mut PollCall { fds, remembered, reported: None, learn: on_untracked },
            timeout,
            mask,
        )
    }
}

struct PollCall<'a, Learn> {
    fds: &'a mut [PollFd],
    /// There in a large question, unless another thread is in one.
    remembered: Option<MutexGuard<'a, PollCache>>,
    /// Answers that the last look has left in `fds`; `None` before the first.
    reported: Option<usize>,
    learn: Learn,
}

/// What memory says of an entry.
enum EntryState {
    /// Nothing: the kernel has to be asked.
    NeedsKernel,
    /// That it may be ready: the kernel has to be asked.
    Hint,
    Events(u32),
}

fn entry_state(view: MemoryView<'_>, bits: ReadinessBitmaps<'_>, entry: PollFd) -> EntryState {
    let Some(fd) = fd_index(entry.fd) else { return EntryState::NeedsKernel };
    if !is_set(bits.active, fd) {
        return EntryState::NeedsKernel;
    }
    // Most sockets of a large set are idle: nothing to read, and nobody asks for room.
    let asked = u32::from(entry.events);
    let may_be_ready = is_set(bits.read, fd)
        || asked & bits::WRITABLE != 0 && is_set(bits.write, fd)
        || asked & bits::PRI != 0 && is_set(bits.urgent, fd)
        || is_set(bits.except, fd);
    match may_be_ready {
        false => EntryState::Events(0),
        true if bits.is_hint => EntryState::Hint,
        true if is_set(bits.except, fd) => EntryState::NeedsKernel,
        true => match view.events(fd) {
            Some(events) => EntryState::Events(events & (asked | bits::ALWAYS_REPORTED)),
            None => EntryState::NeedsKernel,
        },
    }
}

/// Room is made without a word, unless guesses are made of what the kernel itself wakes for.
fn lacks_send_space(bits: ReadinessBitmaps<'_>, entry: PollFd, events: u32) -> bool {
    !bits.is_hint && u32::from(entry.events) & bits::WRITABLE & !events != 0
}

/// What an entry adds to a look.
fn scan_entry(
    view: MemoryView<'_>,
    entry: &mut PollFd,
    look: &mut MemoryScan,
    learn: &mut impl FnMut(i32),
) {
    let bits = view.bits();
    let mut known_now = entry_state(view, bits, *entry);
    if matches!(known_now, EntryState::NeedsKernel) {
        learn(entry.fd);
        known_now = entry_state(view, bits, *entry);
    }
    match known_now {
        EntryState::NeedsKernel => look.has_unknown = true,
        EntryState::Hint => look.has_hints = true,
        EntryState::Events(events) => {
            entry.revents = events as u16;
            look.ready += usize::from(events != 0);
            look.has_unknown |= lacks_send_space(bits, *entry, events);
        }
    }
}

/// Publishes or collects what an entry waits for; whether there is something to tell of it.
fn prepare_entry(waiter: &mut BlockingWait<'_>, entry: PollFd, at: usize) -> bool {
    let is_expected = waiter.publish(entry.fd, u32::from(entry.events));
    let view = waiter.view();
    match entry_state(view, view.bits(), entry) {
        EntryState::Events(found) if is_expected => {
            if lacks_send_space(view.bits(), entry, found) {
                waiter.watch_writable(entry.fd, at);
            }
            found != 0
        }
        _ => {
            waiter.poll_set().add(entry.fd, u32::from(entry.events), at);
            false
        }
    }
}

impl<Learn: FnMut(i32)> WaitCall for PollCall<'_, Learn> {
    fn scan_memory(&mut self, view: MemoryView<'_>) -> MemoryScan {
        let Self { fds, remembered, reported: told, learn } = self;
        let (mut look, bits) = (MemoryScan::default(), view.bits());
        let Some(remembered) = remembered else {
            for entry in fds.iter_mut() {
                entry.revents = 0;
                if entry.fd >= 0 {
                    scan_entry(view, entry, &mut look, learn);
                }
            }
            return look;
        };
        // What was asked does not change in a wait, so it is compared once, unless there are answers.
        if *told != Some(0) {
            remembered.update(fds);
        }
        for (number, word) in remembered.words.iter().enumerate() {
            for bit in bit_positions(word.readers & !quiet_bits(bits, number)) {
                let entry = &mut fds[remembered.reader_entry(number, bit)];
                scan_entry(view, entry, &mut look, learn);
            }
        }
        for at in remembered.others() {
            scan_entry(view, &mut fds[at], &mut look, learn);
        }
        *told = Some(look.ready);
        look
    }

    fn prepare_sleep(&mut self, waiter: &mut BlockingWait<'_>) -> usize {
        let Self { fds, remembered, .. } = self;
        let Some(remembered) = remembered else {
            let entries = fds.iter().enumerate().filter(|(_, entry)| entry.fd >= 0);
            return entries.filter(|(at, entry)| prepare_entry(waiter, **entry, *at)).count();
        };
        let mut ready = 0;
        for number in 0..remembered.words.len() {
            let ReaderWord { readers, stamp } = remembered.words[number];
            let (now, mut unexpected) = (waiter.stamp(number), 0);
            if stamp == Some(now) {
                waiter.keep_published(number, readers);
            } else {
                for bit in bit_positions(readers) {
                    let entry = fds[remembered.reader_entry(number, bit)];
                    let is_expected = waiter.publish(entry.fd, u32::from(entry.events));
                    unexpected |= u64::from(!is_expected) << bit;
                }
                if unexpected == 0 {
                    remembered.set_stamp(number, now);
                }
            }
            // Behind what is expected: what has happened before is found here.
            for bit in
                bit_positions(readers & (unexpected | !quiet_bits(waiter.view().bits(), number)))
            {
                let at = remembered.reader_entry(number, bit);
                ready += usize::from(prepare_entry(waiter, fds[at], at));
            }
        }
        ready + remembered.others().filter(|at| prepare_entry(waiter, fds[*at], *at)).count()
    }

    fn add_polled(&mut self, asked: &PollSet) -> Result<usize> {
        let mut added = 0;
        for (other, at) in asked.fds.iter().zip(&asked.entries) {
            let entry = &mut self.fds[*at as usize];
            added += usize::from(entry.revents == 0 && other.revents != 0);
            entry.revents |= other.revents;
        }
        Ok(added)
    }

    fn refresh_ready(&self, view: MemoryView<'_>) {
        let told = self.fds.iter().filter(|entry| entry.revents != 0);
        told.for_each(|entry| view.refresh(entry.fd));
    }

    fn call_kernel(
        &mut self,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let open = self.fds.iter().filter(|entry| entry.fd >= 0);
        open.for_each(|entry| (self.learn)(entry.fd));
        kernel::ppoll(self.fds, timeout, mask)
    }
}

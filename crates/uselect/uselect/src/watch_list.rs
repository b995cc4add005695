//! What a watcher has of its descriptors: those that memory knows, and which are the kernel's.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::bitmap::{bit_positions, fd_index, has_bit, is_set, set_bit};
use crate::bits;
use crate::kernel::{self, Epoll};
use crate::layout::WORDS;
use crate::pollfd::PollFd;
use crate::region::ProcessRegion;
use crate::registration::TrackingMode;
use crate::sleeper::Sleeper;

/// What was found of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DescriptorEvent {
    /// The caller's number.
    pub data: u64,
    /// Bits of epoll(7).
    pub events: u32,
    /// Events since it was told last, modulo 2^16, at least 1 where it is watched by edges; 0 if
    /// it is not tracked, where nobody counts.
    pub edges: u16,
}

/// A descriptor that memory knows.
#[derive(Clone, Copy, Default)]
struct WatchEntry {
    data: u64,
    /// As it was added: bits of epoll(7), EPOLLET and EPOLLONESHOT among them.
    events: u32,
    /// Of its word, when it was told last.
    edges: u16,
    /// It was added, changed, or has room again since: told by edges, too.
    must_report: bool,
    /// It was told once, which was all that was asked for.
    is_disabled: bool,
}

/// Which descriptors memory knows, and of which there may be something to tell.
#[derive(Default)]
pub(crate) struct WatchList {
    /// By descriptor, as far as any was added.
    entries: Vec<WatchEntry>,
    /// Bits by descriptor, as many words each: known by memory; perhaps to be told; the kernel's.
    in_memory: Vec<u64>,
    pending: Vec<u64>,
    in_kernel: Vec<u64>,
    /// By word of descriptors: one of them may be pending.
    pending_words: Vec<u64>,
    /// The descriptor with which the next scan begins, so that those of low numbers do not come
    /// first for ever.
    scan_start: usize,
    /// Threads that sleep.
    pub(crate) waiters: u32,
    /// There is something that memory does not know: descriptors of the kernel's, or room.
    pub(crate) has_kernel_entries: bool,
    pub(crate) is_handed_over: bool,
}

impl WatchList {
    /// Whether a descriptor is known by memory. One that was closed and opened anew is not: its
    /// interest has been taken back.
    pub(crate) fn verify_in_memory(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        fd: i32,
    ) -> bool {
        let Some(fd) = usize::try_from(fd).ok().filter(|fd| has_bit(&self.in_memory, *fd)) else {
            return false;
        };
        let is_kept = sleeper.has_kept(region.pages.interest(fd));
        if !is_kept {
            self.drop_bits(fd);
        }
        is_kept
    }

    /// False if it is the kernel's.
    pub(crate) fn add(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        fd: i32,
        events: u32,
        data: u64,
    ) -> bool {
        let is_known =
            events & (bits::EXCLUSIVE | bits::WAKEUP) == 0 && region.pages.index(fd).is_some();
        // Where the kernel has it already, or had, it says what is right.
        if !is_known || has_bit(&self.in_kernel, fd as usize) {
            return false;
        }
        if !sleeper.publish_kept(&region.pages, fd, events) {
            return false;
        }
        let edges = region.pages.index(fd).map_or(0, |index| region.pages.word(index).edges());
        let fd = fd as usize;
        self.grow(fd);
        self.entries[fd] =
            WatchEntry { data, events, edges, must_report: true, is_disabled: false };
        set_local_bit(&mut self.in_memory, fd);
        self.add_pending(fd);
        true
    }

    fn grow(&mut self, fd: usize) {
        let items = self.entries.len().max((fd / 64 + 1) * 64);
        self.entries.resize(items, WatchEntry::default());
        let groups = self.pending_words.len().max(fd / 64 / 64 + 1);
        self.pending_words.resize(groups, 0);
        for bits in [&mut self.in_memory, &mut self.pending, &mut self.in_kernel] {
            bits.resize(groups * 64, 0);
        }
    }

    fn add_pending(&mut self, fd: usize) {
        set_local_bit(&mut self.pending, fd);
        set_local_bit(&mut self.pending_words, fd / 64);
    }

    pub(crate) fn modify(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        fd: i32,
        events: u32,
        data: u64,
    ) {
        // It is ours, so nobody else changes it.
        sleeper.publish_kept(&region.pages, fd, events);
        let edges = self.entries[fd as usize].edges;
        self.entries[fd as usize] =
            WatchEntry { data, events, edges, must_report: true, is_disabled: false };
        self.add_pending(fd as usize);
    }

    pub(crate) fn remove(&mut self, region: &ProcessRegion, fd: i32) {
        region.pages.clear_interest(fd as usize);
        self.drop_bits(fd as usize);
    }

    pub(crate) fn remove_closing(&mut self, fd: i32) {
        if let Some(fd) = usize::try_from(fd).ok().filter(|fd| fd / 64 < self.in_memory.len()) {
            self.drop_bits(fd);
            clear_local_bit(&mut self.in_kernel, fd);
        }
    }

    /// What memory knows, and where it can be asked, has still.
    pub(crate) fn verified_fds(&mut self, region: &ProcessRegion, sleeper: &Sleeper) -> Vec<i32> {
        let (is_live, numbers) = (region.is_live(), 0..self.in_memory.len() as i32 * 64);
        let is_tracked = |fd: &i32| match is_live {
            true => self.verify_in_memory(region, sleeper, *fd),
            false => has_bit(&self.in_memory, *fd as usize),
        };
        numbers.filter(is_tracked).collect()
    }

    fn drop_bits(&mut self, fd: usize) {
        clear_local_bit(&mut self.in_memory, fd);
        clear_local_bit(&mut self.pending, fd);
    }

    pub(crate) fn record_in_kernel(&mut self, fd: i32) {
        self.has_kernel_entries = true;
        // Of those beyond, memory never knows.
        if let Some(fd) = fd_index(fd) {
            self.grow(fd);
            set_local_bit(&mut self.in_kernel, fd);
        }
    }

    pub(crate) fn hand_over(&mut self, region: &ProcessRegion, sleeper: &Sleeper, items: &Epoll) {
        self.is_handed_over = true;
        for fd in self.verified_fds(region, sleeper) {
            self.hand_over_one(region, items, fd);
        }
    }

    /// One that is closed by now is nobody's.
    pub(crate) fn hand_over_one(&mut self, region: &ProcessRegion, items: &Epoll, fd: i32) {
        let item = self.entries[fd as usize];
        let events =
            if item.is_disabled { item.events & (bits::EDGE | bits::ONCE) } else { item.events };
        let _ = items.add(fd, events, item.data);
        if region.is_live() {
            region.pages.clear_interest(fd as usize);
        }
        self.drop_bits(fd as usize);
        self.record_in_kernel(fd);
    }

    /// Nobody waits any more.
    pub(crate) fn remove_all(&mut self, region: &ProcessRegion, sleeper: &Sleeper) {
        if region.is_live() {
            for fd in self.verified_fds(region, sleeper) {
                self.remove(region, fd);
            }
        }
    }

    pub(crate) fn record_short_send(&mut self, region: &ProcessRegion, bell: &Epoll, fd: i32) {
        set_bit(&region.pages.writable.write, fd as usize, false);
        self.watch_writable(bell, fd as usize);
    }

    /// One that cannot be watched is looked at with the next that happens to it.
    fn watch_writable(&mut self, bell: &Epoll, fd: usize) {
        let _ = bell.add_oneshot(fd as i32, bits::OUT, fd as u64);
        self.has_kernel_entries = true;
    }

    /// The kernel says so.
    pub(crate) fn record_writable(&mut self, region: &ProcessRegion, fd: usize) {
        region.refresh(fd as i32);
        if has_bit(&self.in_memory, fd) {
            self.entries[fd].must_report = true;
            self.add_pending(fd);
        }
    }

    /// Whether there may be something to tell.
    pub(crate) fn has_changes(&self, region: &ProcessRegion, sleeper: &Sleeper) -> bool {
        let mut words = self.pending_words.iter().zip(sleeper.changed_words(&region.pages));
        words.any(|(pending, changed)| pending | changed.load(Ordering::SeqCst) != 0)
    }

    /// Tells what there is, and gives how much.
    pub(crate) fn scan(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        bell: &Epoll,
        events: &mut [DescriptorEvent],
    ) -> usize {
        // Pairs with publish() in the kernel: bits of `changed` are read behind this; there they
        // are stored before.
        for (pending, changed) in
            self.pending_words.iter_mut().zip(sleeper.changed_words(&region.pages))
        {
            if changed.load(Ordering::SeqCst) != 0 {
                *pending |= changed.swap(0, Ordering::SeqCst);
            }
        }
        let (words, mut count) = (self.in_memory.len(), 0);
        debug_assert!(words <= WORDS);
        let (first, beyond) = (self.scan_start / 64, u64::MAX << (self.scan_start % 64));
        // The first word twice: its end, and at last its beginning.
        let parts = [(first..words, beyond), (0..words.min(first + 1), !beyond)];
        for (mut numbers, part) in parts {
            while let Some(at) = first_set_bit(&self.pending_words, numbers.clone()) {
                numbers.start = at + 1;
                let changed = &region.pages.writable.changed[at];
                let mut new = changed.load(Ordering::SeqCst) & self.in_memory[at];
                // One that was closed and opened anew may be another watcher's, who is to find it.
                for bit in bit_positions(new) {
                    if !self.verify_in_memory(region, sleeper, (at * 64) as i32 + bit as i32) {
                        new &= !(1 << bit);
                    }
                }
                if new != 0 {
                    // Pairs with publish(), too: words are read behind this; there they are stored
                    // before the bit is looked at.
                    changed.fetch_and(!new, Ordering::SeqCst);
                    self.pending[at] |= new;
                }
                let left = self.pending[at] & if at == first { part } else { u64::MAX };
                for fd in bit_positions(left).map(|bit| at * 64 + bit as usize) {
                    if count == events.len() {
                        self.scan_start = fd;
                        return count;
                    }
                    if let Some(event) = self.take_event(region, sleeper, bell, fd) {
                        events[count] = event;
                        count += 1;
                    }
                }
                if self.pending[at] == 0 {
                    clear_local_bit(&mut self.pending_words, at);
                }
            }
        }
        count
    }

    /// What there is to tell of a descriptor. It stays pending while it is ready and not watched by
    /// edges.
    fn take_event(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        bell: &Epoll,
        fd: usize,
    ) -> Option<DescriptorEvent> {
        let index = region
            .pages
            .index(fd as i32)
            .filter(|_| self.verify_in_memory(region, sleeper, fd as i32));
        let (Some(index), false) = (index, self.entries[fd].is_disabled) else {
            clear_local_bit(&mut self.pending, fd);
            return None;
        };
        let (word, item) = (region.pages.word(index), self.entries[fd]);
        // One word, for its events and what they are: what comes behind it is an event of its own.
        let mut ready = match word.needs_kernel() || is_set(&region.pages.writable.except, fd) {
            true => poll_kernel(fd),
            false => region.events_of_word(word, fd),
        };
        let lacks_room = |ready| item.events & bits::OUT != 0 && ready & bits::OUT == 0;
        // The kernel may have said that there is room where memory knows of none.
        if lacks_room(ready) && item.must_report {
            ready = poll_kernel(fd);
        }
        if lacks_room(ready) {
            self.watch_writable(bell, fd);
        }
        let found = ready & (item.events | bits::ALWAYS_REPORTED) & 0xFFFF;
        // In lean mode bits follow the word, which may have been read, and its event counted as told,
        // before they were there; a bit that is there has not been told.
        let is_untold =
            region.mode == TrackingMode::Lean && found & (bits::READABLE | bits::WRITABLE) != 0;
        let is_new = word.edges() != item.edges || item.must_report || is_untold;
        if found == 0 || item.events & bits::EDGE != 0 && !is_new {
            clear_local_bit(&mut self.pending, fd);
            return None;
        }
        if item.events & (bits::EDGE | bits::ONCE) != 0 {
            clear_local_bit(&mut self.pending, fd);
        }
        if item.events & bits::EDGE != 0 && region.mode == TrackingMode::Lean {
            clear_reported(region, fd, found);
        }
        let told = &mut self.entries[fd];
        *told = WatchEntry { edges: word.edges(), must_report: false, ..item };
        told.is_disabled = item.events & bits::ONCE != 0;
        let edges = word.edges().wrapping_sub(item.edges).max(1);
        Some(DescriptorEvent { data: item.data, events: found, edges })
    }
}

/// Lean: what is told by edges need not be told again. What comes from now on sets the bit, and says
/// that there is a change.
fn clear_reported(region: &ProcessRegion, fd: usize, found: u32) {
    let own = &region.pages.writable;
    for (bitmap, told) in [(&own.read, bits::READABLE), (&own.write, bits::WRITABLE)] {
        if found & told != 0 {
            set_bit(bitmap, fd, false);
        }
    }
}

/// poll(2), for what memory does not know.
fn poll_kernel(fd: usize) -> u32 {
    const ALL: u16 = !(bits::NVAL as u16);
    let mut asked = [PollFd { fd: fd as i32, events: ALL, revents: 0 }];
    let _ = kernel::ppoll(&mut asked, Some(Duration::ZERO), None);
    u32::from(asked[0].revents)
}

/// The first bit in a range that is set.
fn first_set_bit(bits: &[u64], range: Range<usize>) -> Option<usize> {
    let mut at = range.start;
    while at < range.end {
        let rest = bits[at / 64] >> (at % 64);
        if rest != 0 {
            return Some(at + rest.trailing_zeros() as usize).filter(|at| *at < range.end);
        }
        at = (at / 64 + 1) * 64;
    }
    None
}

fn set_local_bit(bits: &mut [u64], fd: usize) {
    bits[fd / 64] |= 1 << (fd % 64);
}

fn clear_local_bit(bits: &mut [u64], fd: usize) {
    bits[fd / 64] &= !(1 << (fd % 64));
}

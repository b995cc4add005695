//! `WatchList`: which descriptors of a watcher are in memory, and which are in its epoll instance
//! ("the kernel's instance").

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

/// An event of a watched descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DescriptorEvent {
    /// The caller's data of the descriptor.
    pub data: u64,
    /// Bits of epoll(7) that are ready.
    pub events: u32,
    /// The number of events since the descriptor was returned last, modulo 2^16, but at least 1; 0
    /// if the watcher has the descriptor in its epoll instance.
    pub edges: u16,
}

/// A watched descriptor that is in memory.
#[derive(Clone, Copy, Default)]
struct WatchEntry {
    data: u64,
    /// Bits of epoll(7) as they were added, including EPOLLET and EPOLLONESHOT.
    events: u32,
    /// The event count of its word when it was added or last returned.
    edges: u16,
    /// Whether the descriptor was added or modified, or got send space, since it was returned last.
    /// It is then reported even without a new edge.
    must_report: bool,
    /// Whether the descriptor is one-shot, and was returned and not modified since.
    is_disabled: bool,
}

/// The state of a watcher, under its lock.
#[derive(Default)]
pub(crate) struct WatchList {
    /// By descriptor, up to the highest one that was added.
    entries: Vec<WatchEntry>,
    /// By descriptor, whether it is in memory.
    in_memory: Vec<u64>,
    /// By descriptor, whether it may be ready. `pending.len() == in_memory.len()`.
    pending: Vec<u64>,
    /// By descriptor, whether it is in the kernel's instance. `in_kernel.len() == in_memory.len()`.
    in_kernel: Vec<u64>,
    /// By word of `pending`, whether the next scan visits it: the word has a set bit, or the eBPF
    /// programs reported a change of one of its descriptors.
    pending_words: Vec<u64>,
    /// The descriptor at which the next scan begins, so that low descriptors do not always come
    /// first.
    scan_start: usize,
    /// The number of threads that sleep.
    pub(crate) waiters: u32,
    /// Whether the kernel's instance ever contained a descriptor, or `wake_epoll` one for send
    /// space. Never cleared.
    pub(crate) has_kernel_entries: bool,
    /// Whether all descriptors were moved to the kernel's instance.
    pub(crate) is_handed_over: bool,
}

impl WatchList {
    /// Creates an empty list, over a kernel's instance that may have entries already.
    pub(crate) fn new(has_kernel_entries: bool) -> Self {
        Self { has_kernel_entries, ..Self::default() }
    }

    /// Returns whether a descriptor is in memory, and removes it if it was closed and reopened
    /// meanwhile: its interest is then gone.
    pub(crate) fn verify_in_memory(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        fd: i32,
    ) -> bool {
        let Some(fd) = usize::try_from(fd).ok().filter(|fd| has_bit(&self.in_memory, *fd)) else {
            return false;
        };
        let is_kept = sleeper.has_persistent(region.pages.interest(fd));
        if !is_kept {
            self.drop_bits(fd);
        }
        is_kept
    }

    /// Adds a descriptor. Returns false if it belongs in the kernel's instance.
    pub(crate) fn add(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        fd: i32,
        events: u32,
        data: u64,
    ) -> bool {
        let can_track =
            events & (bits::EXCLUSIVE | bits::WAKEUP) == 0 && region.pages.index(fd).is_some();
        // If the kernel's instance may have the descriptor, only epoll_ctl(2) can decide whether
        // the call fails (EEXIST).
        if !can_track || has_bit(&self.in_kernel, fd as usize) {
            return false;
        }
        if !sleeper.publish_persistent(&region.pages, fd, events) {
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
        let entries = self.entries.len().max((fd / 64 + 1) * 64);
        self.entries.resize(entries, WatchEntry::default());
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
        // This watcher owns the interest, so no other sleeper changes it.
        sleeper.publish_persistent(&region.pages, fd, events);
        let edges = self.entries[fd as usize].edges;
        self.entries[fd as usize] =
            WatchEntry { data, events, edges, must_report: true, is_disabled: false };
        self.add_pending(fd as usize);
    }

    pub(crate) fn remove(&mut self, region: &ProcessRegion, fd: i32) {
        region.pages.clear_interest(fd as usize);
        self.drop_bits(fd as usize);
    }

    /// Removes a descriptor that is about to be closed.
    pub(crate) fn remove_closing(&mut self, fd: i32) {
        if let Some(fd) = usize::try_from(fd).ok().filter(|fd| fd / 64 < self.in_memory.len()) {
            self.drop_bits(fd);
            clear_local_bit(&mut self.in_kernel, fd);
        }
    }

    /// Returns the descriptors that are in memory. While the registration is live, those that were
    /// closed are left out.
    pub(crate) fn verified_fds(&mut self, region: &ProcessRegion, sleeper: &Sleeper) -> Vec<i32> {
        let (is_live, fds) = (region.is_live(), 0..self.in_memory.len() as i32 * 64);
        let is_tracked = |fd: &i32| match is_live {
            true => self.verify_in_memory(region, sleeper, *fd),
            false => has_bit(&self.in_memory, *fd as usize),
        };
        fds.filter(is_tracked).collect()
    }

    fn drop_bits(&mut self, fd: usize) {
        clear_local_bit(&mut self.in_memory, fd);
        clear_local_bit(&mut self.pending, fd);
    }

    /// Records that a descriptor is in the kernel's instance.
    pub(crate) fn record_in_kernel(&mut self, fd: i32) {
        self.has_kernel_entries = true;
        // Descriptors beyond the bitmaps are never in memory.
        if let Some(fd) = fd_index(fd) {
            self.grow(fd);
            set_local_bit(&mut self.in_kernel, fd);
        }
    }

    /// Moves all descriptors to the kernel's instance.
    pub(crate) fn hand_over(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        kernel_set: &Epoll,
    ) {
        self.is_handed_over = true;
        for fd in self.verified_fds(region, sleeper) {
            self.hand_over_one(region, kernel_set, fd);
        }
    }

    /// Moves a descriptor to the kernel's instance. If it is closed by now, epoll_ctl(2) fails and
    /// nothing is added.
    pub(crate) fn hand_over_one(&mut self, region: &ProcessRegion, kernel_set: &Epoll, fd: i32) {
        let entry = self.entries[fd as usize];
        let events = if entry.is_disabled {
            entry.events & (bits::EDGE | bits::ONESHOT)
        } else {
            entry.events
        };
        let _ = kernel_set.add(fd, events, entry.data);
        if region.is_live() {
            region.pages.clear_interest(fd as usize);
        }
        self.drop_bits(fd as usize);
        self.record_in_kernel(fd);
    }

    /// Removes all descriptors when the watcher is dropped.
    pub(crate) fn remove_all(&mut self, region: &ProcessRegion, sleeper: &Sleeper) {
        if region.is_live() {
            for fd in self.verified_fds(region, sleeper) {
                self.remove(region, fd);
            }
        }
    }

    /// Lean mode: records that a send took fewer bytes than requested.
    pub(crate) fn record_short_send(
        &mut self,
        region: &ProcessRegion,
        wake_epoll: &Epoll,
        fd: i32,
    ) {
        set_bit(&region.pages.writable.write, fd as usize, false);
        self.watch_writable(wake_epoll, fd as usize);
    }

    /// Requests a wake-up by `wake_epoll` when a socket has send space. If epoll_ctl(2) fails, the
    /// socket is checked at its next event.
    fn watch_writable(&mut self, wake_epoll: &Epoll, fd: usize) {
        let _ = wake_epoll.add_oneshot(fd as i32, bits::OUT, fd as u64);
        self.has_kernel_entries = true;
    }

    /// Records that the kernel reported send space.
    pub(crate) fn record_writable(&mut self, region: &ProcessRegion, fd: usize) {
        region.refresh(fd as i32);
        if has_bit(&self.in_memory, fd) {
            self.entries[fd].must_report = true;
            self.add_pending(fd);
        }
    }

    /// Returns whether a scan may find an event.
    pub(crate) fn has_changes(&self, region: &ProcessRegion, sleeper: &Sleeper) -> bool {
        let mut words = self.pending_words.iter().zip(sleeper.changed_words(&region.pages));
        words.any(|(pending, changed)| pending | changed.load(Ordering::SeqCst) != 0)
    }

    /// Stores the events that are ready, and returns their number.
    pub(crate) fn scan(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        wake_epoll: &Epoll,
        events: &mut [DescriptorEvent],
    ) -> usize {
        // Pairs with publish() of uselect.bpf.c: the bits of `changed` are read after this; the
        // kernel sets them before it sets `changed_words`.
        for (pending, changed) in
            self.pending_words.iter_mut().zip(sleeper.changed_words(&region.pages))
        {
            if changed.load(Ordering::SeqCst) != 0 {
                *pending |= changed.swap(0, Ordering::SeqCst);
            }
        }
        let (words, mut count) = (self.in_memory.len(), 0);
        debug_assert!(words <= WORDS);
        let (first, upper) = (self.scan_start / 64, u64::MAX << (self.scan_start % 64));
        // The first word is scanned twice: the bits from `scan_start` on first, the bits below it
        // last.
        let ranges = [(first..words, upper), (0..words.min(first + 1), !upper)];
        for (mut words_left, mask) in ranges {
            while let Some(at) = first_set_bit(&self.pending_words, words_left.clone()) {
                words_left.start = at + 1;
                let changed = &region.pages.writable.changed[at];
                let mut new = changed.load(Ordering::SeqCst) & self.in_memory[at];
                // A descriptor that was closed and reopened may belong to another watcher, which
                // must find its bit.
                for bit in bit_positions(new) {
                    if !self.verify_in_memory(region, sleeper, (at * 64) as i32 + bit as i32) {
                        new &= !(1 << bit);
                    }
                }
                if new != 0 {
                    // Also pairs with publish(): the words of the sockets are read after this; the
                    // kernel stores them before it reads the bit.
                    changed.fetch_and(!new, Ordering::SeqCst);
                    self.pending[at] |= new;
                }
                let left = self.pending[at] & if at == first { mask } else { u64::MAX };
                for fd in bit_positions(left).map(|bit| at * 64 + bit as usize) {
                    if count == events.len() {
                        self.scan_start = fd;
                        return count;
                    }
                    if let Some(event) = self.take_event(region, sleeper, wake_epoll, fd) {
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

    /// Returns the event of a descriptor. A level-triggered descriptor stays pending while it is
    /// ready.
    fn take_event(
        &mut self,
        region: &ProcessRegion,
        sleeper: &Sleeper,
        wake_epoll: &Epoll,
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
        let (word, entry) = (region.pages.word(index), self.entries[fd]);
        // The events and their count come from one read of the word. A later event counts as a new
        // one.
        let mut ready = match word.needs_kernel() || is_set(&region.pages.writable.except, fd) {
            true => poll_kernel(fd),
            false => region.events_of_word(word, fd),
        };
        let lacks_space = |ready| entry.events & bits::OUT != 0 && ready & bits::OUT == 0;
        // The kernel may have reported send space that memory does not show.
        if lacks_space(ready) && entry.must_report {
            ready = poll_kernel(fd);
        }
        if lacks_space(ready) {
            self.watch_writable(wake_epoll, fd);
        }
        let found = ready & (entry.events | bits::ALWAYS_REPORTED) & 0xFFFF;
        // In lean mode a program stores the word first and sets the bits afterwards. A scan in
        // between records the count of that event without its bits. As a scan clears the bits that
        // it reports, a set bit belongs to an unreported event, even if the count is unchanged.
        let is_unreported =
            region.mode == TrackingMode::Lean && found & (bits::READABLE | bits::WRITABLE) != 0;
        let is_new = word.edges() != entry.edges || entry.must_report || is_unreported;
        if found == 0 || entry.events & bits::EDGE != 0 && !is_new {
            clear_local_bit(&mut self.pending, fd);
            return None;
        }
        if entry.events & (bits::EDGE | bits::ONESHOT) != 0 {
            clear_local_bit(&mut self.pending, fd);
        }
        if entry.events & bits::EDGE != 0 && region.mode == TrackingMode::Lean {
            clear_reported(region, fd, found);
        }
        let reported = &mut self.entries[fd];
        *reported = WatchEntry { edges: word.edges(), must_report: false, ..entry };
        reported.is_disabled = entry.events & bits::ONESHOT != 0;
        let edges = word.edges().wrapping_sub(entry.edges).max(1);
        Some(DescriptorEvent { data: entry.data, events: found, edges })
    }
}

/// Lean mode: clears the bits that an edge-triggered descriptor reports. The next event sets them
/// again and marks the descriptor as changed.
fn clear_reported(region: &ProcessRegion, fd: usize, found: u32) {
    let pages = &region.pages.writable;
    for (bitmap, bits) in [(&pages.read, bits::READABLE), (&pages.write, bits::WRITABLE)] {
        if found & bits != 0 {
            set_bit(bitmap, fd, false);
        }
    }
}

/// Calls poll(2) for events that memory does not show.
fn poll_kernel(fd: usize) -> u32 {
    const ALL: u16 = !(bits::NVAL as u16);
    let mut fds = [PollFd { fd: fd as i32, events: ALL, revents: 0 }];
    let _ = kernel::ppoll(&mut fds, Some(Duration::ZERO), None);
    u32::from(fds[0].revents)
}

/// Returns the first set bit in a range.
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

//! upoll: poll(2), served from memory where possible.

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
    /// Waits like poll(2), or with a signal mask like ppoll(2), until one of `fds` is ready, the
    /// timeout expires (`None`: never) or a signal is handled. Returns the number of entries with
    /// nonzero `revents`.
    ///
    /// With [`crate::Backend::Bpf`], most waits make no system call while a tracked socket is
    /// ready. After [`crate::KERNEL_CHECK_WAITS_MAX`] such waits, the next one calls the kernel
    /// too. If memory does not show the state of some entries, a wait also does so after
    /// [`crate::KERNEL_CHECK_TIME_MAX`]. A wait with a timeout of zero and no mask makes no system
    /// call if memory shows that no entry is ready. Memory cannot show this for an entry that waits
    /// for missing send space. Every [`crate::DAEMON_CHECK_WAITS_MAX`]th wait makes one more call,
    /// to check that the daemon still runs.
    ///
    /// # Errors
    /// Those of poll(2), including EINTR.
    pub fn upoll(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        self.upoll_with(fds, timeout, mask, |_| {})
    }

    /// Like [`Tracker::upoll`], but calls `on_untracked` with each descriptor that is not tracked,
    /// and maybe with others, before it calls the kernel for them. The function may track the
    /// descriptor ([`Tracker::track`]).
    ///
    /// # Errors
    /// Those of [`Tracker::upoll`].
    pub fn upoll_with(
        &self,
        fds: &mut [PollFd],
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
        on_untracked: impl FnMut(i32),
    ) -> Result<usize> {
        let is_large = fds.len() >= POLL_CACHE_ENTRIES_MIN;
        let cache = is_large.then(|| self.shared().poll_cache.try_lock().ok()).flatten();
        wait(
            self.shared(),
            &mut PollCall { fds, cache, reported: None, on_untracked },
            timeout,
            mask,
        )
    }
}

struct PollCall<'a, OnUntracked> {
    fds: &'a mut [PollFd],
    /// `None` for few entries, or while another thread uses the cache.
    cache: Option<MutexGuard<'a, PollCache>>,
    /// The number of ready entries that the last scan left in `fds`; `None` before the first scan.
    reported: Option<usize>,
    on_untracked: OnUntracked,
}

/// The state of an entry, as far as memory shows it.
enum EntryState {
    /// Memory does not show its state: the kernel must be called.
    NeedsKernel,
    /// The entry may be ready: the kernel must be called.
    Hint,
    /// The result that poll(2) would return.
    Events(u32),
}

fn entry_state(view: MemoryView<'_>, bits: ReadinessBitmaps<'_>, entry: PollFd) -> EntryState {
    let Some(fd) = fd_index(entry.fd) else { return EntryState::NeedsKernel };
    if !is_set(bits.active, fd) {
        return EntryState::NeedsKernel;
    }
    // Most sockets of a large set are idle: the bits show that, so their words are not read.
    let requested = u32::from(entry.events);
    let may_be_ready = is_set(bits.read, fd)
        || requested & bits::WRITABLE != 0 && is_set(bits.write, fd)
        || requested & bits::PRI != 0 && is_set(bits.urgent, fd)
        || is_set(bits.except, fd);
    match may_be_ready {
        false => EntryState::Events(0),
        true if bits.is_hint => EntryState::Hint,
        true if is_set(bits.except, fd) => EntryState::NeedsKernel,
        true => match view.events(fd) {
            Some(events) => EntryState::Events(events & (requested | bits::ALWAYS_REPORTED)),
            None => EntryState::NeedsKernel,
        },
    }
}

/// Returns whether an entry waits for send space that memory does not show. The eBPF programs do
/// not report new send space. Hints do not have this gap, because they follow the wake-ups of the
/// kernel.
fn lacks_send_space(bits: ReadinessBitmaps<'_>, entry: PollFd, events: u32) -> bool {
    !bits.is_hint && u32::from(entry.events) & bits::WRITABLE & !events != 0
}

/// Adds an entry to a scan.
fn scan_entry(
    view: MemoryView<'_>,
    entry: &mut PollFd,
    scan: &mut MemoryScan,
    on_untracked: &mut impl FnMut(i32),
) {
    let bits = view.bits();
    let mut state = entry_state(view, bits, *entry);
    if matches!(state, EntryState::NeedsKernel) {
        on_untracked(entry.fd);
        state = entry_state(view, bits, *entry);
    }
    match state {
        EntryState::NeedsKernel => scan.has_unknown = true,
        EntryState::Hint => scan.has_hints = true,
        EntryState::Events(events) => {
            entry.revents = events as u16;
            scan.ready += usize::from(events != 0);
            scan.has_unknown |= lacks_send_space(bits, *entry, events);
        }
    }
}

/// Publishes the interest of an entry, or adds it to the poll set. Returns whether it is ready.
fn prepare_entry(blocking: &mut BlockingWait<'_>, entry: PollFd, at: usize) -> bool {
    let is_published = blocking.publish(entry.fd, u32::from(entry.events));
    let view = blocking.view();
    match entry_state(view, view.bits(), entry) {
        EntryState::Events(found) if is_published => {
            if lacks_send_space(view.bits(), entry, found) {
                blocking.watch_writable(entry.fd, at);
            }
            found != 0
        }
        _ => {
            blocking.poll_set().add(entry.fd, u32::from(entry.events), at);
            false
        }
    }
}

impl<OnUntracked: FnMut(i32)> WaitCall for PollCall<'_, OnUntracked> {
    fn scan_memory(&mut self, view: MemoryView<'_>) -> MemoryScan {
        let Self { fds, cache, reported, on_untracked } = self;
        let (mut scan, bits) = (MemoryScan::default(), view.bits());
        let Some(cache) = cache else {
            for entry in fds.iter_mut() {
                entry.revents = 0;
                if entry.fd >= 0 {
                    scan_entry(view, entry, &mut scan, on_untracked);
                }
            }
            return scan;
        };
        // The array changes only by the results of a scan, so it is compared again only after a
        // scan with results.
        if *reported != Some(0) {
            cache.update(fds);
        }
        for (number, word) in cache.words.iter().enumerate() {
            for bit in bit_positions(word.readers & !quiet_bits(bits, number)) {
                let entry = &mut fds[cache.reader_entry(number, bit)];
                scan_entry(view, entry, &mut scan, on_untracked);
            }
        }
        for at in cache.others() {
            scan_entry(view, &mut fds[at], &mut scan, on_untracked);
        }
        *reported = Some(scan.ready);
        scan
    }

    fn prepare_sleep(&mut self, blocking: &mut BlockingWait<'_>) -> usize {
        let Self { fds, cache, .. } = self;
        let Some(cache) = cache else {
            let entries = fds.iter().enumerate().filter(|(_, entry)| entry.fd >= 0);
            return entries.filter(|(at, entry)| prepare_entry(blocking, **entry, *at)).count();
        };
        let mut ready = 0;
        for number in 0..cache.words.len() {
            let ReaderWord { readers, stamp } = cache.words[number];
            let (now, mut unpublished) = (blocking.stamp(number), 0);
            if stamp == Some(now) {
                blocking.keep_published(number, readers);
            } else {
                for bit in bit_positions(readers) {
                    let entry = fds[cache.reader_entry(number, bit)];
                    let is_published = blocking.publish(entry.fd, u32::from(entry.events));
                    unpublished |= u64::from(!is_published) << bit;
                }
                if unpublished == 0 {
                    cache.set_stamp(number, now);
                }
            }
            // Read the bits after the interest is published: an event before that is found here.
            for bit in
                bit_positions(readers & (unpublished | !quiet_bits(blocking.view().bits(), number)))
            {
                let at = cache.reader_entry(number, bit);
                ready += usize::from(prepare_entry(blocking, fds[at], at));
            }
        }
        ready + cache.others().filter(|at| prepare_entry(blocking, fds[*at], *at)).count()
    }

    fn add_polled(&mut self, poll_set: &PollSet) -> Result<usize> {
        let mut added = 0;
        for (other, at) in poll_set.fds.iter().zip(&poll_set.entries) {
            let entry = &mut self.fds[*at as usize];
            added += usize::from(entry.revents == 0 && other.revents != 0);
            entry.revents |= other.revents;
        }
        Ok(added)
    }

    fn refresh_ready(&self, view: MemoryView<'_>) {
        let reported = self.fds.iter().filter(|entry| entry.revents != 0);
        reported.for_each(|entry| view.refresh(entry.fd));
    }

    fn call_kernel(
        &mut self,
        timeout: Option<Duration>,
        mask: Option<&SignalSet>,
    ) -> Result<usize> {
        let open = self.fds.iter().filter(|entry| entry.fd >= 0);
        open.for_each(|entry| (self.on_untracked)(entry.fd));
        kernel::ppoll(self.fds, timeout, mask)
    }
}

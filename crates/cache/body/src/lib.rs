//! The body of an answer, from its first byte on: one fills it, and any number read it while it
//! arrives and after, each at its own pace.
//!
//! ```text
//!              finish                        keep() = false, while it arrives
//!  Filling ────────────> Whole     Filling ────────────────────────────────> passing on:
//!     └── cut, dropped ──> Cut        what every reader has had is let go
//! ```
//!
//! Nobody blocks here. Who finds nothing to read, or no room to fill, leaves a [`Waiter`] behind;
//! whoever changes that gets it back and wakes it. Only a drop wakes nobody, since it gives nothing
//! back: whoever waits finds what became of the body when it looks again, at its deadline say.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use iolite::{Aggregate, AllocError, Buffer, BufferView, MemoryKind, Slab, Slice};

/// Somebody who waits for a body, as its worker knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaiterId {
    /// Index of the worker.
    pub worker: u16,
    /// What the worker finds it by: the slot and generation of its object.
    pub token: u64,
}

/// A body. Shared by the one who fills it and all who read it.
#[derive(Debug, Default)]
pub struct Body {
    /// All of it, once it is whole: read without a lock.
    whole: OnceLock<Aggregate>,
    state: Mutex<BodyState>,
    /// See [`Body::note_sent`].
    sent_at: AtomicU64,
}

#[derive(Debug, Default)]
struct BodyState {
    /// What is there, without gaps: from `first` on to `length`. Nothing once all of it is in
    /// [`Body::whole`].
    parts: VecDeque<BodyPart>,
    /// Whether more bytes may come into the last part.
    is_open: bool,
    /// Bytes that arrived.
    length: u64,
    end: Option<BodyEnd>,
    /// Whether what every reader has had is let go.
    passes_through: bool,
    readers: Vec<Option<ReaderState>>,
    /// The one who fills it, waiting for readers to go on.
    waiting_filler: Option<WaiterId>,
}

#[derive(Debug)]
struct BodyPart {
    start: u64,
    bytes: PartBytes,
}

/// Where the bytes of a part are.
#[derive(Debug)]
enum PartBytes {
    /// In memory that is or was filled for this body.
    Filled(BufferView),
    /// In memory of another body.
    Shared(Slice),
}

impl PartBytes {
    fn len(&self) -> usize {
        match self {
            Self::Filled(extent) => extent.len(),
            Self::Shared(slice) => slice.len(),
        }
    }

    fn slice(&self, range: Range<usize>) -> Slice {
        match self {
            Self::Filled(extent) => extent.slice(range),
            Self::Shared(slice) => slice.slice(range),
        }
    }
}

/// Where a reader is: maybe beyond what arrived.
#[derive(Clone, Copy, Debug)]
struct ReaderState {
    at: u64,
    waiter: Option<WaiterId>,
    /// Nothing is kept for it any more: see [`Filler::cut_behind`].
    is_cut: bool,
}

/// How the arrival of a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyEnd {
    /// All of it is there.
    Whole,
    /// What is missing will never come.
    Cut,
}

/// What there is to read.
#[derive(Debug)]
pub enum BodyRead {
    /// These bytes are next: at least one.
    Bytes(Slice),
    /// Nothing yet: the waiter is kept.
    Wait,
    /// Everything was read, and this is how the body ended.
    End(BodyEnd),
}

impl Body {
    /// One that is whole from the beginning.
    pub fn whole(bytes: Aggregate) -> Self {
        let state =
            BodyState { length: bytes.len(), end: Some(BodyEnd::Whole), ..BodyState::default() };
        Self { whole: OnceLock::from(bytes), state: Mutex::new(state), ..Self::default() }
    }

    /// All of its bytes, if it is whole.
    pub fn bytes(&self) -> Option<&Aggregate> {
        self.whole.get()
    }

    /// Bytes that arrived.
    pub fn arrived(&self) -> u64 {
        self.whole.get().map_or_else(|| self.lock().length, Aggregate::len)
    }

    /// How its arrival ended; `None` while it goes on.
    pub fn end(&self) -> Option<BodyEnd> {
        if self.whole.get().is_some() { Some(BodyEnd::Whole) } else { self.lock().end }
    }

    /// Notes that the whole body is sent at `at`, and returns the `at` of the last such call. The
    /// caller's values of `at` grow and are never 0.
    pub fn swap_sent_at(&self, at: u64) -> Option<u64> {
        let before = self.sent_at.swap(at, Ordering::Relaxed);
        (before != 0).then_some(before)
    }

    /// Poisoned only by a panic of somebody who held it: nothing it guards is ever half changed.
    fn lock(&self) -> MutexGuard<'_, BodyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who reads a body from a place of it on.
#[derive(Debug)]
pub struct Reader {
    body: Arc<Body>,
    at: u64,
    /// Its index among the readers; `None` of a body that was whole when it began.
    index: Option<usize>,
}

impl Reader {
    /// Begins to read at `at`. `None` where what is there was let go already: the body is only
    /// passed on.
    pub fn new(body: Arc<Body>, at: u64) -> Option<Self> {
        if body.whole.get().is_some() {
            return Some(Self { body, at, index: None });
        }
        let mut state = body.lock();
        // It may have become whole before the lock was ours.
        if body.whole.get().is_some() {
            drop(state);
            return Some(Self { body, at, index: None });
        }
        if state.first_kept() > at {
            return None;
        }
        let reader = ReaderState { at, waiter: None, is_cut: false };
        let index = match state.readers.iter().position(Option::is_none) {
            Some(free) => {
                state.readers[free] = Some(reader);
                free
            }
            None => {
                state.readers.push(Some(reader));
                state.readers.len() - 1
            }
        };
        drop(state);
        Some(Self { body, at, index: Some(index) })
    }

    /// The next bytes, `max` of them at most, which side by side may be fewer. They count as read.
    /// Where there are none yet, `waiter` is kept. With either comes whoever waited for room, to be
    /// woken.
    ///
    /// # Panics
    /// When `max` is 0: that is no way to wait.
    pub fn read(&mut self, max: usize, waiter: WaiterId) -> (BodyRead, Option<WaiterId>) {
        assert!(max > 0, "who reads takes something");
        if let Some(whole) = self.body.whole.get() {
            return (read_whole(whole, &mut self.at, max), None);
        }
        let mut state = self.body.lock();
        // It may have become whole before the lock was ours.
        if let Some(whole) = self.body.whole.get() {
            return (read_whole(whole, &mut self.at, max), None);
        }
        let index = self.index.expect("who began before the body was whole has a place");
        if state.readers[index].is_none_or(|reader| reader.is_cut) {
            return (BodyRead::End(BodyEnd::Cut), None);
        }
        let found = state.slice(self.at, max);
        if let (None, Some(end)) = (&found, state.end) {
            return (BodyRead::End(end), None);
        }
        self.at += found.as_ref().map_or(0, |slice| slice.len() as u64);
        let waiter = found.is_none().then_some(waiter);
        state.readers[index] = Some(ReaderState { at: self.at, waiter: waiter, is_cut: false });
        state.discard_consumed();
        // Who finds nothing is further than all others, maybe because it began there: so for the
        // filler there is room then, too.
        (found.map_or(BodyRead::Wait, BodyRead::Bytes), state.waiting_filler.take())
    }

    /// The next `count` bytes count as read: they reach whoever reads them another way. They may be
    /// about to come; nobody is waited for any more.
    pub fn skip(&mut self, count: u64) {
        self.at += count;
        let Some(index) = self.index else { return };
        let mut state = self.body.lock();
        if let Some(reader) = &mut state.readers[index] {
            (reader.at, reader.waiter) = (self.at, None);
        }
    }

    /// Where it is.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// The body.
    pub fn body(&self) -> &Arc<Body> {
        &self.body
    }

    /// Ends the reading. Whoever waited for room is given, to be woken: there may be some now, or
    /// nobody left to fill for.
    pub fn close(mut self) -> Option<WaiterId> {
        self.unregister()?.waiting_filler.take()
    }

    fn unregister(&mut self) -> Option<MutexGuard<'_, BodyState>> {
        let index = self.index.take()?;
        let mut state = self.body.lock();
        state.readers[index] = None;
        state.discard_consumed();
        Some(state)
    }
}

/// Wakes nobody: the next reader that moves finds who waits.
impl Drop for Reader {
    fn drop(&mut self) {
        self.unregister();
    }
}

fn read_whole(whole: &Aggregate, at: &mut u64, max: usize) -> BodyRead {
    let Some((slice, from)) = whole.at(*at) else { return BodyRead::End(BodyEnd::Whole) };
    let count = (slice.len() - from).min(max);
    *at += count as u64;
    BodyRead::Bytes(slice.slice(from..from + count))
}

impl BodyState {
    /// The first byte that is there still.
    fn first_kept(&self) -> u64 {
        self.parts.front().map_or(self.length, |part| part.start)
    }

    fn slice(&self, at: u64, max: usize) -> Option<Slice> {
        let index = self.parts.partition_point(|part| part.start <= at).checked_sub(1)?;
        let part = &self.parts[index];
        let from = (at - part.start) as usize;
        let there = part.bytes.len().min((self.length - part.start) as usize);
        (from < there).then(|| part.bytes.slice(from..there.min(from.saturating_add(max))))
    }

    /// Lets go what every reader has had, where the body is only passed on.
    fn discard_consumed(&mut self) {
        if !self.passes_through {
            return;
        }
        let slowest = self.active_readers().map(|reader| reader.at).min().unwrap_or(self.length);
        while !self.parts.is_empty() {
            let end = match self.parts.get(1) {
                Some(next) => next.start,
                // What comes next comes into this one.
                None if self.is_open => return,
                None => self.length,
            };
            if end > slowest {
                return;
            }
            self.parts.pop_front();
        }
    }

    /// Those who read and were not cut off.
    fn active_readers(&self) -> impl Iterator<Item = &ReaderState> {
        self.readers.iter().flatten().filter(|reader| !reader.is_cut)
    }

    /// Nothing comes any more. Gives those who waited for it.
    fn end(&mut self, end: BodyEnd) -> Vec<WaiterId> {
        self.end = Some(end);
        self.waiting_filler = None;
        self.take_waiters()
    }

    fn take_waiters(&mut self) -> Vec<WaiterId> {
        self.readers.iter_mut().flatten().filter_map(|reader| reader.waiter.take()).collect()
    }
}

/// The one who fills a body.
#[derive(Debug)]
pub struct Filler {
    body: Arc<Body>,
    slab: Slab,
    kind: MemoryKind,
    /// Names the object to [`Slab::condemn`].
    tag: u64,
    /// Bytes still to come, where that is known.
    remaining: Option<u64>,
    buffer: Option<Buffer>,
    /// What was filled, in order; `None` where it is only passed on.
    filled: Option<Aggregate>,
}

/// Bytes asked of the slab at a time for a body: larger runs are harder to find, and a body whose
/// length is unknown wastes half of the last one until it ends.
const PART_BYTES: usize = 256 * 1024;
/// The first run for a body of unknown length.
const FIRST_PART_BYTES: usize = 16 * 1024;

impl Filler {
    /// A body that is to be filled, and the one who fills it. `length`: where it is known; `tag`
    /// names the object to [`Slab::condemn`].
    pub fn new(slab: &Slab, kind: MemoryKind, length: Option<u64>, tag: u64) -> Self {
        let body = Body::default();
        Self {
            body: Arc::new(body),
            slab: slab.clone(),
            kind,
            tag,
            remaining: length,
            buffer: None,
            filled: Some(Aggregate::new()),
        }
    }

    /// What it fills.
    pub fn body(&self) -> &Arc<Body> {
        &self.body
    }

    /// Memory for what comes next, to be written from its beginning on and then told to
    /// [`Filler::advance`]: at least one byte, and no more than are still to come.
    ///
    /// # Errors
    /// As [`Slab::allocate`]; nothing is lost, and it may be tried again.
    ///
    /// # Panics
    /// When nothing is to come any more.
    pub fn unfilled(&mut self) -> Result<&mut [u8], AllocError> {
        let rest = self.remaining.unwrap_or(u64::MAX);
        assert!(rest > 0, "a body ends where it was said to end");
        if self.buffer.as_mut().is_none_or(|buffer| buffer.unfilled().is_empty()) {
            self.end_part();
            let wanted = match self.remaining {
                Some(rest) => usize::try_from(rest).unwrap_or(usize::MAX).min(PART_BYTES),
                None if self.filled.as_ref().is_some_and(Aggregate::is_empty) => FIRST_PART_BYTES,
                None => PART_BYTES,
            };
            let wanted = wanted.min(self.kind.bytes_max());
            let buffer = self.slab.allocate(self.kind, 1..=wanted, self.tag)?;
            let mut state = self.body.lock();
            let start = state.length;
            state.parts.push_back(BodyPart { start, bytes: PartBytes::Filled(buffer.view()) });
            state.is_open = true;
            drop(state);
            self.buffer = Some(buffer);
        }
        let spare = self.buffer.as_mut().expect("it was just made sure").unfilled();
        let count = spare.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        Ok(&mut spare[..count])
    }

    /// The first `count` bytes of [`Filler::spare`] were written: readers may have them. Gives those
    /// who waited for them, to be woken.
    ///
    /// # Panics
    /// When there were not so many.
    pub fn advance(&mut self, count: usize) -> Vec<WaiterId> {
        let buffer = self.buffer.as_mut().expect("what is written was given");
        if let Some(rest) = &mut self.remaining {
            *rest = rest.checked_sub(count as u64).expect("no more is written than was given");
        }
        buffer.advance(count);
        let mut state = self.body.lock();
        state.length += count as u64;
        state.take_waiters()
    }

    /// Bytes that are there already come next: nothing of them is copied. Gives those who waited for
    /// them.
    ///
    /// # Panics
    /// When more come than were announced.
    pub fn append(&mut self, bytes: Aggregate) -> Vec<WaiterId> {
        self.end_part();
        if let Some(rest) = &mut self.remaining {
            *rest = rest.checked_sub(bytes.len()).expect("no more comes than was announced");
        }
        let mut state = self.body.lock();
        for slice in bytes.slices() {
            let start = state.length;
            state.parts.push_back(BodyPart { start, bytes: PartBytes::Shared(slice.clone()) });
            state.length += slice.len() as u64;
        }
        let waiting = state.take_waiters();
        drop(state);
        if let Some(filled) = &mut self.filled {
            filled.concatenate(bytes);
        }
        waiting
    }

    /// How far the one that reads fastest is behind; `None` where nobody reads. Beyond what may be
    /// filled ahead of it, `waiter` is kept until somebody reads on or leaves.
    pub fn lead_or_wait(&self, most: u64, waiter: WaiterId) -> Option<u64> {
        let mut state = self.body.lock();
        let fastest = state.active_readers().map(|reader| reader.at).max()?;
        // Who wants a later part may be further than what arrived.
        let lead = state.length.saturating_sub(fastest);
        state.waiting_filler = (lead >= most).then_some(waiter);
        Some(lead)
    }

    /// How many read.
    pub fn reader_count(&self) -> usize {
        self.body.lock().active_readers().count()
    }

    /// Whether anybody but the one who fills it has the body, and so may give it to others. `false`
    /// never becomes `true` again.
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.body) > 1
    }

    /// From now on the body is passed on only: what every reader has had is let go, and nobody new
    /// begins to read what is gone.
    pub fn pass_through(&mut self) {
        self.filled = None;
        let mut state = self.body.lock();
        state.passes_through = true;
        state.discard_consumed();
    }

    /// Cuts off whoever is more than `most` bytes behind what arrived, where the body is only passed
    /// on, and gives how many those are: one client that takes nothing would keep all of it in
    /// memory. They find the cut when they read on; none of them waits here.
    pub fn cut_slow_readers(&mut self, most: u64) -> usize {
        let mut state = self.body.lock();
        if !state.passes_through {
            return 0;
        }
        let (length, mut count) = (state.length, 0);
        for reader in state.readers.iter_mut().flatten() {
            if !reader.is_cut && length.saturating_sub(reader.at) > most {
                reader.is_cut = true;
                count += 1;
            }
        }
        state.discard_consumed();
        count
    }

    /// Ends it: everything is there. Gives those who waited.
    ///
    /// # Panics
    /// When less came than was announced: that is [`Filler::cut`].
    pub fn finish(mut self) -> Vec<WaiterId> {
        assert!(self.remaining.is_none_or(|rest| rest == 0), "a body that is short is not whole");
        self.end_part();
        let filled = self.filled.take();
        let mut state = self.body.lock();
        let mut parts = VecDeque::new();
        if let Some(filled) = filled {
            assert!(filled.len() == state.length, "what is kept is what came");
            assert!(self.body.whole.set(filled).is_ok(), "a body is finished once");
            parts = std::mem::take(&mut state.parts);
        }
        let waiting = state.end(BodyEnd::Whole);
        drop(state);
        drop(parts);
        waiting
    }

    /// What was filled up to now, for whoever keeps a part of it; nothing where it is only passed
    /// on. The body is not kept by itself any more.
    pub fn take_filled(&mut self) -> Option<Aggregate> {
        self.end_part();
        self.filled.take()
    }

    /// Ends it: the rest will never come. Gives those who waited.
    pub fn cut(mut self) -> Vec<WaiterId> {
        self.end_part();
        self.body.lock().end(BodyEnd::Cut)
    }

    /// What the present part has stays as it is, and the rest of its memory goes back.
    fn end_part(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let slice = buffer.freeze();
        let mut state = self.body.lock();
        state.is_open = false;
        if slice.is_empty() {
            state.parts.pop_back();
        }
        state.discard_consumed();
        drop(state);
        if let Some(filled) = &mut self.filled {
            filled.append(slice);
        }
    }
}

/// Whoever fills no more, in a panic say, leaves nobody waiting for good: readers find the cut when
/// they look again.
impl Drop for Filler {
    fn drop(&mut self) {
        self.end_part();
        let mut state = self.body.lock();
        state.waiting_filler = None;
        state.end.get_or_insert(BodyEnd::Cut);
    }
}

#[cfg(test)]
mod tests;

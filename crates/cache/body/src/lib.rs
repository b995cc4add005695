//! The body of a response, from its first byte on. One filler writes it, and any number of readers
//! read it during and after its arrival, each at its own pace.
//!
//! ```text
//!              finish                       pass_through(), while it arrives
//!  Filling ────────────> Whole     Filling ──────────────────────────────────> pass-through:
//!     └── cut, dropped ──> Cut       bytes that every reader has read are discarded
//! ```
//!
//! No call blocks. A reader that finds no bytes, and a filler that is too far ahead, leave a
//! [`WaiterId`]. The call that changes the condition returns it, and its caller wakes the waiter.
//! Dropping a filler or a reader wakes none, because a drop returns nothing. Waiters then see the
//! new state when they look again, for example at their deadline.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use iolite::{Aggregate, AllocError, Buffer, BufferView, MemoryKind, Slab, Slice};

/// Identifies an object that waits for a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WaiterId {
    /// Index of the worker.
    pub worker: u16,
    /// The worker's name for the object: slot and generation.
    pub token: u64,
}

/// A body, shared by its filler and all readers.
#[derive(Debug, Default)]
pub struct Body {
    /// All bytes, once the body is whole, unless it is pass-through; read without a lock.
    whole: OnceLock<Aggregate>,
    state: Mutex<BodyState>,
    /// See [`Body::swap_sent_at`].
    sent_at: AtomicU64,
}

#[derive(Debug, Default)]
struct BodyState {
    /// The bytes from `first_kept` to `length`, without gaps. Empty once all bytes are in
    /// [`Body::whole`].
    parts: VecDeque<BodyPart>,
    /// Whether the last part may still grow.
    is_open: bool,
    /// Bytes that arrived.
    length: u64,
    end: Option<BodyEnd>,
    /// Whether bytes that every reader has read are discarded.
    passes_through: bool,
    readers: Vec<Option<ReaderState>>,
    /// The filler, if it waits for a reader to progress.
    waiting_filler: Option<WaiterId>,
}

#[derive(Debug)]
struct BodyPart {
    start: u64,
    bytes: PartBytes,
}

/// The memory of a part.
#[derive(Debug)]
enum PartBytes {
    /// Memory that is or was filled for this body.
    Filled(BufferView),
    /// Memory of another body.
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

/// The state of a reader. `at` is its position, which may be beyond the bytes that arrived.
#[derive(Clone, Copy, Debug)]
struct ReaderState {
    at: u64,
    waiter: Option<WaiterId>,
    /// No bytes are kept for it any more: see [`Filler::cut_slow_readers`].
    is_cut: bool,
}

/// How the arrival of a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyEnd {
    /// All bytes have arrived.
    Whole,
    /// The missing bytes will never arrive.
    Cut,
}

/// The result of a read.
#[derive(Debug)]
pub enum BodyRead {
    /// The next bytes: at least one.
    Bytes(Slice),
    /// There are none yet. The waiter was registered.
    Wait,
    /// The reader has read everything that arrived, or was cut off; how the body ended for it.
    End(BodyEnd),
}

impl Body {
    /// Creates a body that is whole from the beginning.
    pub fn whole(bytes: Aggregate) -> Self {
        let state =
            BodyState { length: bytes.len(), end: Some(BodyEnd::Whole), ..BodyState::default() };
        Self { whole: OnceLock::from(bytes), state: Mutex::new(state), ..Self::default() }
    }

    /// Returns all bytes. `None` if the body is not whole or is pass-through.
    pub fn bytes(&self) -> Option<&Aggregate> {
        self.whole.get()
    }

    /// Returns the number of bytes that arrived.
    pub fn arrived(&self) -> u64 {
        self.whole.get().map_or_else(|| self.lock().length, Aggregate::len)
    }

    /// Returns how the arrival ended; `None` while it continues.
    pub fn end(&self) -> Option<BodyEnd> {
        if self.whole.get().is_some() { Some(BodyEnd::Whole) } else { self.lock().end }
    }

    /// Records a send of the whole body, and returns the `at` of the previous send. `at` is a
    /// position in the sequence of all sends, such as the bytes sent so far: it increases and is
    /// never 0.
    pub fn swap_sent_at(&self, at: u64) -> Option<u64> {
        let before = self.sent_at.swap(at, Ordering::Relaxed);
        (before != 0).then_some(before)
    }

    /// Locks the state. A poisoned lock is used, because the state is consistent between any two
    /// statements.
    fn lock(&self) -> MutexGuard<'_, BodyState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reader of a body, from some position on.
#[derive(Debug)]
pub struct Reader {
    body: Arc<Body>,
    at: u64,
    /// Its index in `readers`; `None` if the body was whole when the reader was created.
    index: Option<usize>,
}

impl Reader {
    /// Creates a reader at position `at`. Returns `None` if the body is pass-through and has
    /// discarded bytes from there on.
    pub fn new(body: Arc<Body>, at: u64) -> Option<Self> {
        if body.whole.get().is_some() {
            return Some(Self { body, at, index: None });
        }
        let mut state = body.lock();
        // The body may have become whole before the lock was taken.
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

    /// Reads the next bytes: at most `max`, and fewer if they are not contiguous. If there are none
    /// yet, `waiter` is registered. The second value is the filler if it waited for a reader to
    /// progress; the caller wakes it.
    ///
    /// # Panics
    /// If `max` is 0.
    #[inline(always)]
    pub fn read(&mut self, max: usize, waiter: WaiterId) -> (BodyRead, Option<WaiterId>) {
        assert!(max > 0, "max must not be 0");
        if let Some(whole) = self.body.whole.get() {
            return (read_whole(whole, &mut self.at, max), None);
        }
        self.read_arriving(max, waiter)
    }

    #[inline(never)]
    fn read_arriving(&mut self, max: usize, waiter: WaiterId) -> (BodyRead, Option<WaiterId>) {
        let mut state = self.body.lock();
        // The body may have become whole before the lock was taken.
        if let Some(whole) = self.body.whole.get() {
            return (read_whole(whole, &mut self.at, max), None);
        }
        let index = self.index.expect("a reader that began before the end has an index");
        if state.readers[index].is_none_or(|reader| reader.is_cut) {
            return (BodyRead::End(BodyEnd::Cut), None);
        }
        let next = state.slice(self.at, max);
        if let (None, Some(end)) = (&next, state.end) {
            return (BodyRead::End(end), None);
        }
        self.at += next.as_ref().map_or(0, |slice| slice.len() as u64);
        let waiter = next.is_none().then_some(waiter);
        state.readers[index] = Some(ReaderState { at: self.at, waiter, is_cut: false });
        state.discard_consumed();
        // A reader that finds nothing has reached the filler or began ahead of it. So the filler
        // may continue in this case, too.
        (next.map_or(BodyRead::Wait, BodyRead::Bytes), state.waiting_filler.take())
    }

    /// Advances by `count` bytes, which reach the consumer in another way and need not have
    /// arrived. The reader no longer waits.
    pub fn skip(&mut self, count: u64) {
        self.at += count;
        let Some(index) = self.index else { return };
        let mut state = self.body.lock();
        if let Some(reader) = &mut state.readers[index] {
            (reader.at, reader.waiter) = (self.at, None);
        }
    }

    /// Returns its position.
    pub fn at(&self) -> u64 {
        self.at
    }

    /// Returns the body.
    pub fn body(&self) -> &Arc<Body> {
        &self.body
    }

    /// Ends the reading. Returns the filler if it waited, because it may be able to continue or may
    /// have no reader left. The caller wakes it.
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

/// Wakes none: the next reader that progresses returns the waiting filler.
impl Drop for Reader {
    fn drop(&mut self) {
        self.unregister();
    }
}

#[inline(always)]
fn read_whole(whole: &Aggregate, at: &mut u64, max: usize) -> BodyRead {
    let Some((slice, from)) = whole.at(*at) else { return BodyRead::End(BodyEnd::Whole) };
    let count = (slice.len() - from).min(max);
    *at += count as u64;
    BodyRead::Bytes(slice.slice(from..from + count))
}

impl BodyState {
    /// Returns the position of the first byte that is still kept.
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

    /// Discards the bytes that every reader has read, if the body is pass-through.
    fn discard_consumed(&mut self) {
        if !self.passes_through {
            return;
        }
        let slowest = self.active_readers().map(|reader| reader.at).min().unwrap_or(self.length);
        while !self.parts.is_empty() {
            let end = match self.parts.get(1) {
                Some(next) => next.start,
                // The next bytes go into this part.
                None if self.is_open => return,
                None => self.length,
            };
            if end > slowest {
                return;
            }
            self.parts.pop_front();
        }
    }

    /// Returns the readers that were not cut off.
    fn active_readers(&self) -> impl Iterator<Item = &ReaderState> {
        self.readers.iter().flatten().filter(|reader| !reader.is_cut)
    }

    /// Records the end of the arrival, and returns the readers that waited.
    fn end(&mut self, end: BodyEnd) -> Vec<WaiterId> {
        self.end = Some(end);
        self.waiting_filler = None;
        self.take_waiters()
    }

    fn take_waiters(&mut self) -> Vec<WaiterId> {
        self.readers.iter_mut().flatten().filter_map(|reader| reader.waiter.take()).collect()
    }
}

/// The only writer of a body.
#[derive(Debug)]
pub struct Filler {
    body: Arc<Body>,
    slab: Slab,
    kind: MemoryKind,
    /// Identifies the owner of the memory in the result of [`Slab::start_evacuation`].
    tag: u64,
    /// Bytes still to arrive, if known.
    remaining: Option<u64>,
    buffer: Option<Buffer>,
    /// All filled bytes in order; `None` if the body is pass-through.
    filled: Option<Aggregate>,
}

/// Bytes that are allocated at a time. Longer extents are harder to find. On average, a body of
/// unknown length wastes half of its last extent until it ends.
const PART_BYTES: usize = 256 * 1024;
/// The size of the first allocation for a body of unknown length.
const FIRST_PART_BYTES: usize = 16 * 1024;

impl Filler {
    /// Creates a body and its filler. `length` is the length of the body, if known. `tag`
    /// identifies the owner of the memory in the result of [`Slab::start_evacuation`].
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

    /// Returns the body.
    pub fn body(&self) -> &Arc<Body> {
        &self.body
    }

    /// Returns memory for the next bytes: at least one byte, and no more than are still to arrive.
    /// Write it from its beginning on and call [`Filler::advance`].
    ///
    /// # Errors
    /// As [`Slab::allocate`]. Nothing is lost, and the call may be repeated.
    ///
    /// # Panics
    /// If all bytes have arrived.
    pub fn unfilled(&mut self) -> Result<&mut [u8], AllocError> {
        let rest = self.remaining.unwrap_or(u64::MAX);
        assert!(rest > 0, "all bytes have arrived");
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
        let unfilled = self.buffer.as_mut().expect("allocated above").unfilled();
        let count = unfilled.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        Ok(&mut unfilled[..count])
    }

    /// Publishes the first `count` bytes of [`Filler::unfilled`], which the caller has written.
    /// Returns the readers that waited; the caller wakes them.
    ///
    /// # Panics
    /// If `count` is larger than the unfilled memory, or [`Filler::unfilled`] was not called.
    pub fn advance(&mut self, count: usize) -> Vec<WaiterId> {
        let buffer = self.buffer.as_mut().expect("unfilled() was called before");
        if let Some(rest) = &mut self.remaining {
            *rest = rest.checked_sub(count as u64).expect("more bytes than the unfilled memory");
        }
        buffer.advance(count);
        let mut state = self.body.lock();
        state.length += count as u64;
        state.take_waiters()
    }

    /// Appends existing bytes without copying them. Returns the readers that waited; the caller
    /// wakes them.
    ///
    /// # Panics
    /// If the bytes exceed the announced length.
    pub fn append(&mut self, bytes: Aggregate) -> Vec<WaiterId> {
        self.end_part();
        if let Some(rest) = &mut self.remaining {
            *rest = rest.checked_sub(bytes.len()).expect("the announced length was exceeded");
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

    /// Returns how many bytes the filler is ahead of the fastest reader; `None` without readers. If
    /// that is at least `most`, `waiter` is registered until a reader progresses or leaves.
    pub fn lead_or_wait(&self, most: u64, waiter: WaiterId) -> Option<u64> {
        let mut state = self.body.lock();
        let fastest = state.active_readers().map(|reader| reader.at).max()?;
        // A reader that wants a later part may be beyond the bytes that arrived.
        let lead = state.length.saturating_sub(fastest);
        state.waiting_filler = (lead >= most).then_some(waiter);
        Some(lead)
    }

    /// Returns the number of readers that were not cut off.
    pub fn reader_count(&self) -> usize {
        self.body.lock().active_readers().count()
    }

    /// Returns whether the body has holders besides its filler. Once it has none, it gets new ones
    /// only from [`Filler::body`].
    pub fn is_shared(&self) -> bool {
        Arc::strong_count(&self.body) > 1
    }

    /// Makes the body pass-through: bytes that every reader has read are discarded, and new readers
    /// cannot begin at discarded bytes.
    pub fn pass_through(&mut self) {
        self.filled = None;
        let mut state = self.body.lock();
        state.passes_through = true;
        state.discard_consumed();
    }

    /// Cuts off the readers of a pass-through body that are more than `most` bytes behind, and
    /// returns their number. Otherwise, one client that reads nothing would keep the whole body in
    /// memory. These readers see the cut at their next read. None of them has to be woken: bytes
    /// that it has not read have arrived, so it does not wait.
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

    /// Ends the body as whole. Returns the readers that waited.
    ///
    /// # Panics
    /// If bytes are missing: use [`Filler::cut`] instead.
    pub fn finish(mut self) -> Vec<WaiterId> {
        assert!(self.remaining.is_none_or(|rest| rest == 0), "a short body is not whole");
        self.end_part();
        let filled = self.filled.take();
        let mut state = self.body.lock();
        let mut parts = VecDeque::new();
        if let Some(filled) = filled {
            assert!(filled.len() == state.length, "stored bytes are the bytes that arrived");
            assert!(self.body.whole.set(filled).is_ok(), "a body is finished only once");
            parts = std::mem::take(&mut state.parts);
        }
        let waiting = state.end(BodyEnd::Whole);
        drop(state);
        drop(parts);
        waiting
    }

    /// Returns the bytes filled so far, for a caller that stores them as a part; `None` if the body
    /// is pass-through. Readers can still read them. The caller then calls [`Filler::cut`], because
    /// the body can no longer become whole.
    pub fn take_filled(&mut self) -> Option<Aggregate> {
        self.end_part();
        self.filled.take()
    }

    /// Ends the body as cut: the rest will never arrive. Returns the readers that waited.
    pub fn cut(mut self) -> Vec<WaiterId> {
        self.end_part();
        self.body.lock().end(BodyEnd::Cut)
    }

    /// Freezes the present part and releases the rest of its memory.
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

/// A filler that is dropped, for example by a panic, leaves no reader waiting forever: readers see
/// the cut when they look again.
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

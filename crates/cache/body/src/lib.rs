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

use iolite::{Aggregate, Buffer, Extent, Kind, Refusal, Slab, Slice};

/// Somebody who waits for a body, as its worker knows it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Waiter {
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
    inner: Mutex<Inner>,
    /// See [`Body::note_sent`].
    sent_at: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    /// What is there, without gaps: from `first` on to `length`. Nothing once all of it is in
    /// [`Body::whole`].
    parts: VecDeque<Part>,
    /// Whether more bytes may come into the last part.
    is_open: bool,
    /// Bytes that arrived.
    length: u64,
    end: Option<End>,
    /// Whether what every reader has had is let go.
    passes: bool,
    readers: Vec<Option<Place>>,
    /// The one who fills it, waiting for readers to go on.
    filler: Option<Waiter>,
}

#[derive(Debug)]
struct Part {
    start: u64,
    bytes: Source,
}

/// Where the bytes of a part are.
#[derive(Debug)]
enum Source {
    /// In memory that is or was filled for this body.
    Filled(Extent),
    /// In memory of another body.
    Taken(Slice),
}

impl Source {
    fn len(&self) -> usize {
        match self {
            Self::Filled(extent) => extent.len(),
            Self::Taken(slice) => slice.len(),
        }
    }

    fn slice(&self, range: Range<usize>) -> Slice {
        match self {
            Self::Filled(extent) => extent.slice(range),
            Self::Taken(slice) => slice.slice(range),
        }
    }
}

/// Where a reader is: maybe beyond what arrived.
#[derive(Clone, Copy, Debug)]
struct Place {
    at: u64,
    waits: Option<Waiter>,
    /// Nothing is kept for it any more: see [`Filler::cut_behind`].
    is_cut: bool,
}

/// How the arrival of a body ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// All of it is there.
    Whole,
    /// What is missing will never come.
    Cut,
}

/// What there is to read.
#[derive(Debug)]
pub enum Read {
    /// These bytes are next: at least one.
    Bytes(Slice),
    /// Nothing yet: the waiter is kept.
    Wait,
    /// Everything was read, and this is how the body ended.
    End(End),
}

impl Body {
    /// One that is whole from the beginning.
    pub fn whole(bytes: Aggregate) -> Self {
        let inner = Inner { length: bytes.len(), end: Some(End::Whole), ..Inner::default() };
        Self { whole: OnceLock::from(bytes), inner: Mutex::new(inner), ..Self::default() }
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
    pub fn end(&self) -> Option<End> {
        if self.whole.get().is_some() { Some(End::Whole) } else { self.lock().end }
    }

    /// Notes that the whole body is sent at `at`, and returns the `at` of the last such call. The
    /// caller's values of `at` grow and are never 0.
    pub fn note_sent(&self, at: u64) -> Option<u64> {
        let before = self.sent_at.swap(at, Ordering::Relaxed);
        (before != 0).then_some(before)
    }

    /// Poisoned only by a panic of somebody who held it: nothing it guards is ever half changed.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody who reads a body from a place of it on.
#[derive(Debug)]
pub struct Reader {
    body: Arc<Body>,
    at: u64,
    /// Its index among the readers; `None` of a body that was whole when it began.
    place: Option<usize>,
}

impl Reader {
    /// Begins to read at `at`. `None` where what is there was let go already: the body is only
    /// passed on.
    pub fn new(body: Arc<Body>, at: u64) -> Option<Self> {
        if body.whole.get().is_some() {
            return Some(Self { body, at, place: None });
        }
        let mut inner = body.lock();
        // It may have become whole before the lock was ours.
        if body.whole.get().is_some() {
            drop(inner);
            return Some(Self { body, at, place: None });
        }
        if inner.first() > at {
            return None;
        }
        let place = Place { at, waits: None, is_cut: false };
        let index = match inner.readers.iter().position(Option::is_none) {
            Some(free) => {
                inner.readers[free] = Some(place);
                free
            }
            None => {
                inner.readers.push(Some(place));
                inner.readers.len() - 1
            }
        };
        drop(inner);
        Some(Self { body, at, place: Some(index) })
    }

    /// The next bytes, `max` of them at most, which side by side may be fewer. They count as read.
    /// Where there are none yet, `waiter` is kept. With either comes whoever waited for room, to be
    /// woken.
    ///
    /// # Panics
    /// When `max` is 0: that is no way to wait.
    pub fn read(&mut self, max: usize, waiter: Waiter) -> (Read, Option<Waiter>) {
        assert!(max > 0, "who reads takes something");
        if let Some(whole) = self.body.whole.get() {
            return (read_whole(whole, &mut self.at, max), None);
        }
        let mut inner = self.body.lock();
        // It may have become whole before the lock was ours.
        if let Some(whole) = self.body.whole.get() {
            return (read_whole(whole, &mut self.at, max), None);
        }
        let index = self.place.expect("who began before the body was whole has a place");
        if inner.readers[index].is_none_or(|place| place.is_cut) {
            return (Read::End(End::Cut), None);
        }
        let found = inner.slice(self.at, max);
        if let (None, Some(end)) = (&found, inner.end) {
            return (Read::End(end), None);
        }
        self.at += found.as_ref().map_or(0, |slice| slice.len() as u64);
        let waits = found.is_none().then_some(waiter);
        inner.readers[index] = Some(Place { at: self.at, waits, is_cut: false });
        inner.let_go();
        // Who finds nothing is further than all others, maybe because it began there: so for the
        // filler there is room then, too.
        (found.map_or(Read::Wait, Read::Bytes), inner.filler.take())
    }

    /// The next `count` bytes count as read: they reach whoever reads them another way. They may be
    /// about to come; nobody is waited for any more.
    pub fn skip(&mut self, count: u64) {
        self.at += count;
        let Some(index) = self.place else { return };
        let mut inner = self.body.lock();
        if let Some(place) = &mut inner.readers[index] {
            (place.at, place.waits) = (self.at, None);
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
    pub fn leave(mut self) -> Option<Waiter> {
        self.give_up()?.filler.take()
    }

    fn give_up(&mut self) -> Option<MutexGuard<'_, Inner>> {
        let index = self.place.take()?;
        let mut inner = self.body.lock();
        inner.readers[index] = None;
        inner.let_go();
        Some(inner)
    }
}

/// Wakes nobody: the next reader that moves finds who waits.
impl Drop for Reader {
    fn drop(&mut self) {
        self.give_up();
    }
}

fn read_whole(whole: &Aggregate, at: &mut u64, max: usize) -> Read {
    let Some((slice, from)) = whole.at(*at) else { return Read::End(End::Whole) };
    let count = (slice.len() - from).min(max);
    *at += count as u64;
    Read::Bytes(slice.slice(from..from + count))
}

impl Inner {
    /// The first byte that is there still.
    fn first(&self) -> u64 {
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
    fn let_go(&mut self) {
        if !self.passes {
            return;
        }
        let slowest = self.reading().map(|place| place.at).min().unwrap_or(self.length);
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
    fn reading(&self) -> impl Iterator<Item = &Place> {
        self.readers.iter().flatten().filter(|place| !place.is_cut)
    }

    /// Nothing comes any more. Gives those who waited for it.
    fn end(&mut self, end: End) -> Vec<Waiter> {
        self.end = Some(end);
        self.filler = None;
        self.take_waiting()
    }

    fn take_waiting(&mut self) -> Vec<Waiter> {
        self.readers.iter_mut().flatten().filter_map(|place| place.waits.take()).collect()
    }
}

/// The one who fills a body.
#[derive(Debug)]
pub struct Filler {
    body: Arc<Body>,
    slab: Slab,
    kind: Kind,
    /// Names the object to [`Slab::condemn`].
    tag: u64,
    /// Bytes still to come, where that is known.
    rest: Option<u64>,
    buffer: Option<Buffer>,
    /// What was filled, in order; `None` where it is only passed on.
    filled: Option<Aggregate>,
}

/// Bytes asked of the slab at a time for a body: larger runs are harder to find, and a body whose
/// length is unknown wastes half of the last one until it ends.
const PART_BYTES: usize = 256 * 1024;
/// The first run for a body of unknown length.
const FIRST_BYTES: usize = 16 * 1024;

impl Filler {
    /// A body that is to be filled, and the one who fills it. `length`: where it is known; `tag`
    /// names the object to [`Slab::condemn`].
    pub fn new(slab: &Slab, kind: Kind, length: Option<u64>, tag: u64) -> Self {
        let body = Body::default();
        Self {
            body: Arc::new(body),
            slab: slab.clone(),
            kind,
            tag,
            rest: length,
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
    pub fn spare(&mut self) -> Result<&mut [u8], Refusal> {
        let rest = self.rest.unwrap_or(u64::MAX);
        assert!(rest > 0, "a body ends where it was said to end");
        if self.buffer.as_mut().is_none_or(|buffer| buffer.spare().is_empty()) {
            self.end_part();
            let wanted = match self.rest {
                Some(rest) => usize::try_from(rest).unwrap_or(usize::MAX).min(PART_BYTES),
                None if self.filled.as_ref().is_some_and(Aggregate::is_empty) => FIRST_BYTES,
                None => PART_BYTES,
            };
            let wanted = wanted.min(self.kind.bytes_max());
            let buffer = self.slab.allocate(self.kind, 1..=wanted, self.tag)?;
            let mut inner = self.body.lock();
            let start = inner.length;
            inner.parts.push_back(Part { start, bytes: Source::Filled(buffer.extent()) });
            inner.is_open = true;
            drop(inner);
            self.buffer = Some(buffer);
        }
        let spare = self.buffer.as_mut().expect("it was just made sure").spare();
        let count = spare.len().min(usize::try_from(rest).unwrap_or(usize::MAX));
        Ok(&mut spare[..count])
    }

    /// The first `count` bytes of [`Filler::spare`] were written: readers may have them. Gives those
    /// who waited for them, to be woken.
    ///
    /// # Panics
    /// When there were not so many.
    pub fn advance(&mut self, count: usize) -> Vec<Waiter> {
        let buffer = self.buffer.as_mut().expect("what is written was given");
        if let Some(rest) = &mut self.rest {
            *rest = rest.checked_sub(count as u64).expect("no more is written than was given");
        }
        buffer.advance(count);
        let mut inner = self.body.lock();
        inner.length += count as u64;
        inner.take_waiting()
    }

    /// Bytes that are there already come next: nothing of them is copied. Gives those who waited for
    /// them.
    ///
    /// # Panics
    /// When more come than were announced.
    pub fn append(&mut self, bytes: Aggregate) -> Vec<Waiter> {
        self.end_part();
        if let Some(rest) = &mut self.rest {
            *rest = rest.checked_sub(bytes.len()).expect("no more comes than was announced");
        }
        let mut inner = self.body.lock();
        for slice in bytes.slices() {
            let start = inner.length;
            inner.parts.push_back(Part { start, bytes: Source::Taken(slice.clone()) });
            inner.length += slice.len() as u64;
        }
        let waiting = inner.take_waiting();
        drop(inner);
        if let Some(filled) = &mut self.filled {
            filled.concatenate(bytes);
        }
        waiting
    }

    /// How far the one that reads fastest is behind; `None` where nobody reads. Beyond what may be
    /// filled ahead of it, `waiter` is kept until somebody reads on or leaves.
    pub fn ahead(&self, most: u64, waiter: Waiter) -> Option<u64> {
        let mut inner = self.body.lock();
        let fastest = inner.reading().map(|place| place.at).max()?;
        // Who wants a later part may be further than what arrived.
        let ahead = inner.length.saturating_sub(fastest);
        inner.filler = (ahead >= most).then_some(waiter);
        Some(ahead)
    }

    /// How many read.
    pub fn readers(&self) -> usize {
        self.body.lock().reading().count()
    }

    /// Whether anybody but the one who fills it has the body, and so may give it to others. `false`
    /// never becomes `true` again.
    pub fn is_wanted(&self) -> bool {
        Arc::strong_count(&self.body) > 1
    }

    /// From now on the body is passed on only: what every reader has had is let go, and nobody new
    /// begins to read what is gone.
    pub fn pass(&mut self) {
        self.filled = None;
        let mut inner = self.body.lock();
        inner.passes = true;
        inner.let_go();
    }

    /// Cuts off whoever is more than `most` bytes behind what arrived, where the body is only passed
    /// on, and gives how many those are: one client that takes nothing would keep all of it in
    /// memory. They find the cut when they read on; none of them waits here.
    pub fn cut_behind(&mut self, most: u64) -> usize {
        let mut inner = self.body.lock();
        if !inner.passes {
            return 0;
        }
        let (length, mut count) = (inner.length, 0);
        for place in inner.readers.iter_mut().flatten() {
            if !place.is_cut && length.saturating_sub(place.at) > most {
                place.is_cut = true;
                count += 1;
            }
        }
        inner.let_go();
        count
    }

    /// Ends it: everything is there. Gives those who waited.
    ///
    /// # Panics
    /// When less came than was announced: that is [`Filler::cut`].
    pub fn finish(mut self) -> Vec<Waiter> {
        assert!(self.rest.is_none_or(|rest| rest == 0), "a body that is short is not whole");
        self.end_part();
        let filled = self.filled.take();
        let mut inner = self.body.lock();
        let mut parts = VecDeque::new();
        if let Some(filled) = filled {
            assert!(filled.len() == inner.length, "what is kept is what came");
            assert!(self.body.whole.set(filled).is_ok(), "a body is finished once");
            parts = std::mem::take(&mut inner.parts);
        }
        let waiting = inner.end(End::Whole);
        drop(inner);
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
    pub fn cut(mut self) -> Vec<Waiter> {
        self.end_part();
        self.body.lock().end(End::Cut)
    }

    /// What the present part has stays as it is, and the rest of its memory goes back.
    fn end_part(&mut self) {
        let Some(buffer) = self.buffer.take() else { return };
        let slice = buffer.freeze();
        let mut inner = self.body.lock();
        inner.is_open = false;
        if slice.is_empty() {
            inner.parts.pop_back();
        }
        inner.let_go();
        drop(inner);
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
        let mut inner = self.body.lock();
        inner.filler = None;
        inner.end.get_or_insert(End::Cut);
    }
}

#[cfg(test)]
mod tests;

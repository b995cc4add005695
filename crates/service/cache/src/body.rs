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

use std::collections::VecDeque;
use std::ops::Range;
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
#[derive(Debug)]
pub struct Body {
    /// All of it, once it is whole: read without a lock.
    whole: OnceLock<Aggregate>,
    inner: Mutex<Inner>,
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
        Self { whole: OnceLock::from(bytes), inner: Mutex::new(inner) }
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
        let body = Body { whole: OnceLock::new(), inner: Mutex::default() };
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
mod tests {
    use super::*;

    const ME: Waiter = Waiter { worker: 0, token: 1 };
    const FILLER: Waiter = Waiter { worker: 1, token: 2 };

    fn slab() -> Slab {
        Slab::on_heap(16 << 20).unwrap()
    }

    fn fill(filler: &mut Filler, bytes: &[u8]) -> Vec<Waiter> {
        let mut woken = Vec::new();
        let mut bytes = bytes;
        while !bytes.is_empty() {
            while filler.slab.tend() != iolite::Tended::Idle {}
            let spare = filler.spare().unwrap();
            let count = spare.len().min(bytes.len());
            spare[..count].copy_from_slice(&bytes[..count]);
            bytes = &bytes[count..];
            woken.extend(filler.advance(count));
        }
        woken
    }

    fn read(reader: &mut Reader) -> Vec<u8> {
        let mut all = Vec::new();
        while let (Read::Bytes(slice), _) = reader.read(1000, ME) {
            all.extend_from_slice(&slice);
        }
        all
    }

    fn bytes(count: usize) -> Vec<u8> {
        (0..count).map(|at| (at * 31 / 7) as u8).collect()
    }

    #[test]
    fn readers_follow_at_their_own_pace() {
        let slab = slab();
        let all = bytes(1 << 20);
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let mut early = Reader::new(filler.body().clone(), 0).unwrap();
        assert!(matches!(early.read(10, ME), (Read::Wait, None)));
        assert_eq!(fill(&mut filler, &all[..300_000]), [ME]);
        assert_eq!(read(&mut early), all[..300_000]);
        let mut late = Reader::new(filler.body().clone(), 100).unwrap();
        assert_eq!(read(&mut late), all[100..300_000]);
        assert_eq!(fill(&mut filler, &all[300_000..]), [ME, ME]);
        let body = filler.body().clone();
        assert!(body.bytes().is_none() && body.end().is_none());
        assert_eq!(filler.finish(), []);
        assert_eq!((body.arrived(), body.end()), (1 << 20, Some(End::Whole)));
        assert_eq!(body.bytes().unwrap().to_vec(), all);
        assert_eq!(read(&mut early), all[300_000..]);
        assert_eq!(read(&mut late), all[300_000..]);
        assert!(matches!(late.read(10, ME), (Read::End(End::Whole), None)));
        assert_eq!(read(&mut Reader::new(body, 1_000_000).unwrap()), all[1_000_000..]);
    }

    #[test]
    fn one_copy_whoever_reads_it() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, Some(100_000), 0);
        fill(&mut filler, &bytes(100_000));
        let mut readers: Vec<_> =
            (0..50).map(|_| Reader::new(filler.body().clone(), 0).unwrap()).collect();
        let slices: Vec<_> = readers.iter_mut().map(|reader| reader.read(99_000, ME)).collect();
        filler.finish();
        assert_eq!(slab.counters().live, 25 * 4096);
        drop((slices, readers));
        assert_eq!(slab.counters().live, 0);
    }

    #[test]
    fn a_cut_body_is_read_as_far_as_it_goes() {
        for drops in [false, true] {
            let slab = slab();
            let mut filler = Filler::new(&slab, Kind::Copied, Some(100), 0);
            let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
            fill(&mut filler, b"half");
            assert_eq!(read(&mut reader), b"half");
            if drops {
                drop(filler);
            } else {
                assert_eq!(filler.cut(), [ME]);
            }
            assert!(matches!(reader.read(1, ME), (Read::End(End::Cut), None)));
            assert_eq!(reader.body().end(), Some(End::Cut));
            assert!(reader.body().bytes().is_none());
        }
    }

    #[test]
    fn a_body_that_is_passed_on_lets_go_what_was_read() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let (mut slow, mut fast) = (
            Reader::new(filler.body().clone(), 0).unwrap(),
            Reader::new(filler.body().clone(), 0).unwrap(),
        );
        filler.pass();
        let all = bytes(4 << 20);
        for piece in all.chunks(100_000) {
            fill(&mut filler, piece);
            assert_eq!(read(&mut fast), piece);
        }
        assert!(slab.counters().live >= 4 << 20, "the slow one has read nothing");
        assert_eq!(read(&mut slow), all);
        assert!(slab.counters().live <= 2 * PART_BYTES as u64);
        assert!(Reader::new(filler.body().clone(), 0).is_none(), "its beginning is gone");
        filler.finish();
        assert!(matches!(slow.read(1, ME), (Read::End(End::Whole), None)));
    }

    #[test]
    fn one_reader_that_keeps_up_gets_all_that_is_passed_on() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
        filler.pass();
        for piece in bytes(3 << 20).chunks(1000) {
            assert!(matches!(reader.read(1, ME), (Read::Wait, None)));
            assert_eq!(fill(&mut filler, piece), [ME]);
            assert_eq!(read(&mut reader), piece);
            assert!(slab.counters().live <= PART_BYTES as u64);
        }
        assert_eq!(filler.cut(), [ME]);
        assert_eq!(slab.counters().live, 0, "it has had everything");
        assert!(matches!(reader.read(1, ME), (Read::End(End::Cut), None)));
    }

    #[test]
    fn bytes_that_are_there_are_not_copied() {
        let slab = slab();
        let all = bytes(100_000);
        let mut first = Filler::new(&slab, Kind::Referred, Some(60_000), 0);
        let _ = fill(&mut first, &all[..60_000]);
        let old = first.body().clone();
        let _ = first.finish();
        let old = old.bytes().unwrap().clone();
        for before in [0, 20_000, 40_000] {
            let live = slab.counters().live;
            let mut filler = Filler::new(&slab, Kind::Referred, Some(100_000), 0);
            let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
            let _ = fill(&mut filler, &all[..before]);
            let _ = filler.append(old.clone());
            let _ = fill(&mut filler, &all[..40_000 - before]);
            let expected = [&all[..before], &all[..60_000], &all[..40_000 - before]].concat();
            assert_eq!(read(&mut reader), expected);
            let body = filler.body().clone();
            let _ = filler.finish();
            assert_eq!(body.bytes().unwrap().to_vec(), expected);
            assert!(slab.counters().live - live < 60_000, "the old bytes are there once");
        }
    }

    #[test]
    fn who_is_too_far_behind_is_cut_off() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let mut slow = Reader::new(filler.body().clone(), 0).unwrap();
        let mut fast = Reader::new(filler.body().clone(), 0).unwrap();
        fill(&mut filler, &bytes(2 << 20));
        assert_eq!(filler.cut_behind(0), 0, "what is kept anyway costs nothing more");
        filler.pass();
        assert_eq!(read(&mut fast), bytes(2 << 20));
        assert!(slab.counters().live >= 2 << 20);
        assert_eq!((filler.cut_behind(1 << 20), filler.cut_behind(1 << 20)), (1, 0));
        assert!(slab.counters().live <= PART_BYTES as u64);
        assert!(matches!(slow.read(1, ME), (Read::End(End::Cut), None)));
        assert_eq!(fill(&mut filler, b"more"), [ME]);
        assert_eq!(read(&mut fast), b"more");
        assert_eq!(filler.ahead(1, FILLER), Some(0));
        drop(fast);
        assert_eq!(filler.ahead(1, FILLER), None, "nobody reads who is not cut off");
    }

    #[test]
    fn one_that_begins_further_on_has_the_filler_go_on() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let _slow = Reader::new(filler.body().clone(), 0).unwrap();
        let all = bytes(6000);
        fill(&mut filler, &all[..1000]);
        assert_eq!(filler.ahead(1000, FILLER), Some(1000));
        let mut later = Reader::new(filler.body().clone(), 5000).unwrap();
        assert!(matches!(later.read(usize::MAX, ME), (Read::Wait, Some(FILLER))));
        assert_eq!(filler.ahead(1000, FILLER), Some(0), "not even as far as it is");
        assert_eq!(fill(&mut filler, &all[1000..]), [ME]);
        let (Read::Bytes(last), None) = later.read(usize::MAX, ME) else { panic!("it is there") };
        assert_eq!(*last, all[5000..]);
    }

    #[test]
    fn a_filler_that_waits_is_not_forgotten() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let mut reader = Reader::new(filler.body().clone(), 0).unwrap();
        let other = Reader::new(filler.body().clone(), 0).unwrap();
        fill(&mut filler, &bytes(1000));
        filler.ahead(500, FILLER);
        filler.pass();
        drop(other);
        assert!(matches!(reader.read(10, ME), (Read::Bytes(_), Some(FILLER))));
        filler.ahead(500, FILLER);
        filler.finish();
        assert_eq!(reader.leave(), None, "it fills no more");
    }

    #[test]
    fn what_ended_keeps_no_memory_but_that_of_its_bytes() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let body = filler.body().clone();
        fill(&mut filler, b"begun");
        assert_eq!(slab.counters().live, FIRST_BYTES as u64);
        filler.cut();
        assert_eq!(slab.counters().live, 4096);
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        filler.spare().unwrap();
        let nothing = filler.body().clone();
        filler.finish();
        assert_eq!((nothing.arrived(), slab.counters().live), (0, 4096));
        drop(body);
        assert_eq!(slab.counters().live, 0);
    }

    #[test]
    #[should_panic(expected = "a body that is short is not whole")]
    fn a_short_body_is_never_whole() {
        let mut filler = Filler::new(&slab(), Kind::Copied, Some(10), 0);
        fill(&mut filler, b"012345678");
        filler.finish();
    }

    #[test]
    #[should_panic(expected = "no more is written than was given")]
    fn nobody_gets_more_than_was_announced() {
        let mut filler = Filler::new(&slab(), Kind::Copied, Some(10), 0);
        while filler.slab.tend() != iolite::Tended::Idle {}
        filler.spare().unwrap();
        filler.advance(11);
    }

    #[test]
    fn a_filler_waits_for_the_fastest_reader() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let mut fast = Reader::new(filler.body().clone(), 0).unwrap();
        let slow = Reader::new(filler.body().clone(), 0).unwrap();
        fill(&mut filler, &bytes(1000));
        assert_eq!(filler.ahead(2000, FILLER), Some(1000));
        assert!(matches!(fast.read(10, ME), (Read::Bytes(_), None)), "nobody waits");
        assert_eq!(filler.ahead(500, FILLER), Some(990));
        assert!(matches!(fast.read(10, ME), (Read::Bytes(_), Some(FILLER))));
        filler.ahead(500, FILLER);
        assert_eq!(slow.leave(), Some(FILLER));
        drop(fast);
        assert_eq!(filler.ahead(500, FILLER), None, "nobody is left");
    }

    #[test]
    fn no_more_is_filled_than_was_announced() {
        let slab = slab();
        let mut filler = Filler::new(&slab, Kind::Copied, Some(10), 0);
        assert_eq!(filler.spare().unwrap().len(), 10);
        fill(&mut filler, b"0123456789");
        let body = filler.body().clone();
        filler.finish();
        assert_eq!(
            (body.bytes().unwrap().to_vec(), slab.counters().live),
            (b"0123456789".to_vec(), 256)
        );
    }

    #[test]
    fn a_full_slab_is_told_and_nothing_is_lost() {
        let slab = Slab::on_heap(iolite::limits::SLAB_BYTES_MIN).unwrap();
        let mut filler = Filler::new(&slab, Kind::Referred, None, 0);
        let mut count = 0;
        while filler.spare().is_ok() {
            let length = filler.spare().unwrap().len();
            filler.advance(length);
            count += length as u64;
        }
        assert!(filler.spare().is_err());
        let body = filler.body().clone();
        filler.finish();
        assert_eq!((body.arrived(), body.bytes().map(Aggregate::len)), (count, Some(count)));
    }

    #[test]
    fn readers_and_filler_are_on_threads_of_their_own() {
        let slab = slab();
        let all = bytes(1 << 20);
        let mut filler = Filler::new(&slab, Kind::Referred, Some(1 << 20), 0);
        std::thread::scope(|scope| {
            for at in [0, 1, 300_000] {
                let mut reader = Reader::new(filler.body().clone(), at).unwrap();
                let all = &all;
                scope.spawn(move || {
                    let mut at = at as usize;
                    loop {
                        match reader.read(5000, ME).0 {
                            Read::Bytes(slice) => {
                                assert_eq!(&*slice, &all[at..at + slice.len()]);
                                at += slice.len();
                            }
                            Read::Wait => std::thread::yield_now(),
                            Read::End(end) => break assert_eq!((end, at), (End::Whole, all.len())),
                        }
                    }
                });
            }
            for piece in all.chunks(777) {
                fill(&mut filler, piece);
            }
            filler.finish();
        });
    }
}

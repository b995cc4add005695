//! Bytes moving one way: from a source's unread bytes, through the framing of its message, to a
//! sink in the framing of that side. A transfer moves bytes and knows where a body ends; it never
//! decides what follows.
//!
//! One step is one send: what the source has at hand goes out, and the source is read again only
//! when the sink has taken it all. So a sink that reads nothing stops its source, and what a
//! transfer holds is bounded by one receive.
//!
//! Where much is still to come, what the source's socket has is moved through a pipe behind what is
//! at hand, as a part of the same step (docs/design/bodies.md). The pipe is held while bytes are in
//! it: as long as this step's send, no longer.

pub(crate) mod body_progress;
pub(crate) mod download;
pub(crate) mod iov;
pub(crate) mod sink;
pub(crate) mod source;
pub mod tally;
pub(crate) mod tunnel;
pub(crate) mod upload;

use std::time::Duration;

use millrace_engine::{Engine, Instant, Shared};
use millrace_http1::Framing;
use millrace_splice::{Course, Fill, Pipe, Pipes, Plan};
use millrace_store::{COPIED_BYTES, End};

use crate::cached::reader::{CachedReader, Next};
use crate::conn::wire::Wire;
use crate::exchange::reason::Reason;
use crate::transfer::body_progress::Rest;
use crate::transfer::iov::Iov;
use crate::transfer::sink::Sink;
use crate::transfer::source::Source;
use crate::transfer::tally::Tally;

/// What a transfer waits for.
///
/// ```text
///  Off ── start ──> Source <──────> Sink ──> Ended
///                     └── nothing left ──────^
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Waits {
    /// Not begun, or there is no body.
    #[default]
    Off,
    /// More bytes have to be received.
    Source,
    /// The sink has to take what was sent.
    Sink,
    /// The last byte was taken.
    Ended,
}

/// The body cannot be transferred to its end. Nothing wrong was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyError {
    /// It breaks its framing.
    Malformed,
    /// The source ended before the body was whole.
    Cut,
}

/// What moving a body came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Moved {
    /// This direction has not begun.
    Nothing,
    /// More is to be moved: an operation is outstanding.
    Waiting,
    /// This direction may have ended.
    Ended,
    /// The body cannot be moved to its end.
    Failed(Reason),
}

#[derive(Debug, Default)]
pub(crate) struct Transfer {
    waits: Waits,
    rest: Rest,
    /// Whether the sink gets chunks.
    chunked_out: bool,
    /// Payload bytes given to the sink.
    moved: u64,
    /// Those of them that it is known to have taken; `taken <= moved`.
    taken: u64,
    /// Those of them that [`Transfer::newly_taken`] gave; `told <= taken`.
    told: u64,
    tally: Tally,
    /// When the present wait began, or last made progress enough.
    since: Instant,
    /// How long the source was waited for since `paced_at`, without the present wait.
    waited: Duration,
    /// `moved` as it stood when `waited` was zero.
    paced_at: u64,
    /// The sink's unsent bytes at `since`.
    unsent_at: usize,
    /// How the body comes.
    course: Course,
    /// What the sink is taking out of; there only while the sink is waited for.
    pipe: Option<Pipe>,
    /// When the sink last took a part of what is in the pipe.
    drained: Instant,
    /// The line end after a chunk that went through a pipe is still to be sent.
    owes_line_end: bool,
    /// The source had nothing for a pipe: it is to be watched instead of received from.
    watches: bool,
}

impl Transfer {
    /// Begins a body: `framing` says how it arrives, `chunked_out` whether it leaves in chunks.
    pub(crate) fn start(&mut self, framing: Framing, chunked_out: bool, now: Instant) {
        let rest = Rest::of(framing);
        assert!(self.pipe.is_none(), "a transfer begins without a pipe");
        let course = Course::new(!matches!(rest, Rest::UntilClose));
        *self =
            Self { waits: Waits::Source, rest, chunked_out, since: now, course, ..Self::default() };
    }

    pub(crate) fn waits(&self) -> Waits {
        self.waits
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.waits == Waits::Ended
    }

    /// Whether the last byte of the body was received, though perhaps not yet taken by the sink.
    pub(crate) fn source_is_done(&self) -> bool {
        self.waits != Waits::Off && matches!(self.rest, Rest::Nothing)
    }

    /// Whether the framing of what the sink got says that more has to come.
    pub(crate) fn shows_cut(&self) -> bool {
        self.chunked_out || matches!(self.rest, Rest::Length(_))
    }

    /// Payload bytes given to the sink.
    pub(crate) fn moved(&self) -> u64 {
        self.moved
    }

    /// Payload bytes that the sink has taken. Of a send that failed nobody knows how much that was:
    /// what it took before it was said to wait is counted, and nothing else.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// How many more those are than when this was asked before.
    pub(crate) fn newly_taken(&mut self) -> u64 {
        self.taken - std::mem::replace(&mut self.told, self.taken)
    }

    /// Notes how much the sink has taken of a send that is outstanding: all but `unsent` bytes, and
    /// what is in the pipe. 0 says nothing: it has taken all, or the send has failed.
    pub(crate) fn note_unsent(&mut self, unsent: usize) {
        if unsent > 0 {
            let left = (unsent + self.in_pipe()) as u64;
            self.taken = self.taken.max(self.moved.saturating_sub(left));
        }
    }

    /// What it took so far.
    pub(crate) fn tally(&self) -> Tally {
        self.tally
    }

    /// When the present wait began, or last made progress that the engine tells of.
    pub(crate) fn since(&self) -> Instant {
        self.since.max(self.drained)
    }

    /// Whether the source is waited for by watching it: nothing is to be received.
    pub(crate) fn watches(&self) -> bool {
        self.watches && self.waits == Waits::Source
    }

    /// Bytes that the source is to give, where their number is known; 0 where it is not.
    pub(crate) fn expected(&self) -> u64 {
        self.rest.expected()
    }

    /// Bytes that have left the source and not reached the sink.
    pub(crate) fn in_pipe(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::filled)
    }

    /// When [`Transfer::keeps_pace`] has to be asked next, at the latest.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let waited = if self.waits == Waits::Source { self.waited } else { Duration::ZERO };
        self.since + limit.saturating_sub(waited)
    }

    /// Sends `head` and what of the body `source` has at hand, or returns what to wait for. Not to
    /// be called while the sink still has an earlier send outstanding.
    ///
    /// # Errors
    /// When the body has no whole end: nothing of the wrong bytes was sent, nor `head`.
    #[inline(always)]
    pub(crate) fn pump<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: Source<'_>,
        sink: &mut impl Sink<E>,
        head: &[u8],
    ) -> Result<Waits, BodyError> {
        match source {
            Source::Wire(wire) if head.is_empty() && self.has_to_receive(wire, pipes) => {
                // A watch has told of what is there; a receive brings it.
                self.watches = false;
                self.tally.calls += 1;
                self.wait(Waits::Source, engine.now());
                Ok(Waits::Source)
            }
            Source::Wire(wire) => self.pump_wire((engine, pipes), wire, sink, head),
            Source::Cached(reader) => self.pump_cached(engine, reader, sink, head),
            Source::Memory(bytes) => Ok(self.pump_memory(engine, bytes, sink, head)),
        }
    }

    /// Why a step gave the sink nothing. It has taken what earlier steps gave it.
    #[cold]
    fn failed(&mut self, error: BodyError) -> BodyError {
        self.taken = self.moved;
        error
    }

    /// Whether nothing of the body is at hand, and a receive brings what comes next: the usual
    /// case once the sink has taken all of a stream that brings little at a time.
    #[inline(always)]
    fn has_to_receive(&self, source: &Wire, pipes: &Pipes) -> bool {
        source.input.is_empty()
            && !self.rest.is_over()
            && !self.owes_line_end
            && self.course.plan(self.rest.known(), false, pipes.thresholds()) == Plan::Copy
    }

    /// What a connection received goes out, and what its socket has follows through a pipe, where
    /// that costs less.
    #[inline(never)]
    fn pump_wire<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: &mut Wire,
        sink: &mut impl Sink<E>,
        head: &[u8],
    ) -> Result<Waits, BodyError> {
        let had_rest = !matches!(self.rest, Rest::Nothing);
        let bytes = source.input.bytes_mut();
        let received = bytes.len();
        let Ok((consumed, payload)) = self.rest.take(bytes) else {
            return Err(self.failed(BodyError::Malformed));
        };
        if !head.is_empty() && self.rest.is_malformed() {
            return Err(BodyError::Malformed);
        }
        self.course.received(received, pipes.thresholds());
        let has_watched = self.watches();
        self.watches = false;
        let behind = !payload.is_empty() || !head.is_empty();
        let pipe = match source.may_splice() && consumed == received {
            true => self.fill((engine, pipes), source, behind, has_watched),
            false => None,
        };
        let piped = pipe.as_ref().map_or(0, Pipe::filled);
        let payload = &source.input.bytes()[payload];
        let done = self.rest.is_over();
        let last = (done && had_rest && self.chunked_out).then(|| self.rest.trailers());
        let owed = std::mem::take(&mut self.owes_line_end);
        if !payload.is_empty() || piped > 0 || !head.is_empty() || last.is_some() || owed {
            let iov = Iov { head, owed, payload, piped, chunked: self.chunked_out, last };
            self.owes_line_end = iov.send(engine, sink, pipe.as_ref());
            let has_frame = !head.is_empty() || owed || self.chunked_out;
            self.tally.note_sent(payload.len(), piped, has_frame);
            let payload = payload.len();
            self.pipe = pipe;
            self.gave(engine, sink, payload + piped);
        } else {
            // A watch waits for what a receive waits for, and takes no call of its own.
            self.tally.calls += u64::from(!done && !self.watches);
            self.wait(if done { Waits::Ended } else { Waits::Source }, engine.now());
        }
        source.input.consume(consumed);
        if done {
            self.rest = Rest::Nothing;
        }
        Ok(self.waits)
    }

    /// What the cache has of a body is sent: small pieces with the other sends of a turn, and large
    /// ones from where they rest.
    #[inline(never)]
    fn pump_cached<E: Engine>(
        &mut self,
        engine: &mut E,
        reader: &mut CachedReader,
        sink: &mut impl Sink<E>,
        head: &[u8],
    ) -> Result<Waits, BodyError> {
        let next = match self.rest.known() {
            Some(0) => Next::End(End::Whole),
            known => reader.next(known.unwrap_or(u64::MAX)),
        };
        let owed = std::mem::take(&mut self.owes_line_end);
        let mut iov = Iov { head, owed, chunked: self.chunked_out, ..Iov::default() };
        match &next {
            Next::Slice(slice) if slice.bytes().len() as u64 >= COPIED_BYTES => {
                let count = slice.bytes().len();
                self.rest.skip(count as u64);
                self.tally.calls += if slice.is_copied() { 1 } else { 2 };
                self.tally.copied += if slice.is_copied() { count as u64 } else { 0 };
                self.owes_line_end = iov.send_shared(engine, sink, slice);
                self.gave(engine, sink, count);
                return Ok(self.waits);
            }
            Next::Slice(slice) => iov.payload = slice.bytes(),
            Next::Text(text) => iov.payload = text,
            Next::Wait => {}
            Next::End(End::Whole) => {
                let had_rest = !matches!(self.rest, Rest::Nothing);
                let is_all =
                    matches!(self.rest, Rest::Nothing | Rest::UntilClose | Rest::Length(0));
                if !is_all {
                    return Err(self.failed(BodyError::Cut));
                }
                self.rest = Rest::Nothing;
                iov.last = (had_rest && self.chunked_out).then_some(&[][..]);
            }
            Next::End(End::Cut) => return Err(self.failed(BodyError::Cut)),
        }
        let count = iov.payload.len();
        self.rest.skip(count as u64);
        if count > 0 || !head.is_empty() || owed || iov.last.is_some() {
            iov.send(engine, sink, None);
            self.tally.note_sent(count, 0, false);
            self.gave(engine, sink, count);
        } else {
            let is_over = matches!(next, Next::End(_));
            self.wait(if is_over { Waits::Ended } else { Waits::Source }, engine.now());
        }
        if self.rest.is_over() {
            self.rest = Rest::Nothing;
        }
        Ok(self.waits)
    }

    /// All that is left of a body is in memory: it is sent in one step.
    #[inline(never)]
    fn pump_memory<E: Engine>(
        &mut self,
        engine: &mut E,
        bytes: &[u8],
        sink: &mut impl Sink<E>,
        head: &[u8],
    ) -> Waits {
        self.rest.skip(bytes.len() as u64);
        assert!(self.rest.is_over(), "what memory has is the rest of the body");
        self.rest = Rest::Nothing;
        if head.is_empty() && bytes.is_empty() {
            self.wait(Waits::Ended, engine.now());
        } else {
            Iov { head, payload: bytes, ..Iov::default() }.send(engine, sink, None);
            self.tally.note_sent(bytes.len(), 0, !head.is_empty());
            self.gave(engine, sink, bytes.len());
        }
        self.waits
    }

    /// Sends what is in a pipe, and is next of a body that the cache keeps as well.
    pub(crate) fn pump_pipe<E: Engine>(
        &mut self,
        engine: &mut E,
        pipe: Pipe,
        sink: &mut impl Sink<E>,
    ) {
        assert_eq!(self.waits, Waits::Source, "the sink has taken what came before");
        let piped = pipe.filled();
        self.rest.skip(piped as u64);
        let owed = std::mem::take(&mut self.owes_line_end);
        let iov = Iov { owed, piped, chunked: self.chunked_out, ..Iov::default() };
        self.owes_line_end = iov.send(engine, sink, Some(&pipe));
        self.tally.note_sent(0, piped, owed || self.chunked_out);
        self.tally.note_teed(piped);
        self.pipe = Some(pipe);
        self.gave(engine, sink, piped);
        if self.rest.is_over() {
            self.rest = Rest::Nothing;
        }
    }

    /// A pipe with what the source has at once, where that is how the rest is to be moved.
    fn fill<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: &mut Wire,
        behind: bool,
        has_watched: bool,
    ) -> Option<Pipe> {
        let rest = self.rest.known();
        let thresholds = *pipes.thresholds();
        let plan = self.course.plan(rest, behind, &thresholds);
        let Plan::Splice { max } = plan else { return None };
        let mut pipe = pipes.take(engine)?;
        self.tally.calls += 1;
        match source.fill(engine, &mut pipe, max) {
            Fill::Bytes(count) => {
                self.rest.skip(count as u64);
                self.course.filled(count, max, &thresholds);
                return Some(pipe);
            }
            // Where a watch told of something that no pipe takes, a receive finds what it is.
            Fill::Nothing => {
                let alone = self.course.plan(rest, false, &thresholds);
                self.watches = !has_watched && alone != Plan::Copy;
            }
            // The receive that follows reports the end in its usual way.
            Fill::End | Fill::Break(_) => {}
        }
        pipes.give(engine, pipe);
        None
    }

    /// The sink has taken so many bytes out of the pipe. True once it is empty: then the transfer
    /// goes on by [`Transfer::pump`]; otherwise the rest was sent on.
    pub(crate) fn drain<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        count: usize,
        sink: &mut impl Sink<E>,
    ) -> bool {
        let mut pipe = self.pipe.take().expect("what is taken out of a pipe was filled into it");
        sink.drained(engine, &mut pipe, count);
        self.tally.spliced += count as u64;
        self.taken = self.moved - pipe.filled() as u64;
        self.drained = engine.now();
        if pipe.filled() == 0 {
            pipes.give(engine, pipe);
            return true;
        }
        if self.since == self.drained {
            // It was taken in the turn in which it was sent: that is no progress since.
            self.unsent_at = sink.unsent(engine) + pipe.filled();
        }
        self.tally.calls += 1;
        self.pipe = Some(pipe);
        false
    }

    /// The source ended its stream. Fine where that ends the body: then the end is passed on.
    pub(crate) fn source_ended<E: Engine>(
        &mut self,
        engine: &mut E,
        sink: &mut impl Sink<E>,
    ) -> Result<Waits, BodyError> {
        assert_eq!(self.waits, Waits::Source, "nothing else waits for the source");
        if !matches!(self.rest, Rest::UntilClose) {
            return Err(BodyError::Cut);
        }
        self.rest = Rest::Nothing;
        if self.chunked_out {
            let owed = std::mem::take(&mut self.owes_line_end);
            let iov = Iov { owed, chunked: true, last: Some(&[]), ..Iov::default() };
            iov.send(engine, sink, None);
            self.tally.note_sent(0, 0, false);
            self.gave(engine, sink, 0);
        } else {
            self.wait(Waits::Ended, engine.now());
        }
        Ok(self.waits)
    }

    /// The sink has taken the last byte.
    pub(crate) fn finish(&mut self, now: Instant) {
        assert!(self.source_is_done(), "all of the body was sent");
        self.wait(Waits::Ended, now);
    }

    /// Nothing will come from the source or be taken by the sink any more. One that has not begun
    /// stays so. What is in a pipe is lost, so the sink's connection is of no more use.
    pub(crate) fn abandon<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give(engine, pipe);
        }
        if self.waits != Waits::Off {
            self.waits = Waits::Ended;
        }
    }

    /// So many payload bytes were given to the sink, those in the pipe among them.
    fn gave<E: Engine>(&mut self, engine: &E, sink: &impl Sink<E>, bytes: usize) {
        self.wait(Waits::Sink, engine.now());
        self.moved += bytes as u64;
        let unsent = sink.unsent(engine);
        self.unsent_at = unsent + self.in_pipe();
        self.note_unsent(unsent);
    }

    /// Goes on: what the sink was waited for to take, it has taken.
    fn wait(&mut self, waits: Waits, now: Instant) {
        if self.waits == Waits::Source {
            self.waited += now.since(self.since);
        }
        self.taken = self.moved;
        self.waits = waits;
        self.since = now;
    }

    /// Whether a client that has to be waited for still keeps pace: `rate` bytes a second over
    /// each `limit`, and never `limit` without a byte. To be asked when `limit` is over since
    /// [`Transfer::since`], and when a source that drips has brought bytes again.
    pub(crate) fn keeps_pace(
        &mut self,
        now: Instant,
        limit: Duration,
        rate: u64,
        unsent: usize,
    ) -> bool {
        match self.waits {
            Waits::Off | Waits::Ended => true,
            Waits::Source => {
                let over = self.waited + now.since(self.since);
                if over < limit {
                    return true;
                }
                let kept = now.since(self.since) < limit
                    && is_enough(self.moved - self.paced_at, over, rate);
                (self.waited, self.paced_at, self.since) = (Duration::ZERO, self.moved, now);
                kept
            }
            Waits::Sink => {
                let over = now.since(self.since);
                if over < limit {
                    return true;
                }
                let kept = is_enough(self.unsent_at.saturating_sub(unsent) as u64, over, rate);
                (self.unsent_at, self.since) = (unsent, now);
                kept
            }
        }
    }
}

/// Whether a client that was waited for so long has sent or taken enough: `rate` bytes a second, and
/// at least one byte.
pub(crate) fn is_enough(moved: u64, over: Duration, rate: u64) -> bool {
    u128::from(moved) * 1000 >= u128::from(rate) * over.as_millis() && moved > 0
}

impl Transfer {
    /// How long a client that is waited for has done little or nothing: it was waited for so long,
    /// and sent or took less than `rate` bytes a second meanwhile. `unsent`: the sink's, with what
    /// is in the pipe.
    pub(crate) fn stands_still(&self, now: Instant, rate: u64, unsent: usize) -> Option<Duration> {
        let (over, moved) = match self.waits {
            Waits::Off | Waits::Ended => return None,
            Waits::Source => (self.waited + now.since(self.since), self.moved - self.paced_at),
            Waits::Sink => (now.since(self.since()), self.unsent_at.saturating_sub(unsent) as u64),
        };
        (u128::from(moved) * 1000 < u128::from(rate) * over.as_millis()).then_some(over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_is_taken_when_that_is_told_and_no_earlier() {
        let mut transfer = Transfer::default();
        let now = Instant::default();
        transfer.start(Framing::Length(1000), false, now);
        transfer.wait(Waits::Sink, now);
        transfer.moved = 600;
        transfer.note_unsent(0);
        assert_eq!(transfer.newly_taken(), 0, "all of it was taken, or none");
        transfer.note_unsent(350);
        assert_eq!((transfer.taken(), transfer.newly_taken()), (250, 250));
        transfer.note_unsent(2000);
        assert_eq!(transfer.newly_taken(), 0, "what goes before the payload is unsent, too");
        transfer.wait(Waits::Source, now);
        assert_eq!((transfer.taken(), transfer.newly_taken()), (600, 350));
    }

    #[test]
    fn a_source_that_drips_loses_pace_though_it_never_stands_still() {
        let mut transfer = Transfer::default();
        let second = Duration::from_secs(1);
        let mut now = Instant::default();
        transfer.start(Framing::Length(1000), false, now);
        let mut kept = true;
        for _ in 0..40 {
            now = now + second;
            transfer.wait(Waits::Sink, now);
            transfer.moved += 1;
            transfer.wait(Waits::Source, now);
            kept &= transfer.keeps_pace(now, 30 * second, 100, 0);
        }
        assert!(!kept);
    }
}

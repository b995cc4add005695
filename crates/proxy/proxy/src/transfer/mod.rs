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
pub mod stats;
pub(crate) mod tunnel;
pub(crate) mod upload;

use std::time::Duration;

use millrace_engine::{Engine, Instant, Shared};
use millrace_http1::Framing;
use millrace_splice::{Course, Fill, Pipe, Pipes, Plan};
use millrace_store::{COPIED_BYTES, End};

use crate::cached::reader::{CachedReader, NextChunk};
use crate::conn::wire::Wire;
use crate::exchange::reason::Reason;
use crate::transfer::body_progress::BodyProgress;
use crate::transfer::iov::Iov;
use crate::transfer::sink::TransferSink;
use crate::transfer::source::TransferSource;
use crate::transfer::stats::TransferStats;

/// What a transfer waits for.
///
/// ```text
///  Off ── start ──> Source <──────> Sink ──> Ended
///                     └── nothing left ──────^
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TransferState {
    /// Not begun, or there is no body.
    #[default]
    Off,
    /// More bytes have to be received.
    AwaitingSource,
    /// The sink has to take what was sent.
    AwaitingSink,
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
pub(crate) enum TransferProgress {
    /// This direction has not begun.
    NotStarted,
    /// More is to be moved: an operation is outstanding.
    Waiting,
    /// This direction may have ended.
    Ended,
    /// The body cannot be moved to its end.
    Failed(Reason),
}

#[derive(Debug, Default)]
pub(crate) struct Transfer {
    state: TransferState,
    body: BodyProgress,
    /// Whether the sink gets chunks.
    sends_chunks: bool,
    /// Payload bytes given to the sink.
    forwarded: u64,
    /// Those of them that it is known to have taken; `taken <= moved`.
    accepted: u64,
    /// Those of them that [`Transfer::newly_taken`] gave; `told <= taken`.
    reported: u64,
    stats: TransferStats,
    /// When the present wait began, or last made progress enough.
    since: Instant,
    /// How long the source was waited for since `paced_at`, without the present wait.
    waited_before: Duration,
    /// `moved` as it stood when `waited` was zero.
    forwarded_at_pace: u64,
    /// The sink's unsent bytes at `since`.
    unsent_at_wait: usize,
    /// How the body comes.
    course: Course,
    /// What the sink is taking out of; there only while the sink is waited for.
    pipe: Option<Pipe>,
    /// When the sink last took a part of what is in the pipe.
    drained_at: Instant,
    /// The line end after a chunk that went through a pipe is still to be sent.
    owes_line_end: bool,
    /// The source had nothing for a pipe: it is to be watched instead of received from.
    is_watching: bool,
}

impl Transfer {
    /// Begins a body: `framing` says how it arrives, `chunked_out` whether it leaves in chunks.
    pub(crate) fn start(&mut self, framing: Framing, chunked_out: bool, now: Instant) {
        let rest = BodyProgress::new(framing);
        assert!(self.pipe.is_none(), "a transfer begins without a pipe");
        let course = Course::new(!matches!(rest, BodyProgress::UntilClose));
        *self = Self {
            state: TransferState::AwaitingSource,
            body: rest,
            sends_chunks: chunked_out,
            since: now,
            course,
            ..Self::default()
        };
    }

    pub(crate) fn state(&self) -> TransferState {
        self.state
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state == TransferState::Ended
    }

    /// Whether the last byte of the body was received, though perhaps not yet taken by the sink.
    pub(crate) fn has_received_all(&self) -> bool {
        self.state != TransferState::Off && matches!(self.body, BodyProgress::Complete)
    }

    /// Whether the framing of what the sink got says that more has to come.
    pub(crate) fn shows_cut(&self) -> bool {
        self.sends_chunks || matches!(self.body, BodyProgress::Length(_))
    }

    /// Payload bytes given to the sink.
    pub(crate) fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Payload bytes that the sink has taken. Of a send that failed nobody knows how much that was:
    /// what it took before it was said to wait is counted, and nothing else.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// How many more those are than when this was asked before.
    pub(crate) fn take_newly_accepted(&mut self) -> u64 {
        self.accepted - std::mem::replace(&mut self.reported, self.accepted)
    }

    /// Notes how much the sink has taken of a send that is outstanding: all but `unsent` bytes, and
    /// what is in the pipe. 0 says nothing: it has taken all, or the send has failed.
    pub(crate) fn note_unsent(&mut self, unsent: usize) {
        if unsent > 0 {
            let left = (unsent + self.bytes_in_pipe()) as u64;
            self.accepted = self.accepted.max(self.forwarded.saturating_sub(left));
        }
    }

    /// What it took so far.
    pub(crate) fn stats(&self) -> TransferStats {
        self.stats
    }

    /// When the present wait began, or last made progress that the engine tells of.
    pub(crate) fn since(&self) -> Instant {
        self.since.max(self.drained_at)
    }

    /// Whether the source is waited for by watching it: nothing is to be received.
    pub(crate) fn is_watching(&self) -> bool {
        self.is_watching && self.state == TransferState::AwaitingSource
    }

    /// Bytes that the source is to give, where their number is known; 0 where it is not.
    pub(crate) fn expected_bytes(&self) -> u64 {
        self.body.expected_bytes()
    }

    /// Bytes that have left the source and not reached the sink.
    pub(crate) fn bytes_in_pipe(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::filled)
    }

    /// When [`Transfer::check_pace`] has to be asked next, at the latest.
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let waited = if self.state == TransferState::AwaitingSource {
            self.waited_before
        } else {
            Duration::ZERO
        };
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
        source: TransferSource<'_>,
        sink: &mut impl TransferSink<E>,
        head: &[u8],
    ) -> Result<TransferState, BodyError> {
        match source {
            TransferSource::Wire(wire) if head.is_empty() && self.needs_receive(wire, pipes) => {
                // A watch has told of what is there; a receive brings it.
                self.is_watching = false;
                self.stats.calls += 1;
                self.enter(TransferState::AwaitingSource, engine.now());
                Ok(TransferState::AwaitingSource)
            }
            TransferSource::Wire(wire) => self.pump_wire((engine, pipes), wire, sink, head),
            TransferSource::Cached(reader) => self.pump_cached(engine, reader, sink, head),
            TransferSource::Memory(bytes) => Ok(self.pump_memory(engine, bytes, sink, head)),
        }
    }

    /// Why a step gave the sink nothing. It has taken what earlier steps gave it.
    #[cold]
    fn fail(&mut self, error: BodyError) -> BodyError {
        self.accepted = self.forwarded;
        error
    }

    /// Whether nothing of the body is at hand, and a receive brings what comes next: the usual
    /// case once the sink has taken all of a stream that brings little at a time.
    #[inline(always)]
    fn needs_receive(&self, source: &Wire, pipes: &Pipes) -> bool {
        source.recv_buffer.is_empty()
            && !self.body.is_complete()
            && !self.owes_line_end
            && self.course.plan(self.body.certain_payload(), false, pipes.thresholds())
                == Plan::Copy
    }

    /// What a connection received goes out, and what its socket has follows through a pipe, where
    /// that costs less.
    #[inline(never)]
    fn pump_wire<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: &mut Wire,
        sink: &mut impl TransferSink<E>,
        head: &[u8],
    ) -> Result<TransferState, BodyError> {
        let had_rest = !matches!(self.body, BodyProgress::Complete);
        let bytes = source.recv_buffer.bytes_mut();
        let received = bytes.len();
        let Ok((consumed, payload)) = self.body.advance(bytes) else {
            return Err(self.fail(BodyError::Malformed));
        };
        if !head.is_empty() && self.body.is_malformed() {
            return Err(BodyError::Malformed);
        }
        self.course.received(received, pipes.thresholds());
        let has_watched = self.is_watching();
        self.is_watching = false;
        let behind = !payload.is_empty() || !head.is_empty();
        let pipe = match source.may_splice() && consumed == received {
            true => self.fill_pipe((engine, pipes), source, behind, has_watched),
            false => None,
        };
        let piped = pipe.as_ref().map_or(0, Pipe::filled);
        let payload = &source.recv_buffer.bytes()[payload];
        let done = self.body.is_complete();
        let last = (done && had_rest && self.sends_chunks).then(|| self.body.trailers());
        let owed = std::mem::take(&mut self.owes_line_end);
        if !payload.is_empty() || piped > 0 || !head.is_empty() || last.is_some() || owed {
            let iov = Iov {
                header: head,
                owes_line_end: owed,
                payload,
                piped,
                chunked: self.sends_chunks,
                trailers: last,
            };
            self.owes_line_end = iov.send(engine, sink, pipe.as_ref());
            let has_frame = !head.is_empty() || owed || self.sends_chunks;
            self.stats.note_sent(payload.len(), piped, has_frame);
            let payload = payload.len();
            self.pipe = pipe;
            self.note_forwarded(engine, sink, payload + piped);
        } else {
            // A watch waits for what a receive waits for, and takes no call of its own.
            self.stats.calls += u64::from(!done && !self.is_watching);
            self.enter(
                if done { TransferState::Ended } else { TransferState::AwaitingSource },
                engine.now(),
            );
        }
        source.recv_buffer.consume(consumed);
        if done {
            self.body = BodyProgress::Complete;
        }
        Ok(self.state)
    }

    /// What the cache has of a body is sent: small pieces with the other sends of a turn, and large
    /// ones from where they rest.
    #[inline(never)]
    fn pump_cached<E: Engine>(
        &mut self,
        engine: &mut E,
        reader: &mut CachedReader,
        sink: &mut impl TransferSink<E>,
        head: &[u8],
    ) -> Result<TransferState, BodyError> {
        let next = match self.body.certain_payload() {
            Some(0) => NextChunk::End(End::Whole),
            known => reader.next(known.unwrap_or(u64::MAX)),
        };
        let owed = std::mem::take(&mut self.owes_line_end);
        let mut iov =
            Iov { header: head, owes_line_end: owed, chunked: self.sends_chunks, ..Iov::default() };
        match &next {
            NextChunk::Slice(slice) if slice.bytes().len() as u64 >= COPIED_BYTES => {
                let count = slice.bytes().len();
                self.body.skip(count as u64);
                self.stats.calls += if slice.is_copied() { 1 } else { 2 };
                self.stats.copied += if slice.is_copied() { count as u64 } else { 0 };
                self.owes_line_end = iov.send_shared(engine, sink, slice);
                self.note_forwarded(engine, sink, count);
                return Ok(self.state);
            }
            NextChunk::Slice(slice) => iov.payload = slice.bytes(),
            NextChunk::Text(text) => iov.payload = text,
            NextChunk::Wait => {}
            NextChunk::End(End::Whole) => {
                let had_rest = !matches!(self.body, BodyProgress::Complete);
                let is_all = matches!(
                    self.body,
                    BodyProgress::Complete | BodyProgress::UntilClose | BodyProgress::Length(0)
                );
                if !is_all {
                    return Err(self.fail(BodyError::Cut));
                }
                self.body = BodyProgress::Complete;
                iov.trailers = (had_rest && self.sends_chunks).then_some(&[][..]);
            }
            NextChunk::End(End::Cut) => return Err(self.fail(BodyError::Cut)),
        }
        let count = iov.payload.len();
        self.body.skip(count as u64);
        if count > 0 || !head.is_empty() || owed || iov.trailers.is_some() {
            iov.send(engine, sink, None);
            self.stats.note_sent(count, 0, false);
            self.note_forwarded(engine, sink, count);
        } else {
            let is_over = matches!(next, NextChunk::End(_));
            self.enter(
                if is_over { TransferState::Ended } else { TransferState::AwaitingSource },
                engine.now(),
            );
        }
        if self.body.is_complete() {
            self.body = BodyProgress::Complete;
        }
        Ok(self.state)
    }

    /// All that is left of a body is in memory: it is sent in one step.
    #[inline(never)]
    fn pump_memory<E: Engine>(
        &mut self,
        engine: &mut E,
        bytes: &[u8],
        sink: &mut impl TransferSink<E>,
        head: &[u8],
    ) -> TransferState {
        self.body.skip(bytes.len() as u64);
        assert!(self.body.is_complete(), "what memory has is the rest of the body");
        self.body = BodyProgress::Complete;
        if head.is_empty() && bytes.is_empty() {
            self.enter(TransferState::Ended, engine.now());
        } else {
            Iov { header: head, payload: bytes, ..Iov::default() }.send(engine, sink, None);
            self.stats.note_sent(bytes.len(), 0, !head.is_empty());
            self.note_forwarded(engine, sink, bytes.len());
        }
        self.state
    }

    /// Sends what is in a pipe, and is next of a body that the cache keeps as well.
    pub(crate) fn pump_pipe<E: Engine>(
        &mut self,
        engine: &mut E,
        pipe: Pipe,
        sink: &mut impl TransferSink<E>,
    ) {
        assert_eq!(
            self.state,
            TransferState::AwaitingSource,
            "the sink has taken what came before"
        );
        let piped = pipe.filled();
        self.body.skip(piped as u64);
        let owed = std::mem::take(&mut self.owes_line_end);
        let iov = Iov { owes_line_end: owed, piped, chunked: self.sends_chunks, ..Iov::default() };
        self.owes_line_end = iov.send(engine, sink, Some(&pipe));
        self.stats.note_sent(0, piped, owed || self.sends_chunks);
        self.stats.note_teed(piped);
        self.pipe = Some(pipe);
        self.note_forwarded(engine, sink, piped);
        if self.body.is_complete() {
            self.body = BodyProgress::Complete;
        }
    }

    /// A pipe with what the source has at once, where that is how the rest is to be moved.
    fn fill_pipe<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: &mut Wire,
        behind: bool,
        has_watched: bool,
    ) -> Option<Pipe> {
        let rest = self.body.certain_payload();
        let thresholds = *pipes.thresholds();
        let plan = self.course.plan(rest, behind, &thresholds);
        let Plan::Splice { max } = plan else { return None };
        let mut pipe = pipes.take(engine)?;
        self.stats.calls += 1;
        match source.fill_pipe(engine, &mut pipe, max) {
            Fill::Bytes(count) => {
                self.body.skip(count as u64);
                self.course.filled(count, max, &thresholds);
                return Some(pipe);
            }
            // Where a watch told of something that no pipe takes, a receive finds what it is.
            Fill::Nothing => {
                let alone = self.course.plan(rest, false, &thresholds);
                self.is_watching = !has_watched && alone != Plan::Copy;
            }
            // The receive that follows reports the end in its usual way.
            Fill::End | Fill::Break(_) => {}
        }
        pipes.give(engine, pipe);
        None
    }

    /// The sink has taken so many bytes out of the pipe. True once it is empty: then the transfer
    /// goes on by [`Transfer::pump`]; otherwise the rest was sent on.
    pub(crate) fn continue_pipe<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        count: usize,
        sink: &mut impl TransferSink<E>,
    ) -> bool {
        let mut pipe = self.pipe.take().expect("what is taken out of a pipe was filled into it");
        sink.continue_pipe(engine, &mut pipe, count);
        self.stats.spliced += count as u64;
        self.accepted = self.forwarded - pipe.filled() as u64;
        self.drained_at = engine.now();
        if pipe.filled() == 0 {
            pipes.give(engine, pipe);
            return true;
        }
        if self.since == self.drained_at {
            // It was taken in the turn in which it was sent: that is no progress since.
            self.unsent_at_wait = sink.unsent(engine) + pipe.filled();
        }
        self.stats.calls += 1;
        self.pipe = Some(pipe);
        false
    }

    /// The source ended its stream. Fine where that ends the body: then the end is passed on.
    pub(crate) fn source_ended<E: Engine>(
        &mut self,
        engine: &mut E,
        sink: &mut impl TransferSink<E>,
    ) -> Result<TransferState, BodyError> {
        assert_eq!(self.state, TransferState::AwaitingSource, "nothing else waits for the source");
        if !matches!(self.body, BodyProgress::UntilClose) {
            return Err(BodyError::Cut);
        }
        self.body = BodyProgress::Complete;
        if self.sends_chunks {
            let owed = std::mem::take(&mut self.owes_line_end);
            let iov =
                Iov { owes_line_end: owed, chunked: true, trailers: Some(&[]), ..Iov::default() };
            iov.send(engine, sink, None);
            self.stats.note_sent(0, 0, false);
            self.note_forwarded(engine, sink, 0);
        } else {
            self.enter(TransferState::Ended, engine.now());
        }
        Ok(self.state)
    }

    /// The sink has taken the last byte.
    pub(crate) fn finish(&mut self, now: Instant) {
        assert!(self.has_received_all(), "all of the body was sent");
        self.enter(TransferState::Ended, now);
    }

    /// Nothing will come from the source or be taken by the sink any more. One that has not begun
    /// stays so. What is in a pipe is lost, so the sink's connection is of no more use.
    pub(crate) fn abandon<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give(engine, pipe);
        }
        if self.state != TransferState::Off {
            self.state = TransferState::Ended;
        }
    }

    /// So many payload bytes were given to the sink, those in the pipe among them.
    fn note_forwarded<E: Engine>(&mut self, engine: &E, sink: &impl TransferSink<E>, bytes: usize) {
        self.enter(TransferState::AwaitingSink, engine.now());
        self.forwarded += bytes as u64;
        let unsent = sink.unsent(engine);
        self.unsent_at_wait = unsent + self.bytes_in_pipe();
        self.note_unsent(unsent);
    }

    /// Goes on: what the sink was waited for to take, it has taken.
    fn enter(&mut self, waits: TransferState, now: Instant) {
        if self.state == TransferState::AwaitingSource {
            self.waited_before += now.since(self.since);
        }
        self.accepted = self.forwarded;
        self.state = waits;
        self.since = now;
    }

    /// Whether a client that has to be waited for still keeps pace: `rate` bytes a second over
    /// each `limit`, and never `limit` without a byte. To be asked when `limit` is over since
    /// [`Transfer::since`], and when a source that drips has brought bytes again.
    pub(crate) fn check_pace(
        &mut self,
        now: Instant,
        limit: Duration,
        rate: u64,
        unsent: usize,
    ) -> bool {
        match self.state {
            TransferState::Off | TransferState::Ended => true,
            TransferState::AwaitingSource => {
                let over = self.waited_before + now.since(self.since);
                if over < limit {
                    return true;
                }
                let kept = now.since(self.since) < limit
                    && meets_rate(self.forwarded - self.forwarded_at_pace, over, rate);
                (self.waited_before, self.forwarded_at_pace, self.since) =
                    (Duration::ZERO, self.forwarded, now);
                kept
            }
            TransferState::AwaitingSink => {
                let over = now.since(self.since);
                if over < limit {
                    return true;
                }
                let kept =
                    meets_rate(self.unsent_at_wait.saturating_sub(unsent) as u64, over, rate);
                (self.unsent_at_wait, self.since) = (unsent, now);
                kept
            }
        }
    }
}

/// Whether a client that was waited for so long has sent or taken enough: `rate` bytes a second, and
/// at least one byte.
pub(crate) fn meets_rate(moved: u64, over: Duration, rate: u64) -> bool {
    u128::from(moved) * 1000 >= u128::from(rate) * over.as_millis() && moved > 0
}

impl Transfer {
    /// How long a client that is waited for has done little or nothing: it was waited for so long,
    /// and sent or took less than `rate` bytes a second meanwhile. `unsent`: the sink's, with what
    /// is in the pipe.
    pub(crate) fn stalled_for(&self, now: Instant, rate: u64, unsent: usize) -> Option<Duration> {
        let (over, moved) = match self.state {
            TransferState::Off | TransferState::Ended => return None,
            TransferState::AwaitingSource => (
                self.waited_before + now.since(self.since),
                self.forwarded - self.forwarded_at_pace,
            ),
            TransferState::AwaitingSink => {
                (now.since(self.since()), self.unsent_at_wait.saturating_sub(unsent) as u64)
            }
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
        transfer.enter(TransferState::AwaitingSink, now);
        transfer.forwarded = 600;
        transfer.note_unsent(0);
        assert_eq!(transfer.take_newly_accepted(), 0, "all of it was taken, or none");
        transfer.note_unsent(350);
        assert_eq!((transfer.accepted(), transfer.take_newly_accepted()), (250, 250));
        transfer.note_unsent(2000);
        assert_eq!(
            transfer.take_newly_accepted(),
            0,
            "what goes before the payload is unsent, too"
        );
        transfer.enter(TransferState::AwaitingSource, now);
        assert_eq!((transfer.accepted(), transfer.take_newly_accepted()), (600, 350));
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
            transfer.enter(TransferState::AwaitingSink, now);
            transfer.forwarded += 1;
            transfer.enter(TransferState::AwaitingSource, now);
            kept &= transfer.check_pace(now, 30 * second, 100, 0);
        }
        assert!(!kept);
    }
}

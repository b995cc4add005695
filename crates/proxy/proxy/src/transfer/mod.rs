//! Transfers: bytes that move in one direction, from a source to a sink. A transfer removes the
//! framing of the received message, adds that of the message to be sent, and detects the end of the
//! body. It never decides what follows.
//!
//! One step is one send: it sends the bytes at hand, and the source is read again only when the
//! sink has taken them all. So a sink that reads nothing stops its source, and a transfer holds at
//! most one receive.
//!
//! If much of the body is still to come, the same step also moves the bytes in the source's socket
//! through a pipe, after the bytes at hand (docs/design/splice.md). The pipe is held only while
//! bytes are in it, which is at most until this step's send has completed.

pub(crate) mod body_progress;
mod compressed;
pub(crate) mod download;
pub(crate) mod file_wait;
pub(crate) mod pace;
pub(crate) mod send_parts;
pub(crate) mod sink;
pub(crate) mod source;
pub mod stats;
pub(crate) mod tunnel;
pub(crate) mod upload;

use std::time::Duration;

use millrace_engine::{Engine, Error, Instant, SharedBytes};
use millrace_http1::Framing;
use millrace_splice::{ArrivalPattern, FillResult, MoveMethod, Pipe, Pipes};
use millrace_store::{BodyEnd, COPIED_BYTES};

use crate::cached::reader::{CachedReader, NextChunk};
use crate::conn::wire::Wire;
use crate::exchange::reason::Reason;
use crate::files::reader::{FileReader, FileStep};
use crate::transfer::body_progress::BodyProgress;
use crate::transfer::send_parts::{SendFraming, SendParts};
use crate::transfer::sink::TransferSink;
use crate::transfer::source::TransferSource;
use crate::transfer::stats::TransferStats;

/// The state of a transfer, named by what it awaits.
///
/// ```text
///  Off ── start ──> AwaitingSource <──────> AwaitingSink ──> Ended
///                         └── no byte left to send ────────────^
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum TransferState {
    /// The transfer has not begun, or there is no body.
    #[default]
    Off,
    /// More bytes have to be received.
    AwaitingSource,
    /// The sink has to take the bytes that were sent.
    AwaitingSink,
    /// The sink has taken the last byte.
    Ended,
}

/// Why a body cannot be transferred to its end. Only bytes before the fault were sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BodyError {
    /// The body breaks its framing.
    Malformed,
    /// The source ended before the body was whole.
    Cut,
}

/// The result of moving bytes of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TransferProgress {
    /// The transfer has not begun.
    NotStarted,
    /// An operation is outstanding, and more bytes are to be moved.
    Waiting,
    /// There are no more bytes to move. The sink may not have taken the last ones yet, which the
    /// stage checks.
    Ended,
    /// The body cannot be moved to its end.
    Failed(Reason),
}

/// One transfer: a message body, or one direction of a tunnel.
#[derive(Debug, Default)]
pub(crate) struct Transfer {
    state: TransferState,
    body: BodyProgress,
    /// How the payload is framed for the sink.
    framing: SendFraming,
    /// Payload bytes passed to the sink.
    forwarded: u64,
    /// Payload bytes that the sink is known to have taken; `accepted <= forwarded`.
    accepted: u64,
    /// Payload bytes returned by [`Transfer::take_newly_accepted`]; `reported <= accepted`.
    reported: u64,
    stats: TransferStats,
    /// When the present wait began, or when [`Transfer::check_pace`] last began a new period of it.
    since: Instant,
    /// How long the transfer waited for the source since the last pace check, without the present
    /// wait.
    waited_before: Duration,
    /// `forwarded` at the last pace check.
    forwarded_at_check: u64,
    /// The sink's unsent bytes at `since`.
    unsent_at_wait: usize,
    /// The observed sizes of what arrives, which decide between splicing and copying.
    arrivals: ArrivalPattern,
    /// The pipe from which the sink takes bytes. Set only while the sink is awaited.
    pipe: Option<Pipe>,
    /// When the sink last took bytes from the pipe.
    drained_at: Instant,
    /// The line end of the latest chunk is still to be sent. The payload of that chunk ended in a
    /// pipe or was sent by reference, so no other bytes could follow it in the same send.
    owes_line_end: bool,
    /// The source's socket had no bytes for a pipe, so the transfer waits for a watch instead of a
    /// receive.
    is_watching: bool,
}

impl Transfer {
    /// Begins a body. `framing` is the framing in which it arrives; with `sends_chunks`, it is sent
    /// in chunks.
    pub(crate) fn start(&mut self, framing: Framing, sends_chunks: bool, now: Instant) {
        let body = BodyProgress::new(framing);
        assert!(self.pipe.is_none(), "a transfer begins without a pipe");
        let arrivals = ArrivalPattern::new(!matches!(body, BodyProgress::UntilClose));
        *self = Self {
            state: TransferState::AwaitingSource,
            body,
            framing: if sends_chunks { SendFraming::Chunks } else { SendFraming::Bare },
            since: now,
            arrivals,
            ..Self::default()
        };
    }

    /// Frames the payload as records of FastCGI. Called right after [`Transfer::start`].
    pub(crate) fn send_records(&mut self) {
        self.framing = SendFraming::Records;
    }

    pub(crate) fn state(&self) -> TransferState {
        self.state
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.state == TransferState::Ended
    }

    /// Returns whether the last byte of the body was received. The sink may not have taken it yet.
    pub(crate) fn has_received_all(&self) -> bool {
        self.state != TransferState::Off && matches!(self.body, BodyProgress::Complete)
    }

    /// Returns whether only the end of the source's stream delimits the body.
    pub(crate) fn is_delimited_by_end(&self) -> bool {
        matches!(self.body, BodyProgress::UntilClose)
    }

    /// Returns whether the framing that the sink got shows that more bytes have to follow.
    pub(crate) fn shows_cut(&self) -> bool {
        self.framing == SendFraming::Chunks || matches!(self.body, BodyProgress::Length(_))
    }

    /// Returns the number of payload bytes passed to the sink.
    pub(crate) fn forwarded(&self) -> u64 {
        self.forwarded
    }

    /// Returns the number of payload bytes that the sink has taken. If a send fails, it is unknown
    /// how much of it was taken; only the bytes that were reported before are counted.
    pub(crate) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Returns how many bytes the sink has taken since the last call.
    pub(crate) fn take_newly_accepted(&mut self) -> u64 {
        self.accepted - std::mem::replace(&mut self.reported, self.accepted)
    }

    /// Records the progress of the outstanding send: the sink has taken all bytes except `unsent`
    /// ones and those in the pipe. An `unsent` of 0 is ignored, since it means either that all
    /// bytes were taken or that the send failed.
    pub(crate) fn note_unsent(&mut self, unsent: usize) {
        if unsent > 0 {
            let left = (unsent + self.bytes_in_pipe()) as u64;
            self.accepted = self.accepted.max(self.forwarded.saturating_sub(left));
        }
    }

    /// Returns the statistics of this transfer.
    pub(crate) fn stats(&self) -> TransferStats {
        self.stats
    }

    /// Returns when the present wait began, or when the engine last reported progress.
    pub(crate) fn since(&self) -> Instant {
        self.since.max(self.drained_at)
    }

    /// Notes that the sink has taken everything, and that the source is awaited.
    pub(crate) fn await_source(&mut self, now: Instant) {
        if self.state == TransferState::AwaitingSink {
            self.enter(TransferState::AwaitingSource, now);
        }
    }

    /// Ends a wait for a disk, which does not count as one for the source.
    pub(crate) fn skip_wait(&mut self, now: Instant) {
        self.since = now;
    }

    /// Returns whether the transfer waits for its source by a watch instead of a receive.
    pub(crate) fn is_watching(&self) -> bool {
        self.is_watching && self.state == TransferState::AwaitingSource
    }

    /// Returns the number of bytes that the source still has to deliver, or 0 if it is unknown.
    pub(crate) fn expected_bytes(&self) -> u64 {
        self.body.expected_bytes()
    }

    /// Returns the number of bytes that have left the source and not reached the sink.
    pub(crate) fn bytes_in_pipe(&self) -> usize {
        self.pipe.as_ref().map_or(0, Pipe::filled)
    }

    /// Returns the latest time for the next call of [`Transfer::check_pace`].
    pub(crate) fn deadline(&self, limit: Duration) -> Instant {
        let waited = if self.state == TransferState::AwaitingSource {
            self.waited_before
        } else {
            Duration::ZERO
        };
        self.since + limit.saturating_sub(waited)
    }

    /// Sends `header` and the bytes of the body at hand, or returns what to wait for. Must not be
    /// called while the sink has a send outstanding.
    ///
    /// # Errors
    /// If the body cannot be transferred to its end. Then this step has sent neither `header` nor
    /// any byte.
    #[inline(always)]
    pub(crate) fn pump<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: TransferSource<'_>,
        sink: &mut impl TransferSink<E>,
        header: &[u8],
    ) -> Result<TransferState, BodyError> {
        match source {
            TransferSource::Wire(wire) if header.is_empty() && self.needs_receive(wire, pipes) => {
                // The watch reported bytes, which a receive now fetches.
                self.is_watching = false;
                self.stats.calls += 1;
                self.enter(TransferState::AwaitingSource, engine.now());
                Ok(TransferState::AwaitingSource)
            }
            TransferSource::Wire(wire) => self.pump_wire((engine, pipes), wire, sink, header),
            TransferSource::Cached(reader) => self.pump_cached(engine, reader, sink, header),
            TransferSource::File(reader) => self.pump_file(engine, reader, sink, header),
            TransferSource::Memory(bytes) => Ok(self.pump_memory(engine, bytes, sink, header)),
        }
    }

    /// Counts the bytes of all earlier steps as taken by the sink, and returns `error`. The failed
    /// step has sent nothing.
    #[cold]
    fn fail(&mut self, error: BodyError) -> BodyError {
        self.accepted = self.forwarded;
        error
    }

    /// Returns whether no byte of the body is at hand and a receive fetches the next bytes. This is
    /// the usual case after the sink has taken everything from a source that delivers little at a
    /// time.
    #[inline(always)]
    fn needs_receive(&self, source: &Wire, pipes: &Pipes) -> bool {
        source.recv_buffer.is_empty()
            && !self.body.is_complete()
            && !self.owes_line_end
            && self.arrivals.choose_method(self.body.certain_payload(), false, pipes.thresholds())
                == MoveMethod::Copy
    }

    /// Sends the received bytes. If splicing is cheaper, the bytes in the source's socket follow
    /// through a pipe.
    #[inline(never)]
    fn pump_wire<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        source: &mut Wire,
        sink: &mut impl TransferSink<E>,
        header: &[u8],
    ) -> Result<TransferState, BodyError> {
        let had_rest = !matches!(self.body, BodyProgress::Complete);
        let bytes = source.recv_buffer.bytes_mut();
        let received = bytes.len();
        let Ok((consumed, payload)) = self.body.advance(bytes) else {
            return Err(self.fail(BodyError::Malformed));
        };
        if !header.is_empty() && self.body.is_malformed() {
            return Err(BodyError::Malformed);
        }
        self.arrivals.note_received(received, pipes.thresholds());
        let has_watched = self.is_watching();
        self.is_watching = false;
        let has_bytes_before = !payload.is_empty() || !header.is_empty();
        let pipe = match consumed == received {
            true => self.fill_pipe((engine, pipes), (source, sink), has_bytes_before, has_watched),
            false => None,
        };
        let piped = pipe.as_ref().map_or(0, Pipe::filled);
        let payload = &source.recv_buffer.bytes()[payload];
        let done = self.body.is_complete();
        let has_end = self.framing != SendFraming::Bare;
        let last = (done && had_rest && has_end).then(|| self.body.trailers());
        let owed = std::mem::take(&mut self.owes_line_end);
        if !payload.is_empty() || piped > 0 || !header.is_empty() || last.is_some() || owed {
            let parts = SendParts {
                header,
                owes_line_end: owed,
                payload,
                piped,
                framing: self.framing,
                trailers: last,
            };
            self.owes_line_end = parts.send(engine, sink, pipe.as_ref());
            let has_frame = !header.is_empty() || owed || has_end;
            self.stats.note_sent(payload.len(), piped, has_frame);
            let payload = payload.len();
            self.pipe = pipe;
            self.note_forwarded(engine, sink, payload + piped);
        } else {
            // A watch waits for the same event as a receive, and is not counted as a call.
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

    /// Sends bytes of a cached body: small pieces are copied and batched with the other sends of a
    /// turn, and large ones are sent by reference.
    #[inline(never)]
    fn pump_cached<E: Engine>(
        &mut self,
        engine: &mut E,
        reader: &mut CachedReader,
        sink: &mut impl TransferSink<E>,
        header: &[u8],
    ) -> Result<TransferState, BodyError> {
        let next = match self.body.certain_payload() {
            Some(0) => NextChunk::End(BodyEnd::Whole),
            known => reader.next(known.unwrap_or(u64::MAX)),
        };
        let owed = std::mem::take(&mut self.owes_line_end);
        let mut parts = SendParts {
            header,
            owes_line_end: owed,
            framing: self.framing,
            ..SendParts::default()
        };
        match &next {
            NextChunk::Slice(slice) if slice.bytes().len() as u64 >= COPIED_BYTES => {
                let count = slice.bytes().len();
                self.body.skip(count as u64);
                self.stats.calls += if slice.is_copied() { 1 } else { 2 };
                self.stats.copied += if slice.is_copied() { count as u64 } else { 0 };
                self.owes_line_end = parts.send_shared(engine, sink, slice);
                self.note_forwarded(engine, sink, count);
                return Ok(self.state);
            }
            NextChunk::Slice(slice) => parts.payload = slice.bytes(),
            NextChunk::Text(text) => parts.payload = text,
            NextChunk::Wait => {}
            NextChunk::End(BodyEnd::Whole) => {
                let had_rest = !matches!(self.body, BodyProgress::Complete);
                let is_whole = matches!(
                    self.body,
                    BodyProgress::Complete | BodyProgress::UntilClose | BodyProgress::Length(0)
                );
                if !is_whole {
                    return Err(self.fail(BodyError::Cut));
                }
                self.body = BodyProgress::Complete;
                let has_end = self.framing != SendFraming::Bare;
                parts.trailers = (had_rest && has_end).then_some(&[][..]);
            }
            NextChunk::End(BodyEnd::Cut) => return Err(self.fail(BodyError::Cut)),
        }
        let count = parts.payload.len();
        self.body.skip(count as u64);
        if count > 0 || !header.is_empty() || owed || parts.trailers.is_some() {
            parts.send(engine, sink, None);
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

    /// Sends bytes of a file: by reference, or copied to a secured sink or into records.
    #[inline(never)]
    fn pump_file<E: Engine>(
        &mut self,
        engine: &mut E,
        reader: &mut FileReader,
        sink: &mut impl TransferSink<E>,
        header: &[u8],
    ) -> Result<TransferState, BodyError> {
        let step = match self.body.is_complete() {
            true => FileStep::End,
            false => reader.next(),
        };
        let payload = match &step {
            FileStep::Bytes(file, at, count) => {
                sink.send_file(engine, &[header], file, *at, *count);
                self.body.skip(*count as u64);
                self.stats.calls += 2;
                self.note_forwarded(engine, sink, *count);
                return Ok(self.state);
            }
            FileStep::Cut => return Err(self.fail(BodyError::Cut)),
            FileStep::Copied(bytes) => bytes,
            FileStep::Text(text) => &text[..],
            // The header need not wait for the disk.
            FileStep::Wait | FileStep::End => &[],
        };
        self.body.skip(payload.len() as u64);
        if !payload.is_empty() || !header.is_empty() {
            let ends = !payload.is_empty() && self.body.is_complete();
            let (framing, trailers) = match self.framing {
                SendFraming::Records => (SendFraming::Records, ends.then_some(&[][..])),
                SendFraming::Bare | SendFraming::Chunks => (SendFraming::Bare, None),
            };
            let parts = SendParts { header, payload, framing, trailers, ..SendParts::default() };
            parts.send(engine, sink, None);
            self.stats.note_sent(payload.len(), 0, !header.is_empty());
            self.note_forwarded(engine, sink, payload.len());
        } else {
            let is_over = matches!(step, FileStep::End);
            let next = if is_over { TransferState::Ended } else { TransferState::AwaitingSource };
            self.enter(next, engine.now());
        }
        if self.body.is_complete() {
            self.body = BodyProgress::Complete;
        }
        Ok(self.state)
    }

    /// Passes the received bytes of a body to `append`. Returns whether the body is whole.
    ///
    /// # Errors
    /// If the body breaks its framing.
    pub(crate) fn collect(
        &mut self,
        source: &mut Wire,
        append: impl FnOnce(&[u8]),
        now: Instant,
    ) -> Result<bool, BodyError> {
        let bytes = source.recv_buffer.bytes_mut();
        let (consumed, payload) = self.body.advance(bytes).map_err(|_| BodyError::Malformed)?;
        self.forwarded += payload.len() as u64;
        append(&bytes[payload]);
        source.recv_buffer.consume(consumed);
        if self.body.is_malformed() {
            return Err(BodyError::Malformed);
        }
        Ok(self.note_collected(now))
    }

    /// Receives bytes of a body directly into `memory`, which is no longer than what is left of it.
    /// Returns as [`Wire::try_receive_into`], and whether the body is whole.
    pub(crate) fn collect_into<E: Engine>(
        &mut self,
        engine: &mut E,
        source: &mut Wire,
        memory: &mut [u8],
    ) -> (Option<Result<usize, Error>>, bool) {
        let received = source.try_receive_into(engine, memory);
        if let Some(Ok(count)) = received {
            self.body.skip(count as u64);
            self.forwarded += count as u64;
        }
        (received, self.note_collected(engine.now()))
    }

    /// Notes that bytes were collected. Returns whether the body is whole.
    fn note_collected(&mut self, now: Instant) -> bool {
        let is_whole = self.body.is_complete();
        if is_whole {
            self.body = BodyProgress::Complete;
        }
        self.enter(
            if is_whole { TransferState::Ended } else { TransferState::AwaitingSource },
            now,
        );
        is_whole
    }

    /// Sends the rest of a body, which is in memory, in one step.
    #[inline(never)]
    fn pump_memory<E: Engine>(
        &mut self,
        engine: &mut E,
        bytes: &[u8],
        sink: &mut impl TransferSink<E>,
        header: &[u8],
    ) -> TransferState {
        self.body.skip(bytes.len() as u64);
        assert!(self.body.is_complete(), "the bytes in memory are the rest of the body");
        self.body = BodyProgress::Complete;
        if header.is_empty() && bytes.is_empty() {
            self.enter(TransferState::Ended, engine.now());
        } else {
            let (framing, trailers) = match self.framing {
                SendFraming::Records => (SendFraming::Records, Some(&[][..])),
                SendFraming::Bare | SendFraming::Chunks => (SendFraming::Bare, None),
            };
            let parts =
                SendParts { header, payload: bytes, framing, trailers, ..SendParts::default() };
            parts.send(engine, sink, None);
            self.stats.note_sent(bytes.len(), 0, !header.is_empty());
            self.note_forwarded(engine, sink, bytes.len());
        }
        self.state
    }

    /// Sends the bytes in a pipe, which are the next bytes of a body that the cache stores as well.
    pub(crate) fn pump_pipe<E: Engine>(
        &mut self,
        engine: &mut E,
        pipe: Pipe,
        sink: &mut impl TransferSink<E>,
    ) {
        assert_eq!(
            self.state,
            TransferState::AwaitingSource,
            "the sink has taken the earlier bytes"
        );
        let piped = pipe.filled();
        self.body.skip(piped as u64);
        let owed = std::mem::take(&mut self.owes_line_end);
        let parts =
            SendParts { owes_line_end: owed, piped, framing: self.framing, ..SendParts::default() };
        self.owes_line_end = parts.send(engine, sink, Some(&pipe));
        self.stats.note_sent(0, piped, owed || self.framing == SendFraming::Chunks);
        self.stats.note_teed(piped);
        self.pipe = Some(pipe);
        self.note_forwarded(engine, sink, piped);
        if self.body.is_complete() {
            self.body = BodyProgress::Complete;
        }
    }

    /// Returns a pipe with the bytes that are available in the source's socket, if the rest of the
    /// body is to be spliced.
    fn fill_pipe<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        (source, sink): (&mut Wire, &impl TransferSink<E>),
        has_bytes_before: bool,
        has_watched: bool,
    ) -> Option<Pipe> {
        let rest = self.body.certain_payload();
        let method = self.arrivals.choose_method(rest, has_bytes_before, pipes.thresholds());
        let MoveMethod::Splice { max } = method else { return None };
        let accepts_pipes = self.framing != SendFraming::Records && sink.accepts_pipes();
        if !source.may_splice() || !accepts_pipes {
            return None;
        }
        let mut pipe = pipes.acquire(engine)?;
        self.stats.calls += 1;
        match source.fill_pipe(engine, &mut pipe, max) {
            FillResult::Bytes(count) => {
                self.body.skip(count as u64);
                self.arrivals.note_filled(count, max, pipes.thresholds());
                return Some(pipe);
            }
            // If nothing is available although a watch has reported readability, a receive finds
            // the cause.
            FillResult::WouldBlock => {
                let alone = self.arrivals.choose_method(rest, false, pipes.thresholds());
                self.is_watching = !has_watched && alone != MoveMethod::Copy;
            }
            // The next receive reports the end or the error.
            FillResult::End | FillResult::Failed(_) => {}
        }
        pipes.release(engine, pipe);
        None
    }

    /// Handles the report that the sink took `count` bytes from the pipe. Returns true if the pipe
    /// is empty, and the transfer continues with [`Transfer::pump`]. Otherwise the rest of the pipe
    /// is being sent.
    pub(crate) fn continue_pipe<E: Engine>(
        &mut self,
        (engine, pipes): (&mut E, &mut Pipes),
        count: usize,
        sink: &mut impl TransferSink<E>,
    ) -> bool {
        let mut pipe =
            self.pipe.take().expect("bytes can only be taken from a pipe that was filled");
        sink.continue_pipe(engine, &mut pipe, count);
        self.stats.spliced += count as u64;
        self.accepted = self.forwarded - pipe.filled() as u64;
        self.drained_at = engine.now();
        if pipe.filled() == 0 {
            pipes.release(engine, pipe);
            return true;
        }
        if self.since == self.drained_at {
            // The wait began in this turn. The bytes that were taken at once are not progress
            // during the wait.
            self.unsent_at_wait = sink.unsent(engine) + pipe.filled();
        }
        self.stats.calls += 1;
        self.pipe = Some(pipe);
        false
    }

    /// Handles the end of the source's stream. Passes the end on if it delimits the body, after
    /// the payload `last`.
    ///
    /// # Errors
    /// [`BodyError::Cut`] if more of the body should have followed.
    pub(crate) fn handle_source_end<E: Engine>(
        &mut self,
        engine: &mut E,
        sink: &mut impl TransferSink<E>,
        last: &[u8],
    ) -> Result<TransferState, BodyError> {
        assert_eq!(self.state, TransferState::AwaitingSource, "the transfer awaits its source");
        if !matches!(self.body, BodyProgress::UntilClose) {
            return Err(BodyError::Cut);
        }
        self.body = BodyProgress::Complete;
        if self.framing == SendFraming::Chunks {
            let owed = std::mem::take(&mut self.owes_line_end);
            let parts = SendParts {
                owes_line_end: owed,
                payload: last,
                framing: self.framing,
                trailers: Some(&[]),
                ..SendParts::default()
            };
            parts.send(engine, sink, None);
            self.stats.note_sent(last.len(), 0, false);
            self.note_forwarded(engine, sink, last.len());
        } else {
            self.enter(TransferState::Ended, engine.now());
        }
        Ok(self.state)
    }

    /// Notes that the sink has taken the last byte.
    pub(crate) fn finish(&mut self, now: Instant) {
        assert!(self.has_received_all(), "the whole body was received");
        self.enter(TransferState::Ended, now);
    }

    /// Ends the transfer, unless it has not begun. The bytes in its pipe are lost, so the sink's
    /// connection cannot be used any more.
    pub(crate) fn abandon<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.release(engine, pipe);
        }
        if self.state != TransferState::Off {
            self.state = TransferState::Ended;
        }
    }

    /// Notes that `bytes` payload bytes were passed to the sink, including those in the pipe.
    #[inline]
    fn note_forwarded<E: Engine>(&mut self, engine: &E, sink: &impl TransferSink<E>, bytes: usize) {
        self.enter(TransferState::AwaitingSink, engine.now());
        self.forwarded += bytes as u64;
        let unsent = sink.unsent(engine);
        self.unsent_at_wait = unsent + self.bytes_in_pipe();
        self.note_unsent(unsent);
    }

    /// Enters the next state. The sink has taken everything that was passed to it.
    fn enter(&mut self, state: TransferState, now: Instant) {
        if self.state == TransferState::AwaitingSource {
            self.waited_before += now.since(self.since);
        }
        self.accepted = self.forwarded;
        self.state = state;
        self.since = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_count_as_accepted_only_once_that_is_reported() {
        let mut transfer = Transfer::default();
        let now = Instant::default();
        transfer.start(Framing::Length(1000), false, now);
        transfer.enter(TransferState::AwaitingSink, now);
        transfer.forwarded = 600;
        transfer.note_unsent(0);
        assert_eq!(transfer.take_newly_accepted(), 0, "the whole send was taken, or nothing");
        transfer.note_unsent(350);
        assert_eq!((transfer.accepted(), transfer.take_newly_accepted()), (250, 250));
        transfer.note_unsent(2000);
        assert_eq!(
            transfer.take_newly_accepted(),
            0,
            "no payload was taken: even some of the header is unsent"
        );
        transfer.enter(TransferState::AwaitingSource, now);
        assert_eq!((transfer.accepted(), transfer.take_newly_accepted()), (600, 350));
    }
}

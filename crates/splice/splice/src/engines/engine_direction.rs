//! One direction over an engine: actions are queued, and completions record their results.

use millrace_engine::{CompletionEvent, Engine, Fd, ShutdownHow, Token};
use millrace_sys::Errno;

use super::copy_reader::CopyReader;
use crate::direction_state::{Action, DirectionState, WaitFor};
use crate::pipes::{FillResult, Pipe, Pipes};

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 16 * 1024;

pub(super) struct EngineDirection {
    pub(super) state: DirectionState,
    /// With KeepCopy: the application's copy.
    pub(super) kept: Option<CopyReader>,
    pub(super) prefix: Vec<u8>,
    pub(super) pipe: Option<Pipe>,
    sending: Option<Sending>,
    pub(super) is_watching: bool,
    /// The transfer is being unspliced, so no new operation starts.
    is_stopping: bool,
    /// The direction stops when a sink takes a part of the bytes of a pipe.
    pub(super) stops_midway: bool,
    pub(super) is_at_end: bool,
    pub(super) is_source_broken: bool,
    /// Identifies the stream of the source.
    pub(super) salt: u64,
    /// Tokens of the operations at the source and at the sink.
    pub(super) tokens: [Token; 2],
}

/// The operation at the sink.
enum Sending {
    /// The prefix alone.
    Prefix,
    /// Bytes copied from the source.
    Copied(Vec<u8>),
    /// This many bytes at the end of the copy, which are in no pipe.
    FromCopy(usize),
    /// The bytes of the pipe, behind this many prefix bytes.
    Piped { prefix: usize },
}

impl EngineDirection {
    pub(super) fn new(
        state: DirectionState,
        prefix: Vec<u8>,
        kept: Option<CopyReader>,
        salt: u64,
        tokens: [Token; 2],
    ) -> Self {
        Self {
            state,
            kept,
            prefix,
            pipe: None,
            sending: None,
            is_watching: false,
            is_stopping: false,
            stops_midway: false,
            is_at_end: false,
            is_source_broken: false,
            salt,
            tokens,
        }
    }

    /// Queues all operations that can start now.
    pub(super) fn advance<E: Engine>(
        &mut self,
        engine: &mut E,
        pipes: &mut Pipes,
        [source, sink]: [&Fd; 2],
    ) {
        while self.sending.is_none() && !self.is_stopping {
            match self.state.next_action() {
                Action::Fill { max } => self.fill(engine, pipes, source, max),
                Action::Copy { max } | Action::Receive { max } => {
                    self.receive(engine, source, sink, max);
                }
                Action::SendPrefix { more: true } if self.kept.is_none() => {
                    self.drain(engine, sink, self.prefix.len());
                }
                Action::SendPrefix { .. } => {
                    self.sending = Some(Sending::Prefix);
                    engine.send(sink, &[&self.prefix], self.tokens[1]);
                }
                Action::Drain { max } => self.send_payload(engine, sink, max),
                Action::Tee { .. } => self.tee(engine, pipes),
                Action::MoveToCopy { max } => {
                    let pipe = self.pipe.take().expect("the pipe has bytes");
                    self.kept().push(&read(pipe, engine, pipes));
                    self.state.note_moved_to_copy(max);
                }
                Action::Discard { max } => {
                    self.release(engine, pipes);
                    self.state.note_discarded(max);
                }
                Action::ShutdownWrite => {
                    engine.shutdown(sink, ShutdownHow::Write);
                    self.state.note_shutdown();
                }
                Action::Wait(wait) => {
                    if wait == WaitFor::Source && !self.is_watching {
                        self.is_watching = true;
                        engine.poll_readable(source, self.tokens[0]);
                    }
                    return;
                }
                Action::Done => return,
            }
        }
    }

    fn kept(&mut self) -> &mut CopyReader {
        self.kept.as_mut().expect("KeepCopy is set")
    }

    fn fill<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes, source: &Fd, max: usize) {
        let Some(mut pipe) = pipes.acquire(engine) else { return self.state.set_use_pipe(false) };
        match pipe.fill(engine, source, max) {
            FillResult::Bytes(count) => {
                self.state.note_filled(count);
                self.pipe = Some(pipe);
                return;
            }
            FillResult::WouldBlock => self.state.note_source_empty(),
            // A receive shows whether this is the end of the stream.
            FillResult::End => self.state.set_use_pipe(false),
            FillResult::Failed(_) => self.handle_source_failure(),
        }
        pipes.release(engine, pipe);
    }

    fn handle_source_failure(&mut self) {
        self.is_source_broken = true;
        self.state.note_source_failed(Errno::CONNRESET);
    }

    /// Receives without a pipe: for the sink, or for the application alone if the sink failed.
    fn receive<E: Engine>(&mut self, engine: &mut E, source: &Fd, sink: &Fd, max: usize) {
        let mut bytes = vec![0; max.min(COPY_BYTES)];
        match engine.try_recv_into(source, &mut bytes) {
            Some(Ok(0)) => {
                self.is_at_end = true;
                self.state.note_source_end();
            }
            Some(Ok(count)) => {
                bytes.truncate(count);
                if self.state.is_sink_failed() {
                    return self.copy_only(&bytes);
                }
                engine.send(sink, &[&bytes], self.tokens[1]);
                self.sending = Some(Sending::Copied(bytes));
            }
            Some(Err(_)) => self.handle_source_failure(),
            None => self.state.note_source_empty(),
        }
    }

    fn copy_only(&mut self, bytes: &[u8]) {
        self.kept().push(bytes);
        self.state.note_received(bytes.len());
    }

    /// Copies the bytes of the pipe for the application. Without a second pipe, they are sent from
    /// memory.
    fn tee<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        let mut pipe = self.pipe.take().expect("the pipe has bytes");
        let filled = pipe.filled();
        let Some(mut aside) = pipes.acquire(engine) else {
            self.kept().push(&read(pipe, engine, pipes));
            return self.state.note_teed(filled);
        };
        let mut memory = vec![0; filled];
        let is_in_both =
            pipe.copy_out(engine, &mut aside, &mut memory).expect("pipes do not break");
        pipes.release(engine, aside);
        match is_in_both {
            true => self.pipe = Some(pipe),
            false => pipes.release(engine, pipe),
        }
        self.kept().push(&memory);
        self.state.note_teed(filled);
    }

    fn send_payload<E: Engine>(&mut self, engine: &mut E, sink: &Fd, max: usize) {
        if self.pipe.is_some() {
            return self.drain(engine, sink, 0);
        }
        let bytes = self.kept().last(max);
        self.sending = Some(Sending::FromCopy(max));
        engine.send(sink, &[&bytes], self.tokens[1]);
    }

    fn drain<E: Engine>(&mut self, engine: &mut E, sink: &Fd, prefix: usize) {
        let pipe = self.pipe.as_ref().expect("the pipe has bytes");
        self.sending = Some(Sending::Piped { prefix });
        pipe.drain_after(engine, &[&self.prefix[..prefix]], sink, self.tokens[1]);
    }

    /// Handles a completion.
    pub(super) fn handle_event<E: Engine>(
        &mut self,
        event: &CompletionEvent,
        engine: &mut E,
        pipes: &mut Pipes,
        sink: &Fd,
    ) {
        if matches!(event, CompletionEvent::Readable) {
            self.is_watching = false;
            return self.state.note_source_ready();
        }
        match (event, self.sending.take()) {
            (CompletionEvent::Sent(Ok(())), Some(Sending::Prefix)) => {
                self.state.note_prefix_sent(self.prefix.len())
            }
            (CompletionEvent::Sent(Ok(())), Some(Sending::Copied(bytes))) => {
                self.state.note_sent(bytes.len());
                self.kept.iter_mut().for_each(|kept| kept.push(&bytes));
            }
            (CompletionEvent::Sent(Ok(())), Some(Sending::FromCopy(count))) => {
                self.state.note_drained(count)
            }
            (CompletionEvent::Spliced(Ok(count)), Some(Sending::Piped { prefix })) => {
                self.state.note_prefix_sent(prefix);
                self.state.note_drained(*count);
                self.handle_drained(*count, engine, pipes, sink);
            }
            (CompletionEvent::Sent(Err(_)) | CompletionEvent::Spliced(Err(_)), Some(sending)) => {
                self.state.note_sink_failed(Errno::CONNRESET);
                // The bytes left the source, so the application still gets them.
                if let Sending::Copied(bytes) = sending
                    && self.kept.is_some()
                {
                    self.copy_only(&bytes);
                }
            }
            other => panic!("unexpected completion {:?}", other.0),
        }
    }

    /// Continues with the rest, or keeps it for the unsplice.
    fn handle_drained<E: Engine>(
        &mut self,
        count: usize,
        engine: &mut E,
        pipes: &mut Pipes,
        sink: &Fd,
    ) {
        let mut pipe = self.pipe.take().expect("the pipe was being drained");
        self.is_stopping |= self.stops_midway && count < pipe.filled();
        match self.is_stopping {
            true => pipe.note_drained(count),
            false => pipe.continue_drain(engine, count, sink, self.tokens[1]),
        }
        if pipe.filled() == 0 {
            return pipes.release(engine, pipe);
        }
        self.pipe = Some(pipe);
        self.sending = (!self.is_stopping).then_some(Sending::Piped { prefix: 0 });
    }

    /// Starts no further operation.
    pub(super) fn stop(&mut self) {
        self.is_stopping = true;
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Returns whether the application would read its copy.
    pub(super) fn is_read_due(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_due(&self.state))
    }

    /// Lets the application read if its policy says so. Returns whether it did.
    pub(super) fn maybe_read(&mut self) -> bool {
        self.kept.as_mut().is_some_and(|kept| kept.maybe_read(&mut self.state))
    }

    /// Releases the pipe, even with bytes in it.
    pub(super) fn release<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.release(engine, pipe);
        }
    }
}

/// Reads all bytes of a pipe, and releases the pipe.
pub(super) fn read<E: Engine>(mut pipe: Pipe, engine: &mut E, pipes: &mut Pipes) -> Vec<u8> {
    let mut memory = vec![0; pipe.filled()];
    pipe.read(engine, &mut memory).expect("pipes do not break");
    pipes.release(engine, pipe);
    memory
}

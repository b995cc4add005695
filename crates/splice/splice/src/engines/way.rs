//! One direction over an engine: what its flow says to do next is queued, and the flow is told what
//! came of it by the completion.

use millrace_engine::{CompletionEvent, Engine, Fd, ShutdownHow, Token};
use millrace_sys::Errno;

use super::kept::Kept;
use crate::flow::{Flow, Step, Wait};
use crate::pipes::{Fill, Pipe, Pipes};

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 16 * 1024;

pub(super) struct Way {
    pub(super) flow: Flow,
    /// With KeepCopy: what the application reads.
    pub(super) kept: Option<Kept>,
    pub(super) first: Vec<u8>,
    pub(super) pipe: Option<Pipe>,
    sending: Option<Sending>,
    pub(super) is_watching: bool,
    /// Nothing more is begun: the transfer is being unspliced.
    is_leaving: bool,
    /// It is to be, as soon as a sink takes a part of a pipe.
    pub(super) leaves_midway: bool,
    pub(super) is_at_end: bool,
    pub(super) is_source_broken: bool,
    /// What its source sends.
    pub(super) salt: u64,
    /// What the source's, and the sink's, operations carry.
    pub(super) tokens: [Token; 2],
}

/// What is on its way to the sink.
enum Sending {
    /// The first bytes alone.
    First,
    /// These bytes of the source, by copy.
    Copied(Vec<u8>),
    /// So many bytes that are kept and in no pipe.
    Kept(usize),
    /// What is in the pipe, behind so many first bytes.
    Piped { first: usize },
}

impl Way {
    pub(super) fn new(
        flow: Flow,
        first: Vec<u8>,
        kept: Option<Kept>,
        salt: u64,
        tokens: [Token; 2],
    ) -> Self {
        Self {
            flow,
            kept,
            first,
            pipe: None,
            sending: None,
            is_watching: false,
            is_leaving: false,
            leaves_midway: false,
            is_at_end: false,
            is_source_broken: false,
            salt,
            tokens,
        }
    }

    /// Queues whatever can be done now.
    pub(super) fn advance<E: Engine>(
        &mut self,
        engine: &mut E,
        pipes: &mut Pipes,
        [source, sink]: [&Fd; 2],
    ) {
        while self.sending.is_none() && !self.is_leaving {
            match self.flow.step() {
                Step::Fill { max } => self.fill(engine, pipes, source, max),
                Step::Copy { max } | Step::Receive { max } => {
                    self.receive(engine, source, sink, max);
                }
                Step::First { more: true } if self.kept.is_none() => {
                    self.drain(engine, sink, self.first.len());
                }
                Step::First { .. } => {
                    self.sending = Some(Sending::First);
                    engine.send(sink, &[&self.first], self.tokens[1]);
                }
                Step::Drain { max } => self.send_on(engine, sink, max),
                Step::Tee { .. } => self.tee(engine, pipes),
                Step::Shift { max } => {
                    let pipe = self.pipe.take().expect("there is something in it");
                    self.kept().put(&read(pipe, engine, pipes));
                    self.flow.shifted(max);
                }
                Step::Discard { max } => {
                    self.release(engine, pipes);
                    self.flow.discarded(max);
                }
                Step::Shut => {
                    engine.shutdown(sink, ShutdownHow::Write);
                    self.flow.shut();
                }
                Step::Wait(wait) => {
                    if wait == Wait::Source && !self.is_watching {
                        self.is_watching = true;
                        engine.poll_readable(source, self.tokens[0]);
                    }
                    return;
                }
                Step::Over => return,
            }
        }
    }

    fn kept(&mut self) -> &mut Kept {
        self.kept.as_mut().expect("a copy is kept")
    }

    fn fill<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes, source: &Fd, max: usize) {
        let Some(mut pipe) = pipes.take(engine) else { return self.flow.use_pipe(false) };
        match pipe.fill(engine, source, max) {
            Fill::Bytes(count) => {
                self.flow.filled(count);
                self.pipe = Some(pipe);
                return;
            }
            Fill::Nothing => self.flow.source_waits(),
            // A receive tells whether that is the end.
            Fill::End => self.flow.use_pipe(false),
            Fill::Break(_) => self.source_broke(),
        }
        pipes.give(engine, pipe);
    }

    fn source_broke(&mut self) {
        self.is_source_broken = true;
        self.flow.source_broke(Errno::CONNRESET);
    }

    /// Without a pipe: for the sink or, where that is gone, for the application alone.
    fn receive<E: Engine>(&mut self, engine: &mut E, source: &Fd, sink: &Fd, max: usize) {
        let mut bytes = vec![0; max.min(COPY_BYTES)];
        match engine.try_recv_into(source, &mut bytes) {
            Some(Ok(0)) => {
                self.is_at_end = true;
                self.flow.source_ended();
            }
            Some(Ok(count)) => {
                bytes.truncate(count);
                if self.flow.is_sink_gone() {
                    return self.keep_alone(&bytes);
                }
                engine.send(sink, &[&bytes], self.tokens[1]);
                self.sending = Some(Sending::Copied(bytes));
            }
            Some(Err(_)) => self.source_broke(),
            None => self.flow.source_waits(),
        }
    }

    fn keep_alone(&mut self, bytes: &[u8]) {
        self.kept().put(bytes);
        self.flow.received(bytes.len());
    }

    /// All that the pipe has, for the application as well. Where that cannot be had in two pipes it
    /// is sent from memory.
    fn tee<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        let mut pipe = self.pipe.take().expect("there is something in it");
        let filled = pipe.filled();
        let Some(mut aside) = pipes.take(engine) else {
            self.kept().put(&read(pipe, engine, pipes));
            return self.flow.teed(filled);
        };
        let mut memory = vec![0; filled];
        let is_in_both = pipe.copy(engine, &mut aside, &mut memory).expect("pipes do not break");
        pipes.give(engine, aside);
        match is_in_both {
            true => self.pipe = Some(pipe),
            false => pipes.give(engine, pipe),
        }
        self.kept().put(&memory);
        self.flow.teed(filled);
    }

    fn send_on<E: Engine>(&mut self, engine: &mut E, sink: &Fd, max: usize) {
        if self.pipe.is_some() {
            return self.drain(engine, sink, 0);
        }
        let bytes = self.kept().last(max);
        self.sending = Some(Sending::Kept(max));
        engine.send(sink, &[&bytes], self.tokens[1]);
    }

    fn drain<E: Engine>(&mut self, engine: &mut E, sink: &Fd, first: usize) {
        let pipe = self.pipe.as_ref().expect("there is something in it");
        self.sending = Some(Sending::Piped { first });
        pipe.drain_after(engine, &[&self.first[..first]], sink, self.tokens[1]);
    }

    /// What an operation of this direction came to.
    pub(super) fn hear<E: Engine>(
        &mut self,
        event: &CompletionEvent,
        engine: &mut E,
        pipes: &mut Pipes,
        sink: &Fd,
    ) {
        if matches!(event, CompletionEvent::Readable) {
            self.is_watching = false;
            return self.flow.source_ready();
        }
        match (event, self.sending.take()) {
            (CompletionEvent::Sent(Ok(())), Some(Sending::First)) => {
                self.flow.first_sent(self.first.len())
            }
            (CompletionEvent::Sent(Ok(())), Some(Sending::Copied(bytes))) => {
                self.flow.sent(bytes.len());
                self.kept.iter_mut().for_each(|kept| kept.put(&bytes));
            }
            (CompletionEvent::Sent(Ok(())), Some(Sending::Kept(count))) => self.flow.drained(count),
            (CompletionEvent::Spliced(Ok(count)), Some(Sending::Piped { first })) => {
                self.flow.first_sent(first);
                self.flow.drained(*count);
                self.left_the_pipe(*count, engine, pipes, sink);
            }
            (CompletionEvent::Sent(Err(_)) | CompletionEvent::Spliced(Err(_)), Some(sending)) => {
                self.flow.sink_gone(Errno::CONNRESET);
                // It was taken off the source, and the application gets it all the same.
                if let Sending::Copied(bytes) = sending
                    && self.kept.is_some()
                {
                    self.keep_alone(&bytes);
                }
            }
            other => panic!("nobody asked for {:?}", other.0),
        }
    }

    /// What is left goes on, or waits to be handed out.
    fn left_the_pipe<E: Engine>(
        &mut self,
        count: usize,
        engine: &mut E,
        pipes: &mut Pipes,
        sink: &Fd,
    ) {
        let mut pipe = self.pipe.take().expect("it was being emptied");
        self.is_leaving |= self.leaves_midway && count < pipe.filled();
        match self.is_leaving {
            true => pipe.note_gone(count),
            false => pipe.drained(engine, count, sink, self.tokens[1]),
        }
        if pipe.filled() == 0 {
            return pipes.give(engine, pipe);
        }
        self.pipe = Some(pipe);
        self.sending = (!self.is_leaving).then_some(Sending::Piped { first: 0 });
    }

    /// Begins nothing more.
    pub(super) fn leave(&mut self) {
        self.is_leaving = true;
    }

    pub(super) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    pub(super) fn is_sending(&self) -> bool {
        self.sending.is_some()
    }

    /// Whether the application would read what is kept.
    pub(super) fn is_to_be_read(&self) -> bool {
        self.kept.as_ref().is_some_and(|kept| kept.is_due(&self.flow))
    }

    /// The application reads what is kept, if it likes to. Gives whether it did.
    pub(super) fn maybe_read(&mut self) -> bool {
        self.kept.as_mut().is_some_and(|kept| kept.maybe_read(&mut self.flow))
    }

    /// Gives the pipe back, whatever is in it.
    pub(super) fn release<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give(engine, pipe);
        }
    }
}

/// All that a pipe has, which is given back.
pub(super) fn read<E: Engine>(mut pipe: Pipe, engine: &mut E, pipes: &mut Pipes) -> Vec<u8> {
    let mut memory = vec![0; pipe.filled()];
    pipe.read(engine, &mut memory).expect("pipes do not break");
    pipes.give(engine, pipe);
    memory
}

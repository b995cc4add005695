//! One direction over an engine: what its flow says to do next is queued, and the flow is told what
//! came of it by the completion.

use millrace_event::{Engine, Event, Fd, HowToShut, Token};
use millrace_sys::Errno;

use crate::flow::{Flow, Step, Wait};
use crate::pipes::{Fill, Pipe, Pipes};

/// Bytes that are copied at a time.
const COPY_BYTES: usize = 16 * 1024;

pub(super) struct Way {
    pub(super) flow: Flow,
    first: Vec<u8>,
    pipe: Option<Pipe>,
    sending: Option<Sending>,
    is_watching: bool,
    /// What the source's, and the sink's, operations carry.
    tokens: [Token; 2],
}

/// What is on its way to the sink.
#[derive(Clone, Copy)]
enum Sending {
    /// The first bytes alone.
    First,
    /// So many bytes of the source, by copy.
    Copied(usize),
    /// What is in the pipe, behind so many first bytes.
    Piped { first: usize },
}

impl Way {
    pub(super) fn new(flow: Flow, first: Vec<u8>, tokens: [Token; 2]) -> Self {
        Self { flow, first, pipe: None, sending: None, is_watching: false, tokens }
    }

    /// Queues whatever can be done now.
    pub(super) fn advance<E: Engine>(
        &mut self,
        engine: &mut E,
        pipes: &mut Pipes,
        [source, sink]: [&Fd; 2],
    ) {
        while self.sending.is_none() {
            match self.flow.step() {
                Step::Fill { max } => self.fill(engine, pipes, source, max),
                Step::Copy { max } => self.copy(engine, source, sink, max),
                Step::First { more: false } => {
                    self.sending = Some(Sending::First);
                    engine.send(sink, &[&self.first], self.tokens[1]);
                }
                Step::First { more: true } => self.drain(engine, sink, self.first.len()),
                Step::Drain { .. } => self.drain(engine, sink, 0),
                Step::Shut => {
                    engine.shutdown(sink, HowToShut::Write);
                    self.flow.shut();
                }
                Step::Wait(wait) => {
                    if wait == Wait::Source && !self.is_watching {
                        self.is_watching = true;
                        engine.watch(source, self.tokens[0]);
                    }
                    return;
                }
                Step::Over => return,
                step => unreachable!("nothing is kept: {step:?}"),
            }
        }
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
            Fill::Break(_) => self.flow.source_broke(Errno::CONNRESET),
        }
        pipes.give(engine, pipe);
    }

    fn copy<E: Engine>(&mut self, engine: &mut E, source: &Fd, sink: &Fd, max: usize) {
        let mut bytes = [0; COPY_BYTES];
        match engine.take(source, &mut bytes[..max.min(COPY_BYTES)]) {
            Some(Ok(0)) => self.flow.source_ended(),
            Some(Ok(count)) => {
                self.sending = Some(Sending::Copied(count));
                engine.send(sink, &[&bytes[..count]], self.tokens[1]);
            }
            Some(Err(_)) => self.flow.source_broke(Errno::CONNRESET),
            None => self.flow.source_waits(),
        }
    }

    fn drain<E: Engine>(&mut self, engine: &mut E, sink: &Fd, first: usize) {
        let pipe = self.pipe.as_ref().expect("there is something in it");
        self.sending = Some(Sending::Piped { first });
        pipe.drain_after(engine, &[&self.first[..first]], sink, self.tokens[1]);
    }

    /// What an operation of this direction came to.
    pub(super) fn hear<E: Engine>(
        &mut self,
        event: &Event,
        engine: &mut E,
        pipes: &mut Pipes,
        sink: &Fd,
    ) {
        match (event, self.sending) {
            (Event::Readable, _) => {
                self.is_watching = false;
                self.flow.source_ready();
            }
            (Event::Sent(Ok(())), Some(Sending::First)) => self.flow.first_sent(self.first.len()),
            (Event::Sent(Ok(())), Some(Sending::Copied(count))) => self.flow.sent(count),
            (Event::Spliced(Ok(count)), Some(Sending::Piped { first })) => {
                self.flow.first_sent(first);
                self.flow.drained(*count);
                let mut pipe = self.pipe.take().expect("it was being emptied");
                pipe.drained(engine, *count, sink, self.tokens[1]);
                if pipe.filled() > 0 {
                    self.pipe = Some(pipe);
                    self.sending = Some(Sending::Piped { first: 0 });
                    return;
                }
                pipes.give(engine, pipe);
            }
            (Event::Sent(Err(_)) | Event::Spliced(Err(_)), Some(_)) => {
                self.flow.sink_gone(Errno::CONNRESET);
            }
            other => panic!("nobody asked for {:?}", other.0),
        }
        if !matches!(event, Event::Readable) {
            self.sending = None;
        }
    }

    /// Gives the pipe back, whatever is in it.
    pub(super) fn release<E: Engine>(&mut self, engine: &mut E, pipes: &mut Pipes) {
        if let Some(pipe) = self.pipe.take() {
            pipes.give(engine, pipe);
        }
    }
}

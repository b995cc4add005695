//! Carries one direction of a transfer: does what its flow says to do next, and tells it what came
//! of that.

use std::collections::VecDeque;

use millrace_sys::Errno;

use crate::flow::{Flow, Step};
use crate::kernel::{Kernel, is_shortage};
use crate::limits::PIPE_BYTES;
use crate::pool::Pool;
use crate::request::Direction;

/// What all transfers of a splicer share.
pub(crate) struct Tools<K: Kernel> {
    pub(crate) kernel: K,
    pub(crate) pool: Pool<K::Pipe>,
    /// Where bytes are copied through; nothing stays in it from one call to the next.
    pub(crate) scratch: Box<[u8]>,
}

/// One direction: its numbers, and the bytes that are on their way.
pub(crate) struct Carrier<K: Kernel> {
    pub(crate) flow: Flow,
    /// The first bytes; its last `flow.first` have not been sent.
    first: Vec<u8>,
    /// Held only while bytes are in them.
    pipes: Option<Held<K::Pipe>>,
    /// Kept bytes that came without a pipe: older than those in one.
    memory: VecDeque<u8>,
    /// Whether the source was said to have urgent data since it was last looked for.
    is_urgent: bool,
}

/// The pipes of a direction.
struct Held<P> {
    /// From the source to the sink; has `flow.piped()` bytes.
    main: P,
    /// With KeepCopy: what the application reads.
    kept: Option<P>,
}

impl<K: Kernel> Carrier<K> {
    pub(crate) fn new(flow: Flow, first: Vec<u8>) -> Self {
        assert_eq!(flow.first, first.len(), "the flow counts what there is");
        Self { flow, first, pipes: None, memory: VecDeque::new(), is_urgent: false }
    }

    /// The source may have something, and `is_urgent` data among it.
    pub(crate) fn source_ready(&mut self, is_urgent: bool) {
        self.is_urgent |= is_urgent;
        self.flow.source_ready();
    }

    /// Moves bytes from the first connection to the second until somebody has to be waited for, or
    /// [`PIPE_BYTES`] were taken from the source: then more is to be done at once.
    pub(crate) fn run(&mut self, tools: &mut Tools<K>, [source, sink]: [&K::Socket; 2]) -> bool {
        let mut budget = PIPE_BYTES;
        let is_paused = loop {
            let before = self.flow.taken;
            match self.flow.step() {
                Step::Wait(_) | Step::Over => break false,
                Step::Fill { .. } | Step::Copy { .. } | Step::Receive { .. } if budget == 0 => {
                    break true;
                }
                Step::Fill { max } => self.fill(tools, source, max.min(budget)),
                Step::Copy { max } => self.copy(tools, [source, sink], max.min(budget)),
                Step::Receive { max } => self.receive(tools, source, max.min(budget)),
                step => self.pass_on(tools, sink, step),
            }
            budget -= (self.flow.taken - before) as usize;
        };
        self.give_pipes_back(&mut tools.pool);
        is_paused
    }

    /// A step that takes nothing from the source.
    fn pass_on(&mut self, tools: &mut Tools<K>, sink: &K::Socket, step: Step) {
        match step {
            Step::First { more } => self.send_first(&mut tools.kernel, sink, more),
            Step::Drain { max } => {
                let result = tools.kernel.drain(&self.held().main, sink, max);
                self.sink_took(result, Flow::drained);
            }
            Step::Tee { max } => {
                let (main, kept) = self.held().both();
                let result = tools.kernel.tee(main, kept, max);
                self.put_aside(result, Flow::teed);
            }
            Step::Shift { max } => {
                let (main, kept) = self.held().both();
                let result = tools.kernel.shift(main, kept, max);
                self.put_aside(result, Flow::shifted);
            }
            Step::Discard { max } => {
                let max = max.min(tools.scratch.len());
                read_all(&mut tools.kernel, &self.held().main, &mut tools.scratch[..max]);
                self.flow.discarded(max);
            }
            Step::Shut => match tools.kernel.shut(sink) {
                Ok(()) => self.flow.shut(),
                Err(error) => self.flow.sink_gone(error),
            },
            Step::Fill { .. } | Step::Copy { .. } | Step::Receive { .. } => {
                unreachable!("it takes from the source")
            }
            Step::Wait(_) | Step::Over => unreachable!("nothing is to be done"),
        }
    }

    fn send_first(&mut self, kernel: &mut K, sink: &K::Socket, more: bool) {
        let from = self.first.len() - self.flow.first;
        let result = kernel.send(sink, &self.first[from..], more);
        self.sink_took(result, Flow::first_sent);
        if self.flow.first == 0 {
            self.first = Vec::new();
        }
    }

    fn held(&self) -> &Held<K::Pipe> {
        self.pipes.as_ref().expect("bytes are in the pipes")
    }

    fn sink_took(&mut self, result: Result<usize, Errno>, took: fn(&mut Flow, usize)) {
        match result {
            Ok(0) | Err(Errno::AGAIN) => self.flow.sink_waits(),
            Ok(count) => took(&mut self.flow, count),
            Err(error) => self.sink_failed(error),
        }
    }

    fn sink_failed(&mut self, error: Errno) {
        match is_shortage(error) {
            true => self.flow.ran_short(),
            false => self.flow.sink_gone(error),
        }
    }

    /// No other error than EAGAIN and a want of memory is possible between two pipes (tee(2),
    /// splice(2)).
    fn put_aside(&mut self, result: Result<usize, Errno>, put: fn(&mut Flow, usize)) {
        match result {
            Err(error) if is_shortage(error) => self.flow.ran_short(),
            Ok(0) | Err(_) => self.flow.crowded(),
            Ok(count) => put(&mut self.flow, count),
        }
    }

    fn fill(&mut self, tools: &mut Tools<K>, source: &K::Socket, max: usize) {
        if self.pipes.is_none() {
            self.pipes = Held::take(tools, self.flow.is_kept());
        }
        let Some(held) = &self.pipes else { return self.flow.use_pipe(false) };
        match tools.kernel.fill(source, &held.main, max) {
            Ok(0) => self.look(tools, source),
            Ok(count) => self.flow.filled(count),
            Err(Errno::AGAIN) if std::mem::take(&mut self.is_urgent) => self.look(tools, source),
            Err(error) => self.source_gave_none(error),
        }
    }

    /// Urgent data ends a splice as the end of the stream does, where that comes behind it, and else
    /// as if nothing had come (`tcp_splice_read`, Linux 6.18). A receive tells these apart, and gets
    /// past the urgent data.
    fn look(&mut self, tools: &mut Tools<K>, source: &K::Socket) {
        match tools.kernel.peek(source, &mut tools.scratch[..1]) {
            Ok(0) => self.flow.source_ended(),
            Ok(_) => self.flow.use_pipe(false),
            Err(error) => {
                // After a pause there is still to be looked.
                self.is_urgent |= is_shortage(error);
                self.source_gave_none(error);
            }
        }
    }

    fn source_gave_none(&mut self, error: Errno) {
        match error {
            Errno::AGAIN => self.flow.source_waits(),
            error if is_shortage(error) => self.flow.ran_short(),
            error => self.flow.source_broke(error),
        }
    }

    /// Without a pipe nothing may be taken that the sink has not: what was looked at and sent is
    /// taken off the source afterwards.
    fn copy(&mut self, tools: &mut Tools<K>, [source, sink]: [&K::Socket; 2], max: usize) {
        let max = max.min(tools.scratch.len());
        let count = match tools.kernel.peek(source, &mut tools.scratch[..max]) {
            Ok(0) => return self.flow.source_ended(),
            Ok(count) => count,
            Err(error) => return self.source_gave_none(error),
        };
        let sent = match tools.kernel.send(sink, &tools.scratch[..count], false) {
            Ok(0) | Err(Errno::AGAIN) => return self.flow.sink_waits(),
            Ok(sent) => sent,
            Err(error) => return self.sink_failed(error),
        };
        if self.flow.is_kept() {
            self.remember(tools, sent);
        }
        self.flow.sent(sent);
        let mut left = sent;
        while left > 0 {
            match tools.kernel.discard(source, &mut tools.scratch[..left]) {
                Ok(0) => return self.flow.source_ended(),
                Ok(count) => left -= count,
                Err(error) => return self.flow.source_broke(error),
            }
        }
    }

    fn receive(&mut self, tools: &mut Tools<K>, source: &K::Socket, max: usize) {
        let max = max.min(tools.scratch.len());
        match tools.kernel.receive(source, &mut tools.scratch[..max]) {
            Ok(0) => self.flow.source_ended(),
            Ok(count) => {
                self.remember(tools, count);
                self.flow.received(count);
            }
            Err(error) => self.source_gave_none(error),
        }
    }

    /// Keeps the first `count` bytes of the scratch memory, behind those that a pipe has.
    fn remember(&mut self, tools: &mut Tools<K>, count: usize) {
        if let Some(Held { kept: Some(kept), .. }) = &self.pipes {
            let mut older = vec![0; self.flow.copied - self.memory.len()];
            read_all(&mut tools.kernel, kept, &mut older);
            self.memory.extend(older);
        }
        self.memory.extend(&tools.scratch[..count]);
    }

    /// Reads kept bytes for the application, and gives how many.
    pub(crate) fn read(&mut self, tools: &mut Tools<K>, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.flow.kept());
        let older = count.min(self.memory.len());
        for (place, byte) in bytes.iter_mut().zip(self.memory.drain(..older)) {
            *place = byte;
        }
        if count > older {
            let (_, kept) = self.held().both();
            read_all(&mut tools.kernel, kept, &mut bytes[older..count]);
        }
        self.flow.read(count);
        self.give_pipes_back(&mut tools.pool);
        count
    }

    fn give_pipes_back(&mut self, pool: &mut Pool<K::Pipe>) {
        let is_empty = self.flow.piped() == (0, 0) && self.flow.copied == self.memory.len();
        if let Some(held) = self.pipes.take_if(|_| is_empty) {
            pool.give(held.main);
            held.kept.into_iter().for_each(|kept| pool.give(kept));
        }
    }

    /// Ends the direction: writes on what the sink takes at once, and hands out the rest. The pipes
    /// go back empty.
    pub(crate) fn release(mut self, tools: &mut Tools<K>, sink: &K::Socket) -> Direction {
        self.flow.stop();
        while let step @ (Step::First { .. } | Step::Drain { .. } | Step::Tee { .. }) =
            self.flow.step()
        {
            self.pass_on(tools, sink, step);
        }
        let first_unsent = self.flow.first;
        let mut unsent = self.first.split_off(self.first.len() - first_unsent);
        let mut kept = Vec::from(std::mem::take(&mut self.memory));
        let (piped, ahead) = self.flow.piped();
        if let Some(held) = self.pipes.take() {
            if let Some(pipe) = held.kept {
                read_onto(&mut tools.kernel, &pipe, &mut kept, self.flow.copied);
                tools.pool.give(pipe);
            }
            read_onto(&mut tools.kernel, &held.main, &mut unsent, first_unsent + piped);
            tools.pool.give(held.main);
        }
        if self.flow.is_kept() && self.flow.is_sink_gone() {
            kept.extend(unsent.drain(first_unsent..).skip(ahead));
        } else {
            kept.truncate(kept.len() - ahead);
        }
        Direction { forwarded: self.flow.forwarded, unsent, first_unsent, kept }
    }
}

impl<P> Held<P> {
    /// One pipe or, to keep a copy, two; none if there are not enough.
    fn take<K: Kernel<Pipe = P>>(tools: &mut Tools<K>, is_kept: bool) -> Option<Self> {
        let main = tools.pool.take(|| tools.kernel.pipe())?;
        if !is_kept {
            return Some(Self { main, kept: None });
        }
        let Some(kept) = tools.pool.take(|| tools.kernel.pipe()) else {
            tools.pool.give(main);
            return None;
        };
        Some(Self { main, kept: Some(kept) })
    }

    fn both(&self) -> (&P, &P) {
        (&self.main, self.kept.as_ref().expect("a copy is kept in a pipe of its own"))
    }
}

/// Fills `bytes` from a pipe, which has so many.
fn read_all<K: Kernel>(kernel: &mut K, pipe: &K::Pipe, bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match kernel.read(pipe, &mut bytes[filled..]) {
            Ok(count) if count > 0 => filled += count,
            other => panic!("a pipe gives what was put into it: {other:?}"),
        }
    }
}

/// Reads from a pipe until `bytes` has `length`.
fn read_onto<K: Kernel>(kernel: &mut K, pipe: &K::Pipe, bytes: &mut Vec<u8>, length: usize) {
    let from = bytes.len();
    bytes.resize(length, 0);
    read_all(kernel, pipe, &mut bytes[from..]);
}

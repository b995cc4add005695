//! Carries one direction of a transfer: does what its flow says to do next, and tells it what came
//! of that.

use std::collections::VecDeque;

use millrace_sys::Errno;

use crate::direction_state::{Action, DirectionState};
use crate::kernel::{SystemCalls, is_shortage};
use crate::limits::PIPE_BYTES;
use crate::pool::PipePool;
use crate::request::DirectionResult;

/// What all transfers of a splicer share.
pub(crate) struct Resources<K: SystemCalls> {
    pub(crate) kernel: K,
    pub(crate) pool: PipePool<K::Pipe>,
    /// Where bytes are copied through; nothing stays in it from one call to the next.
    pub(crate) scratch: Box<[u8]>,
}

/// One direction: its numbers, and the bytes that are on their way.
pub(crate) struct Direction<K: SystemCalls> {
    pub(crate) state: DirectionState,
    /// The first bytes; its last `state.prefix` have not been sent.
    prefix: Vec<u8>,
    /// Held only while bytes are in them.
    pipes: Option<PipePair<K::Pipe>>,
    /// Kept bytes that came without a pipe: older than those in one.
    kept_in_memory: VecDeque<u8>,
    /// Whether the source was said to have urgent data since it was last looked for.
    is_urgent: bool,
}

/// The pipes of a direction.
struct PipePair<P> {
    /// From the source to the sink; has `state.piped()` bytes.
    main: P,
    /// With KeepCopy: what the application reads.
    kept: Option<P>,
}

impl<K: SystemCalls> Direction<K> {
    pub(crate) fn new(state: DirectionState, first: Vec<u8>) -> Self {
        assert_eq!(state.prefix, first.len(), "the flow counts what there is");
        Self {
            state,
            prefix: first,
            pipes: None,
            kept_in_memory: VecDeque::new(),
            is_urgent: false,
        }
    }

    /// The source may have something, and `is_urgent` data among it.
    pub(crate) fn note_source_ready(&mut self, is_urgent: bool) {
        self.is_urgent |= is_urgent;
        self.state.note_source_ready();
    }

    /// Moves bytes from the first connection to the second until somebody has to be waited for, or
    /// [`PIPE_BYTES`] were taken from the source: then more is to be done at once.
    pub(crate) fn run(
        &mut self,
        tools: &mut Resources<K>,
        [source, sink]: [&K::Socket; 2],
    ) -> bool {
        let mut budget = PIPE_BYTES;
        let is_paused = loop {
            let before = self.state.taken;
            match self.state.next_action() {
                Action::Wait(_) | Action::Done => break false,
                Action::Fill { .. } | Action::Copy { .. } | Action::Receive { .. }
                    if budget == 0 =>
                {
                    break true;
                }
                Action::Fill { max } => self.fill(tools, source, max.min(budget)),
                Action::Copy { max } => self.copy(tools, [source, sink], max.min(budget)),
                Action::Receive { max } => self.receive(tools, source, max.min(budget)),
                step => self.perform(tools, sink, step),
            }
            budget -= (self.state.taken - before) as usize;
        };
        self.release_empty_pipes(&mut tools.pool);
        is_paused
    }

    /// A step that takes nothing from the source.
    fn perform(&mut self, tools: &mut Resources<K>, sink: &K::Socket, step: Action) {
        match step {
            Action::SendPrefix { more } => self.send_prefix(&mut tools.kernel, sink, more),
            Action::Drain { max } => {
                let result = tools.kernel.splice_out(&self.pipe_pair().main, sink, max);
                self.handle_sink_result(result, DirectionState::note_drained);
            }
            Action::Tee { max } => {
                let (main, kept) = self.pipe_pair().both();
                let result = tools.kernel.tee(main, kept, max);
                self.handle_copy_result(result, DirectionState::note_teed);
            }
            Action::MoveToCopy { max } => {
                let (main, kept) = self.pipe_pair().both();
                let result = tools.kernel.splice_between(main, kept, max);
                self.handle_copy_result(result, DirectionState::note_moved_to_copy);
            }
            Action::Discard { max } => {
                let max = max.min(tools.scratch.len());
                read_exact_from_pipe(
                    &mut tools.kernel,
                    &self.pipe_pair().main,
                    &mut tools.scratch[..max],
                );
                self.state.note_discarded(max);
            }
            Action::ShutdownWrite => match tools.kernel.shutdown_write(sink) {
                Ok(()) => self.state.note_shutdown(),
                Err(error) => self.state.note_sink_failed(error),
            },
            Action::Fill { .. } | Action::Copy { .. } | Action::Receive { .. } => {
                unreachable!("it takes from the source")
            }
            Action::Wait(_) | Action::Done => unreachable!("nothing is to be done"),
        }
    }

    fn send_prefix(&mut self, kernel: &mut K, sink: &K::Socket, more: bool) {
        let from = self.prefix.len() - self.state.prefix;
        let result = kernel.send(sink, &self.prefix[from..], more);
        self.handle_sink_result(result, DirectionState::note_prefix_sent);
        if self.state.prefix == 0 {
            self.prefix = Vec::new();
        }
    }

    fn pipe_pair(&self) -> &PipePair<K::Pipe> {
        self.pipes.as_ref().expect("bytes are in the pipes")
    }

    fn handle_sink_result(
        &mut self,
        result: Result<usize, Errno>,
        took: fn(&mut DirectionState, usize),
    ) {
        match result {
            Ok(0) | Err(Errno::AGAIN) => self.state.note_sink_full(),
            Ok(count) => took(&mut self.state, count),
            Err(error) => self.handle_sink_error(error),
        }
    }

    fn handle_sink_error(&mut self, error: Errno) {
        match is_shortage(error) {
            true => self.state.note_out_of_memory(),
            false => self.state.note_sink_failed(error),
        }
    }

    /// No other error than EAGAIN and a want of memory is possible between two pipes (tee(2),
    /// splice(2)).
    fn handle_copy_result(
        &mut self,
        result: Result<usize, Errno>,
        put: fn(&mut DirectionState, usize),
    ) {
        match result {
            Err(error) if is_shortage(error) => self.state.note_out_of_memory(),
            Ok(0) | Err(_) => self.state.note_copy_full(),
            Ok(count) => put(&mut self.state, count),
        }
    }

    fn fill(&mut self, tools: &mut Resources<K>, source: &K::Socket, max: usize) {
        if self.pipes.is_none() {
            self.pipes = PipePair::take(tools, self.state.has_copy());
        }
        let Some(held) = &self.pipes else { return self.state.set_use_pipe(false) };
        match tools.kernel.splice_in(source, &held.main, max) {
            Ok(0) => self.check_stream_end(tools, source),
            Ok(count) => self.state.note_filled(count),
            Err(Errno::AGAIN) if std::mem::take(&mut self.is_urgent) => {
                self.check_stream_end(tools, source)
            }
            Err(error) => self.handle_source_error(error),
        }
    }

    /// Urgent data ends a splice as the end of the stream does, where that comes behind it, and else
    /// as if nothing had come (`tcp_splice_read`, Linux 6.18). A receive tells these apart, and gets
    /// past the urgent data.
    fn check_stream_end(&mut self, tools: &mut Resources<K>, source: &K::Socket) {
        match tools.kernel.peek(source, &mut tools.scratch[..1]) {
            Ok(0) => self.state.note_source_end(),
            Ok(_) => self.state.set_use_pipe(false),
            Err(error) => {
                // After a pause there is still to be looked.
                self.is_urgent |= is_shortage(error);
                self.handle_source_error(error);
            }
        }
    }

    fn handle_source_error(&mut self, error: Errno) {
        match error {
            Errno::AGAIN => self.state.note_source_empty(),
            error if is_shortage(error) => self.state.note_out_of_memory(),
            error => self.state.note_source_failed(error),
        }
    }

    /// Without a pipe nothing may be taken that the sink has not: what was looked at and sent is
    /// taken off the source afterwards.
    fn copy(&mut self, tools: &mut Resources<K>, [source, sink]: [&K::Socket; 2], max: usize) {
        let max = max.min(tools.scratch.len());
        let count = match tools.kernel.peek(source, &mut tools.scratch[..max]) {
            Ok(0) => return self.state.note_source_end(),
            Ok(count) => count,
            Err(error) => return self.handle_source_error(error),
        };
        let sent = match tools.kernel.send(sink, &tools.scratch[..count], false) {
            Ok(0) | Err(Errno::AGAIN) => return self.state.note_sink_full(),
            Ok(sent) => sent,
            Err(error) => return self.handle_sink_error(error),
        };
        if self.state.has_copy() {
            self.store_copied(tools, sent);
        }
        self.state.note_sent(sent);
        let mut left = sent;
        while left > 0 {
            match tools.kernel.discard(source, &mut tools.scratch[..left]) {
                Ok(0) => return self.state.note_source_end(),
                Ok(count) => left -= count,
                Err(error) => return self.state.note_source_failed(error),
            }
        }
    }

    fn receive(&mut self, tools: &mut Resources<K>, source: &K::Socket, max: usize) {
        let max = max.min(tools.scratch.len());
        match tools.kernel.receive(source, &mut tools.scratch[..max]) {
            Ok(0) => self.state.note_source_end(),
            Ok(count) => {
                self.store_copied(tools, count);
                self.state.note_received(count);
            }
            Err(error) => self.handle_source_error(error),
        }
    }

    /// Keeps the first `count` bytes of the scratch memory, behind those that a pipe has.
    fn store_copied(&mut self, tools: &mut Resources<K>, count: usize) {
        if let Some(PipePair { kept: Some(kept), .. }) = &self.pipes {
            let mut older = vec![0; self.state.copied - self.kept_in_memory.len()];
            read_exact_from_pipe(&mut tools.kernel, kept, &mut older);
            self.kept_in_memory.extend(older);
        }
        self.kept_in_memory.extend(&tools.scratch[..count]);
    }

    /// Reads kept bytes for the application, and gives how many.
    pub(crate) fn read(&mut self, tools: &mut Resources<K>, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.state.readable_bytes());
        let older = count.min(self.kept_in_memory.len());
        for (place, byte) in bytes.iter_mut().zip(self.kept_in_memory.drain(..older)) {
            *place = byte;
        }
        if count > older {
            let (_, kept) = self.pipe_pair().both();
            read_exact_from_pipe(&mut tools.kernel, kept, &mut bytes[older..count]);
        }
        self.state.note_read(count);
        self.release_empty_pipes(&mut tools.pool);
        count
    }

    fn release_empty_pipes(&mut self, pool: &mut PipePool<K::Pipe>) {
        let is_empty =
            self.state.piped() == (0, 0) && self.state.copied == self.kept_in_memory.len();
        if let Some(held) = self.pipes.take_if(|_| is_empty) {
            pool.release(held.main);
            held.kept.into_iter().for_each(|kept| pool.release(kept));
        }
    }

    /// Ends the direction: writes on what the sink takes at once, and hands out the rest. The pipes
    /// go back empty.
    pub(crate) fn release(mut self, tools: &mut Resources<K>, sink: &K::Socket) -> DirectionResult {
        self.state.stop();
        while let step @ (Action::SendPrefix { .. } | Action::Drain { .. } | Action::Tee { .. }) =
            self.state.next_action()
        {
            self.perform(tools, sink, step);
        }
        let first_unsent = self.state.prefix;
        let mut unsent = self.prefix.split_off(self.prefix.len() - first_unsent);
        let mut copy = Vec::from(std::mem::take(&mut self.kept_in_memory));
        let (piped, ahead) = self.state.piped();
        if let Some(held) = self.pipes.take() {
            if let Some(pipe) = held.kept {
                append_from_pipe(&mut tools.kernel, &pipe, &mut copy, self.state.copied);
                tools.pool.release(pipe);
            }
            append_from_pipe(&mut tools.kernel, &held.main, &mut unsent, first_unsent + piped);
            tools.pool.release(held.main);
        }
        if self.state.has_copy() && self.state.is_sink_failed() {
            copy.extend(unsent.drain(first_unsent..).skip(ahead));
        } else {
            copy.truncate(copy.len() - ahead);
        }
        DirectionResult {
            forwarded: self.state.forwarded,
            unsent,
            prefix_unsent: first_unsent,
            kept: copy,
        }
    }
}

impl<P> PipePair<P> {
    /// One pipe or, to keep a copy, two; none if there are not enough.
    fn take<K: SystemCalls<Pipe = P>>(tools: &mut Resources<K>, is_kept: bool) -> Option<Self> {
        let main = tools.pool.acquire(|| tools.kernel.pipe())?;
        if !is_kept {
            return Some(Self { main, kept: None });
        }
        let Some(kept) = tools.pool.acquire(|| tools.kernel.pipe()) else {
            tools.pool.release(main);
            return None;
        };
        Some(Self { main, kept: Some(kept) })
    }

    fn both(&self) -> (&P, &P) {
        (&self.main, self.kept.as_ref().expect("a copy is kept in a pipe of its own"))
    }
}

/// Fills `bytes` from a pipe, which has so many.
fn read_exact_from_pipe<K: SystemCalls>(kernel: &mut K, pipe: &K::Pipe, bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match kernel.read_pipe(pipe, &mut bytes[filled..]) {
            Ok(count) if count > 0 => filled += count,
            other => panic!("a pipe gives what was put into it: {other:?}"),
        }
    }
}

/// Reads from a pipe until `bytes` has `length`.
fn append_from_pipe<K: SystemCalls>(
    kernel: &mut K,
    pipe: &K::Pipe,
    bytes: &mut Vec<u8>,
    length: usize,
) {
    let from = bytes.len();
    bytes.resize(length, 0);
    read_exact_from_pipe(kernel, pipe, &mut bytes[from..]);
}

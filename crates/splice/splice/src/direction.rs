//! Moves the bytes of one direction: performs the actions of its [`DirectionState`] and records
//! their results there.

use std::collections::VecDeque;

use millrace_sys::Errno;

use crate::direction_state::{Action, DirectionState};
use crate::kernel::{SystemCalls, is_shortage};
use crate::limits::PIPE_BYTES;
use crate::pool::PipePool;
use crate::request::DirectionResult;

/// The resources that all transfers of a splicer share.
pub(crate) struct Resources<K: SystemCalls> {
    pub(crate) kernel: K,
    pub(crate) pool: PipePool<K::Pipe>,
    /// A buffer for copying. Its content is used within one call only.
    pub(crate) scratch: Box<[u8]>,
}

/// One direction of a transfer: its state, and the bytes in flight.
pub(crate) struct Direction<K: SystemCalls> {
    pub(crate) state: DirectionState,
    /// The prefix. Its last `state.prefix` bytes are not sent yet.
    prefix: Vec<u8>,
    /// Held only while bytes are in them.
    pipes: Option<PipePair<K::Pipe>>,
    /// Kept payload that was copied without a pipe, and the older payload that was read from the
    /// pipe before. It is older than the payload that is now in a pipe.
    kept_in_memory: VecDeque<u8>,
    /// The source reported urgent data since the last check for it.
    is_urgent: bool,
}

/// The pipes of a direction.
struct PipePair<P> {
    /// From the source to the sink; has `state.piped()` bytes.
    main: P,
    /// With KeepCopy: the payload for the application.
    kept: Option<P>,
}

impl<K: SystemCalls> Direction<K> {
    pub(crate) fn new(state: DirectionState, first: Vec<u8>) -> Self {
        assert_eq!(state.prefix, first.len(), "the state counts the prefix");
        Self {
            state,
            prefix: first,
            pipes: None,
            kept_in_memory: VecDeque::new(),
            is_urgent: false,
        }
    }

    /// Records that the source may have bytes, and whether urgent data is among them.
    pub(crate) fn note_source_ready(&mut self, is_urgent: bool) {
        self.is_urgent |= is_urgent;
        self.state.note_source_ready();
    }

    /// Moves bytes from the source to the sink. Returns `false` if it has to wait or has ended,
    /// `true` if it took [`PIPE_BYTES`] from the source and can continue.
    pub(crate) fn run(
        &mut self,
        resources: &mut Resources<K>,
        [source, sink]: [&K::Socket; 2],
    ) -> bool {
        let mut budget = PIPE_BYTES;
        let has_more = loop {
            let before = self.state.taken;
            match self.state.next_action() {
                Action::Wait(_) | Action::Done => break false,
                Action::Fill { .. } | Action::Copy { .. } | Action::Receive { .. }
                    if budget == 0 =>
                {
                    break true;
                }
                Action::Fill { max } => self.fill(resources, source, max.min(budget)),
                Action::Copy { max } => self.copy(resources, [source, sink], max.min(budget)),
                Action::Receive { max } => self.receive(resources, source, max.min(budget)),
                action => self.perform(resources, sink, action),
            }
            budget -= (self.state.taken - before) as usize;
        };
        self.release_empty_pipes(&mut resources.pool);
        has_more
    }

    /// Performs an action that takes no bytes from the source.
    fn perform(&mut self, resources: &mut Resources<K>, sink: &K::Socket, action: Action) {
        match action {
            Action::SendPrefix { more } => self.send_prefix(&mut resources.kernel, sink, more),
            Action::Drain { max } => {
                let result = resources.kernel.splice_out(&self.pipe_pair().main, sink, max);
                self.handle_sink_result(result, DirectionState::note_drained);
            }
            Action::Tee { max } => {
                let (main, kept) = self.pipe_pair().both();
                let result = resources.kernel.tee(main, kept, max);
                self.handle_copy_result(result, DirectionState::note_teed);
            }
            Action::MoveToCopy { max } => {
                let (main, kept) = self.pipe_pair().both();
                let result = resources.kernel.splice_between(main, kept, max);
                self.handle_copy_result(result, DirectionState::note_moved_to_copy);
            }
            Action::Discard { max } => {
                let max = max.min(resources.scratch.len());
                read_exact_from_pipe(
                    &mut resources.kernel,
                    &self.pipe_pair().main,
                    &mut resources.scratch[..max],
                );
                self.state.note_discarded(max);
            }
            Action::ShutdownWrite => match resources.kernel.shutdown_write(sink) {
                Ok(()) => self.state.note_shutdown(),
                Err(error) => self.state.note_sink_failed(error),
            },
            Action::Fill { .. } | Action::Copy { .. } | Action::Receive { .. } => {
                unreachable!("the caller handles these actions")
            }
            Action::Wait(_) | Action::Done => unreachable!("the caller handles these actions"),
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

    /// Handles the result of a call between two pipes. Only EAGAIN and lack of memory are possible
    /// (tee(2), splice(2)).
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

    fn fill(&mut self, resources: &mut Resources<K>, source: &K::Socket, max: usize) {
        if self.pipes.is_none() {
            self.pipes = PipePair::take(resources, self.state.has_copy());
        }
        let Some(held) = &self.pipes else { return self.state.set_use_pipe(false) };
        match resources.kernel.splice_in(source, &held.main, max) {
            Ok(0) => self.check_stream_end(resources, source),
            Ok(count) => self.state.note_filled(count),
            Err(Errno::AGAIN) if std::mem::take(&mut self.is_urgent) => {
                self.check_stream_end(resources, source)
            }
            Err(error) => self.handle_source_error(error),
        }
    }

    /// Finds out why a splice got no bytes. At urgent data, splice(2) reports the end of the stream
    /// if the stream ends behind it, and otherwise that no bytes have arrived (`tcp_splice_read`,
    /// Linux 6.18). A receive distinguishes these cases and reads past the urgent data.
    fn check_stream_end(&mut self, resources: &mut Resources<K>, source: &K::Socket) {
        match resources.kernel.peek(source, &mut resources.scratch[..1]) {
            Ok(0) => self.state.note_source_end(),
            Ok(_) => self.state.set_use_pipe(false),
            Err(error) => {
                // The check has to be repeated after the pause.
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

    /// Copies bytes without a pipe. Bytes may leave the source only after they were sent, so they
    /// are peeked, sent, and then discarded from the source.
    fn copy(&mut self, resources: &mut Resources<K>, [source, sink]: [&K::Socket; 2], max: usize) {
        let max = max.min(resources.scratch.len());
        let count = match resources.kernel.peek(source, &mut resources.scratch[..max]) {
            Ok(0) => return self.state.note_source_end(),
            Ok(count) => count,
            Err(error) => return self.handle_source_error(error),
        };
        let sent = match resources.kernel.send(sink, &resources.scratch[..count], false) {
            Ok(0) | Err(Errno::AGAIN) => return self.state.note_sink_full(),
            Ok(sent) => sent,
            Err(error) => return self.handle_sink_error(error),
        };
        if self.state.has_copy() {
            self.store_copied(resources, sent);
        }
        self.state.note_sent(sent);
        let mut left = sent;
        while left > 0 {
            match resources.kernel.discard(source, &mut resources.scratch[..left]) {
                Ok(0) => return self.state.note_source_end(),
                Ok(count) => left -= count,
                Err(error) => return self.state.note_source_failed(error),
            }
        }
    }

    fn receive(&mut self, resources: &mut Resources<K>, source: &K::Socket, max: usize) {
        let max = max.min(resources.scratch.len());
        match resources.kernel.receive(source, &mut resources.scratch[..max]) {
            Ok(0) => self.state.note_source_end(),
            Ok(count) => {
                self.store_copied(resources, count);
                self.state.note_received(count);
            }
            Err(error) => self.handle_source_error(error),
        }
    }

    /// Keeps the first `count` bytes of the scratch buffer, after the bytes of the pipe.
    fn store_copied(&mut self, resources: &mut Resources<K>, count: usize) {
        if let Some(PipePair { kept: Some(kept), .. }) = &self.pipes {
            let mut older = vec![0; self.state.copied - self.kept_in_memory.len()];
            read_exact_from_pipe(&mut resources.kernel, kept, &mut older);
            self.kept_in_memory.extend(older);
        }
        self.kept_in_memory.extend(&resources.scratch[..count]);
    }

    /// Reads kept payload for the application and returns its length.
    pub(crate) fn read(&mut self, resources: &mut Resources<K>, bytes: &mut [u8]) -> usize {
        let count = bytes.len().min(self.state.readable_bytes());
        let older = count.min(self.kept_in_memory.len());
        for (place, byte) in bytes.iter_mut().zip(self.kept_in_memory.drain(..older)) {
            *place = byte;
        }
        if count > older {
            let (_, kept) = self.pipe_pair().both();
            read_exact_from_pipe(&mut resources.kernel, kept, &mut bytes[older..count]);
        }
        self.state.note_read(count);
        self.release_empty_pipes(&mut resources.pool);
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

    /// Ends the direction: sends the bytes that the sink accepts without waiting, and returns the
    /// rest. The pipes return to the pool empty.
    pub(crate) fn release(
        mut self,
        resources: &mut Resources<K>,
        sink: &K::Socket,
    ) -> DirectionResult {
        self.state.stop();
        while let action @ (Action::SendPrefix { .. } | Action::Drain { .. } | Action::Tee { .. }) =
            self.state.next_action()
        {
            self.perform(resources, sink, action);
        }
        let first_unsent = self.state.prefix;
        let mut unsent = self.prefix.split_off(self.prefix.len() - first_unsent);
        let mut copy = Vec::from(std::mem::take(&mut self.kept_in_memory));
        let (piped, ahead) = self.state.piped();
        if let Some(held) = self.pipes.take() {
            if let Some(pipe) = held.kept {
                append_from_pipe(&mut resources.kernel, &pipe, &mut copy, self.state.copied);
                resources.pool.release(pipe);
            }
            append_from_pipe(&mut resources.kernel, &held.main, &mut unsent, first_unsent + piped);
            resources.pool.release(held.main);
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
    /// Acquires one pipe, or two to keep a copy; `None` if there are not enough.
    fn take<K: SystemCalls<Pipe = P>>(resources: &mut Resources<K>, is_kept: bool) -> Option<Self> {
        let main = resources.pool.acquire(|| resources.kernel.pipe())?;
        if !is_kept {
            return Some(Self { main, kept: None });
        }
        let Some(kept) = resources.pool.acquire(|| resources.kernel.pipe()) else {
            resources.pool.release(main);
            return None;
        };
        Some(Self { main, kept: Some(kept) })
    }

    fn both(&self) -> (&P, &P) {
        (&self.main, self.kept.as_ref().expect("KeepCopy has a pipe of its own"))
    }
}

/// Fills `bytes` from a pipe, which has at least as many.
fn read_exact_from_pipe<K: SystemCalls>(kernel: &mut K, pipe: &K::Pipe, bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match kernel.read_pipe(pipe, &mut bytes[filled..]) {
            Ok(count) if count > 0 => filled += count,
            other => panic!("the pipe has fewer bytes than it was given: {other:?}"),
        }
    }
}

/// Reads from a pipe until `bytes` has the length `length`.
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

//! Operations of engines: queueing them, detecting that they are ready, and trying them.
//!
//! Readiness never completes an operation by itself. It causes an attempt, after some time and in
//! any order between descriptors. The attempt is made when the worker requests its next completion,
//! which is when a readiness engine calls the kernel.
//!
//! The way of an attempt through the queues of the kernel and of its engine:
//!
//! ```text
//!   submit, notify ──> events ──> `ready` ──> `batch` ──> try_operation ──> completion
//!        └─ submit, if ready already ───────────^  │            ^
//!                       a receive without budget   └> `parked` ─┘
//! ```

use std::time::Duration;

use millrace_engine::{Address, Buffer, CompletionEvent, Error, Fd, HeldBytes, Token};

use crate::descriptor::{
    AfterSend, Descriptor, Object, Operation, OperationDirection, OperationKind, Owner,
};
use crate::kernel::{Kernel, KernelEvent, OperationAttempt};

impl Kernel {
    /// Queues an operation of `engine`.
    ///
    /// # Panics
    /// Panics if an operation of the descriptor is outstanding in that direction.
    pub(crate) fn submit(
        &mut self,
        engine: usize,
        number: u32,
        direction: OperationDirection,
        kind: OperationKind,
        token: Token,
    ) {
        self.operations += 1;
        let serial = self.operations;
        let descriptor = self.owned_descriptor(engine, number);
        let is_announced =
            descriptor.receive.as_ref().is_some_and(|receive| receive.attempt_pending);
        let behind_receive = direction == OperationDirection::Send && is_announced;
        let slot = descriptor.operation(direction);
        if let Some(outstanding) = slot {
            panic!(
                "descriptor {number}: {kind:?} for {token:?} is queued while {outstanding:?} is \
                 outstanding in the same direction"
            );
        }
        *slot = Some(Operation {
            token,
            kind,
            serial,
            attempt_pending: false,
            submitted_after_receive: behind_receive,
        });
        self.engines[engine].planted.begin(token);
        self.engines[engine].busy = true;
        let is_poll = |operation: &Operation| matches!(operation.kind, OperationKind::PollReadable);
        let is_poll = self.descriptors[&number].receive.as_ref().is_some_and(is_poll);
        if !self.is_ready(number, direction) {
            if is_poll
                && direction == OperationDirection::Receive
                && self.draw_spurious("spurious readable")
            {
                let attempt = self.mark_attempt_pending(number, direction);
                let delay = self.jitter();
                self.schedule_after(delay, KernelEvent::Attempt(attempt));
            }
            return;
        }
        let attempt = self.mark_attempt_pending(number, direction);
        if self.random.chance(self.plan.wait) {
            let delay = self.jitter();
            self.schedule_after(delay, KernelEvent::Attempt(attempt));
        } else {
            self.engines[engine].batch.push_back(attempt);
        }
    }

    /// If the descriptor of `receive` has an outstanding send whose bytes the kernel had taken
    /// before the receive became ready, returns the attempt that completes this send.
    pub(crate) fn send_completed_before(
        &self,
        receive: OperationAttempt,
    ) -> Option<OperationAttempt> {
        let descriptor = self.descriptors.get(&receive.descriptor)?;
        let send = descriptor.send.as_ref()?;
        let is_taken = matches!(
            send.kind,
            OperationKind::Send { rest: None, failed: None, then: AfterSend::Nothing }
        );
        let attempt = OperationAttempt {
            direction: OperationDirection::Send,
            serial: send.serial,
            ..receive
        };
        (is_taken && !send.submitted_after_receive).then_some(attempt)
    }

    /// Handles a change of a descriptor: schedules an attempt if the outstanding operation is
    /// ready.
    pub(crate) fn notify(&mut self, number: u32, direction: OperationDirection) {
        let descriptor = self.descriptor(number);
        if descriptor.owner == Owner::Actor {
            self.changed_actor_sockets.insert(number);
            return;
        }
        let Some(operation) = descriptor.operation(direction) else {
            return;
        };
        let accepts = matches!(operation.kind, OperationKind::Accept);
        if operation.attempt_pending || !self.is_ready(number, direction) {
            return;
        }
        let attempt = self.mark_attempt_pending(number, direction);
        // Connections that arrive during this delay are announced together.
        let burst = if accepts { self.random.between(0, self.plan.burst_ns) } else { 0 };
        let delay = self.jitter() + Duration::from_nanos(burst);
        self.schedule_after(delay, KernelEvent::Attempt(attempt));
    }

    fn mark_attempt_pending(
        &mut self,
        number: u32,
        direction: OperationDirection,
    ) -> OperationAttempt {
        let operation = self.descriptor(number).operation(direction).as_mut();
        let operation = operation.expect("only an outstanding operation is tried");
        operation.attempt_pending = true;
        OperationAttempt { descriptor: number, direction, serial: operation.serial }
    }

    /// Passes an attempt to its engine and schedules a turn.
    pub(crate) fn deliver_attempt(&mut self, attempt: OperationAttempt) {
        let owner = self.descriptors.get(&attempt.descriptor).map(|descriptor| descriptor.owner);
        if let Some(Owner::Engine(engine)) = owner {
            self.engines[engine].ready.push(attempt);
            let when = self.now + self.jitter();
            self.schedule_turn(engine, when);
        }
    }

    /// Returns whether the outstanding operation would complete now, or at least move a byte.
    fn is_ready(&self, number: u32, direction: OperationDirection) -> bool {
        let descriptor = &self.descriptors[&number];
        let operation = match direction {
            OperationDirection::Receive => &descriptor.receive,
            OperationDirection::Send => &descriptor.send,
        };
        let Some(operation) = operation else {
            return false;
        };
        match (&operation.kind, &descriptor.object) {
            (OperationKind::Accept, Object::Listener { backlog, .. }) => !backlog.is_empty(),
            (OperationKind::Receive { .. }, Object::Datagram { inbox, error, .. }) => {
                !inbox.is_empty() || error.is_some()
            }
            (
                OperationKind::Receive { .. }
                | OperationKind::SpliceIn { .. }
                | OperationKind::PollReadable,
                Object::Stream { connection, side, .. },
            ) => self.connections[*connection].is_readable(*side),
            (OperationKind::Connect, Object::Stream { connection, .. }) => {
                self.connections[*connection].established
            }
            (OperationKind::Connect, Object::Datagram { .. }) => true,
            (OperationKind::Send { rest, failed, then }, object) => match object {
                Object::Stream { connection, side, .. } if failed.is_none() => {
                    let is_taken = rest.is_none() && matches!(then, AfterSend::Nothing);
                    is_taken || self.is_writable(*connection, *side)
                }
                _ => true,
            },
            (OperationKind::Partner { .. }, _) => false,
            (kind, object) => panic!("descriptor {number}: {kind:?} on {object:?}"),
        }
    }

    /// Returns the operation of an attempt, unless it no longer exists.
    pub(crate) fn attempted_operation(
        &mut self,
        attempt: OperationAttempt,
    ) -> Option<&mut Operation> {
        let descriptor = self.descriptors.get_mut(&attempt.descriptor)?;
        let operation = descriptor.operation(attempt.direction).as_mut()?;
        (operation.serial == attempt.serial).then_some(operation)
    }

    /// Tries an operation of `engine`. Returns `None` if it no longer exists or has to keep
    /// waiting.
    pub(crate) fn try_operation(
        &mut self,
        engine: usize,
        attempt: OperationAttempt,
    ) -> Option<(Token, CompletionEvent)> {
        let number = attempt.descriptor;
        let operation = self.attempted_operation(attempt)?;
        let token = operation.token;
        operation.attempt_pending = false;
        let is_poll = matches!(operation.kind, OperationKind::PollReadable);
        if !is_poll && !self.is_ready(number, attempt.direction) {
            return None;
        }
        let taken = self.descriptor(number).operation(attempt.direction).take();
        let mut operation = taken.expect("the operation was just found");
        let event = match &mut operation.kind {
            OperationKind::Accept => return self.try_accept(engine, number, operation),
            OperationKind::Receive { max } => {
                CompletionEvent::Received(self.try_receive(engine, number, *max))
            }
            OperationKind::SpliceIn { pipe, max } => {
                CompletionEvent::Spliced(self.try_splice_in(number, *pipe, *max))
            }
            OperationKind::Connect => CompletionEvent::Connected(self.connect_outcome(number)),
            OperationKind::Send { rest, failed, then } => {
                match self
                    .try_send(number, rest, *failed)
                    .and_then(|sent| self.continue_send(number, sent, then))
                {
                    Some(event) => event,
                    None => return self.keep_outstanding(number, operation),
                }
            }
            OperationKind::PollReadable => CompletionEvent::Readable,
            OperationKind::Partner { .. } => unreachable!("a partner is never ready"),
        };
        Some((token, event))
    }

    /// Continues a send after its own bytes, whose result is `sent`: sends the bytes of the source,
    /// or splices from the pipe. Returns `None` if some bytes of the source are left, or if the
    /// splice moved nothing.
    fn continue_send(
        &mut self,
        number: u32,
        sent: Result<(), Error>,
        then: &mut AfterSend,
    ) -> Option<CompletionEvent> {
        match (then, sent) {
            (AfterSend::Nothing, _) | (AfterSend::Source { .. }, Err(_)) => {
                Some(CompletionEvent::Sent(sent))
            }
            (AfterSend::Source { source, sent }, Ok(())) => {
                self.try_send_source(number, source.source(), sent).map(CompletionEvent::Sent)
            }
            (AfterSend::Splice { pipe, max }, Ok(())) => {
                self.try_splice_out(number, *pipe, *max).map(CompletionEvent::Spliced)
            }
            (AfterSend::Splice { pipe, .. }, Err(error)) => {
                self.descriptor(*pipe).receive = None;
                Some(CompletionEvent::Spliced(Err(error)))
            }
        }
    }

    /// Keeps an unfinished send or splice outstanding. It may be ready again at once.
    fn keep_outstanding(
        &mut self,
        number: u32,
        operation: Operation,
    ) -> Option<(Token, CompletionEvent)> {
        self.descriptor(number).send = Some(operation);
        self.notify(number, OperationDirection::Send);
        None
    }

    fn try_accept(
        &mut self,
        engine: usize,
        listener: u32,
        operation: Operation,
    ) -> Option<(Token, CompletionEvent)> {
        let token = operation.token;
        if self.draw_descriptor_exhaustion() {
            self.record("no descriptor", listener, 0, Some(token));
            return Some((token, CompletionEvent::Accepted(Err(Error::OutOfDescriptors))));
        }
        if self.draw_memory_shortage() {
            return Some((token, CompletionEvent::Accepted(Err(Error::OutOfMemory))));
        }
        let accepted = self.take_from_backlog(listener, Owner::Engine(engine));
        let (number, peer) = accepted.expect("readiness was just checked");
        self.descriptor(listener).receive = Some(operation);
        self.notify(listener, OperationDirection::Receive);
        Some((token, CompletionEvent::Accepted(Ok((Fd(number), peer)))))
    }

    fn try_receive(&mut self, engine: usize, number: u32, max: usize) -> Result<Buffer, Error> {
        let mut buffer = self.engines[engine].spare_buffers.pop().unwrap_or_default();
        let block = buffer.block_mut();
        let received = match &mut self.descriptor(number).object {
            Object::Datagram { inbox, error, .. } => match error.take() {
                Some(error) => Err(error),
                None => {
                    let bytes = inbox.pop_front().map(|(_, bytes)| bytes).unwrap_or_default();
                    let count = bytes.len().min(max);
                    block[..count].copy_from_slice(&bytes[..count]);
                    Ok(count)
                }
            },
            _ => self.read_into(number, &mut block[..max]),
        };
        // The engine's contract: a failed send consumes the error of the socket, after which the
        // kernel reports only an end of the stream. The receive must still report the reset.
        let send = self.descriptor(number).send.as_ref();
        let received = match (received, send.map(|operation| &operation.kind)) {
            (Ok(0), Some(OperationKind::Send { failed: Some(error), .. }))
                if !error.is_of_file() =>
            {
                Err(Error::Reset)
            }
            (received, _) => received,
        };
        match received {
            Ok(count) => {
                buffer.set_filled(count);
                self.engines[engine].lent += 1;
                Ok(buffer)
            }
            Err(error) => {
                self.engines[engine].spare_buffers.push(buffer);
                Err(error)
            }
        }
    }

    /// Returns whether a stream is readable now. By a random draw, a readable stream may count as
    /// not readable.
    pub(crate) fn draw_readable_now(&mut self, socket: u32) -> bool {
        let (connection, side) = self.stream_of(socket);
        self.connections[connection].is_readable(side) && !self.random.chance(self.plan.wait)
    }

    /// Reads a stream into `memory`.
    pub(crate) fn read_into(&mut self, socket: u32, memory: &mut [u8]) -> Result<usize, Error> {
        let (max, mut at) = (memory.len(), 0);
        let read = self.read(socket, max, &mut |bytes| {
            memory[at..at + bytes.len()].copy_from_slice(bytes);
            at += bytes.len();
        });
        read.unwrap_or(Ok(0))
    }

    /// Duplicates the bytes of one pipe into an empty one. At random, duplicates only a part or
    /// nothing, as with a pipe that has too few free slots.
    pub(crate) fn tee(&mut self, from: u32, into: u32, max: usize) -> usize {
        let (from, into) = (self.pipe_of(from), self.pipe_of(into));
        let left = self.pipes[into].bytes.len();
        assert!(left == 0, "tee into pipe {into} with {left} bytes in it");
        let mut count = self.pipes[from].bytes.len().min(max);
        if count > 0 && self.random.chance(self.plan.wait) {
            count = self.random.below(count as u64) as usize;
        }
        let bytes: Vec<u8> = self.pipes[from].bytes.iter().copied().take(count).collect();
        self.pipes[into].bytes.extend(bytes);
        count
    }

    /// Reads from a pipe into the caller's memory.
    pub(crate) fn read_pipe(&mut self, from: u32, memory: &mut [u8]) -> usize {
        let pipe = self.pipe_of(from);
        let count = self.pipes[pipe].bytes.len().min(memory.len());
        let bytes = self.pipes[pipe].bytes.drain(..count);
        memory.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        count
    }

    /// Fills an empty pipe from a stream.
    pub(crate) fn try_splice_in(
        &mut self,
        socket: u32,
        pipe: u32,
        max: usize,
    ) -> Result<usize, Error> {
        self.descriptor(pipe).send = None;
        let index = self.pipe_of(pipe);
        let room = self.pipes[index].capacity.min(max);
        let mut moved = Vec::new();
        let read = self.read(socket, room, &mut |bytes| moved.extend_from_slice(bytes));
        let count = read.unwrap_or(Ok(0))?;
        self.pipes[index].bytes.extend(moved);
        Ok(count)
    }

    fn try_splice_out(
        &mut self,
        socket: u32,
        pipe: u32,
        max: usize,
    ) -> Option<Result<usize, Error>> {
        let index = self.pipe_of(pipe);
        let bytes: Vec<u8> = self.pipes[index].bytes.iter().copied().take(max).collect();
        let result = match self.write(socket, &bytes) {
            Ok(0) => return None,
            Ok(count) => {
                self.pipes[index].bytes.drain(..count);
                Ok(count)
            }
            Err(error) => Err(error),
        };
        self.descriptor(pipe).receive = None;
        Some(result)
    }

    /// Continues to send held bytes. Returns `None` while some are left and there is no error.
    fn try_send(
        &mut self,
        number: u32,
        rest: &mut Option<HeldBytes>,
        failed: Option<Error>,
    ) -> Option<Result<(), Error>> {
        if let Some(error) = failed {
            return Some(Err(error));
        }
        let Some(held) = rest else {
            return Some(Ok(()));
        };
        match self.write(number, held) {
            Ok(count) => held.consume(count),
            Err(error) => return Some(Err(error)),
        }
        rest.take_if(|held| held.is_empty()).map(|_| Ok(()))
    }

    /// Sends as many bytes of `parts` as the kernel takes at once. Returns the remaining bytes, or
    /// the error.
    ///
    /// # Panics
    /// Panics if a send is outstanding, or the direction was shut down.
    pub(crate) fn begin_send(
        &mut self,
        engine: usize,
        number: u32,
        parts: &[&[u8]],
    ) -> (Option<HeldBytes>, Option<Error>) {
        let outstanding = self.owned_descriptor(engine, number).send.is_some();
        assert!(!outstanding, "send on {number} while a send is outstanding");
        if let Object::Datagram { local, peer, .. } = self.descriptor(number).object {
            let peer = peer.expect("engines only have connected datagram sockets");
            self.send_datagram(local, peer, &parts.concat());
            return (None, None);
        }
        let (index, side) = self.stream_of(number);
        assert!(
            !self.connections[index].sides[side].out.finished,
            "send on descriptor {number} after its shutdown"
        );
        if self.draw_memory_shortage() {
            return (None, Some(Error::OutOfMemory));
        }
        let bytes = parts.concat();
        match self.write(number, &bytes) {
            Ok(count) if count == bytes.len() => (None, None),
            Ok(count) => {
                (Some(HeldBytes::copy(&self.engines[engine].budget, &[&bytes[count..]])), None)
            }
            Err(error) => (None, Some(error)),
        }
    }

    fn connect_outcome(&mut self, number: u32) -> Result<(), Error> {
        match self.descriptor(number).object {
            Object::Stream { outcome, .. } => outcome.expect("readiness was just checked"),
            _ => Ok(()),
        }
    }

    /// Returns the index of the pipe to which a descriptor belongs.
    ///
    /// # Panics
    /// Panics if the descriptor is not a pipe.
    pub(crate) fn pipe_of(&mut self, number: u32) -> usize {
        match self.descriptor(number).object {
            Object::PipeReadEnd(pipe) | Object::PipeWriteEnd(pipe) => pipe,
            _ => panic!("descriptor {number} is no pipe"),
        }
    }

    /// Closes a descriptor, whatever it has outstanding.
    pub(crate) fn close(&mut self, number: u32, abort: bool) {
        let mut descriptor = self.descriptors.remove(&number).unwrap_or_else(|| {
            panic!("close of descriptor {number}, which is closed");
        });
        self.record(if abort { "resets" } else { "closes" }, number, 0, None);
        self.schedule_stale(&descriptor);
        self.release_partners(&mut descriptor);
        match descriptor.object {
            Object::Stream { connection, side, .. } => self.close_side(connection, side, abort),
            Object::Listener { backlog, .. } => {
                for connection in backlog {
                    self.close_side(connection, 1, true);
                }
            }
            Object::PipeWriteEnd(pipe) => self.pipes[pipe].ended = true,
            Object::PipeReadEnd(pipe) => self.pipes[pipe].bytes.clear(),
            Object::Datagram { .. } => {}
        }
    }

    /// Kills the process of all engines: closes their descriptors, and clears their state. The
    /// caller has dropped their workers.
    pub(crate) fn kill_engines(&mut self) {
        let is_of_process = |descriptor: &Descriptor| descriptor.owner != Owner::Actor;
        let open = self.descriptors.iter().filter(|(_, descriptor)| is_of_process(descriptor));
        let open: Vec<u32> = open.map(|(number, _)| *number).collect();
        for number in open {
            self.close(number, false);
        }
        for engine in &mut self.engines {
            engine.lent = 0;
            engine.next_turn = None;
            engine.deadline = None;
            engine.ready.clear();
            engine.batch.clear();
            engine.parked.clear();
            engine.stale.clear();
        }
        self.trace_note("killed", "all workers");
        self.count_trouble("killed process");
    }

    /// Ends the splice of which a closed descriptor was one side.
    fn release_partners(&mut self, descriptor: &mut Descriptor) {
        for operation in [descriptor.receive.take(), descriptor.send.take()].into_iter().flatten() {
            match operation.kind {
                OperationKind::SpliceIn { pipe, .. } => self.descriptor(pipe).send = None,
                OperationKind::Send { then: AfterSend::Splice { pipe, .. }, .. } => {
                    self.descriptor(pipe).receive = None;
                }
                OperationKind::Partner { socket } => match descriptor.object {
                    Object::PipeWriteEnd(_) => self.descriptor(socket).receive = None,
                    _ => self.descriptor(socket).send = None,
                },
                _ => {}
            }
        }
    }

    /// Returns the address at which a listener listens.
    pub(crate) fn listener_address(&mut self, number: u32) -> Address {
        match &self.descriptor(number).object {
            Object::Listener { address, .. } => address.clone(),
            _ => panic!("descriptor {number} is no listener"),
        }
    }
}

//! The simulated kernel as a worker sees it. This [`Engine`] also checks that its caller keeps the
//! contract, and panics with the reason if it does not.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use millrace_engine::{
    Address, Budget, Buffer, Completion, CompletionEvent, Engine, Error, Fd, FileRead, Instant,
    SendSource, SharedBytes, ShutdownHow, Token, TokenKind, Wake,
};

use crate::descriptor::{AfterSend, Object, OperationDirection, OperationKind, Owner};
use crate::fault::EngineFault;
use crate::kernel::{Kernel, Pipe};
use crate::random::SeededRandom;

/// The engine of one worker in a [`World`](crate::World).
#[derive(Debug)]
pub struct SimEngine {
    pub(crate) kernel: Rc<RefCell<Kernel>>,
    pub(crate) index: usize,
    pub(crate) budget: Budget,
    pub(crate) wake: Arc<AtomicBool>,
    pub(crate) random: SeededRandom,
}

/// A descriptor on its way from one engine of a world to another.
#[derive(Debug)]
pub struct SimDetached(pub(crate) u32);

/// The waker of a [`SimEngine`].
#[derive(Clone, Debug)]
pub struct SimWaker(Arc<AtomicBool>);

impl Wake for SimWaker {
    fn wake(&self) {
        // Release pairs with the Acquire swap in `SimEngine::next_kernel_completion`: the woken
        // worker sees the messages that were put into a mailbox before the wake.
        self.0.store(true, Ordering::Release);
    }
}

/// The time of day at a world's zero, in 2026.
pub(crate) const TIME_OF_DAY_AT_ZERO: Duration = Duration::from_secs(1_780_000_000);

/// The token of [`CompletionEvent::Woken`].
const WAKE_TOKEN: Token = Token::new(TokenKind::Worker, 0, 0);

impl SimEngine {
    /// Returns the address of a listener that this engine adopted, with the port that was chosen.
    pub fn listener_address(&self, listener: &Fd) -> Address {
        self.kernel.borrow_mut().listener_address(listener.0)
    }

    /// Checks the arguments of a splice from a pipe into a stream, and reserves the pipe's end.
    fn begin_splice_out(
        &self,
        kernel: &mut Kernel,
        from: &Fd,
        into: &Fd,
        max: usize,
        token: Token,
    ) {
        let pipe = kernel.pipe_of(from.0);
        assert!(!kernel.pipes[pipe].bytes.is_empty(), "splice from pipe {}, empty", from.0);
        let (connection, side) = kernel.stream_of(into.0);
        let finished = kernel.connections[connection].sides[side].out.finished;
        assert!(!finished, "splice into descriptor {} after its shutdown", into.0);
        let partner = OperationKind::Partner { socket: into.0 };
        kernel.submit(self.index, from.0, OperationDirection::Receive, partner, token);
        kernel.engines[self.index].planted.begin_splice(from.0, max, token);
    }

    /// Sends `parts`, and then the bytes of `source`.
    fn send_from(&self, fd: &Fd, parts: &[&[u8]], source: SendSource<'_>, token: Token) {
        let kernel = &mut *self.kernel.borrow_mut();
        let kind = kernel.begin_send_source(self.index, fd.0, parts, source);
        kernel.submit(self.index, fd.0, OperationDirection::Send, kind, token);
    }

    /// Closes a descriptor, with a reset if `abort` is set.
    fn close_descriptor(&self, fd: &Fd, abort: bool) {
        let kernel = &mut *self.kernel.borrow_mut();
        kernel.owned_descriptor(self.index, fd.0);
        kernel.note_close(self.index, fd.0);
        kernel.engines[self.index].busy = true;
        kernel.close(fd.0, abort);
    }

    /// Returns the next completion of this turn: a wake, a stale completion, or an attempt that
    /// completed its operation.
    fn next_kernel_completion(&self, kernel: &mut Kernel) -> Option<Completion> {
        // Acquire pairs with the Release store in `SimWaker::wake`.
        if self.wake.swap(false, Ordering::Acquire) {
            kernel.engines[self.index].wake_noticed = false;
            return Some(Completion { token: WAKE_TOKEN, event: CompletionEvent::Woken });
        }
        if std::mem::take(&mut kernel.engines[self.index].spurious_wake) {
            return Some(Completion { token: WAKE_TOKEN, event: CompletionEvent::Woken });
        }
        if let Some((token, event)) = kernel.next_stale(self.index) {
            kernel.trace_note("stale", &format!("{token:?} {event:?}"));
            return Some(Completion { token, event });
        }
        loop {
            let state = &mut kernel.engines[self.index];
            let exhausted = self.budget.is_exhausted();
            let parked = if exhausted { None } else { state.parked.pop_front() };
            let attempt = parked.or_else(|| state.batch.pop_front())?;
            let receives = kernel
                .attempted_operation(attempt)
                .is_some_and(|operation| matches!(operation.kind, OperationKind::Receive { .. }));
            if exhausted && receives {
                kernel.record("parked", attempt.descriptor, 0, None);
                kernel.engines[self.index].parked.push_back(attempt);
                continue;
            }
            // A send that was complete before this receive became ready is reported first.
            let attempt = match kernel.send_completed_before(attempt).filter(|_| receives) {
                Some(send) => {
                    kernel.engines[self.index].batch.push_front(attempt);
                    send
                }
                None => attempt,
            };
            if let Some((token, event)) = kernel.try_operation(self.index, attempt) {
                let (what, count) = describe(&event);
                kernel.record(what, attempt.descriptor, count, Some(token));
                return Some(Completion { token, event });
            }
        }
    }
}

impl Engine for SimEngine {
    type DetachedFd = SimDetached;
    type Waker = SimWaker;

    fn now(&self) -> Instant {
        self.kernel.borrow().engines[self.index].now
    }

    /// Virtual time does not advance within a turn.
    fn read_clock(&self) -> Instant {
        self.now()
    }

    fn time_of_day(&self) -> Duration {
        TIME_OF_DAY_AT_ZERO + self.now().since(Instant::default())
    }

    fn random(&mut self) -> u64 {
        self.random.next_u64()
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn waker(&self) -> SimWaker {
        let is_lost = self.kernel.borrow().engines[self.index].planted.has(EngineFault::WakeLost);
        SimWaker(if is_lost { Arc::default() } else { self.wake.clone() })
    }

    /// Never waits. The world calls the worker again when there is an event, or at `deadline`.
    ///
    /// # Panics
    /// Panics if buffers of the last turn were not recycled.
    fn submit_and_wait(&mut self, deadline: Option<Instant>) {
        let kernel = &mut *self.kernel.borrow_mut();
        let now = kernel.now;
        let state = &mut kernel.engines[self.index];
        assert!(state.lent == 0, "{} buffers were not recycled before the turn ended", state.lent);
        state.now = now;
        state.deadline = deadline;
        state.completions_returned = 0;
        state.busy = false;
        let mut ready = std::mem::take(&mut state.ready);
        kernel.engines[self.index].spurious_wake = kernel.draw_spurious("spurious wake");
        kernel.random.shuffle(&mut ready);
        kernel.engines[self.index].batch.extend(ready);
    }

    fn next_completion(&mut self) -> Option<Completion> {
        let kernel = &mut *self.kernel.borrow_mut();
        let batch_max = kernel.plan.batch_max;
        let state = &mut kernel.engines[self.index];
        if let Some(token) = state.planted.stale.pop_front() {
            return Some(Completion { token, event: CompletionEvent::Received(Err(Error::Reset)) });
        }
        if state.completions_returned >= batch_max {
            state.busy = true;
            return None;
        }
        let mut completion = self.next_kernel_completion(kernel)?;
        kernel.distort_completion(self.index, &mut completion);
        let state = &mut kernel.engines[self.index];
        state.completions_returned += 1;
        state.busy = true;
        Some(completion)
    }

    /// # Panics
    /// Panics if more buffers are recycled than were lent.
    fn recycle(&mut self, buffer: Buffer) {
        let state = &mut self.kernel.borrow_mut().engines[self.index];
        assert!(state.lent > 0, "a buffer is recycled that was not lent");
        state.lent -= 1;
        state.spare_buffers.push(buffer);
    }

    fn adopt(&mut self, detached: SimDetached) -> Result<Fd, Error> {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.engines[self.index].planted.detached.contains(&detached.0) {
            return Err(Error::OutOfDescriptors);
        }
        let descriptor = kernel.descriptor(detached.0);
        assert!(
            descriptor.owner == Owner::Transit,
            "adopt of descriptor {}, which was not detached",
            detached.0
        );
        descriptor.owner = Owner::Engine(self.index);
        Ok(Fd(detached.0))
    }

    fn adopt_socket(&mut self, _socket: OwnedFd) -> Result<Fd, Error> {
        Err(Error::OutOfDescriptors)
    }

    /// # Panics
    /// Panics if an operation other than a receive is outstanding.
    fn detach(&mut self, fd: Fd) -> SimDetached {
        let kernel = &mut *self.kernel.borrow_mut();
        let descriptor = kernel.owned_descriptor(self.index, fd.0);
        assert!(descriptor.send.is_none(), "detach of {} with a send outstanding", fd.0);
        if let Some(operation) = descriptor.receive.take() {
            let plain = matches!(operation.kind, OperationKind::Receive { .. });
            assert!(plain, "detach of {} with {operation:?} outstanding", fd.0);
        }
        descriptor.owner = Owner::Transit;
        let planted = &mut kernel.engines[self.index].planted;
        if planted.has(EngineFault::HandOverLost) {
            planted.detached.insert(fd.0);
        }
        SimDetached(fd.0)
    }

    fn accept(&mut self, listener: &Fd, token: Token) {
        let kernel = &mut *self.kernel.borrow_mut();
        kernel.submit(
            self.index,
            listener.0,
            OperationDirection::Receive,
            OperationKind::Accept,
            token,
        );
    }

    fn cancel_accept(&mut self, listener: &Fd) {
        let kernel = &mut *self.kernel.borrow_mut();
        let descriptor = kernel.owned_descriptor(self.index, listener.0);
        let is_listener = matches!(descriptor.object, Object::Listener { .. });
        assert!(is_listener, "cancel_accept on {}, which is not a listener", listener.0);
        descriptor.receive = None;
    }

    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.draw_descriptor_exhaustion() {
            kernel.trace_note("no descriptor", &format!("to connect to {address}"));
            return Err(Error::OutOfDescriptors);
        }
        if kernel.draw_memory_shortage() {
            return Err(Error::OutOfMemory);
        }
        let number = kernel.connect(Owner::Engine(self.index), address, None);
        kernel.submit(self.index, number, OperationDirection::Send, OperationKind::Connect, token);
        if token.kind() == TokenKind::Dial {
            kernel.engines[self.index].planted.connects.insert(token, number);
        }
        Ok(Fd(number))
    }

    /// # Panics
    /// Panics if `max` is out of its bounds, or a receiving operation is outstanding.
    fn recv(&mut self, fd: &Fd, max: usize, token: Token) {
        assert!((1..=Buffer::SIZE).contains(&max), "a receive of {max} bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        kernel.submit(
            self.index,
            fd.0,
            OperationDirection::Receive,
            OperationKind::Receive { max },
            token,
        );
    }

    fn is_recv_ready(&self, fd: &Fd) -> bool {
        let kernel = &mut *self.kernel.borrow_mut();
        kernel
            .owned_descriptor(self.index, fd.0)
            .receive
            .as_ref()
            .is_some_and(|operation| operation.attempt_pending)
    }

    /// # Panics
    /// Panics if a send is outstanding, or the direction was shut down.
    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        let kernel = &mut *self.kernel.borrow_mut();
        let (rest, failed) = kernel.begin_send(self.index, fd.0, parts);
        let kind = OperationKind::Send { rest, failed, then: AfterSend::Nothing };
        kernel.submit(self.index, fd.0, OperationDirection::Send, kind, token);
    }

    /// # Panics
    /// As [`Engine::send`].
    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn SharedBytes, token: Token) {
        self.send_from(fd, parts, SendSource::Shared(shared), token);
    }

    /// # Panics
    /// As [`Engine::send`], or if `count` is 0.
    fn send_file(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        file: &Arc<dyn FileRead>,
        at: u64,
        count: usize,
        token: Token,
    ) {
        assert!(count > 0, "send_file of no bytes");
        self.send_from(fd, parts, SendSource::File { file, at, count }, token);
    }

    fn unsent_bytes(&self, fd: &Fd) -> usize {
        let kernel = &mut *self.kernel.borrow_mut();
        let send = kernel.owned_descriptor(self.index, fd.0).send.as_ref();
        let Some(OperationKind::Send { rest, then, .. }) = send.map(|operation| &operation.kind)
        else {
            return 0;
        };
        let then = if let AfterSend::Source { source, sent } = then {
            source.source().byte_count() - sent
        } else {
            0
        };
        rest.as_ref().map_or(0, |rest| rest.len()) + then
    }

    fn unacknowledged_bytes(&self, fd: &Fd) -> usize {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(fd.0);
        let connection = &kernel.connections[connection];
        let out = &connection.sides[side].out;
        out.sent.len() + if connection.unix { out.arrived.len() } else { 0 }
    }

    fn local_address(&self, fd: &Fd) -> Option<SocketAddr> {
        let kernel = &mut *self.kernel.borrow_mut();
        match kernel.owned_descriptor(self.index, fd.0).object {
            Object::Stream { connection, side, .. } => {
                kernel.connections[connection].sides[side].address
            }
            _ => None,
        }
    }

    /// Only writes a line to the trace.
    fn set_congestion(&mut self, fd: &Fd, name: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        let words = format!("{name} on {}", kernel.owned_descriptor(self.index, fd.0).kind_name());
        kernel.trace_note("congestion", &words);
    }

    /// # Panics
    /// Panics if an operation is outstanding in a direction that is shut down.
    fn shutdown(&mut self, fd: &Fd, how: ShutdownHow) {
        let kernel = &mut *self.kernel.borrow_mut();
        let descriptor = kernel.owned_descriptor(self.index, fd.0);
        let (reads, writes) = (how != ShutdownHow::Write, how != ShutdownHow::Read);
        let sends = writes && descriptor.send.is_some();
        assert!(!sends, "shutdown of {} with a send outstanding", fd.0);
        let receives = reads && descriptor.receive.is_some();
        assert!(!receives, "shutdown of {} with a receive outstanding", fd.0);
        let (connection, side) = kernel.stream_of(fd.0);
        kernel.record("shuts", fd.0, usize::from(reads), None);
        kernel.connections[connection].sides[side].read_shut |= reads;
        if writes {
            kernel.finish(connection, side);
        }
    }

    fn close(&mut self, fd: Fd) {
        if !self.kernel.borrow_mut().engines[self.index].planted.skip_close(fd.0) {
            self.close_descriptor(&fd, false);
        }
    }

    fn reset(&mut self, fd: Fd) {
        self.close_descriptor(&fd, true);
    }

    fn pipe(&mut self) -> Result<(Fd, Fd), Error> {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.draw_descriptor_exhaustion() {
            return Err(Error::OutOfDescriptors);
        }
        if kernel.random.chance(kernel.plan.shortages.pipes) {
            kernel.trace_note("no pipe", "");
            kernel.count_trouble("no pipe");
            return Err(Error::OutOfMemory);
        }
        let index = kernel.pipes.len();
        let capacity = kernel.plan.pipe_capacity;
        kernel.pipes.push(Pipe { bytes: VecDeque::new(), capacity, ended: false });
        let owner = Owner::Engine(self.index);
        let ends = [Object::PipeReadEnd(index), Object::PipeWriteEnd(index)];
        let [from, into] = ends.map(|end| Fd(kernel.open(owner, end)));
        Ok((from, into))
    }

    /// # Panics
    /// Panics unless exactly one of the two descriptors is a pipe. Panics if a pipe to be filled
    /// has bytes, if a pipe to be emptied has none, if the sending direction of the stream was shut
    /// down, or if an operation is outstanding in a direction.
    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        assert!(max > 0, "a splice of 0 bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        let fills =
            matches!(kernel.owned_descriptor(self.index, into.0).object, Object::PipeWriteEnd(_));
        if fills {
            let pipe = kernel.pipe_of(into.0);
            let left = kernel.pipes[pipe].bytes.len();
            assert!(left == 0, "splice into pipe {} with {left} bytes in it", into.0);
            let partner = OperationKind::Partner { socket: from.0 };
            kernel.submit(self.index, into.0, OperationDirection::Send, partner, token);
            let kind = OperationKind::SpliceIn { pipe: into.0, max };
            kernel.submit(self.index, from.0, OperationDirection::Receive, kind, token);
        } else {
            self.begin_splice_out(kernel, from, into, max, token);
            let then = AfterSend::Splice { pipe: from.0, max };
            let kind = OperationKind::Send { rest: None, failed: None, then };
            kernel.submit(self.index, into.0, OperationDirection::Send, kind, token);
        }
    }

    /// # Panics
    /// Panics if the pipe is not empty, or an operation is outstanding in a direction.
    fn try_splice_in(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>> {
        assert!(max > 0, "a splice of 0 bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        let outstanding = kernel.owned_descriptor(self.index, from.0).receive.is_some()
            || kernel.owned_descriptor(self.index, into.0).send.is_some();
        assert!(
            !outstanding,
            "splice into {} from {} with another operation outstanding",
            into.0, from.0
        );
        let pipe = kernel.pipe_of(into.0);
        let left = kernel.pipes[pipe].bytes.len();
        assert!(left == 0, "splice into pipe {} with {left} bytes in it", into.0);
        let filled =
            kernel.draw_readable_now(from.0).then(|| kernel.try_splice_in(from.0, into.0, max));
        if let Some(Ok(1..)) = filled {
            kernel.corrupt_pipe(self.index, pipe);
        }
        kernel.engines[self.index].busy = true;
        let count = filled.and_then(Result::ok).unwrap_or_default();
        kernel.record("spliced in", from.0, count, None);
        filled
    }

    /// # Panics
    /// Panics if the target pipe is not empty, or another operation uses one of the pipes.
    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
        assert!(max > 0, "a tee of 0 bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        let outstanding = kernel.owned_descriptor(self.index, from.0).receive.is_some()
            || kernel.owned_descriptor(self.index, into.0).send.is_some();
        assert!(
            !outstanding,
            "tee into {} from {} with another operation outstanding",
            into.0, from.0
        );
        let count = kernel.tee(from.0, into.0, max);
        kernel.record("teed", from.0, count, None);
        Ok(count)
    }

    /// # Panics
    /// Panics if another operation uses the pipe.
    fn read_pipe(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
        assert!(!memory.is_empty(), "a read of 0 bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        let outstanding = kernel.owned_descriptor(self.index, from.0).receive.is_some();
        assert!(!outstanding, "read of pipe {} with another operation outstanding", from.0);
        let count = kernel.read_pipe(from.0, memory);
        kernel.record("pipe read", from.0, count, None);
        Ok(count)
    }

    fn try_recv_into(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>> {
        assert!(!memory.is_empty(), "a receive of 0 bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        let outstanding = kernel.owned_descriptor(self.index, from.0).receive.is_some();
        assert!(!outstanding, "receive from {} with another operation outstanding", from.0);
        let taken = kernel.draw_readable_now(from.0).then(|| kernel.read_into(from.0, memory));
        kernel.engines[self.index].busy = true;
        let count = taken.and_then(Result::ok).unwrap_or_default();
        kernel.record("received", from.0, count, None);
        taken
    }

    /// # Panics
    /// Panics if a receiving operation is outstanding.
    fn poll_readable(&mut self, fd: &Fd, token: Token) {
        let kernel = &mut *self.kernel.borrow_mut();
        kernel.submit(
            self.index,
            fd.0,
            OperationDirection::Receive,
            OperationKind::PollReadable,
            token,
        );
    }

    /// # Panics
    /// As [`Engine::send`] and [`Engine::splice`].
    fn send_then_splice(
        &mut self,
        parts: &[&[u8]],
        from: &Fd,
        into: &Fd,
        max: usize,
        token: Token,
    ) {
        assert!(max > 0, "a splice of 0 bytes");
        let kernel = &mut *self.kernel.borrow_mut();
        self.begin_splice_out(kernel, from, into, max, token);
        let (rest, failed) = kernel.begin_send(self.index, into.0, parts);
        let kind =
            OperationKind::Send { rest, failed, then: AfterSend::Splice { pipe: from.0, max } };
        kernel.submit(self.index, into.0, OperationDirection::Send, kind, token);
    }

    fn log(&mut self, records: &[u8]) {
        assert!(records.ends_with(b"\n"), "a log takes whole records");
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.random.chance(kernel.plan.log_loss) {
            kernel.trace_note("log lost", &format!("{} bytes", records.len()));
            kernel.count_trouble("log lost");
            return;
        }
        kernel.engines[self.index].log.extend_from_slice(records);
    }
}

/// Returns a word and a count for the trace.
fn describe(event: &CompletionEvent) -> (&'static str, usize) {
    match event {
        CompletionEvent::Accepted(Ok((fd, _))) => ("accept", fd.0 as usize),
        CompletionEvent::Accepted(Err(_)) => ("accept fails", 0),
        CompletionEvent::Connected(Ok(())) => ("connected", 0),
        CompletionEvent::Connected(Err(_)) => ("connect fails", 0),
        CompletionEvent::Received(Ok(buffer)) => ("received", buffer.len()),
        CompletionEvent::Received(Err(_)) => ("receive fails", 0),
        CompletionEvent::Sent(Ok(())) => ("sent", 0),
        CompletionEvent::Sent(Err(_)) => ("send fails", 0),
        CompletionEvent::Spliced(Ok(count)) => ("spliced", *count),
        CompletionEvent::Spliced(Err(_)) => ("splice fails", 0),
        CompletionEvent::Readable => ("readable", 0),
        CompletionEvent::Woken => ("woken", 0),
    }
}

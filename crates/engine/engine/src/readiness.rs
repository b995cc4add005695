//! The engine over readiness. An operation is tried with a system call when its descriptor may be
//! ready, and waits for readiness if that call finds nothing. The type parameter [`Watch`] is the
//! source of readiness: epoll(7), io_uring(7) or uselect, or poll(2) and select(2) for comparison.
//!
//! Each socket is watched once, for edges in both directions, and each descriptor keeps the
//! readiness that the kernel last reported (`descriptor.rs`). The operation of a descriptor that
//! may be ready is put into one queue (`queue.rs`). All other operations wait for an edge of their
//! descriptor, which costs no system call. [`Engine::next_completion`] runs the queue one entry at
//! a time, immediately before it returns the completion. So normally only one buffer is in use, and
//! its bytes are still in the CPU's cache when the worker reads them. A send does not go through
//! the queue at first: it is tried at once, while its parts are still borrowed. With io_uring, the
//! receives and the small sends of a busy turn are collected instead, and submitted together
//! (`batch.rs`).
//!
//! Listeners are watched for edges too, while they accept. The engine remembers that connections
//! may be pending, so each burst ends with one accept4(2) that finds none. A listener that does not
//! accept is not watched. If several engines watch a shared listener, a connection may wake only
//! one of them (epoll_ctl(2), EPOLLEXCLUSIVE). A wake of an engine that does not accept would be
//! lost.
//!
//! A descriptor may be closed while an event of it is queued in the kernel. The event then carries
//! a key with an old generation, so the engine drops it, even if another descriptor has the
//! kernel's number by then.

mod batch;
mod batch_submit;
mod descriptor;
mod queue;
mod receive;
mod send;
mod send_source;
mod splice;
mod stats;
mod waker;
mod watch;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use millrace_sys::{self as sys, Interest, Readiness, Shutdown};

use batch::Batch;
use descriptor::{Descriptor, DescriptorKind, ReceiveOperation, SendOperation};
use queue::{Direction, ReadyEntry, ReadyQueue};
pub use stats::EngineStats;
pub use waker::EventWaker;
pub use watch::{Watch, WatchEvent};

use crate::limits::{DESCRIPTORS_MAX, SPARE_BUFFERS_MAX, TURN_BYTES_MAX, TURN_STEPS_MAX};
use crate::random::KernelRandom;
use crate::{
    Address, Budget, Buffer, Clock, Completion, CompletionEvent, Engine, Error, Fd, FileRead,
    Instant, Key, LogSink, PathEstimate, SendSource, SharedBytes, ShutdownHow, Table, Token,
    TokenKind,
};

/// The parameters of a new engine.
#[derive(Debug)]
pub struct EngineOptions {
    /// Bytes that the engine's worker may hold longer than a turn.
    pub budget_bytes: usize,
    /// The destination of access log records; `None` discards them.
    pub log: Option<LogSink>,
    /// The clock, shared by all engines of the process.
    pub clock: Clock,
}

/// An engine over the readiness that `W` reports. It stays in the thread that created it.
pub struct ReadinessEngine<W> {
    // Declared first, so that it is dropped first: it stops watching descriptors before they are
    // closed.
    watch: W,
    waker: EventWaker,
    descriptors: Table<Descriptor>,
    queue: ReadyQueue,
    batch: Batch,
    /// Number of the current turn; wraps.
    turn: u32,
    /// Number of operations tried in this turn, bounded by `TURN_STEPS_MAX`.
    steps: u32,
    /// Number of bytes moved in this turn, bounded by `TURN_BYTES_MAX`.
    bytes_moved: usize,
    /// Whether the waker was used and its completion has not been returned yet.
    woken: bool,
    clock: Clock,
    now: Instant,
    time_of_day: Duration,
    budget: Budget,
    /// Buffers for later receives: at most [`SPARE_BUFFERS_MAX`].
    spare_buffers: Vec<Buffer>,
    /// Number of buffers lent to the worker.
    lent: usize,
    random: KernelRandom,
    log: Option<LogSink>,
    /// Access log records of this turn.
    records: Vec<u8>,
    stats: EngineStats,
}

/// The number that the waker's events carry. No key has this slot.
const WAKER_DATA: u64 = (DESCRIPTORS_MAX + 1) as u64;

impl<W: Watch> ReadinessEngine<W> {
    /// Creates an engine without descriptors. From now on SIGPIPE is ignored in the whole process,
    /// since splice(2) has no flag such as MSG_NOSIGNAL.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::OutOfMemory`]; [`Error::Unsupported`] if the kernel
    /// lacks or forbids a feature that `W` needs.
    pub fn new(options: EngineOptions) -> Result<Self, Error> {
        Self::with_watch(W::new()?, options)
    }

    /// Like [`ReadinessEngine::new`], over an empty watch that the calling thread has created.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::OutOfMemory`].
    pub fn with_watch(watch: W, options: EngineOptions) -> Result<Self, Error> {
        Self::from_parts(watch, EventWaker::new().map_err(Error::from_errno)?, options)
    }

    /// Creates an engine that replaces one that was [aborted](Self::abort). The old engine's waker
    /// wakes the new one.
    ///
    /// # Errors
    /// Like [`ReadinessEngine::new`].
    pub fn with_waker(waker: EventWaker, options: EngineOptions) -> Result<Self, Error> {
        Self::from_parts(W::new()?, waker, options)
    }

    fn from_parts(mut watch: W, waker: EventWaker, options: EngineOptions) -> Result<Self, Error> {
        sys::ignore_broken_pipe_signal();
        // If a wake was pending for the old engine, its mark would keep later wakes from
        // signalling.
        waker.clear_pending();
        watch.add_listener(waker.eventfd().as_fd(), WAKER_DATA).map_err(Error::from_errno)?;
        Ok(Self {
            watch,
            waker,
            descriptors: Table::new(DESCRIPTORS_MAX),
            queue: ReadyQueue::default(),
            batch: Batch::default(),
            turn: 0,
            steps: 0,
            bytes_moved: 0,
            woken: false,
            clock: options.clock,
            now: options.clock.now(),
            time_of_day: sys::time_of_day(),
            budget: Budget::new(options.budget_bytes),
            spare_buffers: Vec::with_capacity(SPARE_BUFFERS_MAX),
            lent: 0,
            random: KernelRandom::new(),
            log: options.log,
            records: Vec::new(),
            stats: EngineStats::default(),
        })
    }

    /// Ends an engine whose state can no longer be trusted, and returns its waker for
    /// [`ReadinessEngine::with_waker`]. Every connection is reset, so that no peer mistakes what it
    /// has received for the whole message. Queued bytes are not sent. The kernel stops using the
    /// engine's descriptors and memory before the engine frees them.
    pub fn abort(self) -> EventWaker {
        for (_, descriptor) in self.descriptors.iter() {
            if descriptor.kind == DescriptorKind::Stream {
                // If the connection is gone already, there is no peer to reset.
                let _ = sys::reset_on_close(descriptor.fd.as_fd());
            }
        }
        self.waker.clone()
    }

    /// Returns the engine's counters.
    pub fn stats(&self) -> &EngineStats {
        &self.stats
    }

    /// Returns the number of open descriptors, including ends of pipes.
    pub fn descriptors(&self) -> usize {
        self.descriptors.len()
    }

    fn lookup(&mut self, fd: &Fd) -> (Key, &mut Descriptor) {
        let key = self.descriptors.key_at(fd.0).expect("an Fd names an open descriptor");
        (key, self.descriptor_at(fd.0))
    }

    /// Returns the descriptor that `fd` names.
    fn descriptor(&self, fd: &Fd) -> Option<&Descriptor> {
        self.descriptors.get(self.descriptors.key_at(fd.0)?)
    }

    fn descriptor_at(&mut self, slot: u32) -> &mut Descriptor {
        let key = self.descriptors.key_at(slot);
        key.and_then(|key| self.descriptors.get_mut(key)).expect("the descriptor is open")
    }

    /// Registers a connection as readable and writable, since it may be either already. If it is
    /// not, the first receive or send finds nothing and clears the mark.
    fn register_ready(&mut self, fd: OwnedFd) -> Result<Fd, Error> {
        let mut descriptor = Descriptor::new(fd, DescriptorKind::Stream);
        descriptor.readable = true;
        descriptor.writable = true;
        self.register(descriptor)
    }

    fn register(&mut self, descriptor: Descriptor) -> Result<Fd, Error> {
        let key = self.descriptors.insert(descriptor).ok_or(Error::OutOfDescriptors)?;
        let data = data_of(key);
        let fd = self.descriptors.get(key).expect("the key was just inserted").fd.as_fd();
        if let Err(error) = self.watch.add_connection(fd, data) {
            self.descriptors.remove(key);
            return Err(Error::from_errno(error));
        }
        Ok(Fd(key.slot))
    }

    fn enqueue(&mut self, key: Key, direction: Direction) {
        let Some(descriptor) = self.descriptors.get_mut(key) else { return };
        let queued = match direction {
            Direction::Receiving => &mut descriptor.receive_queued,
            Direction::Sending => &mut descriptor.send_queued,
        };
        if !std::mem::replace(queued, true) {
            self.queue.ready.push_back(ReadyEntry { key, direction });
        }
    }

    /// Updates a descriptor's readiness from an event, and queues the operations that waited for
    /// it.
    fn handle_ready(&mut self, data: u64, readiness: Readiness) {
        if data == WAKER_DATA {
            self.woken = true;
            return;
        }
        let key = key_of(data);
        let Some(descriptor) = self.descriptors.get_mut(key) else {
            self.stats.stale_events += 1;
            return;
        };
        // For arriving bytes, io_uring may report a hint: an event for which the kernel did not
        // check the socket (`Readiness::is_hint`). Urgent bytes cause a hint of their own, before
        // the hint for the bytes around them. So two hints without a receive in between may mean
        // urgent bytes.
        let is_second_hint = descriptor.readable && readiness.is_hint();
        descriptor.must_drain |= is_second_hint || readiness.must_drain();
        descriptor.readable |= readiness.is_readable();
        let receives = readiness.is_readable() && descriptor.is_waiting_to_receive();
        let sends = readiness.is_writable() && descriptor.is_waiting_to_send();
        descriptor.writable |= readiness.is_writable();
        if receives {
            self.enqueue(key, Direction::Receiving);
        }
        if sends {
            self.enqueue(key, Direction::Sending);
        }
    }

    /// Watches an open descriptor again after its watch has ended by itself.
    fn handle_lost(&mut self, data: u64) {
        if data == WAKER_DATA {
            let added = self.watch.add_listener(self.waker.eventfd().as_fd(), WAKER_DATA);
            return assert!(added.is_ok(), "{added:?}");
        }
        let Some(descriptor) = self.descriptors.get(key_of(data)) else { return };
        let (fd, kind) = (descriptor.fd.as_fd(), descriptor.kind);
        let added = match descriptor.receiving {
            ReceiveOperation::Accept { .. } => self.watch.add_listener(fd, data),
            _ if kind == DescriptorKind::Listener => Ok(()),
            _ => self.watch.add_connection(fd, data),
        };
        // Only io_uring loses a watch. Adding it again fails only if the ring takes no more
        // requests, and then the engine cannot continue.
        assert!(added.is_ok(), "{added:?}");
    }

    /// Returns the longest time to wait for the kernel; `None` without a bound.
    fn wait_max(&self, deadline: Option<Instant>) -> Option<Duration> {
        let queued = !self.queue.is_empty(!self.budget.is_exhausted());
        if self.woken || queued || !self.batch.received.is_empty() {
            return Some(Duration::ZERO);
        }
        Some(deadline?.since(self.clock.now()))
    }

    /// Removes a descriptor from the table, with every operation outstanding for it.
    fn remove(&mut self, fd: Fd) -> Descriptor {
        let key = self.lookup(&fd).0;
        let descriptor = self.descriptors.remove(key).expect("`lookup` found it");
        self.release_splice_partner(&descriptor);
        if descriptor.parked {
            self.queue.count_stale_parked(|key| self.descriptors.get(key).is_some());
        }
        descriptor
    }
}

impl<W> ReadinessEngine<W> {
    fn flush_log(&mut self) {
        if let Some(log) = self.log.as_ref().filter(|_| !self.records.is_empty()) {
            log.append(&self.records);
        }
        self.records.clear();
    }
}

impl<W> Drop for ReadinessEngine<W> {
    fn drop(&mut self) {
        self.flush_log();
    }
}

impl<W: Watch> Engine for ReadinessEngine<W> {
    type DetachedFd = OwnedFd;
    type Waker = EventWaker;

    fn now(&self) -> Instant {
        self.now
    }

    fn read_clock(&self) -> Instant {
        self.clock.now()
    }

    fn time_of_day(&self) -> Duration {
        self.time_of_day
    }

    fn random(&mut self) -> u64 {
        self.random.number()
    }

    fn budget(&self) -> &Budget {
        &self.budget
    }

    fn waker(&self) -> EventWaker {
        self.waker.clone()
    }

    fn submit_and_wait(&mut self, deadline: Option<Instant>) {
        debug_assert_eq!(self.lent, 0, "buffers are recycled before the turn ends");
        self.flush_log();
        self.turn = self.turn.wrapping_add(1);
        (self.steps, self.bytes_moved) = (0, 0);
        self.queue.begin_turn();
        self.submit_batch();
        let wait_max = self.wait_max(deadline);
        let waker = Interest {
            fd: self.waker.eventfd().as_fd(),
            data: WAKER_DATA,
            readable: true,
            writable: false,
        };
        let interests = self.descriptors.iter().filter_map(|(key, it)| it.interest(data_of(key)));
        self.watch.wait(wait_max, std::iter::once(waker).chain(interests));
        self.now = self.clock.now();
        self.time_of_day = sys::time_of_day();
        while let Some((data, found)) = self.watch.next_event() {
            match found {
                WatchEvent::Ready(readiness) => self.handle_ready(data, readiness),
                WatchEvent::Lost => self.handle_lost(data),
                WatchEvent::Received(buffer, result) => {
                    self.handle_received(key_of(data), buffer, result)
                }
                WatchEvent::Sent(bytes, result) => self.handle_sent(key_of(data), bytes, result),
            }
        }
    }

    fn next_completion(&mut self) -> Option<Completion> {
        if std::mem::take(&mut self.woken) {
            if W::LEVEL_TRIGGERED {
                // This comes before `clear_pending`. In the other order, a wake between the two
                // would be consumed, and no later wake would signal.
                self.waker.eventfd().clear();
            }
            self.waker.clear_pending();
            return completion(Token::new(TokenKind::Worker, 0, 0), CompletionEvent::Woken);
        }
        while self.steps < TURN_STEPS_MAX
            && self.bytes_moved < TURN_BYTES_MAX
            && !self.batch.is_full()
        {
            if let Some(completion) = self.next_received() {
                self.steps += 1;
                return Some(completion);
            }
            let ready = self.queue.pop(!self.budget.is_exhausted())?;
            self.steps += 1;
            let completion = match ready.direction {
                Direction::Receiving => self.run_receive(ready.key),
                Direction::Sending => self.run_send(ready.key),
            };
            if completion.is_some() {
                return completion;
            }
        }
        None
    }

    fn recycle(&mut self, buffer: Buffer) {
        assert!(self.lent > 0, "only lent buffers are recycled");
        self.lent -= 1;
        self.keep_spare_buffer(buffer);
    }

    /// An adopted connection may have bytes or an error pending, so it is registered as readable
    /// and writable.
    fn adopt(&mut self, detached: OwnedFd) -> Result<Fd, Error> {
        if !sys::is_listening(detached.as_fd()).map_err(Error::from_errno)? {
            return self.register_ready(detached);
        }
        sys::prepare_listener(detached.as_fd()).map_err(Error::from_errno)?;
        let descriptor = Descriptor::new(detached, DescriptorKind::Listener);
        let key = self.descriptors.insert(descriptor).ok_or(Error::OutOfDescriptors)?;
        Ok(Fd(key.slot))
    }

    fn adopt_socket(&mut self, socket: OwnedFd) -> Result<Fd, Error> {
        let mut descriptor = Descriptor::new(socket, DescriptorKind::Polled);
        descriptor.readable = true;
        self.register(descriptor)
    }

    fn detach(&mut self, fd: Fd) -> OwnedFd {
        let key = self.lookup(&fd).0;
        let received = self.batch.received.iter().any(|(of, ..)| *of == key);
        assert!(!received, "no received bytes are pending");
        let data = data_of(key);
        let descriptor = self.remove(fd);
        assert!(matches!(descriptor.sending, SendOperation::Idle), "no send is outstanding");
        assert!(
            matches!(
                descriptor.receiving,
                ReceiveOperation::Idle | ReceiveOperation::Receive { .. }
            ),
            "nothing but a receive is outstanding"
        );
        self.watch.remove(descriptor.fd.as_fd(), data);
        descriptor.fd
    }

    fn accept(&mut self, listener: &Fd, token: Token) {
        self.begin_accept(listener, token);
    }

    fn cancel_accept(&mut self, listener: &Fd) {
        let key = self.lookup(listener).0;
        self.stop_accepting(key);
    }

    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        self.begin_connect(address, token)
    }

    fn recv(&mut self, fd: &Fd, max: usize, token: Token) {
        self.begin_receive(fd, max, token);
    }

    fn is_recv_ready(&self, fd: &Fd) -> bool {
        self.descriptor(fd).is_some_and(|descriptor| descriptor.receive_queued)
    }

    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        self.begin_send(fd, parts, token);
    }

    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn SharedBytes, token: Token) {
        self.begin_send_source(fd, parts, SendSource::Shared(shared), token);
    }

    fn send_file(
        &mut self,
        fd: &Fd,
        parts: &[&[u8]],
        file: &Arc<dyn FileRead>,
        at: u64,
        count: usize,
        token: Token,
    ) {
        assert!(count > 0, "the last bytes of `parts` would wait for bytes that never follow");
        self.begin_send_source(fd, parts, SendSource::File { file, at, count }, token);
    }

    fn unsent_bytes(&self, fd: &Fd) -> usize {
        self.bytes_unsent(fd)
    }

    fn unacknowledged_bytes(&self, fd: &Fd) -> usize {
        self.descriptor(fd)
            .and_then(|it| sys::unacknowledged_bytes(it.fd.as_fd()).ok())
            .unwrap_or(0)
    }

    fn set_congestion(&mut self, fd: &Fd, name: &str) {
        let _ = sys::set_congestion(self.lookup(fd).1.fd.as_fd(), name);
    }

    fn local_address(&self, fd: &Fd) -> Option<SocketAddr> {
        sys::local_address(self.descriptor(fd)?.fd.as_fd()).ok()?
    }

    fn path_estimate(&self, fd: &Fd) -> Option<PathEstimate> {
        self.watch.path_estimate(self.descriptor(fd)?.fd.as_fd())
    }

    /// If the connection is gone already, there is nothing to shut down, and its next operation
    /// reports that.
    fn shutdown(&mut self, fd: &Fd, how: ShutdownHow) {
        let (_, descriptor) = self.lookup(fd);
        let sends = matches!(descriptor.sending, SendOperation::Idle);
        let receives = matches!(descriptor.receiving, ReceiveOperation::Idle);
        assert!(sends || how == ShutdownHow::Read, "no send is outstanding");
        assert!(receives || how == ShutdownHow::Write, "no receive is outstanding");
        let how = match how {
            ShutdownHow::Read => Shutdown::Read,
            ShutdownHow::Write => Shutdown::Write,
            ShutdownHow::Both => Shutdown::Both,
        };
        let _ = sys::shutdown(descriptor.fd.as_fd(), how);
    }

    fn close(&mut self, fd: Fd) {
        // Other processes may have the same listener open, so closing our descriptor would not end
        // the watch.
        if matches!(self.lookup(&fd).1.receiving, ReceiveOperation::Accept { .. }) {
            self.cancel_accept(&fd);
        }
        let key = self.lookup(&fd).0;
        self.send_batched(key);
        let data = data_of(key);
        let descriptor = self.remove(fd);
        if matches!(descriptor.kind, DescriptorKind::Stream | DescriptorKind::Datagram) {
            self.watch.close(descriptor.fd, data);
        }
    }

    fn reset(&mut self, fd: Fd) {
        let _ = sys::reset_on_close(self.lookup(&fd).1.fd.as_fd());
        self.close(fd);
    }

    fn pipe(&mut self) -> Result<(Fd, Fd), Error> {
        self.open_pipe()
    }

    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        self.begin_splice(from, into, max, token);
    }

    fn try_splice_in(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>> {
        self.splice_in_now(from, into, max)
    }

    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
        self.tee_now(from, into, max)
    }

    fn read_pipe(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
        self.read_pipe_now(from, memory)
    }

    fn try_recv_into(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>> {
        self.recv_into_now(from, memory)
    }

    fn poll_readable(&mut self, fd: &Fd, token: Token) {
        self.begin_poll_readable(fd, token);
    }

    /// While the descriptor may be readable, the next receive is tried at once and needs no hint.
    fn expect_bytes(&mut self, fd: &Fd, bytes: u64) {
        if W::USES_EXPECTED_BYTES {
            let key = self.descriptors.key_at(fd.0).expect("an Fd names an open descriptor");
            let descriptor = self.descriptors.get(key).expect("the descriptor is open");
            if !descriptor.readable {
                self.watch.expect_bytes(descriptor.fd.as_fd(), data_of(key), bytes);
            }
        }
    }

    fn send_then_splice(
        &mut self,
        parts: &[&[u8]],
        from: &Fd,
        into: &Fd,
        max: usize,
        token: Token,
    ) {
        self.begin_send_then_splice(parts, from, into, max, token);
    }

    fn log(&mut self, records: &[u8]) {
        if self.log.is_some() {
            self.records.extend_from_slice(records);
        }
    }
}

/// Returns the number that the events of a descriptor carry.
fn data_of(key: Key) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.slot)
}

fn key_of(data: u64) -> Key {
    Key { slot: data as u32, generation: (data >> 32) as u32 }
}

fn completion(token: Token, event: CompletionEvent) -> Option<Completion> {
    Some(Completion { token, event })
}

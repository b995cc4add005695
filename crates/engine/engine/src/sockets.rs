//! The engine over readiness: calls are tried first, and waited for only when they find nothing.
//! Who tells what is ready is a parameter, [`Watch`]: epoll(7) or io_uring(7); for comparison,
//! poll(2) or select(2).
//!
//! Each socket is watched once, for edges in both directions, and each descriptor remembers
//! what the kernel last said (`descriptor.rs`). An operation of a descriptor that may be ready goes
//! to one queue (`queue.rs`); others wait there for their edge, which costs no system call. The
//! queue is run by [`Engine::next`], one entry at a time and right before its completion is given:
//! so normally one buffer is in use, whose bytes are still in the CPU's cache when they are read.
//! Only a send is tried when it is asked for, while its parts are still borrowed.
//!
//! Listeners are watched for edges too, while they are armed: what is not accepted yet is
//! remembered here, and costs one accept4(2) that finds nothing at the end of each burst. A
//! listener that is not armed is not watched. One that is shared wakes one of those that wait
//! for it, and the wake would be lost on an engine that does not accept (epoll_ctl(2),
//! EPOLLEXCLUSIVE).
//!
//! Events that are already on their way when their descriptor is closed name a key of the table
//! whose generation is over, and are dropped, whoever has the kernel's number now.

mod batch;
mod counters;
mod descriptor;
mod queue;
mod receive;
mod send;
mod share;
mod splice;
mod submit;
mod waker;
mod watch;

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use millrace_sys::{self as sys, Readiness, Shutdown, Wanted};

use batch::Batch;
pub use counters::Counters;
use descriptor::{Descriptor, Receiving, Role, Sending};
use queue::{Direction, Queue, Ready};
pub use waker::EventWaker;
pub use watch::{Found, Watch};

use crate::limits::{DESCRIPTORS_MAX, STOCK_MAX, TURN_BYTES_MAX, TURN_STEPS_MAX};
use crate::random::Random;
use crate::{
    Address, Budget, Buffer, Clock, Completion, Engine, Error, Event, Fd, HowToShut, Instant, Key,
    Kind, LogSink, PathEstimate, Shared, Table, Token,
};

/// What an engine is made from.
#[derive(Debug)]
pub struct EngineOptions {
    /// The bytes that the engine's worker may hold beyond a turn.
    pub budget_bytes: usize,
    /// Where access log records go; nowhere if `None`.
    pub log: Option<LogSink>,
    /// Copies of one clock for all engines of a process.
    pub clock: Clock,
}

/// The engine over readiness, as `W` tells it. It stays in the thread that made it.
pub struct Sockets<W> {
    // Dropped first: what it watches is closed only after it let go.
    watch: W,
    waker: EventWaker,
    descriptors: Table<Descriptor>,
    queue: Queue,
    batch: Batch,
    /// Counts turns, to tell this one from others; wraps.
    turn: u32,
    /// What this turn did so far: see the limits of the same names.
    steps: u32,
    moved: usize,
    /// The waker was used, and its completion not given yet.
    woken: bool,
    clock: Clock,
    now: Instant,
    time_of_day: Duration,
    budget: Budget,
    /// Buffers ready to be lent: at most [`STOCK_MAX`].
    stock: Vec<Buffer>,
    /// Buffers that the worker has.
    lent: usize,
    random: Random,
    log: Option<LogSink>,
    /// Records of this turn.
    records: Vec<u8>,
    counters: Counters,
}

/// What the waker's event carries: no key has this slot.
const WAKER: u64 = (DESCRIPTORS_MAX + 1) as u64;

impl<W: Watch> Sockets<W> {
    /// An engine with nothing open. SIGPIPE is ignored from now on in the whole process, as
    /// splice(2) needs it.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::OutOfMemory`]; [`Error::Unsupported`] when the kernel
    /// lacks or refuses what `W` is made of.
    pub fn new(options: EngineOptions) -> Result<Self, Error> {
        Self::over(W::new()?, options)
    }

    /// As [`Sockets::new`], over a watch with nothing in it that the calling thread made.
    ///
    /// # Errors
    /// [`Error::OutOfDescriptors`], [`Error::OutOfMemory`].
    pub fn over(watch: W, options: EngineOptions) -> Result<Self, Error> {
        Self::of(watch, EventWaker::new().map_err(Error::of)?, options)
    }

    /// An engine that takes the place of one that was [broken off](Self::break_off): whoever had
    /// its waker wakes this one.
    ///
    /// # Errors
    /// As [`Sockets::new`].
    pub fn woken_by(waker: EventWaker, options: EngineOptions) -> Result<Self, Error> {
        Self::of(W::new()?, waker, options)
    }

    fn of(mut watch: W, waker: EventWaker, options: EngineOptions) -> Result<Self, Error> {
        sys::ignore_broken_pipe_signal();
        // A wake that the engine before had not looked at is given anew by whoever is next.
        waker.rearm();
        watch.add_listener(waker.eventfd().as_fd(), WAKER).map_err(Error::of)?;
        Ok(Self {
            watch,
            waker,
            descriptors: Table::new(DESCRIPTORS_MAX),
            queue: Queue::default(),
            batch: Batch::default(),
            turn: 0,
            steps: 0,
            moved: 0,
            woken: false,
            clock: options.clock,
            now: options.clock.now(),
            time_of_day: sys::time_of_day(),
            budget: Budget::new(options.budget_bytes),
            stock: Vec::with_capacity(STOCK_MAX),
            lent: 0,
            random: Random::new(),
            log: options.log,
            records: Vec::new(),
            counters: Counters::default(),
        })
    }

    /// Ends an engine that is not to be trusted with anything under way: every connection is
    /// reset, so that nobody takes what it got for the whole, and what is queued is not sent. What
    /// the kernel watches, and memory that it was lent, is taken back before anything is freed.
    pub fn break_off(self) -> EventWaker {
        for (_, descriptor) in self.descriptors.iter() {
            if descriptor.role == Role::Stream {
                // One that is gone already has nobody to be told.
                let _ = sys::reset_on_close(descriptor.fd.as_fd());
            }
        }
        self.waker.clone()
    }

    /// What the engine did since it began.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Descriptors open now, ends of pipes included.
    pub fn descriptors(&self) -> usize {
        self.descriptors.len()
    }

    /// The address that a listener or connection is bound to; `None` of a Unix socket.
    pub fn local_address(&self, fd: &Fd) -> Option<SocketAddr> {
        sys::local_address(self.look(fd)?.fd.as_fd()).ok()?
    }

    fn open(&mut self, fd: &Fd) -> (Key, &mut Descriptor) {
        let key = self.descriptors.key_at(fd.0).expect("an Fd names an open descriptor");
        (key, self.at(fd.0))
    }

    /// The descriptor that `fd` names, to be read alone.
    fn look(&self, fd: &Fd) -> Option<&Descriptor> {
        self.descriptors.get(self.descriptors.key_at(fd.0)?)
    }

    fn at(&mut self, slot: u32) -> &mut Descriptor {
        let key = self.descriptors.key_at(slot);
        key.and_then(|key| self.descriptors.get_mut(key)).expect("the descriptor is open")
    }

    /// Takes in a connection that may be readable and writable already: the calls find out.
    fn register_ready(&mut self, fd: OwnedFd) -> Result<Fd, Error> {
        let mut descriptor = Descriptor::new(fd, Role::Stream);
        descriptor.readable = true;
        descriptor.writable = true;
        self.register(descriptor)
    }

    fn register(&mut self, descriptor: Descriptor) -> Result<Fd, Error> {
        let key = self.descriptors.insert(descriptor).ok_or(Error::OutOfDescriptors)?;
        let data = data_of(key);
        let fd = self.descriptors.get(key).expect("it was just put in").fd.as_fd();
        if let Err(error) = self.watch.add_connection(fd, data) {
            self.descriptors.remove(key);
            return Err(Error::of(error));
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
            self.queue.ready.push_back(Ready { key, direction });
        }
    }

    /// Notes what an event says, and queues what waited for it.
    fn note(&mut self, data: u64, readiness: Readiness) {
        if data == WAKER {
            self.woken = true;
            return;
        }
        let key = key_of(data);
        let Some(descriptor) = self.descriptors.get_mut(key) else {
            self.counters.stale_events += 1;
            return;
        };
        let again = descriptor.readable && readiness.is_a_guess();
        descriptor.to_be_drained |= again || readiness.to_be_drained();
        descriptor.readable |= readiness.readable();
        let receives = readiness.readable() && descriptor.waits_to_receive();
        let sends = readiness.writable() && descriptor.waits_to_send();
        // A connection that is being opened becomes writable by being opened.
        descriptor.writable |= readiness.writable();
        if receives {
            self.enqueue(key, Direction::Receiving);
        }
        if sends {
            self.enqueue(key, Direction::Sending);
        }
    }

    /// Begins a watch that ended by itself anew, unless its descriptor is closed.
    fn watch_again(&mut self, data: u64) {
        if data == WAKER {
            let added = self.watch.add_listener(self.waker.eventfd().as_fd(), WAKER);
            return assert!(added.is_ok(), "{added:?}");
        }
        let Some(descriptor) = self.descriptors.get(key_of(data)) else { return };
        let (fd, role) = (descriptor.fd.as_fd(), descriptor.role);
        let added = match descriptor.receiving {
            Receiving::Accept { .. } => self.watch.add_listener(fd, data),
            _ if role == Role::Listener => Ok(()),
            _ => self.watch.add_connection(fd, data),
        };
        // Only a submission fails here, and then the ring is of no more use.
        assert!(added.is_ok(), "{added:?}");
    }

    /// How long to wait for the kernel at most; `None`: for ever.
    fn wait_max(&self, deadline: Option<Instant>) -> Option<Duration> {
        let queued = !self.queue.is_empty(!self.budget.is_exhausted());
        if self.woken || queued || !self.batch.received.is_empty() {
            return Some(Duration::ZERO);
        }
        Some(deadline?.since(self.clock.now()))
    }

    /// Takes a descriptor out of the table, and with it everything outstanding for it.
    fn take(&mut self, fd: Fd) -> Descriptor {
        let key = self.open(&fd).0;
        let descriptor = self.descriptors.remove(key).expect("it was found");
        self.end_splice(&descriptor);
        if descriptor.parked {
            self.queue.forget_parked(|key| self.descriptors.get(key).is_some());
        }
        descriptor
    }
}

impl<W> Sockets<W> {
    fn hand_over_records(&mut self) {
        if let Some(log) = self.log.as_ref().filter(|_| !self.records.is_empty()) {
            log.append(&self.records);
        }
        self.records.clear();
    }
}

impl<W> Drop for Sockets<W> {
    fn drop(&mut self) {
        self.hand_over_records();
    }
}

impl<W: Watch> Engine for Sockets<W> {
    type Detached = OwnedFd;
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

    fn turn(&mut self, deadline: Option<Instant>) {
        debug_assert_eq!(self.lent, 0, "buffers are given back before the turn ends");
        self.hand_over_records();
        self.turn = self.turn.wrapping_add(1);
        (self.steps, self.moved) = (0, 0);
        self.queue.begin_turn();
        self.submit_batch();
        let wait_max = self.wait_max(deadline);
        let waker =
            Wanted { fd: self.waker.eventfd().as_fd(), data: WAKER, receives: true, sends: false };
        let wanted = self.descriptors.iter().filter_map(|(key, it)| it.wanted(data_of(key)));
        self.watch.wait(wait_max, std::iter::once(waker).chain(wanted));
        self.now = self.clock.now();
        self.time_of_day = sys::time_of_day();
        while let Some((data, found)) = self.watch.next() {
            match found {
                Found::Ready(readiness) => self.note(data, readiness),
                Found::Lost => self.watch_again(data),
                Found::Received(buffer, result) => self.note_received(key_of(data), buffer, result),
                Found::Sent(bytes, result) => self.note_sent(key_of(data), bytes, result),
            }
        }
    }

    fn next(&mut self) -> Option<Completion> {
        if std::mem::take(&mut self.woken) {
            if W::LEVELS {
                // Before the waker is armed: a wake that came between the two in the other order
                // would be taken, and none would follow it.
                self.waker.eventfd().clear();
            }
            self.waker.rearm();
            return completion(Token::new(Kind::Worker, 0, 0), Event::Woken);
        }
        while self.steps < TURN_STEPS_MAX && self.moved < TURN_BYTES_MAX && !self.batch.is_full() {
            if let Some(completion) = self.next_received() {
                self.steps += 1;
                return Some(completion);
            }
            let ready = self.queue.pop(!self.budget.is_exhausted())?;
            self.steps += 1;
            let completion = match ready.direction {
                Direction::Receiving => self.run_receiving(ready.key),
                Direction::Sending => self.run_sending(ready.key),
            };
            if completion.is_some() {
                return completion;
            }
        }
        None
    }

    fn recycle(&mut self, buffer: Buffer) {
        assert!(self.lent > 0, "what is given back was lent");
        self.lent -= 1;
        self.put_back(buffer);
    }

    /// A connection that is adopted may have anything outstanding in the kernel: it is tried.
    fn adopt(&mut self, detached: OwnedFd) -> Result<Fd, Error> {
        if !sys::is_listening(detached.as_fd()).map_err(Error::of)? {
            return self.register_ready(detached);
        }
        sys::prepare_listener(detached.as_fd()).map_err(Error::of)?;
        let descriptor = Descriptor::new(detached, Role::Listener);
        let key = self.descriptors.insert(descriptor).ok_or(Error::OutOfDescriptors)?;
        Ok(Fd(key.slot))
    }

    fn detach(&mut self, fd: Fd) -> OwnedFd {
        let key = self.open(&fd).0;
        let received = self.batch.received.iter().any(|(of, ..)| *of == key);
        assert!(!received, "nothing received is left behind");
        let data = data_of(key);
        let descriptor = self.take(fd);
        assert!(matches!(descriptor.sending, Sending::Idle), "nothing is being sent");
        assert!(
            matches!(descriptor.receiving, Receiving::Idle | Receiving::Receive { .. }),
            "nothing but a receive is outstanding"
        );
        self.watch.remove(descriptor.fd.as_fd(), data);
        descriptor.fd
    }

    fn accept(&mut self, listener: &Fd, token: Token) {
        self.begin_accept(listener, token);
    }

    fn accept_stop(&mut self, listener: &Fd) {
        let key = self.open(listener).0;
        self.disarm(key);
    }

    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        self.begin_connect(address, token)
    }

    fn recv(&mut self, fd: &Fd, max: usize, token: Token) {
        self.begin_receive(fd, max, token);
    }

    fn is_announced(&self, fd: &Fd) -> bool {
        self.look(fd).is_some_and(|descriptor| descriptor.receive_queued)
    }

    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        self.begin_send(fd, parts, token);
    }

    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn Shared, token: Token) {
        self.begin_send_shared(fd, parts, shared, token);
    }

    fn unsent(&self, fd: &Fd) -> usize {
        self.bytes_unsent(fd)
    }

    fn unacknowledged(&self, fd: &Fd) -> usize {
        self.look(fd).and_then(|it| sys::unacknowledged(it.fd.as_fd()).ok()).unwrap_or(0)
    }

    fn set_congestion(&mut self, fd: &Fd, name: &str) {
        let _ = sys::set_congestion(self.open(fd).1.fd.as_fd(), name);
    }

    fn address_reached(&self, fd: &Fd) -> Option<SocketAddr> {
        self.local_address(fd)
    }

    fn path_estimate(&self, fd: &Fd) -> Option<PathEstimate> {
        self.watch.path_estimate(self.look(fd)?.fd.as_fd())
    }

    /// A connection that is gone already has nothing to be ended; its next operation says so.
    fn shutdown(&mut self, fd: &Fd, how: HowToShut) {
        let (_, descriptor) = self.open(fd);
        assert!(matches!(descriptor.sending, Sending::Idle), "nothing is being sent");
        let how = match how {
            HowToShut::Write => Shutdown::Write,
            HowToShut::Both => {
                let idle = matches!(descriptor.receiving, Receiving::Idle);
                assert!(idle, "nothing is being received");
                Shutdown::Both
            }
        };
        let _ = sys::shutdown(descriptor.fd.as_fd(), how);
    }

    fn close(&mut self, fd: Fd) {
        // Others may have the same listener open: closing ours would not end its watch.
        if matches!(self.open(&fd).1.receiving, Receiving::Accept { .. }) {
            self.accept_stop(&fd);
        }
        let key = self.open(&fd).0;
        self.send_batched_now(key);
        let data = data_of(key);
        let descriptor = self.take(fd);
        if matches!(descriptor.role, Role::Stream | Role::Datagram) {
            self.watch.close(descriptor.fd, data);
        }
    }

    fn reset(&mut self, fd: Fd) {
        let _ = sys::reset_on_close(self.open(&fd).1.fd.as_fd());
        self.close(fd);
    }

    fn pipe(&mut self) -> Result<(Fd, Fd), Error> {
        self.open_pipe()
    }

    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        self.begin_splice(from, into, max, token);
    }

    fn fill(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>> {
        self.fill_now(from, into, max)
    }

    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
        self.tee_now(from, into, max)
    }

    fn drain(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
        self.drain_now(from, memory)
    }

    fn take(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>> {
        self.take_now(from, memory)
    }

    fn watch(&mut self, fd: &Fd, token: Token) {
        self.begin_watch(fd, token);
    }

    /// Where a call may find something it comes first.
    fn expect_bytes(&mut self, fd: &Fd, bytes: u64) {
        if W::EXPECTS {
            let key = self.descriptors.key_at(fd.0).expect("an Fd names an open descriptor");
            let descriptor = self.descriptors.get(key).expect("the descriptor is open");
            if !descriptor.readable {
                self.watch.expect_bytes(descriptor.fd.as_fd(), data_of(key), bytes);
            }
        }
    }

    fn splice_after(&mut self, parts: &[&[u8]], from: &Fd, into: &Fd, max: usize, token: Token) {
        self.begin_splice_after(parts, from, into, max, token);
    }

    fn log(&mut self, records: &[u8]) {
        if self.log.is_some() {
            self.records.extend_from_slice(records);
        }
    }
}

/// What the events of a descriptor carry.
fn data_of(key: Key) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.slot)
}

fn key_of(data: u64) -> Key {
    Key { slot: data as u32, generation: (data >> 32) as u32 }
}

fn completion(token: Token, event: Event) -> Option<Completion> {
    Some(Completion { token, event })
}

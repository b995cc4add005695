//! An engine with a bug on purpose, to see whether a test notices it (docs/design/faults.md).
//!
//! [`Faulty`] passes every call on to a [`Sim`]. If a fault was planted in its world, it breaks one
//! promise: of the engine, of the pipes, or of what workers build on tokens, wake-ups and handed-over
//! connections. The worker above it is the product's own.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::{
    Address, Budget, Buffer, Completion, Engine, Error, Event, Fd, HowToShut, Instant, Kind,
    Shared, Token,
};

use crate::engine::{Sim, SimDetached, SimWaker};
use crate::fault::EngineFault;

/// A [`Sim`] with the fault of its world, if one was planted. See
/// [`World::faulty_engine`](crate::World::faulty_engine).
#[derive(Debug)]
pub struct Faulty {
    sim: Sim,
    fault: Option<EngineFault>,
    /// The objects, by kind and slot, whose descriptors were closed with a receive outstanding.
    closed: BTreeMap<(u8, u32), Token>,
    /// The objects that have their slots now, for which those receives end.
    stale: VecDeque<Token>,
    /// The splices out of pipes, by token: the pipe's reading end, and the bytes asked for.
    splices: BTreeMap<Token, (u32, usize)>,
    /// What was left in a pipe since a pipe was last filled.
    dirt: Vec<u8>,
    /// Connections that were detached here, and are lost if they come back.
    detached: BTreeSet<u32>,
    /// The attempts to connect to origins that have not ended, by token.
    connects: BTreeMap<Token, u32>,
    /// The descriptors of attempts that failed.
    failed: BTreeSet<u32>,
}

impl Faulty {
    pub(crate) fn new(sim: Sim, fault: Option<EngineFault>) -> Self {
        Self {
            sim,
            fault,
            closed: BTreeMap::new(),
            stale: VecDeque::new(),
            splices: BTreeMap::new(),
            dirt: Vec::new(),
            detached: BTreeSet::new(),
            connects: BTreeMap::new(),
            failed: BTreeSet::new(),
        }
    }

    fn has(&self, fault: EngineFault) -> bool {
        self.fault == Some(fault)
    }

    /// Something begins for the object that `token` names.
    fn begin(&mut self, token: Token) {
        if let Some(closed) = self.closed.remove(&slot_of(token))
            && closed != token
        {
            self.stale.push_back(token);
        }
    }

    /// Notes what a descriptor has outstanding or leaves behind when it is closed.
    fn note_close(&mut self, fd: &Fd) {
        match self.fault {
            Some(EngineFault::StaleToken) => {
                let token = self.sim.receives_for(fd);
                // The attempts of one lookup share a token: they rely on the engine.
                let token = token.filter(|token| token.kind() != Kind::Name);
                self.closed.extend(token.map(|token| (slot_of(token), token)));
            }
            Some(EngineFault::DirtyPipe) => self.note_left(fd),
            _ => {}
        }
    }

    /// Keeps the bytes in the pipe whose reading end this is, if it is one and not empty.
    fn note_left(&mut self, fd: &Fd) {
        let left = self.sim.left_in_pipe(fd);
        if !left.is_empty() {
            self.dirt = left;
        }
    }

    /// Up to `max` bytes of a pipe begin to move to a socket.
    fn begin_splice(&mut self, from: &Fd, max: usize, token: Token) {
        self.begin(token);
        if self.has(EngineFault::PipeByteLost) || self.has(EngineFault::DirtyPipe) {
            self.splices.insert(token, (from.0, max));
        }
    }

    /// How many bytes a splice is reported to have moved that moved `count`.
    fn spliced(&mut self, token: Token, count: usize) -> usize {
        let Some((from, max)) = self.splices.remove(&token) else { return count };
        let from = Fd(from);
        if self.has(EngineFault::DirtyPipe) {
            self.note_left(&from);
        } else if count + 1 == max {
            let lost = self.sim.drain(&from, &mut [0]);
            assert_eq!(lost, Ok(1), "a splice was asked for no more than is in the pipe");
            return max;
        }
        count
    }

    /// An attempt to connect ends.
    fn connect_ends(&mut self, token: Token, is_failure: bool) {
        if let Some(fd) = self.connects.remove(&token)
            && is_failure
        {
            self.failed.insert(fd);
        }
    }

    /// Whether closing the descriptor has no effect.
    fn keeps_open(&mut self, fd: &Fd) -> bool {
        match self.fault {
            Some(EngineFault::FailedConnectLeaks) => self.failed.remove(&fd.0),
            Some(EngineFault::AbandonedConnectLeaks) => {
                self.connects.values().any(|connecting| *connecting == fd.0)
            }
            _ => false,
        }
    }
}

/// The table and the index in it.
fn slot_of(token: Token) -> (u8, u32) {
    (token.kind() as u8, token.slot())
}

impl Engine for Faulty {
    type Detached = SimDetached;
    type Waker = SimWaker;

    fn now(&self) -> Instant {
        self.sim.now()
    }

    fn read_clock(&self) -> Instant {
        self.sim.read_clock()
    }

    fn time_of_day(&self) -> Duration {
        self.sim.time_of_day()
    }

    fn random(&mut self) -> u64 {
        self.sim.random()
    }

    fn budget(&self) -> &Budget {
        self.sim.budget()
    }

    fn waker(&self) -> SimWaker {
        if self.has(EngineFault::WakeLost) { SimWaker::of_nobody() } else { self.sim.waker() }
    }

    fn turn(&mut self, deadline: Option<Instant>) {
        self.sim.turn(deadline);
    }

    fn next(&mut self) -> Option<Completion> {
        if let Some(token) = self.stale.pop_front() {
            return Some(Completion { token, event: Event::Received(Err(Error::Reset)) });
        }
        let Completion { token, mut event } = self.sim.next()?;
        match &mut event {
            Event::Spliced(Ok(count)) => *count = self.spliced(token, *count),
            Event::Connected(result) => self.connect_ends(token, result.is_err()),
            _ => {}
        }
        Some(Completion { token, event })
    }

    fn recycle(&mut self, buffer: Buffer) {
        self.sim.recycle(buffer);
    }

    fn adopt(&mut self, detached: SimDetached) -> Result<Fd, Error> {
        if self.detached.contains(&detached.0) {
            return Err(Error::OutOfDescriptors);
        }
        self.sim.adopt(detached)
    }

    fn detach(&mut self, fd: Fd) -> SimDetached {
        if self.has(EngineFault::HandOverLost) {
            self.detached.insert(fd.0);
        }
        self.sim.detach(fd)
    }

    fn accept(&mut self, listener: &Fd, token: Token) {
        self.begin(token);
        self.sim.accept(listener, token);
    }

    fn accept_stop(&mut self, listener: &Fd) {
        self.sim.accept_stop(listener);
    }

    fn connect(&mut self, address: &Address, token: Token) -> Result<Fd, Error> {
        self.begin(token);
        let fd = self.sim.connect(address, token)?;
        if token.kind() == Kind::Dial {
            self.connects.insert(token, fd.0);
        }
        Ok(fd)
    }

    fn recv(&mut self, fd: &Fd, max: usize, token: Token) {
        self.begin(token);
        self.sim.recv(fd, max, token);
    }

    fn is_announced(&self, fd: &Fd) -> bool {
        self.sim.is_announced(fd)
    }

    fn send(&mut self, fd: &Fd, parts: &[&[u8]], token: Token) {
        self.begin(token);
        self.sim.send(fd, parts, token);
    }

    fn send_shared(&mut self, fd: &Fd, parts: &[&[u8]], shared: &dyn Shared, token: Token) {
        self.begin(token);
        self.sim.send_shared(fd, parts, shared, token);
    }

    fn unsent(&self, fd: &Fd) -> usize {
        self.sim.unsent(fd)
    }

    fn set_congestion(&mut self, fd: &Fd, name: &str) {
        self.sim.set_congestion(fd, name);
    }

    fn address_reached(&self, fd: &Fd) -> Option<SocketAddr> {
        self.sim.address_reached(fd)
    }

    fn shutdown(&mut self, fd: &Fd, how: HowToShut) {
        self.sim.shutdown(fd, how);
    }

    fn close(&mut self, fd: Fd) {
        if self.keeps_open(&fd) {
            return;
        }
        self.note_close(&fd);
        self.sim.close(fd);
    }

    fn reset(&mut self, fd: Fd) {
        self.note_close(&fd);
        self.sim.reset(fd);
    }

    fn pipe(&mut self) -> Result<(Fd, Fd), Error> {
        self.sim.pipe()
    }

    fn splice(&mut self, from: &Fd, into: &Fd, max: usize, token: Token) {
        self.begin_splice(from, max, token);
        self.sim.splice(from, into, max, token);
    }

    fn fill(&mut self, from: &Fd, into: &Fd, max: usize) -> Option<Result<usize, Error>> {
        let filled = self.sim.fill(from, into, max);
        if matches!(filled, Some(Ok(1..))) {
            self.sim.overwrite_pipe(into, &std::mem::take(&mut self.dirt));
        }
        filled
    }

    fn tee(&mut self, from: &Fd, into: &Fd, max: usize) -> Result<usize, Error> {
        self.sim.tee(from, into, max)
    }

    fn drain(&mut self, from: &Fd, memory: &mut [u8]) -> Result<usize, Error> {
        self.sim.drain(from, memory)
    }

    fn take(&mut self, from: &Fd, memory: &mut [u8]) -> Option<Result<usize, Error>> {
        self.sim.take(from, memory)
    }

    fn watch(&mut self, fd: &Fd, token: Token) {
        self.begin(token);
        self.sim.watch(fd, token);
    }

    fn splice_after(&mut self, parts: &[&[u8]], from: &Fd, into: &Fd, max: usize, token: Token) {
        self.begin_splice(from, max, token);
        self.sim.splice_after(parts, from, into, max, token);
    }

    fn log(&mut self, records: &[u8]) {
        self.sim.log(records);
    }
}

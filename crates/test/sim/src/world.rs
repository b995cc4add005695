//! A world: the simulated kernel behind a handle, as the engines, the actors and the test see it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{Address, Budget, Error, Instant};

use crate::descriptor::{Object, Owner};
use crate::engine::{SimDetached, SimEngine, TIME_OF_DAY_AT_ZERO};
use crate::fault::{EngineFault, PlantedFault};
use crate::kernel::{EngineState, Kernel};
use crate::plan::{Faults, WorldPlan};
use crate::random::SeededRandom;

/// Everything that one seed simulates. Clones are handles to the same world. One thread only.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) kernel: Rc<RefCell<Kernel>>,
}

/// A socket of an actor: a scripted client, origin or name server, which uses the simulated
/// kernel directly, at any time, and never waits. Closed by [`World::close`] or
/// [`World::reset`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ActorSocket(u32);

/// What [`World::read`] found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadResult {
    /// These bytes, at least one.
    Bytes(Vec<u8>),
    /// The end of the stream.
    End,
    /// An error, told once.
    Failed(Error),
    /// Nothing yet.
    Nothing,
}

impl World {
    /// The world of `seed`, with nothing in it.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self { kernel: Rc::new(RefCell::new(Kernel::new(seed, faults))) }
    }

    /// An engine for one more worker, which may hold `budget_bytes` bytes. It has the fault that was
    /// planted before, if one was.
    pub fn engine(&self, budget_bytes: usize) -> SimEngine {
        let kernel = &mut *self.kernel.borrow_mut();
        let (index, now) = (kernel.engines.len(), kernel.now);
        let random = SeededRandom::new(kernel.random.next_u64());
        let (budget, wake) = (Budget::new(budget_bytes), Arc::default());
        kernel.engines.push(EngineState {
            now,
            budget: budget.clone(),
            wake: Arc::clone(&wake),
            asleep_until: now,
            planted: PlantedFault::new(kernel.planted),
            ..EngineState::default()
        });
        kernel.schedule_turn(index, now);
        SimEngine { kernel: self.kernel.clone(), index, budget, wake, random }
    }

    /// Plants a fault in each engine that is made after this call.
    pub fn plant_fault(&self, fault: EngineFault) {
        self.kernel.borrow_mut().planted = Some(fault);
    }

    /// A listener for an engine to adopt. Port 0 picks one. Several may share an address.
    pub fn listen(&self, address: &Address) -> SimDetached {
        SimDetached(self.kernel.borrow_mut().listen(Owner::Transit, address).0)
    }

    /// Bounds the descriptors that all engines have open together; more are refused as by EMFILE.
    pub fn set_descriptors_max(&self, max: usize) {
        self.kernel.borrow_mut().descriptors_max = max;
    }

    /// The process of all engines that there are is killed, as by SIGKILL: the kernel closes what
    /// it has open, in order where nothing was unread. Their workers are dropped before, and have
    /// no turn any more; what else goes on is a new process's.
    pub fn kill_engines(&self) {
        self.kernel.borrow_mut().kill_engines();
    }

    /// The world's clock.
    pub fn now(&self) -> Instant {
        self.kernel.borrow().now
    }

    /// The time of day, since 1970.
    pub fn time_of_day(&self) -> Duration {
        TIME_OF_DAY_AT_ZERO + self.now().since(Instant::default())
    }

    /// How far the clock has leapt in all. Whoever measures how long others take leaves it out.
    pub fn clock_jumped(&self) -> Duration {
        self.kernel.borrow().clock_jumped
    }

    /// For how long workers could do nothing, in all: leaps of the clock, and the turns that began
    /// late. Whoever judges how long workers take leaves it out.
    pub fn missed_time(&self) -> Duration {
        let kernel = self.kernel.borrow();
        kernel.clock_jumped + kernel.slept
    }

    /// What went wrong beside the network, and how often: a kind that never shows is not tested.
    pub fn trouble_counts(&self) -> Vec<(&'static str, u64)> {
        self.kernel.borrow().trouble_counts.iter().map(|(what, count)| (*what, *count)).collect()
    }

    /// Counts something that an actor does wrong, among [`World::met`].
    pub fn count_trouble(&self, what: &'static str) {
        self.kernel.borrow_mut().count_trouble(what);
    }

    /// What the seed decided.
    pub fn plan(&self) -> WorldPlan {
        self.kernel.borrow().plan.clone()
    }

    /// Replaces what the seed decided, before anything happens.
    pub fn set_plan(&self, plan: WorldPlan) {
        self.kernel.borrow_mut().plan = plan;
    }

    /// A random number for an actor.
    pub fn random(&self) -> u64 {
        self.kernel.borrow_mut().random.next_u64()
    }

    /// Writes a line into the trace.
    pub fn trace_note(&self, who: &'static str, words: &str) {
        self.kernel.borrow_mut().trace_note(who, words);
    }

    /// The trace as text: its last lines, one event each.
    pub fn trace(&self) -> String {
        self.kernel.borrow().trace.to_string()
    }

    /// Equal for two runs in which the same happened.
    pub fn trace_hash(&self) -> u64 {
        self.kernel.borrow().trace.hash()
    }

    /// The access log that the engines wrote, in order of engines.
    pub fn log(&self) -> Vec<u8> {
        self.kernel.borrow().engines.iter().flat_map(|engine| engine.log.clone()).collect()
    }

    /// What engines still have, one line each: open descriptors, buffers not recycled, budget not
    /// given back. To be asked when workers have drained and were dropped.
    pub fn leaks(&self) -> Vec<String> {
        let kernel = self.kernel.borrow();
        let mut leaks: Vec<String> = kernel
            .descriptors
            .iter()
            .filter(|(_, descriptor)| descriptor.owner != Owner::Actor)
            .map(|(number, descriptor)| {
                format!(
                    "descriptor {number}, {}, of {:?}",
                    descriptor.kind_name(),
                    descriptor.owner
                )
            })
            .collect();
        for (index, engine) in kernel.engines.iter().enumerate() {
            if engine.lent > 0 {
                leaks.push(format!("{} buffers lent by engine {index}", engine.lent));
            }
            if engine.budget.used() > 0 {
                leaks.push(format!("{} bytes of engine {index}'s budget", engine.budget.used()));
            }
        }
        leaks
    }

    /// An actor's listener.
    pub fn actor_listen(&self, address: &Address) -> ActorSocket {
        ActorSocket(self.kernel.borrow_mut().listen(Owner::Actor, address).0)
    }

    /// Where an actor's listener listens.
    pub fn local_address(&self, listener: ActorSocket) -> Address {
        self.kernel.borrow_mut().listener_address(listener.0)
    }

    /// The oldest connection that waits at an actor's listener, with the address of its client.
    pub fn accept(&self, listener: ActorSocket) -> Option<(ActorSocket, Option<SocketAddr>)> {
        let kernel = &mut *self.kernel.borrow_mut();
        let (number, peer) = kernel.take_from_backlog(listener.0, Owner::Actor)?;
        Some((ActorSocket(number), peer))
    }

    /// Begins to connect, from a free port of the loopback or from `from`.
    pub fn connect(&self, address: &Address, from: Option<SocketAddr>) -> ActorSocket {
        ActorSocket(self.kernel.borrow_mut().connect(Owner::Actor, address, from))
    }

    /// How connecting ended; `None` while it goes on.
    pub fn connected(&self, socket: ActorSocket) -> Option<Result<(), Error>> {
        let kernel = &mut *self.kernel.borrow_mut();
        match kernel.descriptor(socket.0).object {
            Object::Stream { connection, outcome, .. } => {
                outcome.filter(|_| kernel.connections[connection].established)
            }
            _ => None,
        }
    }

    /// Reads up to `max` bytes that have arrived.
    pub fn read(&self, socket: ActorSocket, max: usize) -> ReadResult {
        let mut read = Vec::new();
        let take = &mut |bytes: &[u8]| read.extend_from_slice(bytes);
        match self.kernel.borrow_mut().read(socket.0, max, take) {
            Some(Ok(0)) => ReadResult::End,
            Some(Ok(_)) => ReadResult::Bytes(read),
            Some(Err(error)) => ReadResult::Failed(error),
            None => ReadResult::Nothing,
        }
    }

    /// Writes as many of `bytes` as the kernel takes; none only when it has no room, so that
    /// something will happen when it has.
    ///
    /// # Errors
    /// When the connection can take no more, ever.
    pub fn write(&self, socket: ActorSocket, bytes: &[u8]) -> Result<usize, Error> {
        let kernel = &mut *self.kernel.borrow_mut();
        loop {
            let (connection, side) = kernel.stream_of(socket.0);
            let room = kernel.is_writable(connection, side);
            match kernel.write(socket.0, bytes) {
                Ok(0) if room && !bytes.is_empty() => {}
                other => return other,
            }
        }
    }

    /// Bytes that the kernel took from this socket and that have not reached its peer.
    pub fn undelivered(&self, socket: ActorSocket) -> usize {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        kernel.connections[connection].sides[side].out.sent.len()
    }

    /// The sockets of actors at which something happened since this was last asked: something may
    /// be read, written or accepted there, or has ended. For actors that are many.
    pub fn take_changed_sockets(&self) -> BTreeSet<ActorSocket> {
        let stirred = std::mem::take(&mut self.kernel.borrow_mut().changed_actor_sockets);
        stirred.into_iter().map(ActorSocket).collect()
    }

    /// From now on what engines send on the connections that they open is kept, whether its
    /// receiver reads it or not: what was sent to somebody who is gone was sent all the same.
    pub fn record_engine_output(&self) {
        self.kernel.borrow_mut().engine_output.get_or_insert_default();
    }

    /// What engines have sent since [`World::overhear`] on the connections that they opened, one
    /// piece a connection, in the order in which these were opened.
    pub fn engine_output(&self) -> Vec<Vec<u8>> {
        self.kernel.borrow().engine_output.iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Whether somebody has accepted the connection that this socket opened, or opened the one
    /// that it accepted.
    pub fn is_accepted(&self, socket: ActorSocket) -> bool {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        let peer = &kernel.connections[connection].sides[1 - side];
        peer.descriptor.is_some() || peer.closed
    }

    /// Whether the other end was closed or reset, whatever of that has arrived here.
    pub fn is_peer_closed(&self, socket: ActorSocket) -> bool {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        let sides = &kernel.connections[connection].sides;
        sides[1 - side].closed || sides[1 - side].reset || sides[side].reset
    }

    /// The bytes that the worker of an engine holds, and how many it may; engines are numbered in
    /// the order in which they were made.
    ///
    /// # Panics
    /// When there is no such engine.
    pub fn budget(&self, engine: usize) -> (usize, usize) {
        let budget = &self.kernel.borrow().engines[engine].budget;
        (budget.used(), budget.max())
    }

    /// Ends what this socket sends.
    pub fn shutdown_write(&self, socket: ActorSocket) {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        kernel.finish(connection, side);
    }

    /// Closes; with unread bytes that is a reset, as in TCP.
    pub fn close(&self, socket: ActorSocket) {
        self.kernel.borrow_mut().close(socket.0, false);
    }

    /// Closes with a reset. (A Unix socket is just closed.)
    pub fn reset(&self, socket: ActorSocket) {
        self.kernel.borrow_mut().close(socket.0, true);
    }

    /// A datagram socket bound to `address`.
    pub fn actor_udp_socket(&self, address: SocketAddr) -> ActorSocket {
        ActorSocket(self.kernel.borrow_mut().open_datagram(Owner::Actor, Some(address), None))
    }

    /// The oldest datagram that arrived, with its sender.
    pub fn receive_from(&self, socket: ActorSocket) -> Option<(SocketAddr, Box<[u8]>)> {
        match &mut self.kernel.borrow_mut().descriptor(socket.0).object {
            Object::Datagram { inbox, .. } => inbox.pop_front(),
            _ => None,
        }
    }

    /// Sends a datagram.
    pub fn send_to(&self, socket: ActorSocket, to: SocketAddr, bytes: &[u8]) {
        let kernel = &mut *self.kernel.borrow_mut();
        if let Object::Datagram { local, .. } = kernel.descriptor(socket.0).object {
            kernel.send_datagram(local, to, bytes);
        }
    }

    /// From now on everything is told.
    pub fn enable_event_log(&self) {
        self.kernel.borrow_mut().event_log.is_enabled = true;
    }

    /// What was told, one line an event.
    pub fn event_log(&self) -> String {
        self.kernel.borrow().event_log.text()
    }

    /// Names an actor's end of a connection in the tale.
    pub fn name_socket(&self, socket: ActorSocket, name: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        let side = kernel.stream_of(socket.0);
        kernel.event_log.set_name(side, name);
    }

    /// Adds an actor's words to the tale.
    pub fn log_event(&self, words: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.event_log.is_enabled {
            kernel.event_log.push(kernel.now, words.to_owned(), &[]);
        }
    }
}

//! A world: the handle with which engines, actors and tests use the simulated kernel.

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

/// Everything that one seed simulates. Clones are handles to the same world. For one thread only.
#[derive(Clone, Debug)]
pub struct World {
    pub(crate) kernel: Rc<RefCell<Kernel>>,
}

/// A socket of an actor: a scripted client, origin or name server. Actors use the simulated kernel
/// directly, at any time, and never wait. The socket is closed by [`World::close`] or
/// [`World::reset`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct ActorSocket(u32);

/// The result of [`World::read`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReadResult {
    /// Bytes, at least one.
    Bytes(Vec<u8>),
    /// The end of the stream.
    End,
    /// An error, reported once.
    Failed(Error),
    /// There is nothing to read yet.
    Nothing,
}

impl World {
    /// Creates the world of `seed`, without sockets or engines.
    pub fn new(seed: u64, faults: Faults) -> Self {
        Self { kernel: Rc::new(RefCell::new(Kernel::new(seed, faults))) }
    }

    /// Creates the engine of one more worker, which may hold `budget_bytes` bytes. It has the fault
    /// that was planted before, if there is one.
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

    /// Plants a fault in each engine that is created after this call.
    pub fn plant_fault(&self, fault: EngineFault) {
        self.kernel.borrow_mut().planted = Some(fault);
    }

    /// Opens a listener for an engine to adopt. Port 0 chooses a free port. Several listeners may
    /// share an address.
    pub fn listen(&self, address: &Address) -> SimDetached {
        SimDetached(self.kernel.borrow_mut().listen(Owner::Transit, address).0)
    }

    /// Limits the descriptors that all engines together have open. Further ones are refused as with
    /// EMFILE. The second end of a pipe may exceed the limit by one.
    pub fn set_descriptors_max(&self, max: usize) {
        self.kernel.borrow_mut().descriptors_max = max;
    }

    /// Kills the process of all existing engines, as SIGKILL does. Drop their workers first. The
    /// kernel closes the descriptors: a connection with unread bytes is reset, and any other ends
    /// in order. Engines that are created later belong to a new process. A late event may still
    /// give a killed engine a turn, in which its [`SimWorker`](crate::SimWorker) has to return
    /// false.
    pub fn kill_engines(&self) {
        self.kernel.borrow_mut().kill_engines();
    }

    /// Returns the world's time.
    pub fn now(&self) -> Instant {
        self.kernel.borrow().now
    }

    /// Returns the time of day, as a duration since 1970.
    pub fn time_of_day(&self) -> Duration {
        TIME_OF_DAY_AT_ZERO + self.now().since(Instant::default())
    }

    /// Returns the sum of all clock jumps. Subtract it from a measured duration that is to exclude
    /// the jumps.
    pub fn clock_jumped(&self) -> Duration {
        self.kernel.borrow().clock_jumped
    }

    /// Returns the total time in which workers could not run: clock jumps, and turns that began
    /// late. Measurements of workers have to subtract it.
    pub fn missed_time(&self) -> Duration {
        let kernel = self.kernel.borrow();
        kernel.clock_jumped + kernel.turn_delays
    }

    /// Returns how often each kind of trouble happened. A kind that never happened was not tested.
    pub fn trouble_counts(&self) -> Vec<(&'static str, u64)> {
        self.kernel.borrow().trouble_counts.iter().map(|(what, count)| (*what, *count)).collect()
    }

    /// Counts trouble that an actor causes, for [`World::trouble_counts`].
    pub fn count_trouble(&self, what: &'static str) {
        self.kernel.borrow_mut().count_trouble(what);
    }

    /// Returns the plan that the seed decided.
    pub fn plan(&self) -> WorldPlan {
        self.kernel.borrow().plan.clone()
    }

    /// Replaces the plan from now on. The resets, stalls and vanishing peers that were drawn for
    /// existing connections stay. Scheduled clock jumps still happen, unless the new plan has none.
    pub fn set_plan(&self, plan: WorldPlan) {
        self.kernel.borrow_mut().plan = plan;
    }

    /// Returns a random number for an actor.
    pub fn random(&self) -> u64 {
        self.kernel.borrow_mut().random.next_u64()
    }

    /// Writes a line to the trace.
    pub fn trace_note(&self, what: &'static str, note: &str) {
        self.kernel.borrow_mut().trace_note(what, note);
    }

    /// Returns the last lines of the trace, one event each.
    pub fn trace(&self) -> String {
        self.kernel.borrow().trace.to_string()
    }

    /// Returns a hash that is equal for two runs in which the same happened.
    pub fn trace_hash(&self) -> u64 {
        self.kernel.borrow().trace.hash()
    }

    /// Returns the access logs of all engines, in the order of the engines.
    pub fn log(&self) -> Vec<u8> {
        self.kernel.borrow().engines.iter().flat_map(|engine| engine.log.clone()).collect()
    }

    /// Returns what engines have not released, one line each: open descriptors, buffers not
    /// recycled, budget still used. Call it after the workers have drained and were dropped.
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

    /// Opens a listener of an actor.
    pub fn actor_listen(&self, address: &Address) -> ActorSocket {
        ActorSocket(self.kernel.borrow_mut().listen(Owner::Actor, address).0)
    }

    /// Returns the address of an actor's listener.
    pub fn local_address(&self, listener: ActorSocket) -> Address {
        self.kernel.borrow_mut().listener_address(listener.0)
    }

    /// Accepts the oldest connection at an actor's listener. Returns it with the address of its
    /// client.
    pub fn accept(&self, listener: ActorSocket) -> Option<(ActorSocket, Option<SocketAddr>)> {
        let kernel = &mut *self.kernel.borrow_mut();
        let (number, peer) = kernel.take_from_backlog(listener.0, Owner::Actor)?;
        Some((ActorSocket(number), peer))
    }

    /// Begins to connect, from a free port of the loopback or from `from`.
    pub fn connect(&self, address: &Address, from: Option<SocketAddr>) -> ActorSocket {
        ActorSocket(self.kernel.borrow_mut().connect(Owner::Actor, address, from))
    }

    /// Returns the result of connecting; `None` while it is in progress.
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

    /// Writes as many of `bytes` as the kernel takes, and returns their number. The number is 0
    /// only if `bytes` is empty or the send buffer is full. If the buffer is full, an event follows
    /// when it has room again.
    ///
    /// # Errors
    /// If the connection can never take more.
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

    /// Returns the number of bytes that the kernel has taken from this socket and that have not
    /// reached its peer.
    pub fn undelivered(&self, socket: ActorSocket) -> usize {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        kernel.connections[connection].sides[side].out.sent.len()
    }

    /// Returns the sockets of actors at which something happened since the last call: something may
    /// be read, written or accepted there, or has ended. For tests with many actors.
    pub fn take_changed_sockets(&self) -> BTreeSet<ActorSocket> {
        let changed = std::mem::take(&mut self.kernel.borrow_mut().changed_actor_sockets);
        changed.into_iter().map(ActorSocket).collect()
    }

    /// Records from now on what engines send on the connections that they open, whether the
    /// receiver reads it or not.
    pub fn record_engine_output(&self) {
        self.kernel.borrow_mut().engine_output.get_or_insert_default();
    }

    /// Returns what engines have sent since [`World::record_engine_output`] on the connections that
    /// they opened: one element for each connection with bytes, in the order in which the
    /// connections were opened.
    pub fn engine_output(&self) -> Vec<Vec<u8>> {
        self.kernel.borrow().engine_output.iter().flat_map(BTreeMap::values).cloned().collect()
    }

    /// Declares that the connection of this socket is secured: neither side may send plaintext.
    pub fn secure(&self, socket: ActorSocket) {
        let kernel = &mut *self.kernel.borrow_mut();
        let (index, _) = kernel.stream_of(socket.0);
        let sent = |side: usize| {
            let out = &kernel.connections[index].sides[side].out;
            out.arrived.iter().chain(&out.sent).copied().collect::<Vec<u8>>()
        };
        let sent = [sent(0), sent(1)];
        kernel.secured.add(index, [&sent[0], &sent[1]]);
    }

    /// Returns the first secured connection on which a header was sent as plaintext, if there is
    /// one.
    pub fn plaintext_on_secured(&self) -> Option<String> {
        let (connection, side) = self.kernel.borrow().secured.found()?;
        let side = ["connected", "accepted"][side];
        Some(format!("the side of connection {connection} that {side} sent plaintext"))
    }

    /// Returns whether the connection that this socket opened was accepted, or was closed by its
    /// listener before that. True for a socket that accepted its connection.
    pub fn is_accepted(&self, socket: ActorSocket) -> bool {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        let peer = &kernel.connections[connection].sides[1 - side];
        peer.descriptor.is_some() || peer.closed
    }

    /// Returns whether the other end was closed or the connection was reset, even if the end or
    /// reset has not arrived here.
    pub fn is_peer_closed(&self, socket: ActorSocket) -> bool {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        let sides = &kernel.connections[connection].sides;
        sides[1 - side].closed || sides[1 - side].reset || sides[side].reset
    }

    /// Returns the number of bytes that the worker of an engine holds, and the most that it may
    /// hold. Engines are numbered in the order in which they were created.
    ///
    /// # Panics
    /// Panics if there is no such engine.
    pub fn budget(&self, engine: usize) -> (usize, usize) {
        let budget = &self.kernel.borrow().engines[engine].budget;
        (budget.used(), budget.max())
    }

    /// Ends the stream that this socket sends.
    pub fn shutdown_write(&self, socket: ActorSocket) {
        let kernel = &mut *self.kernel.borrow_mut();
        let (connection, side) = kernel.stream_of(socket.0);
        kernel.finish(connection, side);
    }

    /// Closes a socket. With unread bytes, this is a reset, as in TCP.
    pub fn close(&self, socket: ActorSocket) {
        self.kernel.borrow_mut().close(socket.0, false);
    }

    /// Closes a socket with a reset. A Unix socket is just closed.
    pub fn reset(&self, socket: ActorSocket) {
        self.kernel.borrow_mut().close(socket.0, true);
    }

    /// Opens a datagram socket bound to `address`.
    pub fn actor_udp_socket(&self, address: SocketAddr) -> ActorSocket {
        ActorSocket(self.kernel.borrow_mut().open_datagram(Owner::Actor, Some(address), None))
    }

    /// Returns the oldest datagram that arrived, with its sender.
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

    /// Starts the event log ([`World::event_log`]).
    pub fn enable_event_log(&self) {
        self.kernel.borrow_mut().event_log.is_enabled = true;
    }

    /// Returns the event log, one event a line.
    pub fn event_log(&self) -> String {
        self.kernel.borrow().event_log.text()
    }

    /// Names an actor's end of a connection in the event log.
    pub fn name_socket(&self, socket: ActorSocket, name: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        let side = kernel.stream_of(socket.0);
        kernel.event_log.set_name(side, name);
    }

    /// Adds a line of an actor to the event log.
    pub fn log_event(&self, words: &str) {
        let kernel = &mut *self.kernel.borrow_mut();
        if kernel.event_log.is_enabled {
            kernel.event_log.push(kernel.now, words.to_owned(), &[]);
        }
    }
}

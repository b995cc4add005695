//! The state of a world, and its queue of events. [`crate::network`] implements connections and
//! datagrams, [`crate::operation`] the operations of engines.
//!
//! The kernel never calls the code that uses it. [`crate::drive`] runs engines and actors, which
//! call the kernel.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use millrace_engine::{Address, Budget, Buffer, Instant, Token};

use crate::connection::Connection;
use crate::descriptor::{Descriptor, Object, OperationDirection, Owner};
use crate::event_log::EventLog;
use crate::fault::{EngineFault, PlantedFault};
use crate::plan::{Faults, WorldPlan};
use crate::random::SeededRandom;
use crate::secured::SecuredConnections;
use crate::stale::StaleCompletion;
use crate::trace::{Trace, TraceLine};

/// An event at a known time.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum KernelEvent {
    /// The next segment that `side` sends arrives.
    Segment { connection: usize, side: usize },
    /// A reset arrives at `side`.
    Reset { connection: usize, side: usize },
    /// An attempt to connect ends.
    Connect { connection: usize },
    /// A datagram arrives, or has no receiver.
    Datagram { from: std::net::SocketAddr, to: std::net::SocketAddr, bytes: Box<[u8]> },
    /// An attempt is passed to its engine.
    Attempt(OperationAttempt),
    /// A worker runs a turn.
    Turn { engine: usize, serial: u64 },
    /// The actors run a step.
    ActorStep,
    /// The clock jumps ahead.
    ClockJump,
    /// An operation of a closed descriptor completes.
    Stale { engine: usize, stale: StaleCompletion },
}

/// An operation to be tried, unless it no longer exists by then.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct OperationAttempt {
    pub(crate) descriptor: u32,
    pub(crate) direction: OperationDirection,
    pub(crate) serial: u64,
}

/// The state of one engine.
#[derive(Debug, Default)]
pub(crate) struct EngineState {
    /// The time at which its turn began.
    pub(crate) now: Instant,
    /// Attempts for the next turn.
    pub(crate) ready: Vec<OperationAttempt>,
    /// Attempts of this turn.
    pub(crate) batch: VecDeque<OperationAttempt>,
    /// Receives that wait for the budget, in the order in which they became ready.
    pub(crate) parked: VecDeque<OperationAttempt>,
    /// Number of buffers lent to the worker; 0 when a turn begins.
    pub(crate) lent: usize,
    pub(crate) spare_buffers: Vec<Buffer>,
    pub(crate) budget: Budget,
    pub(crate) wake: Arc<AtomicBool>,
    pub(crate) log: Vec<u8>,
    /// Number of completions returned in this turn.
    pub(crate) completions_returned: usize,
    /// The turn had an effect, so another one follows before the worker sleeps.
    pub(crate) busy: bool,
    /// Number of successive turns without an effect although the deadline had passed.
    pub(crate) spins: u32,
    /// The deadline of the last turn.
    pub(crate) deadline: Option<Instant>,
    /// The time of the next turn, and the serial of its event in the queue.
    pub(crate) next_turn: Option<(Instant, u64)>,
    /// The serial of the latest scheduled turn.
    pub(crate) turn_serial: u64,
    /// No turn begins before this time, since other programs run.
    pub(crate) asleep_until: Instant,
    /// A turn is scheduled for a wake that was not reported yet.
    pub(crate) wake_noticed: bool,
    /// This turn reports a wake that did not happen.
    pub(crate) spurious_wake: bool,
    /// Completions of closed descriptors.
    pub(crate) stale: VecDeque<StaleCompletion>,
    pub(crate) planted: PlantedFault,
}

/// A pipe.
#[derive(Debug)]
pub(crate) struct Pipe {
    pub(crate) bytes: VecDeque<u8>,
    pub(crate) capacity: usize,
    /// The writing end is closed.
    pub(crate) ended: bool,
}

/// The whole state of a world.
#[derive(Debug)]
pub(crate) struct Kernel {
    pub(crate) now: Instant,
    pub(crate) plan: WorldPlan,
    pub(crate) random: SeededRandom,
    queue: BinaryHeap<Reverse<(Instant, u64, KernelEvent)>>,
    /// Number of events ever queued. Orders events of the same time.
    queued: u64,
    pub(crate) connections: Vec<Connection>,
    /// The addresses of connections that are not established yet.
    pub(crate) targets: BTreeMap<usize, Address>,
    /// The descriptors. Numbers are never reused, so that any use after a close is detected.
    pub(crate) descriptors: BTreeMap<u32, Descriptor>,
    descriptors_made: u32,
    /// The most descriptors that all engines together may have open.
    pub(crate) descriptors_max: usize,
    pub(crate) pipes: Vec<Pipe>,
    pub(crate) engines: Vec<EngineState>,
    pub(crate) port: u16,
    pub(crate) operations: u64,
    pub(crate) trace: Trace,
    /// Sum of all clock jumps.
    pub(crate) clock_jumped: Duration,
    /// Sum of the delays of turns.
    pub(crate) turn_delays: Duration,
    /// The number of times that each kind of trouble happened.
    pub(crate) trouble_counts: BTreeMap<&'static str, u64>,
    pub(crate) event_log: EventLog,
    /// Descriptors of actors at which something happened; see
    /// [`crate::World::take_changed_sockets`].
    pub(crate) changed_actor_sockets: BTreeSet<u32>,
    /// The bytes that engines have sent on connections that they opened, by connection; `None`
    /// until [`crate::World::record_engine_output`].
    pub(crate) engine_output: Option<BTreeMap<usize, Vec<u8>>>,
    pub(crate) secured: SecuredConnections,
    /// The fault of all engines that are created from now on.
    pub(crate) planted: Option<EngineFault>,
}

impl Kernel {
    pub(crate) fn new(seed: u64, faults: Faults) -> Self {
        let mut random = SeededRandom::new(seed);
        let plan = WorldPlan::draw(faults, &mut random);
        let mut kernel = Self {
            now: Instant::from_nanoseconds(1_000_000_000),
            plan,
            random,
            queue: BinaryHeap::new(),
            queued: 0,
            connections: Vec::new(),
            targets: BTreeMap::new(),
            descriptors: BTreeMap::new(),
            descriptors_made: 0,
            descriptors_max: usize::MAX,
            pipes: Vec::new(),
            engines: Vec::new(),
            port: 40_000,
            operations: 0,
            trace: Trace::default(),
            clock_jumped: Duration::ZERO,
            turn_delays: Duration::ZERO,
            trouble_counts: BTreeMap::new(),
            event_log: EventLog::default(),
            changed_actor_sockets: BTreeSet::new(),
            engine_output: None,
            secured: SecuredConnections::default(),
            planted: None,
        };
        let plan = format!("{:?}", kernel.plan);
        kernel.trace_note("seed", &format!("{seed} {plan}"));
        kernel.schedule_clock_jumps();
        kernel
    }

    /// Schedules an event for `delay` from now.
    pub(crate) fn schedule_after(&mut self, delay: Duration, event: KernelEvent) {
        self.schedule_at(self.now + delay, event);
    }

    /// Schedules an event for `when`, or for now if `when` has passed.
    pub(crate) fn schedule_at(&mut self, when: Instant, event: KernelEvent) {
        self.queued += 1;
        self.queue.push(Reverse((when.max(self.now), self.queued, event)));
    }

    /// Returns the next event, and advances the clock to its time unless it is there already.
    pub(crate) fn pop(&mut self) -> Option<KernelEvent> {
        let Reverse((when, _, event)) = self.queue.pop()?;
        self.now = self.now.max(when);
        Some(event)
    }

    /// Returns the time of the next event.
    pub(crate) fn next_event_time(&self) -> Option<Instant> {
        self.queue.peek().map(|Reverse((when, _, _))| *when)
    }

    /// Draws a delay between readiness and its effect.
    pub(crate) fn jitter(&mut self) -> Duration {
        Duration::from_nanos(self.random.between(0, self.plan.jitter_ns))
    }

    /// Opens a new descriptor and returns its number.
    pub(crate) fn open(&mut self, owner: Owner, object: Object) -> u32 {
        self.descriptors_made += 1;
        let number = self.descriptors_made;
        self.descriptors.insert(number, Descriptor { owner, object, receive: None, send: None });
        number
    }

    /// Returns the descriptor `number`.
    ///
    /// # Panics
    /// Panics if it is closed, which is a bug of the caller.
    pub(crate) fn descriptor(&mut self, number: u32) -> &mut Descriptor {
        match self.descriptors.get_mut(&number) {
            Some(descriptor) => descriptor,
            None => panic!("use of descriptor {number}, which is closed"),
        }
    }

    /// Returns a descriptor of an engine. An engine may only use its own.
    ///
    /// # Panics
    /// Panics if it is closed, or belongs to another owner.
    pub(crate) fn owned_descriptor(&mut self, engine: usize, number: u32) -> &mut Descriptor {
        let descriptor = self.descriptor(number);
        let owner = descriptor.owner;
        assert!(
            owner == Owner::Engine(engine),
            "engine {engine} uses descriptor {number}, which belongs to {owner:?}"
        );
        descriptor
    }

    /// Returns whether opening a descriptor fails: because the engines have the maximum open,
    /// because other programs use all descriptors, or at random. Counts the trouble.
    pub(crate) fn draw_descriptor_exhaustion(&mut self) -> bool {
        let is_engines = |descriptor: &&Descriptor| descriptor.owner != Owner::Actor;
        let open = self.descriptors.values().filter(is_engines).count();
        if open >= self.descriptors_max {
            self.count_trouble("no descriptor left");
            return true;
        }
        if self.random.chance(self.plan.shortages.descriptors) {
            self.count_trouble("no descriptor");
            return true;
        }
        self.detect_shortage()
    }

    /// Schedules a turn of `engine` for `when`, unless one is scheduled earlier. The turn begins
    /// later if other programs run at that time.
    pub(crate) fn schedule_turn(&mut self, engine: usize, when: Instant) {
        let state = &mut self.engines[engine];
        let when = when.max(self.now).max(state.asleep_until);
        if state.next_turn.is_some_and(|(planned, _)| planned <= when) {
            return;
        }
        state.turn_serial += 1;
        let serial = state.turn_serial;
        state.next_turn = Some((when, serial));
        self.schedule_at(when, KernelEvent::Turn { engine, serial });
    }

    pub(crate) fn record(
        &mut self,
        what: &'static str,
        descriptor: u32,
        count: usize,
        token: Option<Token>,
    ) {
        let (descriptor, count) = (Some(descriptor), count as u64);
        self.trace.push(TraceLine { at: self.now, what, descriptor, count, token, note: None });
    }

    pub(crate) fn trace_note(&mut self, what: &'static str, note: &str) {
        let note = Some(note.into());
        self.trace.push(TraceLine { at: self.now, what, note, ..TraceLine::default() });
    }

    /// Logs what `side` of a connection did, and which bytes it sent.
    pub(crate) fn log_event(&mut self, connection: usize, side: usize, did: &str, bytes: &[u8]) {
        if !self.event_log.is_enabled {
            return;
        }
        let [from, to] = [side, 1 - side].map(|side| self.endpoint_name(connection, side));
        self.event_log.push(self.now, format!("{from} {did} {to}"), bytes);
    }

    /// If an engine owns `side` of a connection, names the endpoint after its worker from now on.
    pub(crate) fn name_owner(&mut self, connection: usize, side: usize, owner: Owner) {
        if let Owner::Engine(index) = owner
            && self.event_log.is_enabled
        {
            let name = format!("worker {index} ({connection})");
            self.event_log.set_name((connection, side), &name);
        }
    }

    /// Returns the name of one endpoint of a connection.
    fn endpoint_name(&self, connection: usize, side: usize) -> String {
        if let Some(name) = self.event_log.name_of((connection, side)) {
            return name.to_owned();
        }
        match self.connections[connection].sides[side].address {
            Some(address) => format!("{address}"),
            None => "unnamed Unix socket".to_owned(),
        }
    }
}

//! A worker: one thread that runs a loop over its engine. The worker translates completions,
//! timers, messages and wake-ups into events, which the driver delivers.

pub(crate) mod drain;
mod driver;
mod maintenance;
pub(crate) mod message;
mod reconfigure;
pub(crate) mod salvage;
pub(crate) mod wakes;

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use millrace_engine::{
    Completion, CompletionEvent, Engine, Instant, Key, MailboxReceiver, PeerMailboxes, Table,
    Timers, Token, TokenKind, Wake,
};
use millrace_splice::{Pipes, Thresholds, limits::PIPES_MAX};

use crate::auth::{self, Authenticator, VerifierHandle};
use crate::cached::{fill, refresh, waiting};
use crate::conn::{Conn, ConnState, client};
use crate::core::Core;
use crate::exchange::{Event, EventTarget, Reason};
use crate::names::Resolver;
use crate::origin::{Origins, close::close, dial, events, program_events};
use crate::overload::{Overload, capacity, shed, shed::Shedding, wait_list::WaitListPass};
use crate::secure::SecureContext;
use crate::shared::SharedState;
use crate::snapshot::{Snapshot, in_use::Snapshots};
use crate::worker::message::WorkerMessage;
use millrace_config::Config;
use millrace_dns::ResolverConfig;

/// The parts of a worker besides its engine.
pub struct Setup<E: Engine> {
    /// The first configuration.
    pub config: Arc<Config>,
    /// The index of this worker, from 0.
    pub index: usize,
    /// Listening sockets, each with its listener's number.
    pub listeners: Vec<(u16, E::DetachedFd)>,
    /// Messages from the supervisor.
    pub inbox: MailboxReceiver<WorkerMessage<E::DetachedFd>, E::Waker>,
    /// Messages to and from the other workers.
    pub mail: PeerMailboxes<WorkerMessage<E::DetachedFd>, E::Waker>,
    /// The state that all workers share.
    pub shared: Arc<SharedState>,
    /// The sources of name lookups: hosts file and name servers.
    pub names: Arc<ResolverConfig>,
    /// The worker's access to the password verifier.
    pub verifier: VerifierHandle<E::Waker>,
    /// The number of descriptors that this worker may open. Clients and origins use them first
    /// come, first served, but clients never get the last eighth.
    pub descriptors: u64,
    /// The body sizes from which bodies are spliced.
    pub thresholds: Thresholds,
}

/// Returns the number of pipes that a worker may open. The process has `workers` workers, and each
/// of them may open `descriptors` descriptors.
pub fn pipes_max(thresholds: &Thresholds, workers: u64, descriptors: u64) -> u64 {
    match *thresholds {
        Thresholds::COPY => 0,
        _ => (PIPES_MAX as u64 / workers).min(descriptors / 32),
    }
}

/// A worker.
pub struct Worker<E: Engine> {
    core: Core<E>,
    inbox: MailboxReceiver<WorkerMessage<E::DetachedFd>, E::Waker>,
    /// Whether a mailbox may have messages.
    has_mail: bool,
    /// Messages that were taken out of the mailboxes and not handled yet.
    messages: VecDeque<WorkerMessage<E::DetachedFd>>,
    /// When maintenance runs next. `None` while no task is due.
    maintenance: Option<Instant>,
    /// The value of the counter of refused pipes when this worker began.
    pipes_refused_before: u64,
}

impl<E: Engine> Worker<E> {
    /// Creates a worker that accepts connections from its first turn on.
    ///
    /// # Errors
    /// If the engine cannot adopt a listener.
    pub fn new(engine: E, setup: Setup<E>) -> Result<Self, millrace_engine::Error> {
        let Setup { config, index, listeners, inbox, mail, shared, names, verifier, .. } = setup;
        // A pipe takes two descriptors, which are set aside here.
        let workers = shared.counters.len() as u64;
        let pipes_max = pipes_max(&setup.thresholds, workers, setup.descriptors);
        let descriptors = setup.descriptors - 2 * pipes_max;
        let descriptors = descriptors.clamp(2, u64::from(Token::SLOT_MAX)) as u32;
        let now = engine.now();
        let mut origins = Origins::new(descriptors, &setup.thresholds);
        origins.worker = index;
        let names = Resolver::new(names, &config.limits, now);
        let secure = SecureContext::default();
        let snapshot = Rc::new(Snapshot::new(config, now, &mut origins, &shared, &secure.clock));
        origins.reset_in_flight();
        mail.set_waker(&engine.waker());
        inbox.set_waker(engine.waker());
        let authenticator = Authenticator::new(verifier);
        authenticator.set_wake(engine.waker());
        let counters = shared.counters[index].clone();
        let pipes_refused_before = counters.pipes_refused.get();
        let core = Core {
            index,
            counters,
            shared,
            snapshots: Snapshots::new(&snapshot),
            snapshot,
            // Their bounds follow from the limits: see `reconfigure::apply_limits`.
            conns: Default::default(),
            exchanges: Default::default(),
            exchange_pool: Default::default(),
            fills: Table::new(descriptors),
            origins,
            names,
            authenticator,
            timers: Timers::new(now),
            listeners: Default::default(),
            overload: Overload::new(descriptors as usize, listeners.len()),
            pipes: Pipes::new(pipes_max as usize, setup.thresholds),
            secure,
            wakes: Default::default(),
            mail,
            cached: Default::default(),
            files: Default::default(),
            out: Vec::new(),
            log: Default::default(),
            drain: Default::default(),
            engine,
        };
        let messages = VecDeque::new();
        let (has_mail, maintenance) = (false, None);
        let mut worker =
            Self { core, inbox, has_mail, messages, maintenance, pipes_refused_before };
        worker.begin(listeners)?;
        Ok(worker)
    }

    fn begin(
        &mut self,
        listeners: Vec<(u16, E::DetachedFd)>,
    ) -> Result<(), millrace_engine::Error> {
        let core = &mut self.core;
        for (number, socket) in listeners {
            reconfigure::adopt_listener(core, number, socket)?;
        }
        reconfigure::apply_limits(core);
        reconfigure::update_for_snapshots(core);
        core.listeners.resume(&mut core.engine);
        // Messages may have arrived before the waker was set.
        core.engine.waker().wake();
        Ok(())
    }

    /// Runs one turn: waits for completions and delivers them, then timers, messages and wake-ups,
    /// then runs maintenance. Returns false once the worker has drained and nothing is left.
    pub fn run_turn(&mut self) -> bool {
        while let Some(slot) = self.core.origins.programs.next_unsettled() {
            if program_events::settle(&mut self.core, slot) {
                self.receive_from_program(slot);
            }
        }
        let deadline = match self.core.secure.has_waiting() {
            true => Some(self.core.engine.now()),
            false => self.deadline(),
        };
        self.core.engine.submit_and_wait(deadline);
        self.core.secure.begin_turn();
        while let Some(completion) = self.core.engine.next_completion() {
            self.complete(completion);
        }
        let now = self.core.engine.now();
        self.fire_timers(now);
        self.deliver_lookups();
        if std::mem::take(&mut self.has_mail) {
            self.read_messages();
        }
        self.deliver_wakes(now);
        if self.core.secure.has_waiting() {
            self.deliver_handshakes();
        }
        self.deliver_capacity();
        self.core.mail.flush();
        self.run_maintenance(now);
        let is_empty = self.core.conns.is_empty() && self.core.fills.is_empty();
        !(self.core.drain.is_draining && is_empty && self.core.listeners.is_closed())
    }

    /// Returns the latest time at which the next turn has to stop waiting.
    #[inline]
    fn deadline(&self) -> Option<Instant> {
        let core = &self.core;
        let has_waits = core.shared.cache.is_some() || !core.cached.collapsed.is_empty();
        let waits = has_waits.then(|| self.waits_deadline()).flatten();
        let deadlines =
            [core.timers.next_wakeup(), core.names.next_deadline(), self.maintenance, waits];
        deadlines.into_iter().flatten().min()
    }

    /// Continues handshakes that had to wait for this turn.
    #[cold]
    fn deliver_handshakes(&mut self) {
        while let Some(key) = self.core.secure.take_waiting() {
            if self.core.conns.get(key).is_none_or(|conn| conn.state != ConnState::Handshake) {
                continue;
            }
            self.drive(EventTarget::Conn(key), Event::CapacityFreed);
            if let Some(conn) = self.core.conns.get_mut(key) {
                conn.wire.settle(&mut self.core.engine);
            }
        }
    }

    /// Returns the earliest deadline of objects that wait for the cache or for files.
    fn waits_deadline(&self) -> Option<Instant> {
        let core = &self.core;
        let waits = &core.cached;
        let has_retries = !waits.starved.is_empty() || core.wakes.is_pending();
        let retry = has_retries.then(|| core.engine.now() + RETRY_INTERVAL);
        // A draining worker checks whether its fills still have readers.
        let drains_fills = core.drain.is_draining && !core.fills.is_empty();
        let drain = drains_fills.then(|| core.engine.now() + MAINTENANCE_INTERVAL);
        let collapsed = waits.collapsed.first().map(|(due, _)| *due);
        [retry, drain, collapsed].into_iter().flatten().min()
    }

    fn drive(&mut self, target: EventTarget, event: Event) {
        driver::drive(&mut self.core, target, event);
    }

    fn drive_if_any(&mut self, event: Option<(EventTarget, Event)>) {
        if let Some((target, event)) = event {
            self.drive(target, event);
        }
    }

    /// Delivers a completion to the object that waited for it.
    fn complete(&mut self, Completion { token, event }: Completion) {
        let key = Key::from(token);
        let core = &mut self.core;
        match (token.kind(), event) {
            (_, CompletionEvent::Woken) => self.has_mail = true,
            (TokenKind::Client, event) => {
                if let Some((target, event)) = client::handle_completion(core, key, event) {
                    driver::drive(core, target, event);
                }
                if let Some(conn) = core.conns.get_mut(key) {
                    conn.wire.settle(&mut core.engine);
                }
            }
            (TokenKind::Origin, event) => {
                if let Some((target, event)) = events::handle_completion(core, key, event) {
                    driver::drive(core, target, event);
                }
                if let Some(connection) = core.origins.connections.get_mut(key) {
                    connection.wire.settle(&mut core.engine);
                }
            }
            (TokenKind::Listener, CompletionEvent::Accepted(accepted)) => {
                core.listeners.accepted = Some(accepted);
                self.drive(EventTarget::Listener(key), Event::Accepted);
            }
            (TokenKind::Dial, CompletionEvent::Connected(result)) => {
                let event = dial::record_attempt_event(core, key, Some(result));
                self.drive_if_any(event);
            }
            (TokenKind::Program, CompletionEvent::Readable) => {
                program_events::note_readable(core, key);
                self.receive_from_program(key);
            }
            (TokenKind::Name, event) => {
                core.names.handle(&mut core.engine, token, event);
                self.deliver_lookups();
            }
            (kind, event) => {
                unreachable!("no {kind:?} requests an operation that completes with {event:?}")
            }
        }
        if std::mem::take(&mut self.core.overload.sheds_before_next) {
            self.shed_for_accepted_client();
        }
    }

    /// Delivers the timers that are due.
    #[inline]
    fn fire_timers(&mut self, now: Instant) {
        while let Some((_, token)) = self.core.timers.pop_expired(now) {
            let (core, key) = (&mut self.core, Key::from(token));
            let event = match token.kind() {
                TokenKind::Client => client::handle_timer(core, key),
                TokenKind::Origin => events::handle_timer(core, key),
                TokenKind::Dial => dial::record_attempt_event(core, key, None),
                TokenKind::Program => {
                    program_events::handle_timer(core, key);
                    self.receive_from_program(key);
                    None
                }
                kind => unreachable!("{kind:?} has no timer here"),
            };
            self.drive_if_any(event);
        }
        self.core.names.handle_deadlines(&mut self.core.engine, now);
    }

    /// Delivers the responses of a program, and lets requests continue that wait for it.
    #[inline(never)]
    fn receive_from_program(&mut self, slot: Key) {
        while let Some(exchange) = program_events::advance(&mut self.core, slot) {
            self.drive(EventTarget::Exchange(exchange), Event::Woken);
        }
    }

    fn deliver_lookups(&mut self) {
        while let Some((key, result)) = self.core.names.poll_finished() {
            let transaction = &mut self.core.exchange(key).transaction;
            let result = result.map(|addresses| transaction.addresses = Some(addresses));
            self.drive(EventTarget::Exchange(key), Event::NameResolved(result));
        }
    }

    fn read_messages(&mut self) {
        // The supervisor's messages come first: those of other workers may depend on them.
        self.messages.extend(self.inbox.drain());
        let Self { core, messages, .. } = self;
        core.mail.drain(|_, message| messages.push_back(message));
        let mut early = Vec::new();
        while let Some(message) = self.messages.pop_front() {
            let core = &mut self.core;
            match message {
                WorkerMessage::Configure { config, sockets } => {
                    reconfigure::apply_config(core, config, sockets);
                    self.messages.extend(early.drain(..));
                }
                WorkerMessage::Connection { snapshot, .. }
                    if snapshot > core.snapshot.config.number =>
                {
                    early.push(message);
                }
                WorkerMessage::Connection { socket, peer, listener, counted, .. } => {
                    drop(counted);
                    if let Ok(fd) = core.engine.adopt(socket) {
                        let listener = Key { slot: u32::from(listener), generation: 0 };
                        core.listeners.accepted = Some(Ok((fd, peer)));
                        self.drive(EventTarget::Listener(listener), Event::HandedOver);
                    }
                }
                WorkerMessage::Drain => self.drain(),
                WorkerMessage::HandOff => self.hand_off(),
                WorkerMessage::RepollListeners => self.repoll_listeners(),
                WorkerMessage::Heartbeat => core.counters.watchdog_replies.add(1),
                WorkerMessage::Stop => self.stop(),
                WorkerMessage::Wake(token) => core.wakes.local.push_back(token),
            }
        }
        self.messages.extend(early);
        if std::mem::take(&mut self.core.overload.sheds_before_next) {
            self.shed_for_accepted_client();
        }
    }

    /// Delivers the wake-ups of objects that wait for the cache or for files, and the results of
    /// password checks.
    fn deliver_wakes(&mut self, now: Instant) {
        while let Some(key) = waiting::overdue(&self.core, now) {
            self.drive(EventTarget::Exchange(key), Event::TimedOut);
        }
        if self.core.shared.cache.is_some() {
            if self.core.drain.is_draining {
                self.end_refreshes();
                let unread = fill::run::stop_unread(&mut self.core);
                self.drive_fills(unread, Event::Woken);
            }
            self.retry_starved_fills();
            let late = self.core.wakes.take_unsent();
            self.core.wake(late);
        }
        while let Some(token) = self.core.wakes.local.pop_front() {
            let target = match token.kind() {
                TokenKind::Exchange => EventTarget::Exchange(token.into()),
                TokenKind::Fill => EventTarget::Fill(token.into()),
                kind => unreachable!("no {kind:?} is woken"),
            };
            self.drive(target, Event::Woken);
        }
        if self.core.authenticator.has_pending() {
            let limits = self.core.snapshot.clone();
            for (waiting, result) in self.core.authenticator.take_results(now, limits.limits()) {
                for key in waiting {
                    let event = auth::handle_result(&mut self.core, key, &result);
                    self.drive_if_any(event);
                }
            }
        }
    }

    fn end_refreshes(&mut self) {
        for key in refresh::keys(&self.core) {
            self.drive(EventTarget::Exchange(key), Event::End(Reason::Draining));
        }
    }

    fn drive_fills(&mut self, fills: Vec<Key>, event: Event) {
        for key in fills {
            self.drive(EventTarget::Fill(key), event);
        }
    }

    /// Retries fills that found no memory, until one of them fails again. The fills after it would
    /// fail too, and each attempt evicts cached objects. The fill that failed comes last the next
    /// time.
    fn retry_starved_fills(&mut self) {
        let starved = std::mem::take(&mut self.core.cached.starved);
        for (at, key) in starved.iter().enumerate() {
            self.drive(EventTarget::Fill(*key), Event::CapacityFreed);
            let still = &mut self.core.cached.starved;
            if still.contains(key) {
                still.splice(0..0, starved[at + 1..].iter().copied());
                return;
            }
        }
    }

    /// Retries exchanges that wait for capacity. The exchanges that ended in this turn may have
    /// freed some.
    #[inline]
    fn deliver_capacity(&mut self) {
        if !self.core.overload.wait_list.is_empty() {
            let mut retries = WaitListPass::new(&self.core);
            while let Some(key) = retries.next(&mut self.core) {
                self.drive(EventTarget::Exchange(key), Event::CapacityFreed);
            }
        }
        if self.core.origins.queued_count() == 0 {
            return;
        }
        while let Some(id) = self.core.origins.pop_gained_capacity() {
            // The loop ends: each exchange that continues takes an idle connection, a free slot for
            // a new one, or a place behind other requests.
            while let Some(key) = self.core.origins.first_in_queue(id) {
                self.drive(EventTarget::Exchange(key), Event::CapacityFreed);
                if self.core.origins.first_in_queue(id) == Some(key) {
                    break;
                }
            }
        }
    }

    /// Sheds stalled clients after a client was accepted at the limit of connections. Pauses
    /// accepting if that does not suffice.
    fn shed_for_accepted_client(&mut self) {
        if let Some(shedding) = shed::shed_for_client(&mut self.core) {
            self.shed(shedding);
        }
        if shed::lacks_reserve(&self.core, 0) {
            capacity::pause_accepting(&mut self.core, "the limit of connections is reached");
        }
    }

    fn shed(&mut self, mut shedding: Shedding) {
        while let Some((target, event)) = shedding.next(&mut self.core) {
            self.drive(target, event);
        }
    }

    /// Returns the numbers of client connections, exchanges, origin connections and connection
    /// attempts in use. All are 0 after a drain. Refreshes and idle origin connections do not
    /// count.
    pub fn live_objects(&self) -> [usize; 4] {
        let core = &self.core;
        [
            core.conns.len(),
            core.exchanges.len() - core.cached.refreshes,
            core.origins.connections.len() - core.origins.idle_count(),
            core.origins.attempts.len(),
        ]
    }

    /// Returns the most bytes that a connection holds without a charge to the budget, such as
    /// replies of its TLS session.
    pub fn uncharged_bytes_max(&self) -> usize {
        let clients = self.core.conns.iter().map(|(_, conn)| conn.wire.uncharged());
        let origins = self.core.origins.connections.iter().map(|(_, it)| it.wire.uncharged());
        clients.chain(origins).max().unwrap_or(0)
    }

    /// Ends everything that a drained worker still holds, and returns its engine.
    pub fn finish(mut self) -> E {
        // Exchanges with clients have ended; only refreshes are left.
        self.end_refreshes();
        while let Some(key) = self.core.origins.oldest_idle() {
            close(&mut self.core, key);
        }
        let fills = self.core.fills.keys_where(|_| true);
        self.drive_fills(fills, Event::End(Reason::Draining));
        // Other workers may wait for the objects that end here.
        self.core.mail.flush();
        self.send_late_wakes();
        let core = &mut self.core;
        core.listeners.close_all(&mut core.engine);
        core.names.shut_down(&mut core.engine);
        core.pipes.close_free(&mut core.engine);
        self.flush_records();
        // A successor polls the listeners again once the gauge of listeners is 0 in all workers.
        self.publish_gauges();
        self.core.engine
    }

    /// Closes idle connections, accepts the connections that are still queued at the listeners, and
    /// then stops accepting. Exchanges in progress are finished.
    pub fn drain(&mut self) {
        let core = &mut self.core;
        core.drain.is_draining = true;
        core.listeners.resume(&mut core.engine);
        self.maintenance = Some(core.engine.now() + MAINTENANCE_INTERVAL);
        self.close_idle();
    }

    /// Like [`Worker::drain`], while a successor accepts from the same listeners.
    fn hand_off(&mut self) {
        let core = &mut self.core;
        core.drain.is_draining = true;
        core.drain.idle_grace = HANDED_OFF_IDLE_MIN;
        core.listeners.pause(&mut core.engine);
        self.maintenance = Some(core.engine.now() + MAINTENANCE_INTERVAL);
    }

    /// Polls the listeners again, which checks their accept queues. The kernel reports a connection
    /// to only one of the processes that wait for a listener (EPOLLEXCLUSIVE), and that process may
    /// have gone.
    fn repoll_listeners(&mut self) {
        let core = &mut self.core;
        if !core.drain.is_draining && core.listeners.pause(&mut core.engine) {
            core.listeners.resume(&mut core.engine);
        }
    }

    /// Closes the connections on which no request is expected.
    fn close_idle(&mut self) {
        let core = &mut self.core;
        let (now, grace) = (core.engine.now(), core.drain.idle_grace);
        let is_idle = |conn: &Conn| conn.may_close_idle(now) && now.since(conn.since) >= grace;
        for key in core.conns.keys_where(is_idle) {
            client::close(core, key);
        }
    }

    /// Ends everything at once.
    fn stop(&mut self) {
        let core = &mut self.core;
        core.drain.is_draining = true;
        core.listeners.close_all(&mut core.engine);
        for key in core.conns.keys_where(|_| true) {
            match self.core.conns.get(key).map(|conn| conn.pipeline.first()) {
                Some(Some(exchange)) => {
                    self.drive(EventTarget::Exchange(exchange), Event::End(Reason::Draining));
                }
                Some(None) => client::close(&mut self.core, key),
                None => {}
            }
        }
    }
}

/// How long a client connection must have been idle before a worker that handed off its listeners
/// closes it. A response in the meantime announces that the connection closes. Closing earlier
/// might lose a request that is on its way.
const HANDED_OFF_IDLE_MIN: Duration = Duration::from_secs(5);
/// The period of maintenance: how often counts are exchanged and records flushed.
const MAINTENANCE_INTERVAL: Duration = Duration::from_millis(100);
/// How soon a fill that found no memory, or a wake-up that found a full mailbox, is retried.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

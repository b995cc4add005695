//! An origin of a random scenario: checks every received byte, and responds to each request as
//! planned.

mod checks;
mod responses;

use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use millrace_engine::{Address, Instant};
use millrace_sim::{ActorSocket, ReadResult, World};

use super::coverage;
use super::model::{ExchangeModel, Moment, SilenceCheck};
use super::plan::{Origin, OriginBehaviour, Request};
use super::programs::reader::{RecordReader, RequestReader};
use super::reader::{MessageReader, Side};
use super::send::{NextWake, SendOutcome, SendQueue, SendStep};
use super::wire;
use crate::simulated::tls::TlsSettings;
use crate::simulated::transport::Transport;

/// An origin and its connections.
pub(super) struct RandomOrigin {
    plan: Origin,
    number: usize,
    model: ExchangeModel,
    tls: Option<Rc<TlsSettings>>,
    listener: Option<ActorSocket>,
    accepted: usize,
    connections: Vec<OriginConnection>,
}

/// One connection.
struct OriginConnection {
    name: String,
    /// The number of its origin.
    number: usize,
    behaviour: OriginBehaviour,
    model: ExchangeModel,
    transport: Option<Transport>,
    reader: RequestReader,
    outgoing: SendQueue,
    state: ConnectionState,
    /// Bytes received of the payload of the request or of the tunnel.
    got: usize,
    /// The expected payload.
    want: Vec<u8>,
    /// The request is complete.
    request_complete: bool,
    /// The last byte of the response was accepted.
    response_sent: bool,
    responses_sent: usize,
    /// The id of the last request.
    last_request: u32,
    last_progress: Moment,
    /// When the origin ended its stream because the connection was idle.
    ended_idle: Option<Moment>,
    /// Unrequested bytes follow its last response.
    extra_queued: bool,
    /// A time by which all unrequested bytes had reached the proxy.
    extra_sent: Option<Moment>,
    /// Since when no request may follow on it, because a malformed response was sent.
    unusable: Option<Moment>,
    /// A time by which the first bytes of an early response had reached the proxy.
    early_reached: Option<Moment>,
    /// Whether a response began long before the end of its request's body, so that no further
    /// request may follow.
    overtaken: bool,
    /// Whether the bytes from here on are not checked.
    ignored: bool,
    ended: bool,
    /// When to act without an event; `None`: at once.
    next_wake: Option<Instant>,
    silence: SilenceCheck,
}

/// The state of a connection.
#[derive(Debug)]
enum ConnectionState {
    Idle,
    Request(Box<Request>),
    Tunnel(Box<Request>),
}

impl RandomOrigin {
    /// Opens the origin's address.
    pub(super) fn new(
        plan: &Origin,
        number: usize,
        model: &ExchangeModel,
        world: &World,
        tls: &Option<Rc<TlsSettings>>,
    ) -> (Self, u16) {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listener = world.actor_listen(&address);
        let Address::Tcp(address) = world.local_address(listener) else {
            unreachable!("the listener is TCP");
        };
        let refuses = plan.behaviour == OriginBehaviour::Refuses;
        if refuses {
            model.cover(coverage::behaviour_class(plan.behaviour));
            world.close(listener);
        }
        let actor = Self {
            plan: *plan,
            number,
            model: model.clone(),
            tls: tls.clone(),
            listener: (!refuses).then_some(listener),
            accepted: 0,
            connections: Vec::new(),
        };
        (actor, address.port())
    }

    /// Acts on sockets among `changed_sockets`, or when the time to act has come. Returns when to
    /// act again.
    pub(super) fn step(
        &mut self,
        world: &World,
        changed_sockets: &BTreeSet<ActorSocket>,
    ) -> Option<Instant> {
        let now = world.now();
        let mut next_wake = NextWake::default();
        while let Some((socket, _)) = self.listener.and_then(|listener| world.accept(listener)) {
            self.accepted += 1;
            self.begin(world, socket);
        }
        for connection in &mut self.connections {
            let due = connection.next_wake.is_none_or(|next_wake| next_wake <= now);
            if due || connection.socket().is_some_and(|socket| changed_sockets.contains(&socket)) {
                let mut again = NextWake::default();
                connection.step(world, &mut again);
                connection.next_wake = Some(again.0.unwrap_or(now + Duration::from_secs(3600)));
            }
            connection.next_wake.into_iter().for_each(|again| next_wake.at(again));
        }
        self.connections.retain(|connection| connection.transport.is_some());
        next_wake.0
    }

    fn begin(&mut self, world: &World, socket: ActorSocket) {
        let name = format!("origin {}.{}", self.number, self.accepted);
        world.name_socket(socket, &name);
        self.model.cover(coverage::behaviour_class(self.plan.behaviour));
        match self.plan.behaviour {
            OriginBehaviour::ClosesAtOnce => return world.close(socket),
            OriginBehaviour::ResetsAtOnce => return world.reset(socket),
            _ => {}
        }
        let transport = match &self.tls {
            None => Transport::plain(socket),
            Some(tls) => {
                coverage::cover_origin_tls(&self.model, self.plan.tls);
                tls.origin(world, socket, self.plan.tls)
            }
        };
        self.connections.push(OriginConnection {
            name,
            number: self.number,
            behaviour: self.plan.behaviour,
            model: self.model.clone(),
            transport: Some(transport),
            reader: match self.model.scenario().proxy.fastcgi {
                true => RequestReader::Records(RecordReader::default()),
                false => RequestReader::Http(MessageReader::new(Side::Requests)),
            },
            outgoing: SendQueue::default(),
            state: ConnectionState::Idle,
            got: 0,
            want: Vec::new(),
            request_complete: false,
            response_sent: false,
            responses_sent: 0,
            last_request: 0,
            last_progress: Moment::now(world),
            ended_idle: None,
            extra_queued: false,
            extra_sent: None,
            unusable: None,
            early_reached: None,
            overtaken: false,
            ignored: false,
            ended: false,
            next_wake: None,
            silence: SilenceCheck::default(),
        });
    }

    /// Closes every socket at the end of the world.
    pub(super) fn close(&mut self, world: &World) {
        self.connections.iter_mut().for_each(|connection| connection.close(world));
        self.connections.clear();
        self.listener.take().into_iter().for_each(|listener| world.close(listener));
    }
}

impl OriginConnection {
    fn step(&mut self, world: &World, next_wake: &mut NextWake) {
        let Some(transport) = &mut self.transport else { return };
        if let Err(why) = transport.advance(world) {
            return self.fail(world, "tls", why);
        }
        self.send(world, next_wake);
        if self.transport.is_some() && self.behaviour != OriginBehaviour::NeverReads && !self.ended
        {
            self.read(world);
        }
        if self.transport.is_some() {
            self.send(world, next_wake);
        }
        if self.transport.is_some() {
            self.watch_early(world, next_wake);
            self.watch_extra(world, next_wake);
            self.act_when_idle(world, next_wake);
        }
        if self.ended && self.outgoing.is_empty() && self.prepare_close(world) {
            self.close(world);
        }
        if self.transport.is_some() {
            self.check_silence(world, next_wake);
        }
    }

    fn record_progress(&mut self, world: &World) {
        self.last_progress = Moment::now(world);
        if let ConnectionState::Request(request) | ConnectionState::Tunnel(request) = &self.state {
            self.model.record_progress(request.id, self.last_progress);
        }
    }

    fn send(&mut self, world: &World, next_wake: &mut NextWake) {
        loop {
            let before = self.outgoing.total;
            let sent = self.outgoing.step(world, &mut self.transport);
            if self.outgoing.total > before {
                self.record_progress(world);
            }
            match sent {
                SendOutcome::Mark => {
                    self.response_sent = true;
                    self.next(world);
                    self.check_received(world);
                }
                SendOutcome::All | SendOutcome::Full | SendOutcome::Gone => return,
                SendOutcome::Until(until) => return next_wake.at(until),
            }
        }
    }

    fn read(&mut self, world: &World) {
        while let Some(transport) = &mut self.transport {
            match transport.read(world, 64 * 1024) {
                ReadResult::Bytes(bytes) => {
                    self.record_progress(world);
                    self.reader.add(&bytes);
                    self.check_received(world);
                }
                ReadResult::End => return self.ends(world, self.outgoing.broke),
                ReadResult::Failed(_) => return self.ends(world, true),
                ReadResult::Nothing => return,
            }
        }
    }

    /// Records when bytes of an early final response have reached the proxy.
    fn watch_early(&mut self, world: &World, next_wake: &mut NextWake) {
        let ConnectionState::Request(request) = &self.state else { return };
        if !request.response.early || self.request_complete || self.early_reached.is_some() {
            return;
        }
        if self.response_sent && self.undelivered(world) == 0 {
            self.early_reached = Some(Moment::now(world));
        } else {
            next_wake.at(world.now() + Duration::from_millis(100));
        }
    }

    /// Records when unrequested bytes have reached the proxy.
    fn watch_extra(&mut self, world: &World, next_wake: &mut NextWake) {
        if !self.extra_queued || self.extra_sent.is_some() {
            return;
        }
        if self.outgoing.is_empty() && self.undelivered(world) == 0 {
            self.extra_sent = Some(Moment::now(world));
        } else {
            next_wake.at(world.now() + Duration::from_millis(100));
        }
    }

    /// Applies the planned behaviour to an idle connection.
    fn act_when_idle(&mut self, world: &World, next_wake: &mut NextWake) {
        let quiet = matches!(self.state, ConnectionState::Idle) && self.outgoing.is_empty();
        let over = self.ignored
            || self.unusable.is_some()
            || self.extra_queued
            || self.ended_idle.is_some();
        if self.responses_sent == 0 || !quiet || over || !self.reader.is_between() {
            return;
        }
        let (OriginBehaviour::ClosesIdle(ms)
        | OriginBehaviour::EndsIdle(ms)
        | OriginBehaviour::SendsUnrequested(ms)) = self.behaviour
        else {
            return;
        };
        let until = self.last_progress.at + Duration::from_millis(ms);
        if world.now() < until {
            return next_wake.at(until);
        }
        match self.behaviour {
            OriginBehaviour::ClosesIdle(_) => return self.close(world),
            OriginBehaviour::EndsIdle(_) => {
                self.transport.iter_mut().for_each(|it| it.shutdown_write(world));
                self.ended_idle = Some(Moment::now(world));
                return;
            }
            _ => {}
        }
        let stray = wire::UNREQUESTED_BYTES[self.responses_sent % wire::UNREQUESTED_BYTES.len()];
        // With tiny buffers, the socket may still be full of the response, so these bytes go
        // through the queue.
        self.outgoing.add(SendStep::Bytes(stray.as_bytes().to_vec()));
        self.extra_queued = true;
        self.send(world, next_wake);
        if self.transport.is_some() {
            self.watch_extra(world, next_wake);
        }
    }

    /// Fails if a connection that the proxy has not closed is silent for longer than the limits
    /// allow.
    fn check_silence(&mut self, world: &World, next_wake: &mut NextWake) {
        if self.socket().is_none_or(|socket| world.is_peer_closed(socket)) {
            return;
        }
        let waits = self.model.waits();
        let (wait, word, id) = match &self.state {
            ConnectionState::Tunnel(request) => (waits.tunnel, "in a tunnel", Some(request.id)),
            ConnectionState::Request(request) => {
                (waits.exchange, "in an exchange", Some(request.id))
            }
            // Before it sends the first request, the proxy may look up a name and try other
            // connections. The connection may also be a tunnel that is still silent.
            ConnectionState::Idle if self.responses_sent == 0 => {
                (waits.tunnel, "before a request", None)
            }
            ConnectionState::Idle if self.reader.is_between() => {
                (waits.kept, "idle", Some(self.last_request))
            }
            ConnectionState::Idle => (waits.exchange, "in a request header", None),
        };
        let last_progress = id.and_then(|id| self.model.last_progress(id));
        let since = last_progress
            .map_or(self.last_progress, |last_progress| last_progress.max(self.last_progress));
        let until = since.until(world, wait);
        if let Some(again) = self.silence.check(world.now(), until) {
            next_wake.at(again);
        } else {
            let details = format!("silent {word} for {} ms", wait.as_millis());
            self.fail(world, "overdue", details);
        }
    }

    fn socket(&self) -> Option<ActorSocket> {
        self.transport.as_ref().map(Transport::socket)
    }

    fn undelivered(&self, world: &World) -> usize {
        self.transport.as_ref().map_or(0, |transport| transport.undelivered(world))
    }

    fn prepare_close(&mut self, world: &World) -> bool {
        self.transport.as_mut().is_some_and(|transport| transport.prepare_close(world))
    }

    fn close(&mut self, world: &World) {
        if let Some(transport) = self.transport.take() {
            if transport.is_resumed() {
                self.model.cover("origin: resumes a session");
            }
            transport.close(world);
        }
    }

    fn fail(&mut self, world: &World, kind: &'static str, details: String) {
        self.model.fail(world, kind, format!("{}: {details}", self.name));
        self.ignored = true;
        self.close(world);
    }
}

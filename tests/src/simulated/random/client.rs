//! A client connection of a random scenario: sends its requests, and checks every received byte.

mod checks;
mod file_progress;
mod files;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::{Address, Instant};
use millrace_sim::{ActorSocket, ReadResult, World};

use super::coverage;
use super::model::{ExchangeModel, Moment, SilenceCheck};
use super::pace::Pace;
use super::plan::{Connection, Ending, Reader, Request};
use super::reader::{MessageReader, Side};
use super::send::{NextWake, SendOutcome, SendQueue, SendStep};
use super::wire::{self, Route};
use crate::simulated::tls::ProxyAddress;
use crate::simulated::transport::Transport;
use file_progress::FileProgress;

/// Progress of the next response.
#[derive(Debug)]
enum ResponseProgress {
    /// No final header has arrived.
    Head,
    /// The response of the origin.
    Origin { got: usize, want: Vec<u8> },
    /// The proxy's own response, with its expected body.
    Own { got: usize, want: Vec<u8> },
    /// A file, or the refusal of one.
    File(Box<FileProgress>),
    /// A tunnel, with the number of received bytes.
    Tunnel { got: usize, want: Vec<u8> },
}

/// A request that was queued for sending.
struct QueuedRequest {
    at: Instant,
    /// The entity tag that was known for its file.
    known_tag: Option<String>,
}

/// A client connection.
pub(super) struct RandomClient {
    plan: Connection,
    name: String,
    /// For each request, the authority of its origin.
    authorities: Vec<String>,
    must_succeed: bool,
    model: ExchangeModel,
    begins: Instant,
    transport: Option<Transport>,
    began: bool,
    /// The proxy has accepted the connection.
    accepted: bool,
    over: bool,
    outgoing: SendQueue,
    /// Requests that were queued for sending.
    sent: usize,
    /// Bytes sent before the last queued request.
    sent_before: u64,
    queued: Vec<QueuedRequest>,
    /// Requests whose responses are complete.
    completed: usize,
    reader: MessageReader,
    progress: ResponseProgress,
    interims: u32,
    /// A response announced the end of the connection.
    closing: bool,
    pace: Pace,
    last_progress: Moment,
    /// The stream from the proxy has ended, and sending continues.
    ended: bool,
    /// Whether the bytes after the current response are not checked.
    ignores_rest: bool,
    /// When to act next without an event.
    next_wake: Option<Instant>,
    silence: SilenceCheck,
}

impl RandomClient {
    /// Returns whether the connection uses a Unix socket, which has no resets.
    fn is_unix_socket(&self) -> bool {
        self.model.scenario().proxy.unix
    }

    pub(super) fn new(
        plan: &Connection,
        number: usize,
        authorities: &[String],
        model: &ExchangeModel,
        world: &World,
    ) -> Self {
        let of = |request: &Request| authorities[request.origin].clone();
        Self {
            name: format!("client {}.{}", plan.client, number),
            authorities: plan.requests.iter().map(of).collect(),
            must_succeed: model.scenario().must_succeed(plan),
            model: model.clone(),
            begins: world.now() + Duration::from_millis(plan.begins_ms),
            transport: None,
            began: false,
            accepted: false,
            over: false,
            outgoing: SendQueue::default(),
            sent: 0,
            sent_before: 0,
            queued: Vec::new(),
            completed: 0,
            reader: MessageReader::new(Side::Responses),
            progress: ResponseProgress::Head,
            interims: 0,
            closing: false,
            pace: Pace::new(plan.reader),
            last_progress: Moment::now(world),
            ended: false,
            ignores_rest: false,
            next_wake: None,
            silence: SilenceCheck::default(),
            plan: plan.clone(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// Describes what the client waits for.
    pub(super) fn state(&self) -> String {
        let (completed, all) = (self.completed, self.plan.requests.len());
        let over = if self.over { "has ended" } else { "waits" };
        format!("{} {over}, {completed} of {all} completed, {:?}", self.name, self.plan.ending)
    }

    /// Closes the socket at the end of the world.
    pub(super) fn close(&mut self, world: &World) {
        if let Some(transport) = self.transport.take() {
            if transport.is_resumed() {
                self.model.cover("client: resumes a session");
            }
            transport.close(world);
        }
        self.over = true;
    }

    /// Acts if the socket is among `changed_sockets` or the time to act has come. Returns when to
    /// act again.
    pub(super) fn step(
        &mut self,
        world: &World,
        proxy: &ProxyAddress,
        changed_sockets: &BTreeSet<ActorSocket>,
    ) -> Option<Instant> {
        let due = self.next_wake.is_some_and(|next_wake| next_wake <= world.now());
        let has_changed =
            self.transport.as_ref().is_some_and(|it| changed_sockets.contains(&it.socket()));
        if due || !self.began || has_changed {
            self.next_wake = self.act(world, proxy);
        }
        self.next_wake
    }

    fn act(&mut self, world: &World, proxy: &ProxyAddress) -> Option<Instant> {
        if self.over {
            return None;
        }
        if !self.began {
            if world.now() < self.begins {
                return Some(self.begins);
            }
            self.begin(world, proxy);
        }
        let transport = self.transport.as_mut()?;
        let socket = transport.socket();
        match world.connected(socket) {
            None => return None,
            Some(Ok(())) => {
                if let Err(why) = transport.advance(world) {
                    self.fail(world, "tls", why);
                    return None;
                }
            }
            Some(Err(error)) => {
                if self.must_succeed {
                    self.fail(world, "unserved", format!("cannot connect: {error}"));
                }
                self.close(world);
                return None;
            }
        }
        let mut next_wake = NextWake::default();
        self.send(world, &mut next_wake);
        if !self.over && !self.ended {
            self.read(world, &mut next_wake);
        }
        if !self.over {
            self.send(world, &mut next_wake);
        }
        if !self.over && self.ended && self.outgoing.is_empty() && self.prepare_close(world) {
            self.end_connection(world);
        }
        if !self.over {
            self.check_silence(world, socket, &mut next_wake);
        }
        next_wake.0.filter(|_| !self.over)
    }

    fn begin(&mut self, world: &World, proxy: &ProxyAddress) {
        self.began = true;
        let from = SocketAddr::from(([127, 0, 1, self.plan.client + 1], 1));
        let from = matches!(proxy.address, Address::Tcp(_)).then_some(from);
        let socket = world.connect(&proxy.address, from);
        world.name_socket(socket, &self.name);
        self.transport = Some(proxy.transport(world, socket, self.plan.tls));
        self.last_progress = Moment::now(world);
        self.model.cover(match self.must_succeed {
            true => "client: must succeed",
            false => "client: may fail",
        });
        if proxy.tls.is_some() {
            coverage::cover_tls(&self.model, self.plan.tls);
        }
        if let Reader::Slow(..) = self.plan.reader {
            self.model.cover("client: reads slowly");
        }
        if self.plan.ending == Ending::Idles {
            self.model.cover("client: waits for the proxy to close");
        }
    }

    fn prepare_close(&mut self, world: &World) -> bool {
        self.transport.as_mut().is_none_or(|transport| transport.prepare_close(world))
    }

    /// Returns the request whose response is next.
    fn current_request(&self) -> Option<&Request> {
        self.plan.requests.get(self.completed)
    }

    fn send(&mut self, world: &World, next_wake: &mut NextWake) {
        loop {
            let before = self.outgoing.total;
            let sent = self.outgoing.step(world, &mut self.transport);
            if self.outgoing.total > before {
                self.record_progress(world);
            }
            match sent {
                SendOutcome::Until(until) => return next_wake.at(until),
                SendOutcome::Gone => {
                    self.model.cover("client: leaves in the middle");
                    self.over = true;
                    return;
                }
                SendOutcome::All if self.queue_next_request(world.now()) => {}
                SendOutcome::All | SendOutcome::Full | SendOutcome::Mark => return,
            }
        }
    }

    /// Begins to send the next request, if its time has come.
    fn queue_next_request(&mut self, now: Instant) -> bool {
        let behind = self.plan.pipelined || self.sent == self.completed;
        let may = behind && !self.closing && !self.outgoing.has_ended();
        let Some(request) = self.plan.requests.get(self.sent).filter(|_| may) else {
            return false;
        };
        let request = request.clone();
        let scenario = self.model.scenario();
        let authority = self.authorities[self.sent].clone();
        let (fields, known_tag) = self.file_fields(&request);
        let target = scenario.target(&request);
        let forward = scenario.proxy.forward;
        let route = Route { authority: &authority, forward, target: &target, fields: &fields };
        let (check_header, check_body) = wire::request(&request, &route);
        self.sent += 1;
        self.queued.push(QueuedRequest { at: now, known_tag });
        self.sent_before = self.outgoing.total;
        if request.pause_ms > 0 {
            self.outgoing.add(SendStep::Pause(request.pause_ms));
        }
        coverage::cover_request(&self.model, &self.plan, &request);
        if request.body.expects && !check_body.is_empty() {
            self.outgoing.add(SendStep::Bytes(check_header));
            self.outgoing.add(SendStep::Await(1000));
            self.outgoing.add_broken(check_body, request.breaks);
        } else {
            let breaks = request.breaks.filter(|_| !request.method.is_tunnel());
            self.outgoing.add_broken([check_header, check_body].concat(), breaks);
        }
        if self.sent == self.plan.requests.len()
            && self.plan.ending == Ending::Finishes
            && !request.method.is_tunnel()
        {
            self.model.cover("client: ends its stream after its requests");
            self.outgoing.add(SendStep::Finish);
        }
        true
    }

    /// Records progress of the connection and of the requests that were sent.
    fn record_progress(&mut self, world: &World) {
        self.last_progress = Moment::now(world);
        // A pipelined request waits for the requests before it. Their progress counts for it too.
        for request in &self.plan.requests[self.completed..self.sent.max(self.completed)] {
            self.model.record_progress(request.id, self.last_progress);
        }
    }

    fn read(&mut self, world: &World, next_wake: &mut NextWake) {
        loop {
            let max = match self.pace.readable(world, &self.model) {
                Ok(max) => max,
                Err(until) => return next_wake.at(until),
            };
            let Some(transport) = &mut self.transport else { return };
            match transport.read(world, max) {
                ReadResult::Bytes(bytes) => {
                    self.record_progress(world);
                    self.pace.record_read(world, bytes.len());
                    self.reader.add(&bytes);
                    self.check_received(world);
                }
                ReadResult::End => return self.ended(world, false),
                ReadResult::Failed(_) => return self.ended(world, true),
                ReadResult::Nothing => return,
            }
            if self.over {
                return;
            }
        }
    }

    /// Fails if a connection that the proxy has accepted and not closed is silent for longer than
    /// the limits allow.
    fn check_silence(&mut self, world: &World, socket: ActorSocket, next_wake: &mut NextWake) {
        if world.is_peer_closed(socket) {
            return;
        }
        if !self.accepted {
            // The limits count from acceptance, which raises no event, so it is polled.
            self.accepted = world.is_accepted(socket);
            self.last_progress = Moment::now(world);
            return next_wake.at(world.now() + Duration::from_secs(1));
        }
        let waits = self.model.waits();
        // A request of which no byte was accepted has not begun. With TLS, the proxy may have all
        // of it while records behind it are not accepted.
        let is_unaccepted = self.sent > 0 && self.outgoing.total == self.sent_before;
        let in_flight = self.transport.as_ref().is_some_and(Transport::has_in_flight);
        let (unsent, may_have_begun) = (is_unaccepted && !in_flight, is_unaccepted && in_flight);
        let sent = self.sent - usize::from(unsent);
        let under_way = &self.plan.requests[self.completed..sent.max(self.completed)];
        let since = under_way.iter().filter_map(|request| self.model.last_progress(request.id));
        let since = since
            .max()
            .map_or(self.last_progress, |last_progress| last_progress.max(self.last_progress));
        // A client that does not read does not see that its tunnel has begun.
        let tunnel = under_way.iter().any(|request| request.method.is_tunnel());
        let (wait, word) = if tunnel && self.pace.is_resting() {
            // If the tunnel was refused, the client does not see that either, and the proxy waits
            // for the next request.
            (waits.tunnel.max(waits.exchange).max(waits.idle), "in a tunnel, without being read")
        } else if tunnel {
            (waits.tunnel, "in a tunnel")
        } else if under_way.is_empty() {
            (waits.idle, "between requests")
        } else if may_have_begun {
            (waits.exchange.max(waits.idle), "in an exchange that may not have begun")
        } else if self.pace.is_resting() {
            // The whole response may be in the kernel: then the proxy waits for the next request.
            (waits.exchange.max(waits.idle), "in an exchange, without being read")
        } else {
            (waits.exchange, "in an exchange")
        };
        let until = since.until(world, wait);
        if let Some(again) = self.silence.check(world.now(), until) {
            next_wake.at(again);
        } else {
            let details = format!("silent {word} for {} ms", wait.as_millis());
            self.fail(world, "overdue", details);
        }
    }

    fn fail(&mut self, world: &World, kind: &'static str, details: String) {
        self.model.fail(world, kind, format!("{}: {details}", self.name));
        self.over = true;
    }
}

//! The client and the origin of a script.

use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use millrace_engine::{Address, Instant};
use millrace_sim::{Actor, ActorSocket, ReadResult, World};

use super::script::{HOST, OWN, Script, SocketAction, sent_bytes};
use crate::corpus::origin::{Seen, default_response};
use crate::strict::{self, Ambiguity, Message, RequestContext};

/// Pause between two writes of one side, long enough that the proxy reads them separately.
const PAUSE: Duration = Duration::from_millis(1);

/// Parses an address.
pub(super) fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address literal")
}

/// Both sides of the proxy, and what they saw.
pub(super) struct Actors {
    client: Sender,
    listener: ActorSocket,
    connections: Vec<Connection>,
    responses: VecDeque<Vec<SocketAction>>,
    /// All bytes that the client received.
    pub(super) received: Vec<u8>,
    /// The requests that reached the origin.
    pub(super) seen: Vec<Message>,
    /// The requests and responses of each origin connection.
    pub(super) exchanges: Vec<OriginExchanges>,
    /// Ambiguous input that reached the origin, with the reason.
    pub(super) ambiguous: Vec<(Vec<u8>, Ambiguity)>,
    /// Whether the client's connection has ended.
    pub(super) over: Rc<Cell<bool>>,
}

/// The exchanges of an origin connection.
#[derive(Clone, Debug, Default)]
pub(super) struct OriginExchanges {
    /// The request of each response. If an early response belongs to a request that never
    /// completed, this is `GET`.
    pub(super) requests: Vec<RequestContext>,
    /// The bytes of the responses, as the script has them.
    pub(super) sent_bytes: Vec<u8>,
    /// Whether the connection ends after the last response. Responses that the script has for later
    /// requests are then never sent.
    pub(super) ends: bool,
}

/// A socket and the bytes to send on it.
struct Sender {
    /// `None` once it is closed.
    socket: Option<ActorSocket>,
    actions: VecDeque<SocketAction>,
    /// The bytes of earlier actions that the kernel has not accepted yet.
    rest: Vec<u8>,
    /// Nothing is sent before this time.
    after: Instant,
}

/// An origin connection.
struct Connection {
    /// The index in [`Actors::exchanges`].
    number: usize,
    sender: Sender,
    input: Vec<u8>,
    /// Input is no longer parsed as requests: after an upgrade, or after ambiguous input.
    raw: bool,
    /// An early response has begun: its request has arrived only in part.
    begun: bool,
}

impl Actor for Actors {
    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut next_wake = self.client.step(world, true);
        self.read_client(world);
        while let Some((socket, _)) = world.accept(self.listener) {
            let sender = Sender::new(socket, VecDeque::new(), world);
            self.exchanges.push(OriginExchanges::default());
            self.connections.push(Connection {
                number: self.exchanges.len() - 1,
                sender,
                input: Vec::new(),
                raw: false,
                begun: false,
            });
        }
        for index in 0..self.connections.len() {
            self.read_origin(world, index);
            let again = self.connections[index].sender.step(world, false);
            next_wake = next_wake.into_iter().chain(again).min();
        }
        self.connections.retain(|connection| connection.sender.socket.is_some());
        next_wake
    }
}

impl Actors {
    pub(super) fn new(world: &World, script: &Script) -> Self {
        let listener = world.actor_listen(&Address::Tcp(address(HOST)));
        // A client that has sent everything ends its stream, so that every connection ends.
        let mut actions: VecDeque<_> = script.client.iter().cloned().collect();
        if !actions.iter().any(|action| matches!(action, SocketAction::End | SocketAction::Reset)) {
            actions.push_back(SocketAction::End);
        }
        let socket = world.connect(&Address::Tcp(address(OWN)), None);
        Self {
            client: Sender::new(socket, actions, world),
            listener,
            connections: Vec::new(),
            responses: script.responses.iter().cloned().collect(),
            received: Vec::new(),
            seen: Vec::new(),
            exchanges: Vec::new(),
            ambiguous: Vec::new(),
            over: Rc::default(),
        }
    }

    /// Closes every socket.
    pub(super) fn close(&mut self, world: &World) {
        self.client.close(world);
        for connection in &mut self.connections {
            connection.sender.close(world);
        }
        world.close(self.listener);
    }

    /// Describes what was seen, for messages.
    pub(super) fn state(&self) -> String {
        let exchanges = self
            .exchanges
            .iter()
            .map(|exchanges| format!("origin sent {}", exchanges.sent_bytes.escape_ascii()));
        let seen = self.seen.iter().map(|seen| Seen::Whole(seen.clone()).to_string());
        let lines = seen.chain(exchanges).collect::<Vec<_>>().join("\n");
        format!("{lines}\nreceived {}", self.received.escape_ascii())
    }

    fn read_client(&mut self, world: &World) {
        let Some(socket) = self.client.socket else {
            return self.over.set(true);
        };
        // A client that is still connecting has not ended its connection.
        if world.connected(socket).is_none() {
            return;
        }
        loop {
            match world.read(socket, 64 * 1024) {
                ReadResult::Bytes(bytes) => self.received.extend(bytes),
                ReadResult::Nothing => return,
                ReadResult::End | ReadResult::Failed(_) => {
                    self.client.close(world);
                    return self.over.set(true);
                }
            }
        }
    }

    fn read_origin(&mut self, world: &World, index: usize) {
        while let Some(socket) = self.connections[index].sender.socket {
            match world.read(socket, 64 * 1024) {
                ReadResult::Bytes(bytes) => {
                    self.connections[index].input.extend(bytes);
                    self.take(index);
                }
                ReadResult::Nothing => return,
                ReadResult::End | ReadResult::Failed(_) => {
                    self.connections[index].sender.close(world)
                }
            }
        }
    }

    /// Takes every complete request from the input and responds to it.
    fn take(&mut self, index: usize) {
        while !self.connections[index].raw {
            let connection = &mut self.connections[index];
            match strict::request(&connection.input) {
                Err(ambiguity) => {
                    connection.raw = true;
                    self.ambiguous.push((std::mem::take(&mut connection.input), ambiguity));
                }
                Ok(Some(message)) => {
                    connection.input.drain(..message.bytes);
                    let begun = std::mem::take(&mut connection.begun);
                    if !begun {
                        self.respond(index, message.method(), message.target());
                    }
                    let connection = &mut self.connections[index];
                    connection.sender.actions.retain(|action| *action != SocketAction::Body);
                    let exchanges = &mut self.exchanges[connection.number];
                    if let Some(requests) = exchanges.requests.last_mut() {
                        *requests = RequestContext::with(message.method());
                    }
                    connection.raw =
                        exchanges.sent_bytes.windows(13).any(|it| it == b"HTTP/1.1 101 ");
                    self.seen.push(message);
                }
                Ok(None) => return self.respond_early(index),
            }
        }
    }

    /// Begins a response that does not wait for the end of its request.
    fn respond_early(&mut self, index: usize) {
        let connection = &self.connections[index];
        let early =
            self.responses.front().is_some_and(|actions| actions.contains(&SocketAction::Body));
        let end = connection.input.windows(4).position(|four| four == b"\r\n\r\n");
        if !connection.begun && early && end.is_some() {
            self.connections[index].begun = true;
            self.respond(index, "GET", "/");
        }
    }

    fn respond(&mut self, index: usize, method: &str, target: &str) {
        let default = || vec![SocketAction::Send(default_response(method, target))];
        let actions = self.responses.pop_front().unwrap_or_else(default);
        let connection = &mut self.connections[index];
        let exchanges = &mut self.exchanges[connection.number];
        if !exchanges.ends {
            exchanges.sent_bytes.extend(sent_bytes(&actions));
        }
        exchanges.requests.push(RequestContext::with(method));
        exchanges.ends |=
            actions.iter().any(|action| matches!(action, SocketAction::End | SocketAction::Reset));
        connection.sender.actions.extend(actions);
    }
}

impl Sender {
    fn new(socket: ActorSocket, actions: VecDeque<SocketAction>, world: &World) -> Self {
        Self { socket: Some(socket), actions, rest: Vec::new(), after: world.now() }
    }

    /// Sends what can be sent now. Returns when to try again.
    fn step(&mut self, world: &World, client: bool) -> Option<Instant> {
        let socket = self.socket?;
        if client && world.connected(socket).is_none() {
            return None;
        }
        if !self.rest.is_empty() && !self.flush(world, socket) {
            return None;
        }
        if world.now() < self.after {
            return Some(self.after).filter(|_| !self.actions.is_empty());
        }
        match self.actions.front()? {
            SocketAction::Body => return None,
            SocketAction::Send(bytes) => {
                self.rest.extend_from_slice(bytes);
                self.actions.pop_front();
                if !self.flush(world, socket) {
                    return None;
                }
            }
            SocketAction::End if client => {
                world.shutdown_write(socket);
                self.actions.clear();
                return None;
            }
            SocketAction::End => self.close(world),
            SocketAction::Reset => {
                world.reset(socket);
                self.socket = None;
                return None;
            }
        }
        self.after = world.now() + PAUSE;
        Some(self.after)
    }

    /// Writes the remaining bytes. Returns false while the proxy does not accept them.
    fn flush(&mut self, world: &World, socket: ActorSocket) -> bool {
        while !self.rest.is_empty() {
            match world.write(socket, &self.rest) {
                Ok(0) => return false,
                Ok(count) => drop(self.rest.drain(..count)),
                Err(_) => {
                    self.rest.clear();
                    self.actions.clear();
                }
            }
        }
        true
    }

    fn close(&mut self, world: &World) {
        if let Some(socket) = self.socket.take() {
            world.close(socket);
        }
    }
}

//! An origin of a story: judges every byte that comes, and answers each request as is planned for
//! it, well or not.

mod answering;
mod judging;

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_engine::{Address, Instant};
use millrace_sim::{ActorSocket, ReadResult, World};

use super::classes;
use super::ledger::{Ledger, Moment, Silence};
use super::plan::{Conduct, Origin, Request};
use super::reading::{Reading, Side};
use super::sending::{Look, Out, Sending, Sent};
use super::words;

/// An origin and its connections.
pub(super) struct OriginSeat {
    plan: Origin,
    number: usize,
    ledger: Ledger,
    listener: Option<ActorSocket>,
    accepted: usize,
    lines: Vec<Line>,
}

/// One connection.
struct Line {
    name: String,
    /// Of its origin.
    number: usize,
    conduct: Conduct,
    ledger: Ledger,
    socket: Option<ActorSocket>,
    reading: Reading,
    sending: Sending,
    at: At,
    /// Payload got of the request, or of the tunnel.
    got: usize,
    /// What it has to be.
    want: Vec<u8>,
    /// The request is whole.
    whole: bool,
    /// The last byte of the answer was taken.
    answered: bool,
    answers: usize,
    /// The id of the last request.
    last: u32,
    moved: Moment,
    /// When it ended its stream because nobody used the connection.
    finished: Option<Moment>,
    /// Bytes that nobody asked for follow its last answer.
    strays: bool,
    /// When they were all there, at the latest.
    strayed: Option<Moment>,
    /// A malformed answer stood on it: no further request may.
    ruined: bool,
    /// When an early response had begun to reach the proxy, at the latest.
    began: Option<Moment>,
    /// That was long before the end of its request's body: no further request may follow.
    overtaken: bool,
    /// Whatever comes now is not for us to judge.
    spoilt: bool,
    ended: bool,
    /// When to act although nothing has stirred; `None`: at once.
    look: Option<Instant>,
    silence: Silence,
}

/// What a connection is busy with.
#[derive(Debug)]
enum At {
    Idle,
    Request(Box<Request>),
    Tunnel(Box<Request>),
}

impl OriginSeat {
    /// Opens the origin's address.
    pub(super) fn new(plan: &Origin, number: usize, ledger: &Ledger, world: &World) -> (Self, u16) {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listener = world.actor_listen(&address);
        let Address::Tcp(address) = world.local_address(listener) else {
            unreachable!("a TCP address was asked for");
        };
        let refuses = plan.conduct == Conduct::Refuses;
        if refuses {
            ledger.met(classes::of_conduct(plan.conduct));
            world.close(listener);
        }
        let seat = Self {
            plan: *plan,
            number,
            ledger: ledger.clone(),
            listener: (!refuses).then_some(listener),
            accepted: 0,
            lines: Vec::new(),
        };
        (seat, address.port())
    }

    /// Does what can be done where something has `stirred`, or where the time has come; says when
    /// to look again.
    pub(super) fn step(
        &mut self,
        world: &World,
        stirred: &BTreeSet<ActorSocket>,
    ) -> Option<Instant> {
        let now = world.now();
        let mut look = Look::default();
        while let Some((socket, _)) = self.listener.and_then(|listener| world.accept(listener)) {
            self.accepted += 1;
            self.begin(world, socket);
        }
        for line in &mut self.lines {
            let due = line.look.is_none_or(|look| look <= now);
            if due || line.socket.is_some_and(|socket| stirred.contains(&socket)) {
                let mut again = Look::default();
                line.step(world, &mut again);
                line.look = Some(again.0.unwrap_or(now + Duration::from_secs(3600)));
            }
            line.look.into_iter().for_each(|again| look.at(again));
        }
        self.lines.retain(|line| line.socket.is_some());
        look.0
    }

    fn begin(&mut self, world: &World, socket: ActorSocket) {
        let name = format!("origin {}.{}", self.number, self.accepted);
        world.name_socket(socket, &name);
        self.ledger.met(classes::of_conduct(self.plan.conduct));
        match self.plan.conduct {
            Conduct::ClosesAtOnce => return world.close(socket),
            Conduct::ResetsAtOnce => return world.reset(socket),
            _ => {}
        }
        self.lines.push(Line {
            name,
            number: self.number,
            conduct: self.plan.conduct,
            ledger: self.ledger.clone(),
            socket: Some(socket),
            reading: Reading::new(Side::Requests),
            sending: Sending::default(),
            at: At::Idle,
            got: 0,
            want: Vec::new(),
            whole: false,
            answered: false,
            answers: 0,
            last: 0,
            moved: Moment::now(world),
            finished: None,
            strays: false,
            strayed: None,
            ruined: false,
            began: None,
            overtaken: false,
            spoilt: false,
            ended: false,
            look: None,
            silence: Silence::default(),
        });
    }

    /// Closes every socket: the world ends.
    pub(super) fn close(&mut self, world: &World) {
        let lines = self.lines.drain(..).filter_map(|line| line.socket);
        for socket in lines.chain(self.listener.take()) {
            world.close(socket);
        }
    }
}

impl Line {
    fn step(&mut self, world: &World, look: &mut Look) {
        let Some(socket) = self.socket else { return };
        self.send(world, socket, look);
        if self.socket.is_some() && self.conduct != Conduct::Deaf && !self.ended {
            self.read(world, socket);
        }
        if self.socket.is_some() {
            self.send(world, socket, look);
        }
        if self.socket.is_some() {
            self.watch_early(world, socket, look);
            self.watch_strays(world, socket, look);
            self.idle(world, socket, look);
        }
        if self.socket.is_some() && self.ended && self.sending.is_empty() {
            self.close(world);
        }
        if self.socket.is_some() {
            self.check_silence(world, socket, look);
        }
    }

    fn moves(&mut self, world: &World) {
        self.moved = Moment::now(world);
        if let At::Request(request) | At::Tunnel(request) = &self.at {
            self.ledger.touch(request.id, self.moved);
        }
    }

    fn send(&mut self, world: &World, socket: ActorSocket, look: &mut Look) {
        loop {
            let before = self.sending.total;
            let sent = self.sending.step(world, socket);
            if self.sending.total > before {
                self.moves(world);
            }
            match sent {
                Sent::Mark => {
                    self.answered = true;
                    self.next(world);
                    self.judge(world);
                }
                Sent::All | Sent::Full => return,
                Sent::Until(until) => return look.at(until),
                Sent::Gone => {
                    self.socket = None;
                    return;
                }
            }
        }
    }

    fn read(&mut self, world: &World, socket: ActorSocket) {
        loop {
            match world.read(socket, 64 * 1024) {
                ReadResult::Bytes(bytes) => {
                    self.moves(world);
                    self.reading.add(&bytes);
                    self.judge(world);
                    if self.socket.is_none() {
                        return;
                    }
                }
                ReadResult::End => return self.ends(world, self.sending.broke),
                ReadResult::Failed(_) => return self.ends(world, true),
                ReadResult::Nothing => return,
            }
        }
    }

    /// Notes when bytes of an early final response have reached the proxy.
    fn watch_early(&mut self, world: &World, socket: ActorSocket, look: &mut Look) {
        let At::Request(request) = &self.at else { return };
        if !request.answer.early || self.whole || self.began.is_some() {
            return;
        }
        if self.answered && world.undelivered(socket) == 0 {
            self.began = Some(Moment::now(world));
        } else {
            look.at(world.now() + Duration::from_millis(100));
        }
    }

    /// Notes when bytes that nobody asked for have reached the proxy.
    fn watch_strays(&mut self, world: &World, socket: ActorSocket, look: &mut Look) {
        if !self.strays || self.strayed.is_some() {
            return;
        }
        if self.sending.is_empty() && world.undelivered(socket) == 0 {
            self.strayed = Some(Moment::now(world));
        } else {
            look.at(world.now() + Duration::from_millis(100));
        }
    }

    /// What it does with a connection on which nothing is asked.
    fn idle(&mut self, world: &World, socket: ActorSocket, look: &mut Look) {
        let quiet = matches!(self.at, At::Idle) && self.sending.is_empty();
        let over = self.spoilt || self.ruined || self.strays || self.finished.is_some();
        if self.answers == 0 || !quiet || over || !self.reading.is_between() {
            return;
        }
        let (Conduct::ClosesIdle(ms) | Conduct::EndsIdle(ms) | Conduct::StraysIdle(ms)) =
            self.conduct
        else {
            return;
        };
        let until = self.moved.at + Duration::from_millis(ms);
        if world.now() < until {
            return look.at(until);
        }
        match self.conduct {
            Conduct::ClosesIdle(_) => return self.close(world),
            Conduct::EndsIdle(_) => {
                world.shutdown_write(socket);
                self.finished = Some(Moment::now(world));
                return;
            }
            _ => {}
        }
        let stray = words::STRAYS[self.answers % words::STRAYS.len()];
        // Where buffers are tiny the end of the answer is still before it.
        self.sending.add(Out::Bytes(stray.as_bytes().to_vec()));
        self.strays = true;
        self.send(world, socket, look);
        if self.socket.is_some() {
            self.watch_strays(world, socket, look);
        }
    }

    /// A connection that the proxy has not left may not be silent for longer than the limits allow.
    fn check_silence(&mut self, world: &World, socket: ActorSocket, look: &mut Look) {
        if world.is_peer_closed(socket) {
            return;
        }
        let waits = self.ledger.waits();
        let (wait, word, id) = match &self.at {
            At::Tunnel(request) => (waits.tunnel, "in a tunnel", Some(request.id)),
            At::Request(request) => (waits.exchange, "in an exchange", Some(request.id)),
            // Before a request is there, a name and other connections may have been tried; and a
            // tunnel may have been opened in which nobody has said anything.
            At::Idle if self.answers == 0 => (waits.tunnel, "before a request", None),
            At::Idle if self.reading.is_between() => (waits.kept, "kept", Some(self.last)),
            At::Idle => (waits.exchange, "in a request's head", None),
        };
        let moved = id.and_then(|id| self.ledger.moved(id));
        let since = moved.map_or(self.moved, |moved| moved.max(self.moved));
        let until = since.until(world, wait);
        if let Some(again) = self.silence.look(world.now(), until) {
            look.at(again);
        } else {
            let words = format!("silent {word} for {} ms", wait.as_millis());
            self.fail(world, "overdue", words);
        }
    }

    fn close(&mut self, world: &World) {
        if let Some(socket) = self.socket.take() {
            world.close(socket);
        }
    }

    fn fail(&mut self, world: &World, kind: &'static str, words: String) {
        self.ledger.fail(world, kind, format!("{}: {words}", self.name));
        self.spoilt = true;
        self.close(world);
    }
}

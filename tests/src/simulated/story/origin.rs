//! An origin of a story: judges every byte that comes, and answers each request as is planned for
//! it, well or not.

use std::collections::BTreeSet;
use std::time::Duration;

use millrace_event::{Address, Instant};
use millrace_sim::{Read, Socket, World};

use super::client::Look;
use super::ledger::{Ledger, Moment, Silence};
use super::plan::{Break, Conduct, Frame, How, Method, Oddity, Origin, Request, Wrong};
use super::reading::{Part, Reading, Side, shown};
use super::sending::{Out, Sending, Sent};
use super::words;
use crate::strict::Message;

/// An origin and its connections.
pub(super) struct OriginSeat {
    plan: Origin,
    number: usize,
    ledger: Ledger,
    listener: Option<Socket>,
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
    socket: Option<Socket>,
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
    /// Whatever comes now is not for us to judge.
    spoilt: bool,
    broke: bool,
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
            ledger.met("origin: refuses");
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
    pub(super) fn step(&mut self, world: &World, stirred: &BTreeSet<Socket>) -> Option<Instant> {
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

    fn begin(&mut self, world: &World, socket: Socket) {
        let name = format!("origin {}.{}", self.number, self.accepted);
        world.name(socket, &name);
        self.ledger.met(match self.plan.conduct {
            Conduct::Good => "origin: good",
            Conduct::Refuses => "origin: refuses",
            Conduct::ClosesAtOnce => "origin: closes at once",
            Conduct::ResetsAtOnce => "origin: resets at once",
            Conduct::Deaf => "origin: never reads",
            Conduct::ClosesIdle(_) => "origin: closes idle connections",
            Conduct::EndsIdle(_) => "origin: ends idle connections",
            Conduct::StraysIdle(_) => "origin: says something unasked",
        });
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
            spoilt: false,
            broke: false,
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

    fn send(&mut self, world: &World, socket: Socket, look: &mut Look) {
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
                Sent::Broken => {
                    self.broke = true;
                    return;
                }
                Sent::Gone => {
                    self.socket = None;
                    return;
                }
            }
        }
    }

    fn read(&mut self, world: &World, socket: Socket) {
        loop {
            match world.read(socket, 64 * 1024) {
                Read::Bytes(bytes) => {
                    self.moves(world);
                    self.reading.add(&bytes);
                    self.judge(world);
                    if self.socket.is_none() {
                        return;
                    }
                }
                Read::End => return self.ends(world, self.broke),
                Read::Failed(_) => return self.ends(world, true),
                Read::Nothing => return,
            }
        }
    }

    fn judge(&mut self, world: &World) {
        loop {
            if self.spoilt {
                let rest = self.reading.rest().len();
                self.reading.take(rest);
                return;
            }
            if matches!(self.at, At::Idle) && self.answers == 0 && self.begins_tunnel(world) {
                return;
            }
            if matches!(self.at, At::Request(_)) && self.whole {
                // Requests are never sent ahead to an origin. What still goes behind the answer at
                // hand is not awaited.
                if !self.reading.is_between() && !self.strays {
                    let words = format!("{} before an answer", shown(self.reading.rest()));
                    self.fail(world, "unasked", words);
                }
                return;
            }
            match self.reading.next(None) {
                Ok(Some(Part::Head(message))) => self.head(world, &message),
                Ok(Some(Part::Body(bytes))) => self.body(world, &bytes),
                Ok(Some(Part::End)) => self.end_of_request(world),
                Ok(None) => return,
                Err(why) => return self.fail(world, "doubtful", why),
            }
        }
    }

    /// Whether a tunnel begins, or may begin, with what is there.
    fn begins_tunnel(&mut self, world: &World) -> bool {
        let bytes = self.reading.rest();
        let begin = b"Tunnel ";
        let common = bytes.len().min(begin.len());
        if common == 0 || bytes[..common] != begin[..common] {
            return false;
        }
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return true };
        let line = String::from_utf8_lossy(&self.reading.take(end + 1)).into_owned();
        let id = line.trim_end().split(' ').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0);
        let target = format!("/{id}");
        if let Some(request) = self.ledger.arrive(world, self.number, (id, "CONNECT", &target)) {
            self.enter_tunnel(request);
            self.judge(world);
        }
        true
    }

    fn enter_tunnel(&mut self, request: Request) {
        self.reading.raw();
        let bytes = words::downward(request.id, request.answer.length);
        (self.got, self.want) = (0, words::upward(request.id, request.body.length));
        if request.answer.delay_ms > 0 {
            self.sending.add(Out::Pause(request.answer.delay_ms));
        }
        match (breaks(&request), request.answer.drip) {
            (None, Some((size, ms))) => self.sending.add(Out::Drip(bytes, size, ms)),
            (breaks, _) => self.sending.add_broken(bytes, breaks),
        }
        self.sending.add(Out::Finish);
        self.ledger.met("origin: in a tunnel");
        self.at = At::Tunnel(Box::new(request));
    }

    fn head(&mut self, world: &World, message: &Message) {
        let id = message.fields.iter().find(|field| field.is("x-id"));
        let id = id.and_then(|field| String::from_utf8_lossy(&field.value).parse().ok());
        let id = id.unwrap_or(0);
        let line = (id, message.method(), message.target());
        let Some(request) = self.ledger.arrive(world, self.number, line) else {
            self.spoilt = true;
            return;
        };
        self.ledger.touch(id, Moment::now(world));
        if self.ruined {
            let words = format!("request {id} on a connection with a malformed answer");
            return self.fail(world, "stale-connection", words);
        }
        let within = self.ledger.waits().heard;
        let is_long_ago =
            |moment: Moment| within.is_some_and(|within| moment.until(world, within) < world.now());
        if self.strayed.is_some_and(is_long_ago) {
            let words = format!("request {id} on a connection with bytes that nobody asked for");
            return self.fail(world, "stale-connection", words);
        }
        if let Some(finished) = self.finished {
            self.spoilt = true;
            if is_long_ago(finished) {
                let words = format!("request {id} on a connection whose end was long announced");
                self.fail(world, "stale-connection", words);
            }
            return;
        }
        // It was on its way. Nobody answers behind what may look like an answer.
        if self.strays && matches!(self.conduct, Conduct::StraysIdle(_)) {
            self.spoilt = true;
            return;
        }
        (self.got, self.whole, self.answered) = (0, false, false);
        let length = if request.method.is_tunnel() { 0 } else { request.body.length };
        self.want = words::upward(id, length);
        if request.body.expects && !request.answer.early {
            self.sending.add(Out::Bytes(words::interim(id, 100)));
        }
        let early = request.answer.early;
        self.at = At::Request(Box::new(request));
        if early {
            self.answer();
        }
    }

    fn body(&mut self, world: &World, bytes: &[u8]) {
        let (id, odd) = match &self.at {
            At::Request(request) | At::Tunnel(request) => {
                (request.id, matches!(request.oddity, Some(Oddity::Body(_))))
            }
            At::Idle => return,
        };
        let end = self.got + bytes.len();
        if !odd && self.want.get(self.got..end) != Some(bytes) {
            let words = format!(
                "wrong bytes from {} on of {} of request {id}: {}",
                self.got,
                self.want.len(),
                shown(bytes)
            );
            self.fail(world, "wrong-bytes", words);
        }
        self.got = end;
    }

    fn end_of_request(&mut self, world: &World) {
        let At::Request(request) = &self.at else { return };
        let (id, early) = (request.id, request.answer.early);
        if matches!(request.oddity, Some(Oddity::Body(_))) {
            let words = format!("the malformed body of request {id} was forwarded whole");
            return self.fail(world, "smuggled", words);
        }
        if self.got < self.want.len() {
            let words = format!("{} of {} bytes look whole", self.got, self.want.len());
            return self.fail(world, "looks-whole", format!("request {id}: {words}"));
        }
        self.whole = true;
        if !early {
            self.answer();
        }
        self.next(world);
    }

    /// Plans what is said to the request at hand.
    fn answer(&mut self) {
        let At::Request(request) = &self.at else { return };
        let request = (**request).clone();
        let answer = &request.answer;
        meet(&self.ledger, &request);
        if answer.delay_ms > 0 {
            self.sending.add(Out::Pause(answer.delay_ms));
        }
        let floods = matches!(answer.wrong, Some(Wrong::Floods));
        for count in 0..if floods { 100 } else { answer.interims } {
            let status = if floods { 103 } else { [103, 102, 100][count as usize % 3] };
            self.sending.add(Out::Bytes(words::interim(request.id, status)));
        }
        let mut bytes = words::answer(&request);
        if let Some(Wrong::Goes(index)) = answer.wrong {
            bytes.extend_from_slice(words::STRAYS[index].as_bytes());
            self.strays = true;
        }
        match (breaks(&request), answer.drip) {
            (None, Some((size, ms))) => self.sending.add(Out::Drip(bytes, size, ms)),
            (breaks, _) if request.method != Method::Upgrade => {
                self.sending.add_broken(bytes, breaks);
            }
            _ => self.sending.add(Out::Bytes(bytes)),
        }
        let bad = matches!(
            answer.wrong,
            Some(Wrong::Head(_) | Wrong::Chunks(_) | Wrong::Switches | Wrong::Floods)
        );
        self.sending.add(Out::Mark);
        let upgrades = request.method == Method::Upgrade && answer.status == 101;
        if (answer.closes || answer.frame == Frame::UntilClose) && !bad && !upgrades {
            self.sending.add(Out::Finish);
            self.ledger.met("answer: closes behind it");
        }
    }

    /// On to the next request once this one is whole, and its answer.
    fn next(&mut self, world: &World) {
        if !self.answered || !self.whole {
            return;
        }
        let At::Request(request) = &self.at else { return };
        let request = (**request).clone();
        self.answers += 1;
        (self.last, self.moved) = (request.id, Moment::now(world));
        self.at = At::Idle;
        match request.answer.wrong {
            Some(Wrong::Head(_) | Wrong::Chunks(_) | Wrong::Switches | Wrong::Floods) => {
                self.ruined = true;
            }
            _ if request.method == Method::Upgrade && request.answer.status == 101 => {
                self.enter_tunnel(request);
                self.judge(world);
            }
            _ => {}
        }
    }

    /// The stream from the proxy has ended, or broken.
    fn ends(&mut self, world: &World, broken: bool) {
        if broken {
            self.ledger.met("origin: sees its connection break");
        }
        if let At::Tunnel(request) = &self.at {
            let breaks = request.breaks.map(|breaks| breaks.how);
            // Before the first byte there may have been no tunnel: its client left too early.
            let may = matches!(breaks, Some(How::Finish | How::Close | How::Stop))
                || self.got == 0
                || self.ledger.story().proxy.unix;
            if !broken && !may && self.got < self.want.len() {
                let (id, got, want) = (request.id, self.got, self.want.len());
                let words = format!("{got} of {want} bytes of tunnel {id} end in order");
                return self.fail(world, "looks-whole", words);
            }
            if !broken {
                // The other direction goes on.
                self.ended = true;
                return;
            }
        }
        self.close(world);
    }

    /// Notes when bytes that nobody asked for have reached the proxy.
    fn watch_strays(&mut self, world: &World, socket: Socket, look: &mut Look) {
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
    fn idle(&mut self, world: &World, socket: Socket, look: &mut Look) {
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
                world.finish(socket);
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
    fn check_silence(&mut self, world: &World, socket: Socket, look: &mut Look) {
        if world.is_left(socket) {
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

/// Where the answer to a request, or what goes down its tunnel, is broken off.
fn breaks(request: &Request) -> Option<Break> {
    match request.answer.wrong {
        Some(Wrong::Breaks(breaks)) => Some(breaks),
        _ => None,
    }
}

fn meet(ledger: &Ledger, request: &Request) {
    let answer = &request.answer;
    ledger.met(match answer.frame {
        Frame::Length => "answer: with a length",
        Frame::Chunks(_) => "answer: chunked",
        Frame::UntilClose => "answer: until close",
    });
    if answer.old {
        ledger.met("answer: HTTP/1.0");
    }
    if answer.interims > 0 {
        ledger.met("answer: after interim ones");
    }
    if answer.early && request.body.length > 0 {
        ledger.met("answer: before the request's end");
    }
    if answer.drip.is_some() {
        ledger.met("answer: drips");
    }
    if answer.trailers {
        ledger.met("answer: trailers");
    }
    match answer.wrong {
        None => {}
        Some(Wrong::Breaks(breaks)) => ledger.met(match breaks.how {
            How::Finish => "answer: ends in the middle",
            How::Close => "answer: closed in the middle",
            How::Reset => "answer: reset in the middle",
            How::Stop => "answer: stops in the middle",
            How::Pause(_) => "answer: pauses in the middle",
        }),
        Some(Wrong::Goes(_)) => ledger.met("answer: bytes after it"),
        Some(Wrong::Head(index)) => ledger.met(format!("answer: bad head {index}")),
        Some(Wrong::Chunks(index)) => ledger.met(format!("answer: bad chunks {index}")),
        Some(Wrong::Floods) => ledger.met("answer: a flood of interim ones"),
        Some(Wrong::Switches) => ledger.met("answer: 101 that nobody asked for"),
    }
}

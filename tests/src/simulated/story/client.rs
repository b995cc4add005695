//! A client connection of a story: sends its requests, and judges every byte that it gets.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use millrace_event::{Address, Instant};
use millrace_proxy::reason::Reason;
use millrace_sim::{Read, Socket, World};

use super::ledger::{Ledger, Moment, Silence};
use super::plan::{Conduct, Connection, Ending, Frame, How, Method, Reader, Request, Wrong};
use super::reading::{Part, Reading, Side, shown};
use super::sending::{Out, Sending, Sent};
use super::words::{self, Way};
use crate::strict::{Asked, Message};

/// How far the answer to the first unanswered request has come.
#[derive(Debug)]
enum At {
    /// No final head is there.
    Head,
    /// The origin's answer.
    Answer { got: usize, want: Vec<u8> },
    /// The proxy's own, with the sentence that has to be in it.
    Own { got: usize, want: Vec<u8> },
    /// A tunnel, with so many bytes got.
    Tunnel { got: usize, want: Vec<u8> },
}

/// A client connection.
pub(super) struct ClientSeat {
    plan: Connection,
    name: String,
    /// How each request is to be sent: the authority of its origin.
    authorities: Vec<String>,
    innocent: bool,
    /// The connection is one of Unix sockets, which know no reset.
    unix: bool,
    ledger: Ledger,
    begins: Instant,
    socket: Option<Socket>,
    began: bool,
    /// Somebody has accepted the connection.
    taken: bool,
    over: bool,
    sending: Sending,
    /// Requests given to `sending`.
    sent: usize,
    /// Bytes taken before the last of them.
    sent_before: u64,
    /// Requests answered.
    answered: usize,
    reading: Reading,
    at: At,
    interims: u32,
    /// An answer said that it is the last.
    last: bool,
    /// Nothing is read before then.
    reads_at: Option<Instant>,
    /// Bytes read.
    got: usize,
    /// The same since a slow reader last paused.
    slow_got: usize,
    stalled: bool,
    moved: Moment,
    /// The connection broke: how its stream ends says nothing.
    broke: bool,
    /// The stream ended, and what is sent goes on.
    ended: bool,
    /// What follows is not looked at.
    deaf: bool,
    /// When to act although nothing has stirred.
    look: Option<Instant>,
    silence: Silence,
}

impl ClientSeat {
    pub(super) fn new(
        plan: &Connection,
        number: usize,
        authorities: &[String],
        ledger: &Ledger,
        world: &World,
    ) -> Self {
        let of = |request: &Request| authorities[request.origin].clone();
        Self {
            name: format!("client {}.{}", plan.client, number),
            authorities: plan.requests.iter().map(of).collect(),
            unix: ledger.story().proxy.unix,
            innocent: ledger.story().is_innocent(plan),
            ledger: ledger.clone(),
            begins: world.now() + Duration::from_millis(plan.begins_ms),
            socket: None,
            began: false,
            taken: false,
            over: false,
            sending: Sending::default(),
            sent: 0,
            sent_before: 0,
            answered: 0,
            reading: Reading::new(Side::Answers),
            at: At::Head,
            interims: 0,
            last: false,
            reads_at: None,
            got: 0,
            slow_got: 0,
            stalled: false,
            moved: Moment::now(world),
            broke: false,
            ended: false,
            deaf: false,
            look: None,
            silence: Silence::default(),
            plan: plan.clone(),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    /// What it waits for.
    pub(super) fn state(&self) -> String {
        let (answered, all) = (self.answered, self.plan.requests.len());
        let over = if self.over { "has ended" } else { "waits" };
        format!("{} {over}, {answered} of {all} answered, {:?}", self.name, self.plan.ending)
    }

    /// Closes the socket: the world ends.
    pub(super) fn close(&mut self, world: &World) {
        if let Some(socket) = self.socket.take() {
            world.close(socket);
        }
        self.over = true;
    }

    /// Does what can be done, if anything has `stirred` its socket or its time has come; says when
    /// to look again.
    pub(super) fn step(
        &mut self,
        world: &World,
        proxy: &Address,
        stirred: &BTreeSet<Socket>,
    ) -> Option<Instant> {
        let due = self.look.is_some_and(|look| look <= world.now());
        if due || !self.began || self.socket.is_some_and(|socket| stirred.contains(&socket)) {
            self.look = self.act(world, proxy);
        }
        self.look
    }

    fn act(&mut self, world: &World, proxy: &Address) -> Option<Instant> {
        if self.over {
            return None;
        }
        if !self.began {
            if world.now() < self.begins {
                return Some(self.begins);
            }
            self.begin(world, proxy);
        }
        let socket = self.socket?;
        match world.connected(socket) {
            None => return None,
            Some(Ok(())) => {}
            Some(Err(error)) => {
                if self.innocent {
                    self.fail(world, "unserved", format!("cannot connect: {error}"));
                }
                self.close(world);
                return None;
            }
        }
        let mut look = Look::default();
        self.send(world, socket, &mut look);
        if !self.over && !self.ended {
            self.read(world, socket, &mut look);
        }
        if !self.over {
            self.send(world, socket, &mut look);
        }
        if !self.over && self.ended && self.sending.is_empty() {
            self.gone(world);
        }
        if !self.over {
            self.check_silence(world, socket, &mut look);
        }
        look.0.filter(|_| !self.over)
    }

    fn begin(&mut self, world: &World, proxy: &Address) {
        self.began = true;
        let from = SocketAddr::from(([127, 0, 1, self.plan.client + 1], 1));
        let from = matches!(proxy, Address::Tcp(_)).then_some(from);
        let socket = world.connect(proxy, from);
        world.name(socket, &self.name);
        self.socket = Some(socket);
        self.moved = Moment::now(world);
        self.ledger.met(match self.innocent {
            true => "client: innocent",
            false => "client: not innocent",
        });
        if let Reader::Slow(..) = self.plan.reader {
            self.ledger.met("client: reads slowly");
        }
        if self.plan.ending == Ending::Idles {
            self.ledger.met("client: waits for the proxy to close");
        }
    }

    /// The request whose answer is next.
    fn asked(&self) -> Option<&Request> {
        self.plan.requests.get(self.answered)
    }

    fn send(&mut self, world: &World, socket: Socket, look: &mut Look) {
        loop {
            let before = self.sending.total;
            let sent = self.sending.step(world, socket);
            if self.sending.total > before {
                self.moves(world);
            }
            match sent {
                Sent::Full | Sent::Mark => return,
                Sent::Until(until) => return look.at(until),
                Sent::Broken => {
                    self.broke = true;
                    return;
                }
                Sent::Gone => {
                    self.ledger.met("client: leaves in the middle");
                    self.socket = None;
                    self.over = true;
                    return;
                }
                Sent::All if !self.next() => return,
                Sent::All => {}
            }
        }
    }

    /// Begins to send the next request, if its time has come.
    fn next(&mut self) -> bool {
        let behind = self.plan.pipelined || self.sent == self.answered;
        let may = behind && !self.last && !self.sending.over;
        let Some(request) = self.plan.requests.get(self.sent).filter(|_| may) else {
            return false;
        };
        let request = request.clone();
        let story = self.ledger.story();
        let authority = self.authorities[self.sent].clone();
        let way = Way { authority: &authority, forward: story.proxy.forward };
        let (head, body) = words::request(&request, &way);
        self.sent += 1;
        self.sent_before = self.sending.total;
        if request.pause_ms > 0 {
            self.sending.add(Out::Pause(request.pause_ms));
        }
        self.meet(&request);
        if request.body.expects && !body.is_empty() {
            self.sending.add(Out::Bytes(head));
            self.sending.add(Out::Await(1000));
            self.sending.add_broken(body, request.breaks);
        } else {
            let breaks = request.breaks.filter(|_| !request.method.is_tunnel());
            self.sending.add_broken([head, body].concat(), breaks);
        }
        if self.sent == self.plan.requests.len()
            && self.plan.ending == Ending::Finishes
            && !request.method.is_tunnel()
        {
            self.ledger.met("client: ends its stream behind its requests");
            self.sending.add(Out::Finish);
        }
        true
    }

    fn meet(&self, request: &Request) {
        let ledger = &self.ledger;
        ledger.met(format!("request: {:?}", request.method));
        if self.plan.pipelined && self.plan.requests.len() > 1 {
            ledger.met("request: pipelined");
        }
        if request.body.chunk.is_some() {
            ledger.met("request: chunked");
        }
        if request.body.trailers {
            ledger.met("request: trailers");
        }
        if request.body.expects {
            ledger.met("request: expects 100");
        }
        if request.old {
            ledger.met("request: HTTP/1.0");
        }
        if let Some(breaks) = request.breaks {
            ledger.met(match breaks.how {
                How::Finish => "client: ends its stream in the middle",
                How::Close => "client: closes in the middle",
                How::Reset => "client: resets in the middle",
                How::Stop => "client: stops in the middle",
                How::Pause(_) => "client: pauses in the middle",
            });
        }
        if let Some(oddity) = request.oddity {
            ledger.met(format!("request: odd {oddity:?}"));
        }
    }

    /// Something moved.
    fn moves(&mut self, world: &World) {
        self.moved = Moment::now(world);
        // Those that are pipelined behind it wait for it.
        for request in &self.plan.requests[self.answered..self.sent.max(self.answered)] {
            self.ledger.touch(request.id, self.moved);
        }
    }

    fn read(&mut self, world: &World, socket: Socket, look: &mut Look) {
        loop {
            if let Some(at) = self.reads_at {
                if world.now() < at {
                    return look.at(at);
                }
                self.reads_at = None;
            }
            let max = match self.plan.reader {
                Reader::Slow(bytes, _) => bytes - self.slow_got,
                Reader::Stalls(after, ms) if !self.stalled => {
                    match after.saturating_sub(self.got) {
                        0 => {
                            self.stalled = true;
                            self.ledger.met("client: stops reading");
                            self.reads_at = Some(world.now() + Duration::from_millis(ms));
                            continue;
                        }
                        left => left.min(64 * 1024),
                    }
                }
                _ => 64 * 1024,
            };
            match world.read(socket, max) {
                Read::Bytes(bytes) => {
                    self.moves(world);
                    self.got += bytes.len();
                    self.slow_got += bytes.len();
                    if let Reader::Slow(most, ms) = self.plan.reader
                        && self.slow_got >= most
                    {
                        self.slow_got = 0;
                        self.reads_at = Some(world.now() + Duration::from_millis(ms));
                    }
                    self.reading.add(&bytes);
                    self.judge(world);
                }
                Read::End => return self.ended(world, false),
                Read::Failed(_) => return self.ended(world, true),
                Read::Nothing => return,
            }
            if self.over {
                return;
            }
        }
    }

    /// Looks at what came.
    fn judge(&mut self, world: &World) {
        while !self.over {
            let asked = self.asked().map(|request| Asked {
                method: request.method.word().to_owned(),
                old: request.old,
            });
            if asked.is_none() || (self.last && matches!(self.at, At::Head)) {
                if self.deaf {
                    let rest = self.reading.rest().len();
                    self.reading.take(rest);
                } else if !self.reading.is_between() {
                    let rest = shown(self.reading.rest());
                    self.fail(world, "unasked", format!("more came than was asked for: {rest}"));
                }
                return self.leave_if_done(world);
            }
            let part = match self.reading.next(asked.as_ref()) {
                Ok(Some(part)) => part,
                Ok(None) => return,
                Err(why) => return self.fail(world, "doubtful", why),
            };
            match part {
                Part::Head(message) => self.head(world, &message),
                Part::Body(bytes) => self.body(world, &bytes),
                Part::End => self.whole(world),
            }
        }
    }

    fn head(&mut self, world: &World, message: &Message) {
        let Some(request) = self.asked().cloned() else { return };
        let id = message.fields.iter().find(|field| field.is("x-id"));
        let id = id.map(|field| String::from_utf8_lossy(&field.value).into_owned());
        if id.as_ref().is_some_and(|id| *id != request.id.to_string()) {
            let words = format!("{id:?} answers {}", request.id);
            return self.fail(world, "wrong-answer", words);
        }
        self.sending_hears();
        let status = message.status();
        if message.interim() {
            self.interims += 1;
            let floods = matches!(request.answer.wrong, Some(Wrong::Floods));
            let most = if floods { 64 } else { request.answer.interims } + 1;
            if self.interims > most {
                let words = format!("{} interim answers to {}", self.interims, request.id);
                self.fail(world, "wrong-answer", words);
            }
            return;
        }
        self.last |= message.closes() || request.old;
        // The success of CONNECT is the proxy's own.
        if request.method == Method::Connect && (200..300).contains(&status) {
            return self.begin_tunnel(&request);
        }
        if status == 101 && (request.method != Method::Upgrade || id.is_none()) {
            return self.fail(world, "unasked", "101 that was not asked for".to_owned());
        }
        if id.is_none() {
            return self.own_answer(world, &request, message);
        }
        if let Some(wrong @ (Wrong::Head(_) | Wrong::Switches | Wrong::Floods)) =
            request.answer.wrong
        {
            return self.fail(world, "doubtful", format!("an answer with {wrong:?} came through"));
        }
        if status != request.answer.status {
            let words = format!("status {status} for {}", request.answer.status);
            return self.fail(world, "wrong-answer", words);
        }
        if status == 101 {
            return self.begin_tunnel(&request);
        }
        let none = words::has_no_body(status) || request.method == Method::Head;
        let length = if none { 0 } else { request.answer.length };
        self.at = At::Answer { got: 0, want: words::downward(request.id, length) };
    }

    /// Whoever waits to send a body has heard of its request.
    fn sending_hears(&mut self) {
        // What was refused before it was sent is sent all the same.
        if self.asked().is_some_and(|request| request.body.expects) {
            self.sending.go_on();
        }
    }

    /// The proxy's own answer: it says why, in its own words and no others'.
    fn own_answer(&mut self, world: &World, request: &Request, message: &Message) {
        let status = message.status();
        let why = message.fields.iter().find(|field| field.is("proxy-status"));
        let why = why.map(|field| String::from_utf8_lossy(&field.value).into_owned());
        let why = why.unwrap_or_default();
        let is = |reason: &&Reason| {
            reason.status() == status && why.ends_with(&format!("; details=\"{}\"", reason.word()))
        };
        let Some(reason) = Reason::ALL.iter().find(is) else {
            let words = format!("{status} of nobody's for request {}: {why}", request.id);
            return self.fail(world, "wrong-answer", words);
        };
        let head = request.method == Method::Head;
        let want = if head { String::new() } else { format!("{}\n", reason.text()) };
        self.at = At::Own { got: 0, want: want.into_bytes() };
        // Whoever has not read a whole HEAD does not know that it is one.
        self.deaf |= head && self.last;
        self.ledger.met(format!("proxy: answers {status} itself"));
        self.ledger.met(format!("proxy: says {}", reason.word()));
        if self.innocent {
            let words = format!("{} of the proxy's own for {}", reason.word(), request.id);
            self.fail(world, "unserved", words);
        }
    }

    fn begin_tunnel(&mut self, request: &Request) {
        self.reading.raw();
        self.at = At::Tunnel { got: 0, want: words::downward(request.id, request.answer.length) };
        let mut bytes = match request.method {
            Method::Connect => words::tunnel_line(request.id).into_bytes(),
            _ => Vec::new(),
        };
        bytes.extend(words::upward(request.id, request.body.length));
        self.sending.add_broken(bytes, request.breaks);
        self.sending.add(Out::Finish);
        self.ledger.met("tunnel: begun");
    }

    fn body(&mut self, world: &World, bytes: &[u8]) {
        let (got, want) = match &mut self.at {
            At::Answer { got, want } | At::Own { got, want } | At::Tunnel { got, want } => {
                (got, want)
            }
            At::Head => return,
        };
        let end = *got + bytes.len();
        let right = want.get(*got..end) == Some(bytes);
        let same = want[(*got).min(want.len())..].iter().zip(bytes);
        let same = same.take_while(|(one, other)| one == other).count();
        let (at, length) = (*got + same, want.len());
        *got = end;
        if !right {
            let words = format!(
                "wrong byte at {at} of {length}: {}",
                shown(&bytes[same.min(bytes.len())..])
            );
            self.fail(world, "wrong-bytes", words);
        }
    }

    /// A message is over.
    fn whole(&mut self, world: &World) {
        let Some(request) = self.asked().cloned() else { return };
        match &self.at {
            // An interim answer.
            At::Head => return,
            At::Answer { got, want } if *got < want.len() && !may_end_early(&request) => {
                let (got, want) = (*got, want.len());
                let words = format!("{got} of {want} bytes look whole to request {}", request.id);
                return self.fail(world, "looks-whole", words);
            }
            At::Answer { .. } if matches!(request.answer.wrong, Some(Wrong::Chunks(_))) => {
                let words = format!("bad chunks look whole to request {}", request.id);
                return self.fail(world, "looks-whole", words);
            }
            At::Answer { .. } => self.ledger.met("client: got a whole answer"),
            At::Own { got, want } if *got < want.len() => {
                let words = format!("half a sentence of the proxy's own to {}", request.id);
                return self.fail(world, "looks-whole", words);
            }
            At::Own { .. } | At::Tunnel { .. } => {}
        }
        self.answered += 1;
        self.interims = 0;
        self.at = At::Head;
        self.moves(world);
        self.leave_if_done(world);
    }

    /// Ends the connection when all was answered, in the way that is planned.
    fn leave_if_done(&mut self, world: &World) {
        let done = self.answered == self.plan.requests.len();
        if done && self.plan.ending == Ending::Closes {
            self.close(world);
        }
    }

    /// The stream has ended, or broken.
    fn ended(&mut self, world: &World, broken: bool) {
        let broken = broken || self.broke;
        if broken {
            self.ledger.met("client: sees its connection break");
        }
        let by_close = self.reading.ends_by_close() && !broken;
        let request = self.asked().cloned();
        match (&self.at, &request) {
            (At::Answer { got, want }, Some(_)) if by_close && self.unix && *got < want.len() => {}
            (At::Answer { got, want }, Some(request)) if by_close => {
                let (got, want) = (*got, want.len());
                // RFC 9112 section 8: what ends by close may be cut by an orderly one, unseen.
                if got < want && !may_end_early(request) {
                    let words =
                        format!("{got} of {want} bytes end in order to request {}", request.id);
                    self.fail(world, "looks-whole", words);
                } else {
                    self.answered += 1;
                }
            }
            (At::Own { .. }, Some(_)) if by_close => self.answered += 1,
            // A Unix socket knows no reset.
            (At::Answer { got, want }, Some(request)) if !broken && !self.unix => {
                let (got, want) = (*got, want.len());
                let words = format!("{got} of {want} bytes end in order to request {}", request.id);
                self.fail(world, "looks-whole", words);
            }
            (At::Tunnel { got, want }, Some(request)) if !broken => {
                let (got, want) = (*got, want.len());
                let may = may_end_early(request) || self.unix || self.closes_at_once(request);
                if got < want && !may {
                    let words =
                        format!("{got} of {want} bytes of tunnel {} end in order", request.id);
                    self.fail(world, "looks-whole", words);
                }
                if got == want {
                    self.answered += 1;
                    self.ledger.met("tunnel: whole");
                }
                // The other direction goes on.
                if !self.sending.is_empty() {
                    self.ended = true;
                    return;
                }
            }
            _ => {}
        }
        self.gone(world);
    }

    /// Nothing more will come.
    fn gone(&mut self, world: &World) {
        if self.innocent && self.answered < self.plan.requests.len() {
            let (answered, all) = (self.answered, self.plan.requests.len());
            let words = format!("the end after {answered} of {all} answers; {}", self.at_word());
            self.fail(world, "unserved", words);
        }
        self.close(world);
    }

    /// Whether a tunnel leads to an origin that closes it before anything is said.
    fn closes_at_once(&self, request: &Request) -> bool {
        let story = self.ledger.story();
        request.method == Method::Connect
            && (story.origins[request.origin].conduct == Conduct::ClosesAtOnce
                // Or to one that has not heard the whole of which tunnel it is.
                || request.breaks.is_some())
    }

    fn at_word(&self) -> String {
        match &self.at {
            At::Head => format!("no head; {}", shown(self.reading.rest())),
            At::Answer { got, want } => format!("{got} of {} bytes", want.len()),
            At::Own { .. } => "an answer of the proxy's own".to_owned(),
            At::Tunnel { got, want } => format!("{got} of {} bytes of a tunnel", want.len()),
        }
    }

    /// A connection that the proxy has accepted and not left may not be silent for longer than
    /// the limits allow.
    fn check_silence(&mut self, world: &World, socket: Socket, look: &mut Look) {
        if world.is_left(socket) {
            return;
        }
        if !self.taken {
            // Nobody tells when that changes, and waits begin with it.
            self.taken = world.is_taken(socket);
            self.moved = Moment::now(world);
            return look.at(world.now() + Duration::from_secs(1));
        }
        let waits = self.ledger.waits();
        // A request of which no byte was taken is not yet one.
        let unsent = self.sent > 0 && self.sending.total == self.sent_before;
        let sent = self.sent - usize::from(unsent);
        let under_way = &self.plan.requests[self.answered..sent.max(self.answered)];
        let since = under_way.iter().filter_map(|request| self.ledger.moved(request.id));
        let since = since.max().map_or(self.moved, |moved| moved.max(self.moved));
        // Whoever does not read does not know that its tunnel has begun.
        let tunnel = under_way.iter().any(|request| request.method.is_tunnel());
        let (wait, word) = if tunnel {
            (waits.tunnel, "in a tunnel")
        } else if under_way.is_empty() {
            (waits.idle, "between requests")
        } else if self.reads_at.is_some() {
            // All of the answer may be in the kernel: then the next request is waited for.
            (waits.exchange.max(waits.idle), "in an exchange, without being read")
        } else {
            (waits.exchange, "in an exchange")
        };
        let until = since.until(world, wait);
        if let Some(again) = self.silence.look(world.now(), until) {
            look.at(again);
        } else {
            let words = format!("silent {word} for {} ms", wait.as_millis());
            self.fail(world, "overdue", words);
        }
    }

    fn fail(&mut self, world: &World, kind: &'static str, words: String) {
        self.ledger.fail(world, kind, format!("{}: {words}", self.name));
        self.over = true;
    }
}

/// Whether an origin ends what it sends in order before it is whole, so that nobody can tell.
fn may_end_early(request: &Request) -> bool {
    let ends = match request.answer.wrong {
        // Who has nothing more to say closes when the tunnel has ended in the other direction.
        Some(Wrong::Breaks(breaks)) if request.method.is_tunnel() => breaks.how != How::Reset,
        Some(Wrong::Breaks(breaks)) => matches!(breaks.how, How::Finish | How::Close),
        _ => false,
    };
    ends && (request.method.is_tunnel() || request.answer.frame == Frame::UntilClose)
}

/// When to look again.
#[derive(Default)]
pub(super) struct Look(pub(super) Option<Instant>);

impl Look {
    pub(super) fn at(&mut self, when: Instant) {
        self.0 = self.0.into_iter().chain([when]).min();
    }
}

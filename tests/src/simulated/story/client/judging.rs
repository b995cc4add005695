//! What a client makes of the bytes that it gets, and of their end.

use millrace_proxy::reason::Reason;
use millrace_sim::World;

use super::super::plan::{Conduct, Ending, Frame, How, Method, Request, Wrong};
use super::super::reading::{Part, shown};
use super::super::sending::Out;
use super::super::words;
use super::{At, ClientSeat};
use crate::strict::{Asked, Message};

impl ClientSeat {
    /// Looks at what came.
    pub(super) fn judge(&mut self, world: &World) {
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
    pub(super) fn ended(&mut self, world: &World, broken: bool) {
        let broken = broken || self.sending.broke;
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
            // Its framing says that more had to come.
            (At::Answer { .. }, Some(_)) if !broken => {
                self.ledger.met("client: sees an answer end before its end");
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
    pub(super) fn gone(&mut self, world: &World) {
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

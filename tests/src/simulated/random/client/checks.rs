//! Checks of the bytes that a client receives, and of the end of the stream.

use millrace_proxy::reason::Reason;
use millrace_sim::World;

use super::super::plan::{
    BodyFraming, BreakKind, Ending, Method, OriginBehaviour, Request, ResponseFault,
};
use super::super::reader::{Part, excerpt};
use super::super::send::SendStep;
use super::super::wire;
use super::{RandomClient, ResponseProgress};
use crate::strict::{Message, RequestContext};

impl RandomClient {
    /// Parses and checks the received bytes.
    pub(super) fn check_received(&mut self, world: &World) {
        while !self.over {
            let asked = self.asked().map(|request| RequestContext {
                method: request.method.word().to_owned(),
                old: request.old,
            });
            if asked.is_none() || (self.last && matches!(self.at, ResponseProgress::Head)) {
                if self.ignores_rest {
                    let rest = self.reader.rest().len();
                    self.reader.take(rest);
                } else if !self.reader.is_between() {
                    let rest = excerpt(self.reader.rest());
                    self.fail(world, "unasked", format!("more came than was asked for: {rest}"));
                }
                return self.leave_if_done(world);
            }
            let part = match self.reader.next(asked.as_ref()) {
                Ok(Some(part)) => part,
                Ok(None) => return,
                Err(why) => return self.fail(world, "ambiguous", why),
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
            let details = format!("{id:?} answers {}", request.id);
            return self.fail(world, "wrong-response", details);
        }
        self.sending_hears();
        let status = message.status();
        if message.interim() {
            self.interims += 1;
            let floods = matches!(request.response.fault, Some(ResponseFault::InterimFlood));
            let most = if floods { 64 } else { request.response.interims } + 1;
            if self.interims > most {
                let details = format!("{} interim answers to {}", self.interims, request.id);
                self.fail(world, "wrong-response", details);
            }
            return;
        }
        self.last |= message.closes() || request.old;
        // The response to a successful CONNECT is the proxy's own.
        if request.method == Method::Connect && (200..300).contains(&status) {
            return self.begin_tunnel(&request);
        }
        if status == 101 && (request.method != Method::Upgrade || id.is_none()) {
            return self.fail(world, "unasked", "101 that was not asked for".to_owned());
        }
        if id.is_none() {
            return self.own_answer(world, &request, message);
        }
        if let Some(
            wrong @ (ResponseFault::Head(_)
            | ResponseFault::UnrequestedUpgrade
            | ResponseFault::InterimFlood),
        ) = request.response.fault
        {
            return self.fail(world, "ambiguous", format!("an answer with {wrong:?} came through"));
        }
        if status != request.response.status {
            let details = format!("status {status} for {}", request.response.status);
            return self.fail(world, "wrong-response", details);
        }
        if status == 101 {
            return self.begin_tunnel(&request);
        }
        let none = wire::has_no_body(status) || request.method == Method::Head;
        let length = if none { 0 } else { request.response.length };
        self.at =
            ResponseProgress::Answer { got: 0, want: wire::response_payload(request.id, length) };
    }

    /// A client that waits to send its body continues: its request has got a response.
    fn sending_hears(&mut self) {
        // The client sends the body even if it was refused before.
        if self.asked().is_some_and(|request| request.body.expects) {
            self.outgoing.go_on();
        }
    }

    /// Checks the proxy's own response: it states the reason with the defined sentence and nothing
    /// else.
    fn own_answer(&mut self, world: &World, request: &Request, message: &Message) {
        let status = message.status();
        let why = message.fields.iter().find(|field| field.is("proxy-status"));
        let why = why.map(|field| String::from_utf8_lossy(&field.value).into_owned());
        let why = why.unwrap_or_default();
        let is = |reason: &&Reason| {
            reason.status() == status && why.ends_with(&format!("; details=\"{}\"", reason.word()))
        };
        let Some(reason) = Reason::ALL.iter().find(is) else {
            let details = format!("{status} of nobody's for request {}: {why}", request.id);
            return self.fail(world, "wrong-response", details);
        };
        let head = request.method == Method::Head;
        let want = if head { String::new() } else { format!("{}\n", reason.text()) };
        self.at = ResponseProgress::Own { got: 0, want: want.into_bytes() };
        // A client that has not sent a whole HEAD does not know that it is one.
        self.ignores_rest |= head && self.last;
        self.model.cover(format!("proxy: responds {status} itself"));
        self.model.cover(format!("proxy: reports {}", reason.word()));
        if self.must_succeed {
            let details = format!("{} of the proxy's own for {}", reason.word(), request.id);
            self.fail(world, "unserved", details);
        }
    }

    fn begin_tunnel(&mut self, request: &Request) {
        self.reader.raw();
        self.at = ResponseProgress::Tunnel {
            got: 0,
            want: wire::response_payload(request.id, request.response.length),
        };
        let mut bytes = match request.method {
            Method::Connect => wire::tunnel_line(request.id).into_bytes(),
            _ => Vec::new(),
        };
        bytes.extend(wire::request_payload(request.id, request.body.length));
        self.outgoing.add_broken(bytes, request.breaks);
        self.outgoing.add(SendStep::Finish);
        self.model.cover("tunnel: begun");
    }

    fn body(&mut self, world: &World, bytes: &[u8]) {
        let (got, want) = match &mut self.at {
            ResponseProgress::Answer { got, want }
            | ResponseProgress::Own { got, want }
            | ResponseProgress::Tunnel { got, want } => (got, want),
            ResponseProgress::Head => return,
        };
        let end = *got + bytes.len();
        let right = want.get(*got..end) == Some(bytes);
        let same = want[(*got).min(want.len())..].iter().zip(bytes);
        let same = same.take_while(|(one, other)| one == other).count();
        let (at, length) = (*got + same, want.len());
        *got = end;
        if !right {
            let details = format!(
                "wrong byte at {at} of {length}: {}",
                excerpt(&bytes[same.min(bytes.len())..])
            );
            self.fail(world, "wrong-bytes", details);
        }
    }

    /// Handles the end of a message.
    fn whole(&mut self, world: &World) {
        let Some(request) = self.asked().cloned() else { return };
        match &self.at {
            // An interim response.
            ResponseProgress::Head => return,
            ResponseProgress::Answer { got, want }
                if *got < want.len() && !may_end_early(&request) =>
            {
                let (got, want) = (*got, want.len());
                let details = format!("{got} of {want} bytes look whole to request {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::Answer { .. }
                if matches!(request.response.fault, Some(ResponseFault::Chunks(_))) =>
            {
                let details = format!("bad chunks look whole to request {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::Answer { .. } => self.model.cover("client: got a complete response"),
            ResponseProgress::Own { got, want } if *got < want.len() => {
                let details = format!("half a sentence of the proxy's own to {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::Own { .. } | ResponseProgress::Tunnel { .. } => {}
        }
        self.answered += 1;
        self.interims = 0;
        self.at = ResponseProgress::Head;
        self.moves(world);
        self.leave_if_done(world);
    }

    /// Ends the connection as planned when all responses are complete.
    fn leave_if_done(&mut self, world: &World) {
        let done = self.answered == self.plan.requests.len();
        if done && self.plan.ending == Ending::Closes {
            self.close(world);
        }
    }

    /// Handles the end of the stream, or its reset.
    pub(super) fn ended(&mut self, world: &World, broken: bool) {
        let broken = broken || self.outgoing.broke;
        if broken {
            self.model.cover("client: sees its connection break");
        }
        let by_close = self.reader.ends_by_close() && !broken;
        let request = self.asked().cloned();
        match (&self.at, &request) {
            (ResponseProgress::Answer { got, want }, Some(_))
                if by_close && self.unix && *got < want.len() => {}
            (ResponseProgress::Answer { got, want }, Some(request)) if by_close => {
                let (got, want) = (*got, want.len());
                // RFC 9112 section 8: an orderly close may hide that a body that ends with its
                // connection was cut.
                if got < want && !may_end_early(request) {
                    let details =
                        format!("{got} of {want} bytes end in order to request {}", request.id);
                    self.fail(world, "looks-whole", details);
                } else {
                    self.answered += 1;
                }
            }
            (ResponseProgress::Own { .. }, Some(_)) if by_close => self.answered += 1,
            // Its framing shows that bytes are missing.
            (ResponseProgress::Answer { .. }, Some(_)) if !broken => {
                self.model.cover("client: sees an answer end before its end");
            }
            (ResponseProgress::Tunnel { got, want }, Some(request)) if !broken => {
                let (got, want) = (*got, want.len());
                let may = may_end_early(request) || self.unix || self.closes_at_once(request);
                if got < want && !may {
                    let details =
                        format!("{got} of {want} bytes of tunnel {} end in order", request.id);
                    self.fail(world, "looks-whole", details);
                }
                if got == want {
                    self.answered += 1;
                    self.model.cover("tunnel: whole");
                }
                // The other direction continues.
                if !self.outgoing.is_empty() {
                    self.ended = true;
                    return;
                }
            }
            _ => {}
        }
        self.gone(world);
    }

    /// Handles the end of the connection.
    pub(super) fn gone(&mut self, world: &World) {
        if self.must_succeed && self.answered < self.plan.requests.len() {
            let (answered, all) = (self.answered, self.plan.requests.len());
            let details = format!("the end after {answered} of {all} answers; {}", self.at_word());
            self.fail(world, "unserved", details);
        }
        self.close(world);
    }

    /// Returns whether a tunnel leads to an origin that closes it before any byte.
    fn closes_at_once(&self, request: &Request) -> bool {
        let scenario = self.model.scenario();
        request.method == Method::Connect
            && (scenario.origins[request.origin].behaviour == OriginBehaviour::ClosesAtOnce
                // Or to one that has not received the complete line that names the tunnel.
                || request.breaks.is_some())
    }

    fn at_word(&self) -> String {
        match &self.at {
            ResponseProgress::Head => format!("no head; {}", excerpt(self.reader.rest())),
            ResponseProgress::Answer { got, want } => format!("{got} of {} bytes", want.len()),
            ResponseProgress::Own { .. } => "an answer of the proxy's own".to_owned(),
            ResponseProgress::Tunnel { got, want } => {
                format!("{got} of {} bytes of a tunnel", want.len())
            }
        }
    }
}

/// Returns whether an origin ends its stream in order before the body is complete, in a way that no
/// recipient detects.
fn may_end_early(request: &Request) -> bool {
    let ends = match request.response.fault {
        // A side that has sent everything closes when the other direction of the tunnel has ended.
        Some(ResponseFault::Breaks(breaks)) if request.method.is_tunnel() => {
            breaks.how != BreakKind::Reset
        }
        Some(ResponseFault::Breaks(breaks)) => {
            matches!(breaks.how, BreakKind::Finish | BreakKind::Close)
        }
        _ => false,
    };
    ends && (request.method.is_tunnel() || request.response.framing == BodyFraming::UntilClose)
}

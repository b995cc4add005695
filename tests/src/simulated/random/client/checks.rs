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
            let current_request = self.current_request().map(|request| RequestContext {
                method: request.method.word().to_owned(),
                old: request.old,
            });
            if current_request.is_none()
                || (self.closing && matches!(self.progress, ResponseProgress::Head))
            {
                if self.ignores_rest {
                    let rest = self.reader.rest().len();
                    self.reader.take(rest);
                } else if !self.reader.is_between() {
                    let rest = excerpt(self.reader.rest());
                    self.fail(world, "unasked", format!("bytes after the last response: {rest}"));
                }
                return self.leave_if_done(world);
            }
            let part = match self.reader.next(current_request.as_ref()) {
                Ok(Some(part)) => part,
                Ok(None) => return,
                Err(why) => return self.fail(world, "ambiguous", why),
            };
            match part {
                Part::Head(message) => self.check_header(world, &message),
                Part::Body(bytes) => self.check_body(world, &bytes),
                Part::End => self.end_of_message(world),
            }
        }
    }

    fn check_header(&mut self, world: &World, message: &Message) {
        let Some(request) = self.current_request().cloned() else { return };
        let id = message.fields.iter().find(|field| field.is("x-id"));
        let id = id.map(|field| String::from_utf8_lossy(&field.value).into_owned());
        if id.as_ref().is_some_and(|id| *id != request.id.to_string()) {
            let details = format!("the response to {id:?} for request {}", request.id);
            return self.fail(world, "wrong-response", details);
        }
        self.resume_body();
        let status = message.status();
        if message.interim() {
            self.interims += 1;
            let floods = matches!(request.response.fault, Some(ResponseFault::InterimFlood));
            let most = if floods { 64 } else { request.response.interims } + 1;
            if self.interims > most {
                let details = format!("{} interim responses to {}", self.interims, request.id);
                self.fail(world, "wrong-response", details);
            }
            return;
        }
        self.closing |= message.closes() || request.old;
        // The response to a successful CONNECT is the proxy's own.
        if request.method == Method::Connect && (200..300).contains(&status) {
            return self.begin_tunnel(&request);
        }
        if status == 101 && (request.method != Method::Upgrade || id.is_none()) {
            return self.fail(world, "unasked", "an unrequested 101".to_owned());
        }
        let of_proxy = message.fields.iter().any(|field| field.is("proxy-status"));
        if let Some(file) = request.file.filter(|_| id.is_none() && !of_proxy) {
            return self.check_file_header(world, &request, file, message);
        }
        if id.is_none() {
            return self.check_own_response(world, &request, message);
        }
        if let Some(wrong) = request.response.fault.filter(|fault| fault.has_bad_header()) {
            return self.fail(
                world,
                "ambiguous",
                format!("a response with {wrong:?} was forwarded"),
            );
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
        self.progress =
            ResponseProgress::Origin { got: 0, want: wire::response_payload(request.id, length) };
    }

    /// Ends the wait of a request for 100 (Continue), because a response has arrived.
    fn resume_body(&mut self) {
        // The client sends the body even after a final response.
        if self.current_request().is_some_and(|request| request.body.expects) {
            self.outgoing.go_on();
        }
    }

    /// Checks that the proxy's own response contains the sentence defined for its reason, and
    /// nothing else.
    fn check_own_response(&mut self, world: &World, request: &Request, message: &Message) {
        let status = message.status();
        let why = message.fields.iter().find(|field| field.is("proxy-status"));
        let why = why.map(|field| String::from_utf8_lossy(&field.value).into_owned());
        let why = why.unwrap_or_default();
        // The search for a file or a script waits for a disk.
        let waits_for_disk = why.is_empty() && self.model.scenario().folder.is_some();
        let is = |reason: &&Reason| {
            reason.status() == status
                && (why.ends_with(&format!("; details=\"{}\"", reason.word()))
                    || (waits_for_disk && **reason == Reason::FileTimedOut))
        };
        let Some(reason) = Reason::ALL.iter().find(is) else {
            let details = format!(
                "{status} from neither the origin nor the proxy for request {}: {why}",
                request.id
            );
            return self.fail(world, "wrong-response", details);
        };
        let check_header = request.method == Method::Head;
        let want = if check_header { String::new() } else { format!("{}\n", reason.text()) };
        self.progress = ResponseProgress::Own { got: 0, want: want.into_bytes() };
        // The proxy may refuse a HEAD before it has read the whole header. It then sends a body.
        self.ignores_rest |= check_header && self.closing;
        self.model.cover(format!("proxy: responds {status} itself"));
        self.model.cover(format!("proxy: reports {}", reason.word()));
        if self.must_succeed {
            let details = format!("the proxy's own {} for {}", reason.word(), request.id);
            self.fail(world, "unserved", details);
        }
    }

    fn begin_tunnel(&mut self, request: &Request) {
        self.reader.raw();
        self.progress = ResponseProgress::Tunnel {
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

    fn check_body(&mut self, world: &World, bytes: &[u8]) {
        if let ResponseProgress::File(_) = &self.progress {
            return self.check_file_body(world, bytes);
        }
        let (got, want) = match &mut self.progress {
            ResponseProgress::Origin { got, want }
            | ResponseProgress::Own { got, want }
            | ResponseProgress::Tunnel { got, want } => (got, want),
            ResponseProgress::Head | ResponseProgress::File(_) => return,
        };
        let end = *got + bytes.len();
        let right = want.get(*got..end) == Some(bytes);
        let same = want[(*got).min(want.len())..].iter().zip(bytes);
        let same = same.take_while(|(one, other)| one == other).count();
        let (progress, length) = (*got + same, want.len());
        *got = end;
        if !right {
            let details = format!(
                "wrong byte at {progress} of {length}: {}",
                excerpt(&bytes[same.min(bytes.len())..])
            );
            self.fail(world, "wrong-bytes", details);
        }
    }

    /// Handles the end of a message.
    fn end_of_message(&mut self, world: &World) {
        let Some(request) = self.current_request().cloned() else { return };
        match &self.progress {
            // An interim response.
            ResponseProgress::Head => return,
            ResponseProgress::Origin { got, want }
                if *got < want.len() && !self.may_end_early(&request) =>
            {
                let (got, want) = (*got, want.len());
                let details =
                    format!("{got} of {want} bytes look complete to request {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::Origin { .. }
                if request.response.fault.is_some_and(ResponseFault::has_bad_body) =>
            {
                let details = format!("bad chunks look complete to request {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::Origin { .. } if self.is_cut(&request) => {
                let details = format!("an unannounced end looks complete to {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::Origin { .. } => self.model.cover("client: got a complete response"),
            ResponseProgress::Own { got, want } if *got < want.len() => {
                let details =
                    format!("an incomplete response of the proxy's own to {}", request.id);
                return self.fail(world, "looks-whole", details);
            }
            ResponseProgress::File(_) => {
                if let Err((kind, details)) = self.end_of_file() {
                    return self.fail(world, kind, details);
                }
            }
            ResponseProgress::Own { .. } | ResponseProgress::Tunnel { .. } => {}
        }
        self.completed += 1;
        self.interims = 0;
        self.progress = ResponseProgress::Head;
        self.record_progress(world);
        self.leave_if_done(world);
    }

    /// Ends the connection as planned when all responses are complete.
    fn leave_if_done(&mut self, world: &World) {
        let done = self.completed == self.plan.requests.len();
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
        let request = self.current_request().cloned();
        match (&self.progress, &request) {
            (ResponseProgress::Origin { got, want }, Some(_))
                if by_close && self.is_unix_socket() && *got < want.len() => {}
            (ResponseProgress::Origin { got, want }, Some(request)) if by_close => {
                let (got, want) = (*got, want.len());
                // RFC 9112 section 8: a body that ends with its connection may have been cut, and
                // an orderly close does not show it.
                if (got < want && !self.may_end_early(request)) || self.is_cut(request) {
                    let details =
                        format!("{got} of {want} bytes end in order to request {}", request.id);
                    self.fail(world, "looks-whole", details);
                } else {
                    self.completed += 1;
                }
            }
            (ResponseProgress::Own { .. }, Some(_)) if by_close => self.completed += 1,
            // Its framing shows that bytes are missing.
            (ResponseProgress::Origin { .. }, Some(_)) if !broken => {
                self.model.cover("client: sees a response end too early");
            }
            (ResponseProgress::File(_), Some(_)) => self.model.cover("client: sees a file cut"),
            (ResponseProgress::Tunnel { got, want }, Some(request)) if !broken => {
                let (got, want) = (*got, want.len());
                let may = self.may_end_early(request)
                    || self.is_unix_socket()
                    || self.closes_at_once(request);
                if (got < want && !may) || self.is_cut(request) {
                    let details =
                        format!("{got} of {want} bytes of tunnel {} end in order", request.id);
                    self.fail(world, "looks-whole", details);
                }
                if got == want {
                    self.completed += 1;
                    self.model.cover("tunnel: complete");
                }
                // The other direction continues.
                if !self.outgoing.is_empty() {
                    self.ended = true;
                    return;
                }
            }
            _ => {}
        }
        self.end_connection(world);
    }

    /// Handles the end of the connection.
    pub(super) fn end_connection(&mut self, world: &World) {
        if self.must_succeed && self.completed < self.plan.requests.len() {
            let (completed, all) = (self.completed, self.plan.requests.len());
            let details = format!(
                "the end after {completed} of {all} responses; {}",
                self.describe_progress()
            );
            self.fail(world, "unserved", details);
        }
        self.close(world);
    }

    /// Returns whether the origin closes the tunnel before it sends any byte.
    fn closes_at_once(&self, request: &Request) -> bool {
        let scenario = self.model.scenario();
        request.method == Method::Connect
            && (scenario.origins[request.origin].behaviour == OriginBehaviour::ClosesAtOnce
                // Or the origin did not receive the complete line that names the tunnel.
                || request.breaks.is_some())
    }

    /// Returns whether the response or the tunnel is cut because TLS did not announce its end.
    fn is_cut(&self, request: &Request) -> bool {
        let in_tunnel = matches!(self.progress, ResponseProgress::Tunnel { .. });
        self.model.is_unannounced(request.id)
            && !self.is_unix_socket()
            && (in_tunnel || ends_with_stream(request))
    }

    fn may_end_early(&self, request: &Request) -> bool {
        may_end_early(request) && !self.model.is_unannounced(request.id)
    }

    fn describe_progress(&self) -> String {
        match &self.progress {
            ResponseProgress::Head => format!("no header; {}", excerpt(self.reader.rest())),
            ResponseProgress::Origin { got, want } => format!("{got} of {} bytes", want.len()),
            ResponseProgress::Own { .. } => "a response of the proxy's own".to_owned(),
            ResponseProgress::File(file) => file.describe(),
            ResponseProgress::Tunnel { got, want } => {
                format!("{got} of {} bytes of a tunnel", want.len())
            }
        }
    }
}

/// Returns whether only the end of the stream shows the end of the response to a request.
fn ends_with_stream(request: &Request) -> bool {
    let response = &request.response;
    let has_body = request.method != Method::Head && !wire::has_no_body(response.status);
    response.framing == BodyFraming::UntilClose && has_body
}

/// Returns whether an origin ends its stream before the body is complete, in a way that no
/// recipient of a plain stream detects.
fn may_end_early(request: &Request) -> bool {
    let ends = match request.response.fault {
        // In a tunnel, only a reset shows the break to the client. Even after [`BreakKind::Stop`]
        // the origin closes in an orderly way, once the other direction has ended.
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

//! Checks of the bytes that an origin receives, and of the end of the stream.

use millrace_sim::World;

use super::super::model::Moment;
use super::super::plan::{BreakKind, HeaderSyntax, Malformation, Method, OriginBehaviour};
use super::super::reader::{Part, excerpt};
use super::super::send::SendStep;
use super::super::wire;
use super::{ConnectionState, OriginConnection};
use crate::strict::Message;

impl OriginConnection {
    pub(super) fn check_received(&mut self, world: &World) {
        loop {
            if self.ignored {
                let rest = self.reader.rest().len();
                self.reader.take(rest);
                return;
            }
            if matches!(self.state, ConnectionState::Idle)
                && self.responses_sent == 0
                && self.begins_tunnel(world)
            {
                return;
            }
            if matches!(self.state, ConnectionState::Request(_)) && self.request_complete {
                // Bytes that arrive after the current response was sent are checked later, as the
                // next request.
                if !self.reader.is_between() && !self.extra_queued && !self.may_be_followed() {
                    let details = format!("{} before a response", excerpt(self.reader.rest()));
                    self.fail(world, "unasked", details);
                }
                return;
            }
            match self.reader.next() {
                Ok(Some(Part::Head(message))) => self.check_header(world, &message),
                Ok(Some(Part::Body(bytes))) => self.check_body(world, &bytes),
                Ok(Some(Part::End)) => self.end_of_request(world),
                Ok(None) => return,
                Err(why) => return self.fail(world, "ambiguous", why),
            }
        }
    }

    /// Returns whether the received bytes are, or may become, the line that begins a tunnel.
    fn begins_tunnel(&mut self, world: &World) -> bool {
        let bytes = self.reader.rest();
        let begin = b"Tunnel ";
        let common = bytes.len().min(begin.len());
        if common == 0 || bytes[..common] != begin[..common] {
            return false;
        }
        let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return true };
        let connection = String::from_utf8_lossy(&self.reader.take(end + 1)).into_owned();
        let id =
            connection.trim_end().split(' ').nth(1).and_then(|id| id.parse().ok()).unwrap_or(0);
        let target = format!("/{id}");
        if let Some(request) =
            self.model.record_arrival(world, self.number, (id, "CONNECT", &target))
        {
            self.enter_tunnel(request);
            self.check_received(world);
        }
        true
    }

    fn check_header(&mut self, world: &World, message: &Message) {
        let id = message.fields.iter().find(|field| field.is("x-id"));
        let id = id.and_then(|field| String::from_utf8_lossy(&field.value).parse().ok());
        let id = id.unwrap_or(0);
        let connection = (id, message.method(), message.target());
        let Some(request) = self.model.record_arrival(world, self.number, connection) else {
            self.ignored = true;
            return;
        };
        self.model.record_progress(id, Moment::now(world));
        if self.is_left_behind(world) {
            self.ignored = true;
            return;
        }
        if self.unusable.is_some() {
            let details = format!("request {id} on a connection after a malformed response");
            return self.fail(world, "stale-connection", details);
        }
        if self.overtaken {
            let details =
                format!("request {id} behind a response that was before the end of its body");
            return self.fail(world, "stale-connection", details);
        }
        if self.extra_sent.is_some_and(|moment| self.is_long_ago(world, moment)) {
            let details = format!("request {id} on a connection with unrequested bytes");
            return self.fail(world, "stale-connection", details);
        }
        if let Some(ended_idle) = self.ended_idle {
            self.ignored = true;
            if self.is_long_ago(world, ended_idle) {
                let details = format!("request {id} on a connection whose end was long announced");
                self.fail(world, "stale-connection", details);
            }
            return;
        }
        // The request was already on its way when the origin sent unrequested bytes. The origin
        // does not respond, because the proxy may take these bytes for the response.
        if self.extra_queued && matches!(self.behaviour, OriginBehaviour::SendsUnrequested(_)) {
            self.ignored = true;
            return;
        }
        (self.got, self.request_complete, self.response_sent) = (0, false, false);
        let length = if request.method.is_tunnel() { 0 } else { request.body.length };
        self.want = wire::request_payload(id, length);
        let is_program = self.model.scenario().proxy.fastcgi;
        if request.body.expects && !request.response.early && !is_program {
            self.outgoing.add(SendStep::Bytes(wire::interim(id, 100, HeaderSyntax::Strict)));
        }
        let early = request.response.early;
        self.state = ConnectionState::Request(Box::new(request));
        if early {
            self.queue_response();
        }
    }

    /// Returns whether the proxy may send requests behind the present one before its response.
    fn may_be_followed(&self) -> bool {
        let ConnectionState::Request(request) = &self.state else { return false };
        let shares = self.model.scenario().proxy.pipelining.is_some();
        shares && request.method == Method::Get && request.body.length == 0
    }

    /// Returns whether a request may have been pipelined before the proxy noticed a fault of the
    /// connection. Like a real origin, this one does not respond to it.
    fn is_left_behind(&self, world: &World) -> bool {
        let shares = self.model.scenario().proxy.pipelining.is_some();
        shares && self.unusable.is_some_and(|moment| !self.is_long_ago(world, moment))
    }

    /// Returns whether so much time has passed since `moment` that the proxy must have noticed an
    /// event of that time.
    fn is_long_ago(&self, world: &World, moment: Moment) -> bool {
        let within = self.model.waits().close_noticed;
        within.is_some_and(|within| moment.until(world, within) < world.now())
    }

    fn check_body(&mut self, world: &World, bytes: &[u8]) {
        let (id, is_malformed) = match &self.state {
            ConnectionState::Request(request) | ConnectionState::Tunnel(request) => {
                (request.id, matches!(request.malformation, Some(Malformation::Body(_))))
            }
            ConnectionState::Idle => return,
        };
        let end = self.got + bytes.len();
        if !is_malformed && self.want.get(self.got..end) != Some(bytes) {
            let details = format!(
                "wrong bytes from {} on of {} of request {id}: {}",
                self.got,
                self.want.len(),
                excerpt(bytes)
            );
            self.fail(world, "wrong-bytes", details);
        }
        self.got = end;
    }

    fn end_of_request(&mut self, world: &World) {
        let ConnectionState::Request(request) = &self.state else { return };
        let (id, early) = (request.id, request.response.early);
        if matches!(request.malformation, Some(Malformation::Body(_))) {
            let details = format!("the malformed body of request {id} was forwarded in full");
            return self.fail(world, "smuggled", details);
        }
        if self.got < self.want.len() {
            let details = format!("{} of {} bytes look complete", self.got, self.want.len());
            return self.fail(world, "looks-whole", format!("request {id}: {details}"));
        }
        self.request_complete = true;
        let early_reached = self.early_reached.take();
        self.overtaken =
            early_reached.is_some_and(|early_reached| self.is_long_ago(world, early_reached));
        if !early {
            self.queue_response();
        }
        self.next(world);
    }

    /// Handles the end of the stream from the proxy, or its reset.
    pub(super) fn ends(&mut self, world: &World, broken: bool) {
        if broken {
            self.model.cover("origin: sees its connection break");
        }
        if let ConnectionState::Tunnel(request) = &self.state {
            let breaks = request.breaks.map(|breaks| breaks.how);
            // Before the first byte, there may be no tunnel yet, because the client left too early.
            let may =
                matches!(breaks, Some(BreakKind::Finish | BreakKind::Close | BreakKind::Stop))
                    || self.got == 0
                    || self.model.scenario().proxy.unix;
            let is_cut = self.model.ends_tunnel_unannounced(request.id) && self.got > 0;
            if !broken && ((!may && self.got < self.want.len()) || is_cut) {
                let (id, got, want) = (request.id, self.got, self.want.len());
                let details = format!("{got} of {want} bytes of tunnel {id} end in order");
                return self.fail(world, "looks-whole", details);
            }
            if !broken {
                // The other direction continues.
                self.ended = true;
                return;
            }
        }
        self.close(world);
    }
}

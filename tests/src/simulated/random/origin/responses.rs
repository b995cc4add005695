//! The responses of an origin, and the state of the connection after them.

use millrace_sim::World;

use super::super::coverage;
use super::super::model::Moment;
use super::super::plan::{BodyFraming, Break, Method, Request, ResponseFault};
use super::super::send::SendStep;
use super::super::{programs, wire};
use super::{ConnectionState, OriginConnection};

impl OriginConnection {
    /// Queues the response to the current request.
    pub(super) fn queue_response(&mut self) {
        let ConnectionState::Request(request) = &self.state else { return };
        let request = (**request).clone();
        let response = &request.response;
        let ends_unannounced = self.model.scenario().ends_unannounced(self.number);
        self.model.set_unannounced(request.id, ends_unannounced);
        coverage::cover_response(&self.model, &request);
        if response.delay_ms > 0 {
            self.outgoing.add(SendStep::Pause(response.delay_ms));
        }
        let floods = matches!(response.fault, Some(ResponseFault::InterimFlood));
        for count in 0..if floods { 100 } else { response.interims } {
            let status = if floods { 103 } else { [103, 102, 100][count as usize % 3] };
            self.outgoing.add(SendStep::Bytes(wire::interim(request.id, status, response.syntax)));
        }
        let mut bytes = match self.model.scenario().proxy.fastcgi {
            true => programs::wire::response(&request),
            false => wire::response(&request),
        };
        if let Some(ResponseFault::ExtraBytes(index)) = response.fault {
            bytes.extend_from_slice(wire::UNREQUESTED_BYTES[index].as_bytes());
            self.extra_queued = true;
        }
        match (breaks(&request), response.drip) {
            (None, Some((size, ms))) => self.outgoing.add(SendStep::Drip(bytes, size, ms)),
            (breaks, _) if request.method != Method::Upgrade => {
                self.outgoing.add_broken(bytes, breaks);
            }
            _ => self.outgoing.add(SendStep::Bytes(bytes)),
        }
        let bad = response.fault.is_some_and(is_bad);
        self.outgoing.add(SendStep::Mark);
        let upgrades = request.method == Method::Upgrade && response.status == 101;
        if (response.closes || response.framing == BodyFraming::UntilClose) && !bad && !upgrades {
            self.outgoing.add(SendStep::Finish);
            self.model.cover("response: closes after it");
        }
    }

    /// Continues with the next request once this one and its response are complete.
    pub(super) fn next(&mut self, world: &World) {
        if !self.response_sent || !self.request_complete {
            return;
        }
        let ConnectionState::Request(request) = &self.state else { return };
        let request = (**request).clone();
        self.responses_sent += 1;
        (self.last_request, self.last_progress) = (request.id, Moment::now(world));
        self.state = ConnectionState::Idle;
        match request.response.fault {
            Some(fault) if is_bad(fault) => self.unusable = Some(Moment::now(world)),
            _ if request.method == Method::Upgrade && request.response.status == 101 => {
                self.enter_tunnel(request);
                self.check_received(world);
            }
            _ => {}
        }
    }

    pub(super) fn enter_tunnel(&mut self, request: Request) {
        self.reader.raw();
        let bytes = wire::response_payload(request.id, request.response.length);
        (self.got, self.want) = (0, wire::request_payload(request.id, request.body.length));
        if request.response.delay_ms > 0 {
            self.outgoing.add(SendStep::Pause(request.response.delay_ms));
        }
        match (breaks(&request), request.response.drip) {
            (None, Some((size, ms))) => self.outgoing.add(SendStep::Drip(bytes, size, ms)),
            (breaks, _) => self.outgoing.add_broken(bytes, breaks),
        }
        self.outgoing.add(SendStep::Finish);
        self.model.cover("origin: in a tunnel");
        self.state = ConnectionState::Tunnel(Box::new(request));
    }
}

/// Returns whether no request may follow on the connection of a response with this fault.
fn is_bad(fault: ResponseFault) -> bool {
    fault.has_bad_header() || fault.has_bad_body()
}

/// Returns where the response to a request, or the payload of its tunnel, breaks off.
fn breaks(request: &Request) -> Option<Break> {
    match request.response.fault {
        Some(ResponseFault::Breaks(breaks)) => Some(breaks),
        _ => None,
    }
}

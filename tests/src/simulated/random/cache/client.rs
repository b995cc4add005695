//! A client of the cache: sends the planned requests, and identifies responses by their serial
//! numbers.

use std::net::SocketAddr;
use std::time::Duration;

use millrace_engine::Instant;
use millrace_sim::{ActorSocket, ReadResult, World};

use super::super::model::Moment;
use super::super::pace::Pace;
use super::super::plan::{BodyFraming, Reader};
use super::super::reader::{MessageReader, Part, Side, excerpt};
use super::super::send::{NextWake, SendOutcome, SendQueue, SendStep};
use super::model::{CacheModel, ResponseRecord};
use super::{CacheClientPlan, CacheRequest, CachedResponsePlan, origin};
use crate::simulated::tls::ProxyAddress;
use crate::simulated::transport::Transport;
use crate::strict::{Message, RequestContext};

pub(super) struct CacheClient {
    name: String,
    plan: CacheClientPlan,
    model: CacheModel,
    /// When the client connects or has connected.
    begins: Instant,
    transport: Option<Transport>,
    over: bool,
    outgoing: SendQueue,
    reader: MessageReader,
    /// Number of requests that were queued for sending.
    planned: usize,
    /// Number of requests whose first byte was sent.
    begun: usize,
    /// Number of complete responses.
    completed: usize,
    current: Option<ReceivedResponse>,
    /// The proxy has announced the end of the connection.
    last: bool,
    last_progress: Moment,
    pace: Pace,
}

/// A response whose header was read.
struct ReceivedResponse {
    /// The record of the response in the model; `None`: the body is not checked, because the
    /// response is the proxy's own or the origin's to a HEAD.
    record: Option<ResponseRecord>,
    is_part: bool,
    want: Vec<u8>,
    got: usize,
}

impl CacheClient {
    pub(super) fn new(
        world: &World,
        number: usize,
        plan: &CacheClientPlan,
        model: &CacheModel,
    ) -> Self {
        Self {
            name: format!("client {number}"),
            plan: plan.clone(),
            model: model.clone(),
            begins: world.now() + Duration::from_millis(plan.begins_ms),
            transport: None,
            over: false,
            outgoing: SendQueue::default(),
            reader: MessageReader::new(Side::Responses),
            planned: 0,
            begun: 0,
            completed: 0,
            current: None,
            last: false,
            last_progress: Moment::now(world),
            pace: Pace::new(plan.reader),
        }
    }

    pub(super) fn is_over(&self) -> bool {
        self.over
    }

    pub(super) fn state(&self) -> String {
        let over = if self.over { "has ended" } else { "waits" };
        format!(
            "{} {over}, {} of {} completed",
            self.name,
            self.completed,
            self.plan.requests.len()
        )
    }

    pub(super) fn close(&mut self, world: &World) {
        if let Some(transport) = self.transport.take() {
            transport.close(world);
        }
        self.over = true;
    }

    pub(super) fn step(&mut self, world: &World, proxy: &ProxyAddress) -> Option<Instant> {
        if self.over {
            return None;
        }
        if self.transport.is_none() {
            if world.now() < self.begins {
                return Some(self.begins);
            }
            let from = SocketAddr::from(([127, 0, 2, 1], 1));
            let socket = world.connect(&proxy.address, Some(from));
            world.name_socket(socket, &self.name);
            self.transport = Some(proxy.transport(world, socket, self.plan.tls));
            self.last_progress = Moment::now(world);
            self.begins = world.now();
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
                self.fail_unserved(world, &format!("cannot connect: {error}"));
                self.close(world);
                return None;
            }
        }
        let mut next_wake = NextWake::default();
        self.send(world, &mut next_wake);
        self.read(world, &mut next_wake);
        if !self.over {
            self.send(world, &mut next_wake);
            self.check_silence(world, socket, &mut next_wake);
        }
        next_wake.0.filter(|_| !self.over)
    }

    fn send(&mut self, world: &World, next_wake: &mut NextWake) {
        loop {
            let behind = self.plan.pipelined || self.planned == self.completed;
            if behind && !self.last && self.planned < self.plan.requests.len() {
                let request = self.plan.requests[self.planned];
                self.planned += 1;
                self.outgoing.add(SendStep::Pause(request.pause_ms));
                self.outgoing.add(SendStep::Mark);
                self.outgoing.add(SendStep::Bytes(encode_request(&request)));
            }
            match self.outgoing.step(world, &mut self.transport) {
                SendOutcome::Mark => {
                    self.model.record_request(world, &self.plan.requests[self.begun]);
                    self.begun += 1;
                    self.last_progress = Moment::now(world);
                }
                SendOutcome::Until(until) => return next_wake.at(until),
                SendOutcome::Gone => return self.close(world),
                SendOutcome::All
                    if behind && !self.last && self.planned < self.plan.requests.len() => {}
                SendOutcome::All | SendOutcome::Full => return,
            }
        }
    }

    fn read(&mut self, world: &World, next_wake: &mut NextWake) {
        while !self.over {
            let max = match self.pace.readable(world, &self.model) {
                Ok(max) => max,
                Err(until) => return next_wake.at(until),
            };
            let Some(transport) = &mut self.transport else { return };
            match transport.read(world, max) {
                ReadResult::Bytes(bytes) => self.check_bytes(world, &bytes),
                ReadResult::End => return self.ended(world, false),
                ReadResult::Failed(_) => return self.ended(world, true),
                ReadResult::Nothing => return,
            }
        }
    }

    fn check_bytes(&mut self, world: &World, bytes: &[u8]) {
        self.last_progress = Moment::now(world);
        self.pace.record_read(world, bytes.len());
        self.reader.add(bytes);
        self.check_received(world);
        if !self.over && self.plan.leaves.is_some_and(|after| self.pace.got() >= after) {
            self.model.cover("client: leaves");
            if let Some(transport) = self.transport.take() {
                transport.reset(world);
            }
            self.over = true;
        }
    }

    fn check_received(&mut self, world: &World) {
        while !self.over {
            let Some(request) = self.plan.requests.get(self.completed).copied() else {
                if !self.reader.is_between() {
                    let rest = excerpt(self.reader.rest());
                    self.fail(world, "unasked", format!("bytes after the last response: {rest}"));
                }
                return self.close(world);
            };
            match self.reader.next(Some(&RequestContext::with(request.method))) {
                Ok(None) => return,
                Ok(Some(Part::Head(message))) => self.check_header(world, &request, &message),
                Ok(Some(Part::Body(bytes))) => self.check_body(world, &bytes),
                Ok(Some(Part::End)) => self.end_of_message(world),
                Err(why) => self.fail(world, "ambiguous", why),
            }
        }
    }

    fn check_header(&mut self, world: &World, request: &CacheRequest, message: &Message) {
        let value = |name: &str| {
            let field = message.fields.iter().find(|field| field.is(name));
            field.map(|field| String::from_utf8_lossy(&field.value).into_owned())
        };
        self.last |= message.closes();
        let status = message.status();
        let mut current =
            ReceivedResponse { record: None, is_part: false, want: Vec::new(), got: 0 };
        let Some(serial) = value("x-serial").and_then(|serial| serial.parse().ok()) else {
            self.check_own_response(world, request, status);
            self.current = Some(current);
            return;
        };
        let record = match self.model.check(world, request, serial) {
            Ok(record) => record,
            Err((kind, details)) => return self.fail(world, kind, details),
        };
        let is_hit = record.request_id != request.id;
        let class =
            if is_hit { "client: gets a response to another request" } else { "client: its own" };
        self.model.cover(class);
        if is_hit && self.model.outlived_process(&record) {
            self.model.cover("client: gets a response that an earlier process stored");
        }
        let plan = record.plan;
        match status {
            206 if request.range.is_some() => {
                let place = value("content-range").unwrap_or_default();
                let Some((first, last, complete)) = parse_content_range(&place) else {
                    return self.fail(
                        world,
                        "ambiguous",
                        format!("a part without a valid Content-Range: {place}"),
                    );
                };
                let is_known = match complete {
                    Some(complete) => complete == plan.length || record.may_look_short(),
                    // The origin sent no length, and the cache has not stored the whole body.
                    None => plan.frame != BodyFraming::Length,
                };
                if !is_known || last >= plan.length || first > last {
                    let details = format!("{place} of {} bytes", plan.length);
                    return self.fail(world, "wrong-bytes", details);
                }
                let wanted = request.range.map(|(first, last)| (first, last.min(plan.length - 1)));
                if !record.may_look_short() && wanted != Some((first, last)) {
                    let details = format!("{place} for bytes {:?}", request.range);
                    return self.fail(world, "wrong-part", details);
                }
                self.model.cover("client: gets a part");
                current.is_part = true;
                current.want = origin::body(serial, plan.length)[first..=last].to_vec();
            }
            status if status == plan.status => {
                let length = if request.method == "HEAD" { 0 } else { plan.length };
                current.is_part = request.method == "HEAD";
                current.want = origin::body(serial, length);
            }
            status => {
                let details = format!("status {status} for {} of {}", plan.status, request.id);
                return self.fail(world, "wrong-response", details);
            }
        }
        if request.method == "POST" && status < 400 {
            self.model.record_invalidation(request.url, serial);
        }
        current.record = Some(record);
        self.current = Some(current);
    }

    /// Handles a response of the proxy's own, or the origin's response to a HEAD.
    fn check_own_response(&mut self, world: &World, request: &CacheRequest, status: u16) {
        let is_head = request.method == "HEAD" && status == 200;
        let is_refused = request.cache_control == "only-if-cached" && status == 504;
        // A response about an unsatisfiable range says nothing about the stored response.
        let is_refused = is_refused || (request.range.is_some() && status == 416);
        self.model.cover(format!("proxy: responds {status} itself"));
        if !is_head && !is_refused {
            self.fail_unserved(world, &format!("request {} gets {status}", request.id));
        }
    }

    fn check_body(&mut self, world: &World, bytes: &[u8]) {
        let Some(current) = &mut self.current else { return };
        if current.record.is_none() {
            return;
        }
        let end = current.got + bytes.len();
        if current.want.get(current.got..end) != Some(bytes) {
            let details = format!("wrong bytes from {} on: {}", current.got, excerpt(bytes));
            return self.fail(world, "wrong-bytes", details);
        }
        current.got = end;
    }

    fn end_of_message(&mut self, world: &World) {
        let Some(current) = self.current.take() else { return };
        self.completed += 1;
        if let Some(record) = current.record {
            let (got, want) = (current.got, current.want.len());
            let is_short = got < want && !record.may_look_short();
            if is_short || (record.is_cut() && !current.is_part) {
                let details = format!("{got} of {want} bytes look complete");
                return self.fail(world, "looks-whole", details);
            }
        }
        if self.completed == self.plan.requests.len() || self.last {
            self.close(world);
        }
    }

    /// Handles the end of the stream, or its reset.
    fn ended(&mut self, world: &World, is_broken: bool) {
        let record = self.current.as_ref().and_then(|current| current.record);
        if let (Some(record), Some(current)) = (record, &self.current)
            && !current.is_part
            && self.plan.reader == Reader::Eager
            && self.is_undisturbed()
        {
            let check_bytes = record.bytes_before_break().unwrap_or(0);
            if is_broken || current.got < check_bytes {
                let details = format!(
                    "{} of {check_bytes} bytes before the break of a cut response, reset: {is_broken}",
                    current.got
                );
                return self.fail(world, "cut-short", details);
            }
            self.model.cover("client: gets all bytes before a break");
        }
        match record {
            Some(record) if record.plan.breaks.is_some() || record.is_cut() => {
                self.model.cover("client: sees that a response breaks off");
            }
            _ => self.fail_unserved(world, "its connection ends too early"),
        }
        self.close(world);
    }

    /// Reports a client that was not served, unless a fault of the scenario explains it.
    fn fail_unserved(&mut self, world: &World, details: &str) {
        let scenario = self.model.scenario();
        let may_break = |plan: &CachedResponsePlan| {
            let is_cut = plan.frame == BodyFraming::UntilClose && scenario.ends_unannounced();
            plan.breaks.is_some() || is_cut
        };
        let breaks = scenario.responses.iter().flatten().any(may_break);
        if self.is_undisturbed() && !breaks {
            self.fail(world, "unserved", details.to_owned());
        }
    }

    /// Returns whether nothing but an origin can have cut a response since the connection began.
    fn is_undisturbed(&self) -> bool {
        let may_cut = self.model.scenario().disk.is_some_and(|disk| disk.may_cut());
        let is_disturbed = self.model.is_hostile() || self.model.is_drained();
        !is_disturbed && !may_cut && !self.model.was_killed(self.begins)
    }

    /// Fails if the client waits for longer than the limits allow.
    fn check_silence(&mut self, world: &World, socket: ActorSocket, next_wake: &mut NextWake) {
        let waits = self.completed < self.begun && !self.pace.is_resting();
        if !waits || self.model.is_hostile() || world.is_peer_closed(socket) {
            return;
        }
        let until = self.last_progress.until(world, SILENCE);
        if until <= world.now() {
            return self.fail(world, "overdue", format!("silent for {} s", SILENCE.as_secs()));
        }
        next_wake.at(until);
    }

    fn fail(&mut self, world: &World, kind: &'static str, details: String) {
        self.model.fail(world, kind, format!("{}: {details}", self.name));
        self.over = true;
    }
}

/// Returns the bytes of a request.
fn encode_request(request: &CacheRequest) -> Vec<u8> {
    let CacheRequest { id, method, url, language, cache_control, range, .. } = request;
    let mut check_header = format!("{method} /u{url} HTTP/1.1\r\nHost: a.test\r\nX-Id: {id}\r\n");
    check_header += &format!("Accept-Language: l{language}\r\n");
    if !cache_control.is_empty() {
        check_header += &format!("Cache-Control: {cache_control}\r\n");
    }
    if let Some((first, last)) = range {
        check_header += &format!("Range: bytes={first}-{last}\r\n");
    }
    if *method == "POST" {
        check_header += "Content-Length: 3\r\n\r\nnew";
    } else {
        check_header += "\r\n";
    }
    check_header.into_bytes()
}

/// Returns first byte, last byte and complete length of `bytes F-L/C`. A complete length of `None`
/// is unknown.
fn parse_content_range(value: &str) -> Option<(usize, usize, Option<usize>)> {
    let (place, complete) = value.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = place.split_once('-')?;
    let complete = if complete == "*" { None } else { Some(complete.parse().ok()?) };
    Some((first.parse().ok()?, last.parse().ok()?, complete))
}

/// Limit of a wait without a byte. It is longer than all waits for an origin and for other
/// requests' fetches together.
const SILENCE: Duration = Duration::from_secs(120);

//! The origin of the cache: reads requests, and sends the planned responses.

use std::collections::VecDeque;
use std::rc::Rc;

use millrace_engine::{Address, Instant};
use millrace_sim::{ActorSocket, ReadResult, World};

use super::super::plan::{BodyFraming, Break, BreakKind, HeaderSyntax};
use super::super::reader::{MessageReader, Part, Side};
use super::super::send::{NextWake, SendOutcome, SendQueue, SendStep};
use super::super::wire::chunked;
use super::CachedResponsePlan;
use super::model::CacheModel;
use crate::scenario::pattern;
use crate::simulated::tls::TlsSettings;
use crate::simulated::transport::Transport;
use crate::strict::Message;

pub(super) struct CacheOrigin {
    listener: ActorSocket,
    connections: Vec<CacheOriginConnection>,
    model: CacheModel,
    tls: Option<Rc<TlsSettings>>,
}

/// A connection.
struct CacheOriginConnection {
    transport: Option<Transport>,
    reader: MessageReader,
    outgoing: SendQueue,
    /// The request whose body is incomplete.
    request: Option<Message>,
    /// The events that the model records at the next [`SendStep::Mark`]s of the send queue, in
    /// order.
    marks: VecDeque<Mark>,
    model: CacheModel,
}

/// The serial number of a response, and the plan of the 304 that validates it; `None`: the header
/// of the response itself.
type Mark = (usize, Option<CachedResponsePlan>);

/// Returns the body of a response.
pub(super) fn body(serial: usize, length: usize) -> Vec<u8> {
    pattern(length, serial as u64 + 1000)
}

impl CacheOrigin {
    pub(super) fn new(
        world: &World,
        model: &CacheModel,
        tls: Option<Rc<TlsSettings>>,
    ) -> (Self, Address) {
        let address = Address::Tcp(([127, 0, 0, 1], 0).into());
        let listener = world.actor_listen(&address);
        let address = world.local_address(listener);
        (Self { listener, connections: Vec::new(), model: model.clone(), tls }, address)
    }

    pub(super) fn step(&mut self, world: &World) -> Option<Instant> {
        while let Some((socket, _)) = world.accept(self.listener) {
            let plan = self.model.scenario().origin_tls;
            let transport = match self.tls.as_ref().zip(plan) {
                None => Transport::plain(socket),
                Some((tls, plan)) => tls.origin(world, socket, plan),
            };
            self.connections.push(CacheOriginConnection {
                transport: Some(transport),
                reader: MessageReader::new(Side::Requests),
                outgoing: SendQueue::default(),
                request: None,
                marks: VecDeque::new(),
                model: self.model.clone(),
            });
        }
        let wakes = self.connections.iter_mut().filter_map(|connection| connection.step(world));
        let next_wake = wakes.min();
        self.connections.retain(|connection| connection.transport.is_some());
        next_wake
    }

    pub(super) fn close(&mut self, world: &World) {
        for connection in &mut self.connections {
            connection.close(world);
        }
        world.close(self.listener);
    }
}

impl CacheOriginConnection {
    fn close(&mut self, world: &World) {
        if let Some(transport) = self.transport.take() {
            transport.close(world);
        }
    }

    fn step(&mut self, world: &World) -> Option<Instant> {
        let mut next_wake = NextWake::default();
        if let Some(transport) = &mut self.transport
            && let Err(why) = transport.advance(world)
        {
            self.model.fail(world, "tls", format!("the origin: {why}"));
        }
        while let Some(transport) = &mut self.transport {
            match transport.read(world, 64 * 1024) {
                ReadResult::Bytes(bytes) => self.reader.add(&bytes),
                ReadResult::End | ReadResult::Failed(_) => self.close(world),
                ReadResult::Nothing => break,
            }
        }
        loop {
            match self.reader.next(None) {
                Ok(None) => break,
                Ok(Some(Part::Head(message))) => self.request = Some(message),
                Ok(Some(Part::Body(_))) => {}
                Ok(Some(Part::End)) => {
                    if let Some(request) = self.request.take() {
                        self.respond(world, &request);
                    }
                }
                Err(why) => {
                    self.model.fail(world, "ambiguous", format!("the origin gets {why}"));
                    break;
                }
            }
        }
        self.send(world, &mut next_wake);
        next_wake.0
    }

    fn send(&mut self, world: &World, next_wake: &mut NextWake) {
        while self.transport.is_some() {
            match self.outgoing.step(world, &mut self.transport) {
                SendOutcome::Until(until) => return next_wake.at(until),
                SendOutcome::Mark => {
                    let (serial, plans) = self.marks.pop_front().expect("each mark has a meaning");
                    self.model.record_validation(world, serial, plans);
                }
                SendOutcome::Gone | SendOutcome::All | SendOutcome::Full => return,
            }
        }
    }

    fn respond(&mut self, world: &World, request: &Message) {
        let value = |name: &str| {
            let field = request.fields.iter().find(|field| field.is(name));
            field.map(|field| String::from_utf8_lossy(&field.value).into_owned())
        };
        let request_id = value("x-id").and_then(|id| id.parse().ok()).unwrap_or(0);
        let url = request.target().strip_prefix("/u").and_then(|url| url.parse::<usize>().ok());
        let scenario = self.model.scenario();
        let Some(url) = url.filter(|url| *url < scenario.responses.len()) else {
            let details = format!("{} arrived, which no client requested", request.target());
            return self.model.fail(world, "unasked", details);
        };
        if let Some((first, last)) = self.model.range_of(request_id) {
            let sent = value("range");
            if sent != Some(format!("bytes={first}-{last}")) {
                let details =
                    format!("request {request_id} for bytes {first}-{last} arrived with {sent:?}");
                return self.model.fail(world, "range-lost", details);
            }
            self.model.cover("origin: gets a range request");
        }
        let language = u8::from(value("accept-language").is_some_and(|it| it == "l1"));
        let plans = &scenario.responses[url];
        let plan = plans[self.model.response_count(url) % plans.len()];
        if plan.delay_ms > 0 {
            self.outgoing.add(SendStep::Pause(plan.delay_ms));
        }
        let tag = value("if-none-match").and_then(|it| it.trim_matches('"').parse::<usize>().ok());
        if let Some(serial) = tag
            && let Some(record) = self.model.record(serial)
            && record.url == url
            && (!record.plan.varies || record.language == language)
            && plan.confirms
            && !plan.cache_control.private
        {
            self.model.cover("origin: confirms a stored response");
            return self.confirm(serial, plan);
        }
        let rest = value("if-range").and_then(|it| it.trim_matches('"').parse::<usize>().ok());
        if let Some(serial) = rest
            && let Some(record) = self.model.record(serial)
            && (record.url, record.language) == (url, language)
            && plan.confirms
            && !plan.cache_control.private
            && let Some(part) = value("range").and_then(|it| range(&it, record.plan.length))
        {
            self.model.cover("origin: sends the missing bytes");
            self.model.complete(serial);
            let given = CachedResponsePlan {
                frame: BodyFraming::Length,
                breaks: None,
                tagged: true,
                ..record.plan
            };
            return self.send_response(serial, given, Some(part));
        }
        match request.method() {
            "POST" => self.change(request_id, url, plan),
            "HEAD" => {
                let head = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: \"h\"\r\n\
                            Cache-Control: no-store\r\n\r\n";
                self.outgoing.add(SendStep::Bytes(head.into()));
            }
            _ => self.respond_to_get(request_id, url, language, plan, value("range")),
        }
    }

    /// Sends a new response to GET, as a part if the request has a range.
    fn respond_to_get(
        &mut self,
        request_id: u32,
        url: usize,
        language: u8,
        planned: CachedResponsePlan,
        wanted_range: Option<String>,
    ) {
        let part = wanted_range.and_then(|it| range(&it, planned.length));
        let part = part.filter(|_| planned.status == 200);
        let planned = match part {
            Some(_) => CachedResponsePlan { frame: BodyFraming::Length, breaks: None, ..planned },
            None => planned,
        };
        let serial = self.model.record_response(planned, request_id, url, language);
        self.send_response(serial, planned, part);
    }

    fn confirm(&mut self, serial: usize, plan: CachedResponsePlan) {
        let cache_control = plan.cache_control.text;
        let head = format!(
            "HTTP/1.1 304 Not Modified\r\nETag: \"{serial}\"\r\nCache-Control: {cache_control}\r\n\r\n"
        );
        self.outgoing.add(SendStep::Bytes(plan.form.write(head)));
        // An ambiguous header must not affect the stored response.
        if !plan.form.is_ambiguous() {
            self.mark(serial, Some(plan));
        }
    }

    fn change(&mut self, request_id: u32, url: usize, plan: CachedResponsePlan) {
        let own = super::CacheControl { text: "no-store", fresh_s: 0, stale_s: 0, private: true };
        let plan = CachedResponsePlan { cache_control: own, varies: false, breaks: None, ..plan };
        let serial = self.model.record_response(plan, request_id, url, 0);
        self.send_response(serial, plan, None);
    }

    fn mark(&mut self, serial: usize, plans: Option<CachedResponsePlan>) {
        self.outgoing.add(SendStep::Mark);
        self.marks.push_back((serial, plans));
    }

    /// Sends the response with this serial number, or a part of it.
    fn send_response(
        &mut self,
        serial: usize,
        plan: CachedResponsePlan,
        range: Option<(usize, usize)>,
    ) {
        let payload = body(serial, plan.length);
        let (status, payload) = match range {
            Some((first, last)) => (206, payload[first..=last].to_vec()),
            None => (plan.status, payload),
        };
        let mut head = format!("HTTP/1.1 {status} So\r\nX-Serial: {serial}\r\n");
        head += &format!("Cache-Control: {}\r\nAccept-Ranges: bytes\r\n", plan.cache_control.text);
        if plan.tagged || range.is_some() {
            head += &format!("ETag: \"{serial}\"\r\n");
        }
        if plan.varies {
            head += "Vary: Accept-Language\r\n";
        }
        if let Some((first, last)) = range {
            head += &format!("Content-Range: bytes {first}-{last}/{}\r\n", plan.length);
        }
        let bytes = match plan.frame {
            BodyFraming::Length => {
                head += &format!("Content-Length: {}\r\n", payload.len());
                payload
            }
            BodyFraming::Chunks(size) => {
                head += "Transfer-Encoding: chunked\r\n";
                chunked(&payload, size)
            }
            BodyFraming::UntilClose => payload,
        };
        head += "\r\n";
        self.model.cover(format!("response: {}", plan.cache_control.text));
        if plan.form != HeaderSyntax::Strict {
            self.model.cover(format!("response: {:?}", plan.form));
        }
        self.outgoing.add(SendStep::Bytes(plan.form.write(head)));
        self.mark(serial, None);
        match (plan.breaks, plan.drip) {
            (Some(breaks), _) => self.break_off(bytes, breaks),
            (None, Some((size, ms))) => self.outgoing.add(SendStep::Drip(bytes, size, ms)),
            (None, None) => self.outgoing.add(SendStep::Bytes(bytes)),
        }
        if plan.frame == BodyFraming::UntilClose {
            self.outgoing.add(SendStep::Finish);
        }
    }

    /// Sends only a part of a response.
    fn break_off(&mut self, bytes: Vec<u8>, breaks: Break) {
        self.model.cover("response: breaks off");
        let count = breaks.at % bytes.len().max(1);
        self.outgoing.add(SendStep::Bytes(bytes[..count.min(bytes.len())].to_vec()));
        self.outgoing.add(match breaks.how {
            BreakKind::Finish | BreakKind::Pause(_) => SendStep::Finish,
            BreakKind::Close => SendStep::Close,
            BreakKind::Reset => SendStep::Reset,
            BreakKind::Stop => SendStep::Stop,
        });
    }
}

/// Parses `bytes=FIRST-LAST` or `bytes=FIRST-`. Returns `None` if a body of `length` bytes has no
/// byte in that range.
fn range(value: &str, length: usize) -> Option<(usize, usize)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let first: usize = first.parse().ok()?;
    let end = length.checked_sub(1)?;
    let last = if last.is_empty() { end } else { last.parse::<usize>().ok()?.min(end) };
    (first <= last).then_some((first, last))
}
